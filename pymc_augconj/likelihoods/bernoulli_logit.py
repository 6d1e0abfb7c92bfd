"""Bernoulli observations with a logit link, by Pólya–Gamma augmentation.

    p(y | η) = σ(η)^y σ(−η)^(1−y),    ω ~ PG(1, η),    λ = ω,  h = y − ½.

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

from .base import Likelihood, Params, Pattern, refusal
from .joint import Joint, JointWriter
from .registry import register

__all__ = ["BernoulliLogit"]

_LOG_2 = np.log(2.0)


@register
class BernoulliLogit(Likelihood):
    """Binary y ∈ {0, 1}, success probability σ(η)."""

    name = "Bernoulli"
    link = "logit"
    augmentation = "Pólya–Gamma PG(1, η)"
    discrete = True
    patterns = (Pattern("BernoulliRV", inputs=("p",), predictor="p", link="logit"),)

    def check(self, y: Array, params: Params) -> str | None:
        return refusal(y, (y == 0) | (y == 1), "0 or 1")

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        return -np.logaddexp(0.0, np.where(y > 0, -eta, eta))

    def draw_auxiliary(
        self, rng: np.random.Generator, y: Array, eta: Array, params: Params
    ) -> Array:
        return random_polya_gamma(rng, 1.0, eta)

    def sites(self, y: Array, omega: Any, params: Params) -> tuple[Array, Array]:
        return y - 0.5, omega

    def as_logistic(self, y: Array, params: Params) -> tuple[Array, Array]:
        return y, np.ones_like(y)

    def expected_sites(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array]:
        return y - 0.5, mean_polya_gamma(1.0, np.sqrt(mean**2 + var))

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        # log ∫ exp(−½ ω c²) PG(ω | 1, 0) dω = −log cosh(c/2)
        half = 0.5 * np.sqrt(mean**2 + var)
        return (y - 0.5) * mean - np.logaddexp(half, -half)

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        p = expit(eta)
        return p, p * (1.0 - p)

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return np.where(y < 0.0, 0.0, np.where(y < 1.0, expit(-eta), 1.0))

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        return logpdf_polya_gamma(omega, 1.0, 0.0) - _LOG_2

    def log_conditional(self, omega: Any, y: Array, eta: Array, params: Params) -> Array:
        return logpdf_polya_gamma(omega, 1.0, eta)

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Params) -> Joint:
        def log_factor(y: Any, eta: Any, omega: Any, params: Any) -> Any:
            return -_LOG_2 + (y - 0.5) * eta - 0.5 * omega * eta**2

        return [write.polya_gamma("omega", 1.0)], log_factor
