"""Vecchia's approximation: each value of a process given a few earlier ones that are near.

With the values in max-min order, each the farthest from those before it, and c(i) the m nearest
before i, p(f) = Π p(fᵢ | f_c(i)). The precision is Q = UᵀU, where row i of U has the entries of
uᵢ = L⁻ᵀ e for the Cholesky factor L of the covariance of (f_c(i), fᵢ) and e its last unit vector.

References
----------
Vecchia (1988), Estimation and model identification for continuous spatial processes. JRSS B 50.
Guinness (2018), Permutation and grouping methods for sharpening Gaussian process approximations.
Technometrics 60.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pymc_augconj.typing import Array, Index

from .factors import SparseFactor
from .sparse import SparsePattern

# Cost of a product, in multiplications within a large dense matrix, with a share of the solutions
# that draws take.
_PER_PRODUCT = 28.0


def max_min_order(X: Array) -> Index:
    """Return the order in which each point is the farthest from those before it.

    The first is the one nearest to the mean.
    """
    from .vecchia_kernels import farthest_first

    first = int(((X - X.mean(axis=0)) ** 2).sum(axis=1).argmin())
    # Cells with some two points each, along three columns or fewer.
    columns = X[:, np.argsort(-np.ptp(X, axis=0), kind="stable")[:3]]
    low, extent = columns.min(axis=0), np.maximum(np.ptp(columns, axis=0), 1e-300)
    width = float(np.prod(extent) * 2.0 / len(X)) ** (1.0 / columns.shape[1])
    width = max(width, float(extent.max()) / 1e3)
    cells = np.minimum((columns - low) // width, 1e3).astype(np.intp)
    cells = np.pad(cells, ((0, 0), (0, 3 - columns.shape[1])))
    X, cells = np.ascontiguousarray(X), np.ascontiguousarray(cells)
    return farthest_first(X, cells, width, first)


def nearest(X: Array, count: int) -> Index:
    """Return the ``count`` nearest earlier points of every point, (n, count); −1 where too few."""
    n = len(X)
    found = np.full((n, count), -1)
    low = 0
    while low < n:
        # Among twice as many points a constant share of the nearest ones comes earlier.
        high = min(n, max(2 * low, 4 * count))
        tree, rows, k = cKDTree(X[:high]), np.arange(low, high), 3 * count
        while rows.size:
            k = min(k, high)
            near = tree.query(X[rows], k=k)[1].reshape(rows.size, k)
            earlier = near < rows[:, None]
            done = (earlier.sum(axis=1) >= np.minimum(rows, count)) | (k == high)
            # Earlier ones first, in the order of their distances.
            first = np.argsort(~earlier[done], axis=1, kind="stable")[:, :count]
            is_earlier = np.take_along_axis(earlier[done], first, axis=1)
            taken = np.where(is_earlier, np.take_along_axis(near[done], first, axis=1), -1)
            found[rows[done], : taken.shape[1]] = taken
            rows, k = rows[~done], 2 * k
        low = high
    return found


class Neighbours:
    """Groups of values that meet, neighbours and a value each, and the pattern of Q.

    Neighbours, up to ``count`` for each value, are by Euclidean distance of the inputs X, (n, d).
    ``order`` is the max-min order, and ``counts`` are the numbers of neighbours. ``entries``,
    (2, E), are rows and columns of the entries of Q, first those of the lower triangle.
    """

    def __init__(self, X: Array, count: int) -> None:
        from .vecchia_kernels import merge_pairs

        order, self.size = max_min_order(X), len(X)
        near = nearest(X[order], min(count, self.size - 1))
        self.order, self.counts = order, np.empty(self.size, dtype=np.intp)
        self.counts[order] = (near >= 0).sum(axis=1)
        # A value stands for neighbours that it does not have.
        own, groups = order[:, None], np.empty((self.size, near.shape[1] + 1), dtype=np.intp)
        groups[order] = np.hstack([np.where(near >= 0, order[near], own), own])
        first, second = np.tril_indices(groups.shape[1])
        a, b = groups[:, first].ravel(), groups[:, second].ravel()
        rows, cols, places = merge_pairs(np.maximum(a, b), np.minimum(a, b), self.size)
        self.places: NDArray[Any] = places.reshape(self.size, first.size)
        self._below = np.flatnonzero(rows != cols)
        upper = cols[self._below], rows[self._below]
        self.entries = np.concatenate([[rows, cols], upper], axis=1)

    @property
    def lower(self) -> Index:
        """Rows and columns of the entries of the lower triangle, (2, E′)."""
        return self.entries[:, : self.entries.shape[1] - self._below.size]

    def precision(self, k: Array) -> Array:
        """Return the entries of Q and the precision of every value given its neighbours, (E + n,).

        ``k`` are covariances at :attr:`lower`. Entries are NaN where a group's are not positive
        definite.
        """
        from .vecchia_kernels import add_products

        lower, given = np.zeros(k.size), np.empty(self.size)
        add_products(k, self.counts, self.places, lower, given)
        return np.concatenate([lower, lower[self._below], given])

    def pull_precision(self, k: Array, slopes: Array) -> Array:
        """Return the derivative of ⟨slopes, precision(k)⟩ by k."""
        from .vecchia_kernels import pull_products

        lower, by_k = slopes[: k.size].copy(), np.zeros(k.size)
        lower[self._below] += slopes[k.size : -self.size]
        pull_products(k, self.counts, self.places, lower, slopes[-self.size :], by_k)
        return by_k


class ZeroFillPattern(SparsePattern):
    """Pattern of Q, in an order in which its own factor has no others: the max-min order reversed.

    The factor V of another matrix M with these entries leaves out what else it would have, so that
    V Vᵀ has the entries of M, and small ones elsewhere where M is Q and a diagonal.

    References
    ----------
    Schäfer, Katzfuss & Owhadi (2021), Sparse Cholesky factorization by Kullback–Leibler
    minimization. SIAM Journal on Scientific Computing 43.
    """

    def __init__(self, order: Index, rows: Index, cols: Index) -> None:
        self.size, self.corner, self.border, self._by_supernodes = order.size, 0, 0, True
        self._set_order(order[::-1])
        i, j = self.place[rows], self.place[cols]
        below = np.flatnonzero(i > j)
        below = below[np.lexsort((i[below], j[below]))]
        counts = np.bincount(j[below], minlength=self.size)
        starts = np.append(0, np.cumsum(counts))
        self._set_entries(starts, i[below], np.arange(self.size), np.zeros(self.size, dtype=bool))
        own = np.flatnonzero(i == j)
        #: Number of the entry at each place of the flat values.
        self.entry_at = np.concatenate([own[np.argsort(i[own])], below])
        self.n_flat, self.diagonal = self.n_sparse, np.arange(self.size)
        self.multiplications = _PER_PRODUCT * float(counts @ (counts + 1.0))

    def _factorize(self, flat: Array, s: Array, half: Array) -> tuple[SparseFactor, Array]:
        from .vecchia_kernels import incomplete_factor

        starts, rows, *_ = self.arrays
        parts = np.empty(self.n_flat), np.empty((self.size, 0)), np.empty((0, 0))
        log_det = incomplete_factor(starts, rows, flat, parts[0])
        diagonal = partial(self._diagonal_of, flat, s)
        return SparseFactor(self.arrays, parts, log_det, diagonal), half

    def product(self, flat: Array, x: Array) -> Array:
        """Return the matrix of flat values times each row of x."""
        half = flat.copy()
        # Factors have inverse diagonals.
        half[: self.size] = 2.0 / flat[: self.size]
        parts = half, np.empty((self.size, 0)), np.empty((0, 0))
        triangle = SparseFactor(self.arrays, parts, 0.0, lambda: half)
        return triangle.product(x) + triangle.transpose_product(x)
