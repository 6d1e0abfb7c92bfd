"""Elimination of a sparse matrix by supernodes: columns with the same rows below, as one matrix.

BLAS multiplies within them, which is several times as fast as column by column where columns have
hundreds of entries, and no list of products is kept.

References
----------
Ng & Peyton (1993), Block sparse Cholesky algorithms on advanced uniprocessor computers. SIAM
Journal on Scientific Computing 14.
"""

import math

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, Index

from .sparse_kernels import _scaled_entries


@njit(cache=True)
def _stop(starts: Index, rows: Index, j: int) -> int:
    """Return the end of the supernode that begins with column j."""
    n = starts.size - 1
    while (
        j + 1 < n
        and starts[j + 1] > starts[j]
        and rows[starts[j]] == j + 1
        and starts[j + 1] - starts[j] == starts[j + 2] - starts[j + 1] + 1
    ):
        j += 1
    return j + 1


@njit(cache=True)
def _columns(
    starts: Index, values: Array, first: int, stop: int, block: Array, below: Array
) -> None:
    """Read the lower triangle of a supernode and what is below it, the diagonal excepted."""
    for j in range(first, stop):
        k, start = j - first, starts[j]
        block[k + 1 :, k] = values[start : start + stop - j - 1]
        below[:, k] = values[start + stop - j - 1 : starts[j + 1]]


@njit(cache=True)
def _exchange(
    starts: Index, rows: Index, own: Index, values: Array, corner: Array, S: Array, subtract: bool
) -> None:
    """Subtract S from the entries in some rows and columns, or read S, a symmetric matrix."""
    n = starts.size - 1
    for a in range(own.size):
        col = own[a]
        place = starts[col] if col < n else 0
        for b in range(a, own.size):
            row = own[b]
            if col >= n:
                if subtract:
                    corner[row - n, col - n] -= S[b, a]
                else:
                    S[b, a] = S[a, b] = corner[row - n, col - n]
                continue
            at = col
            if row > col:
                while rows[place] != row:
                    place += 1
                at = place
            if subtract:
                values[at] -= S[b, a]
            else:
                S[b, a] = S[a, b] = values[at]


@njit(cache=True, error_model="numpy")
def eliminate_supernodes(
    starts: Index,
    rows: Index,
    cols: Index,
    flat: Array,
    s: Array,
    values: Array,
    corner: Array,
    half: Array,
) -> float:
    """Eliminate the sparse columns: see :func:`.eliminate`, without a border or small corners."""
    n, log_det, j = starts.size - 1, 0.0, 0
    _scaled_entries(rows, cols, flat, s, values, np.empty((n, 0)), corner)
    while j < n:
        stop = _stop(starts, rows, j)
        size, own = stop - j, rows[starts[stop - 1] : starts[stop]]
        L, below = np.zeros((size, size)), np.empty((own.size, size))
        _columns(starts, values, j, stop, L, below)
        for k in range(size):
            pivot = values[j + k]
            for q in range(k):
                pivot -= L[k, q] * L[k, q]
            if not 0.0 < pivot < math.inf:
                return math.nan
            log_det += math.log(pivot)
            L[k, k] = math.sqrt(pivot)
            for i in range(k + 1, size):
                total = L[i, k]
                for q in range(k):
                    total -= L[i, q] * L[k, q]
                L[i, k] = total / L[k, k]
            total = half[j + k]
            for q in range(k):
                total -= L[k, q] * half[j + q]
            half[j + k] = total / L[k, k]
        if own.size:
            below = np.linalg.solve(L, below.T).T.copy()
            _exchange(starts, rows, own, values, corner, np.dot(below, below.T), True)
            change = np.dot(below, half[j:stop])
            for i in range(own.size):
                half[own[i]] -= change[i]
        for k in range(size):
            start = starts[j + k]
            values[j + k] = 1.0 / L[k, k]
            values[start : start + size - k - 1] = L[k + 1 :, k]
            values[start + size - k - 1 : starts[j + k + 1]] = below[:, k]
        j = stop
    return log_det


@njit(cache=True, error_model="numpy")
def invert_supernodes(
    starts: Index, rows: Index, values: Array, corner: Array, inverse: Array
) -> None:
    """Write the entries of (L Lᵀ)⁻¹, see :func:`.invert`: Z_RJ = −Z_RR X, X = L_RJ L_JJ⁻¹."""
    n, firsts, j = starts.size - 1, [0], 0
    while j < n:
        j = _stop(starts, rows, j)
        firsts.append(j)
    for which in range(len(firsts) - 2, -1, -1):
        j, stop = firsts[which], firsts[which + 1]
        size, own = stop - j, rows[starts[stop - 1] : starts[stop]]
        L, below = np.zeros((size, size)), np.empty((own.size, size))
        _columns(starts, values, j, stop, L, below)
        for k in range(size):
            L[k, k] = 1.0 / values[j + k]
        root = np.linalg.solve(L, np.eye(size))
        within = np.dot(root.T.copy(), root)
        X, around = np.dot(below, root), np.empty((own.size, own.size))
        _exchange(starts, rows, own, inverse, corner, around, False)
        beside = -np.dot(around, X)
        within -= np.dot(X.T.copy(), beside)
        for k in range(size):
            start = starts[j + k]
            inverse[j + k] = within[k, k]
            inverse[start : start + size - k - 1] = within[k + 1 :, k]
            inverse[start + size - k - 1 : starts[j + k + 1]] = beside[:, k]
