"""Conditioning latents on their sites through the R × R covariance of distinct predictors."""

from __future__ import annotations

from functools import cached_property, partial

import numpy as np

from pymc_augconj.gaussian import observation_space
from pymc_augconj.gaussian.observation_space import ObservationSpaceFactor
from pymc_augconj.gaussian.signed_space import SignedPosterior
from pymc_augconj.gaussian.sites import Coupling, Rotation
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.typing import Array

from .affine import Conditioner, FactorMemory, WhitenedCoordinates
from .joint import LatentPrior
from .posterior import SitePosterior
from .rows import RowGroups, SiteSum

__all__ = ["ObservationPosterior", "ObservationSpace"]


class AffineByObservations(WhitenedCoordinates):
    """An :class:`.AffinePosterior` from the factor of C.

    ``rotated`` is the posterior of the rotated rows.
    """

    def __init__(
        self, prior: LatentPrior, factor: ObservationSpaceFactor, h: Array, rotation: Rotation
    ) -> None:
        self._prior, self._factor, self._rotation = prior, factor, rotation
        self._h = rotation.forward(h)
        self._n_latent = sum(b.block.total_size for b in prior.blocks)
        self.size = self._n_latent + h.size
        posterior = observation_space.condition(factor, np.zeros_like(h), self._h)
        self.rotated, self._alpha = posterior, rotation.back(posterior.alpha)
        self.error = posterior.error + prior.scale_error
        self.factor_error = factor.error + prior.scale_error
        self.log_evidence = posterior.log_normalizer
        self.log_volume = -0.5 * factor.log_det

    @cached_property
    def mean(self) -> Array:
        """E[v]."""
        return self._prior.whitened_transpose(self._alpha)

    def apply(self, nu: Array) -> Array:
        """See :class:`.AffinePosterior`."""
        xi, eps = nu[..., : self._n_latent], nu[..., self._n_latent :]
        eta0 = self._rotation.forward(self._prior.whitened_product(xi))
        w = observation_space.matheron_weights(self._factor, self._h, eta0, eps)
        return xi + self._prior.whitened_transpose(self._rotation.back(w))

    def pull(self, slope: Array) -> Array:
        """See :class:`.DifferentiablePosterior`."""
        moved = self._rotation.forward(self._prior.whitened_product(slope))
        zeros, root = np.zeros_like(moved), np.sqrt(self._factor.lam)
        # −C⁻¹Φ slope, which is zero where λ = 0.
        w = observation_space.matheron_weights(self._factor, zeros, moved, zeros)
        by_xi = slope + self._prior.whitened_transpose(self._rotation.back(w))
        by_eps = np.divide(w, root, out=zeros, where=root > 0.0)
        return np.concatenate([by_xi, by_eps])

    def solve(self, rng: np.random.Generator, v: Array) -> Array:
        """See :class:`.AffinePosterior`."""
        nu = rng.standard_normal(self.size)
        away = v - self.apply(nu)
        nu[: self._n_latent] += away
        moved = self._rotation.forward(self._prior.whitened_product(away))
        nu[self._n_latent :] -= np.sqrt(self._factor.lam) * moved
        return nu


class ObservationSpace(Conditioner):
    """A :class:`.Conditioner`: one R × R factorisation, R the number of distinct predictors."""

    differentiable = True

    def __init__(self, size: int, coupling: Coupling) -> None:
        self._work = np.empty((size, size), order="F")
        self._coupling = coupling
        self._memory = FactorMemory[AffineByObservations]()

    def posterior(self, prior: LatentPrior, sites: SiteSum) -> AffineByObservations:
        """See :class:`.Conditioner`."""
        return self._memory.get(prior, sites, partial(self._condition, prior, sites))

    def _condition(self, prior: LatentPrior, sites: SiteSum) -> AffineByObservations:
        diagonal, rotation = self._coupling.diagonalize(sites.lam)
        C = rotation.congruence(prior.predictor_cov)
        factor = observation_space.factorize(C, diagonal, work=self._work)
        return AffineByObservations(prior, factor, sites.h, rotation)


class ObservationPosterior(SitePosterior):
    """Posterior by one R × R factorisation; λ may have either sign."""

    space = "observation"
    conditioner = ObservationSpace
    takes_factors = False
    has_cheap_gradient = True

    def _condition(self, work: Array | None, second_work: Array | None) -> None:
        prior, rotation = self.prior, self._rotation
        signed = self._signed = SignedPosterior(
            rotation.congruence(prior.predictor_cov),
            rotation.forward(self.merged_h),
            self._diagonal,
            work=work,
        )
        self.alpha = rotation.back(signed.alpha)
        self.error = signed.error + prior.scale_error
        centred = rotation.back(signed.mean)
        cov = self._site_cov(prior.predictor_cov, second_work)
        self._finish(signed.log_det, centred, cov, signed.log_normalizer)

    def _site_cov(self, C: Array, work: Array | None) -> Array:
        coupling = self.groups.merged
        if not coupling.rows:
            return self._signed.var(work=work)
        rows = np.arange(coupling.n_rows)
        first = np.concatenate([rows, coupling.first])
        second = np.concatenate([rows, coupling.second])
        return C[first, second] - self._signed.explained_at(
            self._rotation.forward(C), first, second
        )

    @classmethod
    def order(cls, model: LatentGaussianModel, groups: RowGroups) -> int:
        return groups.size

    @classmethod
    def multiplications(cls, model: LatentGaussianModel, groups: RowGroups) -> float:
        return float(groups.size) ** 3 / 3.0

    @staticmethod
    def prior_cov(prior: LatentPrior, groups: RowGroups) -> Array:
        coupling = groups.merged
        C = prior.predictor_cov
        return np.concatenate([np.diagonal(C), C[coupling.first, coupling.second]])

    def innovation_cov(self, first: int, second: int) -> Array:
        cross = [self._cross(i) for i in (first, second)]
        explained = cross[0] @ self.response_product(cross[1].T)
        if first == second:
            explained = -0.5 * (explained + explained.T)
            return self.prior.blocks[first].add_cov(explained)
        return -explained

    def innovation_var(self, index: int) -> Array:
        A = self.prior.maps[index]
        if (
            len(self.prior.maps) == 1
            and isinstance(A, RowSelection)
            and A.coef is None
            and np.unique(A.index).size == A.size
        ):
            # Each entry is a predictor, whose variance is free of cancellation.
            var = np.empty(A.size)
            var[A.index] = self._centred_var
            return var
        return self.prior.blocks[index].var() - self.explained_var(self._cross(index))

    def explained(self, cross: Array) -> Array:
        return self._signed.explained(self._rotation.forward(cross))

    def explained_var(self, cross: Array) -> Array:
        return self._signed.explained_var(self._rotation.forward(cross))

    @cached_property
    def response(self) -> Array:
        """R = (C + Λ⁻¹)⁻¹, shape (R, R)."""
        return self._rotation.congruence_back(self._signed.response())

    def response_product(self, X: Array) -> Array:
        return self.response @ X

    def _explained_through(self, A: LinearMap) -> Array:
        if isinstance(A, RowSelection):
            return A.congruence(self.response)
        return super()._explained_through(A)

    def _cross(self, index: int) -> Array:
        """Return Cov(u_b, η′) = K_b A_bᵀ, shape (total_size, R)."""
        return self.prior.blocks[index].cross_cov(self.prior.maps[index])

    def draw(self, rng: np.random.Generator, size: int) -> list[Array]:
        # v = ξ + Sᵀ Aᵀ w with w = (I + ΛC)⁻¹ (h − Λη₀ − Λ^½ ε) (Matheron); with R and α it is
        # v = ξ + Sᵀ Aᵀ (α − R (η₀ + ε′)), ε′ ~ N(0, Λ⁻¹), which has no form for λ ≤ 0: a signed
        # Λ takes the weights' own covariance I − Sᵀ Aᵀ R A S instead.
        if (self._diagonal <= 0.0).any():
            return self._draw_whitened(rng, size)
        prior = self.prior
        xi = [rng.standard_normal((size, b.block.total_size)) for b in prior.blocks]
        noise = rng.standard_normal((size, self.merged_h.size)) / np.sqrt(self._diagonal)
        eta0 = self._rotation.back(noise)
        for b, A, x in zip(prior.blocks, prior.maps, xi, strict=True):
            eta0 += A.apply_rows(b.scale(x))
        weights = self.alpha - eta0 @ self.response
        return [
            x + b.scale_transpose(A.transpose_rows(weights))
            for b, A, x in zip(prior.blocks, prior.maps, xi, strict=True)
        ]

    def _draw_whitened(self, rng: np.random.Generator, size: int) -> list[Array]:
        prior = self.prior
        Phi = prior.whitened_design
        cov = -(Phi.T @ self.response_product(Phi))
        cov[np.diag_indices_from(cov)] += 1.0
        values, vectors = np.linalg.eigh(cov)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        v = Phi.T @ self.alpha + rng.standard_normal((size, values.size)) @ root.T
        sizes = np.cumsum([b.block.total_size for b in prior.blocks])[:-1]
        return np.split(v, sizes, axis=1)
