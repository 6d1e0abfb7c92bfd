"""Conditioning structured latents on their sites through their sparse precision.

See :mod:`.precision_pattern`. With g = Φᵀh and M = L Lᵀ,

    x | sites ~ N(M⁻¹ g, M⁻¹),        log Z = −½ log|M| + ½ log|Q| + ½ gᵀM⁻¹g,

in time linear in the number of latents where the precision is banded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
from scipy.linalg.lapack import dpotri

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError, RecognitionError
from pymc_augconj.linalg.dense import (
    EPS,
    SMALL_BOUND,
    dense_error,
    mirror_lower,
    precision_error,
    probes,
    trace_error,
)
from pymc_augconj.linalg.factors import BorderedFactor, Factor, SparseFactor, UpdatedFactor
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection, times
from pymc_augconj.typing import Array, Generator, Index

from .joint import LatentPrior, kind_of
from .posterior import Posterior, Solver
from .precision import IntrinsicPrior, PrecisionPrior
from .precision_pattern import PrecisionDesign, PrecisionPattern
from .rows import MergedSites, RowGroups, SiteSum

# Below this number of multiplications call overhead dominates.
_CALLS = 64.0**3 / 3.0
# Number of effects from which a fit takes them for a sparse precision.
_MANY = 256
_NO_FACTOR = (
    "the posterior precision of the latents has no Cholesky factor: expected a finite design and "
    "precisions whose negative ones do not outweigh the prior"
)


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

    def solve(self, rng: Generator, x: Array) -> Array:
        return self._root.transpose_product(x) - self._half


class PrecisionPosterior(FactorPosterior):
    """Posterior by the factor of M, given ΦᵀΛΦ in B, flat."""

    def __init__(
        self,
        prior: LatentPrior,
        groups: RowGroups,
        sites: SiteSum,
        design: PrecisionDesign,
        gram: Array,
    ) -> None:
        self._design, self._pattern = design, design.pattern
        pattern, X, lam = design.pattern, design.border, sites.lam
        #: B, which a factorisation may have overwritten.
        self._flat = pattern.precision(prior, gram)
        factor = pattern.sparsity.factorize(self._flat, "the posterior precision of the latents")
        weighted = np.array([pattern.coupling.product(lam, x) for x in X.T]).reshape(X.T.shape)
        sums, linear = pattern.of_sums(prior), design.transpose(sites.h)
        first, second = sums[:, : pattern.size], sums[:, pattern.size :]
        # Where ΦᵀΛΦ is a positive diagonal D in B, M ≥ D, and tr H⁻¹ is at most Σ Mᵢᵢ/Dᵢᵢ.
        own = gram[pattern.sparsity.diagonal]
        has_bound = pattern.is_diagonal and own.min() > 0.0
        excess = factor.diagonal / own if has_bound else np.full(1, np.inf)
        error = EPS * pattern.size * float(excess.sum())
        # All at once, as several right-hand sides cost hardly more than one.
        right = [design.transpose_within(weighted), first, linear[None, : pattern.size]]
        if not error <= SMALL_BOUND:
            right.append(probes(factor.diagonal))
        solved = factor.half_solve(np.vstack(right))
        stop = pattern.border + len(sums)
        half, rows, of_linear = (
            solved[: pattern.border],
            solved[pattern.border : stop],
            solved[stop],
        )
        if not error <= SMALL_BOUND:
            error = trace_error(solved[stop + 1 :])
        corner = weighted @ X
        corner.ravel()[:: pattern.border + 1][: pattern.n_whitened] += 1.0
        of_corner = np.diagonal(corner).copy()
        half, corner = self._eliminate(factor, half, corner)
        self._within = within = UpdatedFactor(factor, rows)
        if pattern.intrinsic:
            left = second - rows @ half.T
            corner += left.T @ np.linalg.solve(np.eye(len(sums)) + rows @ rows.T, left)
            half = within.shrink(half + second.T @ rows)
        self._bordered = bordered = BorderedFactor.eliminated(within, half, corner, _NO_FACTOR)
        if pattern.border:
            error += dense_error(bordered.corner, of_corner)
        structured = [block for block in prior.blocks if isinstance(block, PrecisionPrior)]
        log_det = bordered.log_det + 2.0 * sum(block.log_det_scale() for block in structured)
        half = bordered.joined_half(within.shrink(of_linear), linear[pattern.size :])
        super().__init__(prior, groups, sites, bordered, half, log_det)
        self.factor_error = error + prior.log_det_error
        self.error = prior.log_det_error + precision_error(
            error,
            self._square,
            # Without the terms of sums.
            lambda: np.concatenate([factor.diagonal, of_corner]),
            lambda: self.latent_mean,
            np.inf if pattern.border else EPS * np.sqrt(pattern.size) * float(excess.max()),
        )

    def _eliminate(self, factor: Factor, half: Array, corner: Array) -> tuple[Array, Array]:
        """Return Wᵀ and D − WᵀW, given the factor of B, (L₁⁻¹ Cᵀ)ᵀ and D."""
        return half, corner - half @ half.T

    def coordinates(self, v: Array) -> Array:
        pairs = zip(self.prior.blocks, self.prior.split(v), strict=True)
        parts = [b.scale(x) if isinstance(b, PrecisionPrior) else x for b, x in pairs]
        return self._pattern.joined(parts)

    def coordinates_of(self, innovations: list[Array]) -> Array:
        pairs = zip(self.prior.blocks, innovations, strict=True)
        parts = [u if isinstance(b, PrecisionPrior) else b.unscale(u) for b, u in pairs]
        return self._pattern.joined(parts)

    def whitened(self, x: Array) -> Array:
        parts = [(b, self._pattern.part(i, x)) for i, b in enumerate(self.prior.blocks)]
        v = [b.unscale(part) if isinstance(b, PrecisionPrior) else part for b, part in parts]
        return np.concatenate(v, axis=-1)

    def innovations(self, x: Array) -> list[Array]:
        parts = [(b, self._pattern.part(i, x)) for i, b in enumerate(self.prior.blocks)]
        return [part if isinstance(b, PrecisionPrior) else b.scale(part) for b, part in parts]

    def innovations_transpose(self, slopes: list[Array]) -> Array:
        pairs = zip(self.prior.blocks, slopes, strict=True)
        parts = [x if isinstance(b, PrecisionPrior) else b.scale_transpose(x) for b, x in pairs]
        return self._pattern.joined_weights(parts)

    # -- moments ----------------------------------------------------------------------------------

    @cached_property
    def _corner_cov(self) -> Array:
        if not self._pattern.border:
            return self._bordered.corner
        return mirror_lower(dpotri(self._bordered.corner, lower=1)[0])

    @cached_property
    def _inverse(self) -> Array:
        """(L₁ L₁ᵀ)⁻¹ on the pattern of L₁, flat."""
        return self._within.factor.inverse()

    @cached_property
    def _regression(self) -> Array:
        """Low-rank correction factor G, (r, n): M⁻¹ on B is (L₁ L₁ᵀ)⁻¹ + Gᵀ J G.

        Its rows are the regression of the border on B, and the low-rank terms of sums.
        """
        of_border = self._within.transpose_solve(self._bordered.border)
        return np.vstack([of_border, self._within.factor.transpose_solve(self._within.basis)])

    @cached_property
    def _core(self) -> Array:
        """J of :attr:`_regression`, shape (r, r)."""
        m = self._pattern.border
        core = np.diag(np.append(np.zeros(m), -1.0 / (1.0 + self._within.squares)))
        core[:m, :m] = self._corner_cov
        return core

    @cached_property
    def _rest(self) -> Array:
        """H with Cov(η) = Φ₁ (L₁ L₁ᵀ)⁻¹ Φ₁ᵀ + H J Hᵀ and Cov(η, x₁) = Φ₁ (L₁ L₁ᵀ)⁻¹ − H J G."""
        n_updates = len(self._regression) - self._pattern.border
        border = np.pad(self._design.border, ((0, 0), (0, n_updates)))
        return border - self._design.apply_within(self._regression).T

    def _cov_of_entries(self, index: int, rows: Index, cols: Index) -> Array:
        """Return covariances of values of a block in B that meet in M; of x if intrinsic."""
        columns, sparsity = self._pattern.columns(index), self._pattern.sparsity
        rows, cols = columns[rows], columns[cols]
        meet = (rows >= 0) & (cols >= 0)
        rows, cols = rows[meet], cols[meet]
        half, G = self._core @ self._regression, self._regression
        left, right = half[:, sparsity.place[rows]], G[:, sparsity.place[cols]]
        cov = np.zeros(meet.size)
        cov[meet] = self._inverse[sparsity.positions(rows, cols)]
        cov[meet] += np.einsum("ik,ik->k", left, right)
        return cov

    def _var(self, index: int) -> Array:
        """Return the variances of a block in B."""
        pattern, columns = self._pattern, self._pattern.columns(index)
        own = np.arange(columns.size)
        var = self._cov_of_entries(index, own, own)
        if index in pattern.intrinsic:
            level = pattern.level(index) - pattern.size
            with_level = -self._corner_cov[level] @ self._regression[: pattern.border]
            with_level = with_level[pattern.sparsity.place[columns]]
            var += self._corner_cov[level, level] + 2.0 * np.where(columns >= 0, with_level, 0.0)
        return var

    @cached_property
    def merged_cov(self) -> Array:
        coupling, H, HJ = self._pattern.coupling, self._rest, self._rest @ self._core
        own = np.einsum("ij,ij->i", H, HJ)
        pairs = np.einsum("ij,ij->i", HJ[coupling.first], H[coupling.second])
        total = np.concatenate([own, pairs])
        for which in self._pattern.products:
            terms = self._design.product(which, self._inverse[which.positions])
            once = which.coupled or which.first == which.second
            total[which.entries] += terms if once else 2.0 * terms
        return total

    def _cov_with_predictors(self, index: int) -> Array:
        """Return Σₖ Λᵢₖ Cov(η′ₖ, uⱼ) for every row i, uⱼ its value of a block."""
        design, pattern, lam = self._design, self._pattern, self.sites.lam
        coupling, H = pattern.coupling, self._rest
        column = pattern.columns(index)[design.maps[index].index]
        weighted = np.array([coupling.product(lam, t) for t in H.T]).reshape(H.T.shape)
        through = (self._core @ self._regression)[:, pattern.sparsity.place[column]]
        total = -np.einsum("ik,ik->k", weighted, np.where(column >= 0, through, 0.0))
        if index in pattern.intrinsic:
            m = pattern.border
            total += self._corner_cov[pattern.level(index) - pattern.size] @ weighted[:m]
        every = np.arange(coupling.n_rows)
        for which in pattern.products:
            terms = lam[which.entries] * self._inverse[which.positions]
            sides = [(which.first, which.second), (which.second, which.first)]
            for (block, other), (rows, others) in zip(
                sides if which.coupled or which.first != which.second else sides[:1],
                (which.rows, which.rows[::-1]),
                strict=False,
            ):
                if block == index:
                    coef = design.maps[other].coef
                    term = times(terms, None if coef is None else coef[others])
                    total += np.bincount(every[rows], term, every.size)
        return total

    @property
    def divergence_magnitude(self) -> float:
        # log|M| and log|Q| are separate, as both are large for small steps of a walk.
        structured = [b for b in self.prior.blocks if isinstance(b, PrecisionPrior)]
        of_prior = 4.0 * sum(abs(block.log_det_scale()) for block in structured)
        return super().divergence_magnitude + of_prior

    def innovation_var(self, index: int) -> Array:
        block = self.prior.blocks[index]
        if index not in self._pattern.within:
            return super().innovation_var(index)
        var = self._var(index)
        return var if isinstance(block, PrecisionPrior) else block.var() * var

    # -- derivatives -------------------------------------------------------------------------------

    def pull_cov(self, index: int) -> Array:
        # log Z = log ∫ exp(hᵀη − ½ ηᵀΛη) p(u) du: its derivative is the derivative of log p
        # averaged over the posterior, ½ K − ½ E[u uᵀ | sites] by Q, and (E[v² | sites] − 1)/s by s.
        block, pattern = self.prior.blocks[index], self._pattern
        if isinstance(block, PrecisionPrior):
            rows, cols = block.entries
            mean = pattern.within_block(index, self.latent_mean)
            second = self._cov_of_entries(index, rows, cols) + mean[rows] * mean[cols]
            if isinstance(block, IntrinsicPrior):
                # The differences x suffice for B, whose rows sum to zero.
                sums = pattern.of_sums(self.prior)[pattern.intrinsic.index(index)]
                square = np.sum(self._root.half_solve(sums) ** 2) + (sums @ self.latent_mean) ** 2
                second = np.append(second, square / block.common)
            slopes = block.log_det_slopes()
            slopes[: second.size] -= second
            return 0.5 * slopes
        if index not in pattern.within:
            return super().pull_cov(index)
        scale, mean = block.diagonal_scale, pattern.part(index, self.latent_mean)
        assert scale is not None  # see PrecisionPattern
        excess = self._var(index) + mean**2 - 1.0
        return np.divide(excess, scale, out=np.zeros_like(scale), where=scale > 0.0)

    def pull_selection(self, index: int) -> Array:
        # ∂ log Z/∂Aᵢⱼ = E[(h − Λη)ᵢ uⱼ] = αᵢ E[uⱼ] − Σₖ Λᵢₖ Cov(ηₖ, uⱼ)
        if index not in self._pattern.within:
            return super().pull_selection(index)
        A, block = self.prior.maps[index], self.prior.blocks[index]
        assert isinstance(A, RowSelection)
        cov = self._cov_with_predictors(index)
        if not isinstance(block, PrecisionPrior):
            assert block.diagonal_scale is not None
            cov = cov * block.diagonal_scale[A.index]
        return self.alpha * self.innovation_means()[index][A.index] - cov


class PrecisionSolver(Solver):
    """A factorisation of the sparse posterior precision."""

    name = "precision"
    differentiable = follows = True
    pattern_type: ClassVar[type[PrecisionPattern]] = PrecisionPattern

    def __init__(self, blocks: Sequence[LatentBlock], groups: RowGroups) -> None:
        super().__init__(blocks, groups)
        self._blocks = blocks
        # The last ΦᵀΛΦ, as a step evaluates many θ at the same sites.
        self._known: tuple[Array, list[Array | None], Array] | None = None

    @classmethod
    def pattern(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> PrecisionPattern | None:
        """Return the pattern of a model; None if it has no usable structure."""
        if groups.maps is None or not cls._suits(blocks):
            return None
        found = cls._kept(blocks, groups.maps, groups)
        return found if found.fits_model else None

    @classmethod
    def _kept(
        cls, blocks: Sequence[LatentBlock], maps: Sequence[LinearMap], groups: RowGroups
    ) -> PrecisionPattern:
        return groups.keep(cls.name, partial(cls.pattern_type, blocks, maps, groups.merged))

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
        lam = np.zeros(self.groups.merged.size)
        none = MergedSites(lam[: self.groups.size], lam, 0.0)
        return self._condition(prior, SiteSum((none,)), None).merged_cov

    def _condition(
        self, prior: LatentPrior, sites: SiteSum, keep: Posterior | None
    ) -> PrecisionPosterior:
        pattern = self._kept(self._blocks, prior.maps, self.groups)
        if not pattern.fits_model:
            raise NotPositiveDefiniteError(
                "expected predictors of one value of each structured latent"
            )
        if not pattern.holds(prior.maps):
            names = [prior.blocks[i].block.name for i in pattern.within]
            raise RecognitionError(
                f"latent variables {names}: expected predictors that take the same entries of them "
                "as when the model was recognised, found others; if its data have changed, "
                "recognise the model again (build the step again)"
            )
        design = PrecisionDesign(pattern, prior)
        gram = self._gram(design, sites.lam)
        return self._posterior(prior, sites, design, gram)

    def _posterior(
        self, prior: LatentPrior, sites: SiteSum, design: PrecisionDesign, gram: Array
    ) -> PrecisionPosterior:
        return PrecisionPosterior(prior, self.groups, sites, design, gram)

    def _gram(self, design: PrecisionDesign, lam: Array) -> Array:
        """Return ΦᵀΛΦ in B, flat."""
        coefs = [A.coef for A in design.maps.values()]
        if self._known is not None:
            known_lam, known, gram = self._known
            if known_lam is lam and all(a is b for a, b in zip(known, coefs, strict=True)):
                return gram
        gram = np.zeros(design.pattern.sparsity.n_flat)
        for which in design.pattern.products:
            terms = times(design.product(which, lam[which.entries]), which.twice)
            np.add.at(gram, which.positions, terms)
        self._known = lam, coefs, gram
        return gram


class IndependentSolver(PrecisionSolver):
    """The same for many independent effects without structured latents; of fits alone.

    The sampler has ways of its own for such effects.
    """

    name = "independent"

    @classmethod
    def _suits(cls, blocks: Sequence[LatentBlock]) -> bool:
        structured = super()._suits(blocks)
        return not structured and any(b.total_size >= _MANY for b in blocks if b.is_independent)
