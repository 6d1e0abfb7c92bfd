"""Conditioning the latents on their sites through the D × D precision of all whitened latents."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.blas import dtrsm, dtrsv

from pymc_augconj.gaussian import gram, weight_space
from pymc_augconj.gaussian.gram import GramFactor
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.gaussian.weight_space import WeightSpaceFactor
from pymc_augconj.linalg.blas import lower_transpose_product
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection
from pymc_augconj.typing import Array

from .affine import FactorMemory
from .base import BlockPrior
from .joint import LatentPrior
from .posterior import SitePosterior
from .registry import kind_of

__all__ = ["WeightPosterior", "WeightSpace"]


class AffineByWeights:
    """An :class:`.AffinePosterior` from the factor of M; ``half`` is L⁻¹Φᵀh."""

    def __init__(self, chol: Array, half: Array, log_det: float):
        self._chol, self._half = chol, half
        self.size = half.size
        self.log_evidence = 0.5 * float(half @ half - log_det)

    @cached_property
    def mean(self) -> Array:
        """E[v]."""
        return dtrsv(self._chol, self._half, lower=1, trans=1)

    def apply(self, nu: Array) -> Array:
        """See :class:`.AffinePosterior`."""
        if nu.ndim == 1:
            return dtrsv(self._chol, self._half + nu, lower=1, trans=1, overwrite_x=1)
        return dtrsm(1.0, self._chol, (self._half + nu).T, lower=1, trans_a=1, overwrite_b=1).T

    def solve(self, rng: np.random.Generator, v: Array) -> Array:
        """See :class:`.AffinePosterior`."""
        return lower_transpose_product(self._chol, v) - self._half


class WeightSpace:
    """A :class:`.Conditioner`: one D × D factorisation, D the total number of latent values.

    Where every block is diagonal, the observations are summed into a Gram matrix once for every
    set of sites, and further values of the blocks' scales do not touch them.
    """

    def __init__(self, size: int, coupling: Coupling):
        self._work = np.empty((size, size), order="F")
        self._coupling = coupling
        self._memory = FactorMemory[GramFactor | WeightSpaceFactor]()
        self._design: tuple[list, Array] | None = None
        self._gram: tuple[Array, Array, Array] | None = None

    def log_evidence(self, prior: LatentPrior, h: Array, lam: Array) -> float:
        """See :class:`.Conditioner`."""
        if _is_diagonal(prior):
            return gram.log_normalizer(*self._factorize_gram(prior, h, lam))
        factor, h = self._factorize(prior, h, lam)
        return weight_space.condition(factor, np.zeros_like(h), h).log_normalizer

    def posterior(self, prior: LatentPrior, h: Array, lam: Array) -> AffineByWeights:
        """See :class:`.Conditioner`."""
        if _is_diagonal(prior):
            factor, projected = self._factorize_gram(prior, h, lam)
            right = factor.scale * projected
        else:
            factor, h = self._factorize(prior, h, lam)
            right = h @ factor.Phi
        half = dtrsv(factor.chol_M, right, lower=1, overwrite_x=1)
        return AffineByWeights(factor.chol_M, half, factor.log_det)

    def _factorize(
        self, prior: LatentPrior, h: Array, lam: Array
    ) -> tuple[WeightSpaceFactor, Array]:
        """Return the factor, and h, of rotated rows."""
        diagonal, rotation = self._coupling.diagonalize(lam)

        def make() -> WeightSpaceFactor:
            Phi = rotation.forward(prior.whitened_design.T).T
            return weight_space.factorize(Phi, diagonal, work=self._work)

        return self._memory.get(prior, lam, make), rotation.forward(h)

    def _factorize_gram(self, prior: LatentPrior, h: Array, lam: Array) -> tuple[GramFactor, Array]:
        """Return the factor, and A₀ᵀh."""
        A = self._unscaled_design(prior)
        if self._gram is None or self._gram[0] is not A or not np.array_equal(self._gram[1], lam):
            diagonal, rotation = self._coupling.diagonalize(lam)
            self._gram = (A, lam, gram.weighted_gram(rotation.forward(A.T).T, diagonal))
        summed = self._gram[2]

        def make() -> GramFactor:
            pairs = zip(prior.maps, prior.blocks, strict=True)
            scale = np.concatenate([_column_scale(A, b) for A, b in pairs])
            return gram.factorize(summed, scale, work=self._work)

        return self._memory.get(prior, lam, make), A.T @ h

    def _unscaled_design(self, prior: LatentPrior) -> Array:
        """Return A₀, without prior scales and column factors, made anew only where it changed."""
        parts = [A.matrix if isinstance(A, DenseMap) else A for A in prior.maps]
        if self._design is not None and all(
            known is part for known, part in zip(self._design[0], parts, strict=True)
        ):
            return self._design[1]
        dense = [part.dense() if isinstance(part, RowSelection) else part for part in parts]
        design = np.asfortranarray(np.hstack(dense))
        self._design = (parts, design)
        return design


def _is_diagonal(prior: LatentPrior) -> bool:
    return all(b.diagonal_scale is not None for b in prior.blocks)


def _column_scale(A: LinearMap, block: BlockPrior) -> Array:
    if isinstance(A, DenseMap) and A.columns is not None:
        return block.diagonal_scale * A.columns
    return block.diagonal_scale


class WeightPosterior(SitePosterior):
    """By one factorisation of the size of all latents together."""

    space = "weight"
    conditioner = WeightSpace
    takes_factors = True
    has_cheap_gradient = False

    def __init__(self, prior, groups, h, lam, *, work=None, second_work=None):
        super().__init__(prior, groups, h, lam)
        rotation, Phi = self._rotation, prior.whitened_design
        self._factor = weight_space.factorize(rotation.forward(Phi.T).T, self._diagonal, work=work)
        zeros = np.zeros_like(self.merged_h)
        posterior = weight_space.condition(self._factor, zeros, rotation.forward(self.merged_h))
        self._latent_mean = posterior.latent_mean
        self.alpha = rotation.back(posterior.alpha)
        cov = weight_space.cov_at(self._factor, Phi, groups.merged.first, groups.merged.second)
        centred = rotation.back(posterior.mean)
        self._finish(self._factor.log_det, centred, cov, posterior.log_normalizer)

    @classmethod
    def order(cls, model, groups):
        return model.latent_size

    @classmethod
    def multiplications(cls, model, groups):
        R, D = float(groups.size), float(model.latent_size)
        # Forming Φ with a dense block costs R·size² more; forming C with one that is not a
        # selection likewise, which happens in either space.
        sizes = [(float(kind_of(b).matrix_order(b)), b.copies) for b in model.blocks]
        dense = sum(size**3 for size, _ in sizes)
        forming = sum(R * size**2 * copies for size, copies in sizes)
        return R * D**2 + D**3 / 3.0 + forming + dense / 3.0

    @staticmethod
    def prior_cov(prior, coupling):
        Phi = prior.whitened_design
        pairs = np.einsum("ij,ij->i", Phi[coupling.first], Phi[coupling.second])
        return np.concatenate([np.einsum("ij,ij->i", Phi, Phi), pairs])

    @property
    def _parts(self) -> list[slice]:
        stops = np.cumsum([b.block.total_size for b in self.prior.blocks])
        return [
            slice(int(stop) - b.block.total_size, int(stop))
            for stop, b in zip(stops, self.prior.blocks, strict=True)
        ]

    def innovation_means(self):
        return [
            b.scale(self._latent_mean[part])
            for b, part in zip(self.prior.blocks, self._parts, strict=True)
        ]

    @cached_property
    def _inverse_chol(self) -> Array:
        """L_M⁻¹ᵀ, whose rows give cov[v] = L_M⁻ᵀ L_M⁻¹."""
        size = self._factor.chol_M.shape[0]
        return solve_triangular(self._factor.chol_M, np.eye(size), lower=True).T

    def _half(self, index: int) -> Array:
        """Return S_b L_M⁻ᵀ (rows of block b): cov[u_b] is its product with its transpose."""
        rows = self._inverse_chol[self._parts[index]]
        return self.prior.blocks[index].scale(rows.T).T

    def innovation_cov(self, first, second):
        return self._half(first) @ self._half(second).T

    def innovation_var(self, index):
        half = self._half(index)
        return np.einsum("ij,ij->i", half, half)

    def explained(self, cross):
        return cross @ self.response_product(cross.T)

    def explained_var(self, cross):
        return np.einsum("ij,ji->i", cross, self.response_product(cross.T))

    def response_product(self, X):
        # R = Λ − ΛΦM⁻¹ΦᵀΛ
        weighted = self._diagonal[:, None] * self._rotation.forward(X.T).T
        half = self._inverse_chol.T @ (self._factor.Phi.T @ weighted)
        back = self._factor.Phi @ (self._inverse_chol @ half)
        return self._rotation.back((weighted - self._diagonal[:, None] * back).T).T

    def draw(self, rng, size):
        xi = rng.standard_normal((size, self._latent_mean.size))
        v = self._latent_mean + xi @ self._inverse_chol.T
        return [v[:, part] for part in self._parts]
