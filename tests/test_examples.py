"""Examples that are cheap enough run whole, with the assertions that they end in."""

from __future__ import annotations

import importlib.util
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str):
    """Import an example, which is no module of a package."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_expectation_propagation(capsys):
    summary = load("expectation_propagation").main(draws=1000)
    assert set(summary) == {"ep", "qp", "vgp"}
    assert "sites of least precision: [1, 3, 4, 21]" in capsys.readouterr().out
