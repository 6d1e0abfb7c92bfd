"""The generalised inverse Gaussian distribution GIG(p, a, b): draws, moments and density.

    p(x) ∝ x^{p−1} exp(−(a x + b/x)/2),   x > 0.

Its normaliser is 2 K_p(√(ab)) (b/a)^{p/2}, with K_p the modified Bessel function of the second
kind. It is Gamma(p, rate a/2) at b = 0, which needs p > 0; the inverse of Gamma(−p, rate b/2) at
a = 0, which needs p < 0; and inverse Gaussian with mean √(b/a) and shape b at p = −½:

    IG(mean, shape):  p(x) = √(shape / 2πx³) · exp(−shape (x − mean)² / (2 mean² x)),   x > 0.

Its formulas use 1/mean, so that an infinite mean, from a residual of exactly zero under Laplace
noise, is an ordinary value: the distribution is then Lévy's, the distribution of shape/χ²₁. NumPy
is as fast there as Numba.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, kve

from pymc_augconj.errors import refuse
from pymc_augconj.typing import Array, Generator

DEBYE_ABOVE = 60.0  # of √(p² + ω²): there the uniform expansion of K_p(ω) is good to 1e-13


def _debye_coefficients(order: int) -> list[Array]:
    """Return the polynomials (−1)ᵏ U_k(v)/vᵏ, k = 1…order, in s = v² (DLMF 10.41.9)."""
    coefficients, u = [], np.polynomial.Polynomial([1.0])
    one_less_square, integrand = np.polynomial.Polynomial([0, 0, 0.5, 0, -0.5]), [0.125, 0, -0.625]
    for k in range(1, order + 1):
        u = one_less_square * u.deriv() + (np.polynomial.Polynomial(integrand) * u).integ()
        coefficients.append((-1.0) ** k * np.asarray(u.coef[k::2], dtype=float))
    return coefficients


DEBYE = _debye_coefficients(8)


def random_generalized_inverse_gaussian(
    rng: Generator, p: ArrayLike, a: ArrayLike, b: ArrayLike
) -> Array:
    """Draw independent x ~ GIG(p, a, b), exactly.

    Rejection on the scale of log x, where the density is log-concave, from a constant between two
    exponential tails; three proposals in four are accepted at the worst parameters. The limits a =
    0 and b = 0 are no special case. The first use compiles it (Numba, cached on disk).

    Raises ValueError if a parameter is not finite, a or b negative, or the distribution improper: a
    > 0 unless p < 0, and b > 0 unless p > 0.

    References
    ----------
    Devroye (2014), Random variate generation for the generalized inverse Gaussian distribution,
    Statistics and Computing 24.
    """
    # Imported here, as moments and densities need no Numba.
    from .generalized_inverse_gaussian_kernel import fill

    p, a, b = _checked(p, a, b)
    out = np.empty(p.shape)
    fill(rng, np.ravel(p), np.ravel(a), np.ravel(b), out.reshape(-1))
    return out


def mean_generalized_inverse_gaussian(p: ArrayLike, a: ArrayLike, b: ArrayLike) -> Array:
    """E x = √(b/a) K_{p+1}(ω)/K_p(ω), ω = √(ab); +∞ at a = 0 and p ≥ −1."""
    p, a, b = _checked(p, a, b)
    with np.errstate(over="ignore"):
        return np.exp(_log_mean(p, a, b))


def logpdf_generalized_inverse_gaussian(
    x: ArrayLike, p: ArrayLike, a: ArrayLike, b: ArrayLike
) -> Array:
    """Log density of GIG(p, a, b); −∞ for x ≤ 0."""
    p, a, b = _checked(p, a, b)
    x = np.asarray(x, dtype=float)
    inside = (x > 0.0) & (x < np.inf)
    safe = np.where(inside, x, 1.0)
    with np.errstate(over="ignore"):
        value = (p - 1.0) * np.log(safe) - 0.5 * (a * safe + b / safe) - _log_normalizer(p, a, b)
    return np.where(np.isnan(x), np.nan, np.where(inside, value, -np.inf))


def _checked(p: ArrayLike, a: ArrayLike, b: ArrayLike) -> list[Array]:
    p, a, b = (np.asarray(values, dtype=float) for values in (p, a, b))
    refuse("p", p, np.isfinite(p), "a finite p")
    refuse("a", a, (a >= 0.0) & (a < np.inf), "a finite a ≥ 0")
    refuse("b", b, (b >= 0.0) & (b < np.inf), "a finite b ≥ 0")
    # Copies: Numba asks whether arrays are writeable, which broadcast arrays should not be.
    p, a, b = (np.array(values, order="C") for values in np.broadcast_arrays(p, a, b))
    refuse("a", a, (a > 0.0) | (p < 0.0), "a > 0 unless p < 0")
    refuse("b", b, (b > 0.0) | (p > 0.0), "b > 0 unless p > 0")
    return [p, a, b]


def _log_normalizer(p: Array, a: Array, b: Array) -> Array:
    """Return log ∫ x^{p−1} exp(−(a x + b/x)/2) dx = log(2 K_p(ω) (b/a)^{p/2})."""
    proper = (a > 0.0) & (b > 0.0)
    safe_a, safe_b = np.where(proper, a, 1.0), np.where(proper, b, 1.0)
    general = np.log(2.0) + _log_bessel_k(p, np.sqrt(safe_a) * np.sqrt(safe_b))
    general = general + 0.5 * p * (np.log(safe_b) - np.log(safe_a))
    order = np.where(proper | (p == 0.0), 1.0, np.abs(p))
    rate = 0.5 * np.where(proper, 1.0, np.maximum(a, b))
    return np.where(proper, general, gammaln(order) - order * np.log(rate))


def _log_mean(p: Array, a: Array, b: Array) -> Array:
    """Return log E x, by the normalisers at p + 1 and p; +∞ where it diverges."""
    inverse_gamma, is_gamma = a == 0.0, b == 0.0
    general = ~(inverse_gamma | is_gamma)
    safe_a, safe_b = np.where(inverse_gamma, 1.0, a), np.where(is_gamma, 1.0, b)
    by_bessel = 0.5 * (np.log(safe_b) - np.log(safe_a)) + _log_bessel_ratio(
        np.where(general, p, 1.0), np.where(general, np.sqrt(a) * np.sqrt(b), 1.0)
    )
    by_gamma = np.log(2.0 * np.where(is_gamma, p, 1.0)) - np.log(safe_a)
    finite = inverse_gamma & (p < -1.0)
    by_inverse_gamma = np.log(0.5 * safe_b) - np.log(np.where(finite, -1.0 - p, 1.0))
    by_inverse_gamma = np.where(finite, by_inverse_gamma, np.inf)
    return np.where(general, by_bessel, np.where(is_gamma, by_gamma, by_inverse_gamma))


def _log_bessel_ratio(p: Array, omega: Array) -> Array:
    """log(K_{p+1}(ω)/K_p(ω))."""
    low, high = np.abs(p), np.abs(p + 1.0)
    difference = _log_bessel_k(high, omega) - _log_bessel_k(low, omega)
    # Debye's leading terms are of order r, but their difference, in closed form, is of order one.
    r, raised = np.hypot(low, omega), np.hypot(high, omega)
    step = high - low
    r_step = step * (high + low) / (r + raised)
    leading = (
        step * np.arcsinh(high / omega)
        + low * np.log1p((step + r_step) / (low + r))
        - r_step
        - 0.5 * np.log1p(r_step / r)
    )
    debye = leading + np.log1p(_debye_series(high, omega)) - np.log1p(_debye_series(low, omega))
    return np.where(np.minimum(r, raised) > DEBYE_ABOVE, debye, difference)


def _log_bessel_k(p: Array, omega: Array) -> Array:
    """Return log K_p(ω) for ω > 0, where K_p itself may overflow or underflow."""
    p = np.abs(p)
    radius = np.hypot(p, omega)
    large = radius > DEBYE_ABOVE
    moderate = np.where(large, 1.0, omega)
    scaled = kve(np.where(large, 0.0, p), moderate)
    overflow = np.isinf(scaled)
    direct = np.log(np.where(overflow, 1.0, scaled)) - moderate
    # K_p overflows here only where ω is so small that two terms suffice.
    order = np.where(overflow, p, 1.0)
    leading = gammaln(order) - np.log(2.0) + order * (np.log(2.0) - np.log(moderate))
    leading -= 0.25 * moderate**2 / np.maximum(order - 1.0, 1.0)
    return np.where(large, _debye(p, omega), np.where(overflow, leading, direct))


def _debye(p: Array, omega: Array) -> Array:
    """Expand log K_p(ω) uniformly in r = √(p² + ω²) (DLMF 10.41.4); also good at p = 0."""
    r = np.hypot(p, omega)
    series = np.log1p(_debye_series(p, omega))
    return 0.5 * np.log(0.5 * np.pi / r) - r + p * np.arcsinh(p / omega) + series


def _debye_series(p: Array, omega: Array) -> Array:
    """Σ_{k≥1} (−1)ᵏ U_k(p/r)/pᵏ, held at r = DEBYE_ABOVE below it, where it is not used."""
    r = np.maximum(np.hypot(p, omega), DEBYE_ABOVE)
    s = (p / r) ** 2
    return sum(
        np.polynomial.polynomial.polyval(s, coefficients) / r ** (k + 1)
        for k, coefficients in enumerate(DEBYE)
    )


def random_inverse_gaussian(rng: Generator, mean: ArrayLike, shape: ArrayLike) -> Array:
    """Draw independent x ~ IG(mean, shape), exactly, at any ratio of mean to shape.

    The method of Michael, Schucany & Haas: (x − mean)² shape/(mean² x) is χ²₁, and of the two roots
    x₋ is taken with probability mean/(mean + x₋). `numpy.random.Generator.wald` computes x₋ as a
    difference: at mean/shape = 1e10 its draws lie on a coarse grid, at 1e15 one in fifty is zero,
    and at an infinite mean it is NaN. Here the root is a quotient of positive terms.

    Raises ValueError unless means are in (0, ∞] and shapes in (0, ∞).

    References
    ----------
    Michael, Schucany & Haas (1976), Generating random variates using transformations with multiple
    roots, The American Statistician 30.
    """
    mean, shape = _mean_and_shape(mean, shape)
    size = np.broadcast_shapes(mean.shape, shape.shape)
    inv_mean = 1.0 / mean
    half = rng.standard_normal(size)
    half *= half
    half /= 2.0 * shape
    # 1/x₋ = 1/mean + y/(2 shape) + √(y/(2 shape) · (2/mean + y/(2 shape))), y ~ χ²₁, with two roots
    # so that the product cannot overflow.
    x = 1.0 / (inv_mean + half + np.sqrt(half) * np.sqrt(2.0 * inv_mean + half))
    ratio = inv_mean * x
    larger = rng.random(size) * (1.0 + ratio) > 1.0
    # x₊ = mean²/x₋. Never taken at an infinite mean, where the ratio is zero.
    return np.where(larger, mean / np.where(larger, ratio, 1.0), x)


def logpdf_inverse_gaussian(x: ArrayLike, mean: ArrayLike, shape: ArrayLike) -> Array:
    """Log density of IG(mean, shape); −∞ for x ≤ 0."""
    mean, shape = _mean_and_shape(mean, shape)
    x = np.asarray(x, dtype=float)
    inside = (x > 0.0) & (x < np.inf)
    safe = np.where(inside, x, 1.0)
    # The squared deviation overflows only where the log density is −∞ to rounding.
    with np.errstate(over="ignore"):
        deviation = np.sqrt(shape / safe) * (safe / mean - 1.0)
        value = 0.5 * np.log(shape / (2.0 * np.pi)) - 1.5 * np.log(safe) - 0.5 * deviation**2
    return np.where(np.isnan(x), np.nan, np.where(inside, value, -np.inf))


def _mean_and_shape(mean: ArrayLike, shape: ArrayLike) -> tuple[Array, Array]:
    mean, shape = np.asarray(mean, dtype=float), np.asarray(shape, dtype=float)
    refuse("mean", mean, mean > 0.0, "a mean > 0 (infinity is allowed)")
    refuse("shape", shape, (shape > 0.0) & (shape < np.inf), "a finite shape > 0")
    return mean, shape
