"""The Gaussian posterior given a set of sites, at one θ; the base of all spaces.

Variational engines use means and variances of all predictors, the divergence from the prior, and,
once at the end, moments of the latents and terms of the evidence's gradient. With R = (C + Λ⁻¹)⁻¹
and α = h − Λμ on the merged rows,

    KL(q‖p) = ½ ( log|I + ΛC| − Σ λᵢ Σᵢᵢ + αᵀμ ),

because tr(C⁻¹Σ) − R = −tr(ΛΣ), without a difference of large normalisers. λ may be negative.

A *space* is a subclass that factorises one matrix; :mod:`.space` lists them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.linalg.rounding import EPS
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.typing import Array

from .affine import Conditioner
from .joint import LatentPrior
from .registry import kind_of
from .rows import RowGroups

__all__ = ["SitePosterior"]


class SitePosterior(ABC):
    """Base of all spaces; ``h`` and ``lam`` are of every row, before merging.

    Parameters
    ----------
    prior : LatentPrior
    groups : RowGroups
    h, lam : ndarray, shape (N,)
    work, second_work : ndarray, optional
        Fortran-ordered arrays of :meth:`order`; the first holds the factor until its next use.

    Attributes
    ----------
    mean, var : ndarray, shape (n,)
        Moments of every predictor, offset included.
    cov : ndarray
        Posterior variances and covariances of coupled pairs, stacked like ``lam``.
    divergence : float
        KL(q‖p) of the latents.
    alpha : ndarray, shape (R,)
        h − Λμ on the merged rows.
    log_normalizer : float
        log ∫ exp(hᵀη − ½ ηᵀΛη) p(η) dη; a flat coefficient has the density one.
    error : float
        Estimated rounding error of ``log_normalizer``.
    """

    alpha: Array
    error: float
    #: The name of the space.
    space: ClassVar[str]
    #: Whether it uses the factors of the blocks' covariances.
    takes_factors: ClassVar[bool]
    #: The class with which the Gibbs sampler conditions in this space.
    conditioner: ClassVar[type[Conditioner]]
    #: Whether the gradient of the evidence, taken in observation space, costs only a few
    #: evaluations; where this space is linear in n it costs O(n³).
    has_cheap_gradient: ClassVar[bool]

    def __init__(
        self,
        prior: LatentPrior,
        groups: RowGroups,
        h: Array,
        lam: Array,
        *,
        work: Array | None = None,
        second_work: Array | None = None,
    ) -> None:
        self.prior, self.groups, self.h, self.lam = prior, groups, h, lam
        merged = groups.merge(h, lam, prior.offset)
        self.merged_h, self.merged_lam, self._constant = merged.h, merged.lam, merged.constant
        # Conditioning takes the diagonal Λ of rotated rows.
        self._diagonal, self._rotation = groups.merged.diagonalize(self.merged_lam)
        self._condition(work, second_work)

    @abstractmethod
    def _condition(self, work: Array | None, second_work: Array | None) -> None:
        """Factorise the matrix of this space; set ``alpha`` and call :meth:`_finish`."""

    @classmethod
    @abstractmethod
    def order(cls, model: LatentGaussianModel, groups: RowGroups) -> int:
        """Return the order of the matrix that is factorised."""

    @classmethod
    @abstractmethod
    def multiplications(cls, model: LatentGaussianModel, groups: RowGroups) -> float:
        """Return the number of multiplications at a new θ, without terms common to all spaces."""

    @classmethod
    def largest_order(cls, model: LatentGaussianModel, groups: RowGroups) -> int:
        """Return the order of the largest matrix, blocks' priors included."""
        blocks = [kind_of(b).matrix_order(b) for b in model.blocks]
        return max(cls.order(model, groups), *blocks)

    @classmethod
    def make_conditioner(cls, model: LatentGaussianModel, groups: RowGroups) -> Conditioner:
        """Return the conditioner of the Gibbs sampler."""
        return cls.conditioner(cls.order(model, groups), groups.merged)

    @staticmethod
    @abstractmethod
    def prior_cov(prior: LatentPrior, groups: RowGroups) -> Array:
        """Return the prior variances of the merged predictors, and covariances of pairs."""

    def _finish(self, log_det: float, centred: Array, cov: Array, log_normalizer: float) -> None:
        self.centred, self._centred_var = centred, cov[: centred.size]
        quadratic = float(self.alpha @ centred - self.groups.merged.trace(self.merged_lam, cov))
        self.divergence = 0.5 * (log_det + quadratic) - self.prior.log_flat
        self.rounding = float(abs(log_det) + np.abs(self.alpha) @ np.abs(centred))
        self.log_normalizer = self._constant + log_normalizer + self.prior.log_flat
        self.mean = self.prior.offset + self.groups.expand(centred)
        self.cov = self.groups.expand(cov)
        self.var = self.cov[: self.mean.size]

    def _cancellation(self, centred: Array) -> float:
        """Return the rounding error of αᵀμ for α = h − Λμ, where that is a difference."""
        return EPS * float(np.abs(self.merged_h) @ np.abs(centred))

    def innovation_means(self) -> list[Array]:
        """Return E[u_b] = K_b A_bᵀ α, flat, for every block."""
        prior = self.prior
        return [
            b.apply_cov(A.apply_transpose(self.alpha))
            for b, A in zip(prior.blocks, prior.maps, strict=True)
        ]

    @abstractmethod
    def innovation_cov(self, first: int, second: int) -> Array:
        """Return Cov(u_b, u_c), shape (total_size_b, total_size_c)."""

    @abstractmethod
    def innovation_var(self, index: int) -> Array:
        """Return the variances of u_b, flat."""

    @abstractmethod
    def explained(self, cross: Array) -> Array:
        """Return X R Xᵀ, the reduction of a covariance by the sites, for X of shape (P, R)."""

    @abstractmethod
    def explained_var(self, cross: Array) -> Array:
        """Return the diagonal of :meth:`explained`, shape (P,)."""

    @abstractmethod
    def response_product(self, X: Array) -> Array:
        """Return R X, shape (R, columns of X)."""

    def weighted_cov(self, index: int) -> Array:
        """Return Λ Cov(η′, u_b) = R A_b K_b, shape (R, total_size)."""
        return self.response_product(self.prior.blocks[index].cross_cov(self.prior.maps[index]).T)

    def predictor_cov(self) -> Array:
        """Return the covariance of all predictors, shape (n, n)."""
        maps, total = self.prior.full_maps, np.zeros((self.mean.size, self.mean.size))
        for i, A in enumerate(maps):
            for j, B in enumerate(maps):
                total += A.apply_rows(B.apply_rows(self.innovation_cov(i, j)).T).T
        return total

    @abstractmethod
    def draw(self, rng: np.random.Generator, size: int) -> list[Array]:
        """Return exact joint draws of the whitened blocks v_b, each (size, total_size)."""

    # -- derivatives of the log normaliser --------------------------------------------------------

    def pull_cov(self, index: int) -> Array:
        """Return the derivative by a block's ``scale``, through its covariance."""
        return self.prior.blocks[index].pull_cov(self.prior.maps[index], self)

    def pull_map(self, index: int) -> Array:
        """Return the derivative by A_b, shape (R, total_size)."""
        product = np.multiply.outer(self.alpha, self.innovation_means()[index])
        return product - self.weighted_cov(index)

    def pull_selection(self, index: int) -> Array:
        """Return the derivative by the nonzero entries of A_b, one a row, shape (R,)."""
        A = self.prior.maps[index]
        assert isinstance(A, RowSelection)
        return self.pull_map(index)[np.arange(A.index.size), A.index]

    # By C, a :class:`.PredictorGradient`.

    def congruence(self, A: LinearMap) -> Array:
        """Return ½ Aᵀ (α αᵀ − R) A."""
        projected = A.apply_transpose(self.alpha)
        return 0.5 * (np.multiply.outer(projected, projected) - self._explained_through(A))

    def congruence_diagonal(self, A: LinearMap) -> Array:
        """Return the diagonal of :meth:`congruence`."""
        dense = A.dense()
        explained = np.einsum("ij,ij->j", dense, self.response_product(dense))
        return 0.5 * (A.apply_transpose(self.alpha) ** 2 - explained)

    def _explained_through(self, A: LinearMap) -> Array:
        """Return Aᵀ R A."""
        dense = A.dense()
        return dense.T @ self.response_product(dense)
