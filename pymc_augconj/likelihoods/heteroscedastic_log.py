"""Normal observations whose log standard deviation is a predictor, by their density.

    p(y | f, g) = N(y | f, e^{2g}).

There is no augmentation, but E log p is in closed form for any joint normal distribution of f and
g: see :func:`.heteroscedastic.expected_normal` with τ(g) = e^{−2g},

    T_k = (−2)ᵏ exp(−2 m_g + 2 V_gg).
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from pymc_augconj.typing import Array

from .base import Expected, Params, Pattern, PredictorInput
from .contract import MultiDensity
from .heteroscedastic import expected_normal
from .registry import register

__all__ = ["HeteroscedasticLog"]

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


@register
class HeteroscedasticLog(MultiDensity):
    """Real y with mean f and standard deviation exp(g); the predictors are (f, g)."""

    name = "Normal"
    link = "identity, log of the standard deviation"
    n_predictors = 2
    patterns = (
        Pattern(
            "NormalRV",
            inputs=("mu", "sigma"),
            predictors=(PredictorInput("mu"), PredictorInput("sigma", "log")),
        ),
    )

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        f, g = eta
        return -_HALF_LOG_2PI - g - 0.5 * ((y - f) * np.exp(-g)) ** 2

    def log_density_and_gradient(self, y: Array, eta: Array, params: Params) -> tuple[Array, Array]:
        f, g = eta
        scaled = (y - f) * np.exp(-g)
        slope = np.stack([scaled * np.exp(-g), scaled**2 - 1.0])
        return -_HALF_LOG_2PI - g - 0.5 * scaled**2, slope

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        return eta[0], np.exp(2.0 * eta[1])

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return ndtr((y - eta[0]) / np.sqrt(self.moments(eta, params)[1]))

    def expected_log_density(self, y: Array, mean: Array, cov: Array, params: Params) -> Expected:
        precision = np.exp(2.0 * (cov[1, 1] - mean[1]))
        zeros = np.zeros_like(y)
        log_terms = [-2.0 * mean[1], zeros - 2.0, zeros]
        return expected_normal(y, mean, cov, log_terms, [(-2.0) ** k * precision for k in range(5)])
