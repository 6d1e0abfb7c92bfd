"""Conditioning the latents on their sites through the R × R covariance of distinct predictors."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.gaussian.signed_space import SignedPosterior
from pymc_augconj.linalg.linear_map import RowSelection

from .posterior import SitePosterior

__all__ = ["ObservationPosterior"]

Array = NDArray[np.float64]


class ObservationPosterior(SitePosterior):
    """By one factorisation of the size of the merged rows; of either sign of λ."""

    space = "observation"
    takes_factors = False
    has_cheap_gradient = True

    def __init__(self, prior, groups, h, lam, *, work=None, second_work=None):
        super().__init__(prior, groups, h, lam)
        self._signed = SignedPosterior(
            prior.predictor_cov, self.merged_h, self.merged_lam, work=work
        )
        self.alpha = self._signed.alpha
        var = self._signed.var(work=second_work)
        signed = self._signed
        self._finish(signed.log_det, signed.mean, var, signed.log_normalizer)

    @classmethod
    def order(cls, model, groups):
        return groups.size

    @classmethod
    def multiplications(cls, model, groups):
        return float(groups.size) ** 3 / 3.0

    @staticmethod
    def prior_var(prior):
        return np.diagonal(prior.predictor_cov)

    def innovation_cov(self, first, second):
        cross = [self._cross(i) for i in (first, second)]
        explained = cross[0] @ self.response_product(cross[1].T)
        if first == second:
            explained = -0.5 * (explained + explained.T)
            return self.prior.blocks[first].add_cov(explained)
        return -explained

    def innovation_var(self, index):
        A = self.prior.maps[index]
        alone = len(self.prior.maps) == 1 and isinstance(A, RowSelection) and A.coef is None
        if alone and np.unique(A.index).size == A.size:
            # Each entry is a predictor, whose variance is free of cancellation.
            var = np.empty(A.size)
            var[A.index] = self._centred_var
            return var
        return self.prior.blocks[index].var() - self.explained_var(self._cross(index))

    def explained(self, cross):
        return self._signed.explained(cross)

    def explained_var(self, cross):
        return self._signed.explained_var(cross)

    @cached_property
    def response(self) -> Array:
        """R itself, shape (R, R)."""
        return self._signed.response()

    def response_product(self, X):
        return self.response @ X

    def _explained_through(self, A):
        if isinstance(A, RowSelection):
            return A.congruence(self.response)
        return super()._explained_through(A)

    def _cross(self, index: int) -> Array:
        """Return Cov(u_b, η′) = K_b A_bᵀ, shape (total_size, R)."""
        return self.prior.blocks[index].cross_cov(self.prior.maps[index])

    def draw(self, rng, size):
        # v = ξ + Sᵀ Aᵀ w with w = (I + ΛC)⁻¹ (h − Λη₀ − Λ^½ ε) (Matheron); with R and α it is
        # v = ξ + Sᵀ Aᵀ (α − R (η₀ + ε′)), ε′ ~ N(0, Λ⁻¹), which has no form for λ ≤ 0: a signed
        # Λ takes the weights' own covariance I − Sᵀ Aᵀ R A S instead.
        if (self.merged_lam <= 0.0).any():
            return self._draw_whitened(rng, size)
        prior = self.prior
        xi = [rng.standard_normal((size, b.block.total_size)) for b in prior.blocks]
        eta0 = rng.standard_normal((size, self.merged_h.size)) / np.sqrt(self.merged_lam)
        for b, A, x in zip(prior.blocks, prior.maps, xi, strict=True):
            eta0 += A.apply_rows(b.scale(x))
        weights = self.alpha - eta0 @ self.response
        return [
            x + b.scale_transpose(A.transpose_rows(weights))
            for b, A, x in zip(prior.blocks, prior.maps, xi, strict=True)
        ]

    def _draw_whitened(self, rng, size):
        prior = self.prior
        Phi = prior.whitened_design
        cov = -(Phi.T @ self.response_product(Phi))
        cov[np.diag_indices_from(cov)] += 1.0
        values, vectors = np.linalg.eigh(cov)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        v = Phi.T @ self.alpha + rng.standard_normal((size, values.size)) @ root.T
        sizes = np.cumsum([b.block.total_size for b in prior.blocks])[:-1]
        return np.split(v, sizes, axis=1)
