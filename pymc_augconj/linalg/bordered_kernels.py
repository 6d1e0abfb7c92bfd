"""The Numba loops of :mod:`.bordered`, in its notation: n₁ sparse columns, n₂ in the corner."""

import math

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, Index

__all__ = [
    "SMALL_CORNER",
    "eliminate_scaled",
    "product_targets",
    "solve_transpose",
    "transpose_product",
]

#: Up to this many columns are factorised here; below it call overhead of LAPACK dominates.
SMALL_CORNER = 16


@njit(cache=True)
def product_targets(starts: Index, rows: Index) -> Index:
    """Return the positions of products that eliminating the columns subtracts from sparse columns.

    One for every pair of a column's rows of which the upper is no corner's, in the order in which
    :func:`eliminate_scaled` meets them.
    """
    n, total = starts.size - 1, 0
    for j in range(n):
        inner = 0
        for a in range(starts[j], starts[j + 1]):
            inner += rows[a] < n
            total += inner
    targets, free = np.empty(total, dtype=np.int64), 0
    for j in range(n):
        for a in range(starts[j], starts[j + 1]):
            for b in range(starts[j], a + 1):
                column = rows[b]
                if column >= n:
                    break
                if b == a:
                    targets[free] = column
                else:
                    own = rows[starts[column] : starts[column + 1]]
                    targets[free] = starts[column] + np.searchsorted(own, rows[a])
                free += 1
    return targets


@njit(cache=True, error_model="numpy")
def eliminate_scaled(
    starts: Index,
    rows: Index,
    cols: Index,
    targets: Index,
    flat: Array,
    s: Array,
    values: Array,
    border: Array,
    corner: Array,
    half: Array,
    largest: int,
) -> float:
    """Eliminate the sparse columns of I + S M S, and the dense ones where they are few.

    Parameters
    ----------
    starts, rows, cols, targets, flat, s
        Fields of the pattern, M and S.
    values, border : ndarray
        Written: L₁ and C L₁⁻ᵀ.
    corner : ndarray, shape (n₂, n₂)
        Written: lower triangle of the Schur complement of D, or of L₂ where n₂ is small.
    half : ndarray, shape (n,)
        b; overwritten with L₁⁻¹ b₁ and b₂ − (C L₁⁻ᵀ) L₁⁻¹ b₁, which L₂⁻¹ multiplies where n₂ is
        small.
    largest : int
        n₂ up to which it counts as small.

    Returns
    -------
    float
        log|B|, and where n₂ is small log|M|; NaN if that has no Cholesky factor.
    """
    n, n_border = border.shape
    size = corner.shape[0]
    n_values = rows.size
    for e in range(n):
        values[e] = flat[e] * s[e] * s[e] + 1.0
    for e in range(n, n_values):
        values[e] = flat[e] * s[rows[e]] * s[cols[e]]
    place = n_values
    for i in range(n):
        for k in range(n_border):
            border[i, k] = flat[place] * s[i] * s[n + k]
            place += 1
    for i in range(size):
        for k in range(i + 1):
            corner[i, k] = flat[place + k] * s[n + i] * s[n + k]
        corner[i, i] += 1.0
        place += size
    log_det, target = 0.0, 0
    for j in range(n):
        pivot = values[j]
        if not 0.0 < pivot < math.inf:
            return math.nan
        log_det += math.log(pivot)
        inverse = 1.0 / math.sqrt(pivot)
        values[j] = inverse
        half[j] *= inverse
        for k in range(n_border):
            border[j, k] *= inverse
        # Rows are in ascending order: from `inner` on they are the corner's.
        inner = starts[j]
        for a in range(starts[j], starts[j + 1]):
            row = rows[a]
            values[a] *= inverse
            value = values[a]
            half[row] -= value * half[j]
            if row < n:
                inner = a + 1
                for k in range(n_border):
                    border[row, k] -= value * border[j, k]
            else:
                below = corner[row - n]
                for k in range(n_border):
                    below[k] -= value * border[j, k]
                for b in range(inner, a + 1):
                    below[rows[b] - n] -= value * values[b]
            for b in range(starts[j], inner):
                values[targets[target]] -= value * values[b]
                target += 1
        for i in range(n_border):
            half[n + i] -= border[j, i] * half[j]
            for k in range(i + 1):
                corner[i, k] -= border[j, i] * border[j, k]
    if size > largest:
        return log_det
    column = np.empty(size)
    for j in range(size):
        pivot = corner[j, j]
        if not 0.0 < pivot < math.inf:
            return math.nan
        log_det += math.log(pivot)
        corner[j, j] = math.sqrt(pivot)
        half[n + j] /= corner[j, j]
        for i in range(j + 1, size):
            # A copy, so that the innermost loop is along rows.
            column[i] = corner[i, j] = corner[i, j] / corner[j, j]
            half[n + i] -= column[i] * half[n + j]
            for k in range(j + 1, i + 1):
                corner[i, k] -= column[i] * column[k]
    return log_det


@njit(cache=True, error_model="numpy")
def solve_transpose(
    starts: Index, rows: Index, values: Array, border: Array, corner: Array, x: Array
) -> Array:
    """Return L⁻ᵀ x."""
    n, n_border = border.shape
    solved = x.copy()
    for i in range(corner.shape[0] - 1, -1, -1):
        solved[n + i] /= corner[i, i]
        for j in range(i):
            solved[n + j] -= corner[i, j] * solved[n + i]
    for i in range(n - 1, -1, -1):
        total = solved[i]
        for j in range(n_border):
            total -= border[i, j] * solved[n + j]
        for a in range(starts[i], starts[i + 1]):
            total -= values[a] * solved[rows[a]]
        solved[i] = total * values[i]
    return solved


@njit(cache=True, error_model="numpy")
def transpose_product(
    starts: Index, rows: Index, values: Array, border: Array, corner: Array, x: Array
) -> Array:
    """Return Lᵀ x."""
    n, n_border = border.shape
    product = np.zeros(x.size)
    for i in range(n):
        total = x[i] / values[i]
        for j in range(n_border):
            total += border[i, j] * x[n + j]
        for a in range(starts[i], starts[i + 1]):
            total += values[a] * x[rows[a]]
        product[i] = total
    for i in range(corner.shape[0]):
        for j in range(i + 1):
            product[n + j] += corner[i, j] * x[n + i]
    return product
