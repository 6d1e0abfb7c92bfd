"""The Gaussian posterior that a set of sites stands for, at one θ, in either space.

Every variational engine asks the same of it: means and variances of all predictors, the divergence
from the prior, and, once at the end, the moments of the latents and the terms of the evidence's
gradient. With R = (C + Λ⁻¹)⁻¹ and α = h − Λμ on the merged rows,

    KL(q‖p) = ½ ( log|I + ΛC| − Σ λᵢ Σᵢᵢ + αᵀμ ),

because tr(C⁻¹Σ) − R = −tr(ΛΣ): no difference of large normalisers is taken. λ may be negative.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from pymc_augconj.gaussian import weight_space
from pymc_augconj.gaussian.signed_space import SignedPosterior
from pymc_augconj.linalg.linear_map import RowSelection

from .dense import (
    add_prior_cov,
    apply_rows,
    cross_cov,
    prior_var,
    scale_rows,
    scale_transpose_rows,
    transpose_rows,
)
from .joint import LatentPrior, RowGroups

__all__ = ["ObservationPosterior", "SitePosterior", "WeightPosterior", "condition"]

Array = NDArray[np.float64]


class SitePosterior:
    """What both spaces share; ``h`` and ``lam`` are those of every row, before merging.

    Attributes
    ----------
    mean, var : ndarray, shape (N,)
        Of every predictor, offset included.
    divergence : float
        KL(q‖p) of the latents.
    alpha : ndarray, shape (R,)
        h − Λμ on the merged rows.
    log_normalizer : float
        log ∫ exp(hᵀη − ½ ηᵀΛη) p(η) dη.
    """

    def __init__(self, prior: LatentPrior, groups: RowGroups, h: Array, lam: Array):
        self.prior, self.groups, self.h, self.lam = prior, groups, h, lam
        self.merged_h, self.merged_lam, self._constant = groups.merge(h, lam, prior.offset)

    def _finish(self, log_det: float, centred: Array, var: Array, log_normalizer: float) -> None:
        self.centred, self._centred_var = centred, var
        quadratic = float(self.alpha @ centred - self.merged_lam @ var)
        self.divergence = 0.5 * (log_det + quadratic)
        self.rounding = abs(log_det) + np.abs(self.alpha) @ np.abs(centred)
        self.log_normalizer = self._constant + log_normalizer
        inverse = self.groups.inverse
        self.mean = self.prior.offset + (centred if inverse is None else centred[inverse])
        self.var = var if inverse is None else var[inverse]

    def innovation_means(self) -> list[Array]:
        """Return E[u_b] = K_b A_bᵀ α, flat, for every block."""
        prior = self.prior
        return [
            b.apply_cov(A.apply_transpose(self.alpha))
            for b, A in zip(prior.blocks, prior.maps, strict=True)
        ]

    def innovation_cov(self, first: int, second: int) -> Array:
        """Return Cov(u_b, u_c), shape (total_size_b, total_size_c)."""
        raise NotImplementedError

    def innovation_var(self, index: int) -> Array:
        """Return the variances of u_b, flat."""
        raise NotImplementedError

    def explained(self, cross: Array) -> Array:
        """Return X R Xᵀ for X of shape (P, R): what the sites take off a covariance."""
        raise NotImplementedError

    def explained_var(self, cross: Array) -> Array:
        """Return the diagonal of :meth:`explained`, shape (P,)."""
        raise NotImplementedError

    def response_product(self, X: Array) -> Array:
        """Return R X, shape (R, columns of X)."""
        raise NotImplementedError

    def draw(self, rng: np.random.Generator, size: int) -> list[Array]:
        """Return exact joint draws of the whitened blocks v_b, each (size, total_size)."""
        raise NotImplementedError


class ObservationPosterior(SitePosterior):
    """By one factorisation of the size of the merged rows."""

    def __init__(self, prior, groups, h, lam, *, work=None, second_work=None):
        super().__init__(prior, groups, h, lam)
        self._signed = SignedPosterior(
            prior.predictor_cov, self.merged_h, self.merged_lam, work=work
        )
        self.alpha = self._signed.alpha
        var = self._signed.var(work=second_work)
        signed = self._signed
        self._finish(signed.log_det, signed.mean, var, signed.log_normalizer)

    def innovation_cov(self, first, second):
        cross = [self._cross(i) for i in (first, second)]
        explained = cross[0] @ self.response_product(cross[1].T)
        if first == second:
            explained = -0.5 * (explained + explained.T)
            return add_prior_cov(explained, self.prior.blocks[first])
        return -explained

    def innovation_var(self, index):
        A = self.prior.maps[index]
        alone = len(self.prior.maps) == 1 and isinstance(A, RowSelection) and A.coef is None
        if alone and np.unique(A.index).size == A.size:
            # Each entry is a predictor, whose variance is free of cancellation.
            var = np.empty(A.size)
            var[A.index] = self._centred_var
            return var
        return prior_var(self.prior.blocks[index]) - self.explained_var(self._cross(index))

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

    def _cross(self, index: int) -> Array:
        """Return Cov(u_b, η′) = K_b A_bᵀ, shape (total_size, R)."""
        return cross_cov(self.prior.blocks[index], self.prior.maps[index])

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
            eta0 += apply_rows(A, scale_rows(b, x))
        weights = self.alpha - eta0 @ self.response
        return [
            x + scale_transpose_rows(b, transpose_rows(A, weights))
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


class WeightPosterior(SitePosterior):
    """By one factorisation of the size of all latents together."""

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
        return scale_rows(self.prior.blocks[index], rows.T).T

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


def condition(
    prior: LatentPrior, groups: RowGroups, h: Array, lam: Array, *, by_weights: bool, **work
) -> SitePosterior:
    """Return the posterior of ``prior`` given the sites (h, λ) of every row."""
    kind = WeightPosterior if by_weights else ObservationPosterior
    return kind(prior, groups, h, lam, **work)
