"""The Gram matrix G = AᵀΛA of designs that are mostly selections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
from scipy.sparse import csr_array

from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection, SelectionSum, times
from pymc_augconj.linalg.sparse import SparsePattern
from pymc_augconj.typing import Array, Index

__all__ = ["GramPattern", "is_dense"]

# Up to this many latents a dense factor is faster, as call overhead dominates a sparse one.
_SMALL = 32


class GramPattern:
    """Sparsity pattern of G, and the rows summed in each entry, for maps on the merged rows.

    For a :class:`.SelectionSum` with coefficients c, G is a sum over pairs of parts, with weights
    c_k c_l, of matrices that do not depend on c. The coefficients of all maps are numbered; number
    zero is the coefficient 1 of other maps.
    """

    def __init__(self, maps: Sequence[LinearMap]) -> None:
        starts = np.cumsum([0, *(A.size for A in maps)])
        self.size = int(starts[-1])
        chosen = _selections(maps)
        self._chosen = [(b, number) for b, number, _ in chosen]
        self._numbers = [number for _, number, _ in chosen]
        # Positions of the selected latents, by part and row, and of latents with dense columns.
        columns = [starts[b] + A.index for b, _, A in chosen]
        dense = [np.arange(starts[b], starts[b + 1]) for b, A in enumerate(maps) if is_dense(A)]
        self._dense_columns = np.concatenate([np.empty(0, dtype=np.intp), *dense])
        n_rows = columns[0].size if columns else 0
        pairs = [(a, b) for b in range(len(columns)) for a in range(b + 1)]
        first = [columns[a] for a, _ in pairs] or [np.empty(0, dtype=np.intp)]
        second = [columns[b] for _, b in pairs] or [np.empty(0, dtype=np.intp)]
        codes = np.concatenate(first) * self.size + np.concatenate(second)
        met, inverse = np.unique(codes, return_inverse=True)
        row, col = np.divmod(met, self.size)
        every = np.arange(self.size)
        forced = every if self.size <= _SMALL else self._dense_columns
        # Levels of a factor meet through others alone: those of the largest factor come first.
        largest = np.argsort([-A.size for A in maps], kind="stable")
        given = np.concatenate([every[starts[b] : starts[b + 1]] for b in largest])
        self.pattern = SparsePattern(self.size, row, col, given=given, dense=forced)
        self._pairs = pairs
        self._set_products(first, second)
        targets = self.pattern.positions(row, col)[inverse.ravel()]
        self._targets = targets + np.repeat(self._product_of, n_rows) * self.pattern.n_flat
        self._transposed = [_Transposed(A, int(starts[b])) for b, _, A in chosen]
        self._positions = [
            self.pattern.positions(block.latents[:, None], self._dense_columns)
            for block in self._transposed
        ]
        heights = np.diff(self.pattern.arrays[0]) + self.pattern.border + 1.0
        self.multiplications = (
            0.5 * float(heights @ heights)
            + self.pattern.corner**3 / 3.0
            + len(self._products) * self.pattern.n_flat
            + float(n_rows * len(pairs) + self._rows_of(maps) * self._dense_columns.size**2)
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
            sums = [
                times(times(weighted[a], chosen[b].coef), twice)
                for (a, b), twice in zip(self._pairs, self._twice, strict=True)
            ]
            flat = np.bincount(self._targets, np.concatenate(sums), minlength=total.size)
            total = flat.reshape(shape)
        matrices = [A.matrix for A in maps if is_dense(A)]
        if matrices:
            X, columns = np.hstack(matrices), self._dense_columns
            weighted_rows = lam[:, None] * X
            total[0, self.pattern.positions(columns[:, None], columns)] = X.T @ weighted_rows
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


def is_dense(A: LinearMap) -> TypeGuard[DenseMap]:
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
        """Return Aᵀ."""
        data = np.ones(self._order.size) if coef is None else coef[self._order]
        return csr_array((data, self._order, self._starts), shape=self._shape)
