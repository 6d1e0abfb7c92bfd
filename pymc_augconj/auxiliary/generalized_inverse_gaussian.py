"""The generalised inverse Gaussian distribution GIG(−ν, a, b), ν = ½, 3/2 or 5/2.

    p(x) ∝ x^{−ν−1} exp(−(a x + b/x)/2),   x > 0,   a ≥ 0, b > 0.

At these orders Bessel functions are elementary: K_ν(ω) = √(π/2ω) e^{−ω} θₙ(ω)/ωⁿ with n = ν − ½,
θ₀ = 1, θ₁ = 1 + ω and θ₂ = 3 + 3ω + ω². With ω = √(ab)

    log p(x) = ν log b − ½ log 2π − log θₙ(ω) − (ν + 1) log x − ½ (√(a x) − √(b/x))²,

and E x = b θₙ₋₁(ω)/θₙ(ω), at ν = ½ √(b/a). At a = 0 it is the inverse of Gamma(ν, rate b/2); at
ν = ½ it is inverse Gaussian with mean √(b/a) and shape b:

    IG(mean, shape):  p(x) = √(shape / 2πx³) · exp(−shape (x − mean)² / (2 mean² x)),   x > 0.

Its formulas use 1/mean, so that an infinite mean, from a residual of exactly zero under Laplace
noise, is an ordinary value: the distribution is then Lévy's, the distribution of shape/χ²₁. NumPy
is as fast there as Numba.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from pymc_augconj.errors import refuse
from pymc_augconj.typing import Array, Generator

#: The values of ν.
ORDERS = (0.5, 1.5, 2.5)
_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


def random_generalized_inverse_gaussian(
    rng: Generator, nu: ArrayLike, a: ArrayLike, b: ArrayLike
) -> Array:
    """Draw independent x ~ GIG(−ν, a, b), exactly.

    Rejection on the scale of log x, where the density is log-concave, from a constant between two
    exponential tails; three proposals in four are accepted at the worst parameters. The limit a = 0
    is no special case. The first use compiles it (Numba, cached on disk).

    Raises ValueError unless ν is ½, 3/2 or 5/2, a finite and not negative, and b finite and
    positive.

    References
    ----------
    Devroye (2014), Random variate generation for the generalized inverse Gaussian distribution,
    Statistics and Computing 24.
    """
    # Imported here, as moments and densities need no Numba.
    from .generalized_inverse_gaussian_kernel import fill

    # Copies: Numba asks whether arrays are writeable, which broadcast arrays should not be.
    given = (np.array(values, order="C") for values in np.broadcast_arrays(*_checked(nu, a, b)))
    nu, a, b = given
    out = np.empty(nu.shape)
    fill(rng, nu.ravel(), a.ravel(), b.ravel(), out.reshape(-1))
    return out


def mean_generalized_inverse_gaussian(nu: ArrayLike, a: ArrayLike, b: ArrayLike) -> Array:
    """Return E x; +∞ at a = 0 and ν = ½."""
    nu, a, b = _checked(nu, a, b)
    root_a, root_b = np.sqrt(a), np.sqrt(b)
    with np.errstate(divide="ignore"):
        return np.where(nu > 1.0, b / _ratio(nu, root_a * root_b), root_b / root_a)


def logpdf_generalized_inverse_gaussian(
    x: ArrayLike, nu: ArrayLike, a: ArrayLike, b: ArrayLike
) -> Array:
    """Log density of GIG(−ν, a, b); −∞ for x ≤ 0."""
    nu, a, b = _checked(nu, a, b)
    return _log_density(x, nu, np.sqrt(a), np.sqrt(b))


def _log_density(x: ArrayLike, nu: Array | float, root_a: Array, root_b: Array) -> Array:
    """Return the log density, given √a and √b, whose squares may overflow."""
    x = np.asarray(x, dtype=float)
    inside = (x > 0.0) & (x < np.inf)
    safe, omega = np.where(inside, x, 1.0), root_a * root_b
    log_theta = np.where(nu > 1.0, np.log1p(omega), 0.0)
    log_theta = log_theta + np.where(nu > 2.0, np.log(_ratio(2.5, omega)), 0.0)
    # The squared deviation overflows only where the log density is −∞ to rounding.
    with np.errstate(over="ignore"):
        deviation = root_a * np.sqrt(safe) - root_b / np.sqrt(safe)
        value = 2.0 * nu * np.log(root_b) - (nu + 1.0) * np.log(safe) - 0.5 * deviation**2
    value = value - log_theta - _HALF_LOG_2PI
    return np.where(np.isnan(x), np.nan, np.where(inside, value, -np.inf))


def _ratio(nu: Array | float, omega: Array) -> Array:
    """Return θₙ(ω)/θₙ₋₁(ω) for ν > ½, without an overflow of ω²."""
    return omega + np.where(nu > 2.0, 2.0 + 1.0 / (1.0 + omega), 1.0)


def _checked(nu: ArrayLike, a: ArrayLike, b: ArrayLike) -> list[Array]:
    nu, a, b = (np.asarray(values, dtype=float) for values in (nu, a, b))
    refuse("nu", nu, np.isin(nu, ORDERS), "½, 3/2 or 5/2")
    refuse("a", a, (a >= 0.0) & (a < np.inf), "a finite a ≥ 0")
    refuse("b", b, (b > 0.0) & (b < np.inf), "a finite b > 0")
    return [nu, a, b]


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
    root = np.sqrt(shape)
    return _log_density(x, 0.5, root / mean, root)


def _mean_and_shape(mean: ArrayLike, shape: ArrayLike) -> tuple[Array, Array]:
    mean, shape = np.asarray(mean, dtype=float), np.asarray(shape, dtype=float)
    refuse("mean", mean, mean > 0.0, "a mean > 0 (infinity is allowed)")
    refuse("shape", shape, (shape > 0.0) & (shape < np.inf), "a finite shape > 0")
    return mean, shape
