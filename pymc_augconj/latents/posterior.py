"""The contracts of the Gaussian posterior of the latents given their sites, and of its solver.

In coordinates x, linear in the whitened latents v ~ N(0, I), the posterior is an affine map of
standard normal numbers, x = E[x] + G ν. With M = I + ΦᵀΛΦ, R = (C + Λ⁻¹)⁻¹ and α = h − Λμ on the
merged rows,

    KL(q‖p) = ½ (log|M| − Σ λᵢ Σᵢᵢ + αᵀμ),        ∂log Z/∂C = ½ (α αᵀ − R),

because tr(C⁻¹Σ) − R = −tr(ΛΣ), without a difference of large normalisers. λ may be negative.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.linalg.dense import EPS, SMALL_ERROR
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.typing import Array, Generator, Index

from .joint import LatentPrior, kind_of
from .rows import RowGroups, SiteSum


class Posterior(ABC):
    """The posterior of the latents, valid until its solver overwrites ``work``.

    Moments and derivatives are computed when first asked for. Several x or ν are rows of an array.
    """

    #: Length of ν.
    size: int
    #: log ∫ exp(hᵀη − ½ ηᵀΛη) p(η) dη, a flat coefficient having the density one; and log|M|.
    log_normalizer: float
    log_det: float
    #: Estimated rounding errors of ``log_normalizer``, and of the factor and the mean.
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
    def solve(self, rng: Generator, x: Array) -> Array:
        """Return ν with this x, by :meth:`carried`: a draw from N(0, I) if there are many."""

    def carried(self, nu: Array) -> Array:
        """Return x as hyperparameters move it along with them, ν fixed."""
        return self.apply(nu)

    def apply(self, nu: Array) -> Array:
        """Return x, a draw from the posterior for ν ~ N(0, I)."""
        return self.latent_mean + self.root(nu)

    def stretches(self, rng: Generator) -> list[tuple[Index, Index, Index]]:
        """Return sets of stretches of ν that move the predictors of groups of rows apart.

        Each is the entries of ν in a stretch, its number, and that of the one that may move a
        merged row. All sets together have every entry once; there are none where hardly more than
        one stretch would be all.
        """
        return []

    def draw(self, rng: Generator, size: int) -> list[Array]:
        """Return exact joint draws of the whitened blocks v_b, each (size, total_size)."""
        return self.prior.split(self.whitened(self.apply(rng.standard_normal((size, self.size)))))

    def coordinates_of(self, innovations: list[Array]) -> Array:
        """Return x of u by blocks."""
        pairs = zip(self.prior.blocks, innovations, strict=True)
        return self.coordinates(np.concatenate([b.unscale(u) for b, u in pairs]))

    def coordinates(self, v: Array) -> Array:
        """Return x for the whitened latents v."""
        return v

    def whitened(self, x: Array) -> Array:
        """Return the whitened latents v."""
        return x

    def innovations(self, x: Array) -> list[Array]:
        """Return u of every block."""
        return self.prior.innovations(self.whitened(x))

    def innovations_transpose(self, slopes: list[Array]) -> Array:
        """Return the gradient by x of a function of all u, given its gradient by each block's."""
        # Coordinates are at most in another order here.
        return self.coordinates(self.prior.innovations_transpose(slopes))

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
        half = self.pull(self.coordinates(self.prior.whitened_design))
        coupling = self.groups.merged
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
                total += A.apply(B.apply(self.innovation_cov(i, j)).T).T
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
        slopes = [A.apply_transpose(weighted) for A in self.prior.maps]
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
        dense = A.dense()
        return dense.T @ self.response_product(dense)


class Solver(ABC):
    """Conditions latents, whose blocks and groups of rows stay the same, by one factorisation.

    What it can use again it keeps: work arrays, patterns and sums, and the last posterior, which a
    step often asks for once more. ``scratch`` is a Fortran-ordered array of :meth:`order` for
    moments.
    """

    #: Name in saved results.
    name: ClassVar[str]
    #: Whether it uses the factors of the blocks' covariances.
    takes_factors: ClassVar[bool] = False
    #: Whether the gradient of the evidence, taken by observations, costs only a few evaluations;
    #: where this solver is linear in n it costs O(n³).
    has_cheap_gradient: ClassVar[bool] = False
    #: Whether trajectories may follow the gradient of a function of ν.
    differentiable: ClassVar[bool] = False
    #: Standard normal vectors that a move of θ with held sites sums over; many where draws cost
    #: little beside factorisations.
    ensemble: ClassVar[int] = 8
    #: Whether they may follow differences of densities, too: where no sites are near these.
    follows: ClassVar[bool] = False
    #: Draws of (ω, latents) in a step: fewer where they do not cost little beside its evidences.
    sweeps: ClassVar[int] = 4
    #: Whether it has auxiliary variables of its own, drawn by :meth:`augment`.
    augments: ClassVar[bool] = False

    def __init__(self, blocks: Sequence[LatentBlock], groups: RowGroups) -> None:
        self.groups = groups
        self.scratch: Array | None = None
        self._order = self.order(blocks, groups)
        self._works: list[Array] = []
        self._last: Posterior | None = None

    @classmethod
    def order(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> int:
        """Return the order of the dense matrix that is factorised; 0 if none."""
        return 0

    @classmethod
    def multiplications(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> float:
        """Return the number of multiplications at a new θ, without terms common to all solvers."""
        return np.inf

    @classmethod
    def largest_order(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> int:
        """Return the order of the largest matrix, blocks' priors included."""
        return max(cls.order(blocks, groups), *(kind_of(b).matrix_order(b) for b in blocks))

    def prior_cov(self, prior: LatentPrior) -> Array:
        """Return the prior variances of the merged predictors, and covariances of pairs."""
        coupling, Phi = self.groups.merged, prior.whitened_design
        pairs = np.vecdot(Phi[coupling.first], Phi[coupling.second])
        return np.concatenate([np.vecdot(Phi, Phi), pairs])

    def augment(
        self, rng: Generator, prior: LatentPrior, sites: SiteSum, u: Sequence[Array]
    ) -> None:
        """Draw auxiliary variables given the sites and the innovations by blocks."""
        return

    def compile(self) -> None:
        """Compile before chains start, each in a process of its own."""
        return

    def posterior(
        self, prior: LatentPrior, sites: SiteSum, keep: Posterior | None = None
    ) -> Posterior:
        """Return the posterior; it is valid until another one is made that does not ``keep`` it.

        Raises NotPositiveDefiniteError if there is none: negative precisions outweigh the prior.
        """
        last = self._last
        if last is not None and last.prior is prior and sites.equals(last.sites):
            return last
        # The work array is about to be overwritten.
        self._last = None
        posterior = self._condition(prior, sites, keep)
        _add_constant(posterior)
        self._last = posterior
        return posterior

    @abstractmethod
    def _condition(
        self, prior: LatentPrior, sites: SiteSum, keep: Posterior | None
    ) -> Posterior: ...

    def _work(self, keep: Posterior | None) -> Array:
        """Return an array that ``keep`` does not use."""
        for work in self._works:
            if keep is None or keep.work is not work:
                return work
        self._works.append(np.empty((self._order, self._order), order="F"))
        return self._works[-1]


def _add_constant(posterior: Posterior) -> None:
    """Add the sites' constant to the log normaliser, which may cancel.

    Where data are many noise standard deviations from the prior mean, the constant is −½ Σλ(z − m)²
    and the evidence has ½ hᵀΦM⁻¹Φᵀh, as large. Their sum is the log joint density at the posterior
    mean v, which is computed at its predictors,

        log Z = Σ (h η − ½ λ η²) − ½ |v|² − ½ log|M|.

    An error of v changes it by the second order alone: by the product of the errors of the factor
    and of the evidence. With α = h − Λη, rounding of the predictors changes it by ε Σ |α| |η|, and
    rounding of a covariance K by ½ αᵀ ΔK α, |ΔKᵢⱼ| ≤ ε √(Kᵢᵢ Kⱼⱼ).
    """
    # That of the mean is half its square in standard deviations of the posterior.
    posterior.factor_error *= 1.0 + posterior.error
    prior, sites = posterior.prior, posterior.sites
    constant, away = sites.constants
    n, square = sites.terms[0].lam.size, posterior.log_normalizer + 0.5 * posterior.log_det
    posterior.log_normalizer += constant + prior.log_flat
    posterior.error += EPS * math.sqrt(n) * away
    if posterior.error <= SMALL_ERROR or sites.about is None:
        return
    x = posterior.latent_mean
    v = posterior.whitened(x)
    at = sites.about(prior.predictor(posterior.innovations(x)))
    norm = 0.5 * float(v @ v)
    at_mean, magnitude = at.constants
    error = EPS * (math.sqrt(n) * magnitude + norm)
    error += 2.0 * EPS * math.sqrt(magnitude * (away + abs(square)))
    error += posterior.factor_error + n * EPS * posterior.error
    for b, A in zip(prior.blocks, prior.maps, strict=True):
        if b.diagonal_scale is None and not b.scale_error:
            slope = A.apply_transpose(at.h)
            error += 0.5 * EPS * math.sqrt(slope.size) * float(slope**2 @ b.var())
    if error < posterior.error:
        posterior.log_normalizer = at_mean - norm - 0.5 * posterior.log_det + prior.log_flat
        posterior.error = error
