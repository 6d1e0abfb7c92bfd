"""The Numba loop behind δ of quantile propagation for probit sites.

In x = ±(f − m)/√v, the cavity's own units, and with a = ±m, b = √v, the tilted density is
φ(x) Φ(a + b x) / Ẑ, whose moments are known in closed form. It has one mode and at most one edge,
of width 1/b, so that panels can be laid out from left to right, each halved until its polynomial is
the density to `POINTWISE_TOLERANCE`. That takes a fraction of the nodes of a general search.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from pymc_augconj.typing import Array

from .nodes import NODES, ORDER, TO_COEFFICIENTS
from .quantile_shift import fill_site

__all__ = ["fill_probit_delta"]

# Initial half-length of panels, in standard deviations.
_REACH = 6.5
_PANELS, _MOST_PANELS = 5, 60
# Panels end where the density has dropped by e⁻²²: δ beyond is less than 1e-9.
_DROP, _FARTHER = 22.0, 1.2
# Tolerated error of one panel, relative to the whole.
POINTWISE_TOLERANCE = 1e-8
DELTA_TOLERANCE = 1e-9
# Below this z a Φ of the integrand may underflow.
LEAST_Z = -8.0
_SQRT_HALF = math.sqrt(0.5)


@njit(cache=True, error_model="numpy")
def fill_probit_delta(
    a: Array, b: Array, log_Z: Array, mean: Array, std: Array, out: Array
) -> None:
    """Fill ``out`` with δ of every site, or NaN where another method is needed.

    Parameters
    ----------
    a, b : ndarray, shape (N,)
    log_Z : ndarray, shape (N,)
        log Φ(a/√(1 + b²)).
    mean, std : ndarray, shape (N,)
        Moments of x.
    out : ndarray, shape (N,)
    """
    g, x = np.empty((ORDER, _MOST_PANELS)), np.empty((ORDER, _MOST_PANELS))
    half, part, error = np.empty(_MOST_PANELS), np.empty(_MOST_PANELS), np.empty(_MOST_PANELS)
    for i in range(out.size):
        out[i] = np.nan
        if not a[i] > LEAST_Z * math.sqrt(1.0 + b[i] * b[i]):
            continue
        # Supplies the density's factor 1/√(2π).
        total = math.sqrt(2.0 * math.pi) * math.exp(log_Z[i])
        count = _lay_out(a[i], b[i], total, mean[i], std[i], g, x, half)
        if count == 0:
            continue
        fill_site(g, x, half, 0, count, total, mean[i], std[i], part, error)
        value, is_good = 0.0, True
        for p in range(count):
            value += part[p]
            is_good &= error[p] <= DELTA_TOLERANCE
        if is_good:
            out[i] = 0.5 * value


@njit(cache=True, error_model="numpy", inline="always")
def _density(a: float, b: float, x: float) -> float:
    return 0.5 * math.exp(-0.5 * x * x) * math.erfc(-_SQRT_HALF * (a + b * x))


@njit(cache=True, error_model="numpy")
def _lay_out(
    a: float, b: float, total: float, mean: float, std: float, g: Array, x: Array, half: Array
) -> int:
    """Fill g, x and half with panels from left to right; return their number, 0 if too many."""
    low = math.exp(-_DROP) * _density(a, b, mean)
    left, right = -_REACH, _REACH
    while _density(a, b, mean + std * left) > low:
        left *= _FARTHER
    while _density(a, b, mean + std * right) > low:
        right *= _FARTHER
    # Beyond an edge there is nothing to integrate.
    while left < -1.0 and _density(a, b, mean + std * left / _FARTHER) < low:
        left /= _FARTHER
    step = (right - left) / _PANELS
    stack = np.empty((_MOST_PANELS, 2))
    for p in range(_PANELS):
        stack[p, 0], stack[p, 1] = right - (p + 1) * step, right - p * step
    open_, count = _PANELS, 0
    while open_ > 0:
        if count == _MOST_PANELS or open_ == _MOST_PANELS:
            return 0
        open_ -= 1
        start, stop = stack[open_]
        middle, radius = 0.5 * (start + stop), 0.5 * (stop - start)
        c14 = c15 = 0.0
        for k in range(ORDER):
            x[k, count] = mean + std * (middle + radius * NODES[k])
            g[k, count] = _density(a, b, x[k, count])
            c14 += TO_COEFFICIENTS[14, k] * g[k, count]
            c15 += TO_COEFFICIENTS[15, k] * g[k, count]
        half[count] = std * radius
        farthest = max(abs(start), abs(stop))
        scale = half[count] * (1.0 + farthest * farthest) / total
        if scale * max(abs(c14), abs(c15)) <= POINTWISE_TOLERANCE:
            count += 1
            continue
        stack[open_, 0], stack[open_, 1] = middle, stop
        stack[open_ + 1, 0], stack[open_ + 1, 1] = start, middle
        open_ += 2
    return count
