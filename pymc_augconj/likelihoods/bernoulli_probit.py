"""Bernoulli observations with a probit link, by a truncated normal.

    p(y | η) = Φ(η)^y Φ(−η)^(1−y),    z ~ N(η, 1) given that z > 0 where y = 1, z ≤ 0 where y = 0,
    λ = 1,  h = z.

y is the sign of z, a N(η, 1) variable that was not observed. Under q(η) = N(m, v) the optimal q(z)
is N(m, 1) truncated likewise: v does not enter.

References
----------
Albert, J. H. & Chib, S. (1993). Bayesian analysis of binary and polychotomous response data.
Journal of the American Statistical Association 88.
"""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr, ndtr

from pymc_augconj.auxiliary.truncated_normal import (
    logpdf_truncated_normal,
    mean_truncated_normal,
    random_truncated_normal,
)

from .base import Likelihood, Params, Pattern, refusal
from .registry import register

__all__ = ["BernoulliProbit"]

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


@register
class BernoulliProbit(Likelihood):
    """Binary y ∈ {0, 1}, success probability Φ(η)."""

    name = "Bernoulli"
    link = "probit"
    augmentation = "truncated normal N(η, 1)"
    discrete = True
    patterns = (Pattern("BernoulliRV", inputs=("p",), predictor="p", link="probit"),)

    def check(self, y, params):
        return refusal(y, (y == 0) | (y == 1), "0 or 1")

    def log_density(self, y, eta, params: Params):
        return log_ndtr(np.where(y > 0, eta, -eta))

    def draw_auxiliary(self, rng, y, eta, params):
        return random_truncated_normal(rng, eta, y > 0)

    def sites(self, y, z, params):
        return z, np.ones_like(z)

    def expected_sites(self, y, mean, var, params):
        return mean_truncated_normal(mean, y > 0), np.ones_like(mean)

    def expected_log_bound(self, y, mean, var, params):
        return self.log_density(y, mean, params) - 0.5 * var

    def moments(self, eta, params):
        p = ndtr(eta)
        return p, p * (1.0 - p)

    def predictive_moments(self, mean, var, params):
        return self.moments(mean / np.sqrt(1.0 + var), params)

    def cdf(self, y, eta, params):
        return np.where(y < 0.0, 0.0, np.where(y < 1.0, ndtr(-eta), 1.0))

    def log_predictive(self, y, mean, var, params):
        return self.log_density(y, mean / np.sqrt(1.0 + var), params)

    def log_base(self, y, z, params):
        return np.where((z > 0) == (y > 0), -0.5 * z**2 - _HALF_LOG_2PI, -np.inf)

    def log_conditional(self, z, y, eta, params):
        return logpdf_truncated_normal(z, eta, y > 0)
