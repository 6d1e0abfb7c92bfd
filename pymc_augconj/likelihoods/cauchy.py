"""Cauchy observations, as normal ones of random precision: Student-t with ν = 1.

    p(y | η) = β / (π (β² + e²)),    e = y − η,
    ω ~ Exponential(rate (β² + e²)/2),    λ = ω,  h = ω y.

That is y | ω ~ N(η, 1/ω) with ω ~ Gamma(½, β²/2).
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.typing import Array

from .base import Params, Pattern
from .registry import register
from .symmetric_noise import GammaMixture

__all__ = ["Cauchy"]

_LOG_PI = np.log(np.pi)


@register
class Cauchy(GammaMixture):
    """Real y with location η and half-width β."""

    name = "Cauchy"
    augmentation = "exponentially distributed precision"
    patterns = (Pattern("CauchyRV", inputs=("alpha", "beta"), predictor="alpha"),)

    def log_density_at(self, distance: Array, params: Params) -> Array:
        beta = params["beta"]
        return -_LOG_PI - np.log(beta) - np.log1p((distance / beta) ** 2)

    def gamma_prior(self, params: Params) -> tuple[float, Array]:
        return 0.5, 0.5 * params["beta"] ** 2

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        return np.full_like(eta, np.nan), np.full_like(eta, np.nan)

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return 0.5 + np.arctan((y - eta) / params["beta"]) / np.pi
