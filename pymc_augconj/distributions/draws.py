"""Residuals with the density C φ(e²), by numerical inversion of their distribution function.

|e| is tabulated on the same double-exponential scale as the normaliser, |e| = s exp(½π sinh t): on
cells of t the distribution function is integrated by Gauss–Legendre's rule, and a uniform is turned
into |e| by cubic Hermite interpolation of t in its cell, whose end slopes are the exact density.
The error in the distribution function is below 1e-8.

Mixing over ω is no short cut here: e | ω is normal, but ω then follows a law with the density
∝ π_φ(ω)/√ω, not π_φ, and has to be inverted as well.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["draw_residuals"]

# Cells, and Gauss–Legendre nodes within a cell.
_EDGES = np.linspace(-3.7, 5.9, 1201)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)

# log |e| among which the scale is looked for.
_LOG_SCALES = np.linspace(-70.0, 70.0, 561)


def draw_residuals(
    rng: np.random.Generator, log_phi: Callable[[np.ndarray], np.ndarray], size: int
) -> np.ndarray:
    """Draw independent e with density ∝ φ(e²).

    Parameters
    ----------
    rng : numpy.random.Generator
    log_phi : callable
        log φ on float arrays of any shape.
    size : int

    Returns
    -------
    ndarray of float64, shape (size,)
    """
    with np.errstate(all="ignore"):
        distance = np.abs(np.log(-log_phi(np.exp(2.0 * _LOG_SCALES))))
    log_scale = _LOG_SCALES[np.nanargmin(distance)]

    def log_density(t: np.ndarray) -> np.ndarray:
        """The log density of t, up to a constant."""
        log_e = log_scale + 0.5 * np.pi * np.sinh(t)
        with np.errstate(all="ignore"):
            value = log_phi(np.exp(2.0 * log_e)) + log_e + np.log(np.cosh(t))
        return np.where(np.isnan(value), -np.inf, value)

    width = _EDGES[1] - _EDGES[0]
    t = 0.5 * (_EDGES[:-1] + _EDGES[1:])[:, None] + 0.5 * width * _NODES
    log_values, log_ends = log_density(t), log_density(_EDGES)
    top = log_values.max()
    masses = 0.5 * width * np.exp(log_values - top) @ _WEIGHTS
    cumulative = np.concatenate(([0.0], np.cumsum(masses)))
    u = rng.random(size) * cumulative[-1]
    # Cells without mass are never chosen.
    cell = np.clip(np.searchsorted(cumulative, u, side="right") - 1, 0, masses.size - 1)
    share = (u - cumulative[cell]) / masses[cell]
    slopes = np.exp(log_ends - top) * width
    t = _EDGES[cell] + width * _invert(
        share, slopes[cell] / masses[cell], slopes[cell + 1] / masses[cell]
    )
    e = np.exp(log_scale + 0.5 * np.pi * np.sinh(t))
    return np.where(rng.random(size) < 0.5, -e, e)


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
