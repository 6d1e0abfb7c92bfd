"""Sparse symmetric positive definite matrices, such as precisions of maps.

The band of a map of n areas has √n diagonals or so, and most of it is zero. In an order of minimum
degree the factor has fewer entries: areas that others surround are eliminated before these, and
values that meet one other value alone (an area's own effect) before everything. Columns that have
the same rows below them are a *panel*, which is factorised as a dense matrix.

References
----------
George & Liu (1989), The evolution of the minimum degree ordering algorithm. SIAM Review 31.
Davis (2006), Direct Methods for Sparse Linear Systems, chapters 4 and 7.
Takahashi, Fagan & Chin (1973), Formation of a sparse bus impedance matrix (the inverse).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.sparse import csc_array, csr_array, eye_array
from scipy.sparse.linalg import spilu

from pymc_augconj.typing import Array, Index

from .banded import BandedFactor, BandPattern, refuse_improper
from .rounding import probes, trace_error

__all__ = [
    "SparseFactor",
    "SparsePattern",
    "SymmetricFactor",
    "SymmetricPattern",
    "UpdatedFactor",
    "find_pattern",
    "minimum_degree",
    "reordered",
]

# No other order is tried where a band takes fewer multiplications than this, or is fuller.
_FEWEST, _FULLEST = 2e5, 0.25
# Cost of a multiplication among panels, and overhead of a column, in multiplications within a band.
# Measured with eight solutions a factor, as in a step, on grids of 56 to 10 000 areas.
_QUOTIENT, _PER_COLUMN = 3.0, 100.0
# Off-diagonal value of the matrix that is factorised for its order alone.
_WEAK = 1e-3


def find_pattern(size: int, rows: Index, cols: Index) -> SymmetricPattern:
    """Return a pattern with these entries in which a factorisation takes least time.

    Parameters
    ----------
    size, rows, cols
        As of :class:`.BandPattern`.
    """
    band = BandPattern(size, rows, cols)
    if band.multiplications < _FEWEST:
        return band
    lower = np.minimum(rows, cols) * size + np.maximum(rows, cols)
    if np.unique(lower).size > _FULLEST * band.n_flat:
        return band
    try:
        sparse = SparsePattern(size, rows, cols, limit=band.n_flat)
    except ValueError:
        return band
    return sparse if sparse.multiplications < band.multiplications else band


class SparsePattern:
    """Pattern of a symmetric matrix, with an order in which its factor is sparse.

    Same interface as :class:`.BandPattern`. Panels are stored flat, one after another, by columns,
    fill and some zeros above the diagonal included.

    Parameters
    ----------
    size, rows, cols
        As of a :class:`.BandPattern`.
    limit : int, optional
        The most entries that L may have.

    Attributes
    ----------
    order, place : ndarray of int, shape (n,)
        Rows in the order of elimination, and the position of each row in it.
    diagonal : ndarray of int, shape (n,)
        Positions of the diagonal in the flat values.
    n_flat : int
        Length of the flat values.
    multiplications : float
        Cost of a factorisation, in the unit of :attr:`.BandPattern.multiplications`.

    Raises
    ------
    ValueError
        If L has more entries than ``limit``.
    """

    is_reversed = False

    def __init__(self, size: int, rows: Index, cols: Index, limit: int | None = None) -> None:
        # Imported here, as only such matrices need Numba.
        from .sparse_kernels import count_below, elimination_tree, postorder, rows_below

        self.size = size
        graph = csr_array((np.ones(rows.size), (rows, cols)), shape=(size, size))
        graph = ((graph + graph.T) != 0.0).astype(float)
        by_degree = minimum_degree(graph)
        parent = elimination_tree(*reordered(graph, by_degree))
        self.place: Index = postorder(parent)[by_degree]
        self.order: Index = np.empty(size, dtype=np.intp)
        self.order[self.place] = np.arange(size)
        starts, neighbours = reordered(graph, self.place)
        parent = elimination_tree(starts, neighbours)
        counts = count_below(starts, neighbours, parent, size**2 if limit is None else limit)
        if counts.size < size:
            raise ValueError(f"expected at most {limit} entries below the diagonal, found more")
        self.multiplications = float(_QUOTIENT * np.sum((counts + 1.0) ** 2) + _PER_COLUMN * size)
        is_first = np.ones(size, dtype=bool)
        is_first[1:] = (parent[:-1] != np.arange(1, size)) | (counts[:-1] != counts[1:] + 1)
        first = np.flatnonzero(is_first)
        self._panel_of = np.cumsum(is_first) - 1
        self._first = np.append(first, size)
        heights = counts[first] + 1
        self._offsets = np.append(0, np.cumsum(heights))
        self._rows = rows_below(
            starts, neighbours, parent, self._panel_of, self._first, self._offsets
        )
        self._starts = np.append(0, np.cumsum(heights * np.diff(self._first)))
        self.n_flat = int(self._starts[-1])
        # Rows of panels are in ascending order: one search finds the row in the panel.
        self._keys = np.repeat(np.arange(first.size), heights) * size + self._rows
        self.diagonal: Index = self.positions(self.order, self.order)

    def positions(self, rows: Index, cols: Index) -> Index:
        """Return the positions of entries, of either triangle, in the flat values."""
        i, j = self.place[rows], self.place[cols]
        row, column = np.maximum(i, j), np.minimum(i, j)
        panel = self._panel_of[column]
        place = np.searchsorted(self._keys, panel * self.size + row) - self._offsets[panel]
        height = self._offsets[panel + 1] - self._offsets[panel]
        return self._starts[panel] + (column - self._first[panel]) * height + place

    def forward(self, x: Array) -> Array:
        """Return x with its last axis in the order of elimination."""
        return x[..., self.order]

    def back(self, x: Array) -> Array:
        """Return x, given in the order of elimination, in the original order."""
        return x[..., self.place]

    def factorize(self, flat: Array, name: str = "a sparse matrix") -> SparseFactor:
        """Return the Cholesky factor of flat values, which are overwritten.

        Raises
        ------
        NotPositiveDefiniteError
            As :meth:`.BandPattern.factorize`.
        """
        from .sparse_kernels import factorize_panels

        before = flat[self.diagonal]
        log_det = factorize_panels(*self.panels, self._panel_of, flat)
        refuse_improper(name, before, flat[self.diagonal], log_det)
        return SparseFactor(self, flat, log_det, before)

    @property
    def panels(self) -> tuple[Index, Index, Index, Index]:
        """First column of each panel, start of its rows, all rows, start of its values."""
        return self._first, self._offsets, self._rows, self._starts

    @property
    def panel_of(self) -> Index:
        """The panel of every column."""
        return self._panel_of


class SparseFactor:
    """L with P Q Pᵀ = L Lᵀ; same interface as :class:`.BandedFactor`.

    Vectors are in the order of elimination, (n,), or (count, n) where there are several.
    """

    def __init__(
        self, pattern: SparsePattern, values: Array, log_det: float, diagonal: Array
    ) -> None:
        self._pattern, self._values, self.log_det = pattern, values, log_det
        self.diagonal = diagonal

    @cached_property
    def error(self) -> float:
        """See :attr:`.BandedFactor.error`."""
        return trace_error(self.half_solve(probes(self.diagonal)))

    def half_solve(self, x: Array) -> Array:
        """Return L⁻¹ x."""
        return self._solve(x, False)

    def transpose_solve(self, x: Array) -> Array:
        """Return L⁻ᵀ x: a draw from N(0, Q⁻¹) where x is one from N(0, I)."""
        return self._solve(x, True)

    def solve(self, x: Array) -> Array:
        """Return Q⁻¹ x."""
        return self.transpose_solve(self.half_solve(x))

    def product(self, x: Array) -> Array:
        """Return L x."""
        return self._multiply(x, False)

    def transpose_product(self, x: Array) -> Array:
        """Return Lᵀ x."""
        return self._multiply(x, True)

    def inverse(self) -> Array:
        """Return the entries of Q⁻¹ on the pattern of L, flat."""
        from .sparse_kernels import invert_panels

        return invert_panels(*self._pattern.panels, self._pattern.panel_of, self._values)

    def dense_inverse(self) -> Array:
        """Return Q⁻¹, shape (n, n), Fortran-ordered."""
        lower = np.tril(self.solve(np.eye(self._pattern.size)))
        return np.asfortranarray(lower + np.tril(lower, -1).T)

    def _solve(self, x: Array, transpose: bool) -> Array:
        from .sparse_kernels import solve

        columns = np.array(np.atleast_2d(x).T, order="C")
        solve(*self._pattern.panels, self._values, columns, transpose)
        return np.ascontiguousarray(columns.T).reshape(x.shape)

    def _multiply(self, x: Array, transpose: bool) -> Array:
        from .sparse_kernels import multiply

        columns = np.ascontiguousarray(np.atleast_2d(x).T)
        product = multiply(*self._pattern.panels, self._values, columns, transpose)
        return np.ascontiguousarray(product.T).reshape(x.shape)


SymmetricPattern = BandPattern | SparsePattern
SymmetricFactor = BandedFactor | SparseFactor


def minimum_degree(graph: csr_array) -> Index:
    """Return the position of each row of a symmetric graph in an order of minimum degree."""
    weak = (_WEAK / max(graph.sum(axis=0).max(initial=0.0), 1.0)) * graph
    return spilu(
        csc_array(weak + eye_array(graph.shape[0])),
        drop_tol=1.0, fill_factor=1.0, permc_spec="MMD_AT_PLUS_A",
    ).perm_c  # fmt: skip


def reordered(graph: csr_array, place: Index) -> tuple[Index, Index]:
    """Return the neighbours of each row, and their starts, after a permutation of the rows."""
    order = np.empty(place.size, dtype=np.intp)
    order[place] = np.arange(place.size)
    permuted = graph[order]
    return permuted.indptr.astype(np.intp), place[permuted.indices].astype(np.intp)


class UpdatedFactor:
    """Factor L (I + V Vᵀ)^½ of L Lᵀ + P Pᵀ, where Vᵀ = (L⁻¹P)ᵀ = ``rows``, shape (r, n)."""

    def __init__(self, factor: SymmetricFactor, rows: Array) -> None:
        self.factor, self.rows = factor, rows
        # Vᵀ rotated so that its rows are orthogonal.
        self.squares, self.basis, self.log_det = np.empty(0), rows, factor.log_det
        if len(rows):
            self.squares, vectors = np.linalg.eigh(rows @ rows.T)
            self.basis = vectors.T @ rows
            self.log_det += float(np.log1p(self.squares).sum())

    def _along(self, x: Array, power: float) -> Array:
        """Return (I + V Vᵀ)^power x."""
        if not self.squares.size:
            return x
        factors = ((1.0 + self.squares) ** power - 1.0) / self.squares
        return x + ((x @ self.basis.T) * factors) @ self.basis

    def shrink(self, x: Array) -> Array:
        """Return (I + V Vᵀ)^−½ x."""
        return self._along(x, -0.5)

    def half_solve(self, x: Array) -> Array:
        """Return the inverse times x."""
        return self.shrink(self.factor.half_solve(x))

    def transpose_solve(self, x: Array) -> Array:
        """Return the inverse of the transpose times x."""
        return self.factor.transpose_solve(self.shrink(x))

    def transpose_product(self, x: Array) -> Array:
        """Return the transpose times x."""
        return self._along(self.factor.transpose_product(x), 0.5)
