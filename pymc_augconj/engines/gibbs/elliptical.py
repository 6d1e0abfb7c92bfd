"""Elliptical slice sampling of N(v; m, Σ) e^{r(v)}: no rejection, no tuning, no factorisation.

A fresh draw v* of N(m, Σ) and the present v span an ellipse around m that leaves N(m, Σ) as it is,

    v(φ) = m + (v − m) cos φ + (v* − m) sin φ,

and a point of it with r above a random level is found by shrinking an interval of φ towards φ = 0.

References
----------
Murray, Adams & MacKay (2010), Elliptical slice sampling. AISTATS.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pymc_augconj.typing import Array, Index

__all__ = ["elliptical_slice", "elliptical_slices"]

# The interval shrinks by a half or so each time: by now the angle does not show in float64.
_LARGEST_TRIALS = 100


def elliptical_slice(
    rng: np.random.Generator, residual: Callable[[float, float], float], current: float
) -> tuple[float, float, float, int]:
    """Return cos φ and sin φ of the next point of the ellipse, r there, and the evaluations of r.

    ``residual`` is r at (cos φ, sin φ), infinite or NaN outside the support, and ``current`` r at
    φ = 0: where it is −∞, any point of the support is accepted.
    """
    level = current + math.log1p(-rng.random())
    phi = 2.0 * math.pi * rng.random()
    lower, upper = phi - 2.0 * math.pi, phi
    for trials in range(1, _LARGEST_TRIALS + 1):
        cos, sin = math.cos(phi), math.sin(phi)
        value = residual(cos, sin)
        if level < value < math.inf:
            return cos, sin, value, trials
        if phi < 0.0:
            lower = phi
        else:
            upper = phi
        phi = lower + (upper - lower) * rng.random()
    return 1.0, 0.0, current, _LARGEST_TRIALS


def elliptical_slices(
    rng: np.random.Generator, residual: Callable[[Array, Array, Index], Array], current: Array
) -> tuple[Array, Array, Array, float]:
    """Return the same for vectors that are independent, each with an r and an angle of its own.

    ``residual`` is given the numbers of the vectors too; evaluations are those of each, on average.
    """
    level = current + np.log1p(-rng.random(current.size))
    phi = 2.0 * math.pi * rng.random(current.size)
    lower, upper = phi - 2.0 * math.pi, phi.copy()
    values, left, count = current.copy(), np.arange(current.size), 0
    for _ in range(_LARGEST_TRIALS):
        found, count = residual(np.cos(phi[left]), np.sin(phi[left]), left), count + left.size
        accepted = (level[left] < found) & (found < math.inf)
        values[left[accepted]] = found[accepted]
        left = left[~accepted]
        if not left.size:
            break
        tried = phi[left]
        lower[left] = np.where(tried < 0.0, tried, lower[left])
        upper[left] = np.where(tried < 0.0, upper[left], tried)
        phi[left] = lower[left] + (upper[left] - lower[left]) * rng.random(left.size)
    phi[left] = 0.0
    return np.cos(phi), np.sin(phi), values, count / max(current.size, 1)
