"""Vectors of normal or Student-t observations with a common covariance or scale matrix.

    p(y | η) = N(y | η, Σ), y and η in R^P,    Λ = Σ⁻¹,  h = Σ⁻¹ y,

which needs no auxiliary variable; and, with δ = (y − η)ᵀΣ⁻¹(y − η),

    p(y | η) = St(y | ν, η, Σ),  ω ~ Gamma(shape (ν + P)/2, rate (ν + δ)/2),  Λ = ω Σ⁻¹,  h = Λ y:

y | ω ~ N(η, Σ/ω) with ω ~ Gamma(ν/2, ν/2). The density depends on η through δ alone, and the bound
on E δ = (y − m)ᵀΣ⁻¹(y − m) + tr(Σ⁻¹V).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import gammaln

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.typing import Array, Generator

from .base import Expected, Params, Pattern, Sites
from .contract import MultiLikelihood, Traits
from .pattern import PredictorInput
from .registry import register
from .symmetric_noise import log_gamma_density, random_gamma

_LOG_2PI = np.log(2.0 * np.pi)


@register
class MultivariateNormal(MultiLikelihood):
    """Vectors y of P entries with mean η; entries of Σ are ``params["cov_i_j"]``, i ≥ j."""

    name = "multivariate normal"
    augmentation = "none needed"
    patterns = (
        Pattern(
            "MvNormalRV", inputs=("mu", "cov"), predictors=(PredictorInput("mu", classes=True),)
        ),
    )
    has_auxiliary = False
    traits = Traits(coupled=True)

    def __init__(self, n_predictors: int) -> None:
        self.n_predictors = n_predictors

    def vectors(self, params: Params) -> Array:
        """Return the observations, (P, N)."""
        entries = [params[f"entry_{p}"] for p in range(self.n_predictors)]
        return np.stack(np.broadcast_arrays(*entries))

    def whitener(self, params: Params) -> Array:
        """Return L⁻¹ with Σ = L Lᵀ, (P, P, N), or (P, P) if all observations share Σ."""
        P = self.n_predictors
        pairs = [(i, j) for i in range(P) for j in range(i + 1)]
        lower = np.broadcast_arrays(*(params[f"cov_{i}_{j}"] for i, j in pairs))
        cov = np.empty((*np.shape(lower[0]), P, P))
        for (i, j), entry in zip(pairs, lower, strict=True):
            cov[..., i, j] = cov[..., j, i] = entry
        try:
            return np.moveaxis(np.linalg.inv(np.linalg.cholesky(cov)), (-2, -1), (0, 1))
        except np.linalg.LinAlgError as error:
            raise NotPositiveDefiniteError(
                "the covariance of a multivariate normal observation has no Cholesky factor"
            ) from error

    def squared_norm(self, eta: Array, params: Params) -> tuple[Array, Array]:
        """Return (y − η)ᵀΣ⁻¹(y − η) and log|2πΣ|."""
        y, root = self.vectors(params), self.whitener(params)
        # η may have more axes than an observation.
        error = np.expand_dims(y, tuple(range(1, 1 + eta.ndim - y.ndim))) - eta
        z = np.einsum("pq...,q...->p...", root, error)
        log_det = self.n_predictors * _LOG_2PI - 2.0 * np.log(np.einsum("pp...->p...", root)).sum(0)
        return np.einsum("p...,p...->...", z, z), log_det

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        square, log_det = self.squared_norm(eta, params)
        return -0.5 * (square + log_det)

    def precision(self, params: Params) -> Array:
        """Return Σ⁻¹, (P, P, N)."""
        root, (P, N) = self.whitener(params), self.vectors(params).shape
        precision = np.einsum("rp...,rq...->pq...", root, root)
        return np.broadcast_to(precision.reshape(P, P, -1), (P, P, N))

    def as_vectors(self, params: Params) -> tuple[Array, list[list[Any]], Any] | None:
        P = self.n_predictors
        L: list[list[Any]] = [[0.0] * P for _ in range(P)]
        W: list[list[Any]] = [[0.0] * P for _ in range(P)]
        for i in range(P):
            for j in range(i + 1):
                rest = params[f"cov_{i}_{j}"] - sum(L[i][k] * L[j][k] for k in range(j))
                L[i][j] = np.sqrt(rest) if i == j else rest / L[j][j]
            for j in range(i + 1):
                total = float(i == j) - sum(L[i][k] * W[k][j] for k in range(j, i))
                W[i][j] = total / L[i][i]
        each = range(P)
        lam = [[sum(W[r][p] * W[r][q] for r in each[max(p, q) :]) for q in each] for p in each]
        log_peak = -0.5 * P * _LOG_2PI - sum(np.log(L[p][p]) for p in range(P))
        return self.vectors(params), lam, log_peak

    def expected_log_density(
        self, y: Array, mean: Array, cov: Array, params: Params
    ) -> Expected | None:
        h, lam = self.expected_sites(y, mean, cov, params)
        slope = h - np.einsum("pqn,qn->pn", lam, mean)
        return self.expected_log_bound(y, mean, cov, params), slope, -0.5 * lam

    def draw_auxiliary(
        self, rng: Generator, y: Array, eta: Array, params: Params, group: int
    ) -> Any:
        return None

    def sites(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Sites:
        return self.expected_sites(y, eta, eta, params)

    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        lam = self.precision(params)
        return np.einsum("pqn,qn->pn", lam, self.vectors(params)), lam

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        trace = np.einsum("pqn,pqn->n", self.precision(params), var)
        return self.log_density(y, mean, params) - 0.5 * trace

    def log_base(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Array:
        return self.log_density(y, np.zeros(eta.shape), params)

    def log_conditional(
        self, omega: Any, y: Array, eta: Array, params: Params, group: int
    ) -> Array:
        return np.zeros(eta.shape[1:])


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
        return random_gamma(rng, *self._conditional(eta, params))

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
