"""Poisson observations with a log link: a density without an augmentation.

    p(y | η) = exp(y η − e^η) / y!.

An exposure, mu = c e^η, is an offset: log c belongs to η. With η ~ N(m, v) and M = exp(m + v/2),

    E[log p(y | η)] = y m − M − log y!,    ∂/∂m = y − M,    ∂/∂v = −½ M,
    E[y] = M,    Var[y] = M + M² (e^v − 1).
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln, pdtr

from .base import DensityLikelihood, Params, Pattern, is_count, refusal
from .registry import register

__all__ = ["PoissonLog"]


@register
class PoissonLog(DensityLikelihood):
    """Counts y ∈ {0, 1, …} of mean e^η."""

    name = "Poisson"
    link = "log"
    discrete = True
    patterns = (Pattern("PoissonRV", inputs=("mu",), predictor="mu", link="log"),)

    def check(self, y, params):
        return refusal(y, is_count(y), "a non-negative integer")

    def log_density(self, y, eta, params: Params):
        # Far from the data e^η overflows, and the density is nothing.
        with np.errstate(over="ignore"):
            return y * eta - np.exp(eta) - gammaln(y + 1.0)

    def expected_log_density(self, y, mean, var, params):
        with np.errstate(over="ignore"):
            rate = np.exp(mean + 0.5 * var)
        return y * mean - rate - gammaln(y + 1.0), y - rate, -0.5 * rate

    def moments(self, eta, params):
        rate = np.exp(eta)
        return rate, rate

    def predictive_moments(self, mean, var, params):
        rate = np.exp(mean + 0.5 * var)
        return rate, rate + rate**2 * np.expm1(var)

    def cdf(self, y, eta, params):
        k = np.floor(y)
        return np.where(k < 0.0, 0.0, pdtr(np.maximum(k, 0.0), np.exp(eta)))
