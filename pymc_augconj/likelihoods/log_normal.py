"""Log-normal observations: log y is normal, so that sites are exact without an auxiliary variable.

p(y | η) = N(log y | η, σ²) / y,    λ = 1/σ²,  h = log y / σ².
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_augconj.quadrature.tilted import Tilted
from pymc_augconj.typing import Array

from .base import Likelihood, Params, Pattern, refusal
from .normal import Normal
from .registry import register

__all__ = ["LogNormal"]

_NORMAL = Normal()


@register
class LogNormal(Likelihood):
    """Positive y, whose logarithm has mean η and standard deviation σ."""

    name = "Log-normal"
    augmentation = "none needed"
    patterns = (Pattern("LogNormalRV", inputs=("mu", "sigma"), predictor="mu"),)
    has_auxiliary = False

    def check(self, y: Array, params: Params) -> str | None:
        return refusal(y, (y > 0.0) & (y < np.inf), "a positive number")

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        log_y = _log(y)
        density = _NORMAL.log_density(log_y, eta, params) - log_y
        return np.where(y > 0.0, density, -np.inf)

    def draw_auxiliary(
        self, rng: np.random.Generator, y: Array, eta: Array, params: Params
    ) -> None:
        return None

    def sites(self, y: Array, omega: Any, params: Params) -> tuple[Array, Array]:
        return _NORMAL.sites(_log(y), omega, params)

    def as_normal(self, y: Array, params: Params) -> tuple[Array, Array]:
        return _NORMAL.as_normal(_log(y), params)

    def expected_sites(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array]:
        return self.sites(y, None, params)

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        return _NORMAL.expected_log_bound(_log(y), mean, var, params) - _log(y)

    def expected_log_density(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array, Array]:
        value, d_mean, d_var = _NORMAL.expected_log_density(_log(y), mean, var, params)
        return value - _log(y), d_mean, d_var

    def landmarks(self, y: Array, params: Params) -> Array:
        return _log(y)[None]

    def tilted_moments(
        self, y: Array, cavity_mean: Array, cavity_var: Array, params: Params, **asked: Any
    ) -> Tilted:
        log_y = _log(y)
        found = _NORMAL.tilted_moments(log_y, cavity_mean, cavity_var, params, **asked)
        found.log_Z[...] -= asked.get("power", 1.0) * log_y
        return found

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        var = params["sigma"] ** 2
        mean = np.exp(eta + 0.5 * var)
        return mean, mean**2 * np.expm1(var)

    def predictive_moments(self, mean: Array, var: Array, params: Params) -> tuple[Array, Array]:
        return self.moments(mean, {"sigma": np.sqrt(var + params["sigma"] ** 2)})

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return np.where(y > 0.0, _NORMAL.cdf(_log(y), eta, params), 0.0)

    def log_predictive(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        return self.log_density(y, mean, {"sigma": np.sqrt(var + params["sigma"] ** 2)})

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        return self.log_density(y, np.zeros(np.shape(y)), params)

    def log_conditional(self, omega: Any, y: Array, eta: Array, params: Params) -> Array:
        return np.zeros_like(y)


def _log(y: Array) -> Array:
    """Return log y, and 0 where y is not positive."""
    return np.log(np.where(y > 0.0, y, 1.0))
