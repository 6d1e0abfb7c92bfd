"""Cumulative logit models, log(σ(c_y − η) − σ(c_{y−1} − η)), in closed form.

PyMC's density of such a model computes the probability of every class at every row, and the
logarithm of one of them. This module recognises a cumulative model by its values, in any spelling.
Then

    σ(b) − σ(a) = (1 − e^(a − b)) / ((1 + e^−b) (1 + e^a))

takes one exponential and one logarithm a row.

References
----------
McCullagh (1980), Regression models for ordinal data. JRSS B 42.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.generic import LogDensity
from pymc_augconj.python_mode.tape import Registers
from pymc_augconj.typing import Array

# Values at which densities are compared, where differences of probabilities keep their digits.
_ETA, _CUTPOINTS = (-1.7, -0.4, 0.0, 0.9, 2.1), (-1.5, 2.0)
_ROUNDING = 1e-10
# Fewer rows take less time as they are read.
_FEW_ROWS = 500
# Cutpoints within which no exponential overflows.
_LARGEST = 300.0


class OrderedDensity:
    """A density, by the closed form if this has digits, otherwise by PyMC's formula.

    ``names`` are the parameters that are cutpoints, in their order.
    """

    def __init__(self, read: LogDensity, names: tuple[str, ...]) -> None:
        self._read, self._names = read, names

    def __call__(self, y: Array, eta: Any, params: Params) -> Array:
        """Return log p(y | η)."""
        if isinstance(eta, Registers):
            return self._on_tape(y, eta[0], params)
        if np.size(eta) < _FEW_ROWS:
            return self._read(y, eta, params)
        cutpoints = np.array([np.ravel(params[name])[0] for name in self._names])
        is_one = all(np.size(params[name]) == 1 for name in self._names)
        if not is_one or not np.all(np.abs(cutpoints) < _LARGEST) or np.any(np.diff(cutpoints) < 0):
            return self._read(y, eta, params)
        y, eta = np.broadcast_arrays(y, eta[0])
        found = self.closed_form(y, eta, cutpoints)
        bad = ~np.isfinite(found)
        if bad.any():
            found[bad] = self._read(y[bad], eta[None, bad], params)
        return found

    def _on_tape(self, y: Any, eta: Any, params: Any) -> Any:
        """Return the closed form; not finite where a class has less than e⁻⁷⁰⁰."""
        lower: Any = -np.inf
        upper: Any = np.inf
        for k, name in enumerate(self._names):
            lower = np.where(y == float(k + 1), params[name], lower)
            upper = np.where(y == float(k), params[name], upper)
        of_gap = np.log(-np.expm1(lower - upper))
        return _log_class(np.exp(eta), of_gap, np.exp(lower), np.exp(-upper))

    def closed_form(self, y: Array, eta: Array, cutpoints: Array) -> Array:
        """Return the density; not finite where it has no digits."""
        bounds = np.concatenate([[-np.inf], cutpoints, [np.inf]])
        is_class = (y >= 0) & (y <= cutpoints.size)
        k = np.where(is_class, y, 0).astype(np.intp)
        with np.errstate(all="ignore"):
            of_gap = np.log(-np.expm1(-np.diff(bounds)))
            sides = np.exp(bounds[:-1])[k], np.exp(-bounds[1:])[k]
            found = np.asarray(_log_class(np.exp(eta), of_gap[k], *sides))
        found[~is_class] = -np.inf
        return found


def _log_class(E: Any, of_gap: Any, by_lower: Any, by_upper: Any) -> Any:
    """Return the log probability of l < η + ε < u, given e^η, log(1 − e^(l − u)), e^l and e^−u."""
    return of_gap - np.log((1.0 + E * by_upper) * (1.0 + by_lower / E))


def in_closed_form(read: LogDensity, names: tuple[str, ...]) -> tuple[LogDensity, tuple[str, ...]]:
    """Return a density of classes by its closed form, if it is a cumulative model.

    Also return the names of its cutpoints, none for another model. ``names`` are its parameters
    besides y and η, all of them numbers.
    """
    if not names:
        return read, ()
    cutpoints = np.linspace(*_CUTPOINTS, len(names))
    y, eta = (part.ravel() for part in np.meshgrid(np.arange(-1.0, len(names) + 2), _ETA))
    for scale in (0.7, 1.0):
        params = {n: np.array(scale * c) for n, c in zip(names, cutpoints, strict=True)}
        try:
            expected = read(y, eta[None], params)
        except Exception:
            # Of other numbers of classes, say.
            return read, ()
        found = OrderedDensity(read, names).closed_form(y, eta, scale * cutpoints)
        if not np.allclose(found, expected, rtol=_ROUNDING, atol=_ROUNDING):
            return read, ()
    return OrderedDensity(read, names), names
