"""The contract of the Gaussian posterior of the latents given their sites, at one θ.

In coordinates x, linear in the whitened latents v ~ N(0, I), it is an affine map of standard normal
numbers, x = E[x] + G ν. With M = I + ΦᵀΛΦ, R = (C + Λ⁻¹)⁻¹ and α = h − Λμ on the merged rows,

    KL(q‖p) = ½ (log|M| − Σ λᵢ Σᵢᵢ + αᵀμ),        ∂log Z/∂C = ½ (α αᵀ − R),

because tr(C⁻¹Σ) − R = −tr(ΛΣ), without a difference of large normalisers. λ may be negative.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar

import numpy as np

from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.linalg.rounding import EPS
from pymc_augconj.typing import Array

from .joint import LatentPrior
from .rows import RowGroups, SiteSum


class Posterior(ABC):
    """The posterior of the latents, valid until its solver overwrites ``work``.

    Moments and derivatives are computed when first asked for. Several x or ν are rows of an array.

    Attributes
    ----------
    size : int
        Length of ν.
    log_normalizer, log_det : float
        log ∫ exp(hᵀη − ½ ηᵀΛη) p(η) dη, a flat coefficient having the density one; and log|M|.
    error, factor_error : float
        Estimated rounding errors of ``log_normalizer``, and of the factor and the mean.
    """

    size: int
    log_normalizer: float
    log_det: float
    error: float
    factor_error: float
    #: The solver's array that holds the factor, if any.
    work: Array | None = None
    #: Whether :meth:`pull` works.
    differentiable: ClassVar[bool] = True

    def __init__(self, prior: LatentPrior, groups: RowGroups, sites: SiteSum) -> None:
        self.prior, self.groups, self.sites = prior, groups, sites

    # -- the affine map ---------------------------------------------------------------------------

    @property
    @abstractmethod
    def latent_mean(self) -> Array:
        """E[x], shape (D,)."""

    @abstractmethod
    def root(self, nu: Array) -> Array:
        """Return G ν."""

    @abstractmethod
    def pull(self, slope: Array) -> Array:
        """Return Gᵀ slope: the gradient by ν of a function of x, given its gradient by x."""

    @abstractmethod
    def solve(self, rng: np.random.Generator, x: Array) -> Array:
        """Return ν with this x: a draw from N(0, I) given x if there are many."""

    def apply(self, nu: Array) -> Array:
        """Return x, a draw from the posterior for ν ~ N(0, I)."""
        return self.latent_mean + self.root(nu)

    def draw(self, rng: np.random.Generator, size: int) -> list[Array]:
        """Return exact joint draws of the whitened blocks v_b, each (size, total_size)."""
        return self.prior.split(self.whitened(self.apply(rng.standard_normal((size, self.size)))))

    def coordinates(self, v: Array) -> Array:
        """Return x for the whitened latents v."""
        return v

    def whitened(self, x: Array) -> Array:
        """Return the whitened latents v."""
        return x

    def innovations(self, x: Array) -> list[Array]:
        """Return u of every block."""
        return self.prior.innovations(x)

    def innovations_transpose(self, slopes: list[Array]) -> Array:
        """Return the gradient by x of a function of all u, given its gradient by each block's."""
        return self.prior.innovations_transpose(slopes)

    # -- moments of predictors --------------------------------------------------------------------

    @cached_property
    def centred(self) -> Array:
        """E[η′] on the merged rows."""
        return self.prior.merged_predictor(self.innovations(self.latent_mean))

    @cached_property
    def alpha(self) -> Array:
        """α = h − Λμ on the merged rows."""
        return self.sites.h - self.groups.merged.product(self.sites.lam, self.centred)

    @cached_property
    def mean(self) -> Array:
        """Means of every predictor, offset included, shape (n,)."""
        return self.prior.offset + self.groups.expand(self.centred)

    @cached_property
    def merged_cov(self) -> Array:
        """Variances of the merged rows, then covariances of coupled ones, stacked like ``lam``."""
        half, coupling = self.pull(self.prior.whitened_design), self.groups.merged
        pairs = np.vecdot(half[coupling.first], half[coupling.second])
        return np.concatenate([np.vecdot(half, half), pairs])

    @cached_property
    def cov(self) -> Array:
        """The same of every predictor."""
        return self.groups.expand(self.merged_cov)

    @property
    def var(self) -> Array:
        """Variances of every predictor, shape (n,)."""
        return self.cov[: self.mean.size]

    @cached_property
    def divergence(self) -> float:
        """KL(q‖p) of the latents."""
        trace = self.groups.merged.trace(self.sites.lam, self.merged_cov)
        difference = self.log_det + float(self.alpha @ self.centred) - trace
        return 0.5 * difference - self.prior.log_flat

    @property
    def divergence_magnitude(self) -> float:
        """Magnitude of the terms of the divergence."""
        return float(abs(self.log_det) + np.abs(self.alpha) @ np.abs(self.centred))

    @property
    def divergence_error(self) -> float:
        """Estimated rounding error of the divergence, in which α is a difference."""
        return self.error + EPS * float(np.abs(self.sites.h) @ np.abs(self.centred))

    def predictor_cov(self) -> Array:
        """Return the covariance of all predictors, shape (n, n)."""
        maps, total = self.prior.full_maps, np.zeros((self.mean.size, self.mean.size))
        for i, A in enumerate(maps):
            for j, B in enumerate(maps):
                total += A.apply_rows(B.apply_rows(self.innovation_cov(i, j)).T).T
        return total

    # -- moments of innovations -------------------------------------------------------------------

    def innovation_means(self) -> list[Array]:
        """Return E[u_b], flat, for every block."""
        return self.innovations(self.latent_mean)

    def _root_of(self, index: int) -> Array:
        """Return the root B, shape (total_size, size), of Cov(u_b) = B Bᵀ."""
        sizes = [b.block.total_size for b in self.prior.blocks]
        slopes = [np.zeros((sizes[index], size)) for size in sizes]
        slopes[index] = np.eye(sizes[index])
        return self.pull(self.innovations_transpose(slopes))

    def innovation_cov(self, first: int, second: int) -> Array:
        """Return Cov(u_b, u_c), shape (total_size_b, total_size_c)."""
        return self._root_of(first) @ self._root_of(second).T

    def innovation_var(self, index: int) -> Array:
        """Return the variances of u_b, flat."""
        root = self._root_of(index)
        return np.vecdot(root, root)

    def _weighted(self, nu: Array) -> Array:
        """Return Λ Φ G ν, shape (R, rows of ν)."""
        eta = self.prior.merged_predictor(self.innovations(self.root(nu)))
        return self.groups.merged.product(self.sites.lam, eta).T

    def weighted_cov(self, index: int) -> Array:
        """Return Λ Cov(η′, u_b), shape (R, total_size)."""
        return self._weighted(self._root_of(index))

    def response_product(self, X: Array) -> Array:
        """Return R X = ΛX − Λ Cov(η′) ΛX, shape (R, columns of X)."""
        weighted = self.groups.merged.product(self.sites.lam, X.T)
        slopes = [A.transpose_rows(weighted) for A in self.prior.maps]
        return weighted.T - self._weighted(self.pull(self.innovations_transpose(slopes)))

    def explained(self, cross: Array) -> Array:
        """Return X R Xᵀ, the reduction of a covariance by the sites, for X of shape (P, R)."""
        return cross @ self.response_product(cross.T)

    def explained_var(self, cross: Array) -> Array:
        """Return the diagonal of :meth:`explained`, shape (P,)."""
        return np.vecdot(cross, self.response_product(cross.T).T)

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
