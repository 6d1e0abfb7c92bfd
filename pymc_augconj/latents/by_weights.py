"""Conditioning the latents on their sites through the D × D precision of all whitened latents."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from pymc_augconj.gaussian import weight_space

from .posterior import SitePosterior
from .registry import kind_of

__all__ = ["WeightPosterior"]

Array = NDArray[np.float64]


class WeightPosterior(SitePosterior):
    """By one factorisation of the size of all latents together."""

    space = "weight"
    takes_factors = True
    has_cheap_gradient = False

    def __init__(self, prior, groups, h, lam, *, work=None, second_work=None):
        super().__init__(prior, groups, h, lam)
        self._factor = weight_space.factorize(prior.whitened_design, self.merged_lam, work=work)
        zeros = np.zeros_like(self.merged_h)
        posterior = weight_space.condition(self._factor, zeros, self.merged_h)
        self._latent_mean = posterior.latent_mean
        self.alpha = posterior.alpha
        self._finish(
            self._factor.log_det, posterior.mean, posterior.var(), posterior.log_normalizer
        )

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
    def prior_var(prior):
        return np.einsum("ij,ij->i", prior.whitened_design, prior.whitened_design)

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
        weighted = self.merged_lam[:, None] * X
        half = self._inverse_chol.T @ (self._factor.Phi.T @ weighted)
        back = self._factor.Phi @ (self._inverse_chol @ half)
        return weighted - self.merged_lam[:, None] * back

    def draw(self, rng, size):
        xi = rng.standard_normal((size, self._latent_mean.size))
        v = self._latent_mean + xi @ self._inverse_chol.T
        return [v[:, part] for part in self._parts]
