"""Vectors of Student-t observations, as normal ones of random precision.

    p(y | η) = St(y | ν, η, Σ), y and η in R^P,    δ = (y − η)ᵀΣ⁻¹(y − η),
    ω ~ Gamma(shape (ν + P)/2, rate (ν + δ)/2),    Λ = ω Σ⁻¹,  h = Λ y.

That is y | ω ~ N(η, Σ/ω) with ω ~ Gamma(ν/2, ν/2). The density depends on η through δ alone, and
the bound on E δ = (y − m)ᵀΣ⁻¹(y − m) + tr(Σ⁻¹V).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.special import gammaln

from pymc_augconj.typing import Array

from .base import Params, Pattern, PredictorInput, Sites
from .multivariate_normal import MultivariateNormal
from .registry import register
from .symmetric_noise import log_gamma_density

__all__ = ["MultivariateStudentT"]


@register
class MultivariateStudentT(MultivariateNormal):
    """Vectors y of P entries with location η, ν degrees of freedom and the scale matrix Σ."""

    name = "multivariate Student-t"
    augmentation = "gamma-distributed precision"
    patterns = (
        Pattern(
            "MvStudentTRV",
            inputs=("nu", "mu", "cov"),
            predictors=(PredictorInput("mu", classes=True),),
        ),
    )
    has_auxiliary = True

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        return self._log_density(params, *self.squared_norm(eta, params))

    def expected_log_density(self, y: Array, mean: Array, cov: Array, params: Params) -> None:
        return None

    def draw_auxiliary(
        self, rng: Generator, y: Array, eta: Array, params: Params, group: int
    ) -> Array:
        shape, rate = self._conditional(eta, params)
        return rng.standard_gamma(shape, size=rate.shape) / rate

    def sites(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Sites:
        h, lam = super().expected_sites(y, eta, eta, params)
        return omega * h, omega * lam

    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        h, lam = super().expected_sites(y, mean, var, params)
        square = self.squared_norm(mean, params)[0] + np.einsum("pqn,pqn->n", lam, var)
        omega = (params["nu"] + self.n_predictors) / (params["nu"] + square)
        return omega * h, omega * lam

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        square, log_det = self.squared_norm(mean, params)
        square = square + np.einsum("pqn,pqn->n", self.precision(params), var)
        return self._log_density(params, square, log_det)

    def log_base(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Array:
        square, log_det = self.squared_norm(np.zeros(eta.shape), params)
        log_normal = 0.5 * (self.n_predictors * np.log(omega) - omega * square - log_det)
        return log_normal + log_gamma_density(omega, 0.5 * params["nu"], 0.5 * params["nu"])

    def log_conditional(
        self, omega: Any, y: Array, eta: Array, params: Params, group: int
    ) -> Array:
        return log_gamma_density(omega, *self._conditional(eta, params))

    def _log_density(self, params: Params, square: Array, log_det: Array) -> Array:
        nu, P = params["nu"], self.n_predictors
        log_ratio = gammaln(0.5 * (nu + P)) - gammaln(0.5 * nu) - 0.5 * P * np.log(0.5 * nu)
        return log_ratio - 0.5 * log_det - 0.5 * (nu + P) * np.log1p(square / nu)

    def _conditional(self, eta: Array, params: Params) -> tuple[Array, Array]:
        """Return the shape and rate of ω | y, η."""
        square, _ = self.squared_norm(eta, params)
        return 0.5 * (params["nu"] + self.n_predictors), 0.5 * (params["nu"] + square)
