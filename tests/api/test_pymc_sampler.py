"""The adapter to PyMC's proposed samplers, as the page for its developers has it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import pymc_augconj as pac

PAGE = Path(__file__).parents[2] / "docs" / "pymc_sampler.md"


def test_the_adapter_samples():
    adapter, use, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    names = {}
    quiet = "cores=1, chains=2, quiet=True, compute_convergence_checks=False, random_seed=3, "
    exec(adapter + use.replace("draws=20", quiet + "draws=20"), names)
    found = names["idata"].posterior["b"]
    expected = pac.sample(
        20, tune=10, model=names["model"], sweeps=2, chains=2, cores=1, quiet=True,
        progressbar=False, compute_convergence_checks=False, random_seed=3,
    ).posterior["b"]  # fmt: skip
    np.testing.assert_array_equal(found, expected)
