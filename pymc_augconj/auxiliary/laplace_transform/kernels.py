"""The Numba loops of inversions: sums over nodes, and draws from a table.

The tilt's transform at s is exp(log φ(s + r) − log φ(r)); the differences are taken here, never a
ratio of φ's. With h(v) = log π(e^v) + v tabulated, v = log ω under the tilt r has the density

    p(v) = exp(h(v) − r e^v) / φ(r),

whose integral over a cell of the table is a Gauss–Legendre sum over stored h and e^v.
"""

import math

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, ComplexArray, Index

NEGLIGIBLE = -80.0  # the log of a term that adds nothing to a sum of order exp(−A/2)
MAX_STEPS = 60
LAST_STEP = 1e-6  # of a period, a dozen standard deviations

DEGREE = 12  # of the Chebyshev interpolant of h on a panel
GAUSS = 5
EMPTY = 1e-14  # a cell of that mass ends the search on its side
DENSITY_STEPS = 20
LAST_MISSING = 1e-11

GAUSS_NODES, GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(GAUSS)


@njit(cache=True, error_model="numpy")
def fill_nodes(r: Array, x: Array, origin: Array, half_a: float, out: ComplexArray) -> None:
    """Euler's nodes: ``out[i, k]`` = r + (A/2 + iπk)/(x − origin)."""
    for i in range(out.shape[0]):
        inverse = 1.0 / (x[i] - origin[i])
        real = r[i] + half_a * inverse
        for k in range(out.shape[1]):
            out[i, k] = complex(real, math.pi * k * inverse)


@njit(cache=True, error_model="numpy")
def euler_sums(
    values: ComplexArray,
    log_phi_r: Array,
    x: Array,
    origin: Array,
    half_a: float,
    weights: Array,
    cdf: Array,
    pdf: Array,
    errors: Array,
) -> None:
    """F(x), x f(x) and their convergence errors, from log φ at Euler's nodes.

    ``weights`` has one row for the result and one for the sum with a term less; ``errors``, of
    shape (2, n), has their differences. x f(x) is (x − origin) f(x).
    """
    scale = math.exp(half_a)
    for i in range(values.shape[0]):
        ratio = origin[i] / (x[i] - origin[i])
        cumulative, density = 0.0, 0.0
        cumulative_change, density_change = 0.0, 0.0
        for k in range(values.shape[1]):
            # In units of 1/(x − origin).
            frequency = math.pi * k
            log_size = values[i, k].real - log_phi_r[i] + half_a * ratio
            if not log_size > NEGLIGIBLE:
                if log_size <= NEGLIGIBLE:
                    continue
                density = cumulative = math.nan
                break
            phase = values[i, k].imag + frequency * ratio
            size = math.exp(log_size)
            real, imag = size * math.cos(phase), size * math.sin(phase)
            change = weights[0, k] - weights[1, k]
            term = (real * half_a + imag * frequency) / (half_a * half_a + frequency * frequency)
            density += weights[0, k] * real
            density_change += change * real
            cumulative += weights[0, k] * term
            cumulative_change += change * term
        cdf[i] = scale * cumulative
        pdf[i] = scale * density
        errors[0, i] = scale * abs(cumulative_change)
        errors[1, i] = scale * abs(density_change)


@njit(cache=True, error_model="numpy")
def fourier_cdf(
    x: float, low: float, period: float, real: Array, imag: Array
) -> tuple[float, float]:
    """F(x) and f(x) of a distribution on [low, low + period] from its Fourier coefficients, k ≥ 1.

    f(x) = (1 + 2 Σ_k Re c_k e^{2πik(x − low)/period})/period, and F its integral from ``low``.
    """
    position = (x - low) / period
    step_real, step_imag = math.cos(2.0 * math.pi * position), math.sin(2.0 * math.pi * position)
    a, b = 1.0, 0.0
    density, cumulative = 1.0, position
    for k in range(real.size):
        a, b = a * step_real - b * step_imag, a * step_imag + b * step_real
        density += 2.0 * (real[k] * a - imag[k] * b)
        # Im of c_k (e^{…} − 1)/(πk).
        cumulative += (real[k] * b + imag[k] * (a - 1.0)) / (math.pi * (k + 1))
    return cumulative, density / period


@njit(cache=True, error_model="numpy")
def fourier_coefficients(
    values: ComplexArray, log_phi_r: float, tau: Array, low: float, real: Array, imag: Array
) -> None:
    """c_k = exp(log φ(r + iτ) − log φ(r) + iτ · low), one site."""
    for k in range(values.size):
        size = math.exp(min(values[k].real - log_phi_r, 0.0))
        phase = values[k].imag + tau[k] * low
        real[k], imag[k] = size * math.cos(phase), size * math.sin(phase)


@njit(cache=True, error_model="numpy")
def fourier_quantiles(
    u: Array,
    start: Array,
    low: Array,
    period: Array,
    log_phi_r: Array,
    values: ComplexArray,
    tau: Array,
    offsets: Index,
    out: Array,
) -> None:
    """Solve F(x) = u for every site, by Newton's iteration within a bracket."""
    work = np.empty((2, max(1, np.max(offsets[1:] - offsets[:-1]))))
    for i in range(u.size):
        here = slice(offsets[i], offsets[i + 1])
        count = offsets[i + 1] - offsets[i]
        real, imag = work[0, :count], work[1, :count]
        fourier_coefficients(values[here], log_phi_r[i], tau[here], low[i], real, imag)
        bottom, top = low[i], low[i] + period[i]
        x = min(max(start[i], bottom), top)
        for _ in range(MAX_STEPS):
            cumulative, density = fourier_cdf(x, low[i], period[i], real, imag)
            if cumulative < u[i]:
                bottom = x
            else:
                top = x
            step = (u[i] - cumulative) / density
            proposal = x + step
            if not (bottom < proposal < top):
                proposal = 0.5 * (bottom + top)
            moved = abs(proposal - x)
            x = proposal
            # The next step is of the order of the square of this one.
            if moved < LAST_STEP * period[i]:
                break
        out[i] = x


@njit(cache=True, error_model="numpy")
def fourier_sums(
    x: Array,
    low: Array,
    period: Array,
    log_phi_r: Array,
    values: ComplexArray,
    tau: Array,
    offsets: Index,
    cdf: Array,
    pdf: Array,
) -> None:
    """F(x) and f(x) for every site."""
    work = np.empty((2, max(1, np.max(offsets[1:] - offsets[:-1]))))
    for i in range(x.size):
        here = slice(offsets[i], offsets[i + 1])
        count = offsets[i + 1] - offsets[i]
        real, imag = work[0, :count], work[1, :count]
        fourier_coefficients(values[here], log_phi_r[i], tau[here], low[i], real, imag)
        if x[i] <= low[i]:
            cdf[i], pdf[i] = 0.0, 0.0
        elif x[i] >= low[i] + period[i]:
            cdf[i], pdf[i] = 1.0, 0.0
        else:
            cdf[i], pdf[i] = fourier_cdf(x[i], low[i], period[i], real, imag)


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
        found = within_cell(
            share, min(u[i], 1.0 - u[i]) + 1e-13, lefts[c], widths[c], log_values[c], omegas[c],
            coefficients[p], centres[p], halves[p], r[i], log_phi_r[i],
        )  # fmt: skip
        out[i] = math.exp(found)
