"""The examples that take seconds run, and hold what they assert."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["robust_regression_cavi.py", "counts_vgp.py"])
def test_runs(name, capsys):
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert "bound" in capsys.readouterr().out
