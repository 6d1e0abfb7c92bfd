"""The Numba loops behind ``random_polya_gamma``: thinning at small h, saddlepoint at large h.

Both loops draw x = 4ω, whose distribution J*(h, z), z = |c|/2, has the Laplace transform
cosh(z)ʰ / cosh(√(z² + 2s))ʰ. They are two kernels so that a Bernoulli likelihood (h = 1) compiles
the first, a dozen lines of arithmetic, and never the second.

Thinning
--------
The inverse Gaussian IG(h/z, h²) has the transform exp(h z − h √(z² + 2s)). The ratio of the two is

    exp(h [log(1 + e^{−2√(z²+2s)}) − log(1 + e^{−2z})]),

and log(1 + e^{−2√(2s)}) = ∫ e^{−sx} δ(x) dx with δ(x) = 2 Σ_{n≥1} (−1)^{n+1} e^{−2n²/x} / √(2πx³),
which is positive (a theta function is less than one). So an inverse Gaussian is J*(h, z) plus a
compound Poisson sum with h log(1 + e^{−2z}) jumps on average, for *every* real h > 0. Hence J*
is the inverse Gaussian accepted with probability

    R(x) = Σ_{n≥0} (−1)ⁿ (h)ₙ/n! · (2n + h)/h · exp(−2n(n + h)/x)   ≤ 1,

the conditional probability of no jump given the sum, and the rate of acceptance is
exp(−h log(1 + e^{−2z})) ≥ 2^{−h}. The ratio of successive terms of R decreases in n, so once it is
below one the partial sums bracket R. Draws with more than one jump on average are cut into equal
pieces: J*(h, z) is infinitely divisible.

Saddlepoint
-----------
With K(θ) = −log cos √(2θ), ξ(θ) = K′(θ) and u = −2θ, the saddlepoint density of x = h ξ(θ) is, in
the coordinate θ, proportional to √K″(θ) exp(−h D), D = K(θ₀) − K(θ) − (θ₀ − θ) ξ(θ), θ₀ = −z²/2.
Let Δ = u + π²/4, and take the coordinate τ with Δ = Δ₀ (1 − ατ)^{−1/α}, where α is such that
D = ½ D₂ τ² + O(τ⁴). Then, with β = (1 + α)/4, for h ≥ 1 and all z (checked in the tests),

    log density(τ) − log density(0) ≤ β τ − ½ (h − SLACK) D₂ τ²,

so a normal τ is accepted at a rate of 1 − O(1/h). The true density is ρ times the saddlepoint
density, 1 − 1/(12h) < ρ < 1 (ρ = 1 for an inverse Gaussian, Stirling's ratio for a gamma, between
them here). Only when the uniform falls into that gap is ρ computed, by a contour integral. So the
draw has the exact distribution, at a cost that does not depend on h.
"""

import math

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, Generator

LOG_2 = math.log(2.0)
EDGE = math.pi**2 / 4  # cosh √u = 0 at u = −EDGE: the end of the domain

MAX_JUMPS = 1.0  # expected in one piece: k pieces cost k exp(jumps/k), least at one jump a piece
MAX_JUMPS_BY_THINNING = 2.0  # of a whole draw; with more, the other kernel is faster
NEVER_BEYOND = 40.0  # R(x) < 1e-17 for x > NEVER_BEYOND + 3 h (checked in the tests)
NEGLIGIBLE = 1e-17  # below the spacing of the uniforms
SLACK = 0.16  # the smallest admissible is 0.152, at h = 1 and z ≈ 1.6
NORMAL_ABOVE = 1e8  # here the proposal itself is within 1/h of the distribution, in total variation
CONTOUR_NODES = 32  # relative error 1e-13 for h ≥ 2
CONTOUR_EXPONENT = 40.0  # the contour ends where its factor exp(−v²x) is exp(−40)


def _bounds_of_unit_acceptance() -> Array:
    # R decreases in x; at h = 1 it is Π (1 − exp(−4n/x))³ (Jacobi). The last digits are left to R.
    edges = np.arange(CELLS_PER_UNIT * BOUNDS_END + 1) / CELLS_PER_UNIT
    at = np.prod([(1.0 - np.exp(-4.0 * n * edges)) ** 3 for n in range(1, 1000)], axis=0)
    return np.stack([at[:-1] * (1.0 - 1e-12), at[1:] * (1.0 + 1e-12)], axis=1)


# Between which R(x) is for h = 1 and 1/x in cells of equal width, from zero on.
CELLS_PER_UNIT, BOUNDS_END = 64, 4
UNIT_BOUNDS = _bounds_of_unit_acceptance()


@njit(cache=True, error_model="numpy")
def has_no_jump(uniform: float, x: float, level: float) -> bool:
    """Return whether uniform ≤ R(x) at h = level, by brackets from the partial sums."""
    if x > NEVER_BEYOND + 3.0 * level:
        return False
    factor = math.exp(-2.0 * (1.0 + level) / x)
    step = (2.0 + level) * factor
    partial = 1.0 - step
    if step < 1.0 and uniform <= partial:
        return True
    shrink = math.exp(-4.0 / x)
    term, n, sign = step, 1.0, 1.0
    while True:
        factor *= shrink
        step = factor * (1.0 + level * (2.0 * n + 1.0 + level) / ((n + 1.0) * (2.0 * n + level)))
        term *= step
        # An upper bound where n is odd, then a lower one.
        partial += sign * term
        if step < 1.0 and (sign * (uniform - partial) > 0.0 or term < NEGLIGIBLE):
            return uniform <= partial
        sign = -sign
        n += 1.0


@njit(cache=True, error_model="numpy")
def fill_by_thinning(rng: Generator, h: Array, c: Array, out: Array) -> None:
    """Draw ``out[i]`` ~ PG(h[i], c[i]); the cost grows with h log(1 + exp(−|c|))."""
    for i in range(out.size):
        z = 0.5 * abs(c[i])
        pieces = 1.0
        if h[i] * LOG_2 > MAX_JUMPS:
            pieces = max(1.0, math.ceil(h[i] * math.log1p(math.exp(-2.0 * z)) / MAX_JUMPS))
        level = h[i] / pieces
        inv_level = 1.0 / level
        inv_mean = z * inv_level
        total = 0.0
        # A zero level leaves total at zero: PG(0, c) is the point mass.
        remaining = pieces if level > 0.0 else 0.0
        while remaining > 0.0:
            # 1/x of an inverse Gaussian with mean level/z and shape level², see `inverse_gaussian`.
            normal = rng.standard_normal() * inv_level
            half = 0.5 * normal * normal
            inv = inv_mean + half + math.sqrt(half * (2.0 * inv_mean + half))
            ratio = inv_mean / inv
            uniform = rng.random() * (1.0 + ratio)
            if uniform > 1.0:
                # The larger root; the rescaled uniform is uniform again.
                uniform = (uniform - 1.0) / ratio
                inv = inv_mean * ratio
            # Bounds of R decide 98 of 100 draws of PG(1, c).
            accepted = False
            if level == 1.0 and inv < BOUNDS_END:
                cell = int(inv * CELLS_PER_UNIT)
                if uniform > UNIT_BOUNDS[cell, 1]:
                    continue
                accepted = uniform <= UNIT_BOUNDS[cell, 0]
            x = 1.0 / inv
            if accepted or has_no_jump(uniform, x, level):
                total += x
                remaining -= 1.0
        out[i] = 0.25 * total


@njit(cache=True, error_model="numpy")
def saddle(u: float) -> tuple[float, float, float]:
    """K, ξ = K′ and K″ at θ = −u/2, for u > −EDGE."""
    if abs(u) < 0.01:
        # The closed form of K″ cancels at u = 0. Taylor, error below 1e-13.
        xi = 1 - u * (1 / 3 - u * (2 / 15 - u * (17 / 315 - u * (62 / 2835 - u * 1382 / 155925))))
        K2 = u * (34 / 105 - u * (496 / 2835 - u * (2764 / 31185 - u * 87376 / 2027025)))
        K2 = 2 / 3 - u * (8 / 15 - K2)
        K = -u * (1 / 2 - u * (1 / 12 - u * (1 / 45 - u * (17 / 2520 - u * 31 / 14175))))
        return K, xi, K2
    if u > 0.0:
        q = math.sqrt(u)
        decay = math.exp(-2.0 * q)
        xi = (1.0 - decay) / ((1.0 + decay) * q)
        K = LOG_2 - q - math.log1p(decay)
    else:
        q = math.sqrt(-u)
        cosine = math.cos(q)
        xi = math.sin(q) / (cosine * q)
        K = -math.log(cosine)
    return K, xi, (xi - 1.0) / u + xi * xi


@njit(cache=True, error_model="numpy")
def coordinate(u0: float) -> tuple[float, float, float]:
    """α, β and D₂ of the coordinate τ in which D has no cubic term at u₀ ≥ 0."""
    _, xi, K2 = saddle(u0)
    if u0 < 0.01:  # dK″/du, by Taylor where the closed form cancels
        slope = u0 * (68 / 105 - u0 * (496 / 945 - u0 * (11056 / 31185 - u0 * 87376 / 405405)))
        slope -= 8 / 15
    else:
        slope = (xi * xi - K2 * (1.5 + u0 * xi)) / u0
    delta = u0 + EDGE
    alpha = -2 / 3 * delta * slope / K2 - 1.0
    return alpha, 0.25 * (1.0 + alpha), K2 * (0.5 * delta) ** 2


@njit(cache=True, error_model="numpy")
def density_over_saddlepoint(u: float, h: float) -> float:
    """ρ, the density of J*(h) over its saddlepoint approximation, at the x whose saddle is u.

    The inversion integral f(x) = 1/(2πi) ∫ exp(s x) cosh(√(2s))⁻ʰ ds runs along the parabola
    s = −EDGE/2 + (a + iv)² through the saddle, on which the integrand decays as exp(−v²x) and is
    analytic, so that the midpoint rule converges geometrically.
    """
    K, xi, K2 = saddle(u)
    x = h * xi
    a = math.sqrt(0.5 * (u + EDGE))
    width = math.sqrt(CONTOUR_EXPONENT / x) / CONTOUR_NODES
    total = 0.0
    for node in range(CONTOUR_NODES):
        v = (node + 0.5) * width
        # q = √(2s), by real arithmetic; log cosh q = q + log(1 + e^{−2q}) − log 2
        real, imag = u - 2.0 * v * v, 4.0 * a * v
        modulus = math.hypot(real, imag)
        if real > 0.0:
            q_real = math.sqrt(0.5 * (modulus + real))
            q_imag = 0.5 * imag / q_real
        else:
            q_imag = math.sqrt(0.5 * (modulus - real))
            q_real = 0.5 * imag / q_imag
        decay = math.exp(-2.0 * q_real)
        e_real = 1.0 + decay * math.cos(2.0 * q_imag)
        e_imag = -decay * math.sin(2.0 * q_imag)
        log_cosh = q_real - LOG_2 + 0.5 * math.log(e_real * e_real + e_imag * e_imag)
        exponent = -v * v * x - h * (log_cosh + K)
        phase = 2.0 * a * v * x - h * (q_imag + math.atan2(e_imag, e_real))
        total += math.exp(exponent) * (a * math.cos(phase) - v * math.sin(phase))
    return total * width * math.sqrt(8.0 * h * K2 / math.pi)


@njit(cache=True, error_model="numpy")
def fill_by_saddlepoint(rng: Generator, h: Array, c: Array, out: Array) -> None:
    """Draw ``out[i]`` ~ PG(h[i], c[i]) for h[i] >= 1, at a cost that does not depend on h."""
    for i in range(out.size):
        u0 = 0.25 * c[i] * c[i]
        K0, _, K20 = saddle(u0)
        alpha, beta, D2 = coordinate(u0)
        precision = (h[i] - SLACK) * D2
        centre = beta / precision
        std = 1.0 / math.sqrt(precision)
        while True:
            normal = rng.standard_normal()
            tau = centre + std * normal
            base = 1.0 - alpha * tau
            if base <= 0.0:
                continue
            stretch = -math.log(base) / alpha
            u = (u0 + EDGE) * math.exp(stretch) - EDGE
            K, xi, K2 = saddle(u)
            if h[i] > NORMAL_ABOVE:
                break
            # log of the saddlepoint density over the envelope, at most zero
            divergence = K0 - K + 0.5 * (u0 - u) * xi
            log_jacobian = (1.0 + alpha) * stretch
            log_ratio = (
                0.5 * math.log(K2 / K20)
                + log_jacobian
                - h[i] * divergence
                + 0.5 * normal * normal
                - 0.5 * centre * beta
            )
            scaled = rng.random() * math.exp(-log_ratio)
            if scaled < 1.0 - 1.0 / (12.0 * h[i]):
                break
            if scaled < 1.0 and scaled < density_over_saddlepoint(u, h[i]):
                break
        out[i] = 0.25 * h[i] * xi


@njit(cache=True, error_model="numpy")
def fill_by_both(rng: Generator, h: Array, c: Array, out: Array) -> None:
    """Draw ``out[i]`` ~ PG(h[i], c[i]) by the kernel that is faster, first by thinning."""
    large = h * np.log1p(np.exp(-np.abs(c))) > MAX_JUMPS_BY_THINNING
    few, many = np.flatnonzero(~large), np.flatnonzero(large)
    drawn = np.empty(out.size)
    fill_by_thinning(rng, h[few], c[few], drawn[: few.size])
    fill_by_saddlepoint(rng, h[many], c[many], drawn[few.size :])
    out[few], out[many] = drawn[: few.size], drawn[few.size :]
