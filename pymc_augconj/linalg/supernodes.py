"""Elimination of a sparse matrix by supernodes: columns with the same rows below, as one matrix.

The products of a supernode are subtracted from a dense triangle of its rows below, which its parent
in the elimination tree adds to its own columns and triangle: in a postorder the triangles are a
stack, which stays in the processor's cache. No list of products is kept.

References
----------
Duff & Reid (1983), The multifrontal solution of indefinite sparse symmetric linear equations. ACM
TOMS 9.
Ng & Peyton (1993), Block sparse Cholesky algorithms on advanced uniprocessor computers. SIAM
Journal on Scientific Computing 14.
"""

import math

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, Index


@njit(cache=True)
def _bounds(starts: Index, rows: Index) -> Index:
    """Return the first column of every supernode, and the end."""
    n = starts.size - 1
    found, count = np.zeros(n + 1, dtype=np.int64), 1
    for j in range(1, n + 1):
        size = starts[j] - starts[j - 1]
        is_next = j < n and size > 0 and rows[starts[j - 1]] == j
        if not (is_next and size == starts[j + 1] - starts[j] + 1):
            found[count] = j
            count += 1
    return found[:count]


@njit(cache=True, inline="always")
def _subtract(
    starts: Index, values: Array, first: int, stop: int, size: int, total: Array, at: int
) -> None:
    """Subtract the products of some columns' last ``size`` entries with the first of these.

    Four columns at a time, as loads and stores of the total take most of the time.
    """
    to, j = np.uint64(at), first
    while j < stop:
        a = np.uint64(starts[j + 1] - size)
        s = values[a]
        if j + 4 > stop:
            for i in range(np.uint64(size)):
                total[to + i] -= s * values[a + i]
            j += 1
            continue
        b = np.uint64(starts[j + 2] - size)
        c = np.uint64(starts[j + 3] - size)
        d = np.uint64(starts[j + 4] - size)
        t, u, v = values[b], values[c], values[d]
        for i in range(np.uint64(size)):
            of = s * values[a + i] + t * values[b + i] + u * values[c + i] + v * values[d + i]
            total[to + i] -= of
        j += 4


@njit(cache=True)
def _assemble(
    starts: Index, rows: Index, first: int, stop: int, child: int, stack: Array, own: int, at: int,
    values: Array, place: Index,
) -> None:  # fmt: skip
    """Add a child's triangle, at ``at``, to the columns of a supernode and to its triangle."""
    start, count = starts[child], starts[child + 1] - starts[child]
    width, below = stop - first, starts[stop - 1]
    size, known = starts[stop] - below, below
    for i in range(count):
        row = rows[start + i]
        if row >= stop:
            while rows[known] != row:
                known += 1
        place[i] = row - first if row < stop else known - below + width
    for b in range(count):
        col = place[b]
        if col < width:
            values[first + col] += stack[at]
            to = starts[first + col] - col - 1
            for i in range(b + 1, count):
                values[np.uint64(to + place[i])] += stack[np.uint64(at + i - b)]
        else:
            k = col - width
            to = own + k * size - k * (k - 1) // 2 - col
            for i in range(b, count):
                stack[np.uint64(to + place[i])] += stack[np.uint64(at + i - b)]
        at += count - b


@njit(cache=True, error_model="numpy")
def _eliminate_columns(starts: Index, first: int, stop: int, values: Array, column: Array) -> bool:
    """Eliminate the columns of a supernode; return whether there are roots of all pivots."""
    for j in range(first, stop):
        start, size = starts[j], starts[j + 1] - starts[j]
        column[0] = values[j]
        of = np.uint64(start)
        for i in range(np.uint64(size)):
            column[i + np.uint64(1)] = values[of + i]
        _subtract(starts, values, first, j, size + 1, column, 0)
        if not 0.0 < column[0] < math.inf:
            return False
        values[j] = 1.0 / math.sqrt(column[0])
        to, scale = np.uint64(start), values[j]
        for i in range(np.uint64(size)):
            values[to + i] = column[i + np.uint64(1)] * scale
    return True


@njit(cache=True, error_model="numpy")
def eliminate_supernodes(starts: Index, rows: Index, values: Array, corner: Array) -> bool:
    """Do what :func:`.eliminate` does, without a border, for columns in a postorder.

    Return whether M may have a Cholesky factor.
    """
    n, top, depth, bounds = starts.size - 1, 0, 0, _bounds(starts, rows)
    size = n + corner.shape[0]
    stack, column = np.empty(size), np.empty(size)
    last, place = np.empty(n, dtype=np.int64), np.empty(size, dtype=np.int64)
    for which in range(1, bounds.size):
        first, stop = bounds[which - 1], bounds[which]
        below = starts[stop - 1]
        count = starts[stop] - below
        n_triangle = count * (count + 1) // 2
        if top + n_triangle > stack.size:
            stack = np.append(stack, np.empty(top + n_triangle))
        for i in range(top, top + n_triangle):
            stack[i] = 0.0
        at = top
        while depth and rows[starts[last[depth - 1]]] < stop:
            depth -= 1
            child = last[depth]
            n_child = starts[child + 1] - starts[child]
            at -= n_child * (n_child + 1) // 2
            _assemble(starts, rows, first, stop, child, stack, top, at, values, place)
        if not _eliminate_columns(starts, first, stop, values, column):
            return False
        to = top
        for i in range(count):
            _subtract(starts, values, first, stop, count - i, stack, to)
            to += count - i
        if count == 1 and rows[below] < n:
            # As of independent effects, which meet one value each.
            values[rows[below]] += stack[top]
            top = at
        elif count and rows[below] < n:
            for i in range(n_triangle):
                stack[at + i] = stack[top + i]
            last[depth] = stop - 1
            depth += 1
            top = at + n_triangle
        else:
            for b in range(count):
                for a in range(b, count):
                    corner[rows[below + a] - n, rows[below + b] - n] += stack[top]
                    top += 1
            top = at
    return True


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def solve_by_four(starts: Index, rows: Index, values: Array, x: Array, transpose: bool) -> None:
    """Do :func:`.solve` for the sparse columns, four vectors at a time, (count, n₁ + n₂, 4)."""
    n, own = starts.size - 1, np.empty(4)
    for solved in x:
        for k in range(n):
            j = n - 1 - k if transpose else k
            for r in range(4):
                own[r] = solved[j, r] * (1.0 if transpose else values[j])
            for e in range(np.uint64(starts[j]), np.uint64(starts[j + 1])):
                other = solved[np.uint64(rows[e])]
                for r in range(4):
                    if transpose:
                        own[r] -= values[e] * other[r]
                    else:
                        other[r] -= values[e] * own[r]
            for r in range(4):
                solved[j, r] = own[r] * (values[j] if transpose else 1.0)


@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def invert(starts: Index, rows: Index, values: Array, corner: Array, inverse: Array) -> None:
    """Write the entries of (L Lᵀ)⁻¹ on the pattern of L₁ and C, by Takahashi's recursion.

    With Z the inverse and l = L_Rj/L_jj the column below the diagonal, R its rows,

        Z_Rj = −Z_RR l,        Z_jj = 1/L_jj² − lᵀ Z_Rj,

    from the last column on. There is no border, and ``corner`` is the inverse of the Schur
    complement of D. Z_RR is read from Z of the parent and its rows below: those of a supernode's
    ancestors are on a stack, over ``corner``.
    """
    n, bounds = starts.size - 1, _bounds(starts, rows)
    size, depth, m = n + corner.shape[0], 0, corner.shape[0]
    place, known = np.empty(size, dtype=np.int64), np.empty((n + 1, 4), dtype=np.int64)
    stack = np.append(corner, corner)
    known[0] = n, size, 0, m
    for which in range(bounds.size - 1, 0, -1):
        first, stop = bounds[which - 1], bounds[which]
        start, count, width = starts[stop - 1], starts[stop] - starts[stop - 1], stop - first
        while depth and not (count and known[depth, 0] <= rows[start] < known[depth, 1]):
            depth -= 1
        head, end, of, m = known[depth]
        below = starts[end - 1] if depth else 0
        for a in range(count):
            row = rows[start + a]
            if row < end:
                place[a] = row - head
            else:
                while rows[below] != row:
                    below += 1
                place[a] = below - starts[end - 1] + end - head
        at, size, depth = of + m * m, width + count, depth + 1
        known[depth] = first, stop, at, size
        if at + size * size > stack.size:
            stack = np.append(stack, np.empty(at + size * size))
        Z, around = stack[at : at + size * size].reshape(size, size), stack[of:at].reshape(m, m)
        for a in range(count):
            for b in range(count):
                Z[width + a, width + b] = around[place[a], place[b]]
        # Z_RR L_Rj of all columns, as reading Z takes longer than products.
        # Indices without a sign need no test whether they count from the end.
        inner, outer = np.uint64(width), np.uint64(size)
        for a in range(width, size):
            row = Z[a]
            for j in range(width):
                to, total = np.uint64(starts[first + j + 1] - size), 0.0
                for b in range(inner, outer):
                    total -= row[b] * values[to + b]
                Z[j, a] = total * values[first + j]
        for j in range(width - 1, -1, -1):
            column, scale = Z[j], values[first + j]
            start, after, variance = np.uint64(starts[first + j] - j - 1), np.uint64(j + 1), scale
            for k in range(after, inner):
                row, factor, total = Z[k], values[start + k] * scale, 0.0
                for i in range(inner, outer):
                    column[i] -= row[i] * factor
                for i in range(after, outer):
                    total -= row[i] * values[start + i]
                column[k] = total * scale
            for i in range(after, outer):
                inverse[start + i] = Z[i, j] = column[i]
                variance -= values[start + i] * column[i]
            inverse[first + j] = column[j] = variance * scale
