"""Log-normal observations: log y is normal, so that sites are exact without an auxiliary variable.

p(y | η) = N(log y | η, σ²) / y,    λ = 1/σ²,  h = log y / σ².
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_augconj.quadrature.tilted import Tilted
from pymc_augconj.typing import Array

from .base import Params, Pattern, Sites, refusal
from .normal import Normal
from .registry import register

__all__ = ["LogNormal"]


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
        self, y: Array, cavity_mean: Array, cavity_var: Array, params: Params, **asked: Any
    ) -> Tilted:
        log_y = _log(y)
        found = super().tilted_moments(log_y, cavity_mean, cavity_var, params, **asked)
        found.log_Z[...] -= asked.get("power", 1.0) * log_y
        return found

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
