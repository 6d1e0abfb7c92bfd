"""Conditioning latents on their sites through the R × R covariance of distinct predictors.

ν = (ξ, ε) has D + R entries, R the number of merged rows. By Matheron's rule, with C = ΦΦᵀ + Λ⁻¹,

    v = ξ + ΦᵀC⁻¹(Λ⁻¹h − Φξ − Λ^−½ ε) = M⁻¹Φᵀh + G ν,        G = M⁻¹ [I, −ΦᵀΛ^½].

Many ν give the same v. As GGᵀ = M⁻¹ and Gᵀ M = [I; −Λ^½Φ], a draw from ν | v is

    ν = ν* + [I; −Λ^½Φ] (v − T(ν*)),        ν* ~ N(0, I),

so that the joint distribution of ν and v is unchanged. The latents of the border have normal
numbers of their posterior in place of their ξ, and the others are drawn given these. A Λ with
negative entries has no normal noise: then G is a root of M⁻¹, and ν has D entries.

References
----------
Wilson et al. (2020), Efficiently sampling functions from Gaussian process posteriors.
Doucet (2010), A note on efficient conditional simulation of Gaussian distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.gaussian.observations import ConditionedPredictors
from pymc_augconj.gaussian.sites import Rotation
from pymc_augconj.linalg.dense import leading_square, symmetric_product
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection
from pymc_augconj.typing import Array, Generator

from .joint import LatentPrior
from .posterior import Posterior, Solver
from .rows import RowGroups, SiteSum

# Multiplications for each entry of the inverse of a sparse matrix, at least.
_OF_INVERSE = 20.0
# A tilt exp(h η) beside the largest, which is rounding of zero.
_FLAT = 1e-13


def _without_flat(rotation: Rotation, diagonal: Array, sites: SiteSum) -> tuple[Rotation, Array]:
    """Return Q and the diagonal of QᵀΛQ without the directions in which coupled sites are flat.

    Softmax has one an observation: what all classes have in common.
    """
    kept = diagonal != 0.0
    if not rotation.parts or kept.all() or not kept.any() or (diagonal < 0.0).any():
        return rotation, diagonal
    # An offset that moves all classes alike is lost in the sites but for rounding.
    largest = np.abs(sites.h).max() + sites.weighted([term.rounded for term in sites.terms])
    if np.abs(rotation.forward(sites.h)[~kept]).max() > _FLAT * largest:
        return rotation, diagonal
    return rotation.keep(kept), diagonal[kept]


class ObservationPosterior(Posterior):
    """Posterior by the factor of C and its border, of rotated rows; λ may have either sign."""

    def __init__(
        self,
        prior: LatentPrior,
        groups: RowGroups,
        sites: SiteSum,
        work: Array,
        scratch: Array | None,
    ) -> None:
        super().__init__(prior, groups, sites)
        self.work, self._scratch = work, scratch
        diagonal, rotation = groups.merged.diagonalize(sites.lam)
        rotation, diagonal = _without_flat(rotation, diagonal, sites)
        K, H = prior.covariance_and_border
        within, h = leading_square(work, diagonal.size), rotation.forward(sites.h)
        own = self._predictors = ConditionedPredictors(
            rotation.congruence(K), h, diagonal, H=rotation.forward(H.T).T, work=within
        )
        self._rotation, self._border = rotation, prior.border.mask
        self._n_latent = self._border.size
        self.size = self._n_latent + (0 if own.is_signed else diagonal.size)
        self.log_normalizer, self.log_det = own.log_normalizer, own.log_det
        self.error = own.error + prior.scale_error
        self.factor_error = own.factor_error + prior.scale_error
        self.alpha = rotation.back(own.alpha)
        if rotation.kept is None:
            self.centred = rotation.back(own.mean)
        else:
            self.centred = symmetric_product(K, self.alpha) + H @ own.coefficients

    # -- the affine map ---------------------------------------------------------------------------

    @cached_property
    def latent_mean(self) -> Array:
        mean = self.prior.whitened_transpose(self.alpha)
        mean[self._border] = self._predictors.coefficients
        return mean

    def root(self, nu: Array) -> Array:
        if self._predictors.is_signed:
            return nu @ self._signed_root.T
        xi, w = self._parts(nu)
        return xi - self._outside(w)

    def apply(self, nu: Array) -> Array:
        if self._predictors.is_signed:
            return super().apply(nu)
        # The mean is ΦᵀQ w of another w: one product for both.
        xi, w = self._parts(nu)
        x = xi + self._outside(self._predictors.alpha - w)
        x[..., self._border] += self._predictors.coefficients
        return x

    def _parts(self, nu: Array) -> tuple[Array, Array]:
        """Return ξ and w of G ν = ξ − ΦᵀQ w."""
        own = self._predictors
        xi, eps = nu[..., : self._n_latent], nu[..., self._n_latent :]
        if self._border.any():
            xi = xi.copy()
            xi[..., self._border] = own.back_solve(xi[..., self._border].T).T
        return xi, own.solve(self._rotated_product(xi) + eps / np.sqrt(own.precision))

    def pull(self, slope: Array) -> Array:
        own, border = self._predictors, self._border
        if own.is_signed:
            return slope @ self._signed_root
        outside = slope.copy()
        outside[..., border] = 0.0
        w = own.solve(self._rotated_product(outside))
        by_xi = slope - self.prior.whitened_transpose(self._rotation.back(w))
        by_xi[..., border] = own.half_solve(by_xi[..., border].T).T
        return np.concatenate([by_xi, -w / np.sqrt(own.precision)], axis=-1)

    def solve(self, rng: Generator, x: Array) -> Array:
        own, border = self._predictors, self._border
        nu = rng.standard_normal(self.size)
        nu[: self._n_latent][border] = np.tril(own.chol_M).T @ (x[border] - own.coefficients)
        away = x - self.apply(nu)
        away[border] = 0.0
        nu[: self._n_latent] += away
        nu[self._n_latent :] -= np.sqrt(own.precision) * self._rotated_product(away)
        return nu

    def _rotated_product(self, v: Array) -> Array:
        return self._rotation.forward(self.prior.whitened_product(v))

    def _outside(self, w: Array) -> Array:
        """Return ΦᵀQ w, zero for the latents of the border."""
        found = self.prior.whitened_transpose(self._rotation.back(w))
        found[..., self._border] = 0.0
        return found

    @cached_property
    def _signed_root(self) -> Array:
        """A root of the covariance of v, shape (D, D)."""
        Phi, border = self.prior.whitened_design, self._border
        cov = -(Phi.T @ self.response_product(Phi))
        cov[np.diag_indices_from(cov)] += 1.0
        if border.any():
            weighted = self._rotation.back(self._predictors.weighted_coefficients_cov().T).T
            cov[:, border] = -(Phi.T @ weighted)
            cov[border, :] = cov[:, border].T
            cov[np.ix_(border, border)] = self._predictors.coefficients_cov()
        # The standard deviations of v differ as much as the prior ones of u.
        std = np.sqrt(np.maximum(np.diagonal(cov), 0.0))
        scale = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0.0)
        values, vectors = np.linalg.eigh(scale[:, None] * cov * scale)
        return std[:, None] * vectors * np.sqrt(np.maximum(values, 0.0))

    # -- moments ----------------------------------------------------------------------------------

    @cached_property
    def merged_cov(self) -> Array:
        coupling = self.groups.merged
        if not coupling.rows:
            return self._predictors.var(work=self._scratch)
        rows = np.arange(coupling.n_rows)
        first = np.concatenate([rows, coupling.first])
        second = np.concatenate([rows, coupling.second])
        K, H = self.prior.covariance_and_border
        return self._predictors.cov_at(first, second, K, H, self._rotation)

    @property
    def divergence_error(self) -> float:
        return self.error  # α is no difference

    @cached_property
    def _columns(self) -> dict[int, slice]:
        sizes = [self.prior.blocks[i].block.total_size for i in self.prior.border.blocks]
        stops = np.cumsum(sizes).tolist()
        ends = zip(self.prior.border.blocks, sizes, stops, strict=True)
        return {i: slice(stop - size, stop) for i, size, stop in ends}

    def innovation_means(self) -> list[Array]:
        prior = self.prior
        pairs = zip(prior.blocks, prior.maps, strict=True)
        means = [b.apply_cov(A.apply_transpose(self.alpha)) for b, A in pairs]
        for i, own in self._columns.items():
            means[i] = prior.blocks[i].scale(self._predictors.coefficients[own])
        return means

    def weighted_cov(self, index: int) -> Array:
        own = self._columns.get(index)
        if own is None:
            return self.response_product(self._cross(index).T)
        found = self._predictors.weighted_coefficients_cov()[:, own]
        return self._rotation.back(self.prior.blocks[index].scale(found).T).T

    def innovation_cov(self, first: int, second: int) -> Array:
        blocks, border = self.prior.blocks, self._columns
        if first in border and second in border:
            cov = self._predictors.coefficients_cov()[border[first], border[second]]
            return blocks[first].scale(blocks[second].scale(cov).T).T
        if first in border:
            return self.innovation_cov(second, first).T
        explained = self._cross(first) @ self.weighted_cov(second)
        if first != second:
            return -explained
        n = blocks[first].block.total_size
        prior_cov = blocks[first].cross_cov(RowSelection(np.arange(n), None, n))
        return prior_cov - 0.5 * (explained + explained.T)

    def innovation_var(self, index: int) -> Array:
        A = self.prior.maps[index]
        if index in self._columns:
            return np.diagonal(self.innovation_cov(index, index)).copy()
        if (
            len(self.prior.maps) == 1
            and isinstance(A, RowSelection)
            and A.coef is None
            and np.unique(A.index).size == A.size
        ):
            # Each entry is a predictor, whose variance is free of cancellation.
            var = np.empty(A.size)
            var[A.index] = self.merged_cov[: A.index.size]
            return var
        return self.prior.blocks[index].var() - self.explained_var(self._cross(index))

    def explained(self, cross: Array) -> Array:
        return self._predictors.explained(self._rotation.forward(cross))

    def explained_var(self, cross: Array) -> Array:
        return self._predictors.explained_var(self._rotation.forward(cross))

    @cached_property
    def response(self) -> Array:
        """R = (C + Λ⁻¹)⁻¹, shape (R, R)."""
        return self._rotation.congruence_back(self._predictors.response())

    def response_product(self, X: Array) -> Array:
        return self.response @ X

    def _explained_through(self, A: LinearMap) -> Array:
        if isinstance(A, RowSelection):
            return A.congruence(self.response)
        return super()._explained_through(A)

    def _cross(self, index: int) -> Array:
        """Return Cov(u_b, η′) = K_b A_bᵀ, shape (total_size, R)."""
        return self.prior.blocks[index].cross_cov(self.prior.maps[index])


class ObservationSolver(Solver):
    """One R × R factorisation, R the number of distinct predictors."""

    name = "observation"
    has_cheap_gradient = True
    differentiable = True

    @classmethod
    def order(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> int:
        return groups.size

    @classmethod
    def multiplications(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> float:
        # Covariances are entries of an inverse where the prior has a sparse precision.
        inverted = [b.total_size for b in blocks if b.entries is not None]
        # The covariance of rows is a product of dense designs.
        forming = 0.5 * float(sum(A.size for A in groups.maps or () if isinstance(A, DenseMap)))
        R, of_inverse = float(groups.size), _OF_INVERSE * float(sum(n**2 for n in inverted))
        return R**3 / 3.0 + R**2 * forming + of_inverse

    def prior_cov(self, prior: LatentPrior) -> Array:
        first, second = self.groups.merged.first, self.groups.merged.second
        K, H = prior.covariance_and_border
        pairs = K[first, second] + np.vecdot(H[first], H[second])
        return np.concatenate([np.diagonal(K) + np.vecdot(H, H), pairs])

    def _condition(
        self, prior: LatentPrior, sites: SiteSum, keep: Posterior | None
    ) -> ObservationPosterior:
        work = self._work(keep)
        return ObservationPosterior(prior, self.groups, sites, work, self.scratch)
