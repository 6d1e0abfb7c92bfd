"""Poisson observations with a log link: a density without an augmentation.

    p(y | η) = (c e^η)^y exp(−c e^η) / y!.

With η ~ N(m, v) and M = c exp(m + v/2),

    E[log p(y | η)] = y (m + log c) − M − log y!,    ∂/∂m = y − M,    ∂/∂v = −½ M,
    E[y] = M,    Var[y] = M + M² (e^v − 1).

An exposure that is written as an offset, exp(log c + η), belongs to η, and so does a learned one:
held sites of η + log c are as good for any c, which takes the level of η with it.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from scipy.special import gammaln, pdtr, xlogy

from pymc_augconj.typing import Array

from .base import DensityLikelihood, Expected, Params, Pattern, is_count, refusal
from .registry import register


class Poisson(DensityLikelihood):
    """Counts y ∈ {0, 1, …} of a mean that is a function of η."""

    name = "Poisson"
    discrete = True

    @abstractmethod
    def rate(self, eta: Array, params: Params) -> Array:
        """Return the mean."""

    def check(self, y: Array, params: Params) -> str | None:
        return refusal(y, is_count(y), "a non-negative integer")

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        rate = self.rate(eta, params)
        return rate, rate

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        k = np.floor(y)
        return np.where(k < 0.0, 0.0, pdtr(np.maximum(k, 0.0), self.rate(eta, params)))


@register
class PoissonLog(Poisson):
    """Counts y ∈ {0, 1, …} of mean c e^η; c, the exposure, is a parameter."""

    link = "log"
    patterns = (
        Pattern("PoissonRV", inputs=("mu",), predictor="mu", link="scaled_log", scale="exposure"),
    )

    def rate(self, eta: Array, params: Params) -> Array:
        return params["exposure"] * np.exp(eta)

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        c = params["exposure"]
        # Far from the data e^η overflows, and the density is zero.
        with np.errstate(over="ignore"):
            return y * eta - c * np.exp(eta) + _log_constant(y, c)

    def expected_log_density(self, y: Array, mean: Array, var: Array, params: Params) -> Expected:
        c = params["exposure"]
        with np.errstate(over="ignore"):
            rate = c * np.exp(mean + 0.5 * var)
        return y * mean - rate + _log_constant(y, c), y - rate, -0.5 * rate

    def predictive_moments(self, mean: Array, var: Array, params: Params) -> tuple[Array, Array]:
        rate = params["exposure"] * np.exp(mean + 0.5 * var)
        return rate, rate + rate**2 * np.expm1(var)


# log y! of small counts; and y, c and the constant that was asked for last, as a step asks for it
# many times.
_LOG_FACTORIALS = gammaln(np.arange(1.0, 257.0))
_last = (np.empty(0), np.empty(0), np.empty(0))


def _log_constant(y: Array, c: Array) -> Array:
    global _last
    if not isinstance(y, np.ndarray):
        return xlogy(y, c) - gammaln(y + 1.0)  # registers of a tape, which have no values yet
    known, exposure, constant = _last
    if not (np.array_equal(known, y) and np.array_equal(exposure, c)):
        small = y.size and y.max() < _LOG_FACTORIALS.size
        constant = xlogy(y, c) - (_LOG_FACTORIALS[y.astype(np.intp)] if small else gammaln(y + 1.0))
        _last = y.copy(), np.array(c), constant
    return constant
