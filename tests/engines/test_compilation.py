"""Compiled functions that are kept on disk, and what they were compiled from."""

from __future__ import annotations

from hashlib import sha256

import pytest

from pymc_augconj.engines.gibbs.native import column_steps, compilation, density, held, kernel
from pymc_augconj.linalg import sparse_kernels
from pymc_augconj.python_mode import tape_kernel

KEPT = [kernel.run_steps, column_steps.run_steps, held.run_steps, held.read_part]


def stamp(function):
    return sha256(b"".join(compilation._digest(function, set()))).digest()


@pytest.mark.parametrize("function", KEPT, ids=lambda function: function.__module__)
def test_numba_compares_the_stamp(function):
    assert function._cache._cache_file._source_stamp[1] == stamp(function)


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (sparse_kernels, "_NARROW", 9),
        (tape_kernel, "FACTORIZE", 77),
        (density, "_error", density.log_likelihood),
        (held, "predict", held.hold),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_linked_code_has_another_stamp(module, name, value, monkeypatch):
    before = stamp(kernel.run_steps)
    monkeypatch.setattr(module, name, value)
    assert stamp(kernel.run_steps) != before
    monkeypatch.undo()
    assert stamp(kernel.run_steps) == before
