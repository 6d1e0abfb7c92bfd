"""The Numba loop behind ``tilted_sampler``: inversion on a table of the log density of log ω.

With h(v) = log π(e^v) + v tabulated, v = log ω under the tilt r has the density

    p(v) = exp(h(v) − r e^v) / φ(r),

whose integral over a cell of the table is a Gauss–Legendre sum over stored h and e^v.
"""

import math

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, Index

DEGREE = 12  # of the Chebyshev interpolant of h on a panel
GAUSS = 5
EMPTY = 1e-14  # a cell of that mass ends the search on its side
DENSITY_STEPS = 20
LAST_MISSING = 1e-11

GAUSS_NODES, GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(GAUSS)


@njit(cache=True, error_model="numpy")
def interpolant(coefficients: Array, z: float) -> float:
    """Σ c_k T_k(z), by Clenshaw's recurrence."""
    ahead, further = 0.0, 0.0
    for k in range(DEGREE, 0, -1):
        ahead, further = 2.0 * z * ahead - further + coefficients[k], ahead
    return z * ahead - further + coefficients[0]


@njit(cache=True, error_model="numpy")
def cell_mass(log_values: Array, omegas: Array, r: float, log_phi_r: float, width: float) -> float:
    """Return the mass of one cell under the tilt r, by Gauss–Legendre's rule."""
    mass = 0.0
    for g in range(GAUSS):
        mass += GAUSS_WEIGHTS[g] * math.exp(log_values[g] - r * omegas[g] - log_phi_r)
    return 0.5 * width * mass


@njit(cache=True, error_model="numpy")
def within_cell(
    share: float,
    tail: float,
    left: float,
    width: float,
    log_values: Array,
    omegas: Array,
    coefficients: Array,
    centre: float,
    half: float,
    r: float,
    log_phi_r: float,
) -> float:
    """Find v with the mass ``share`` on its left, by Newton's iteration."""
    total = 0.0
    for g in range(GAUSS):
        total += GAUSS_WEIGHTS[g] * math.exp(log_values[g] - r * omegas[g] - log_phi_r)
    target = share * total
    bottom, top = left, left + width
    v = left + share * width
    for _ in range(DENSITY_STEPS):
        extent = v - left
        mass = 0.0
        for g in range(GAUSS):
            at = left + 0.5 * (GAUSS_NODES[g] + 1.0) * extent
            value = interpolant(coefficients, (at - centre) / half)
            mass += GAUSS_WEIGHTS[g] * math.exp(value - r * math.exp(at) - log_phi_r)
        missing = 0.5 * (target * width - extent * mass)
        if missing > 0.0:
            bottom = v
        else:
            top = v
        value = interpolant(coefficients, (v - centre) / half)
        proposal = v + missing / math.exp(value - r * math.exp(v) - log_phi_r)
        if bottom <= proposal <= top:
            v = proposal
            # The error after a step of Newton's is about its square over the tail.
            if missing * missing < LAST_MISSING * tail:
                break
        else:
            v = 0.5 * (bottom + top)
    return v


@njit(cache=True, error_model="numpy")
def fill_quantiles(
    u: Array,
    r: Array,
    log_phi_r: Array,
    atom: Array,
    start: Index,
    tolerance: float,
    lefts: Array,
    widths: Array,
    log_values: Array,
    omegas: Array,
    panel: Index,
    coefficients: Array,
    centres: Array,
    halves: Array,
    out: Array,
) -> None:
    """Quantiles of each site from the cells; NaN where the masses do not add up to 1 − atom.

    ``start`` is a cell with mass. From it the cells are visited outwards, the side with the larger
    mass first.
    """
    cells = lefts.size
    masses = np.empty(cells)
    for i in range(u.size):
        if u[i] <= atom[i]:
            out[i] = 0.0
            continue
        goal = 1.0 - atom[i]
        c = start[i]
        masses[c] = cell_mass(log_values[c], omegas[c], r[i], log_phi_r[i], widths[c])
        total = last_left = last_right = masses[c]
        low, high = c, c
        while low > 0 or high < cells - 1:
            if last_left < EMPTY and last_right < EMPTY and abs(total - goal) < tolerance:
                break
            if low > 0 and (last_left >= last_right or high == cells - 1):
                low -= 1
                c = low
                last_left = cell_mass(log_values[c], omegas[c], r[i], log_phi_r[i], widths[c])
                masses[c] = last_left
                if low == 0:
                    last_left = 0.0
            else:
                high += 1
                c = high
                last_right = cell_mass(log_values[c], omegas[c], r[i], log_phi_r[i], widths[c])
                masses[c] = last_right
                if high == cells - 1:
                    last_right = 0.0
            total += masses[c]
        if not abs(total - goal) < tolerance:
            out[i] = math.nan
            continue
        rest = (u[i] - atom[i]) / goal * total
        c = low
        while c < high and rest > masses[c]:
            rest -= masses[c]
            c += 1
        p = panel[c]
        share = min(rest / masses[c], 1.0) if masses[c] > 0.0 else 1.0
        out[i] = math.exp(
            within_cell(
                share,
                min(u[i], 1.0 - u[i]) + 1e-13,
                lefts[c],
                widths[c],
                log_values[c],
                omegas[c],
                coefficients[p],
                centres[p],
                halves[p],
                r[i],
                log_phi_r[i],
            )
        )
