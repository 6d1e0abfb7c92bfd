"""The sparse posterior precision of structured latents, with other latents in a dense border.

Structured blocks have the prior precision Q in their own coordinates u; the others have the
identity in whitened coordinates v. With x = (u, v), η′ = Φ x and

    M = blockdiag(Q, I) + ΦᵀΛΦ = [B  Cᵀ]
                                 [C  D ].

B, banded or sparse, holds structured blocks of which each predictor takes one value, and diagonal
blocks of the same kind that keep B sparse (a map's independent effects). The other blocks, such as
an intercept or coefficients, form the border. So

    B = L₁ L₁ᵀ,        W = L₁⁻¹ Cᵀ,        D − WᵀW = L₂ L₂ᵀ.

An intrinsic block, u = x + t 1 (:class:`.IntrinsicPrior`), has x in B and t in the border. The
precision of its sum, c² (Σ x + n t)², adds a term P Pᵀ of rank one to M. With V = L₁⁻¹P₁ the factor
of B + P₁P₁ᵀ is L₁ (I + V Vᵀ)^½, and the corner D − WᵀW becomes

    D − WᵀW + (P₂ − WᵀV)(I + VᵀV)⁻¹(P₂ − WᵀV)ᵀ,

a sum of positive semi-definite terms.

References
----------
Rue & Held (2005), Gaussian Markov Random Fields, chapters 2 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, product

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.linalg.sparse import SymmetricPattern, find_pattern
from pymc_augconj.typing import Array, Index

from .base import BlockPrior
from .joint import LatentPrior
from .precision import IntrinsicPrior, PrecisionPrior

# Effects that stay in the border beside many others, where finding out what saves work costs more.
_FEW_EFFECTS = 16


@dataclass(frozen=True)
class Products:
    """Products of Φ's entries in pairs of rows that enter B, and their ``positions`` in it.

    ``first`` and ``second`` are blocks; ``coupled`` says whether the pairs of rows are coupled by
    sites, else each row is paired with itself. ``entries`` are those of the stacked Λ, and ``rows``
    the rows of each pair with both values in B. ``twice`` is 2 where entry and transposed entry
    coincide, so that both count, else 1.
    """

    first: int
    second: int
    coupled: bool
    entries: Index | slice
    rows: tuple[Index | slice, Index | slice]
    positions: Index
    twice: Array | None


class PrecisionPattern:
    """Latents in B, their order, and the rows that enter each entry of B.

    ``maps`` are A_b on the merged rows, of which sites couple pairs.
    """

    #: Whether diagonal blocks may join B.
    adds_blocks = True

    def __init__(
        self, blocks: Sequence[LatentBlock], maps: Sequence[LinearMap], coupling: Coupling
    ) -> None:
        self._blocks, self._maps, self.coupling = blocks, maps, coupling
        structured = [i for i, block in enumerate(blocks) if block.entries is not None]
        self.intrinsic = [i for i in structured if blocks[i].is_intrinsic]
        selected = [i for i, A in enumerate(maps) if isinstance(A, RowSelection)]
        others = [i for i in selected if blocks[i].is_independent]
        others.sort(key=lambda i: -blocks[i].total_size)
        #: Whether there are structured blocks, or independent effects alone, and each predictor
        #: takes one value of each.
        self.fits_model = bool(structured or others) and set(structured) <= set(selected)
        if not self.fits_model:
            return
        self._choose(structured or others[:1])
        if not self.adds_blocks:
            return
        # Diagonal blocks with many effects join B where that saves work.
        more = [i for i in others[1:] if blocks[i].total_size > _FEW_EFFECTS]
        for i in others if structured else more:
            known, cost = self.within, self.multiplications
            self._choose(sorted([*known, i]))
            if self.multiplications > cost:
                self._choose(known)

    def _choose(self, within: Sequence[int]) -> None:
        """Put these blocks into B."""
        sizes = [block.total_size for block in self._blocks]
        self.within = list(within)
        self.outside = [i for i in range(len(sizes)) if i not in self.within]
        self.size, self._columns = 0, {}
        rows, cols = [], []
        for i in within:
            columns = self._columns[i] = self._columns_of(i)
            self.size += int(np.count_nonzero(columns >= 0))
            entries = self._blocks[i].entries
            if entries is not None:
                meet = (columns[entries] >= 0).all(axis=0)
                rows.append(columns[entries[0, meet]])
                cols.append(columns[entries[1, meet]])
        self.n_whitened = sum(sizes[i] for i in self.outside)
        self.border = self.n_whitened + len(self.intrinsic)
        for *_, left, right in self._pairs():
            meet = (left >= 0) & (right >= 0)
            rows.append(left[meet])
            cols.append(right[meet])
        #: Pattern and elimination order of B, and columns of it that meet.
        self.met = np.concatenate(rows), np.concatenate(cols)
        self.sparsity = self._find(*self.met)
        for name in ("products", "_places", "_prior_positions", "_is_of_one_block"):
            self.__dict__.pop(name, None)
        n, m = float(self.size), float(self.border)
        self.multiplications = self.sparsity.multiplications + n * (m + 1.0) ** 2 + m**3 / 3.0

    def _find(self, rows: Index, cols: Index) -> SymmetricPattern:
        return find_pattern(self.size, rows, cols)

    def _columns_of(self, index: int) -> Index:
        """Return the columns of a block's values; −1 for the origin of an intrinsic one."""
        values = np.arange(self._blocks[index].total_size)
        if index not in self.intrinsic:
            return self.size + values
        pinned = self._pinned(index)
        return np.where(values == pinned, -1, self.size + values - (values > pinned))

    def _pairs(self) -> list[tuple[int, int, bool, Index, Index]]:
        """Return pairs of columns that meet: in blocks, in rows and in coupled pairs of rows."""
        columns = {}
        for i in self.within:
            A = self._maps[i]
            assert isinstance(A, RowSelection)
            columns[i] = self._columns[i][A.index]
        once = combinations_with_replacement(self.within, 2)
        pairs = [(a, b, False, columns[a], columns[b]) for a, b in once]
        first, second = self.coupling.first, self.coupling.second
        if first.size:
            twice = product(self.within, repeat=2)
            pairs += [(a, b, True, columns[a][first], columns[b][second]) for a, b in twice]
        return pairs

    @cached_property
    def products(self) -> list[Products]:
        """Products of Φ's entries that enter B."""
        products, coupling = [], self.coupling
        for a, b, coupled, left, right in self._pairs():
            start = coupling.n_rows if coupled else 0
            meet = np.flatnonzero((left >= 0) & (right >= 0))
            which: Index | slice = slice(None)
            entries: Index | slice = slice(start, start + left.size)
            if meet.size < left.size:
                which, entries = meet, start + meet
                left, right = left[meet], right[meet]
            rows = (coupling.first[which], coupling.second[which]) if coupled else (which, which)
            twice = np.where(left == right, 2.0, 1.0) if coupled else None
            positions = self.sparsity.positions(left, right)
            products.append(Products(a, b, coupled, entries, rows, positions, twice))
        return products

    @property
    def is_diagonal(self) -> bool:
        """Whether ΦᵀΛΦ is diagonal in B."""
        return len(self.within) == 1 and not self.coupling.first.size

    @cached_property
    def _prior_positions(self) -> dict[int, tuple[Index, Index]]:
        """Entries of Q that enter B, and their positions; diagonal ones for a diagonal block."""
        positions = {}
        for i in self.within:
            entries, columns = self._blocks[i].entries, self._columns[i]
            if entries is None:
                entries = np.tile(np.arange(columns.size), (2, 1))
            rows, cols = columns[entries]
            lower = np.flatnonzero((entries[0] >= entries[1]) & (rows >= 0) & (cols >= 0))
            positions[i] = lower, self.sparsity.positions(rows[lower], cols[lower])
        return positions

    def _pinned(self, index: int) -> int:
        """Return the index of the origin of an intrinsic block."""
        return int(self._blocks[index].sparsity.order[-1])

    def compile(self) -> None:
        """Compile the factorisation and solves that are not LAPACK's."""
        structured = [block for block in self._blocks if block.entries is not None]
        own = (b.sparsity if b.order is None else b.root_pattern for b in structured)
        for sparsity in (self.sparsity, *own):
            flat = np.zeros(sparsity.n_flat)
            flat[sparsity.diagonal] = 1.0
            factor = sparsity.factorize(flat)
            factor.transpose_product(factor.half_solve(np.ones(sparsity.size)))

    def holds(self, maps: Sequence[LinearMap]) -> bool:
        """Return whether maps select the same values of the blocks in B."""
        return self.fits_model and all(_same_index(maps[i], self._maps[i]) for i in self.within)

    # -- coordinates: B in its order of elimination, then the border -------------------------------

    def columns(self, index: int) -> Index:
        """Return positions of a block's values in B, before reordering, or −1."""
        return self._columns[index]

    def level(self, index: int) -> int:
        """Return the position in x of t of an intrinsic block."""
        return self.size + self.n_whitened + self.intrinsic.index(index)

    def within_block(self, index: int, x: Array) -> Array:
        """Return a block's values in B, in its own order; zero at an origin."""
        if index not in self.intrinsic:
            return x[..., self._places[index]]
        found = x[..., self._places[index]]
        found[..., self._pinned(index)] = 0.0
        return found

    @cached_property
    def _places(self) -> dict[int, Index | slice]:
        """Positions of each block's values in x; arbitrary for an origin."""
        places: dict[int, Index | slice] = {}
        for i, columns in self._columns.items():
            places[i] = self.sparsity.place[columns]
            if self.sparsity.is_reversed and i not in self.intrinsic:
                stop = self.size - columns[0] - columns.size
                places[i] = slice(self.size - columns[0] - 1, stop - 1 if stop else None, -1)
        return places

    def part(self, index: int, x: Array) -> Array:
        """Return the part of one block, in its own order, from x, shape (…, D)."""
        if index in self.intrinsic:
            level = self.level(index)
            return self.within_block(index, x) + x[..., level : level + 1]
        if index in self._columns:
            return self.within_block(index, x)
        start = self.size + sum(self._blocks[i].total_size for i in self.outside if i < index)
        return x[..., start : start + self._blocks[index].total_size]

    def joined(self, parts: Sequence[Array]) -> Array:
        """Return x from the parts of all blocks."""
        return self._join(parts, lambda part, pinned: part[..., [pinned]], subtract=True)

    def joined_weights(self, parts: Sequence[Array]) -> Array:
        """Return w with wᵀx = Σ partᵀ part of x."""
        return self._join(parts, lambda part, _: part.sum(axis=-1, keepdims=True), subtract=False)

    def _join(
        self, parts: Sequence[Array], level: Callable[[Array, int], Array], *, subtract: bool
    ) -> Array:
        within, levels = [], []
        for i in self.within:
            part = parts[i]
            if i in self.intrinsic:
                pinned = self._pinned(i)
                levels.append(level(part, pinned))
                part = np.delete(part - levels[-1] if subtract else part, pinned, axis=-1)
            within.append(part)
        joined = self.sparsity.forward(np.concatenate(within, axis=-1))
        return np.concatenate([joined, *(parts[i] for i in self.outside), *levels], axis=-1)

    def of_sums(self, prior: LatentPrior) -> Array:
        """Return Pᵀ: c times the coefficients in x of the sum of each intrinsic block."""
        coefficients = np.zeros((len(self.intrinsic), self.size + self.border))
        for row, i in zip(coefficients, self.intrinsic, strict=True):
            block = prior.blocks[i]
            assert isinstance(block, IntrinsicPrior)
            columns, c = self._columns[i], np.sqrt(block.common)
            row[self.sparsity.place[columns[columns >= 0]]] = c
            row[self.level(i)] = c * columns.size
        return coefficients

    # -- the precision -----------------------------------------------------------------------------

    @cached_property
    def _is_of_one_block(self) -> bool:
        """Whether B has the entries of one block's Q in the same places."""
        block = self._blocks[self.within[0]]
        if len(self.within) > 1 or block.entries is None or block.is_intrinsic:
            return False
        own, here = (p.positions(*block.entries) for p in (block.sparsity, self.sparsity))
        return block.sparsity.n_flat == self.sparsity.n_flat and np.array_equal(own, here)

    def precision(self, prior: LatentPrior, gram: Array) -> Array:
        """Return B, flat: the prior precision of its latents and ΦᵀΛΦ."""
        if self._is_of_one_block:
            (index,) = self.within
            block = prior.blocks[index]
            assert isinstance(block, PrecisionPrior)
            return gram + block.flat
        flat = gram.copy()
        for i, (lower, positions) in self._prior_positions.items():
            block = prior.blocks[i]
            flat[positions] += block.array[lower] if isinstance(block, PrecisionPrior) else 1.0
        return flat


class PrecisionDesign:
    """Φ at one θ: coefficients of the blocks in B, and the matrix of the border."""

    def __init__(self, pattern: PrecisionPattern, prior: LatentPrior) -> None:
        self.pattern = pattern
        self.maps = {i: _in_coordinates(prior.maps[i], prior.blocks[i]) for i in pattern.within}
        n_rows = next(iter(self.maps.values())).index.size
        parts = [prior.blocks[i].whitened_design(prior.maps[i]) for i in pattern.outside]
        for i in pattern.intrinsic:
            A = self.maps[i]
            parts.append(A.apply(np.ones(A.size))[:, None])
        self.border = np.hstack([np.empty((n_rows, 0)), *parts])

    def product(self, which: Products, x: Array) -> Array:
        """Return x times both entries of Φ in pairs of rows."""
        for block, rows in zip((which.first, which.second), which.rows, strict=True):
            coef = self.maps[block].coef
            if coef is not None:
                x = x * coef[rows]
        return x

    def transpose_within(self, weights: Array) -> Array:
        """Return Φᵀw of the blocks in B, (n,); shape (count, n) for several w as rows."""
        pattern, parts = self.pattern, [A.apply_transpose(weights) for A in self.maps.values()]
        for k, i in enumerate(self.maps):
            if i in pattern.intrinsic:
                parts[k] = parts[k][..., pattern.columns(i) >= 0]
        return pattern.sparsity.forward(np.concatenate(parts, axis=-1))

    def transpose(self, w: Array) -> Array:
        return np.concatenate([self.transpose_within(w), w @ self.border])

    def apply_within(self, x: Array) -> Array:
        """Return the part of Φ x of the blocks in B, for each row of x."""
        parts = ((A, self.pattern.within_block(i, x)) for i, A in self.maps.items())
        return sum((A.apply(part) for A, part in parts), np.zeros(()))


def _in_coordinates(A: LinearMap, block: BlockPrior) -> RowSelection:
    """Return the map from a block's coordinates: u of structured blocks, v of diagonal ones."""
    assert isinstance(A, RowSelection)
    if isinstance(block, PrecisionPrior):
        return A
    scale = block.diagonal_scale
    assert scale is not None  # see PrecisionPattern
    return A.scaled(scale)


def _same_index(A: LinearMap, known: LinearMap) -> bool:
    return isinstance(A, RowSelection) and isinstance(known, RowSelection) and A.selects_as(known)
