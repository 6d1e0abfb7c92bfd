"""The printed summary of an approximation."""

from __future__ import annotations

import textwrap
from html import escape
from typing import Any, Protocol

import numpy as np

from pymc_augconj.engines.registry import ENGINES

from .fitted_model import FittedLatents
from .layout import inducing_name

__all__ = ["as_html", "as_text", "summarize", "summarize_html"]

_WIDTH = 100
_LABEL = 17
# Larger arrays of hyperparameters are printed as their shape.
_MOST_NUMBERS = 8


class Summarized(Protocol):
    """The fields of an approximation that its summary shows."""

    method: str
    log_evidence: float
    converged: bool
    message: str
    theta: dict[str, np.ndarray]
    timings: dict[str, float]
    diagnostics: dict[str, float | str]
    inducing: dict[str, np.ndarray]
    _latents: FittedLatents


def summarize(approximation: Summarized) -> str:
    """Return method, evidence, latents, hyperparameters and the end of the fit, one line each."""
    return as_text(*_contents(approximation))


def summarize_html(approximation: Summarized) -> str:
    """Return the summary as a table for notebooks."""
    return as_html(*_contents(approximation))


def as_text(title: str, rows: list[tuple[str, str]]) -> str:
    """Return a title and labelled lines."""
    return "\n".join([title, *(_row(label, text) for label, text in rows)])


def as_html(title: str, rows: list[tuple[str, str]]) -> str:
    """Return a title and labelled lines as a table."""
    cells = (f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in rows)
    return f"<table><caption>{escape(title)}</caption><tbody>{''.join(cells)}</tbody></table>"


def _contents(approximation: Summarized) -> tuple[str, list[tuple[str, str]]]:
    """Return the title, and the lines with their labels."""
    error = float(approximation.diagnostics.get("evidence_error", 0.0))
    evidence = f"{approximation.log_evidence:.4f}" + (f" ± {error:.2g}" if error else "")
    evidence += f" ({ENGINES[approximation.method].evidence})"
    rows = [("log evidence", evidence), ("latents", _latents(approximation))]
    if approximation.theta:
        theta = ", ".join(f"{name} = {_number(v)}" for name, v in approximation.theta.items())
        rows.append(("hyperparameters", theta))
    rows.append(("ended", approximation.message))
    if "total" in approximation.timings:
        rows.append(("seconds", f"{approximation.timings['total']:.2f}"))
    converged = "" if approximation.converged else ", NOT CONVERGED"
    return f"Approximation by pac.fit({approximation.method!r}){converged}", rows


def _row(label: str, text: str) -> str:
    first = f"  {label:<{_LABEL}}"
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_on_hyphens=False,
    )


def _latents(approximation: Summarized) -> str:
    texts = []
    inner = {inducing_name(name): name for name in approximation.inducing}
    for prior in approximation._latents.blocks:
        block = prior.block
        if block.name in inner:
            texts.append(f"{inner[block.name]} ({block.total_size:,} inducing points)")
        elif block.total_size == 1:
            texts.append(block.name)
        else:
            texts.append(f"{block.name} ({block.total_size:,})")
    return ", ".join(texts)


def _number(value: Any) -> str:
    value = np.asarray(value)
    if value.size > _MOST_NUMBERS:
        return f"<array of shape {value.shape}>"
    return np.array2string(value, precision=4, separator=", ", max_line_width=1000)
