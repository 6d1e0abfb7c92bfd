"""The precision of structured latents and of those beside them, given sites: sparse, with a border.

With Q the prior precision of the structured blocks, in their own coordinates u, and the identity of
the others, in whitened coordinates v, η′ = Φ x with x = (u, v) and

    M = blockdiag(Q, I) + ΦᵀΛΦ = [B  Cᵀ]
                                 [C  D ].

Structured blocks that each predictor takes one value of stand in B, which is a band or else sparse,
and with them diagonal blocks of which the same is true and which keep it so (a map's independent
effects). The others, an intercept or coefficients, are the border. So

    B = L₁ L₁ᵀ,        W = L₁⁻¹ Cᵀ,        D − WᵀW = L₂ L₂ᵀ.

An intrinsic block, u = x + t 1 (:mod:`.intrinsic`), has x in B, t in the border, and the
precision of its sum, c² (Σ x + n t)², is a term P Pᵀ of rank one beside M. With V = L₁⁻¹P₁ the
factor of B + P₁P₁ᵀ is L₁ (I + V Vᵀ)^½, and the corner D − WᵀW becomes

    D − WᵀW + (P₂ − WᵀV)(I + VᵀV)⁻¹(P₂ − WᵀV)ᵀ,

a sum of what is not negative.

References
----------
Rue & Held (2005), Gaussian Markov Random Fields, chapters 2 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.linalg.sparse import find_pattern
from pymc_augconj.model import LatentBlock
from pymc_augconj.typing import Array, Index

from .base import BlockPrior
from .diagonal import DiagonalPrior
from .intrinsic import IntrinsicPrior
from .joint import LatentPrior
from .precision import PrecisionPrior

__all__ = ["PrecisionPattern", "Products", "scaled"]


@dataclass(frozen=True)
class Products:
    """Which products of Φ's entries in pairs of rows enter B, and where.

    Attributes
    ----------
    first, second : int
        Blocks.
    coupled : bool
        Whether the pairs of rows are those that sites couple; else they are each row with itself.
    which : ndarray of int, or None
        Those of the pairs whose values both stand in B; None where all do.
    positions : ndarray of int
        In B's flat values.
    twice : ndarray, or None
        2 where entry and transposed entry are the same one, so that both count; else 1.
    """

    first: int
    second: int
    coupled: bool
    which: Index | None
    positions: Index
    twice: Array | None

    def taken(self, x: Array) -> Array:
        """Return the entries of ``x`` that belong to the pairs."""
        return x if self.which is None else x[self.which]

    def add(self, total: Array, terms: Array) -> None:
        """Add the pairs' terms to ``total`` in place."""
        total[slice(None) if self.which is None else self.which] += terms


class PrecisionPattern:
    """Which latents stand in B, in which order, and which rows enter which of its entries.

    Parameters
    ----------
    blocks : sequence of LatentBlock
    maps : sequence of LinearMap
        A_b on the merged rows.
    coupling : Coupling
        Which of these rows sites couple.
    """

    def __init__(
        self, blocks: Sequence[LatentBlock], maps: Sequence[LinearMap], coupling: Coupling
    ) -> None:
        self._blocks, self._maps, self.coupling = blocks, maps, coupling
        structured = [i for i, block in enumerate(blocks) if block.entries is not None]
        self.intrinsic = [i for i in structured if blocks[i].kind == IntrinsicPrior.kind]
        #: Whether there are structured blocks, and each predictor takes one value of each.
        self.fits_model = bool(structured) and all(
            isinstance(maps[i], RowSelection) for i in structured
        )
        if not self.fits_model:
            return
        self._choose(structured)
        # Diagonal blocks whose effects are many are taken into B where that saves work.
        others = [
            i
            for i, (block, A) in enumerate(zip(blocks, maps, strict=True))
            if block.kind == DiagonalPrior.kind and isinstance(A, RowSelection)
        ]
        for i in sorted(others, key=lambda i: -blocks[i].total_size):
            known, cost = self.within, self.multiplications
            self._choose(sorted([*known, i]))
            if self.multiplications > cost:
                self._choose(known)

    def _choose(self, within: Sequence[int]) -> None:
        """Take these blocks into B."""
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
        #: Where B has entries, and the order of its elimination.
        self.sparsity = find_pattern(self.size, np.concatenate(rows), np.concatenate(cols))
        for name in ("products", "_places", "_prior_positions", "_is_of_one_block"):
            self.__dict__.pop(name, None)
        n, m = float(self.size), float(self.border)
        self.multiplications = self.sparsity.multiplications + n * (m + 1.0) ** 2 + m**3 / 3.0

    def _columns_of(self, index: int) -> Index:
        """Return the columns of a block's values; −1 of the origin of an intrinsic one."""
        values = np.arange(self._blocks[index].total_size)
        if index not in self.intrinsic:
            return self.size + values
        pinned = self._pinned(index)
        return np.where(values == pinned, -1, self.size + values - (values > pinned))

    def _pairs(self) -> list[tuple[int, int, bool, Index, Index]]:
        """Return columns that meet: by blocks, in rows, and in coupled pairs of rows."""
        columns = {}
        for i in self.within:
            A = self._maps[i]
            assert isinstance(A, RowSelection)
            columns[i] = self._columns[i][A.index]
        found = [
            (a, b, False, columns[a], columns[b])
            for k, a in enumerate(self.within)
            for b in self.within[k:]
        ]
        first, second = self.coupling.first, self.coupling.second
        if first.size:
            found += [
                (a, b, True, columns[a][first], columns[b][second])
                for a in self.within
                for b in self.within
            ]
        return found

    @cached_property
    def products(self) -> list[Products]:
        """The products of Φ's entries that enter B."""
        found = []
        for a, b, coupled, left, right in self._pairs():
            meet, which = (left >= 0) & (right >= 0), None
            if not meet.all():
                which = np.flatnonzero(meet)
                left, right = left[which], right[which]
            twice = np.where(left == right, 2.0, 1.0) if coupled else None
            positions = self.sparsity.positions(left, right)
            found.append(Products(a, b, coupled, which, positions, twice))
        return found

    @cached_property
    def _prior_positions(self) -> dict[int, tuple[Index, Index]]:
        """Which of the entries of Q enter B, and where; of a diagonal block all diagonal ones."""
        found = {}
        for i in self.within:
            entries, columns = self._blocks[i].entries, self._columns[i]
            if entries is None:
                entries = np.tile(np.arange(columns.size), (2, 1))
            rows, cols = columns[entries]
            lower = np.flatnonzero((entries[0] >= entries[1]) & (rows >= 0) & (cols >= 0))
            found[i] = lower, self.sparsity.positions(rows[lower], cols[lower])
        return found

    def _pinned(self, index: int) -> int:
        """Return the value of an intrinsic block that is the origin of the others."""
        return int(self._blocks[index].sparsity.order[-1])

    def compile(self) -> None:
        """Compile what factorises and solves, where that is not LAPACK."""
        structured = [block for block in self._blocks if block.entries is not None]
        for sparsity in (self.sparsity, *(block.sparsity for block in structured)):
            flat = np.zeros(sparsity.n_flat)
            flat[sparsity.diagonal] = 1.0
            factor = sparsity.factorize(flat)
            factor.transpose_product(factor.half_solve(np.ones(sparsity.size)))

    def holds(self, maps: Sequence[LinearMap]) -> bool:
        """Return whether maps take the same values of the blocks in B."""
        return self.fits_model and all(_same_index(maps[i], self._maps[i]) for i in self.within)

    # -- coordinates: those in B, in its order of elimination, then the border ---------------------

    def columns(self, index: int) -> Index:
        """Return where the values of a block in B stand, before reordering, or −1."""
        return self._columns[index]

    def level(self, index: int) -> int:
        """Return where t of an intrinsic block stands in x."""
        return self.size + self.n_whitened + self.intrinsic.index(index)

    def within_block(self, index: int, x: Array) -> Array:
        """Return what is in B of a block, in its own order; zero at an origin."""
        if index not in self.intrinsic:
            return x[..., self._places[index]]
        found = x[..., self._places[index]]
        found[..., self._pinned(index)] = 0.0
        return found

    @cached_property
    def _places(self) -> dict[int, Index | slice]:
        """Where the values of a block stand in x; of an origin any place."""
        found: dict[int, Index | slice] = {}
        for i, columns in self._columns.items():
            found[i] = self.sparsity.place[columns]
            if self.sparsity.is_reversed and i not in self.intrinsic:
                stop = self.size - columns[0] - columns.size
                found[i] = slice(self.size - columns[0] - 1, stop - 1 if stop else None, -1)
        return found

    def part(self, index: int, x: Array) -> Array:
        """Return the part of one block, in its own order, of x, shape (…, D)."""
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
        """Return Pᵀ: c times the coefficients of the sum of each intrinsic block in x."""
        found = np.zeros((len(self.intrinsic), self.size + self.border))
        for row, i in zip(found, self.intrinsic, strict=True):
            block = prior.blocks[i]
            assert isinstance(block, IntrinsicPrior)
            columns, c = self._columns[i], np.sqrt(block.common)
            row[self.sparsity.place[columns[columns >= 0]]] = c
            row[self.level(i)] = c * columns.size
        return found

    def from_whitened(self, prior: LatentPrior, v: Array) -> Array:
        """Return x, given all whitened latents, (D,) or (count, D)."""
        return self.joined(
            [
                block.scale(part) if isinstance(block, PrecisionPrior) else part
                for block, part in zip(prior.blocks, prior.split(v), strict=True)
            ]
        )

    def innovations(self, prior: LatentPrior, x: Array) -> list[Array]:
        """Return every block's u."""
        return [scaled(block, self.part(i, x)) for i, block in enumerate(prior.blocks)]

    def to_whitened(self, prior: LatentPrior, x: Array) -> Array:
        """Return all whitened latents."""
        parts = (self.part(i, x) for i in range(len(prior.blocks)))
        return np.concatenate(
            [
                block.unscale(part) if isinstance(block, PrecisionPrior) else part
                for block, part in zip(prior.blocks, parts, strict=True)
            ],
            axis=-1,
        )

    # -- the precision -----------------------------------------------------------------------------

    @cached_property
    def _is_of_one_block(self) -> bool:
        """Whether B's entries stand where those of one block's Q do."""
        block = self._blocks[self.within[0]]
        if len(self.within) > 1 or block.kind != PrecisionPrior.kind:
            return False
        assert block.entries is not None
        own, here = (p.positions(*block.entries) for p in (block.sparsity, self.sparsity))
        return block.sparsity.n_flat == self.sparsity.n_flat and np.array_equal(own, here)

    def prior_precision(self, prior: LatentPrior) -> Array:
        """Return the prior precision of what is in B, flat."""
        if self._is_of_one_block:
            (index,) = self.within
            block = prior.blocks[index]
            assert isinstance(block, PrecisionPrior)
            return block.flat
        flat = np.zeros(self.sparsity.n_flat)
        for i, (lower, positions) in self._prior_positions.items():
            block = prior.blocks[i]
            flat[positions] = block.array[lower] if isinstance(block, PrecisionPrior) else 1.0
        return flat


def scaled(block: BlockPrior, part: Array) -> Array:
    """Return u from a block's coordinates: u of structured blocks, v of the others."""
    return part if isinstance(block, PrecisionPrior) else block.scale(part)


def _same_index(A: LinearMap, known: LinearMap) -> bool:
    return isinstance(A, RowSelection) and isinstance(known, RowSelection) and A.selects_as(known)
