"""The examples that take seconds run, and hold what they assert."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("robust_regression_cavi", "bound"),
        ("counts_vgp", "bound"),
        ("many_observations_svi", "bound"),
        ("cox_process", "90 % intervals hold"),
        ("expectation_propagation", "sites of least precision: [1, 3, 4, 21]"),
    ],
)
def test_runs(name, expected, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert expected in capsys.readouterr().out
