"""Bernoulli observations with a probit link, by a truncated normal.

    p(y | η) = Φ(η)^y Φ(−η)^(1−y),    z ~ N(η, 1) given that z > 0 where y = 1, z ≤ 0 where y = 0,
    λ = 1,  h = z.

y is the sign of z, a N(η, 1) variable that was not observed. Under q(η) = N(m, v) the optimal q(z)
is N(m, 1) truncated likewise: v does not enter.

Moments of Φ(±η) N(η | m, v), with s = ±1, z = s m/√(1 + v) and ρ = φ(z)/Φ(z), are

    Ẑ = Φ(z),    mean = m + s v ρ/√(1 + v),    var = v (1 + v (1 − ρ (z + ρ))) / (1 + v).

References
----------
Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, section 3.9.
Albert, J. H. & Chib, S. (1993). Bayesian analysis of binary and polychotomous response data.
Journal of the American Statistical Association 88.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr

from pymc_augconj.auxiliary.truncated_normal import (
    logpdf_truncated_normal,
    mean_truncated_normal,
    random_truncated_normal,
)
from pymc_augconj.quadrature.tilted import Tilted, tilted_moments
from pymc_augconj.typing import Array, Generator, Mask

from .base import Joint, JointWriter, Likelihood, Params, Pattern, Sites, refusal
from .contract import LikelihoodDensity
from .registry import register

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)
_SQRT_2_OVER_PI = np.sqrt(2.0 / np.pi)
# Below this, 1 − ρ(z + ρ) comes from its asymptotic series, of relative error 700/z⁸.
_FAR = -60.0


@register
class BernoulliProbit(Likelihood):
    """Binary y ∈ {0, 1}, success probability Φ(η)."""

    name = "Bernoulli"
    link = "probit"
    augmentation = "truncated normal N(η, 1)"
    discrete = True
    prefers_held = True
    patterns = (Pattern("BernoulliRV", inputs=("p",), predictor="p", link="probit"),)

    def check(self, y: Array, params: Params) -> str | None:
        return refusal(y, (y == 0) | (y == 1), "0 or 1")

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        return log_ndtr(np.where(y > 0, eta, -eta))

    def draw_auxiliary(self, rng: Generator, y: Array, eta: Array, params: Params) -> Array:
        return random_truncated_normal(rng, eta, y > 0)

    def sites(self, y: Array, z: Array, params: Params) -> Sites:
        return z, np.ones_like(z)

    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        return mean_truncated_normal(mean, y > 0), np.ones_like(mean)

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        return self.log_density(y, mean, params) - 0.5 * var

    def tilted_moments(
        self, y: Array, mean: Array, var: Array, params: Params, *, power: float, delta: bool
    ) -> Tilted | None:
        if power != 1.0:
            return None
        positive = y > 0
        tilted = probit_tilted(positive, mean, var)
        if not delta:
            return tilted
        found = probit_delta(positive, mean, var, tilted)
        hard = np.flatnonzero(np.isnan(found))
        if hard.size:
            rest = LikelihoodDensity(self, y[hard], params)
            found[hard] = tilted_moments(rest, mean[hard], var[hard], delta=True).delta
        return replace(tilted, delta=found)

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        p = ndtr(eta)
        return p, p * (1.0 - p)

    def predictive_moments(self, mean: Array, var: Array, params: Params) -> tuple[Array, Array]:
        return self.moments(mean / np.sqrt(1.0 + var), params)

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return np.where(y < 0.0, 0.0, np.where(y < 1.0, ndtr(-eta), 1.0))

    def log_predictive(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        return self.log_density(y, mean / np.sqrt(1.0 + var), params)

    def log_base(self, y: Array, z: Array, params: Params) -> Array:
        return np.where((z > 0) == (y > 0), -0.5 * z**2 - _HALF_LOG_2PI, -np.inf)

    def log_conditional(self, z: Array, y: Array, eta: Array, params: Params) -> Array:
        return logpdf_truncated_normal(z, eta, y > 0)

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Params) -> Joint:
        math = write.math
        z = write.normal("omega", eta, 1.0, start=math.where(y > 0, 1.0, -1.0))
        return [z], lambda y, eta, z, params: math.where(math.eq(z > 0, y > 0), 0.0, -np.inf)


def probit_tilted(positive: Mask, cavity_mean: Array, cavity_var: Array) -> Tilted:
    """Return the moments of Φ(±η) N(η | m, v); ``positive`` says for which sites the sign is +."""
    sign = np.where(positive, 1.0, -1.0)
    root = np.sqrt(1.0 + cavity_var)
    z = sign * cavity_mean / root
    # φ/Φ without an underflow of either.
    ratio = _SQRT_2_OVER_PI / erfcx(-z / np.sqrt(2.0))
    far = np.minimum(z, _FAR) ** -2.0
    series = far * (1.0 - far * (6.0 - far * (50.0 - 518.0 * far)))
    shrunk = np.where(z < _FAR, series, 1.0 - ratio * (z + ratio))
    mean = cavity_mean + sign * cavity_var * ratio / root
    return Tilted(log_ndtr(z), mean, cavity_var * (1.0 + cavity_var * shrunk) / root**2)


def probit_delta(positive: Mask, cavity_mean: Array, cavity_var: Array, tilted: Tilted) -> Array:
    """Return δ of quantile propagation for sites whose moments are known.

    It is NaN where a step is too steep, or too little of the cavity beyond it, for the panels of
    :mod:`~pymc_augconj.quadrature.quantile_shift`.
    """
    # Loads Numba, which nothing else here needs.
    from pymc_augconj.quadrature.quantile_shift import fill_probit_delta

    sign, root = np.where(positive, 1.0, -1.0), np.sqrt(cavity_var)
    mean, std = sign * (tilted.mean - cavity_mean) / root, np.sqrt(tilted.var) / root
    delta = np.empty(cavity_mean.shape)
    fill_probit_delta(sign * cavity_mean, root, tilted.log_Z, mean, std, delta)
    return delta
