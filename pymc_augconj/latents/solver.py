"""The contract of a solver, which conditions the latents on their sites by one factorisation.

What it can use again it keeps: work arrays, patterns and sums, and the last posterior, which a step
often asks for once more.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.linalg.rounding import EPS, SMALL_ERROR
from pymc_augconj.typing import Array

from .joint import LatentPrior
from .posterior import Posterior
from .registry import kind_of
from .rows import RowGroups, SiteSum


class Solver(ABC):
    """Conditions latents whose blocks and groups of rows stay the same.

    ``scratch`` is a Fortran-ordered array of :meth:`order` for moments, which may be overwritten.
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
