"""Cauchy observations, as normal ones of random precision: Student-t with ν = 1.

    p(y | η) = β / (π (β² + e²)),    e = y − η,
    ω ~ Exponential(rate (β² + e²)/2),    λ = ω,  h = ω y.

That is y | ω ~ N(η, 1/ω) with ω ~ Gamma(½, β²/2).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_augconj.typing import Array

from .base import Likelihood, Params, Pattern
from .joint import Joint, JointWriter, normal_factor
from .registry import register

__all__ = ["Cauchy"]

_LOG_PI = np.log(np.pi)
_LOG_2PI = np.log(2.0 * np.pi)


@register
class Cauchy(Likelihood):
    """Real y with location η and half-width β."""

    name = "Cauchy"
    augmentation = "exponentially distributed precision"
    patterns = (Pattern("CauchyRV", inputs=("alpha", "beta"), predictor="alpha"),)

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        beta = params["beta"]
        return -_LOG_PI - np.log(beta) - np.log1p(((y - eta) / beta) ** 2)

    def draw_auxiliary(
        self, rng: np.random.Generator, y: Array, eta: Array, params: Params
    ) -> Array:
        rate = 0.5 * (params["beta"] ** 2 + (y - eta) ** 2)
        return rng.standard_exponential(rate.shape) / rate

    def sites(self, y: Array, omega: Any, params: Params) -> tuple[Array, Array]:
        return omega * y, omega

    def expected_sites(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array]:
        lam = 2.0 / (params["beta"] ** 2 + (y - mean) ** 2 + var)
        return lam * y, lam

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        # The density depends on η through e² alone, and the bound on E[e²] = (y − m)² + v.
        return self.log_density(y, y - np.sqrt((y - mean) ** 2 + var), params)

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        return np.full_like(eta, np.nan), np.full_like(eta, np.nan)

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return 0.5 + np.arctan((y - eta) / params["beta"]) / np.pi

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        # √(ω/2π) exp(−ωy²/2) times the Gamma(½, β²/2) density: the powers of ω cancel.
        beta = params["beta"]
        return np.log(beta) - _LOG_2PI - 0.5 * omega * (y**2 + beta**2)

    def log_conditional(self, omega: Any, y: Array, eta: Array, params: Params) -> Array:
        rate = 0.5 * (params["beta"] ** 2 + (y - eta) ** 2)
        return np.log(rate) - rate * omega

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Params) -> Joint:
        omega = write.gamma("omega", 0.5, 0.5 * params["beta"] ** 2)
        return [omega], normal_factor(write.math)
