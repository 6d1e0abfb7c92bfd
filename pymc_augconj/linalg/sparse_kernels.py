"""The Numba loops of :mod:`.sparse`, in its notation.

Panels are stored column by column; a row's place in a panel is looked up in ``where``.
"""

import math

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, Index

__all__ = [
    "count_below",
    "elimination_tree",
    "factorize_panels",
    "invert_panels",
    "multiply",
    "postorder",
    "rows_below",
    "solve",
]


@njit(cache=True)
def elimination_tree(starts: Index, neighbours: Index) -> Index:
    """Return the parent of every column, −1 of roots, by Liu's algorithm.

    Parameters
    ----------
    starts, neighbours : ndarray of int
        Columns with an entry in each row, earlier ones included.
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
def postorder(parent: Index) -> Index:
    """Return a position for every column: subtrees together, the largest sibling last."""
    n = parent.size
    size = np.ones(n + 1, dtype=np.int64)
    for j in range(n):
        size[parent[j]] += size[j]
    # Place −1 of `size` and of `free` belongs to the parent of all roots.
    free, largest = np.zeros(n + 1, dtype=np.int64), np.full(n + 1, -1)
    for j in range(n):
        above = parent[j]
        if largest[above] < 0 or size[j] >= size[largest[above]]:
            largest[above] = j
    place = np.empty(n, dtype=np.int64)
    for j in range(n - 1, -1, -1):
        above = parent[j]
        if largest[above] == j:
            stop = n if above < 0 else place[above]
            start = stop - size[j]
        else:
            start = free[above]
            free[above] += size[j]
        free[j] = start
        place[j] = start + size[j] - 1
    return place


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
def rows_below(
    starts: Index, neighbours: Index, parent: Index, panel_of: Index, first: Index, offsets: Index
) -> Index:
    """Return the rows of every panel in ascending order, its own columns first."""
    n = parent.size
    rows, seen = np.empty(offsets[-1], dtype=np.int64), np.full(n, -1)
    free = offsets[:-1].copy()
    for i in range(n):
        seen[i] = i
        if first[panel_of[i]] == i:
            rows[free[panel_of[i]]] = i
            free[panel_of[i]] += 1
        for e in range(starts[i], starts[i + 1]):
            k = neighbours[e]
            while k < i and seen[k] != i:
                seen[k] = i
                panel = panel_of[k]
                if first[panel] == k:
                    rows[free[panel]] = i
                    free[panel] += 1
                k = parent[k]
    return rows


@njit(cache=True, error_model="numpy")
def factorize_panels(
    first: Index, offsets: Index, rows: Index, starts: Index, panel_of: Index, values: Array
) -> float:
    """Overwrite a matrix with L; return its log determinant, NaN if there is no L."""
    where = np.empty(panel_of.size, dtype=np.int64)
    buffer = np.empty(panel_of.size)
    log_det = 0.0
    for s in range(first.size - 1):
        own = rows[offsets[s] : offsets[s + 1]]
        m, width = own.size, first[s + 1] - first[s]
        panel = values[starts[s] : starts[s + 1]].reshape(width, m)
        for c in range(width):
            column = panel[c, c:]
            for k in range(c):
                factor = panel[k, c]
                other = panel[k, c:]
                for a in range(column.size):
                    column[a] -= factor * other[a]
            pivot = column[0]
            if not 0.0 < pivot < math.inf:
                return math.nan
            log_det += math.log(pivot)
            column[0] = math.sqrt(pivot)
            inverse = 1.0 / column[0]
            for a in range(1, column.size):
                column[a] *= inverse
        c = width
        while c < m:
            t = panel_of[own[c]]
            others = rows[offsets[t] : offsets[t + 1]]
            target = values[starts[t] : starts[t + 1]].reshape(-1, others.size)
            if c < m - 1:
                for a in range(others.size):
                    where[others[a]] = a
            else:
                # The last row subtracts from the diagonal.
                where[own[c]] = own[c] - first[t]
            while c < m and own[c] < first[t + 1]:
                taken = buffer[: m - c]
                factor, source = panel[0, c], panel[0, c:]
                for a in range(taken.size):
                    taken[a] = factor * source[a]
                for k in range(1, width):
                    factor, source = panel[k, c], panel[k, c:]
                    for a in range(taken.size):
                        taken[a] += factor * source[a]
                column = target[own[c] - first[t]]
                for a in range(taken.size):
                    column[where[own[c + a]]] -= taken[a]
                c += 1
    return log_det


@njit(cache=True, error_model="numpy")
def invert_panels(
    first: Index, offsets: Index, rows: Index, starts: Index, panel_of: Index, values: Array
) -> Array:
    """Return the entries of (L Lᵀ)⁻¹ on the pattern of L, by Takahashi's recursion.

    With J the columns of a panel, R its rows below them and Y = L_RJ L_JJ⁻¹, Z the inverse,

        Z_RJ = −Z_RR Y,        Z_JJ = (L_JJ L_JJᵀ)⁻¹ − Yᵀ Z_RJ,

    where Z_RR comes from later panels.
    """
    inverse = np.zeros(values.size)
    where = np.empty(panel_of.size, dtype=np.int64)
    for s in range(first.size - 2, -1, -1):
        own = rows[offsets[s] : offsets[s + 1]]
        m, width = own.size, first[s + 1] - first[s]
        below = m - width
        panel = values[starts[s] : starts[s + 1]].reshape(width, m)
        block = inverse[starts[s] : starts[s + 1]].reshape(width, m)
        known = np.empty((below, below))
        c = width
        while c < m:
            t = panel_of[own[c]]
            others = rows[offsets[t] : offsets[t + 1]]
            for a in range(others.size):
                where[others[a]] = a
            source = inverse[starts[t] : starts[t + 1]].reshape(-1, others.size)
            while c < m and own[c] < first[t + 1]:
                column = source[own[c] - first[t]]
                for a in range(c, m):
                    known[c - width, a - width] = column[where[own[a]]]
                    known[a - width, c - width] = known[c - width, a - width]
                c += 1
        # Yᵀ, and L_JJ⁻¹ by columns.
        Y, triangle = np.empty((width, below)), np.zeros((width, width))
        for c in range(width - 1, -1, -1):
            scale = 1.0 / panel[c, c]
            Y[c] = panel[c, width:]
            for k in range(c + 1, width):
                factor = panel[c, k]
                for a in range(below):
                    Y[c, a] -= factor * Y[k, a]
            for a in range(below):
                Y[c, a] *= scale
            triangle[c, c] = scale
            for a in range(c + 1, width):
                total = 0.0
                for k in range(c + 1, a + 1):
                    total += triangle[k, a] * panel[c, k]
                triangle[c, a] = -scale * total
        for c in range(width):
            column = block[c, width:]
            for k in range(below):
                factor = Y[c, k]
                for a in range(below):
                    column[a] -= factor * known[k, a]
            for a in range(c, width):
                total = 0.0
                for k in range(a, width):
                    total += triangle[c, k] * triangle[a, k]
                for k in range(below):
                    total -= Y[a, k] * column[k]
                block[c, a] = total
    return inverse


@njit(cache=True, error_model="numpy")
def solve(
    first: Index,
    offsets: Index,
    rows: Index,
    starts: Index,
    values: Array,
    x: Array,
    transpose: bool,
) -> None:
    """Overwrite each column of x, shape (n, count), with L⁻¹ x or L⁻ᵀ x."""
    count, n_panels = x.shape[1], first.size - 1
    total = np.empty(count)
    for step in range(n_panels):
        s = n_panels - 1 - step if transpose else step
        own = rows[offsets[s] : offsets[s + 1]]
        m, width = own.size, first[s + 1] - first[s]
        panel = values[starts[s] : starts[s + 1]].reshape(width, m)
        for each in range(width):
            c = width - 1 - each if transpose else each
            column, here = panel[c], x[own[c]]
            inverse = 1.0 / column[c]
            if transpose:
                for r in range(count):
                    total[r] = here[r]
                for a in range(c + 1, m):
                    factor, there = column[a], x[own[a]]
                    for r in range(count):
                        total[r] -= factor * there[r]
                for r in range(count):
                    here[r] = inverse * total[r]
            else:
                for r in range(count):
                    here[r] *= inverse
                    total[r] = here[r]
                for a in range(c + 1, m):
                    factor, there = column[a], x[own[a]]
                    for r in range(count):
                        there[r] -= factor * total[r]


@njit(cache=True)
def multiply(
    first: Index,
    offsets: Index,
    rows: Index,
    starts: Index,
    values: Array,
    x: Array,
    transpose: bool,
) -> Array:
    """Return L x, or Lᵀ x, for each column of x, shape (n, count)."""
    count = x.shape[1]
    product = np.zeros(x.shape)
    for s in range(first.size - 1):
        own = rows[offsets[s] : offsets[s + 1]]
        m, width = own.size, first[s + 1] - first[s]
        panel = values[starts[s] : starts[s + 1]].reshape(width, m)
        for c in range(width):
            for a in range(c, m):
                factor = panel[c, a]
                to, source = (own[c], x[own[a]]) if transpose else (own[a], x[own[c]])
                for r in range(count):
                    product[to, r] += factor * source[r]
    return product
