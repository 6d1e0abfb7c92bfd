"""The Numba loop behind δ = ½ E_tilted[(u − z)²], z = Φ⁻¹(F(f)), of quantile propagation.

F at a node is the mass of the panels on one side and the integral of the interpolating polynomial
of the node's own panel, taken from whichever end is nearer, so that neither tail loses its digits.

References
----------
Wichura, M. J. (1988). Algorithm AS 241: the percentage points of the normal distribution. Applied
Statistics 37.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, Index

from .legendre import FROM_LEFT, FROM_RIGHT, ORDER, TO_COEFFICIENTS, WEIGHTS

__all__ = ["fill_delta", "fill_site", "tail_quantile"]

# A node's part of δ that is left out; 100 is above any z² that float64 knows in its bulk.
NEGLIGIBLE = 1e-14
_TINY = np.finfo(float).tiny
# AS 241's rational approximations of relative error 1e-16: coefficients from the highest power.
_CENTRE, _CENTRE_HALF = 0.180625, 0.425
_NEAR, _NEAR_END, _FAR = 1.6, 5.0, 5.0


@njit(cache=True, error_model="numpy", inline="always")
def tail_quantile(p: float) -> float:
    """Return −Φ⁻¹(p) for a tail probability 0 < p ≤ ½."""
    q = 0.5 - p
    if q <= _CENTRE_HALF:
        r = _CENTRE - q * q
        above = 2.5090809287301226727e3
        above = above * r + 3.3430575583588128105e4
        above = above * r + 6.7265770927008700853e4
        above = above * r + 4.5921953931549871457e4
        above = above * r + 1.3731693765509461125e4
        above = above * r + 1.9715909503065514427e3
        above = above * r + 1.3314166789178437745e2
        above = above * r + 3.3871328727963666080
        below = 5.2264952788528545610e3
        below = below * r + 2.8729085735721942674e4
        below = below * r + 3.9307895800092710610e4
        below = below * r + 2.1213794301586595867e4
        below = below * r + 5.3941960214247511077e3
        below = below * r + 6.8718700749205790830e2
        below = below * r + 4.2313330701600911252e1
        return q * above / (below * r + 1.0)
    r = math.sqrt(-math.log(p))
    if r <= _NEAR_END:
        r -= _NEAR
        above = 7.74545014278341407640e-4
        above = above * r + 2.27238449892691845833e-2
        above = above * r + 2.41780725177450611770e-1
        above = above * r + 1.27045825245236838258
        above = above * r + 3.64784832476320460504
        above = above * r + 5.76949722146069140550
        above = above * r + 4.63033784615654529590
        above = above * r + 1.42343711074968357734
        below = 1.05075007164441684324e-9
        below = below * r + 5.47593808499534494600e-4
        below = below * r + 1.51986665636164571966e-2
        below = below * r + 1.48103976427480074590e-1
        below = below * r + 6.89767334985100004550e-1
        below = below * r + 1.67638483018380384940
        below = below * r + 2.05319162663775882187
        return above / (below * r + 1.0)
    r -= _FAR
    above = 2.01033439929228813265e-7
    above = above * r + 2.71155556874348757815e-5
    above = above * r + 1.24266094738807843860e-3
    above = above * r + 2.65321895265761230930e-2
    above = above * r + 2.96560571828504891230e-1
    above = above * r + 1.78482653991729133580
    above = above * r + 5.46378491116411436990
    above = above * r + 6.65790464350110377720
    below = 2.04426310338993978564e-15
    below = below * r + 1.42151175831644588870e-7
    below = below * r + 1.84631831751005468180e-5
    below = below * r + 7.86869131145613259100e-4
    below = below * r + 1.48753612908506148525e-2
    below = below * r + 1.36929880922735805310e-1
    below = below * r + 5.99832206555887937690e-1
    return above / (below * r + 1.0)


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
    """Fill ``part`` with E[(u − z)²] over each panel and ``error`` with the estimate of its error.

    Parameters
    ----------
    site : ndarray of int, shape (P,)
        Panels are sorted by site and position.
    g, x : ndarray, shape (16, P)
        Unnormalised density at the nodes, and these.
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
    """Do what :func:`fill_delta` does for the panels ``first`` to ``stop`` of one site."""
    column, below, above = np.empty(ORDER), np.empty(ORDER), np.empty(ORDER)
    # The mass beyond a panel, summed from the far end; kept in ``part`` until it is needed.
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

    Only the smaller of the two is needed; where a whole panel lies in one half of the
    distribution the other one is set to 1.
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
    # Interpolation may leave a tail that is nothing at minus nothing.
    z = tail_quantile(min(max(min(below, above), _TINY), 0.5))
    return density * (u + z) ** 2 if below < above else density * (u - z) ** 2


@njit(cache=True, error_model="numpy", inline="always")
def integral_and_error(terms: Array) -> tuple[float, float]:
    """Return a panel's integral of ``terms`` and the rule's error, see :mod:`.tilted_panels`."""
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
