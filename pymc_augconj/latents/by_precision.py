"""Conditioning structured latents on their sites through their sparse precision.

See :mod:`.precision_pattern`. With g = Φᵀh and M = L Lᵀ,

    x | sites ~ N(M⁻¹ g, M⁻¹),        log Z = −½ log|M| + ½ log|Q| + ½ gᵀM⁻¹g,

in time linear in the number of latents where the precision is banded.
"""

from __future__ import annotations

from functools import cached_property, partial

import numpy as np

from pymc_augconj.errors import NotPositiveDefiniteError, RecognitionError
from pymc_augconj.linalg.factors import BorderedFactor, SparseFactor
from pymc_augconj.linalg.linear_map import RowSelection
from pymc_augconj.linalg.rounding import precision_error
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.typing import Array

from .affine import Conditioner, FactorMemory
from .intrinsic import IntrinsicPrior
from .joint import LatentPrior
from .posterior import SitePosterior
from .precision import PrecisionPrior
from .precision_factor import PrecisionFactor, PrecisionSystem
from .precision_pattern import PrecisionPattern, scaled
from .registry import kind_of
from .rows import RowGroups, SiteSum

__all__ = ["AffineByFactor", "PrecisionPosterior", "PrecisionSpace"]

# Below this number of multiplications call overhead dominates.
_CALLS = 64.0**3 / 3.0


class AffineByFactor:
    """The affine map x = L⁻ᵀ (L⁻¹g + ν) of coordinates with the precision M = L Lᵀ.

    Parameters
    ----------
    factor : SparseFactor or BorderedFactor
        L.
    half : ndarray, shape (D,)
        L⁻¹ g.
    log_det : float
        log|M| − log|Q|.
    """

    def __init__(self, factor: SparseFactor | BorderedFactor, half: Array, log_det: float) -> None:
        self._root, self._half, self.size = factor, half, half.size
        self._square = float(half @ half)
        self.log_volume = -0.5 * log_det
        self.log_evidence = 0.5 * self._square + self.log_volume

    @cached_property
    def mean(self) -> Array:
        """E[x]."""
        return self._root.transpose_solve(self._half)

    def apply(self, nu: Array) -> Array:
        """See :class:`.AffinePosterior`."""
        return self._root.transpose_solve(self._half + nu)

    def solve(self, rng: np.random.Generator, x: Array) -> Array:
        """See :class:`.AffinePosterior`."""
        return self._root.transpose_product(x) - self._half


class AffineByPrecision(AffineByFactor):
    """An :class:`.AffinePosterior` from the factor of M."""

    def __init__(self, factor: PrecisionFactor, prior: LatentPrior) -> None:
        super().__init__(factor.factor, factor.half, factor.log_det)
        self._pattern, self._prior = factor.pattern, prior
        self.factor_error = factor.error + prior.log_det_error
        self.error = prior.log_det_error + precision_error(
            factor.error, self._square, lambda: factor.diagonal, lambda: self.mean
        )

    def coordinates(self, v: Array) -> Array:
        """See :class:`.AffinePosterior`."""
        return self._pattern.from_whitened(self._prior, v)

    def whitened(self, x: Array) -> Array:
        """See :class:`.AffinePosterior`."""
        return self._pattern.to_whitened(self._prior, x)

    def innovations(self, prior: LatentPrior, x: Array) -> list[Array]:
        """See :class:`.AffinePosterior`."""
        return self._pattern.innovations(prior, x)


class PrecisionSpace(Conditioner):
    """A :class:`.Conditioner` for models with structured latents.

    Parameters
    ----------
    pattern : PrecisionPattern
    """

    def __init__(self, pattern: PrecisionPattern) -> None:
        self._system = PrecisionSystem(pattern)
        self._memory = FactorMemory[AffineByPrecision]()

    def compile(self) -> None:
        """See :class:`.Conditioner`."""
        self._system.pattern.compile()

    def posterior(self, prior: LatentPrior, sites: SiteSum) -> AffineByPrecision:
        """See :class:`.Conditioner`."""
        return self._memory.get(prior, sites, partial(self._condition, prior, sites))

    def _condition(self, prior: LatentPrior, sites: SiteSum) -> AffineByPrecision:
        _check(self._system.pattern, prior)
        return AffineByPrecision(self._system.factorize(prior, sites.lam, sites.h), prior)


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


class PrecisionPosterior(SitePosterior):
    """Posterior by a factorisation of the sparse posterior precision."""

    space = "precision"
    conditioner = PrecisionSpace
    takes_factors = False
    has_cheap_gradient = False

    @classmethod
    def pattern(cls, model: LatentGaussianModel, groups: RowGroups) -> PrecisionPattern | None:
        """Return the pattern of a model; None if it has no usable structure."""
        if all(block.entries is None for block in model.blocks):
            return None
        if groups.maps is None:
            return None
        make = partial(PrecisionPattern, model.blocks, groups.maps, groups.merged)
        found = groups.keep(cls.space, make)
        return found if found.fits_model else None

    @classmethod
    def make_conditioner(cls, model: LatentGaussianModel, groups: RowGroups) -> Conditioner:
        pattern = cls.pattern(model, groups)
        assert pattern is not None  # else it is not the cheapest
        return PrecisionSpace(pattern)

    @classmethod
    def order(cls, model: LatentGaussianModel, groups: RowGroups) -> int:
        pattern = cls.pattern(model, groups)
        return 0 if pattern is None else pattern.border

    @classmethod
    def multiplications(cls, model: LatentGaussianModel, groups: RowGroups) -> float:
        pattern = cls.pattern(model, groups)
        return np.inf if pattern is None else _CALLS + pattern.multiplications

    @classmethod
    def largest_order(cls, model: LatentGaussianModel, groups: RowGroups) -> int:
        others = [b for b in model.blocks if b.entries is None]
        return max([cls.order(model, groups), *(kind_of(b).matrix_order(b) for b in others)])

    @staticmethod
    def prior_cov(prior: LatentPrior, groups: RowGroups) -> Array:
        pattern = _pattern_of(prior, groups)
        system = PrecisionSystem(pattern)
        n_rows, size = groups.size, groups.merged.size
        return system.factorize(prior, np.zeros(size), np.zeros(n_rows)).predictor_cov()

    def _condition(self, work: Array | None, second_work: Array | None) -> None:
        pattern = _pattern_of(self.prior, self.groups)
        system = PrecisionSystem(pattern)
        factor = self._factor = system.factorize(self.prior, self.merged_lam, self.merged_h)
        half = factor.half
        self._x = factor.factor.transpose_solve(half)
        self.error = self.prior.log_det_error + precision_error(
            factor.error, float(half @ half), lambda: factor.diagonal, lambda: self._x
        )
        centred = factor.design.apply(self._x)
        self.error += self._cancellation(centred)
        self.alpha = self.merged_h - self.groups.merged.product(self.merged_lam, centred)
        log_normalizer = 0.5 * (float(half @ half) - factor.log_det)
        self._finish(factor.log_det, centred, factor.predictor_cov(), log_normalizer)
        # log|M| and log|Q| are separate, as both are large for small steps of a walk.
        structured = [b for b in self.prior.blocks if isinstance(b, PrecisionPrior)]
        self.rounding += 4.0 * sum(abs(block.log_det_scale()) for block in structured)

    # -- moments of the latents -------------------------------------------------------------------

    def innovation_means(self) -> list[Array]:
        return self._factor.pattern.innovations(self.prior, self._x)

    def innovation_cov(self, first: int, second: int) -> Array:
        pattern, blocks = self._factor.pattern, self.prior.blocks
        zeros = [np.zeros((blocks[first].block.total_size, b.block.total_size)) for b in blocks]
        zeros[first] = np.eye(blocks[first].block.total_size)
        columns = self._factor.factor.solve(pattern.joined_weights(zeros))
        cov = scaled(self.prior.blocks[second], pattern.part(second, columns))
        return scaled(self.prior.blocks[first], cov.T).T

    def innovation_var(self, index: int) -> Array:
        block = self.prior.blocks[index]
        if index not in self._factor.pattern.within:
            return np.diagonal(self.innovation_cov(index, index)).copy()
        var = self._factor.var(index)
        return var if isinstance(block, PrecisionPrior) else block.var() * var

    def weighted_cov(self, index: int) -> Array:
        if isinstance(self.prior.blocks[index], PrecisionPrior):
            return super().weighted_cov(index)
        coupling, factor, size = self.groups.merged, self._factor, self.prior.blocks[index].block
        parts = [np.zeros((size.total_size, b.block.total_size)) for b in self.prior.blocks]
        parts[index] = np.eye(size.total_size)
        columns = factor.factor.solve(factor.pattern.joined_weights(parts))
        rows = [coupling.product(self.merged_lam, factor.design.apply(x)) for x in columns]
        return self.prior.blocks[index].scale(np.array(rows).T)

    def explained(self, cross: Array) -> Array:
        return cross @ self.response_product(cross.T)

    def explained_var(self, cross: Array) -> Array:
        return np.einsum("ij,ji->i", cross, self.response_product(cross.T))

    def response_product(self, X: Array) -> Array:
        # R = Λ − ΛΦM⁻¹ΦᵀΛ
        coupling, factor = self.groups.merged, self._factor
        weighted = np.array([coupling.product(self.merged_lam, x) for x in X.T]).reshape(X.T.shape)
        right = np.array([factor.design.transpose(w) for w in weighted])
        back = [factor.design.apply(x) for x in factor.factor.solve(right.reshape(len(right), -1))]
        taken = [coupling.product(self.merged_lam, eta) for eta in back]
        return (weighted - np.array(taken).reshape(weighted.shape)).T

    def draw(self, rng: np.random.Generator, size: int) -> list[Array]:
        nu = rng.standard_normal((size, self._x.size))
        x = self._x + self._factor.factor.transpose_solve(nu)
        return self.prior.split(self._factor.pattern.to_whitened(self.prior, x))

    # -- derivatives -------------------------------------------------------------------------------

    def pull_cov(self, index: int) -> Array:
        # log Z = log ∫ exp(hᵀη − ½ ηᵀΛη) p(u) du: its derivative is the derivative of log p
        # averaged over the posterior, ½ K − ½ E[u uᵀ | sites] by Q, and (E[v² | sites] − 1)/s by s.
        block, factor = self.prior.blocks[index], self._factor
        pattern = factor.pattern
        if isinstance(block, PrecisionPrior):
            assert block.block.entries is not None
            rows, cols = block.block.entries
            mean = pattern.within_block(index, self._x)
            second = factor.cov_of_entries(index, rows, cols) + mean[rows] * mean[cols]
            if isinstance(block, IntrinsicPrior):
                # The differences x suffice for B, whose rows sum to zero.
                sums = pattern.of_sums(self.prior)[pattern.intrinsic.index(index)]
                square = np.sum(factor.factor.half_solve(sums) ** 2) + (sums @ self._x) ** 2
                second = np.append(second, square / block.common)
            slopes = block.log_det_slopes()
            slopes[: second.size] -= second
            return 0.5 * slopes
        mean = pattern.part(index, self._x)
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
        cov = self._factor.cov_with_predictors(index, self.merged_lam)
        block = self.prior.blocks[index]
        if not isinstance(block, PrecisionPrior):
            assert block.diagonal_scale is not None
            cov = cov * block.diagonal_scale[A.index]
        return self.alpha * mean[A.index] - cov


def _pattern_of(prior: LatentPrior, groups: RowGroups) -> PrecisionPattern:
    blocks = [block.block for block in prior.blocks]
    make = partial(PrecisionPattern, blocks, prior.maps, groups.merged)
    pattern = groups.keep(PrecisionPosterior.space, make)
    _check(pattern, prior)
    return pattern
