"""Logistic observations, by Pólya–Gamma augmentation.

    p(y | η) = σ(e/s) σ(−e/s) / s,    e = y − η,    ω ~ PG(2, e/s),    λ = ω/s²,  h = λ y.

It is the Pólya–Gamma identity of the logit link with one success and one failure at e/s, where
the linear term vanishes.

References
----------
Polson, N. G., Scott, J. G. & Windle, J. (2013). Bayesian inference for logistic models using
Pólya–Gamma latent variables. Journal of the American Statistical Association 108.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit

from pymc_augconj.auxiliary.polya_gamma.distribution import (
    logpdf_polya_gamma,
    mean_polya_gamma,
    random_polya_gamma,
)
from pymc_augconj.typing import Array

from .base import Joint, JointWriter, Params, Pattern
from .registry import register
from .symmetric_noise import SymmetricNoise

_LOG_4 = np.log(4.0)


@register
class Logistic(SymmetricNoise):
    """Real y with mean η and scale s."""

    name = "Logistic"
    augmentation = "Pólya–Gamma PG(2, (y − η)/s)"
    prefers_held = True
    patterns = (Pattern("LogisticRV", inputs=("mu", "s"), predictor="mu"),)
    draw = staticmethod(random_polya_gamma)
    mean = staticmethod(mean_polya_gamma)
    logpdf = staticmethod(logpdf_polya_gamma)

    def log_density_at(self, distance: Array, params: Params) -> Array:
        s = params["s"]
        distance = distance / s
        return -distance - 2.0 * np.log1p(np.exp(-distance)) - np.log(s)

    def precision(self, omega: Any, params: Params) -> Array:
        return omega / params["s"] ** 2

    def conditional(self, square: Array, params: Params) -> tuple[Any, ...]:
        return 2.0, np.sqrt(square) / params["s"]

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        return eta, np.broadcast_to((np.pi * params["s"]) ** 2 / 3.0, np.shape(eta))

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return expit((y - eta) / params["s"])

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        s = params["s"]
        log_prior = logpdf_polya_gamma(omega, 2.0, 0.0)
        return log_prior - 0.5 * omega * (y / s) ** 2 - np.log(s) - _LOG_4

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Params) -> Joint:
        def log_factor(y: Any, eta: Any, omega: Any, params: Any) -> Any:
            s = params["s"]
            return -write.math.log(4.0 * s) - 0.5 * omega * ((y - eta) / s) ** 2

        return [write.polya_gamma("omega", 2.0)], log_factor
