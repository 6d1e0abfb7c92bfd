"""The fields that all approximations have, and their printed summary."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from html import escape
from numbers import Integral
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import xarray as xr

from pymc_augconj.engines.registry import ENGINES
from pymc_augconj.errors import AugmentationError
from pymc_augconj.typing import Array, Generator

from .fitted_model import FittedLatents, Labels, inducing_name
from .storage import save_state

_WIDTH = 100
_LABEL = 17
# Draws of :meth:`Approximation.to_datatree`.
DEFAULT_DRAWS = 1000
# Larger arrays of hyperparameters are printed as their shape.
_MOST_NUMBERS = 8


@dataclass(repr=False, kw_only=True)
class Fit:
    """Result of ``pac.fit``; see :class:`~pymc_augconj.Approximation` for its fields."""

    method: str
    theta: dict[str, np.ndarray]
    point: dict[str, np.ndarray]
    log_evidence: float
    objective: float
    history: pd.DataFrame
    converged: bool
    message: str
    timings: dict[str, float]
    observed: dict[str, np.ndarray]
    _labels: Labels
    # Names of the variables in draws.
    _variables: tuple[str, ...]
    # Checksums of the model's data at the fit, by name.
    _data: dict[str, int]
    random_seed: int | None = None
    inducing: dict[str, Array] = field(default_factory=dict)
    diagnostics: dict[str, float | str] = field(default_factory=dict)
    model: Any = None

    # Whether a pickled fit has its model.
    _keeps_model = False

    def __getstate__(self) -> dict[str, Any]:
        # By cloudpickle, as in PyMC's worker processes: graphs and factors have local functions.
        state = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"state": cloudpickle.dumps(state if self._keeps_model else state | {"model": None})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(cloudpickle.loads(state["state"]))

    def save(self, path: str | Path) -> None:
        """Write the approximation to a NumPy archive; nothing in it is executable.

        Parameters
        ----------
        path : str or Path
            The suffix ``.npz`` is added if it is missing.
        """
        save_state({each.name: getattr(self, each.name) for each in fields(self)}, path)

    def keep_recognition(self, recognition: Any) -> None:
        """Do nothing: predictions use draws."""

    def _generator(self, draws: object, random_seed: int | Generator | None) -> Generator:
        """Return the generator of some draws, by default by the seed of the fit."""
        if not (isinstance(draws, Integral) and int(draws) >= 1):
            raise AugmentationError(f"expected draws to be a positive integer, got {draws!r}")
        return np.random.default_rng(self.random_seed if random_seed is None else random_seed)

    def _tree(self, groups: Mapping[str, Mapping[str, Array]], start: float) -> xr.DataTree:
        """Return groups of draws as a DataTree; drawing began at the time ``start``."""
        attrs = {
            "method": self.method,
            "log_evidence": self.log_evidence,
            "converged": int(self.converged),
            "sampling_time": self.timings["total"] + time.perf_counter() - start,
        }
        return self._labels.tree(groups, self.observed, attrs)

    def _rows(self) -> list[tuple[str, str]]:
        """Return the labelled lines of the summary that say what was found."""
        raise NotImplementedError

    def _contents(self) -> tuple[str, list[tuple[str, str]]]:
        """Return title and labelled lines of the summary."""
        rows = [*self._rows(), ("ended", self.message)]
        if "total" in self.timings:
            rows.append(("seconds", f"{self.timings['total']:.2f}"))
        converged = "" if self.converged else ", NOT CONVERGED"
        return f"Approximation by pac.fit({self.method!r}){converged}", rows

    def __repr__(self) -> str:
        title, rows = self._contents()
        return "\n".join([title, *(_row(label, text) for label, text in rows)])

    def _repr_html_(self) -> str:
        title, rows = self._contents()
        cells = (
            f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in rows
        )
        return f"<table><caption>{escape(title)}</caption><tbody>{''.join(cells)}</tbody></table>"


def rows_of(approximation: Fit, latents: FittedLatents) -> list[tuple[str, str]]:
    """Return the labelled lines for evidence, latents and hyperparameters."""
    error = float(approximation.diagnostics.get("evidence_error", 0.0))
    evidence = f"{approximation.log_evidence:.4f}" + (f" ± {error:.2g}" if error else "")
    evidence += f" ({ENGINES[approximation.method].evidence})"
    rows = [("log evidence", evidence), ("latents", _named(approximation, latents))]
    if approximation.theta:
        theta = ", ".join(f"{name} = {_number(v)}" for name, v in approximation.theta.items())
        rows.append(("hyperparameters", theta))
    return rows


def _row(label: str, text: str) -> str:
    first = f"  {label:<{_LABEL}}"
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_on_hyphens=False,
    )


def _named(approximation: Fit, latents: FittedLatents) -> str:
    texts = []
    inner = {inducing_name(name): name for name in approximation.inducing}
    for prior in latents.blocks:
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
