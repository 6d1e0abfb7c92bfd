"""Poisson observations with a log link: a density without an augmentation.

    p(y | η) = (c e^η)^y exp(−c e^η) / y!.

With η ~ N(m, v) and M = c exp(m + v/2),

    E[log p(y | η)] = y (m + log c) − M − log y!,    ∂/∂m = y − M,    ∂/∂v = −½ M,
    E[y] = M,    Var[y] = M + M² (e^v − 1).

An exposure that is written as an offset, exp(log c + η), belongs to η.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
from scipy.special import gammaln, pdtr, xlogy

from pymc_augconj.typing import Array

from .base import DensityLikelihood, Expected, Params, Pattern, is_count, refusal
from .registry import register

__all__ = ["PoissonLog"]


@register
class PoissonLog(DensityLikelihood):
    """Counts y ∈ {0, 1, …} of mean c e^η; c, the exposure, is a parameter."""

    name = "Poisson"
    link = "log"
    discrete = True
    levels = MappingProxyType({"exposure": 0})
    patterns = (
        Pattern("PoissonRV", inputs=("mu",), predictor="mu", link="scaled_log", scale="exposure"),
    )

    def check(self, y: Array, params: Params) -> str | None:
        return refusal(y, is_count(y), "a non-negative integer")

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        c = params["exposure"]
        # Far from the data e^η overflows, and the density is nothing.
        with np.errstate(over="ignore"):
            return y * eta - c * np.exp(eta) + _log_constant(y, c)

    def expected_log_density(self, y: Array, mean: Array, var: Array, params: Params) -> Expected:
        c = params["exposure"]
        with np.errstate(over="ignore"):
            rate = c * np.exp(mean + 0.5 * var)
        return y * mean - rate + _log_constant(y, c), y - rate, -0.5 * rate

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        rate = params["exposure"] * np.exp(eta)
        return rate, rate

    def predictive_moments(self, mean: Array, var: Array, params: Params) -> tuple[Array, Array]:
        rate = params["exposure"] * np.exp(mean + 0.5 * var)
        return rate, rate + rate**2 * np.expm1(var)

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        k = np.floor(y)
        rate = params["exposure"] * np.exp(eta)
        return np.where(k < 0.0, 0.0, pdtr(np.maximum(k, 0.0), rate))


def _log_constant(y: Array, c: Array) -> Array:
    # Counts are few beside observations: a table takes a tenth of the time.
    most = int(y.max(initial=0.0))
    of_y = gammaln(np.arange(most + 1) + 1.0)[y.astype(int)] if most < y.size else gammaln(y + 1.0)
    is_one = np.ndim(c) == 0 and c == 1.0
    return -of_y if is_one else xlogy(y, c) - of_y
