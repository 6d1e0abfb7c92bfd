"""Moments, Laplace transforms and draws that only tests compare with."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, kve, log_ndtr

from pymc_augconj.auxiliary import generalized_inverse_gaussian as gig
from pymc_augconj.auxiliary import truncated_normal as tn
from pymc_augconj.auxiliary.laplace_transform.distribution import (
    LogPhi,
    TiltedDistribution,
    as_distribution,
    checked_tilt,
)
from pymc_augconj.auxiliary.laplace_transform.inversion import Sites
from pymc_augconj.auxiliary.laplace_transform.quantiles import quantile_tilted
from pymc_augconj.auxiliary.polya_gamma import distribution as pg
from pymc_augconj.typing import Array


def _log_bessel(nu: ArrayLike, a: ArrayLike, b: ArrayLike) -> Array:
    """Return log ∫ x^{−ν−1} exp(−(a x + b/x)/2) dx, ν any real number if a > 0, by SciPy's K_ν."""
    nu, a, b = np.broadcast_arrays(nu, a, b)
    omega = np.sqrt(a) * np.sqrt(b)
    with np.errstate(all="ignore"):
        general = np.log(2.0 * kve(nu, omega)) - omega + 0.5 * nu * np.log(a / b)
        return np.where(a > 0.0, general, gammaln(nu) - nu * np.log(0.5 * b))


def moment_generalized_inverse_gaussian(k: int, nu: ArrayLike, a: ArrayLike, b: ArrayLike) -> Array:
    """Return E xᵏ of GIG(−ν, a, b), +∞ at a = 0 and k ≥ ν."""
    value = np.exp(_log_bessel(np.subtract(nu, k), a, b) - _log_bessel(nu, a, b))
    return np.where((np.asarray(a) > 0.0) | (np.asarray(nu) > k), value, np.inf)


def log_laplace_generalized_inverse_gaussian(
    nu: ArrayLike, a: ArrayLike, b: ArrayLike, t: ArrayLike
) -> Array:
    """Return log E exp(−t x), by the normalisers at a + 2t ≥ 0 and at a."""
    return _log_bessel(nu, np.add(a, 2.0 * np.asarray(t)), b) - _log_bessel(nu, a, b)


def mean_inverse_gaussian(mean: ArrayLike, shape: ArrayLike) -> Array:
    """E x, which is ``mean`` itself, broadcast; errors as `random_inverse_gaussian`."""
    mean, shape = gig._mean_and_shape(mean, shape)
    return np.broadcast_arrays(mean, shape)[0].copy()


def var_inverse_gaussian(mean: ArrayLike, shape: ArrayLike) -> Array:
    """Var x = mean³/shape; errors as `random_inverse_gaussian`."""
    mean, shape = gig._mean_and_shape(mean, shape)
    with np.errstate(over="ignore"):
        return mean * mean / shape * mean


def log_laplace_inverse_gaussian(mean: ArrayLike, shape: ArrayLike, t: ArrayLike) -> Array:
    """Return log E exp(−t x) = shape/mean − √(shape²/mean² + 2 shape t)."""
    mean, shape = gig._mean_and_shape(mean, shape)
    t = np.asarray(t, dtype=float)
    rate = shape / mean
    radicand = rate * rate + 2.0 * shape * t
    # The difference of two roots as a quotient: exact at small t.
    denominator = rate + np.sqrt(np.maximum(radicand, 0.0))
    value = -2.0 * shape * t / np.where(denominator > 0.0, denominator, 1.0)
    return np.where(radicand >= 0.0, value, np.inf)


def var_polya_gamma(h: ArrayLike, c: ArrayLike) -> Array:
    """Var ω = h (sinh c − c) / (4c³ cosh²(c/2)); h/24 at c = 0."""
    h, c = pg._checked(h, c)
    z = 0.5 * np.abs(c)
    near_zero = z < 0.1  # where tanh z − z/cosh²z cancels; the series is then good to 1e-15
    safe = np.where(near_zero, 1.0, z)
    # 1/cosh² through exp(−2z), and z³ by division, so that nothing overflows.
    decay = np.exp(-2.0 * safe)
    closed = (np.tanh(safe) - 4.0 * safe * decay / (1.0 + decay) ** 2) / safe / safe / safe
    coefficients = [2 / 3, -8 / 15, 34 / 105, -496 / 2835, 2764 / 31185, -87376 / 2027025]
    small = np.where(near_zero, z, 0.0) ** 2
    series = np.polynomial.polynomial.polyval(small, coefficients)
    return h / 16.0 * np.where(near_zero, series, closed)


def log_laplace_polya_gamma(h: ArrayLike, c: ArrayLike, t: ArrayLike) -> Array:
    """Return log E exp(−t ω); +∞ where it diverges."""
    h, c = pg._checked(h, c)
    z, t = 0.5 * np.abs(c), np.asarray(t, dtype=float)
    with np.errstate(over="ignore"):
        u = z * z + 0.5 * t
    decay = np.exp(-2.0 * z)

    # u ≥ 0: log(cosh q / cosh z) with q = √u, free of cancellation for near and far q and z, by
    # cosh q/cosh z − 1 = 2 sinh((q + z)/2) sinh((q − z)/2) / cosh z.
    q = np.sqrt(np.maximum(u, 0.0))
    gap = 0.5 * t / np.where(q + z > 0.0, q + z, 1.0)  # q − z
    small_gap = np.clip(gap, -1.0, 1.0)
    near = np.log1p(np.expm1(small_gap) * -np.expm1(-small_gap - 2.0 * z) / (1.0 + decay))
    far = gap + np.log1p((np.exp(-2.0 * q) - decay) / (1.0 + decay))
    hyperbolic = np.where(np.abs(gap) < 1.0, near, far)

    # u < 0: log(cos √−u / cosh z), a sum of two negative terms.
    angle = np.sqrt(np.clip(-u, 0.0, pg.EDGE))
    log_cosine = np.log(np.maximum(np.cos(angle), np.finfo(float).tiny))
    log_cosine = np.where(angle < 1.0, np.log1p(-2.0 * np.sin(0.5 * angle) ** 2), log_cosine)
    trigonometric = log_cosine - pg._log_cosh(z)

    value = -h * np.where(u >= 0.0, hyperbolic, trigonometric)
    return np.where((u > -pg.EDGE) | (h == 0.0), value, np.inf)


def var_truncated_normal(mean: ArrayLike, positive: ArrayLike) -> Array:
    """Var z = 1 − d (d − μ), d = μ + φ(μ)/Φ(μ), without cancellation in the tail."""
    mu, _ = tn._reflected(mean, positive)
    d, tail = tn._mean_and_tail(mu)
    # With d = 1/(a + g), a = −μ:  1 − d(d + a) = d (g − d), and g ≈ 2d.
    return np.where(mu < tn.CONTINUED_FRACTION_BELOW, d * (tail - d), 1.0 - d * (d - mu))


def log_laplace_truncated_normal(mean: ArrayLike, positive: ArrayLike, t: ArrayLike) -> Array:
    """Return log E exp(−t z) = −t mean + t²/2 + log Φ(±(mean − t)) − log Φ(±mean), any real t."""
    mu, sign = tn._reflected(mean, positive)
    moved = sign * np.asarray(t, dtype=float)
    shifted = mu - moved
    # In the tail −tμ + t²/2 cancels against log Φ; what remains is the ratio of two scaled erfc's.
    central = moved * (0.5 * moved - mu) + log_ndtr(shifted) - log_ndtr(mu)
    scaled = tn._log_erfcx(-shifted / np.sqrt(2.0)) - tn._log_erfcx(-mu / np.sqrt(2.0))
    return np.where((mu > 0.0) & (shifted > 0.0), central, scaled)


def random_tilted(
    rng: np.random.Generator, log_phi: LogPhi | TiltedDistribution, r: ArrayLike
) -> Array:
    """Draw one ω from each tilt exp(−rω) π(ω)/φ(r), by inversion."""
    r = checked_tilt(r)
    return quantile_tilted(rng.random(r.shape), log_phi, r)


def cdf_tilted(x: ArrayLike, log_phi: LogPhi | TiltedDistribution, r: ArrayLike) -> Array:
    """Return the distribution function F(x) of the tilts; absolute error about 1e-9."""
    r, x, distribution = checked_tilt(r), np.asarray(x, dtype=float), as_distribution(log_phi)
    shape = np.broadcast_shapes(x.shape, r.shape)
    x = np.broadcast_to(x, shape).ravel() - distribution.origin
    sites = Sites(distribution, np.broadcast_to(r, shape).ravel())
    cdf = sites.cdf_and_pdf(np.where(x > 0.0, x, 1.0))[0]
    cdf = np.where(x > 0.0, cdf, np.where(x == 0.0, sites.atom, 0.0))
    return np.clip(np.where(x < np.inf, cdf, 1.0), 0.0, 1.0).reshape(shape)
