"""N(mean, 1) cut at zero: draws, moments, Laplace transform and density.

The auxiliary variable of the probit: z ~ N(mean, 1) given z > 0 where ``positive``, else given
z ≤ 0. In the code, μ = ±mean is the mean after z has been reflected to the positive side, so that
μ ≪ 0 is the far tail.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfc, erfcx, log_ndtr, ndtr, ndtri

from pymc_augconj.errors import refuse
from pymc_augconj.typing import Array, Generator

FAR_TAIL = -30.0  # below, Φ(μ) nears underflow, and μ + e cancels: draw the excess itself
MIDDLE_OF_FIRST_CELL = 2.0**-54  # uniforms are multiples of 2⁻⁵³, so zero stands for [0, 2⁻⁵³)
CONTINUED_FRACTION_BELOW = -4.0
CONTINUED_FRACTION_TERMS = 60


def random_truncated_normal(rng: Generator, mean: ArrayLike, positive: ArrayLike) -> Array:
    """Draw independent z ~ N(mean, 1), given z > 0 where ``positive``, else given z ≤ 0.

    By inversion of one uniform for Φ(μ) > 1e-197; farther in the tail by rejection from an
    exponential of rate −μ, accepted 99.9 times in a hundred. Both are exact to rounding: the
    relative error of z is below 1e-12 at any mean. Raises ValueError if a mean is NaN or infinite.

    References
    ----------
    Robert (1995), Simulation of truncated normal variables, Statistics and Computing 5.
    """
    mu, sign = _reflected(mean, positive)
    uniform = np.maximum(rng.random(mu.shape), MIDDLE_OF_FIRST_CELL)
    # The excess e = x − μ has survival function Φ(−e); abs: at the cut rounding may cross it.
    x = np.abs(mu - ndtri(uniform * ndtr(mu)))
    if mu.size and mu.min() < FAR_TAIL:
        far = mu < FAR_TAIL
        x[far] = _tail_excess(rng, -mu[far])
    return sign * x


def mean_truncated_normal(mean: ArrayLike, positive: ArrayLike) -> Array:
    """E z = ±(μ + φ(μ)/Φ(μ)), without cancellation in the tail."""
    mu, sign = _reflected(mean, positive)
    return sign * _mean_and_tail(mu)[0]


def logpdf_truncated_normal(z: ArrayLike, mean: ArrayLike, positive: ArrayLike) -> Array:
    """Log density at z; −∞ on the wrong side of zero."""
    mu, sign = _reflected(mean, positive)
    z = np.asarray(z, dtype=float)
    x = sign * z
    inside = np.where(sign > 0.0, x > 0.0, x >= 0.0)
    # −(x − μ)²/2 − log Φ(μ) = −x²/2 + xμ − log(erfcx(−μ/√2)/2), which keeps its digits at μ ≪ 0.
    tail = -x * (0.5 * x - mu) - _log_erfcx(-mu / np.sqrt(2.0)) + np.log(2.0)
    central = -0.5 * (x - mu) ** 2 - log_ndtr(mu)
    value = np.where(mu < 0.0, tail, central) - 0.5 * np.log(2.0 * np.pi)
    return np.where(np.isnan(z), np.nan, np.where(inside, value, -np.inf))


def _reflected(mean: ArrayLike, positive: ArrayLike) -> tuple[Array, Array]:
    """±mean and the sign, broadcast against each other."""
    mean = np.asarray(mean, dtype=float)
    refuse("mean", mean, np.isfinite(mean), "a finite mean")
    sign = np.where(np.asarray(positive, dtype=bool), 1.0, -1.0)
    mu = sign * mean
    return mu, np.broadcast_to(sign, mu.shape)


def _tail_excess(rng: Generator, a: Array) -> Array:
    """Return x > 0 with density ∝ exp(−a x − x²/2), for a ≫ 1."""
    x = rng.standard_exponential(a.shape) / a
    pending = np.arange(a.size)
    while True:
        proposal = x[pending]
        rejected = rng.standard_exponential(pending.size) < 0.5 * proposal * proposal
        pending = pending[rejected]
        if not pending.size:
            return x
        x[pending] = rng.standard_exponential(pending.size) / a[pending]


def _mean_and_tail(
    mu: Array,
) -> tuple[Array, Array]:
    """Return d = μ + φ(μ)/Φ(μ), and, below CONTINUED_FRACTION_BELOW, g such that d = 1/(g − μ)."""
    a = np.maximum(-mu, -CONTINUED_FRACTION_BELOW)
    # Laplace's continued fraction of Mills' ratio, 1/(a + 1/(a + 2/(a + 3/(a + …)))).
    g = np.zeros_like(a)
    for k in range(CONTINUED_FRACTION_TERMS, 1, -1):
        g = k / (a + g)
    inner = np.maximum(mu, CONTINUED_FRACTION_BELOW)
    # φ/Φ: by erfcx where Φ is small, by φ = exp(−μ²/2)/√2π otherwise, where erfcx would overflow.
    mills = np.where(
        inner < 0.0,
        np.sqrt(2.0 / np.pi) / erfcx(-np.minimum(inner, 0.0) / np.sqrt(2.0)),
        np.exp(-0.5 * inner * inner) / np.sqrt(2.0 * np.pi) / ndtr(inner),
    )
    return np.where(mu < CONTINUED_FRACTION_BELOW, 1.0 / (a + g), inner + mills), g


def _log_erfcx(x: Array) -> Array:
    """log(exp(x²) erfc(x)), also where erfcx overflows."""
    return np.where(
        x < 0.0, x * x + np.log(erfc(np.minimum(x, 0.0))), np.log(erfcx(np.maximum(x, 0.0)))
    )
