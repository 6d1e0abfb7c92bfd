"""The Numba loops of :mod:`.vecchia`."""

import heapq
import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pymc_augconj.typing import Array, Index


@njit(cache=True)
def farthest_first(X: Array, cells: Index, width: float, first: int) -> Index:
    """Return the max-min order of the rows of X from the point ``first`` on.

    ``cells``, (n, 3), has the cell of each point in a grid of this ``width`` along some columns.
    """
    n, dim = X.shape
    size = np.array([cells[:, 0].max() + 1, cells[:, 1].max() + 1, cells[:, 2].max() + 1])
    flat = (cells[:, 0] * size[1] + cells[:, 1]) * size[2] + cells[:, 2]
    starts = np.zeros(size.prod() + 1, dtype=np.int64)
    for i in range(n):
        starts[flat[i] + 1] += 1
    starts = np.cumsum(starts)
    members = np.argsort(flat, kind="mergesort")
    squares, order, chosen = np.full(n, np.inf), np.empty(n, dtype=np.int64), np.zeros(n, np.bool_)
    heap = [(-np.inf, first)]
    for k in range(n):
        # An entry is out of date where its point has come nearer since.
        distance, j = heapq.heappop(heap)
        while chosen[j] or -distance != squares[j]:
            distance, j = heapq.heappop(heap)
        order[k], chosen[j] = j, True
        # No point is farther than this one from those before, so farther ones stay as they are.
        reach = size.max() + 1 if k == 0 else int(math.sqrt(-distance) / width) + 1
        low, high = np.maximum(cells[j] - reach, 0), np.minimum(cells[j] + reach + 1, size)
        for a in range(low[0], high[0]):
            for b in range(low[1], high[1]):
                row = (a * size[1] + b) * size[2]
                for e in range(starts[row + low[2]], starts[row + high[2]]):
                    i = members[e]
                    square = 0.0
                    for q in range(dim):
                        square += (X[i, q] - X[j, q]) ** 2
                    if square < squares[i] and not chosen[i]:
                        squares[i] = square
                        heapq.heappush(heap, (-square, i))
    return order


@njit(cache=True)
def merge_pairs(rows: Index, cols: Index, size: int) -> tuple[Index, Index, NDArray[np.int32]]:
    """Return distinct pairs of indices below ``size``, and which of them each pair is."""
    starts = np.zeros(size + 1, dtype=np.int64)
    for row in rows:
        starts[row + 1] += 1
    starts = np.cumsum(starts)
    free, members = starts[:-1].copy(), np.empty(rows.size, dtype=np.int32)
    for e in range(rows.size):
        members[free[rows[e]]] = e
        free[rows[e]] += 1
    places, known = np.empty(rows.size, dtype=np.int32), np.full(size, -1)
    first, second, count = np.empty(rows.size, np.int32), np.empty(rows.size, np.int32), 0
    for row in range(size):
        start = count
        for e in members[starts[row] : starts[row + 1]]:
            col = cols[e]
            if known[col] < start:
                known[col], first[count], second[count] = count, row, col
                count += 1
            places[e] = known[col]
    return first[:count].astype(np.int64), second[:count].astype(np.int64), places


@njit(cache=True, error_model="numpy")
def _root(k: Array, places: Index, count: int, L: Array, u: Array) -> bool:
    """Compute the factor L of the covariance of neighbours and then the value, and u = L⁻ᵀ e.

    Return whether there is one.
    """
    last = u.size - 1
    for p in range(count + 1):
        a = p if p < count else last
        for q in range(p + 1):
            total = k[places[a * (a + 1) // 2 + (q if q < count else last)]]
            for r in range(q):
                total -= L[p, r] * L[q, r]
            if p > q:
                L[p, q] = total / L[q, q]
            elif total > 0.0:
                L[p, p] = math.sqrt(total)
            else:
                return False
    u[count] = 1.0 / L[count, count]
    for p in range(count - 1, -1, -1):
        total = 0.0
        for q in range(p + 1, count + 1):
            total -= L[q, p] * u[q]
        u[p] = total / L[p, p]
    return True


@njit(cache=True)
def add_products(k: Array, counts: Index, places: Index, lower: Array, given: Array) -> None:
    """Add U's products to the lower entries of Q, and write the squares of its diagonal."""
    m = int(math.sqrt(2.0 * places.shape[1]))
    L, u = np.empty((m, m)), np.empty(m)
    for i in range(counts.size):
        count = counts[i]
        if not _root(k, places[i], count, L, u):
            lower[:] = np.nan
            given[:] = np.nan
            return
        given[i] = u[count] ** 2
        for p in range(count + 1):
            start = (p if p < count else m - 1) * ((p if p < count else m - 1) + 1) // 2
            for q in range(p + 1):
                lower[places[i, start + (q if q < count else m - 1)]] += u[p] * u[q]


@njit(cache=True)
def pull_products(
    k: Array, counts: Index, places: Index, lower: Array, given: Array, by_k: Array
) -> None:
    """Add the derivative by k, given those by the outcomes of :func:`add_products`."""
    m = int(math.sqrt(2.0 * places.shape[1]))
    L, u, h, at = np.empty((m, m)), np.empty(m), np.empty(m), np.empty((m, m), np.int64)
    for i in range(counts.size):
        count = counts[i]
        if not _root(k, places[i], count, L, u):
            by_k[:] = np.nan
            return
        for p in range(count + 1):
            a = p if p < count else m - 1
            for q in range(p + 1):
                b = q if q < count else m - 1
                at[p, q] = at[q, p] = places[i, a * (a + 1) // 2 + b]
        # The derivative by u; with g = K⁻¹e, u = g/√g_e, it is aᵀ by g.
        last, along = u[count], 0.0
        for p in range(count + 1):
            h[p] = 2.0 * given[i] * last if p == count else 0.0
            for q in range(count + 1):
                h[p] += (2.0 if p == q else 1.0) * lower[at[p, q]] * u[q]
            along += h[p] * u[p]
        for p in range(count + 1):
            h[p] /= last
        h[count] -= 0.5 * along / last**2
        # h = K⁻¹ a, and ∂g = −K⁻¹ ∂K g.
        for p in range(count + 1):
            for q in range(p):
                h[p] -= L[p, q] * h[q]
            h[p] /= L[p, p]
        for p in range(count, -1, -1):
            for q in range(p + 1, count + 1):
                h[p] -= L[q, p] * h[q]
            h[p] /= L[p, p]
        for p in range(count + 1):
            for q in range(p + 1):
                twice = 1.0 if p == q else 2.0
                by_k[at[p, q]] -= 0.5 * twice * last * (h[p] * u[q] + u[p] * h[q])


@njit(cache=True, error_model="numpy")
def incomplete_factor(starts: Index, rows: Index, flat: Array, values: Array) -> float:
    """Write a factor V with the entries of a matrix, all products elsewhere left out.

    Returns log |V Vᵀ|, NaN if the matrix has no positive diagonal, or is not finite. ``starts``,
    ``rows`` and ``values`` are as of :class:`.SparseFactor`, without a corner, and ``flat`` is the
    matrix, in the places of ``values``.
    """
    n, log_det = starts.size - 1, 0.0
    # Columns whose next row is this one: the first, and the next of each.
    head, following, place = np.full(n, -1), np.full(n, -1), starts[:-1].copy()
    # The present column by rows; what is left out is never read.
    column = np.empty(n)
    for j in range(n):
        first, stop = starts[j], starts[j + 1]
        for e in range(first, stop):
            column[rows[e]] = flat[e]
        k, pivot = head[j], flat[j]
        while k >= 0:
            after, e, end = following[k], place[k], starts[k + 1]
            factor = values[e]
            pivot -= factor * factor
            place[k] = e + 1
            if e + 1 < end:
                following[k], head[rows[e + 1]] = head[rows[e + 1]], k
            for other in range(e + 1, end):
                column[rows[other]] -= factor * values[other]
            k = after
        if not pivot > 0.0:
            # Products that were left out: any V will do that depends on the matrix alone.
            pivot = flat[j]
        if not 0.0 < pivot < math.inf:
            return math.nan
        log_det += math.log(pivot)
        values[j] = root = 1.0 / math.sqrt(pivot)
        for e in range(first, stop):
            values[e] = root * column[rows[e]]
        if first < stop:
            following[j], head[rows[first]] = head[rows[first]], j
    return log_det
