"""Matérn noise, as normal noise of random precision.

    p(y | η) ∝ x^ν K_ν(x),  x = √(2ν) |e|/ρ,  e = y − η,  ν ∈ {½, 3/2, 5/2},
    ω ~ GIG(−ν, a = 2e², b = ν/ρ²),    λ = 2ω,  h = 2ω y.

That is y | ω ~ N(η, 1/2ω) with ω ~ InvGamma(ν + ½, ν/2ρ²). At e = 0 the conditional is
InvGamma(ν, ν/2ρ²).

References
----------
Galy-Fajou, T., Wenzel, F. & Opper, M. (2020). Automated augmented conjugate inference for
non-conjugate Gaussian process models. AISTATS.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import gammaln

from pymc_augconj.auxiliary.generalized_inverse_gaussian import (
    logpdf_generalized_inverse_gaussian,
    mean_generalized_inverse_gaussian,
    random_generalized_inverse_gaussian,
)
from pymc_augconj.typing import Array

from .base import JointWriter, Params, Pattern
from .registry import register
from .symmetric_noise import NormalMixture, log_gamma_density

_HALF_LOG_PI = 0.5 * np.log(np.pi)


@register
class MaternNoise(NormalMixture):
    """Real y with location η, scale ρ and smoothness ν."""

    name = "Matérn noise"
    augmentation = "generalised inverse Gaussian"
    prefers_held = True
    patterns = (Pattern("MaternNoiseRV", inputs=("nu", "mu", "rho"), predictor="mu"),)
    draw = staticmethod(random_generalized_inverse_gaussian)
    mean = staticmethod(mean_generalized_inverse_gaussian)
    logpdf = staticmethod(logpdf_generalized_inverse_gaussian)

    def log_density_at(self, distance: Array, params: Params) -> Array:
        nu, rho = params["nu"], params["rho"]
        x = np.sqrt(2.0 * nu) * distance / rho
        polynomial = np.where(nu > 1.0, x, 0.0) + np.where(nu > 2.0, x**2 / 3.0, 0.0)
        # ∫ x^ν K_ν(x) dx over (0, ∞) is 2^{ν−1} √π Γ(ν + ½); at x = 0 the integrand 2^{ν−1} Γ(ν).
        log_constant = gammaln(nu) - gammaln(nu + 0.5) + 0.5 * np.log(0.5 * nu) - _HALF_LOG_PI
        return log_constant - np.log(rho) + np.log1p(polynomial) - x

    def precision(self, omega: Any, params: Params) -> Array:
        return 2.0 * omega

    def conditional(self, square: Array, params: Params) -> tuple[Any, ...]:
        nu, rho = params["nu"], params["rho"]
        return nu, 2.0 * square, nu / rho**2

    def log_prior(self, omega: Any, params: Params) -> Array:
        nu, rho = params["nu"], params["rho"]
        return log_gamma_density(1.0 / omega, nu + 0.5, 0.5 * nu / rho**2) - 2.0 * np.log(omega)

    def write_prior(self, write: JointWriter, params: Params) -> Any:
        nu, rho = params["nu"], params["rho"]
        return write.inverse_gamma("omega", nu + 0.5, 0.5 * nu / rho**2)

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        # The variance is E[1/2ω] under the prior of ω.
        nu, rho = params["nu"], params["rho"]
        return eta, np.broadcast_to(rho**2 * (2.0 * nu + 1.0) / (2.0 * nu), np.shape(eta))

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        nu, e = params["nu"], y - eta
        x = np.sqrt(2.0 * nu) * np.abs(e) / params["rho"]
        # ∫ₓ (1 + a t + b t²) e^{−t} dt, relative to its value at x = 0.
        a, b = np.where(nu > 1.0, 1.0, 0.0), np.where(nu > 2.0, 1.0 / 3.0, 0.0)
        tail = 1.0 + a * (x + 1.0) + b * (x**2 + 2.0 * x + 2.0)
        tail = 0.5 * np.exp(-x) * tail / (1.0 + a + 2.0 * b)
        return np.where(e < 0.0, tail, 1.0 - tail)
