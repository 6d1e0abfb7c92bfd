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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import exp
from operator import is_
from typing import TypeGuard

import numpy as np
from scipy.sparse import csr_array

from pymc_augconj.block import LatentBlock
from pymc_augconj.gaussian.sites import add_gram
from pymc_augconj.linalg.dense import EPS, SMALL_BOUND, mirror_lower, precision_error
from pymc_augconj.linalg.factors import SparseFactor
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection, SelectionSum, times
from pymc_augconj.linalg.sparse import SparsePattern
from pymc_augconj.typing import Array, Index

from .base import BlockPrior
from .by_precision import FactorPosterior
from .dense import DensePrior
from .joint import LatentPrior
from .posterior import Posterior, Solver
from .rows import MergedSites, RowGroups, SiteSum

# Multiplications for each row and pair of dense columns: half by symmetry, shared by about three
# evaluations of a step.
_OF_SUMS = 0.5 / 3.0
# Up to this many latents a dense factor is faster, as call overhead dominates a sparse one.
_SMALL = 32


class GramPattern:
    """Sparsity pattern of G, and the rows summed in each entry, for maps on the merged rows.

    For a :class:`.SelectionSum` with coefficients c, G is a sum over pairs of parts, with weights
    c_k c_l, of matrices that do not depend on c. The coefficients of all maps are numbered; number
    zero is the coefficient 1 of other maps.
    """

    def __init__(self, maps: Sequence[LinearMap], small: int = _SMALL) -> None:
        starts = np.cumsum([0, *(A.size for A in maps)])
        self.size = int(starts[-1])
        chosen = _selections(maps)
        self._chosen = [(b, number) for b, number, _ in chosen]
        self._numbers = [number for _, number, _ in chosen]
        # Positions of the selected latents, by part and row, and of latents with dense columns.
        columns = [starts[b] + A.index for b, _, A in chosen]
        dense = [np.arange(starts[b], starts[b + 1]) for b, A in enumerate(maps) if _is_dense(A)]
        self._dense_columns = np.concatenate([np.empty(0, dtype=np.intp), *dense])
        n_rows = columns[0].size if columns else 0
        pairs = [(a, b) for b in range(len(columns)) for a in range(b + 1)]
        first = [columns[a] for a, _ in pairs] or [np.empty(0, dtype=np.intp)]
        second = [columns[b] for _, b in pairs] or [np.empty(0, dtype=np.intp)]
        codes = np.concatenate(first) * self.size + np.concatenate(second)
        met, inverse = np.unique(codes, return_inverse=True)
        row, col = np.divmod(met, self.size)
        every = np.arange(self.size)
        # Levels of a factor meet through others alone: those of the largest factor come first.
        largest = np.argsort([-A.size for A in maps], kind="stable")
        given = np.concatenate([every[starts[b] : starts[b + 1]] for b in largest])
        find = partial(SparsePattern, self.size, row, col)
        self.pattern = find(given=given, dense=self._dense_columns)
        if self.size <= small:
            # In the same order, so that the compiled loop may eliminate the sparse columns.
            self.pattern = find(given=self.pattern.order, dense=every)
        self._pairs = pairs
        self._set_products(first, second)
        targets = self.pattern.positions(row, col)[inverse.ravel()]
        self._targets = targets + np.repeat(self._product_of, n_rows) * self.pattern.n_flat
        self._transposed = [_Transposed(A, int(starts[b])) for b, _, A in chosen]
        of_dense = self._dense_columns
        self._dense_positions = self.pattern.positions(of_dense[:, None], of_dense)
        sides = [(block.latents[:, None], of_dense) for block in self._transposed]
        self._positions = [self.pattern.positions(*side) for side in sides]
        heights = np.diff(self.pattern.arrays[0]) + self.pattern.border + 1.0
        self.multiplications = (
            0.5 * float(heights @ heights)
            + self.pattern.corner**3 / 3.0
            + len(self._products) * self.pattern.n_flat
            + float(n_rows * len(pairs))
            + _OF_SUMS * self._rows_of(maps) * self._dense_columns.size**2
        )

    def _set_products(self, first: Sequence[Index], second: Sequence[Index]) -> None:
        """Enumerate the products of coefficients, and find the product of every pair."""
        known: dict[tuple[int, int], int] = {(0, 0): 0}
        self._product_of = np.empty(len(self._pairs), dtype=np.intp)
        # The product of two parts of one map that take the same latent counts twice.
        self._twice: list[Array | None] = []
        for at, (a, b) in enumerate(self._pairs):
            pair = self._numbers[a], self._numbers[b]
            self._product_of[at] = known.setdefault(pair, len(known))
            same = first[at] == second[at]
            self._twice.append(1.0 + same if a != b and same.any() else None)
        if self._dense_columns.size:
            for number in self._numbers:
                known.setdefault((0, number), len(known))
        self._products = known
        self._left, self._right = (np.array(side) for side in zip(*known, strict=True))

    @staticmethod
    def _rows_of(maps: Sequence[LinearMap]) -> int:
        A = maps[0]
        if isinstance(A, SelectionSum):
            return A.parts[0].index.size
        return A.index.size if isinstance(A, RowSelection) else A.matrix.shape[0]

    def fits(self, maps: Sequence[LinearMap]) -> bool:
        """Return whether the maps have the kinds and selections of the pattern."""
        chosen = _selections(maps)
        return [(b, number) for b, number, _ in chosen] == self._chosen and all(
            known.A.selects_as(A) for (_, _, A), known in zip(chosen, self._transposed, strict=True)
        )

    def gram(self, maps: Sequence[LinearMap], lam: Array) -> Array:
        """Return G, flat, for each product of coefficients, without column factors of dense maps.

        The shape is (products, entries).
        """
        shape = len(self._products), self.pattern.n_flat
        total = np.zeros(shape)
        chosen = [A for _, _, A in _selections(maps)]
        if chosen:
            weighted = [times(lam, A.coef) for A in chosen]
            products = [times(weighted[a], chosen[b].coef) for a, b in self._pairs]
            sums = list(map(times, products, self._twice))
            flat = np.bincount(self._targets, np.concatenate(sums), minlength=total.size)
            total = flat.reshape(shape)
        matrices = [A.matrix for A in maps if _is_dense(A)]
        if matrices:
            X = matrices[0] if len(matrices) == 1 else np.hstack(matrices)
            added = add_gram(np.zeros((X.shape[1], X.shape[1]), order="F"), X, lam)
            total[0, self._dense_positions] = mirror_lower(added)
            weighted_rows = lam[:, None] * X if chosen else X
            of_parts = zip(chosen, self._numbers, self._transposed, self._positions, strict=True)
            for A, number, block, positions in of_parts:
                products = block.matrix(A.coef) @ weighted_rows
                total[self._products[0, number], positions] += products
        return total

    def project(self, maps: Sequence[LinearMap], h: Array) -> Array:
        """Return g = Aᵀh for each coefficient, without column factors of dense maps.

        The shape is (coefficients, latents), the latents in the order of elimination.
        """
        total = np.zeros((1 + max(self._numbers, default=0), self.size))
        start = 0
        for A, numbered in zip(maps, _numbered(maps), strict=True):
            for number, part in numbered:
                total[number, start : start + A.size] = part.apply_transpose(h)
            if not numbered:
                assert isinstance(A, DenseMap)
                total[0, start : start + A.size] = A.matrix.T @ h
            start += A.size
        return total[:, self.pattern.order]

    def add_up(self, maps: Sequence[LinearMap], gram: Array, right: Array) -> tuple[Array, Array]:
        """Return G, flat, and g at the current coefficients of the maps."""
        if right.shape[0] == 1:
            return gram[0], right[0]
        coefs = [A.coefs for A in maps if isinstance(A, SelectionSum)]
        c = np.concatenate([np.ones(1), *coefs])
        return (c[self._left] * c[self._right]) @ gram, c @ right


def _is_dense(A: LinearMap) -> TypeGuard[DenseMap]:
    """Return whether the matrix of a map is used."""
    return isinstance(A, DenseMap) and not isinstance(A, SelectionSum)


def _numbered(maps: Sequence[LinearMap]) -> list[list[tuple[int, RowSelection]]]:
    """Return the selections of every map, each with the number of its coefficient."""
    numbered, n_coefs = [], 1
    for A in maps:
        if isinstance(A, SelectionSum):
            numbered.append([(n_coefs + k, part) for k, part in enumerate(A.parts)])
            n_coefs += len(A.parts)
        else:
            numbered.append([(0, A)] if isinstance(A, RowSelection) else [])
    return numbered


def _selections(maps: Sequence[LinearMap]) -> list[tuple[int, int, RowSelection]]:
    """Return the selections, each with its block and the number of its coefficient."""
    return [(b, number, A) for b, own in enumerate(_numbered(maps)) for number, A in own]


class _Transposed:
    """Aᵀ of a selection as a sparse matrix, and its latents."""

    def __init__(self, A: RowSelection, start: int) -> None:
        self.A, self.latents = A, start + np.arange(A.size)
        self._order = np.argsort(A.index, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(A.index, minlength=A.size))])
        self._shape = (A.size, A.index.size)

    def matrix(self, coef: Array | None) -> csr_array:
        data = np.ones(self._order.size) if coef is None else coef[self._order]
        return csr_array((data, self._order, self._starts), shape=self._shape)


# More correlated latents of a group make too many pairs of parts.
_LARGEST_GROUP = 4


def can_sum_out(blocks: Sequence[LatentBlock], maps: Sequence[LinearMap]) -> bool:
    """Return whether every block is diagonal, or many copies of a few latents that are selected."""
    for block, A in zip(blocks, maps, strict=True):
        repeated = block.is_correlated and block.copies > 1 and block.size <= _LARGEST_GROUP
        selected = repeated and isinstance(A, RowSelection | SelectionSum)
        if not (block.is_independent or selected):
            return False
    return True


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
        # Each map is c B, where B may stay as c changes.
        multiples = [A.multiple_of if isinstance(A, RowSelection) else (1.0, A) for A in given]
        maps = tuple(A for _, A in multiples)
        if not (self._maps and all(map(_is_known, maps, self._maps))):
            if not self.pattern.fits(maps):
                self.pattern = GramPattern(maps)
            self._maps, self._sums = maps, []
        self._sums = [self._sum(term) for term in sites.terms]
        _, *sums = zip(*self._sums, strict=True)
        gram, right = self.pattern.add_up(maps, *(sites.weighted(parts) for parts in sums))
        pairs, pattern = zip(multiples, prior.blocks, strict=True), self.pattern.pattern
        s = np.concatenate([_column_scale(A, b, c) for (c, A), b in pairs])[pattern.order]
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


def _is_known(A: LinearMap, known: LinearMap) -> bool:
    """Return whether sums for one map are those for the other, coefficients of parts aside."""
    if isinstance(A, SelectionSum):
        return isinstance(known, SelectionSum) and A.parts is known.parts
    if isinstance(A, DenseMap):
        return _is_dense(known) and A.matrix is known.matrix
    return isinstance(known, RowSelection) and A.coef is known.coef and A.selects_as(known)


def _column_scale(A: LinearMap, block: BlockPrior, factor: float) -> Array:
    scale = block.diagonal_scale
    if scale is None:
        # The coefficients have S.
        return np.full(A.size, factor)
    if isinstance(A, DenseMap) and A.columns is not None:
        scale = scale * A.columns
    return scale if factor == 1.0 else factor * scale
