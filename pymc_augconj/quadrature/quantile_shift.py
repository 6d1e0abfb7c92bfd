"""The Numba loop behind δ = ½ E_tilted[(u − z)²], z = Φ⁻¹(F(f)), of quantile propagation.

F at a node is the mass of the panels on one side plus the integral of the interpolating polynomial
of the node's own panel. The nearer end is used, so that neither tail loses digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite.binding import add_symbol
from numba import njit, types
from numba.extending import get_cython_function_address

from pymc_augconj.typing import Array, Index

from .nodes import FROM_LEFT, FROM_RIGHT, ORDER, TO_COEFFICIENTS, WEIGHTS

__all__ = ["fill_delta", "fill_site", "tail_quantile"]

# A smaller contribution of a node to δ is left out; 100 exceeds any z² of float64 in the bulk.
NEGLIGIBLE = 1e-14
_TINY = np.finfo(float).tiny
# SciPy's Φ⁻¹ for compiled callers, as a symbol, so that callers can be cached on disk.
_SYMBOL = "pymc_augconj_ndtri"
add_symbol(_SYMBOL, get_cython_function_address("scipy.special.cython_special", "ndtri"))
_ndtri: Any = types.ExternalFunction(_SYMBOL, types.double(types.double))


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

    Parameters
    ----------
    site : ndarray of int, shape (P,)
        Panels are sorted by site and position.
    g, x : ndarray, shape (16, P)
        Unnormalised density at the nodes, and the nodes.
    half : ndarray, shape (P,)
    total, mean, std : ndarray, shape (N,)
        Integral of g, and moments of x, of every site.
    part, error : ndarray, shape (P,)
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
    """Return a panel's integral of ``terms`` and the rule's error, see :mod:`.panels`."""
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
