"""The Numba loops behind δ = ½ E_tilted[(u − z)²], z = Φ⁻¹(F(f)), of quantile propagation.

F at a node is the mass of the panels on one side plus the integral of the interpolating polynomial
of the node's own panel. The nearer end is used, so that neither tail loses digits.

For probit sites, in x = ±(f − m)/√v, the cavity's own units, and with a = ±m, b = √v, the tilted
density is φ(x) Φ(a + b x) / Ẑ, whose moments are known in closed form. It has one mode and at most
one edge, of width 1/b, so that panels can be laid out from left to right, each halved until its
polynomial is the density to `POINTWISE_TOLERANCE`. This takes a fraction of the nodes of a general
search.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite.binding import add_symbol
from numba import njit, types
from numba.extending import get_cython_function_address

from pymc_augconj.typing import Array, Index

from .expectation import FROM_LEFT, FROM_RIGHT, NODES, ORDER, TO_COEFFICIENTS, WEIGHTS

# A smaller contribution of a node to δ is left out; 100 exceeds any z² of float64 in the bulk.
NEGLIGIBLE = 1e-14
_TINY = np.finfo(float).tiny
# SciPy's Φ⁻¹ for compiled callers, as a symbol, so that callers can be cached on disk.
_SYMBOL = "pymc_augconj_ndtri"
add_symbol(_SYMBOL, get_cython_function_address("scipy.special.cython_special", "ndtri"))
_ndtri: Any = types.ExternalFunction(_SYMBOL, types.double(types.double))


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


@njit(cache=True, error_model="numpy", inline="always")
def tail_quantile(p: float) -> float:
    """Return −Φ⁻¹(p) for a tail probability 0 < p ≤ ½."""
    return -_ndtri(p)


@njit(cache=True, error_model="numpy")
def fill_delta(
    site: Index,
    g: Array,
    x: Array,
    half: Array,
    total: Array,
    mean: Array,
    std: Array,
    part: Array,
    error: Array,
) -> None:
    """Fill ``part`` with E[(u − z)²] over each panel, and ``error`` with its estimated error.

    Panels are sorted by ``site``, (P,), and position; ``g`` and ``x``, (16, P), are the
    unnormalised density at the nodes, and the nodes; ``total``, ``mean`` and ``std``, (N,), are the
    integral of g and the moments of x.
    """
    first = 0
    while first < half.size:
        s = site[first]
        stop = first
        while stop < half.size and site[stop] == s:
            stop += 1
        fill_site(g, x, half, first, stop, total[s], mean[s], std[s], part, error)
        first = stop


@njit(cache=True, error_model="numpy")
def fill_site(
    g: Array,
    x: Array,
    half: Array,
    first: int,
    stop: int,
    total: float,
    mean: float,
    std: float,
    part: Array,
    error: Array,
) -> None:
    """Run :func:`fill_delta` on the panels ``first`` to ``stop`` of one site."""
    column, below, above = np.empty(ORDER), np.empty(ORDER), np.empty(ORDER)
    # ``part`` holds the mass beyond each panel, summed from the far end, until it is needed.
    beyond = 0.0
    for p in range(stop - 1, first - 1, -1):
        mass = 0.0
        for k in range(ORDER):
            mass += WEIGHTS[k] * g[k, p]
        part[p] = beyond
        beyond += mass * half[p] / total
    before = 0.0
    for p in range(first, stop):
        scale = half[p] / total
        mass = 0.0
        for k in range(ORDER):
            column[k] = scale * g[k, p]
            mass += WEIGHTS[k] * column[k]
        fill_tails(column, before, part[p], mass, below, above)
        for k in range(ORDER):
            u = (x[k, p] - mean) / std
            column[k] = squared_gap(column[k], WEIGHTS[k], u, below[k], above[k])
        part[p], error[p] = integral_and_error(column)
        before += mass


@njit(cache=True, error_model="numpy", inline="always")
def fill_tails(
    column: Array, before: float, after: float, mass: float, below: Array, above: Array
) -> None:
    """Fill in the probabilities on either side of each node of one panel.

    Only the smaller one is used; for a panel within one half of the distribution the other is 1.
    """
    is_left, is_right = before + mass <= 0.5, after + mass <= 0.5
    below[:], above[:] = before if not is_right else 1.0, after if not is_left else 1.0
    for j in range(ORDER):
        if not is_right:
            for k in range(ORDER):
                below[k] += FROM_LEFT[j, k] * column[j]
        if not is_left:
            for k in range(ORDER):
                above[k] += FROM_RIGHT[j, k] * column[j]


@njit(cache=True, error_model="numpy", inline="always")
def squared_gap(density: float, weight: float, u: float, below: float, above: float) -> float:
    """Return density · (u − z)² at one node."""
    if not weight * density * (100.0 + u * u) > NEGLIGIBLE:
        return 0.0
    # Interpolation may make a zero tail slightly negative.
    z = tail_quantile(min(max(min(below, above), _TINY), 0.5))
    return density * (u + z) ** 2 if below < above else density * (u - z) ** 2


@njit(cache=True, error_model="numpy", inline="always")
def integral_and_error(terms: Array) -> tuple[float, float]:
    """Return a panel's integral of ``terms`` and the rule's error, see :mod:`.tilted`."""
    value, height = 0.0, _TINY
    c6 = c7 = c14 = c15 = 0.0
    for k in range(ORDER):
        value += WEIGHTS[k] * terms[k]
        height = max(height, terms[k])
        c6 += TO_COEFFICIENTS[6, k] * terms[k]
        c7 += TO_COEFFICIENTS[7, k] * terms[k]
        c14 += TO_COEFFICIENTS[14, k] * terms[k]
        c15 += TO_COEFFICIENTS[15, k] * terms[k]
    last, middle = max(abs(c14), abs(c15)), max(abs(c6), abs(c7))
    if last * height <= middle * middle:
        return value, last * last / height
    return value, last


@njit(cache=True, error_model="numpy")
def fill_probit_delta(
    a: Array, b: Array, log_Z: Array, mean: Array, std: Array, out: Array
) -> None:
    """Fill ``out`` with δ of every site, or NaN where another method is needed; all are (N,).

    ``log_Z`` is log Φ(a/√(1 + b²)), and ``mean`` and ``std`` are moments of x.
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
