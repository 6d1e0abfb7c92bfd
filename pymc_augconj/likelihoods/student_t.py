"""Student-t and Cauchy observations, as normal ones of random precision.

    p(y | η) = St(y | ν, η, σ),    e = y − η,
    ω ~ Gamma(shape (ν + 1)/2, rate (νσ² + e²)/2),    λ = ω,  h = ω y.

That is y | ω ~ N(η, 1/ω) with ω ~ Gamma(ν/2, νσ²/2). The Cauchy distribution has ν = 1, σ = β.

References
----------
Geweke, J. (1993). Bayesian treatment of the independent Student-t linear model. Journal of Applied
Econometrics 8.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from scipy.special import betaln, stdtr

from pymc_augconj.typing import Array

from .base import JointWriter, Params, Pattern
from .registry import register
from .symmetric_noise import NormalMixture, log_gamma_density, random_gamma

_LOG_PI = np.log(np.pi)
# Beyond, log Γ((ν + 1)/2) − log Γ(ν/2) has too few digits for a comparison with PyMC's density.
_LARGEST_NU = 1e8


class GammaMixture(NormalMixture):
    """ω ~ Gamma(a, r): Student-t noise."""

    draw = staticmethod(random_gamma)
    mean = staticmethod(np.divide)
    logpdf = staticmethod(log_gamma_density)

    @abstractmethod
    def gamma_prior(self, params: Params) -> tuple[Array | float, Array]:
        """Return a and r."""

    def as_normal_mixture(self, y: Array, params: Params) -> tuple[Any, Any]:
        return self.gamma_prior(params)

    def conditional(self, square: Array, params: Params) -> tuple[Any, ...]:
        shape, rate = self.gamma_prior(params)
        return shape + 0.5, rate + 0.5 * square

    def log_prior(self, omega: Any, params: Params) -> Array:
        return log_gamma_density(omega, *self.gamma_prior(params))

    def write_prior(self, write: JointWriter, params: Params) -> Any:
        return write.gamma("omega", *self.gamma_prior(params))


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
