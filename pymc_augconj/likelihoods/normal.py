"""Normal and log-normal observations, whose sites are exact without an auxiliary variable.

p(y | η) = N(y | η, σ²),    λ = 1/σ²,  h = y/σ²,    or N(log y | η, σ²)/y, with log y for y.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtr

from pymc_augconj.quadrature.tilted import Tilted
from pymc_augconj.typing import Array, Generator

from .base import Expected, Likelihood, Params, Pattern, Sites, refusal
from .registry import register

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
        self, y: Array, mean: Array, var: Array, params: Params, *, power: float, delta: bool
    ) -> Tilted:
        # The product of two normal densities, which is normal: δ = 0.
        sigma = np.asarray(params["sigma"])
        noise = sigma**2 / power
        total = noise + var
        gain = var / total
        error = y - mean
        # N(y | f, σ²)^η = N(y | f, σ²/η) · (2πσ²)^(−η/2) (2πσ²/η)^½
        log_factor = (1.0 - power) * (_HALF_LOG_2PI + np.log(sigma)) - 0.5 * np.log(power)
        log_Z = log_factor - 0.5 * (error**2 / total + np.log(total)) - _HALF_LOG_2PI
        shift = np.zeros(total.shape) if delta else None
        return Tilted(log_Z, mean + gain * error, gain * noise, delta=shift)

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


@register
class LogNormal(Normal):
    """Positive y, whose logarithm has mean η and standard deviation σ."""

    name = "Log-normal"
    patterns = (Pattern("LogNormalRV", inputs=("mu", "sigma"), predictor="mu"),)

    def check(self, y: Array, params: Params) -> str | None:
        return refusal(y, (y > 0.0) & (y < np.inf), "a positive number")

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        log_y = _log(y)
        return np.where(y > 0.0, super().log_density(log_y, eta, params) - log_y, -np.inf)

    def sites(self, y: Array, omega: Any, params: Params) -> Sites:
        return super().sites(_log(y), omega, params)

    def as_normal(self, y: Array, params: Params) -> tuple[Array, Array]:
        return super().as_normal(_log(y), params)

    def landmarks(self, y: Array, params: Params) -> Array:
        return _log(y)[None]

    def tilted_moments(
        self, y: Array, mean: Array, var: Array, params: Params, *, power: float, delta: bool
    ) -> Tilted:
        log_y = _log(y)
        found = super().tilted_moments(log_y, mean, var, params, power=power, delta=delta)
        return replace(found, log_Z=found.log_Z - power * log_y)

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        var = params["sigma"] ** 2
        mean = np.exp(eta + 0.5 * var)
        return mean, mean**2 * np.expm1(var)

    def predictive_moments(self, mean: Array, var: Array, params: Params) -> tuple[Array, Array]:
        return self.moments(mean, {"sigma": np.sqrt(var + params["sigma"] ** 2)})

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return np.where(y > 0.0, super().cdf(_log(y), eta, params), 0.0)


def _log(y: Array) -> Array:
    """Return log y, and 0 where y is not positive."""
    return np.log(np.where(y > 0.0, y, 1.0))
