"""The Numba loop behind ``random_generalized_inverse_gaussian``.

Let ω = √(ab), r = √(ν² + ω²). Then x = b/(ν + r) · e^−y, where y has its mode at zero and the
density

    exp ψ(y),   ψ(y) = −α (cosh y − 1) − ν (e^y − y − 1),   α = r − ν = ω²/(r + ν),

which is concave, also at ω = 0 (log gamma). The envelope is one near zero, and on each side beyond
it the exponential of a tangent of ψ. −ψ is of order one at the tangents' points −s and t; Devroye's
choice keeps the rate of acceptance bounded away from zero.
"""

import math

from numba import njit

from pymc_augconj.typing import Array, Generator


@njit(cache=True, error_model="numpy")
def psi(y: float, alpha: float, nu: float) -> tuple[float, float]:
    """ψ(y) and ψ′(y), without a part of zero weight, which could be zero times infinity."""
    value, slope = 0.0, 0.0
    if alpha > 0.0:
        half_sinh = math.sinh(0.5 * y)  # cosh y − 1 = 2 sinh²(y/2), for its digits near zero
        value -= 2.0 * alpha * half_sinh * half_sinh
        slope -= alpha * math.sinh(y)
    value -= nu * (math.expm1(y) - y)
    slope -= nu * math.expm1(y)
    return value, slope


@njit(cache=True, error_model="numpy")
def fill(rng: Generator, nu: Array, a: Array, b: Array, out: Array) -> None:
    """Draw ``out[i]`` ~ GIG(−nu[i], a[i], b[i])."""
    for i in range(out.size):
        order = nu[i]
        omega = math.sqrt(a[i]) * math.sqrt(b[i])
        r = math.hypot(order, omega)
        alpha = omega * (omega / (r + order))

        t = 1.0
        depth = -psi(1.0, alpha, order)[0]
        if depth > 2.0:
            t = math.sqrt(2.0 / (alpha + order))
        elif depth < 0.5:
            t = math.log(4.0 / (alpha + 2.0 * order))
        s = 1.0
        depth = -psi(-1.0, alpha, order)[0]
        if depth > 2.0:
            s = math.sqrt(4.0 / (alpha * math.cosh(1.0) + order))
        elif depth < 0.5:
            # The smaller of the points where the gamma part and the cosh part have fallen by one.
            s = min(1.0 / order, math.log1p((1.0 + math.sqrt(1.0 + 2.0 * alpha)) / alpha))

        # Zeros of the tangents at t and −s, of slopes −right and left.
        psi_t, slope_t = psi(t, alpha, order)
        psi_s, left = psi(-s, alpha, order)
        right = -slope_t
        top_end = t + psi_t / right
        bottom_end = -s - psi_s / left
        flat = top_end - bottom_end
        mass = flat + 1.0 / right + 1.0 / left
        while True:
            where = rng.random() * mass
            log_envelope = 0.0
            if where < flat:
                y = bottom_end + where
            else:
                log_envelope = -rng.standard_exponential()
                if where < flat + 1.0 / right:
                    y = top_end - log_envelope / right
                else:
                    y = bottom_end + log_envelope / left
            # log U ≤ ψ − log envelope, by an exponential.
            if rng.standard_exponential() >= log_envelope - psi(y, alpha, order)[0]:
                break
        out[i] = b[i] / (order + r) * math.exp(-y)
