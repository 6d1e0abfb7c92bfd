"""Cholesky factors of sparse matrices with a dense border.

Columns i and j of M *meet* if Mᵢⱼ ≠ 0; effects of different groups hardly do. Columns are
eliminated in a given order (the levels of the larger of two crossed factors before those of the
smaller), or in that of minimum degree where few meet and it costs less; as long as that costs less
than to treat the remaining ones, which fill in, as a dense matrix D, the *corner*. In this order
the lower factor of

    M = [B  Cᵀ]            is            [L₁        0 ]
        [C  D ]                          [C L₁⁻ᵀ    L₂],

with L₁ and C L₁⁻ᵀ as sparse as B and C with their fill. The first columns of the corner meet most
of B (an intercept, a slope). They are its *border*: their part of L₁⁻¹ Cᵀ is a dense matrix. A
model without structure consists of D alone.

References
----------
Davis (2006), Direct Methods for Sparse Linear Systems, chapters 4 and 7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import numpy as np
from scipy.linalg.blas import dtrmv, dtrsv
from scipy.linalg.lapack import dpotrf
from scipy.sparse import csr_array

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.typing import Array, Index, Mask

from .rounding import EPS, SMALL_BOUND, probes, trace_error

__all__ = ["BorderedFactor", "BorderedPattern"]

# Cost of a multiplication among sparse columns, overhead of a sparse column, and of an entry of the
# corner, in multiplications within a large dense matrix.
_SPARSE, _PER_COLUMN, _PER_ENTRY = 8.0, 50.0, 20.0
# The order of minimum degree is tried where columns meet at most so many others, on average. Where
# they meet more it takes long to find, and they fill in anyway.
_FEW_NEIGHBOURS = 8
# A column of the corner with entries in a larger share of B's columns belongs to the border.
_FULL = 0.5


class BorderedPattern:
    """Sparsity pattern of M, and the order in which its columns are eliminated.

    Entries are stored flat: the sparse columns, the border's part of Cᵀ by rows, and D by rows, of
    which the lower triangle is read.

    Attributes
    ----------
    order, place : ndarray of int, shape (n,)
        Columns of M in the order of elimination, and the position of each column in it.
    size, corner, border : int
        n₁, n₂, and the number of columns of the border, which are the corner's first.
    rows, cols : ndarray of int, shape (n₁ + entries,)
        Indices of the flat values of the sparse columns, in the order of elimination: the diagonal,
        then the entries below it column by column, fill included and the border's excluded.
    """

    def __init__(
        self,
        size: int,
        rows: Index,
        cols: Index,
        dense: Index | None = None,
        given: Index | None = None,
    ) -> None:
        """Find the order.

        Parameters
        ----------
        size : int
            n.
        rows, cols : ndarray of int
            Indices of entries beside the diagonal, each once or more.
        dense : ndarray of int, optional
            Columns that belong to the border whatever their entries.
        given : ndarray of int, optional
            An order of elimination of the others; by default their own.
        """
        forced = np.zeros(size, dtype=bool)
        forced[dense if dense is not None else []] = True
        inner = np.arange(size) if given is None else given
        inner, n_forced = inner[~forced[inner]], int(np.count_nonzero(forced))
        self.size, lists = 0, (np.zeros(1, dtype=np.intp), np.empty(0, dtype=np.intp))
        if inner.size:
            number = np.empty(size, dtype=np.intp)
            number[inner] = np.arange(inner.size)
            meet = ~forced[rows] & ~forced[cols] & (rows != cols)
            graph = csr_array(
                (np.ones(np.count_nonzero(meet)), (number[rows[meet]], number[cols[meet]])),
                shape=(inner.size, inner.size),
            )
            order, starts, below = _eliminated(graph, n_forced)
            inner, self.size, lists = inner[order], starts.size - 1, (starts, below)
        starts, below = lists
        n = self.size
        # The forced columns come first in the corner, then those that meet nearly all of B.
        meeting = np.bincount(below[below >= n] - n, minlength=inner.size - n) > _FULL * n
        of_corner = inner[n:]
        full, sparse = of_corner[meeting], of_corner[~meeting]
        self.border, self.corner = n_forced + full.size, n_forced + of_corner.size
        self.order = np.concatenate([inner[:n], np.flatnonzero(forced), full, sparse])
        self.place = np.empty(size, dtype=np.intp)
        self.place[self.order] = np.arange(size)
        self._set_entries(starts, below, self.place[inner], np.append(np.zeros(n, bool), meeting))
        pairs = float(np.sum((np.diff(self._starts) + self.border + 1.0) ** 2)) / 2.0
        self.multiplications = pairs + self.corner**3 / 3.0

    def _set_entries(self, starts: Index, below: Index, place: Index, in_border: Mask) -> None:
        """Index the values of the sparse columns, given the rows below the diagonal of each."""
        n, column = self.size, np.repeat(np.arange(self.size), np.diff(starts))
        column, row = column[~in_border[below]], place[below[~in_border[below]]]
        ascending = np.lexsort((row, column))
        column, row = column[ascending], row[ascending]
        self.rows, self.cols = (np.concatenate([np.arange(n), own]) for own in (row, column))
        self._starts = n + np.append(0, np.cumsum(np.bincount(column, minlength=n)))
        self._keys = column * self.order.size + row
        self._targets = np.empty(0, dtype=np.intp)
        if np.any(row < n):
            # Imported here, as only such matrices need Numba.
            from .bordered_kernels import product_targets

            self._targets = product_targets(self._starts, self.rows)

    def positions(self, rows: Index, cols: Index) -> Index:
        """Return the positions of entries, of either triangle, in the flat values."""
        i, j, n = self.place[rows], self.place[cols], self.size
        low, high = np.minimum(i, j), np.maximum(i, j)
        flat = n + np.searchsorted(self._keys, low * self.order.size + high)
        flat = np.where(low == high, low, flat)
        of_border = (low < n) & (high >= n) & (high < n + self.border)
        flat = np.where(of_border, self.rows.size + low * self.border + high - n, flat)
        start = self.rows.size + n * self.border
        return np.where(low >= n, start + (high - n) * self.corner + (low - n), flat)

    @property
    def n_entries(self) -> int:
        """Length of the flat entries."""
        return self.rows.size + self.size * self.border + self.corner**2

    @cached_property
    def diagonal(self) -> Index:
        """Positions of M's diagonal in the flat entries."""
        start = self.rows.size + self.size * self.border
        of_corner = start + (self.corner + 1) * np.arange(self.corner)
        return np.concatenate([np.arange(self.size), of_corner])

    def parts(self, flat: Array) -> tuple[Array, Array, Array]:
        """Return views of the values of the sparse columns, the border and the corner."""
        n, start, stop = self.size, self.rows.size, self.rows.size + self.size * self.border
        border = flat[start:stop].reshape(n, self.border)
        return flat[:start], border, flat[stop:].reshape(self.corner, self.corner)

    def factorize(self, flat: Array, s: Array, right: Array) -> BorderedFactor:
        """Factorise I + S M S for S = diag(s), and solve L x = b.

        Parameters
        ----------
        flat : ndarray, shape (n_entries,)
            M.
        s, right : ndarray, shape (n,)
            s and b, in the order of elimination.

        Raises
        ------
        NotPositiveDefiniteError
            If there is no Cholesky factor, or an entry is not finite.
        """
        n, m = self.size, self.corner
        values, border, log_det, info = np.empty(0), np.empty((0, self.border)), 0.0, 0
        half, is_left = right.copy(), m > 0
        if n:
            # Imported here, as only such matrices need Numba.
            from .bordered_kernels import SMALL_CORNER, eliminate_scaled

            is_left = m > SMALL_CORNER
            values, border = np.empty(self.rows.size), np.empty((n, self.border))
            corner = np.empty((m, m))
            pattern = self._starts, self.rows, self.cols, self._targets
            log_det = eliminate_scaled(*pattern, flat, s, values, border, corner, half)
        else:
            corner = flat.reshape(m, m) * s
            corner *= s[:, None]
            corner.ravel()[:: m + 1] += 1.0
        if is_left:
            # The transpose of D by rows is D by columns, whose upper triangle becomes L₂ᵀ.
            upper, info = dpotrf(corner.T, lower=0, clean=0, overwrite_a=1)
            if info == 0:
                half[n:] = dtrsv(upper, half[n:], lower=0, trans=1)
                log_det += 2.0 * float(np.log(upper.diagonal()).sum())
        # NaN entries pass some of LAPACK's tests.
        if info != 0 or not isfinite(log_det):
            raise NotPositiveDefiniteError(
                "the posterior precision has no Cholesky factor: expected a finite design, finite "
                "scales and finite site precisions"
            )
        return BorderedFactor(
            self._starts, self.rows, values, border, corner, half, log_det,
            lambda: 1.0 + flat[self.diagonal] * (s * s),
        )  # fmt: skip


def _eliminated(graph: csr_array, n_border: int) -> tuple[Index, Index, Index]:
    """Return an order of elimination, and the rows below the diagonal of the sparse columns.

    Parameters
    ----------
    graph : csr_array
        Columns that meet; either triangle suffices.
    n_border : int
        Further columns, which meet all.

    Returns
    -------
    order : ndarray of int
    starts, rows : ndarray of int
        Start of the rows of each sparse column, and all rows, as positions in the order.
    """
    from .sparse import minimum_degree
    from .sparse_kernels import rows_below

    size = graph.shape[0]
    graph = ((graph + graph.T) != 0.0).astype(float)
    trees = [_Tree.of(graph, np.arange(size), n_border)]
    if graph.nnz <= _FEW_NEIGHBOURS * size:
        trees.append(_Tree.of(graph, minimum_degree(graph), n_border))
    tree = min(trees, key=lambda one: one.cost)
    order, n = np.empty(size, dtype=np.intp), tree.sparse
    order[tree.place] = np.arange(size)
    offsets = np.append(0, np.cumsum(tree.counts + 1))
    every = np.arange(size + 1)
    rows = rows_below(*tree.graph, tree.parent, every[:-1], every, offsets)[: offsets[n]]
    is_below = np.ones(rows.size, dtype=bool)
    is_below[offsets[:n]] = False
    return order, offsets[: n + 1] - every[: n + 1], rows[is_below]


@dataclass(frozen=True)
class _Tree:
    """An order, its elimination tree, and the least cost of a factorisation in it.

    Attributes
    ----------
    place : ndarray of int
        Position of every column.
    graph : tuple of ndarray of int
        Neighbours in the order, see :func:`.reordered`.
    parent, counts : ndarray of int
        Parents, and entries below the diagonal.
    sparse : int
        Number of sparse columns.
    cost : float
    """

    place: Index
    graph: tuple[Index, Index]
    parent: Index
    counts: Index
    sparse: int
    cost: float

    @classmethod
    def of(cls, graph: csr_array, place: Index, n_border: int) -> _Tree:
        """Return that of an order, with ``n_border`` further columns that meet all."""
        from .sparse import reordered
        from .sparse_kernels import count_below, elimination_tree

        size = place.size
        neighbours = reordered(graph, place)
        parent = elimination_tree(*neighbours)
        counts = count_below(*neighbours, parent, size**2)
        # Cost with the first 0, 1, … columns sparse.
        pairs = _PER_COLUMN + _SPARSE * (counts + n_border + 1.0) ** 2 / 2.0
        left = n_border + np.arange(size, -1, -1.0)
        dense = left**3 / 3.0 + _PER_ENTRY * left**2
        costs = np.append(0.0, np.cumsum(pairs)) + dense
        best = int(costs.argmin())
        return cls(place, neighbours, parent, counts, best, float(costs[best]))


@dataclass(frozen=True, slots=True)
class BorderedFactor:
    """L with I + S M S = L Lᵀ, and L⁻¹ b.

    Attributes
    ----------
    starts, rows : ndarray of int
        From the pattern: start of each column's values, and their rows.
    values : ndarray, shape (n₁ + entries,)
        L₁ and C L₁⁻ᵀ, with the inverse of the diagonal in place of the diagonal.
    border, corner : ndarray
        The border's part of L₁⁻¹ Cᵀ, shape (n₁, border), and L₂, in the lower triangle.
    half : ndarray, shape (n,)
        L⁻¹ b.
    log_det : float
        log|I + S M S|.
    diagonal : callable
        Returns the diagonal of I + S M S.
    """

    starts: Index
    rows: Index
    values: Array
    border: Array
    corner: Array
    half: Array
    log_det: float
    diagonal: Callable[[], Array]

    @property
    def error(self) -> float:
        """The estimated rounding error of the log determinant."""
        # I + S M S is at least I: the trace of H⁻¹ is at most that of I + S M S.
        diagonal = self.diagonal()
        bound = EPS * diagonal.size * float(diagonal.sum())
        if bound <= SMALL_BOUND:
            return bound
        solved = [self.solve_transpose(z) for z in probes(np.ones_like(diagonal))]
        return trace_error(np.sqrt(diagonal) * solved)

    def solve_transpose(self, x: Array) -> Array:
        """Return L⁻ᵀ x."""
        if not self.values.size:
            return dtrsv(self.corner.T, x, lower=0) if x.size else x
        from .bordered_kernels import solve_transpose

        return solve_transpose(self.starts, self.rows, self.values, self.border, self.corner, x)

    def transpose_product(self, x: Array) -> Array:
        """Return Lᵀ x."""
        if not self.values.size:
            return dtrmv(self.corner.T, x, lower=0) if x.size else x
        from .bordered_kernels import transpose_product

        return transpose_product(self.starts, self.rows, self.values, self.border, self.corner, x)
