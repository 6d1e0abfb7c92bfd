"""Cholesky factors of sparse matrices with a dense border, a level of columns at a time.

Effects of groups hardly meet. Columns of M that do not meet each other at all can be eliminated
together, by a few operations on whole arrays; those that they leave, fill included, may again be
many that do not meet; and the few columns at the end, which meet everything (an intercept, a
slope), are a dense matrix. With the levels of columns first, the lower factor of

    M = [B  Cᵀ]            is            [L₁        0 ]
        [C  D ]                          [C L₁⁻ᵀ    L₂],

L₁ as sparse as B with its fill. A model without structure has a D alone.

References
----------
Davis (2006), Direct Methods for Sparse Linear Systems, chapters 4 and 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg.blas import dsyrk, dtrmv, dtrsv
from scipy.linalg.lapack import dpotrf

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.typing import Array, Index

__all__ = ["BorderedFactor", "BorderedMatrix", "BorderedPattern", "factorize"]

# A level of fewer columns is left to the dense matrix: NumPy's overhead is that of so many.
_SMALLEST_LEVEL = 8
# Columns that meet more others than this are left to it, too: their elimination fills it anyway.
_LARGEST_DEGREE = 8


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums of groups of entries that stand next to each other."""

    starts: Index
    is_trivial: bool

    @classmethod
    def of(cls, keys: Index) -> tuple[_Sums, Index]:
        """Return the sums of entries with equal ``keys``, which are sorted, and the keys."""
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        return cls(starts, starts.size == keys.size), keys[starts]

    def __call__(self, values: Array) -> Array:
        return values if self.is_trivial else np.add.reduceat(values, self.starts)


@dataclass(frozen=True, slots=True)
class _Level:
    """Columns that do not meet, and the entries below their diagonal within L₁.

    ``columns`` of the matrix and ``entries`` of the flat values are slices; an entry stands in the
    row ``rows`` and the column ``within`` of the level. What the elimination takes off: from each
    of ``targets`` the sum of the products of entries ``left`` and ``right``; from each of
    ``sides`` of the border's rows the sum of entries ``order`` times rows of the level.
    """

    columns: slice
    entries: slice
    rows: Index
    within: Index
    left: Index
    right: Index
    sum_products: _Sums
    targets: Index
    order: Index
    sum_sides: _Sums
    sides: Index


class BorderedPattern:
    """Where M may have entries, and the order in which its columns are eliminated.

    Attributes
    ----------
    order : ndarray of int, shape (n,)
        Columns of M in the order of elimination.
    size, border : int
        n₁ and n₂.
    rows, cols : ndarray of int, shape (n₁ + entries,)
        Where the flat values of B stand, in the order of elimination: the diagonal, then the
        entries below it, fill included.
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
            Columns that stand in the border whatever their entries.
        """
        last = set(dense)
        meets: dict[int, set[int]] = {i: set() for i in range(size) if i not in last}
        for i, j in pairs:
            if i != j and i in meets and j in meets:
                meets[i].add(j)
                meets[j].add(i)
        levels: list[list[int]] = []
        entries: list[list[tuple[int, int]]] = []
        while len(level := _independent(meets)) >= _SMALLEST_LEVEL:
            levels.append(level)
            entries.append([(j, i) for i in level for j in sorted(meets[i])])
            _eliminate(meets, level)
        first = [i for level in levels for i in level]
        in_corner = set(meets) | last
        self.order = np.array([*first, *sorted(in_corner)], dtype=np.intp)
        self.size, self.border = len(first), len(in_corner)
        place = np.empty(size, dtype=np.intp)
        place[self.order] = np.arange(size)
        # What was left over is in the border now, no entry of L₁.
        kept = [[(j, i) for j, i in level if j not in in_corner] for level in entries]
        self._set_levels(place, [len(level) for level in levels], kept)
        self.multiplications = float(
            sum(level.left.size + level.order.size * self.border for level in self._levels)
            + self.size * (self.border + 1) ** 2 / 2
            + self.border**3 / 3
        )

    def _set_levels(self, place: Index, sizes: Sequence[int], entries: list) -> None:
        rows = [np.arange(self.size)]
        cols = [np.arange(self.size)]
        at = {(i, i): i for i in range(self.size)}
        bounds = [self.size]
        for level in entries:
            pairs = sorted((int(place[i]), int(place[j])) for j, i in level)
            for column, row in pairs:
                at[row, column] = bounds[0] + len(at) - self.size
            rows.append(np.array([row for _, row in pairs], dtype=np.intp))
            cols.append(np.array([column for column, _ in pairs], dtype=np.intp))
            bounds.append(bounds[-1] + len(pairs))
        self.rows, self.cols, self._at = np.concatenate(rows), np.concatenate(cols), at
        self._levels = []
        start = 0
        for i, size in enumerate(sizes):
            columns = slice(start, start + size)
            self._levels.append(self._level(columns, slice(bounds[i], bounds[i + 1])))
            start += size

    def _level(self, columns: slice, entries: slice) -> _Level:
        rows = self.rows[entries]
        within = self.cols[entries] - columns.start
        products = []
        for j in range(columns.stop - columns.start):
            own = np.flatnonzero(within == j)
            products += [
                (self._at[max(rows[a], rows[b]), min(rows[a], rows[b])], a, b)
                for k, a in enumerate(own)
                for b in own[: k + 1]
            ]
        products.sort()
        targets, left, right = np.array(products, dtype=np.intp).reshape(-1, 3).T
        sum_products, targets = _Sums.of(targets)
        order = np.argsort(rows, kind="stable")
        sum_sides, sides = _Sums.of(rows[order])
        return _Level(
            columns, entries, rows, within, left, right, sum_products, targets, order, sum_sides,
            sides,
        )  # fmt: skip

    def entry(self, row: int, col: int) -> int:
        """Return which of B's flat values is entry (row, col), in the order of elimination."""
        return self._at[max(row, col), min(row, col)]

    @property
    def levels(self) -> Sequence[_Level]:
        """The levels of columns, in their order."""
        return self._levels


def _independent(meets: dict[int, set[int]]) -> list[int]:
    """Return columns no two of which meet, those that meet few others first."""
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
class BorderedMatrix:
    """A symmetric matrix, rows and columns in the order of elimination.

    Attributes
    ----------
    pattern : BorderedPattern
    values : ndarray, shape (n₁ + entries,)
        Those of B at ``pattern.rows`` and ``pattern.cols``.
    border : ndarray, shape (n₁, n₂)
        Cᵀ.
    corner : ndarray, shape (n₂, n₂)
        D, Fortran-ordered; its lower triangle counts.
    """

    pattern: BorderedPattern
    values: Array
    border: Array
    corner: Array

    def dense(self) -> Array:
        """Return the whole matrix."""
        n = self.pattern.size
        matrix = np.zeros((n + self.pattern.border,) * 2)
        matrix[self.pattern.rows, self.pattern.cols] = self.values
        matrix[n:, :n] = self.border.T
        matrix[n:, n:] = np.tril(self.corner)
        return matrix + np.tril(matrix, -1).T

    def scaled(self, s: Array) -> BorderedMatrix:
        """Return I + S M S for S = diag(s)."""
        pattern, n = self.pattern, self.pattern.size
        first, second = s[:n], s[n:]
        corner = self.corner * second
        corner *= second[:, None]
        corner.ravel(order="K")[:: second.size + 1] += 1.0
        if not n:
            return BorderedMatrix(pattern, self.values, self.border, corner)
        if self.values.size == n:
            values = first * first
        else:
            values = s[pattern.rows]
            values *= s[pattern.cols]
        values *= self.values
        values[:n] += 1.0
        border = self.border * second
        border *= first[:, None]
        return BorderedMatrix(pattern, values, border, corner)


@dataclass(frozen=True, slots=True)
class BorderedFactor:
    """L with M = L Lᵀ, and L⁻¹ b.

    Attributes
    ----------
    pattern : BorderedPattern
    values : ndarray, shape (n₁ + entries,)
        L₁, but for the diagonal, of which it has the inverse.
    border, corner : ndarray
        L₁⁻¹ Cᵀ, and L₂.
    half : ndarray, shape (n,)
        L⁻¹ b.
    log_det : float
        log|M|.
    """

    pattern: BorderedPattern
    values: Array
    border: Array
    corner: Array
    half: Array
    log_det: float

    def solve_transpose(self, x: Array) -> Array:
        """Return L⁻ᵀ x."""
        n = self.pattern.size
        second = dtrsv(self.corner, x[n:], lower=1, trans=1) if x.size > n else x[n:]
        if not n:
            return second
        solved = np.empty_like(x)
        solved[n:] = second
        solved[:n] = x[:n] - self.border @ second
        for level in reversed(self.pattern.levels):
            own = solved[level.columns]
            if level.rows.size:
                taken = self.values[level.entries] * solved[level.rows]
                own -= np.bincount(level.within, weights=taken, minlength=own.size)
            own *= self.values[level.columns]
        return solved

    def transpose_product(self, x: Array) -> Array:
        """Return Lᵀ x."""
        n = self.pattern.size
        product = np.empty_like(x)
        product[n:] = dtrmv(self.corner, x[n:], lower=1, trans=1) if x.size > n else x[n:]
        if n:
            product[:n] = x[:n] / self.values[:n] + self.border @ x[n:]
            taken = self.values[n:] * x[self.pattern.rows[n:]]
            product[:n] += np.bincount(self.pattern.cols[n:], weights=taken, minlength=n)
        return product


def factorize(matrix: BorderedMatrix, right: Array) -> BorderedFactor:
    """Factorise M, which is overwritten, and solve L x = b.

    Parameters
    ----------
    matrix : BorderedMatrix
    right : ndarray, shape (n,)
        b, in the order of elimination.

    Raises
    ------
    NotPositiveDefiniteError
        If M has no Cholesky factor, or an entry that is not finite.
    """
    pattern, values, corner = matrix.pattern, matrix.values, matrix.corner
    n, n_border = pattern.size, pattern.border
    border, half, log_det, info = matrix.border, right, 0.0, 0
    if n:
        sides = np.empty((n, n_border + 1))
        sides[:, :n_border] = border
        sides[:, n_border] = right[:n]
        for level in pattern.levels:
            log_det += _eliminate_level(level, values, sides)
        border, first = sides[:, :n_border], sides[:, n_border]
        half = first
    if n_border:
        if n:
            # The last row is that of b: what it has taken off, and the square of its first part.
            taken = dsyrk(1.0, sides.T, lower=1)
            corner -= taken[:n_border, :n_border]
            right = right[n:] - taken[n_border, :n_border]
        corner, info = dpotrf(corner, lower=1, clean=0, overwrite_a=1)
        log_det += 2.0 * float(np.log(corner.ravel(order="K")[:: n_border + 1]).sum())
        half = dtrsv(corner, right, lower=1)
        if n:
            half = np.concatenate([first, half])
    # An entry that is NaN passes some of LAPACK's tests.
    if info != 0 or not np.isfinite(log_det):
        raise NotPositiveDefiniteError(
            f"the posterior precision has no Cholesky factor (LAPACK info {info}): expected a "
            "finite design, finite scales and finite site precisions"
        )
    return BorderedFactor(pattern, values, border, corner, half, log_det)


def _eliminate_level(level: _Level, values: Array, sides: Array) -> float:
    """Eliminate the columns of one level in place; return the log of their pivots' product."""
    pivots = values[level.columns]
    log_det = float(np.log(pivots).sum())
    np.sqrt(pivots, out=pivots)
    np.divide(1.0, pivots, out=pivots)
    own = sides[level.columns]
    own *= pivots[:, None]
    if level.rows.size:
        entries = values[level.entries]
        entries *= pivots[level.within]
        values[level.targets] -= level.sum_products(entries[level.left] * entries[level.right])
        shares = entries[level.order][:, None] * own[level.within[level.order]]
        sides[level.sides] -= level.sum_sides(shares)
    return log_det
