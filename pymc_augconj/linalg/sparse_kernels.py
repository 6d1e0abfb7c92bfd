"""The Numba loops of :mod:`.sparse` and :mod:`.factors`, and of sums over many rows.

In their notation: n₁ sparse columns, n₂ in the corner.
"""

import math
from typing import Any

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, Index

# Functions that make arrays, also where their caller is compiled without.
_WITH_ARRAYS: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": True}

# Numbers whose product is far from overflow; columns of a border that is narrow.
_SMALLEST, _LARGEST, _NARROW = 1e-100, 1e100, 8


@njit(cache=True)
def elimination_tree(starts: Index, neighbours: Index) -> Index:
    """Return the parent of every column, −1 of roots, by Liu's algorithm.

    ``neighbours`` are the columns with an entry in each row, earlier ones included.
    """
    n = starts.size - 1
    parent = np.full(n, -1)
    ancestor = np.full(n, -1)
    for i in range(n):
        for e in range(starts[i], starts[i + 1]):
            k = neighbours[e]
            while 0 <= k < i:
                following = ancestor[k]
                ancestor[k] = i
                if following < 0:
                    parent[k] = i
                k = following
    return parent


@njit(cache=True)
def count_below(starts: Index, neighbours: Index, parent: Index, limit: int) -> Index:
    """Return the number of entries of each column of L below the diagonal, fill included.

    The result is empty if their sum exceeds ``limit``.
    """
    n = parent.size
    counts, seen, total = np.zeros(n, dtype=np.int64), np.full(n, -1), 0
    for i in range(n):
        seen[i] = i
        for e in range(starts[i], starts[i + 1]):
            k = neighbours[e]
            while k < i and seen[k] != i:
                seen[k] = i
                counts[k] += 1
                total += 1
                k = parent[k]
        if total > limit:
            return counts[:0]
    return counts


@njit(cache=True)
def rows_below(starts: Index, neighbours: Index, parent: Index, offsets: Index) -> Index:
    """Return the rows below the diagonal of every column of L, in ascending order."""
    n = parent.size
    rows, seen = np.empty(offsets[-1], dtype=np.int64), np.full(n, -1)
    free = offsets[:-1].copy()
    for i in range(n):
        seen[i] = i
        for e in range(starts[i], starts[i + 1]):
            k = neighbours[e]
            while k < i and seen[k] != i:
                seen[k] = i
                rows[free[k]] = i
                free[k] += 1
                k = parent[k]
    return rows


@njit(cache=True)
def product_runs(starts: Index, rows: Index) -> tuple[Index, int]:
    """Return where the elimination subtracts products of entries from sparse columns.

    For every entry b of a column that is in the row of another sparse column, its products with
    the entries below it are subtracted from runs of that column: their starts and lengths, in
    turn, and the number of these.
    """
    n, most = starts.size - 1, 0
    for j in range(n):
        for b in range(starts[j], starts[j + 1]):
            if rows[b] < n:
                most += starts[j + 1] - b
    runs, free = np.empty(2 * most, dtype=np.int64), 0
    for j in range(n):
        last = starts[j + 1]
        for b in range(starts[j], last):
            if rows[b] >= n:
                break
            place, stop, a = starts[rows[b]], starts[rows[b] + 1], b + 1
            while a < last:
                while rows[place] != rows[a]:
                    place += 1
                length = 1
                while (
                    a + length < last
                    and place + length < stop
                    and rows[place + length] == rows[a + length]
                ):
                    length += 1
                runs[free], runs[free + 1] = place, length
                free, a, place = free + 2, a + length, place + length
    return runs, free


@njit(**_WITH_ARRAYS)
def scaled_entries(
    rows: Index, cols: Index, flat: Array, s: Array, values: Array, border: Array, corner: Array
) -> None:
    """Write the entries of I + S M S, or of M where s is empty."""
    n, n_border = border.shape
    size, place = corner.shape[0], rows.size
    # A product with one is exact. Loops are over views: an index that is a sum is tested for being
    # negative, which takes longer than the product.
    one, by = (1.0, s) if s.size else (0.0, np.ones(n + size))
    for e in range(n):
        values[e] = flat[e] * by[e] * by[e] + one
    for e in range(n, place):
        values[e] = flat[e] * by[rows[e]] * by[cols[e]]
    if n_border <= _NARROW:
        # Long loops take less time than many short ones.
        for k in range(n_border):
            for i in range(n):
                border[i, k] = flat[place + i * n_border + k] * by[i] * by[n + k]
    else:
        for i in range(n):
            row, own, scale, others = border[i], flat[place + i * n_border :], by[i], by[n:]
            for k in range(n_border):
                row[k] = own[k] * scale * others[k]
    place += n * n_border
    for i in range(size):
        row, own, scale, others = corner[i], flat[place:], by[n + i], by[n:]
        for k in range(i + 1):
            row[k] = own[k] * scale * others[k]
        row[i] += one
        place += size


@njit(cache=True, error_model="numpy", inline="always")
def with_pivot(log_det: float, product: float, pivot: float) -> tuple[float, float]:
    """Return a log determinant and a product whose logarithm is to be added, with one more pivot.

    A logarithm of every pivot would take longer than what else is done with a short column.
    """
    product *= pivot
    if _SMALLEST < product < _LARGEST and _SMALLEST < pivot < _LARGEST:
        return log_det, product
    return log_det + math.log(product / pivot) + math.log(pivot), 1.0


@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def _corner_factor(corner: Array, half: Array) -> float:
    """Overwrite the corner with its factor and ``half`` with the solution; return log|corner|.

    Row by row, two at a time; the diagonal has inverses until the end.
    """
    size, log_det, product = corner.shape[0], 0.0, 1.0
    for first in range(0, size, 2):
        last = min(first + 1, size - 1)
        upper, lower = corner[first], corner[last]
        for j in range(first):
            other, inverse = corner[j], corner[j, j]
            total, below = upper[j], lower[j]
            for k in range(j):
                total -= upper[k] * other[k]
                below -= lower[k] * other[k]
            upper[j] = total * inverse
            if last > first:
                lower[j] = below * inverse
        for i in range(first, last + 1):
            row = corner[i]
            if i > first:
                total = row[first]
                for k in range(first):
                    total -= row[k] * upper[k]
                row[first] = total * upper[first]
            pivot, solved = row[i], half[i]
            for k in range(i):
                pivot -= row[k] * row[k]
                solved -= row[k] * half[k]
            if not 0.0 < pivot < math.inf:
                return math.nan
            log_det, product = with_pivot(log_det, product, pivot)
            row[i] = 1.0 / math.sqrt(pivot)
            half[i] = solved * row[i]
    for i in range(size):
        corner[i, i] = 1.0 / corner[i, i]
    return log_det + math.log(product)


@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def _eliminate_diagonal(values: Array, border: Array, corner: Array, half: Array) -> float:
    """Do :func:`eliminate` for columns that meet a narrow border alone; return log|B|.

    In these loops processors compute several columns at a time.
    """
    n, n_border = border.shape
    log_det, product = 0.0, 1.0
    for j in range(n):
        if not 0.0 < values[j] < math.inf:
            return math.nan
        log_det, product = with_pivot(log_det, product, values[j])
    for j in range(n):
        values[j] = 1.0 / math.sqrt(values[j])
    for j in range(n):
        half[j] *= values[j]
    for i in range(n_border):
        for j in range(n):
            border[j, i] *= values[j]
        total = 0.0
        for j in range(n):
            total += border[j, i] * half[j]
        half[n + i] -= total
        for k in range(i + 1):
            total = 0.0
            for j in range(n):
                total += border[j, i] * border[j, k]
            corner[i, k] -= total
    return log_det + math.log(product)


@njit(cache=True, error_model="numpy")
def eliminate(
    starts: Index,
    rows: Index,
    cols: Index,
    runs: Index,
    flat: Array,
    s: Array,
    values: Array,
    border: Array,
    corner: Array,
    half: Array,
    largest: int,
) -> float:
    """Eliminate the sparse columns of M, or of I + S M S; return the log determinant.

    ``starts``, ``rows``, ``cols`` and ``runs`` are fields of the pattern, ``flat`` is M and ``s``
    the diagonal of S, empty for M itself. Written are ``values`` and ``border``, L₁ and C L₁⁻ᵀ, and
    the lower triangle of ``corner``: the Schur complement of D. ``half``, b, becomes L₁⁻¹ b₁ and b₂
    − (C L₁⁻ᵀ) L₁⁻¹ b₁. Where n₂ ≤ ``largest`` the corner becomes L₂ and ``half`` L⁻¹ b; otherwise
    the log determinant is that of B. It is NaN if there is no Cholesky factor.
    """
    n, n_border = border.shape
    size = corner.shape[0]
    scaled_entries(rows, cols, flat, s, values, border, corner)
    if rows.size == n and n_border <= _NARROW:
        log_det = _eliminate_diagonal(values, border, corner, half)
        return log_det if size > largest else log_det + _corner_factor(corner, half[n:])
    log_det, product, run = 0.0, 1.0, 0
    for j in range(n):
        pivot = values[j]
        if not 0.0 < pivot < math.inf:
            return math.nan
        log_det, product = with_pivot(log_det, product, pivot)
        inverse = 1.0 / math.sqrt(pivot)
        values[j] = inverse
        half[j] *= inverse
        for k in range(n_border):
            border[j, k] *= inverse
        last = starts[j + 1]
        for a in range(starts[j], last):
            values[a] *= inverse
            half[rows[a]] -= values[a] * half[j]
        # Rows are in ascending order: from `inner` on they are the corner's.
        inner = starts[j]
        for b in range(starts[j], last):
            row, value, a = rows[b], values[b], b + 1
            if row < n:
                inner = a
                values[row] -= value * value
                for k in range(n_border):
                    border[row, k] -= value * border[j, k]
                while a < last:
                    # Indices without a sign need no test whether they count from the end.
                    to, of = np.uint64(runs[run]), np.uint64(a)
                    for i in range(np.uint64(runs[run + 1])):
                        values[to + i] -= value * values[of + i]
                    a += runs[run + 1]
                    run += 2
            else:
                below = corner[row - n]
                for k in range(n_border):
                    below[k] -= value * border[j, k]
                for c in range(inner, b + 1):
                    below[rows[c] - n] -= value * values[c]
        for i in range(n_border):
            half[n + i] -= border[j, i] * half[j]
            for k in range(i + 1):
                corner[i, k] -= border[j, i] * border[j, k]
    log_det += math.log(product)
    if size > largest:
        return log_det
    return log_det + _corner_factor(corner, half[n:])


@njit(cache=True, error_model="numpy")
def solve(
    starts: Index, rows: Index, values: Array, border: Array, corner: Array, x: Array,
    transpose: bool,
) -> None:  # fmt: skip
    """Overwrite each row of x, shape (count, n₁ + n₂), with L⁻¹ x or L⁻ᵀ x."""
    n, n_border = border.shape
    size = corner.shape[0]
    for r in range(x.shape[0]):
        solved = x[r]
        rest = solved[n:]
        if transpose:
            for i in range(size - 1, -1, -1):
                row = corner[i]
                rest[i] /= row[i]
                for j in range(i):
                    rest[j] -= row[j] * rest[i]
            for i in range(n - 1, -1, -1):
                total = solved[i]
                for j in range(n_border):
                    total -= border[i, j] * rest[j]
                for a in range(starts[i], starts[i + 1]):
                    total -= values[a] * solved[rows[a]]
                solved[i] = total * values[i]
        else:
            for i in range(n):
                solved[i] *= values[i]
                for j in range(n_border):
                    rest[j] -= border[i, j] * solved[i]
                for a in range(starts[i], starts[i + 1]):
                    solved[rows[a]] -= values[a] * solved[i]
            for i in range(size):
                row, total = corner[i], rest[i]
                for j in range(i):
                    total -= row[j] * rest[j]
                rest[i] = total / row[i]


@njit(**_WITH_ARRAYS)
def multiply(
    starts: Index, rows: Index, values: Array, border: Array, corner: Array, x: Array,
    transpose: bool,
) -> Array:  # fmt: skip
    """Return L x or Lᵀ x for each row of x, shape (count, n₁ + n₂)."""
    n, n_border = border.shape
    product = np.zeros(x.shape)
    for r in range(x.shape[0]):
        out, given = product[r], x[r]
        for i in range(n):
            total = given[i] / values[i]
            if transpose:
                for j in range(n_border):
                    total += border[i, j] * given[n + j]
                for a in range(starts[i], starts[i + 1]):
                    total += values[a] * given[rows[a]]
            else:
                for j in range(n_border):
                    out[n + j] += border[i, j] * given[i]
                for a in range(starts[i], starts[i + 1]):
                    out[rows[a]] += values[a] * given[i]
            out[i] += total
        for i in range(corner.shape[0]):
            for j in range(i + 1):
                to, of = (j, i) if transpose else (i, j)
                out[n + to] += corner[i, j] * given[n + of]
    return product


@njit(cache=True, error_model="numpy")
def solve_bidiagonal(factor: Array, x: Array, transpose: bool) -> Array:
    """Return L⁻¹ x or L⁻ᵀ x of each row of x; ``factor``, (n, 2), has the two diagonals of L."""
    count, n = x.shape
    solved = np.empty((count, n))
    for row in range(count):
        last = 0.0
        if transpose:
            for i in range(n - 1, -1, -1):
                below = factor[i, 1] if i < n - 1 else 0.0
                last = (x[row, i] - below * last) * (1.0 / factor[i, 0])
                solved[row, i] = last
        else:
            below = 0.0
            for i in range(n):
                last = (x[row, i] - below * last) * (1.0 / factor[i, 0])
                solved[row, i] = last
                below = factor[i, 1]
    return solved


@njit(cache=True, error_model="numpy")
def inverse_within_band(factor: Array) -> Array:
    """Return the entries of (L Lᵀ)⁻¹ within the band of L, by Takahashi's recursion.

    With Z the inverse, Z L = L⁻ᵀ is upper triangular with the diagonal 1/Lⱼⱼ, so that

        Lⱼⱼ Zᵢⱼ = [i = j]/Lⱼⱼ − Σ_{k > j} Zᵢₖ Lₖⱼ,        i ≥ j,

    from the last column on. ``factor`` has the columns of L from the diagonal down, (n, b + 1), and
    the result those of Z.
    """
    n, diagonals = factor.shape
    inverse = np.zeros((n, diagonals))
    for j in range(n - 1, -1, -1):
        last = min(diagonals - 1, n - 1 - j)
        scale = 1.0 / factor[j, 0]
        for i in range(last, 0, -1):
            total = 0.0
            for k in range(1, last + 1):
                if k < i:
                    total += factor[j, k] * inverse[j + k, i - k]
                else:
                    total += factor[j, k] * inverse[j + i, k - i]
            inverse[j, i] = -scale * total
        total = scale
        for k in range(1, last + 1):
            total -= factor[j, k] * inverse[j, k]
        inverse[j, 0] = scale * total
    return inverse


@njit(cache=True)
def sums_by_group(
    h: Array, lam: Array, offset: Array, group: Index, count: int
) -> tuple[Array, Array, float, float, float]:
    """Return Σ (h − λ·offset) and Σ λ of every group, and what the merged sites tell of all rows.

    That is Σ (h·offset − ½ λ·offset²), the magnitude of both terms, and max |λ| max |offset|.
    """
    linear, square, largest, furthest = 0.0, 0.0, 0.0, 0.0
    h_of, lam_of = np.zeros(count), np.zeros(count)
    for i in range(group.size):
        at, own, weighted = group[i], lam[i], lam[i] * offset[i]
        h_of[at] += h[i] - weighted
        lam_of[at] += own
        linear += h[i] * offset[i]
        square += 0.5 * weighted * offset[i]
        largest, furthest = max(largest, abs(own)), max(furthest, abs(offset[i]))
    return h_of, lam_of, linear - square, abs(linear) + abs(square), largest * furthest
