"""Poisson observations with a square link: a density without an augmentation.

    p(y | η) = (c η²)^y exp(−c η²) / y!.

With η ~ N(m, v), J ~ Poisson(x), x = m²/2v, s = √x, Dawson's function D and the digamma ψ,

    E[log η²] = log 2v + E[ψ(½ + J)],    ∂/∂m = 2 D(s)/s · m/v,    ∂/∂v = (1 − 2 s D(s))/v.

exp(−c η²) N(η | m, v) is a normal density of variance v' = v/(1 + 2cv) and mean m' = m/(1 + 2cv),
times a constant; so that the density of a count, and the moments of η given one, are even moments
of a normal variable, sums of positive terms:

    E[p(y | η)] = c^y/y! (1 + 2cv)^−½ exp(−c m²/(1 + 2cv)) E'[η^2y],
    E[η^k] = Σ_j k!/((k − 2j)! j! 2^j) m^(k−2j) v^j.

p is the same for η and −η: where the prior mean is zero, so is the posterior.

References
----------
Lloyd, C., Gunter, T., Osborne, M. & Roberts, S. (2015). Variational inference for Gaussian process
modulated Poisson processes. ICML. Zhang, R. et al. (2020). Quantile propagation for
Wasserstein-approximate Gaussian processes. NeurIPS 33.
"""

from __future__ import annotations

import numpy as np
from scipy.special import dawsn, digamma, gammaln, logsumexp, xlogy

from pymc_augconj.quadrature.tilted import Tilted
from pymc_augconj.typing import Array

from .base import Expected, Params, Pattern
from .poisson_log import Poisson
from .registry import register

_LOG_2 = np.log(2.0)

# From here on the asymptotic series in 1/x is exact to rounding with so many terms; below, J has no
# mass beyond the largest count.
_LARGE = 40.0
_TERMS = 20
_LARGEST_J = 160

# Of larger counts the sums are long, and lose digits; quadrature takes over.
LARGEST_COUNT = 200

# Above this, the variance as a difference of moments E[η²] − E[η]² has lost too many digits.
_LARGEST_CANCELLATION = 1e4


@register
class PoissonSquare(Poisson):
    """Counts y ∈ {0, 1, …} of mean c η²; c, the exposure, is a parameter."""

    link = "square"
    patterns = (
        Pattern(
            "PoissonRV", inputs=("mu",), predictor="mu", link="scaled_square", scale="exposure"
        ),
    )

    def rate(self, eta: Array, params: Params) -> Array:
        return params["exposure"] * eta**2

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        rate = self.rate(eta, params)
        return xlogy(y, rate) - rate - gammaln(y + 1.0)

    def expected_log_density(self, y: Array, mean: Array, var: Array, params: Params) -> Expected:
        c = params["exposure"]
        value, d_mean, d_var = _expected_log_square(mean, var)
        constant = xlogy(y, c) - gammaln(y + 1.0)
        value = y * value + constant - c * (mean**2 + var)
        return value, y * d_mean - 2.0 * c * mean, y * d_var - c

    def landmarks(self, y: Array, params: Params) -> Array:
        # ±√(y/c), where p(y | η) has its modes, and 0, where it is zero for y > 0.
        mode = np.sqrt(y / params["exposure"])
        return np.stack([-mode, np.zeros_like(mode), mode])

    def tilted_moments(
        self, y: Array, mean: Array, var: Array, params: Params, *, power: float, delta: bool
    ) -> Tilted | None:
        if power != 1.0 or delta or np.max(y, initial=0.0) > LARGEST_COUNT:
            return None
        exposure = np.asarray(params["exposure"])
        log_constant, mean, var = _tilt(mean, var, exposure)
        zeroth, first, second = (log_moment(2.0 * y + k, mean, var) for k in range(3))
        tilted_mean = np.sign(mean) * np.exp(first - zeroth)
        square = np.exp(second - zeroth)
        tilted_var = square - tilted_mean**2
        if not np.all(square < _LARGEST_CANCELLATION * tilted_var):
            return None
        log_Z = xlogy(y, exposure) - gammaln(y + 1.0) + log_constant + zeroth
        return Tilted(log_Z, tilted_mean, tilted_var)

    def predictive_moments(self, mean: Array, var: Array, params: Params) -> tuple[Array, Array]:
        c = params["exposure"]
        rate = c * (mean**2 + var)
        return rate, rate + c**2 * (4.0 * mean**2 * var + 2.0 * var**2)

    def log_predictive(self, y: Array, mean: Array, var: Array, params: Params) -> Array | None:
        if np.max(y, initial=0.0) > LARGEST_COUNT:
            return None
        c = params["exposure"]
        log_constant, shrunk_mean, shrunk_var = _tilt(mean, var, c)
        log_count = xlogy(y, c) - gammaln(y + 1.0)
        return log_count + log_constant + log_moment(2.0 * y, shrunk_mean, shrunk_var)


def _tilt(mean: Array, var: Array, c: Array) -> tuple[Array, Array, Array]:
    """Return the log of the constant, the mean and the variance of exp(−c η²) N(η | mean, var)."""
    scale = 1.0 + 2.0 * c * var
    return -0.5 * np.log(scale) - c * mean**2 / scale, mean / scale, var / scale


def log_moment(order: Array, mean: Array, var: Array) -> Array:
    """Return log |E[η^order]| for η ~ N(mean, var) and orders 0, 1, 2, …, each of shape (N,).

    The sign is that of mean^order.
    """
    order, mean, var = np.broadcast_arrays(order, np.asarray(mean, float), np.asarray(var, float))
    j = np.arange(np.max(order, initial=0.0) // 2 + 1.0)
    k = order[..., None]
    left = np.maximum(k - 2.0 * j, 0.0)
    log_terms = gammaln(k + 1.0) - gammaln(left + 1.0) - gammaln(j + 1.0) - j * _LOG_2
    log_terms = log_terms + xlogy(left, np.abs(mean)[..., None]) + xlogy(j, var[..., None])
    return logsumexp(np.where(2.0 * j <= k, log_terms, -np.inf), axis=-1)


def _expected_log_square(mean: Array, var: Array) -> tuple[Array, Array, Array]:
    """Return E[log η²], η ~ N(mean, var), with its derivatives by mean and by var."""
    mean, var = np.broadcast_arrays(np.asarray(mean, float), np.asarray(var, float))
    x = 0.5 * mean**2 / var
    far = x > _LARGE
    near_x = np.where(far, 0.0, x)
    j = np.arange(_LARGEST_J + 1.0)
    log_mass = xlogy(j, near_x[..., None]) - near_x[..., None] - gammaln(j + 1.0)
    value = np.log(2.0 * var) + np.exp(log_mass) @ digamma(j + 0.5)
    s = np.sqrt(near_x)
    ratio = np.where(s > 0.0, dawsn(s) / np.where(s > 0.0, s, 1.0), 1.0)
    d_mean, d_var = 2.0 * ratio * mean / var, (1.0 - 2.0 * s * dawsn(s)) / var
    if not far.any():
        return value, d_mean, d_var
    # Of 1 + ε with Var[ε] = 1/2x: E[ε^2k] = (2k − 1)!!/(2x)^k =: uₖ, and E[log (1 + ε)²] = −Σ uₖ/k.
    safe_mean, safe_x = np.where(far, mean, 1.0), np.where(far, x, _LARGE)
    k = np.arange(1.0, _TERMS + 1.0)
    u = np.cumprod((2.0 * k - 1.0) / (2.0 * safe_x[..., None]), axis=-1)
    excess = u.sum(axis=-1)
    return (
        np.where(far, np.log(safe_mean**2) - u @ (1.0 / k), value),
        # 2 s D(s) = 1 + Σ uₖ.
        np.where(far, 2.0 * (1.0 + excess) / safe_mean, d_mean),
        np.where(far, -excess / var, d_var),
    )
