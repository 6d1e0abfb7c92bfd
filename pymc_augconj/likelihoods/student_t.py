"""Student-t observations, as normal ones of random precision.

    p(y | η) = St(y | ν, η, σ),    e = y − η,
    ω ~ Gamma(shape (ν + 1)/2, rate (νσ² + e²)/2),    λ = ω,  h = ω y.

That is y | ω ~ N(η, 1/ω) with ω ~ Gamma(ν/2, νσ²/2).

References
----------
Geweke, J. (1993). Bayesian treatment of the independent Student-t linear model. Journal of Applied
Econometrics 8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import betaln, gammaln, stdtr

from pymc_augconj.typing import Array

from .base import Likelihood, Params, Pattern
from .joint import Joint, JointWriter, normal_factor
from .registry import register

__all__ = ["StudentT", "log_gamma_density"]

# Beyond, log Γ((ν + 1)/2) − log Γ(ν/2) has lost the digits that readings are compared by.
_LARGEST_NU = 1e8

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


@register
class StudentT(Likelihood):
    """Real y with location η, scale σ and ν degrees of freedom."""

    name = "Student-t"
    augmentation = "gamma-distributed precision"
    patterns = (Pattern("StudentTRV", inputs=("nu", "mu", "sigma"), predictor="mu"),)

    def check(self, y: Array, params: Params) -> str | None:
        largest = float(np.max(params["nu"]))
        if largest > _LARGEST_NU:
            return (
                f"expected nu up to {_LARGEST_NU:.0e}, found {largest:.6g}, where PyMC's log "
                "density is a difference of numbers too large for double precision; use "
                "pm.Normal, from which this distribution does not differ"
            )
        return super().check(y, params)

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        nu, sigma = params["nu"], params["sigma"]
        # 1/B(ν/2, ½) = Γ((ν + 1)/2) / (Γ(ν/2) √π), without the cancellation at large ν.
        log_norm = -betaln(0.5 * nu, 0.5) - 0.5 * np.log(nu) - np.log(sigma)
        return log_norm - 0.5 * (nu + 1.0) * np.log1p(((y - eta) / sigma) ** 2 / nu)

    def draw_auxiliary(
        self, rng: np.random.Generator, y: Array, eta: Array, params: Params
    ) -> Array:
        shape, rate = _conditional(y, eta, params)
        return rng.standard_gamma(shape, size=rate.shape) / rate

    def sites(self, y: Array, omega: Any, params: Params) -> tuple[Array, Array]:
        return omega * y, omega

    def as_normal_mixture(self, y: Array, params: Params) -> tuple[Array, Array]:
        half_nu = 0.5 * params["nu"]
        return half_nu, half_nu * params["sigma"] ** 2

    def expected_sites(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array]:
        nu, sigma = params["nu"], params["sigma"]
        lam = (nu + 1.0) / (nu * sigma**2 + (y - mean) ** 2 + var)
        return lam * y, lam

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        # The density depends on η through e² alone, and the bound on E[e²] = (y − m)² + v.
        return self.log_density(y, y - np.sqrt((y - mean) ** 2 + var), params)

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        nu, sigma = params["nu"], params["sigma"]
        with np.errstate(divide="ignore"):
            var = np.where(nu > 2.0, sigma**2 * nu / np.maximum(nu - 2.0, 0.0), np.inf)
        return np.where(nu > 1.0, eta, np.nan), np.broadcast_to(var, np.shape(eta))

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return stdtr(params["nu"], (y - eta) / params["sigma"])

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        nu, sigma = params["nu"], params["sigma"]
        log_prior = log_gamma_density(omega, 0.5 * nu, 0.5 * nu * sigma**2)
        return 0.5 * np.log(omega) - _HALF_LOG_2PI - 0.5 * omega * y**2 + log_prior

    def log_conditional(self, omega: Any, y: Array, eta: Array, params: Params) -> Array:
        return log_gamma_density(omega, *_conditional(y, eta, params))

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Params) -> Joint:
        nu, sigma = params["nu"], params["sigma"]
        omega = write.gamma("omega", 0.5 * nu, 0.5 * nu * sigma**2)
        return [omega], normal_factor(write.math)


def _conditional(y: Array, eta: Array, params: Params) -> tuple[Array, Array]:
    """Return the shape and rate of ω | y, η."""
    nu, sigma = params["nu"], params["sigma"]
    return 0.5 * (nu + 1.0), 0.5 * (nu * sigma**2 + (y - eta) ** 2)


def log_gamma_density(x: Array, shape: Array, rate: Array) -> Array:
    """Return the log density of a gamma distribution."""
    return shape * np.log(rate) - gammaln(shape) + (shape - 1.0) * np.log(x) - rate * x
