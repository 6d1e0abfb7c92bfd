"""Symmetric matrices with few entries: their patterns, and orders in which L has few as well.

The factor of a *band* has the band of the matrix: the reverse order of the rows, or that of Cuthill
and McKee where it is narrower. It takes O(n b²) for b diagonals, a solution or a draw O(n b).

The band of a map of n areas has √n diagonals or so, and most of it is zero. In an order of minimum
degree the factor has fewer entries: areas that others surround are eliminated before these, and
values that meet one other value alone (an area's own effect) before everything; of two crossed
factors the larger comes first. As long as that costs less than to treat the remaining columns,
which fill in, as a dense matrix: LAPACK factorises this *corner*.

References
----------
Cuthill & McKee (1969), Reducing the bandwidth of sparse symmetric matrices. ACM '69.
Davis (2006), Direct Methods for Sparse Linear Systems, chapters 4 and 7.
Takahashi, Fagan & Chin (1973), Formation of a sparse bus impedance matrix (the inverse).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import isfinite

import numpy as np
from scipy.linalg.blas import dtrsv
from scipy.linalg.lapack import dpotrf
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.typing import Array, Index, Mask

from .elimination import EliminationTree, meets_most
from .factors import (
    BandedFactor,
    Factor,
    SparseFactor,
    SupernodalFactor,
    factorize_band,
    refuse_improper,
)

# No other order is tried where a band takes fewer multiplications than this, or is fuller.
_FEWEST, _FULLEST = 2e5, 0.25
# Cost of a multiplication of a large dense matrix, in those within a band.
_QUOTIENT = 0.5
# A corner of so many columns is factorised by loops; below it the call of LAPACK costs more.
_SMALL_CORNER = 16
# A column of the corner with entries in a larger share of B's columns belongs to the border.
_FULL = 0.5


class SymmetricPattern(ABC):
    """Pattern of a symmetric matrix, and an order of elimination.

    Values are stored flat, ``n_flat`` of them: those of L, of which the matrix has some. ``order``
    are the rows in the order of elimination, ``is_reversed`` if that is the reverse of their own,
    and ``place`` is the position of each row in it; ``diagonal`` are positions in the flat values.
    """

    size: int
    order: Index
    place: Index
    is_reversed: bool
    diagonal: slice | Index
    n_flat: int
    multiplications: float

    @abstractmethod
    def positions(self, rows: Index, cols: Index) -> Index:
        """Return the positions of entries, of either triangle, in the flat values."""

    @abstractmethod
    def factorize(self, flat: Array, name: str = "a sparse matrix") -> Factor:
        """Return the Cholesky factor of flat values, which it may overwrite.

        Raises NotPositiveDefiniteError, with ``name``, if the matrix is not positive definite to
        working precision or an entry is not finite.
        """

    def forward(self, x: Array) -> Array:
        """Return x with its last axis in the order of elimination."""
        return x[..., ::-1] if self.is_reversed else x[..., self.order]

    def back(self, x: Array) -> Array:
        """Return x, given in the order of elimination, in the original order."""
        return x[..., ::-1] if self.is_reversed else x[..., self.place]

    def _set_order(self, order: Index) -> None:
        self.order, self.place = order.astype(np.intp), np.empty(order.size, dtype=np.intp)
        self.place[order] = np.arange(order.size)


# Those of the last models read, as a model's is asked for several times.
_RECENT: deque[tuple[Index, Index, SymmetricPattern]] = deque(maxlen=4)


def find_pattern(size: int, rows: Index, cols: Index) -> SymmetricPattern:
    """Return a pattern with these entries in which a factorisation takes least time."""
    for r, c, pattern in _RECENT:
        if pattern.size == size and np.array_equal(r, rows) and np.array_equal(c, cols):
            return pattern
    band = BandPattern(size, rows, cols)
    if band.multiplications < _FEWEST:
        return band
    lower = np.minimum(rows, cols) * size + np.maximum(rows, cols)
    if np.unique(lower).size > _FULLEST * band.n_flat:
        return band
    found: SymmetricPattern = band
    with suppress(ValueError):
        sparse = SparsePattern(size, rows, cols, limit=band.n_flat)
        found = sparse if sparse.multiplications < band.multiplications else band
    _RECENT.append((rows, cols, found))
    return found


class BandPattern(SymmetricPattern):
    """Pattern of a band, stored column by column: the diagonal and the ``width`` entries below it.

    ``rows`` and ``cols`` are indices of the entries, in any order; one triangle without its
    diagonal suffices.
    """

    def __init__(self, size: int, rows: Index, cols: Index) -> None:
        self.size = size
        distance = np.abs(rows - cols)
        self.width = int(distance.max(initial=0))
        # With the reverse order Pᵀ L⁻ᵀ P is the lower Cholesky factor of Q⁻¹.
        self._set_order(np.arange(size)[::-1])
        self.is_reversed = True
        # No order is narrower than two diagonals.
        if self.width > 1:
            graph = csr_array((np.ones(rows.size), (rows, cols)), shape=(size, size))
            graph = (graph + graph.T).tocsr()
            # Half the entries of a row are on one side of it: then no band is narrow.
            no_band = meets_most(graph).any()
            order = self.order if no_band else reverse_cuthill_mckee(graph, symmetric_mode=True)
            place = np.argsort(order)
            width = int(np.abs(place[rows] - place[cols]).max(initial=0))
            if width < self.width:
                self._set_order(order)
                self.width, self.is_reversed = width, False
        self.n_flat = size * (self.width + 1)
        self.diagonal = slice(None, None, self.width + 1)
        self.multiplications = size * (self.width + 1.0) ** 2

    def positions(self, rows: Index, cols: Index) -> Index:
        i, j = self.place[rows], self.place[cols]
        return np.minimum(i, j) * (self.width + 1) + np.abs(i - j)

    def factorize(self, flat: Array, name: str = "a sparse matrix") -> BandedFactor:
        return factorize_band(flat.reshape(-1, self.width + 1).T, name)


class SparsePattern(SymmetricPattern):
    """Pattern of a matrix with sparse columns first, and a dense corner D.

    The factor of

        M = [B  Cᵀ]            is            [L₁        0 ]
            [C  D ]                          [C L₁⁻ᵀ    L₂],

    with L₁ and C L₁⁻ᵀ as sparse as B and C with their fill. The first columns of the corner may
    meet most of B (an intercept, a slope). They are its *border*: their part of L₁⁻¹ Cᵀ is a dense
    matrix. Values are stored flat: the sparse columns, the border's part of Cᵀ by rows, and D by
    rows, of which the lower triangle is read.

    ``limit`` is the most entries that L may have in an order of minimum degree; ValueError if it
    has more. ``given`` is an order of elimination, taken where that of minimum degree is not
    better; columns that meet most others then belong to the border. The columns ``dense`` belong to
    it whatever their entries. If the order is to be ``exact``, these are all of the corner.

    ``corner`` is n₂, and ``border`` the number of columns of the border, which are the corner's
    first. ``arrays`` are the start of the values below the diagonal of each sparse column; rows and
    columns of the flat values of the sparse columns, first of the diagonal, then below it column by
    column with fill but without the border; and where their products are subtracted, see
    :func:`.product_runs`.
    """

    is_reversed = False
    diagonal: Index

    def __init__(
        self,
        size: int,
        rows: Index,
        cols: Index,
        *,
        limit: int | None = None,
        given: Index | None = None,
        dense: Index | None = None,
        exact: bool = False,
    ) -> None:
        forced = np.zeros(size, dtype=bool)
        forced[dense if dense is not None else []] = True
        inner = np.arange(size) if given is None else given
        last, inner = inner[forced[inner]], inner[~forced[inner]]
        m = last.size
        n, starts, below = 0, np.zeros(1, dtype=np.intp), np.empty(0, dtype=np.intp)
        self.multiplications, self._by_supernodes = size**3 / 3.0, False
        if inner.size:
            number = np.empty(size, dtype=np.intp)
            number[inner] = np.arange(inner.size)
            meet = ~forced[rows] & ~forced[cols] & (rows != cols)
            pairs = number[rows[meet]], number[cols[meet]]
            graph = csr_array((np.ones(pairs[0].size), pairs), shape=(inner.size, inner.size))
            graph = ((graph + graph.T) != 0.0).astype(float)
            if exact:
                tree = EliminationTree.of(graph, np.arange(inner.size), m, size**2)
                tree = replace(tree, sparse=inner.size)
            else:
                tree = EliminationTree.best(graph, m, limit, given is None)
            n, inner, (starts, below) = tree.sparse, inner[np.argsort(tree.place)], tree.rows()
            self.multiplications = _QUOTIENT * tree.cost
            self._by_supernodes = tree.supernodal
        # The forced columns come first in the corner, then those that meet nearly all of B.
        of_corner = inner[n:]
        full = np.bincount(below[below >= n] - n, minlength=of_corner.size) > _FULL * n
        full &= given is not None
        in_border = np.append(np.zeros(n, dtype=bool), full)
        self.size, self.corner, self.border = size, size - n, m + int(np.count_nonzero(full))
        self._set_order(np.concatenate([inner[:n], last, of_corner[full], of_corner[~full]]))
        self._set_entries(starts, below, self.place[inner], in_border)
        start = self.n_sparse + n * self.border
        self.n_flat = start + self.corner**2
        corner = start + (self.corner + 1) * np.arange(self.corner)
        self.diagonal = np.concatenate([np.arange(n), corner])

    def _set_entries(self, starts: Index, below: Index, place: Index, in_border: Mask) -> None:
        """Index the values of the sparse columns, given the rows below the diagonal of each."""
        n, column = starts.size - 1, np.repeat(np.arange(starts.size - 1), np.diff(starts))
        column, row = column[~in_border[below]], place[below[~in_border[below]]]
        ascending = np.lexsort((row, column))
        column, row = column[ascending], row[ascending]
        rows, cols = (np.concatenate([np.arange(n), own]) for own in (row, column))
        starts = n + np.append(0, np.cumsum(np.bincount(column, minlength=n)))
        self.n_sparse, self._keys = rows.size, column * self.size + row
        runs = np.empty(0, dtype=np.intp)
        if np.any(row < n) and not self._by_supernodes:
            # Imported here, as only such matrices need Numba.
            from .sparse_kernels import product_runs

            runs, used = product_runs(starts, rows)
            runs = runs[:used].copy()
        self.arrays = starts, rows, cols, runs

    def positions(self, rows: Index, cols: Index) -> Index:
        i, j, n = self.place[rows], self.place[cols], self.size - self.corner
        low, high = np.minimum(i, j), np.maximum(i, j)
        flat = n + np.searchsorted(self._keys, low * self.size + high)
        flat = np.where(low == high, low, flat)
        of_border = (low < n) & (high >= n) & (high < n + self.border)
        flat = np.where(of_border, self.n_sparse + low * self.border + high - n, flat)
        start = self.n_sparse + n * self.border
        return np.where(low >= n, start + (high - n) * self.corner + (low - n), flat)

    def parts(self, flat: Array) -> tuple[Array, Array, Array]:
        """Return views of the values of the sparse columns, the border and the corner."""
        n, start = self.size - self.corner, self.n_sparse
        stop = start + n * self.border
        border = flat[start:stop].reshape(n, self.border)
        return flat[:start], border, flat[stop:].reshape(self.corner, self.corner)

    def factorize(self, flat: Array, name: str = "a sparse matrix") -> SparseFactor:
        before = flat[self.diagonal]
        factor, _ = self._factorize(flat, flat[:0], np.zeros(self.size))
        refuse_improper(name, before, factor.pivots(), factor.log_det)
        return factor

    def factorize_scaled(self, flat: Array, s: Array, right: Array) -> tuple[SparseFactor, Array]:
        """Return the factor L of I + S M S for S = diag(s), and L⁻¹ b.

        Raises NotPositiveDefiniteError if there is no Cholesky factor, or an entry is not finite.
        """
        factor, half = self._factorize(flat, s, right.copy())
        if not isfinite(factor.log_det):
            raise NotPositiveDefiniteError(
                "the posterior precision has no Cholesky factor: expected a finite design, finite "
                "scales and finite site precisions"
            )
        return factor, half

    def _factorize(self, flat: Array, s: Array, half: Array) -> tuple[SparseFactor, Array]:
        """Return the factor of I + S M S, or of M where s is empty, and L⁻¹ b.

        ``half`` has b, and is overwritten.
        """
        if self._by_supernodes:
            return self._factorize_supernodes(flat, s, half)
        n, m, log_det, info = self.size - self.corner, self.corner, 0.0, 0
        # Loops factorise small corners, unless there is nothing else: then none is compiled.
        largest = _SMALL_CORNER if n else 0
        values, border = np.empty(self.n_sparse), np.empty((n, self.border))
        corner = np.empty((m, m))
        if n:
            # Imported here, as only such matrices need Numba.
            from .sparse_kernels import eliminate

            parts = values, border, corner
            log_det = eliminate(*self.arrays, flat, s, *parts, half, largest)
        else:
            corner[...] = flat.reshape(m, m)
            if s.size:
                corner *= s
                corner *= s[:, None]
                corner.ravel()[:: m + 1] += 1.0
        if m > largest and isfinite(log_det):
            # The transpose of D by rows is D by columns, whose upper triangle becomes L₂ᵀ.
            upper, info = dpotrf(corner.T, lower=0, clean=0, overwrite_a=1)
            if info == 0:
                half[n:] = dtrsv(upper, half[n:], lower=0, trans=1)
            log_det += 2.0 * float(np.log(upper.diagonal()).sum()) if info == 0 else np.nan
        diagonal = partial(self._diagonal_of, flat, s)
        return SparseFactor(self.arrays, (values, border, corner), log_det, diagonal), half

    def _factorize_supernodes(
        self, flat: Array, s: Array, half: Array
    ) -> tuple[SparseFactor, Array]:
        """Do :meth:`_factorize` by supernodes; without s the factor takes the place of M."""
        # Imported here, as only large maps need these kernels.
        from .sparse_kernels import scaled_entries
        from .supernodes import eliminate_supernodes

        (starts, rows, cols, _), diagonal = self.arrays, self._diagonal_of(flat, s)
        values, _, corner = parts = self.parts(np.empty(flat.size) if s.size else flat)
        if s.size:
            scaled_entries(rows, cols, flat, s, *parts)
        exists = eliminate_supernodes(starts, rows, values, corner)
        exists = exists and dpotrf(corner.T, lower=0, clean=0, overwrite_a=1)[1] == 0
        factor = SupernodalFactor(self.arrays, parts, np.nan, lambda: diagonal)
        if exists:
            factor.log_det = 2.0 * float(np.log(factor.pivots()).sum())
        return factor, factor.half_solve(half) if exists and s.size else half

    def _diagonal_of(self, flat: Array, s: Array) -> Array:
        return 1.0 + flat[self.diagonal] * s**2 if s.size else flat[self.diagonal]
