"""Cholesky factors of sparse matrices with a dense border.

Columns i and j of M *meet* if Mᵢⱼ ≠ 0; effects of different groups hardly do. Columns that do not
meet are eliminated first. The remaining ones, fill included, may again have many that do not meet.
The last few columns, which meet everything (an intercept, a slope), form a dense matrix. In this
order the lower factor of

    M = [B  Cᵀ]            is            [L₁        0 ]
        [C  D ]                          [C L₁⁻ᵀ    L₂],

with L₁ as sparse as B with its fill. A model without structure consists of D alone.

References
----------
Davis (2006), Direct Methods for Sparse Linear Systems, chapters 4 and 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, isfinite

import numpy as np
from scipy.linalg.blas import dtrmv, dtrsv
from scipy.linalg.lapack import dpotrf

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.typing import Array, Index

from .rounding import EPS, SCREEN, probes, trace_error

__all__ = ["BorderedFactor", "BorderedPattern"]

# A smaller set of columns that do not meet goes to the dense matrix.
_SMALLEST_LEVEL = 8
# So do columns that meet more others than this: their elimination fills it anyway.
_LARGEST_DEGREE = 8


class BorderedPattern:
    """Sparsity pattern of M, and the order in which its columns are eliminated.

    Entries are stored flat: B, Cᵀ by rows, and D by rows, of which the lower triangle is read.

    Attributes
    ----------
    order : ndarray of int, shape (n,)
        Columns of M in the order of elimination.
    size, border : int
        n₁ and n₂.
    rows, cols : ndarray of int, shape (n₁ + entries,)
        Indices of the flat values of B, in the order of elimination: the diagonal, then the
        entries below it column by column, fill included.
    """

    def __init__(
        self, size: int, pairs: Iterable[tuple[int, int]], dense: Iterable[int] = ()
    ) -> None:
        """Find the order.

        Parameters
        ----------
        size : int
            n.
        pairs : iterable of (int, int)
            Rows and columns of entries beside the diagonal, each once or more.
        dense : iterable of int
            Columns that belong to the border whatever their entries.
        """
        last = set(dense)
        meets: dict[int, set[int]] = {i: set() for i in range(size) if i not in last}
        for i, j in pairs:
            if i != j and i in meets and j in meets:
                meets[i].add(j)
                meets[j].add(i)
        first: list[int] = []
        below: list[set[int]] = []
        while len(level := _independent(meets)) >= _SMALLEST_LEVEL:
            first += level
            below += [meets[i] for i in level]
            _eliminate(meets, level)
        in_corner = set(meets) | last
        self.order = np.array([*first, *sorted(in_corner)], dtype=np.intp)
        self.size, self.border = len(first), len(in_corner)
        place = np.empty(size, dtype=np.intp)
        place[self.order] = np.arange(size)
        # The remaining columns are in the border now, no entries of L₁.
        self._set_entries([sorted(place[list(rows - in_corner)].tolist()) for rows in below])
        self.multiplications = float(
            self._targets.size
            + (self.rows.size - self.size) * self.border
            + self.size * (self.border + 1) ** 2 / 2
            + self.border**3 / 3
        )

    def _set_entries(self, rows_of: Sequence[Sequence[int]]) -> None:
        """Index the values of B, given the rows below the diagonal of every column."""
        counts = [len(rows) for rows in rows_of]
        columns = np.arange(self.size)
        below = [row for rows in rows_of for row in rows]
        self.rows = np.concatenate([columns, np.array(below, dtype=np.intp)])
        self.cols = np.concatenate([columns, np.repeat(columns, counts)])
        self._starts = self.size + np.cumsum([0, *counts])
        places = zip(self.rows.tolist(), self.cols.tolist(), strict=True)
        self._at = {place: i for i, place in enumerate(places)}
        # Eliminating a column subtracts a product at every pair of its rows.
        targets = [
            self._at[row, col]
            for rows in rows_of
            for a, row in enumerate(rows)
            for col in rows[: a + 1]
        ]
        self._targets = np.array(targets, dtype=np.intp)

    @property
    def arrays(self) -> tuple[Index, Index, Index, Index]:
        """The arguments of the loops: starts, rows and columns of B, and targets of products."""
        return self._starts, self.rows, self.cols, self._targets

    def entry(self, row: int, col: int) -> int:
        """Return the position in B's flat values of an entry, given in the order of elimination."""
        return self._at[max(row, col), min(row, col)]

    @property
    def n_entries(self) -> int:
        """Length of the flat entries."""
        return self.rows.size + self.size * self.border + self.border**2

    @cached_property
    def diagonal(self) -> Index:
        """Positions of M's diagonal in the flat entries."""
        corner = self.rows.size + self.size * self.border
        of_corner = corner + (self.border + 1) * np.arange(self.border)
        return np.concatenate([np.arange(self.size), of_corner])

    def parts(self, flat: Array) -> tuple[Array, Array, Array]:
        """Return views of the values of B, Cᵀ and D."""
        n, n_border = self.size, self.border
        start = self.rows.size
        border = flat[start : start + n * n_border].reshape(n, n_border)
        return flat[:start], border, flat[start + n * n_border :].reshape(n_border, n_border)

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
        n, n_border = self.size, self.border
        values, border, log_det, info = np.empty(0), np.empty((0, n_border)), 0.0, 0
        half, is_left = right.copy(), n_border > 0
        if n:
            # Imported here, as only such matrices need Numba.
            from .bordered_kernels import SMALL_BORDER, eliminate_scaled

            is_left = n_border > SMALL_BORDER
            values, border = np.empty(self.rows.size), np.empty((n, n_border))
            corner = np.empty((n_border, n_border))
            log_det = eliminate_scaled(
                *self.arrays, flat, s, values, border, corner, half, SMALL_BORDER
            )
        else:
            corner = flat.reshape(n_border, n_border) * s
            corner *= s[:, None]
            corner.ravel()[:: n_border + 1] += 1.0
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


def _independent(meets: dict[int, set[int]]) -> list[int]:
    """Return columns of which no two meet, chosen by increasing number of neighbours."""
    chosen: list[int] = []
    blocked: set[int] = set()
    for i in sorted(meets, key=lambda i: (len(meets[i]), i)):
        if i not in blocked and len(meets[i]) <= _LARGEST_DEGREE:
            chosen.append(i)
            blocked |= meets[i]
    return sorted(chosen)


def _eliminate(meets: dict[int, set[int]], level: Sequence[int]) -> None:
    for i in level:
        others = meets.pop(i)
        for j in others:
            meets[j] |= others
            meets[j] -= {i, j}


@dataclass(frozen=True, slots=True)
class BorderedFactor:
    """L with I + S M S = L Lᵀ, and L⁻¹ b.

    Attributes
    ----------
    starts, rows : ndarray of int
        From the pattern: start of each column's values, and their rows.
    values : ndarray, shape (n₁ + entries,)
        L₁, with the inverse of its diagonal in place of the diagonal.
    border, corner : ndarray
        L₁⁻¹ Cᵀ, shape (n₁, n₂), and L₂, in the lower triangle.
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
        # I + S M S is at least I: the trace of H⁻¹ is at most the trace of I + S M S, and no
        # eigenvalue is larger than the determinant.
        rough = EPS * self.half.size**2 * exp(min(self.log_det, 100.0))
        if rough <= SCREEN:
            return rough
        diagonal = self.diagonal()
        rough = EPS * diagonal.size * float(diagonal.sum())
        if rough <= SCREEN:
            return rough
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
