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

import numpy as np
from scipy.special import betaln, stdtr

from pymc_augconj.typing import Array

from .base import Params, Pattern
from .registry import register
from .symmetric_noise import GammaMixture

__all__ = ["StudentT"]

# Beyond, log Γ((ν + 1)/2) − log Γ(ν/2) has lost the digits that readings are compared by.
_LARGEST_NU = 1e8


@register
class StudentT(GammaMixture):
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

    def log_density_at(self, distance: Array, params: Params) -> Array:
        nu, sigma = params["nu"], params["sigma"]
        # 1/B(ν/2, ½) = Γ((ν + 1)/2) / (Γ(ν/2) √π), without the cancellation at large ν.
        log_norm = -betaln(0.5 * nu, 0.5) - 0.5 * np.log(nu) - np.log(sigma)
        return log_norm - 0.5 * (nu + 1.0) * np.log1p((distance / sigma) ** 2 / nu)

    def gamma_prior(self, params: Params) -> tuple[Array, Array]:
        half_nu = 0.5 * params["nu"]
        return half_nu, half_nu * params["sigma"] ** 2

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        nu, sigma = params["nu"], params["sigma"]
        with np.errstate(divide="ignore"):
            var = np.where(nu > 2.0, sigma**2 * nu / np.maximum(nu - 2.0, 0.0), np.inf)
        return np.where(nu > 1.0, eta, np.nan), np.broadcast_to(var, np.shape(eta))

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return stdtr(params["nu"], (y - eta) / params["sigma"])
