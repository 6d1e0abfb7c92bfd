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
    """An :class:`.AffinePosterior` from the factor of C and its border, of rotated rows.

    The latents of the border are drawn from their posterior, with normal numbers in place of their
    ξ, and the others given these.
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
        self._coefficients = posterior.coefficients
        self.error = posterior.error + prior.scale_error
        self.factor_error = factor.error + prior.scale_error
        self.log_evidence = posterior.log_normalizer
        self.log_volume = -0.5 * factor.log_det

    @cached_property
    def mean(self) -> Array:
        """E[v]."""
        mean = self._prior.whitened_transpose(self._alpha)
        mean[self._prior.border.mask] = self._coefficients
        return mean

    def apply(self, nu: Array) -> Array:
        """See :class:`.AffinePosterior`."""
        xi, eps = nu[..., : self._n_latent], nu[..., self._n_latent :]
        border = self._prior.border.mask
        if self._coefficients.size:
            xi = xi.copy()
            xi[..., border] = self._coefficients + self._factor.back_solve(xi[..., border].T).T
        eta0 = self._rotation.forward(self._prior.whitened_product(xi))
        w = observation_space.matheron_weights(self._factor, self._h, eta0, eps)
        return xi + self._outside(w)

    def _outside(self, w: Array) -> Array:
        """Return Φᵀ w, zero for the latents of the border."""
        found = self._prior.whitened_transpose(self._rotation.back(w))
        found[..., self._prior.border.mask] = 0.0
        return found

    def pull(self, slope: Array) -> Array:
        """See :class:`.DifferentiablePosterior`."""
        border, factor = self._prior.border.mask, self._factor
        outside = slope.copy()
        outside[border] = 0.0
        moved = self._rotation.forward(self._prior.whitened_product(outside))
        zeros, root = np.zeros_like(moved), np.sqrt(factor.lam)
        # −C⁻¹Φ slope, which is zero where λ = 0.
        w = observation_space.matheron_weights(factor, zeros, moved, zeros)
        by_xi = slope + self._prior.whitened_transpose(self._rotation.back(w))
        by_xi[border] = factor.half_solve(by_xi[border])
        by_eps = np.divide(w, root, out=zeros, where=root > 0.0)
        return np.concatenate([by_xi, by_eps])

    def solve(self, rng: np.random.Generator, v: Array) -> Array:
        """See :class:`.AffinePosterior`."""
        nu, border = rng.standard_normal(self.size), self._prior.border.mask
        away = v[border] - self._coefficients
        nu[: self._n_latent][border] = np.tril(self._factor.chol_M).T @ away
        away = v - self.apply(nu)
        away[border] = 0.0
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
        K, H = prior.covariance_and_border
        factor = observation_space.factorize(
            rotation.congruence(K), diagonal, H=rotation.forward(H.T).T, work=self._work
        )
        return AffineByObservations(prior, factor, sites.h, rotation)


class ObservationPosterior(SitePosterior):
    """Posterior by one R × R factorisation; λ may have either sign."""

    space = "observation"
    conditioner = ObservationSpace
    takes_factors = False
    has_cheap_gradient = True

    def _condition(self, work: Array | None, second_work: Array | None) -> None:
        prior, rotation = self.prior, self._rotation
        K, H = prior.covariance_and_border
        signed = self._signed = SignedPosterior(
            rotation.congruence(K),
            rotation.forward(self.merged_h),
            self._diagonal,
            H=rotation.forward(H.T).T,
            work=work,
        )
        self.alpha = rotation.back(signed.alpha)
        self.error = signed.error + prior.scale_error
        centred = rotation.back(signed.mean)
        cov = self._site_cov(second_work)
        self._finish(signed.log_det, centred, cov, signed.log_normalizer)

    def _site_cov(self, work: Array | None) -> Array:
        coupling = self.groups.merged
        if not coupling.rows:
            return self._signed.var(work=work)
        rows = np.arange(coupling.n_rows)
        first = np.concatenate([rows, coupling.first])
        second = np.concatenate([rows, coupling.second])
        return self._signed.cov_at(first, second, self._rotation)

    @classmethod
    def order(cls, model: LatentGaussianModel, groups: RowGroups) -> int:
        return groups.size

    @classmethod
    def multiplications(cls, model: LatentGaussianModel, groups: RowGroups) -> float:
        return float(groups.size) ** 3 / 3.0

    @staticmethod
    def prior_cov(prior: LatentPrior, groups: RowGroups) -> Array:
        coupling = groups.merged
        K, H = prior.covariance_and_border
        pairs = K[coupling.first, coupling.second] + np.vecdot(
            H[coupling.first], H[coupling.second]
        )
        return np.concatenate([np.diagonal(K) + np.vecdot(H, H), pairs])

    @cached_property
    def _border(self) -> dict[int, slice]:
        """Columns of the border, by block."""
        sizes = [self.prior.blocks[i].block.total_size for i in self.prior.border.blocks]
        stops = np.cumsum(sizes).tolist()
        ends = zip(self.prior.border.blocks, sizes, stops, strict=True)
        return {i: slice(stop - size, stop) for i, size, stop in ends}

    def innovation_means(self) -> list[Array]:
        means, blocks = super().innovation_means(), self.prior.blocks
        for i, own in self._border.items():
            means[i] = blocks[i].scale(self._signed.coefficients[own])
        return means

    def weighted_cov(self, index: int) -> Array:
        own = self._border.get(index)
        if own is None:
            return super().weighted_cov(index)
        found = self._signed.weighted_coefficients_cov()[:, own]
        return self._rotation.back(self.prior.blocks[index].scale(found).T).T

    def innovation_cov(self, first: int, second: int) -> Array:
        blocks, border = self.prior.blocks, self._border
        if first in border and second in border:
            cov = self._signed.coefficients_cov()[border[first], border[second]]
            return blocks[first].scale(blocks[second].scale(cov).T).T
        if first in border:
            return self.innovation_cov(second, first).T
        explained = self._cross(first) @ self.weighted_cov(second)
        if first != second:
            return -explained
        return blocks[first].add_cov(-0.5 * (explained + explained.T))

    def innovation_var(self, index: int) -> Array:
        A = self.prior.maps[index]
        if index in self._border:
            return np.diagonal(self.innovation_cov(index, index)).copy()
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
        # A signed Λ has no normal noise: weights are drawn from their own covariance.
        if (self._diagonal < 0.0).any():
            v = self._draw_whitened(rng, size)
        else:
            posterior = AffineByObservations(
                self.prior, self._signed.factor, self.merged_h, self._rotation
            )
            v = posterior.apply(rng.standard_normal((size, posterior.size)))
        return self.prior.split(v)

    def _draw_whitened(self, rng: np.random.Generator, size: int) -> Array:
        Phi, border = self.prior.whitened_design, self.prior.border.mask
        cov = -(Phi.T @ self.response_product(Phi))
        cov[np.diag_indices_from(cov)] += 1.0
        if border.any():
            weighted = self._rotation.back(self._signed.weighted_coefficients_cov().T).T
            cov[:, border] = -(Phi.T @ weighted)
            cov[border, :] = cov[:, border].T
            cov[np.ix_(border, border)] = self._signed.coefficients_cov()
        # The standard deviations of v differ as much as the prior ones of u.
        std = np.sqrt(np.maximum(np.diagonal(cov), 0.0))
        scale = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0.0)
        values, vectors = np.linalg.eigh(scale[:, None] * cov * scale)
        root = std[:, None] * vectors * np.sqrt(np.maximum(values, 0.0))
        mean = Phi.T @ self.alpha
        mean[border] = self._signed.coefficients
        return mean + rng.standard_normal((size, values.size)) @ root.T
