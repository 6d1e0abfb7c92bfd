"""Conditioning independent latents on their sites, with the observations summed out.

Where every block is diagonal, S = diag(s), sites (h, λ) enter only through G = AᵀΛA and g = Aᵀh:

    M = I + S G S,        v | sites ~ N(M⁻¹ S g, M⁻¹),        log Z = −½ log|M| + ½ gᵀS M⁻¹ S g.

G has entries only between groups of a hierarchical model with common observations, and is
factorised as a sparse matrix. Hyperparameters that only scale the sites or a block's design (a
noise variance, the scale of non-centred effects) scale G and g. Coefficients of parts of a design
(the Cholesky factor of correlated effects) weight sums over pairs of parts. Others need new sums
over observations.

A block of many copies of a few correlated latents, S = I ⊗ L, is independent in whitened
coordinates: with a row's entries aᵀu, u = L v of its group, the design A S is a sum of selections
with the coefficients L_kl, as users write it without centring.

References
----------
Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, section 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from operator import is_

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.linalg.factors import SparseFactor
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection, SelectionSum, times
from pymc_augconj.linalg.rounding import EPS, SMALL_BOUND, precision_error
from pymc_augconj.linalg.sparse import SparsePattern
from pymc_augconj.typing import Array, Index

from .base import BlockPrior
from .by_precision import FactorPosterior
from .dense import DensePrior
from .gram_pattern import GramPattern, is_dense
from .joint import LatentPrior
from .posterior import Posterior
from .rows import MergedSites, RowGroups, SiteSum
from .solver import Solver

__all__ = ["GramSolver", "can_sum_out", "whitened_parts"]

# More correlated latents of a group make too many pairs of parts.
_LARGEST_GROUP = 4

# Tolerance for two arrays being multiples of each other, in units of the last place.
_ROUNDING = 4.0 * np.finfo(float).eps
# Range of factors between known and new arrays: beyond it sums of squares may underflow.
_SMALLEST = 1e-100


def can_sum_out(blocks: Sequence[LatentBlock], maps: Sequence[LinearMap]) -> bool:
    """Return whether every block is diagonal, or many copies of a few latents that are selected."""
    return all(
        block.is_independent or (_is_repeated(block) and isinstance(A, RowSelection | SelectionSum))
        for block, A in zip(blocks, maps, strict=True)
    )


def _is_repeated(block: LatentBlock) -> bool:
    return block.is_correlated and block.copies > 1 and block.size <= _LARGEST_GROUP


@dataclass(frozen=True)
class _Whitened:
    """Parts of A S for a block of copies: L_kl times part ``base[of[i]]`` with l in place of k."""

    base: tuple[RowSelection, ...]
    parts: tuple[RowSelection, ...]
    of: Index
    entries: tuple[Index, Index]

    @classmethod
    def find(cls, base: tuple[RowSelection, ...], size: int) -> _Whitened:
        parts, of, entries = [], [], []
        for number, part in enumerate(base):
            kind = part.index % size
            for k in np.unique(kind).tolist():
                coef = times(1.0 * (kind == k), part.coef)
                for other in range(k + 1):
                    index = part.index - kind + other
                    parts.append(RowSelection(index, coef, part.size))
                    of.append(number)
                    entries.append((k, other))
        rows, cols = np.array(entries).T
        return cls(base, tuple(parts), np.array(of), (rows, cols))

    def at(self, coefs: Array, block: BlockPrior) -> SelectionSum:
        assert isinstance(block, DensePrior)  # see can_sum_out
        return SelectionSum(coefs[self.of] * block.chol[self.entries], self.parts)


def whitened_parts(blocks: Sequence[LatentBlock], maps: Sequence[LinearMap]) -> list[LinearMap]:
    """Return the maps of blocks, those of copies with the parts of A S and coefficients of one."""
    found = []
    for block, A in zip(blocks, maps, strict=True):
        if block.is_independent:
            found.append(A)
        else:
            parts = _Whitened.find(_parts_of(A)[0], block.size).parts
            found.append(SelectionSum(np.ones(len(parts)), parts))
    return found


def _parts_of(A: LinearMap) -> tuple[tuple[RowSelection, ...], Array]:
    """Return the selections whose sum a map is, and their coefficients."""
    if isinstance(A, SelectionSum):
        return tuple(A.parts), A.coefs
    assert isinstance(A, RowSelection)
    c, base = A.multiple_of
    return (base,), np.array([c])


class GramPosterior(FactorPosterior):
    """Posterior in whitened coordinates, in the order of elimination."""

    differentiable = False

    def __init__(
        self,
        prior: LatentPrior,
        groups: RowGroups,
        sites: SiteSum,
        factor: SparseFactor,
        half: Array,
        pattern: SparsePattern,
    ) -> None:
        super().__init__(prior, groups, sites, factor, half, factor.log_det)
        self._pattern = pattern
        # M is at least I: none of its eigenvalues is above its determinant.
        self.factor_error = EPS * self.size**2 * exp(min(factor.log_det, 100.0))
        self.error = self.factor_error * (1.0 + self._square)
        if self.error > SMALL_BOUND:
            # Nor is the trace of H⁻¹ above that of M.
            bound = EPS * self.size * float(factor.diagonal.sum())
            self.factor_error = bound if bound <= SMALL_BOUND else factor.error
            self.error = precision_error(
                self.factor_error, self._square, lambda: factor.diagonal, lambda: self.latent_mean
            )

    def coordinates(self, v: Array) -> Array:
        return self._pattern.forward(v)

    def whitened(self, x: Array) -> Array:
        return self._pattern.back(x)

    def innovations(self, x: Array) -> list[Array]:
        return self.prior.innovations(self.whitened(x))

    def innovations_transpose(self, slopes: list[Array]) -> Array:
        return self.coordinates(self.prior.innovations_transpose(slopes))

    @cached_property
    def merged_cov(self) -> Array:
        half = self.pull(self.coordinates(self.prior.whitened_design))
        return np.vecdot(half, half)


class GramSolver(Solver):
    """For blocks that are all diagonal, or repeated, and sites that do not couple rows."""

    name = "gram"

    def __init__(self, groups: RowGroups, pattern: GramPattern) -> None:
        super().__init__((), groups)
        self.pattern = pattern
        self._maps: tuple[LinearMap, ...] = ()
        # Of blocks of copies, by number.
        self._copies: dict[int, _Whitened] = {}
        # Sums of every term of the sites at the known maps, see GramPattern.
        self._sums: list[tuple[MergedSites, Array, Array]] = []

    def compile(self) -> None:
        pattern = self.pattern.pattern
        zeros = np.zeros(pattern.order.size)
        factor, _ = pattern.factorize_scaled(np.zeros(pattern.n_flat), zeros, zeros)
        factor.transpose_solve(zeros)

    def _condition(
        self, prior: LatentPrior, sites: SiteSum, keep: Posterior | None
    ) -> GramPosterior:
        # Once maps are known, so is whether there are copies.
        given = self._in_whitened(prior) if self._copies or not self._maps else prior.maps
        multiples = [_as_multiple(A) for A in given]
        maps = tuple(A for _, A in multiples)
        factors = self._factors(maps)
        if factors is None:
            if not self.pattern.fits(maps):
                self.pattern = GramPattern(maps)
            self._maps, factors = maps, [1.0] * len(maps)
            self._sums = []
        self._sums = [self._sum(term) for term in sites.terms]
        gram, right = self.pattern.add_up(
            maps,
            sites.weighted([gram for _, gram, _ in self._sums]),
            sites.weighted([right for _, _, right in self._sums]),
        )
        s = np.concatenate(
            [
                _column_scale(A, b, c * factor)
                for (c, A), b, factor in zip(multiples, prior.blocks, factors, strict=True)
            ]
        )[self.pattern.pattern.order]
        pattern = self.pattern.pattern
        factor, half = pattern.factorize_scaled(gram, s, s * right)
        return GramPosterior(prior, self.groups, sites, factor, half, pattern)

    def _in_whitened(self, prior: LatentPrior) -> list[LinearMap]:
        """Return the maps, those of copies with S in their coefficients."""
        found = []
        for i, (block, A) in enumerate(zip(prior.blocks, prior.maps, strict=True)):
            if block.diagonal_scale is not None:
                found.append(A)
                continue
            base, coefs = _parts_of(A)
            known = self._copies.get(i)
            if known is None or not all(map(is_, base, known.base)):
                known = self._copies[i] = _Whitened.find(base, block.block.size)
            found.append(known.at(coefs, block))
        return found

    def _sum(self, term: MergedSites) -> tuple[MergedSites, Array, Array]:
        for known in self._sums:
            if known[0] is term:
                return known
        gram = self.pattern.gram(self._maps, term.lam)
        return term, gram, self.pattern.project(self._maps, term.h)

    def _factors(self, maps: Sequence[LinearMap]) -> list[float] | None:
        """Return the factors between the known maps and these; None if there are none."""
        if not self._maps:
            return None
        if all(map(is_, maps, self._maps)):
            return [1.0] * len(maps)
        factors = []
        for A, known in zip(maps, self._maps, strict=True):
            factor = _map_ratio(A, known)
            if factor is None:
                return None
            factors.append(factor)
        return factors


def _as_multiple(A: LinearMap) -> tuple[float, LinearMap]:
    """Return c and B with A = c B."""
    return A.multiple_of if isinstance(A, RowSelection) else (1.0, A)


def _map_ratio(A: LinearMap, known: LinearMap) -> float | None:
    if isinstance(A, SelectionSum):
        # Its coefficients may differ.
        same = isinstance(known, SelectionSum) and A.parts is known.parts
        return 1.0 if same else None
    if isinstance(A, DenseMap):
        same = is_dense(known) and A.matrix is known.matrix
        return 1.0 if same else None
    if not isinstance(known, RowSelection) or not A.selects_as(known):
        return None
    if A.coef is known.coef:
        return 1.0
    if A.coef is None or known.coef is None:
        return None
    return _ratio(A.coef, known.coef)


def _ratio(x: Array, known: Array) -> float | None:
    """Return c with x = c · known up to rounding; None where there is none."""
    if x is known:
        return 1.0
    if x.size != known.size or not x.size:
        return None
    # The first entry that is not zero.
    i = int((known != 0.0).argmax())
    if known[i] == 0.0:
        return None
    c = float(x[i] / known[i])
    away = c * known
    away -= x
    if not _SMALLEST < abs(c) < 1.0 / _SMALLEST:
        return None
    return c if (np.abs(away) <= _ROUNDING * np.abs(x)).all() else None


def _column_scale(A: LinearMap, block: BlockPrior, factor: float) -> Array:
    scale = block.diagonal_scale
    if scale is None:
        # The coefficients have S.
        return np.full(A.size, factor)
    if isinstance(A, DenseMap) and A.columns is not None:
        scale = scale * A.columns
    return scale if factor == 1.0 else factor * scale
