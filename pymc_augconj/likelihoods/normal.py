"""Normal observations, whose sites are exact without an auxiliary variable.

p(y | η) = N(y | η, σ²),    λ = 1/σ²,  h = y/σ².
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.special import ndtr

from pymc_augconj.quadrature.tilted import Tilted
from pymc_augconj.typing import Array

from .base import Expected, Likelihood, Params, Pattern, Sites
from .registry import register

__all__ = ["Normal"]

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


@register
class Normal(Likelihood):
    """Real y with mean η and standard deviation σ."""

    name = "Normal"
    augmentation = "none needed"
    patterns = (Pattern("NormalRV", inputs=("mu", "sigma"), predictor="mu"),)
    has_auxiliary = False

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        sigma = params["sigma"]
        return -0.5 * ((y - eta) / sigma) ** 2 - np.log(sigma) - _HALF_LOG_2PI

    def draw_auxiliary(self, rng: Generator, y: Array, eta: Array, params: Params) -> None:
        return None

    def sites(self, y: Array, omega: Any, params: Params) -> Sites:
        lam = np.ones_like(y) / params["sigma"] ** 2
        return lam * y, lam

    def as_normal(self, y: Array, params: Params) -> tuple[Array, Array]:
        return y, 1.0 / params["sigma"] ** 2

    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        return self.sites(y, None, params)

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        return self.log_density(y, mean, params) - 0.5 * var / params["sigma"] ** 2

    def expected_log_density(self, y: Array, mean: Array, var: Array, params: Params) -> Expected:
        h, lam = self.sites(y, None, params)
        return self.expected_log_bound(y, mean, var, params), h - lam * mean, -0.5 * lam

    def tilted_moments(
        self,
        y: Array,
        cavity_mean: Array,
        cavity_var: Array,
        params: Params,
        *,
        power: float = 1.0,
        delta: bool = False,
    ) -> Tilted:
        # The product of two normal densities, which is normal: δ = 0.
        sigma = np.asarray(params["sigma"])
        noise = sigma**2 / power
        total = noise + cavity_var
        gain = cavity_var / total
        error = y - cavity_mean
        # N(y | f, σ²)^η = N(y | f, σ²/η) · (2πσ²)^(−η/2) (2πσ²/η)^½
        log_factor = (1.0 - power) * (_HALF_LOG_2PI + np.log(sigma)) - 0.5 * np.log(power)
        log_Z = log_factor - 0.5 * (error**2 / total + np.log(total)) - _HALF_LOG_2PI
        mean = cavity_mean + gain * error
        return Tilted(log_Z, mean, gain * noise, delta=np.zeros(mean.shape) if delta else None)

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        return eta, np.broadcast_to(params["sigma"] ** 2, np.shape(eta))

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return ndtr((y - eta) / params["sigma"])

    def log_predictive(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        return self.log_density(y, mean, {"sigma": np.sqrt(var + params["sigma"] ** 2)})

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        return self.log_density(y, np.zeros(np.shape(y)), params)

    def log_conditional(self, omega: Any, y: Array, eta: Array, params: Params) -> Array:
        return np.zeros_like(y)
