"""Conditioning structured latents on their sites through their sparse precision.

See :mod:`.precision_pattern`. With g = Φᵀh and M = L Lᵀ,

    x | sites ~ N(M⁻¹ g, M⁻¹),        log Z = −½ log|M| + ½ log|Q| + ½ gᵀM⁻¹g,

in time linear in the number of latents where the precision is banded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError, RecognitionError
from pymc_augconj.linalg.factors import BorderedFactor, SparseFactor
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.linalg.rounding import precision_error
from pymc_augconj.typing import Array

from .intrinsic import IntrinsicPrior
from .joint import LatentPrior
from .posterior import Posterior
from .precision import PrecisionPrior
from .precision_factor import PrecisionFactor, PrecisionSystem
from .precision_pattern import PrecisionPattern
from .registry import kind_of
from .rows import RowGroups, SiteSum
from .solver import Solver

__all__ = ["FactorPosterior", "IndependentSolver", "PrecisionSolver"]

# Below this number of multiplications call overhead dominates.
_CALLS = 64.0**3 / 3.0
# Number of effects from which a fit takes them for a sparse precision.
_MANY = 256


class FactorPosterior(Posterior):
    """Posterior x = L⁻ᵀ (L⁻¹g + ν) of coordinates with the precision M = L Lᵀ.

    ``factor`` is L, ``half`` L⁻¹ g, and ``log_det`` log|M| − log|Q|.
    """

    def __init__(
        self,
        prior: LatentPrior,
        groups: RowGroups,
        sites: SiteSum,
        factor: SparseFactor | BorderedFactor,
        half: Array,
        log_det: float,
    ) -> None:
        super().__init__(prior, groups, sites)
        self._root, self._half, self.size, self.log_det = factor, half, half.size, log_det
        self._square = float(half @ half)
        self.log_normalizer = 0.5 * (self._square - log_det)

    @cached_property
    def latent_mean(self) -> Array:
        return self._root.transpose_solve(self._half)

    def root(self, nu: Array) -> Array:
        return self._root.transpose_solve(nu)

    def pull(self, slope: Array) -> Array:
        return self._root.half_solve(slope)

    def solve(self, rng: np.random.Generator, x: Array) -> Array:
        return self._root.transpose_product(x) - self._half


class PrecisionPosterior(FactorPosterior):
    """Posterior by the factor of M, in coordinates of its own."""

    def __init__(
        self, prior: LatentPrior, groups: RowGroups, sites: SiteSum, factor: PrecisionFactor
    ) -> None:
        super().__init__(prior, groups, sites, factor.factor, factor.half, factor.log_det)
        self._factor = factor
        self.factor_error = factor.error + prior.log_det_error
        self.error = prior.log_det_error + precision_error(
            factor.error, self._square, lambda: factor.diagonal, lambda: self.latent_mean
        )

    def coordinates(self, v: Array) -> Array:
        return self._factor.pattern.from_whitened(self.prior, v)

    def whitened(self, x: Array) -> Array:
        return self._factor.pattern.to_whitened(self.prior, x)

    def innovations(self, x: Array) -> list[Array]:
        return self._factor.pattern.innovations(self.prior, x)

    def innovations_transpose(self, slopes: list[Array]) -> Array:
        parts = [
            slope if isinstance(block, PrecisionPrior) else block.scale_transpose(slope)
            for block, slope in zip(self.prior.blocks, slopes, strict=True)
        ]
        return self._factor.pattern.joined_weights(parts)

    # -- moments ----------------------------------------------------------------------------------

    @cached_property
    def merged_cov(self) -> Array:
        return self._factor.predictor_cov()

    @property
    def divergence_magnitude(self) -> float:
        # log|M| and log|Q| are separate, as both are large for small steps of a walk.
        structured = [b for b in self.prior.blocks if isinstance(b, PrecisionPrior)]
        of_prior = 4.0 * sum(abs(block.log_det_scale()) for block in structured)
        return super().divergence_magnitude + of_prior

    def innovation_var(self, index: int) -> Array:
        block = self.prior.blocks[index]
        if index not in self._factor.pattern.within:
            return super().innovation_var(index)
        var = self._factor.var(index)
        return var if isinstance(block, PrecisionPrior) else block.var() * var

    # -- derivatives -------------------------------------------------------------------------------

    def pull_cov(self, index: int) -> Array:
        # log Z = log ∫ exp(hᵀη − ½ ηᵀΛη) p(u) du: its derivative is the derivative of log p
        # averaged over the posterior, ½ K − ½ E[u uᵀ | sites] by Q, and (E[v² | sites] − 1)/s by s.
        block, factor = self.prior.blocks[index], self._factor
        pattern = factor.pattern
        if isinstance(block, PrecisionPrior):
            assert block.block.entries is not None
            rows, cols = block.block.entries
            mean = pattern.within_block(index, self.latent_mean)
            second = factor.cov_of_entries(index, rows, cols) + mean[rows] * mean[cols]
            if isinstance(block, IntrinsicPrior):
                # The differences x suffice for B, whose rows sum to zero.
                sums = pattern.of_sums(self.prior)[pattern.intrinsic.index(index)]
                square = (
                    np.sum(factor.factor.half_solve(sums) ** 2) + (sums @ self.latent_mean) ** 2
                )
                second = np.append(second, square / block.common)
            slopes = block.log_det_slopes()
            slopes[: second.size] -= second
            return 0.5 * slopes
        mean = pattern.part(index, self.latent_mean)
        if index in pattern.within:
            scale = block.diagonal_scale
            assert scale is not None  # see PrecisionPattern
            excess = factor.var(index) + mean**2 - 1.0
            return np.divide(excess, scale, out=np.zeros_like(scale), where=scale > 0.0)
        return super().pull_cov(index)

    def pull_selection(self, index: int) -> Array:
        # ∂ log Z/∂Aᵢⱼ = E[(h − Λη)ᵢ uⱼ] = αᵢ E[uⱼ] − Σₖ Λᵢₖ Cov(ηₖ, uⱼ)
        if index not in self._factor.pattern.within:
            return super().pull_selection(index)
        A = self.prior.maps[index]
        assert isinstance(A, RowSelection)
        mean = self.innovation_means()[index]
        cov = self._factor.cov_with_predictors(index, self.sites.lam)
        block = self.prior.blocks[index]
        if not isinstance(block, PrecisionPrior):
            assert block.diagonal_scale is not None
            cov = cov * block.diagonal_scale[A.index]
        return self.alpha * mean[A.index] - cov


class PrecisionSolver(Solver):
    """A factorisation of the sparse posterior precision."""

    name = "precision"

    def __init__(self, blocks: Sequence[LatentBlock], groups: RowGroups) -> None:
        super().__init__(blocks, groups)
        self._blocks = blocks
        self._system: PrecisionSystem | None = None

    @classmethod
    def pattern(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> PrecisionPattern | None:
        """Return the pattern of a model; None if it has no usable structure."""
        if groups.maps is None or not cls._suits(blocks):
            return None
        found = _pattern(blocks, groups.maps, groups)
        return found if found.fits_model else None

    @classmethod
    def _suits(cls, blocks: Sequence[LatentBlock]) -> bool:
        return any(block.entries is not None for block in blocks)

    @classmethod
    def order(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> int:
        pattern = cls.pattern(blocks, groups)
        return 0 if pattern is None else pattern.border

    @classmethod
    def multiplications(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> float:
        pattern = cls.pattern(blocks, groups)
        return np.inf if pattern is None else _CALLS + pattern.multiplications

    @classmethod
    def largest_order(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> int:
        others = [b for b in blocks if b.entries is None]
        return max([cls.order(blocks, groups), *(kind_of(b).matrix_order(b) for b in others)])

    def compile(self) -> None:
        pattern = self.pattern(self._blocks, self.groups)
        assert pattern is not None  # else it is not preferred
        pattern.compile()

    def prior_cov(self, prior: LatentPrior) -> Array:
        zeros = np.zeros(self.groups.merged.size)
        return self._factorize(prior, zeros, zeros[: self.groups.size]).predictor_cov()

    def _condition(
        self, prior: LatentPrior, sites: SiteSum, keep: Posterior | None
    ) -> PrecisionPosterior:
        factor = self._factorize(prior, sites.lam, sites.h)
        return PrecisionPosterior(prior, self.groups, sites, factor)

    def _factorize(self, prior: LatentPrior, lam: Array, h: Array) -> PrecisionFactor:
        if self._system is None:
            self._system = PrecisionSystem(_pattern(self._blocks, prior.maps, self.groups))
        _check(self._system.pattern, prior)
        return self._system.factorize(prior, lam, h)


class IndependentSolver(PrecisionSolver):
    """The same for many independent effects without structured latents; of fits alone.

    The sampler has ways of its own for such effects.
    """

    name = "independent"

    @classmethod
    def _suits(cls, blocks: Sequence[LatentBlock]) -> bool:
        structured = super()._suits(blocks)
        return not structured and any(b.total_size >= _MANY for b in blocks if b.is_independent)


def _pattern(
    blocks: Sequence[LatentBlock], maps: Sequence[LinearMap], groups: RowGroups
) -> PrecisionPattern:
    make = partial(PrecisionPattern, blocks, maps, groups.merged)
    return groups.keep(PrecisionSolver.name, make)


def _check(pattern: PrecisionPattern, prior: LatentPrior) -> None:
    if not pattern.fits_model:
        raise NotPositiveDefiniteError("expected predictors of one value of each structured latent")
    if not pattern.holds(prior.maps):
        names = [prior.blocks[i].block.name for i in pattern.within]
        raise RecognitionError(
            f"latent variables {names}: expected predictors that take the same entries of them as "
            "when the model was recognised, found others; if its data have changed, recognise the "
            "model again (build the step again)"
        )
