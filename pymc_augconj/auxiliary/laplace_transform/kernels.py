"""The Numba loops behind ``inverse_laplace``: sums over the nodes of an inversion.

The tilt's transform at s is exp(log φ(s + r) − log φ(r)); the differences are taken here, never a
ratio of φ's.
"""

import math

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, ComplexArray, Index

NEGLIGIBLE = -80.0  # the log of a term that adds nothing to a sum of order exp(−A/2)
MAX_STEPS = 60
LAST_STEP = 1e-6  # of a period, a dozen standard deviations


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
