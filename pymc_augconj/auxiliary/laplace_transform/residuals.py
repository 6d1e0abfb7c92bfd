"""The distribution with density ∝ φ(e²) of a residual e, φ known only as a function.

|e| is tabulated on the same double-exponential scale as the normaliser, |e| = s exp(½π sinh t): on
cells of t the distribution function is integrated by Gauss–Legendre's rule, and within a cell it is
a cubic whose end slopes are the exact density. The error in the distribution function is below
1e-8.

Mixing over ω would not be simpler: e | ω is normal, but ω then has the density ∝ π_φ(ω)/√ω, not
π_φ, and needs an inversion as well.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pymc_augconj.typing import Array

__all__ = ["ResidualDistribution"]

# Cells, and Gauss–Legendre nodes within a cell.
_EDGES = np.linspace(-3.7, 5.9, 1201)
_WIDTH = _EDGES[1] - _EDGES[0]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)

# Grid of log |e| for the search of the scale.
_LOG_SCALES = np.linspace(-70.0, 70.0, 561)

# Second moments whose integrand falls more slowly than this power of |e| at the end of the table
# count as infinite: double precision cannot tell them from that.
_LEAST_DECAY = 1e-6


class ResidualDistribution:
    """A symmetric distribution, tabulated when made.

    Parameters
    ----------
    log_phi : callable
        log φ on float arrays of any shape.
    """

    def __init__(self, log_phi: Callable[[np.ndarray], np.ndarray]) -> None:
        with np.errstate(all="ignore"):
            distance = np.abs(np.log(-log_phi(np.exp(2.0 * _LOG_SCALES))))
        self._log_scale = _LOG_SCALES[np.nanargmin(distance)]
        self._log_phi = log_phi
        t = 0.5 * (_EDGES[:-1] + _EDGES[1:])[:, None] + 0.5 * _WIDTH * _NODES
        log_values, log_ends = self._log_density(t), self._log_density(_EDGES)
        top = log_values.max()
        self._masses = 0.5 * _WIDTH * np.exp(log_values - top) @ _WEIGHTS
        self._cumulative = np.concatenate(([0.0], np.cumsum(self._masses)))
        self._slopes = np.exp(log_ends - top) * _WIDTH
        self.variance = self._second_moment(t, log_values, log_ends)

    def _log_density(self, t: np.ndarray) -> np.ndarray:
        """Return the log density of t, up to a constant."""
        log_e = self._log_scale + 0.5 * np.pi * np.sinh(t)
        with np.errstate(all="ignore"):
            value = self._log_phi(np.exp(2.0 * log_e)) + log_e + np.log(np.cosh(t))
        return np.where(np.isnan(value), -np.inf, value)

    def _second_moment(self, t: Array, log_values: Array, log_ends: Array) -> float:
        """Return E[e²]; the tail beyond the table is continued as a power of |e|."""
        log_terms = log_values + np.pi * np.sinh(t)
        top = log_terms.max()
        total = 0.5 * _WIDTH * float((np.exp(log_terms - top) @ _WEIGHTS).sum())
        # Density of log |e| at the last two edges: the density of t over d log|e|/dt.
        log_e = 0.5 * np.pi * np.sinh(_EDGES[-2:])
        ends = log_ends[-2:] + 2.0 * log_e - np.log(0.5 * np.pi * np.cosh(_EDGES[-2:])) - top
        if np.isfinite(ends).all():
            decay = -(ends[1] - ends[0]) / (log_e[1] - log_e[0])
            if decay <= _LEAST_DECAY:
                return np.inf
            total += float(np.exp(ends[1])) / decay
        log_mass = np.log(self._cumulative[-1]) + log_values.max()
        with np.errstate(over="ignore"):
            return float(np.exp(np.log(total) + top - log_mass + 2.0 * self._log_scale))

    def cdf(self, e: np.ndarray) -> np.ndarray:
        """Return P(residual ≤ e), of e's shape."""
        e = np.asarray(e, dtype=float)
        with np.errstate(divide="ignore"):
            log_ratio = np.log(np.abs(e)) - self._log_scale
        t = np.clip(np.arcsinh(log_ratio / (0.5 * np.pi)), _EDGES[0], _EDGES[-1])
        cell = np.minimum(((t - _EDGES[0]) / _WIDTH).astype(int), self._masses.size - 1)
        x, mass = (t - _EDGES[cell]) / _WIDTH, self._masses[cell]
        safe = np.where(mass > 0.0, mass, 1.0)
        left, right = self._slopes[cell] / safe, self._slopes[cell + 1] / safe
        share = self._cumulative[cell] + mass * _cubic(
            x, np.minimum(left, 3.0), np.minimum(right, 3.0)
        )
        return 0.5 + 0.5 * np.sign(e) * share / self._cumulative[-1]

    def random(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw independent residuals, shape (size,)."""
        u = rng.random(size) * self._cumulative[-1]
        # Cells without mass are never chosen.
        cell = np.searchsorted(self._cumulative, u, side="right") - 1
        cell = np.clip(cell, 0, self._masses.size - 1)
        mass = self._masses[cell]
        share = (u - self._cumulative[cell]) / mass
        left, right = self._slopes[cell] / mass, self._slopes[cell + 1] / mass
        t = _EDGES[cell] + _WIDTH * _invert(share, left, right)
        e = np.exp(self._log_scale + 0.5 * np.pi * np.sinh(t))
        return np.where(rng.random(size) < 0.5, -e, e)


def _cubic(x: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the cubic from 0 at 0 to 1 at 1 with slopes ``left`` and ``right``."""
    a, b = left + right - 2.0, 3.0 - 2.0 * left - right
    return x * (left + x * (b + x * a))


def _invert(share: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve H(x) = share on (0, 1), H the cubic from 0 to 1 with slopes ``left`` and ``right``."""
    # Slopes beyond 3 could make the cubic leave (0, 1).
    left, right = np.minimum(left, 3.0), np.minimum(right, 3.0)
    low, high, x = np.zeros_like(share), np.ones_like(share), share.copy()
    for _ in range(12):
        a, b = left + right - 2.0, 3.0 - 2.0 * left - right
        value = x * (left + x * (b + x * a)) - share
        low, high = np.where(value < 0.0, x, low), np.where(value < 0.0, high, x)
        slope = left + x * (2.0 * b + 3.0 * x * a)
        with np.errstate(all="ignore"):
            step = x - value / slope
        x = np.where((step > low) & (step < high), step, 0.5 * (low + high))
    return x
