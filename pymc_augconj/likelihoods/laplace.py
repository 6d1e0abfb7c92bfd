"""Laplace observations, as normal ones of random variance.

    p(y | η) = exp(−|e|/b) / 2b,    e = y − η,
    ω ~ InverseGaussian(mean 1/(b |e|), shape 1/b²),    λ = ω,  h = ω y.

That is y | ω ~ N(η, 1/ω) with 1/ω ~ Exponential(rate 1/2b²). At e = 0 the mean is infinite, and
ω = 1/(b² χ²₁).

References
----------
Park, T. & Casella, G. (2008). The Bayesian lasso. Journal of the American Statistical
Association 103.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_augconj.auxiliary.inverse_gaussian import logpdf_inverse_gaussian, random_inverse_gaussian
from pymc_augconj.typing import Array

from .base import Likelihood, Params, Pattern
from .folded_normal import folded_normal
from .joint import Joint, JointWriter, normal_factor
from .registry import register

__all__ = ["Laplace"]

_LOG_2 = np.log(2.0)
_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


@register
class Laplace(Likelihood):
    """Real y with median η and mean absolute deviation b."""

    name = "Laplace"
    augmentation = "inverse Gaussian precision"
    patterns = (Pattern("LaplaceRV", inputs=("mu", "b"), predictor="mu"),)

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        b = params["b"]
        return -np.abs(y - eta) / b - np.log(b) - _LOG_2

    def draw_auxiliary(
        self, rng: np.random.Generator, y: Array, eta: Array, params: Params
    ) -> Array:
        return random_inverse_gaussian(rng, _mean(np.abs(y - eta), params), params["b"] ** -2.0)

    def sites(self, y: Array, omega: Any, params: Params) -> tuple[Array, Array]:
        return omega * y, omega

    def expected_sites(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array]:
        lam = _mean(np.sqrt((y - mean) ** 2 + var), params)
        return lam * y, lam

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        return -np.sqrt((y - mean) ** 2 + var) / params["b"] - np.log(params["b"]) - _LOG_2

    def expected_log_density(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array, Array]:
        b = params["b"]
        distance, d_mean, d_var = folded_normal(y - mean, var)
        return -distance / b - np.log(b) - _LOG_2, d_mean / b, -d_var / b

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        return eta, np.broadcast_to(2.0 * params["b"] ** 2, np.shape(eta))

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        e = (y - eta) / params["b"]
        tail = 0.5 * np.exp(-np.abs(e))
        return np.where(e < 0.0, tail, 1.0 - tail)

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        b = params["b"]
        log_normal = 0.5 * np.log(omega) - _HALF_LOG_2PI - 0.5 * omega * y**2
        log_prior = -_LOG_2 - 2.0 * np.log(b * omega) - 0.5 / (b**2 * omega)
        return log_normal + log_prior

    def log_conditional(self, omega: Any, y: Array, eta: Array, params: Params) -> Array:
        return logpdf_inverse_gaussian(omega, _mean(np.abs(y - eta), params), params["b"] ** -2.0)

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Params) -> Joint:
        omega = write.inverse_gamma("omega", 1.0, 0.5 / params["b"] ** 2)
        return [omega], normal_factor(write.math)


def _mean(distance: Array, params: Params) -> Array:
    # Infinite, as it should be, at a distance of zero.
    with np.errstate(divide="ignore", over="ignore"):
        return 1.0 / (params["b"] * distance)
