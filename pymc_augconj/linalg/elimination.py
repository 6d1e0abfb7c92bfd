"""Orders of elimination of sparse symmetric matrices, their trees, and what a factorisation costs.

References
----------
George & Liu (1989), The evolution of the minimum degree ordering algorithm. SIAM Review 31.
Davis (2006), Direct Methods for Sparse Linear Systems, chapters 4 and 7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array, csr_array, eye_array
from scipy.sparse.csgraph import depth_first_order
from scipy.sparse.linalg import spilu

from pymc_augconj.typing import Array, Index, Mask

# Cost of a multiplication among sparse columns, overhead of a sparse column, and of an entry of the
# corner, in multiplications within a large dense matrix.
_SPARSE, _PER_COLUMN, _PER_ENTRY = 8.0, 50.0, 20.0
# Beside a given order that of minimum degree is tried where columns meet at most so many others, on
# average. Where they meet more it takes long to find, and they fill in anyway.
_FEW_NEIGHBOURS = 8
# Rows that meet more than a share of all, in a matrix of some size, are last. Of smaller ones, such
# as ten groups beside a walk, minimum degree finds better orders.
_MOST, _LARGE = 0.25, 1_000
# From this sum of squares of columns' numbers of entries on, elimination is by supernodes, in which
# a multiplication costs half.
_SUPERNODAL = 3e7
# Off-diagonal value of the matrix that is factorised for its order alone.
_WEAK = 1e-3


@dataclass(frozen=True)
class EliminationTree:
    """An order, its elimination tree, and the least cost of a factorisation in it.

    ``place`` is the position of every column; ``graph`` are neighbours in the order, and where
    those of each column start; ``counts`` are entries below the diagonal, and ``pairs`` costs of
    the columns where they are sparse, as the first ``sparse`` are; ``supernodal`` says whether
    columns are eliminated by supernodes.
    """

    place: Index
    graph: tuple[Index, Index]
    parent: Index
    counts: Index
    pairs: Array
    sparse: int
    cost: float
    supernodal: bool

    @classmethod
    def best(
        cls, graph: csr_array, n_border: int, limit: int | None, by_degree: bool
    ) -> EliminationTree:
        """Return that of the best order, with ``n_border`` further columns that meet all."""
        size, trees = graph.shape[0], []
        if not by_degree:
            trees.append(cls.of(graph, np.arange(size), n_border, size**2))
        if by_degree or graph.nnz <= _FEW_NEIGHBOURS * size:
            may_block = by_degree and not n_border
            order, limit = _minimum_degree(graph), limit or size**2
            tree = cls.of(graph, order, n_border, limit, may_block)
            order = tree.light_first(n_border)[order]  # of the same entries
            trees.append(cls.of(graph, order, n_border, limit, may_block))
        return min(trees, key=lambda one: one.cost)

    @classmethod
    def of(
        cls, graph: csr_array, place: Index, n_border: int, limit: int, may_block: bool = False
    ) -> EliminationTree:
        """Return that of an order; supernodes, of many entries, have no border."""
        from .sparse_kernels import count_below, elimination_tree

        size = place.size
        permuted = graph[np.argsort(place)]
        neighbours = permuted.indptr.astype(np.intp), place[permuted.indices].astype(np.intp)
        parent = elimination_tree(*neighbours)
        counts = count_below(*neighbours, parent, limit)
        if counts.size < size:
            raise ValueError(f"expected at most {limit} entries below the diagonal, found more")
        supernodal = may_block and bool(counts.astype(float) @ counts > _SUPERNODAL)
        each = 0.5 * _SPARSE if supernodal else _SPARSE
        pairs = _PER_COLUMN + 0.5 * each * (counts.astype(float) + (n_border + 1)) ** 2
        best = _cheapest(pairs, n_border)
        return cls(place, neighbours, parent, counts, pairs, *best, supernodal)

    def light_first(self, n_border: int) -> Index:
        """Return the position of every column in a postorder with all sparse columns first.

        A column may be sparse where all are that precede it in the tree.
        """
        heaviest = self.pairs.tolist()
        for j, above in enumerate(self.parent.tolist()):
            if above >= 0:
                heaviest[above] = max(heaviest[above], heaviest[j])
        place = _postorder(self.parent, self.counts)
        is_dense = np.ones(place.size, dtype=bool)
        ordered = np.argsort(place)
        light = ordered[np.argsort(np.array(heaviest)[ordered], kind="stable")]
        is_dense[light[: _cheapest(self.pairs[light], n_border)[0]]] = False
        place[ordered[np.argsort(is_dense[ordered], kind="stable")]] = np.arange(place.size)
        return place

    def rows(self) -> tuple[Index, Index]:
        """Return where the rows below the diagonal of each sparse column start, and all rows."""
        from .sparse_kernels import rows_below

        offsets = np.append(0, np.cumsum(self.counts))
        starts = offsets[: self.sparse + 1]
        return starts, rows_below(*self.graph, self.parent, offsets)[: starts[-1]]


def _cheapest(pairs: Array, n_border: int) -> tuple[int, float]:
    """Return how many of the first columns are best sparse, which cost ``pairs``, and all costs."""
    left = n_border + np.arange(pairs.size, -1, -1.0)
    costs = np.append(0.0, np.cumsum(pairs)) + left**3 / 3.0 + _PER_ENTRY * left**2
    return int(costs.argmin()), float(costs.min())


def _postorder(parent: Index, counts: Index) -> Index:
    """Return the position of every column in an order in which subtrees precede their roots.

    The fullest child comes right before its parent: it may have the same rows, as one supernode.
    """
    n, fullest = parent.size, np.argsort(-counts, kind="stable")
    rank = np.argsort(np.append(fullest, n))
    tree = csr_array((np.ones(n), (rank[parent], rank[:n])), 2 * (n + 1,))
    # From the last to be found in depth to the root, which is no column.
    return np.argsort(fullest[depth_first_order(tree, n, return_predecessors=False)[:0:-1]])


def meets_most(graph: csr_array) -> Mask:
    """Return which rows of a large symmetric graph meet so many that no order is good for them."""
    size = graph.shape[0]
    return np.asarray((np.diff(graph.indptr) > _MOST * size) & (size >= _LARGE))


def _minimum_degree(graph: csr_array) -> Index:
    """Return the position of each row of a symmetric graph in an order of minimum degree.

    Rows that meet most others are last, and rows that meet one other at most are first: SuperLU
    takes time that grows with the square of the size to find that out.
    """
    size = graph.shape[0]
    kinds = np.where(meets_most(graph), 2, 1)
    among = np.flatnonzero(kinds == 1)
    kinds[among[np.diff(graph[among][:, among].indptr) <= 1]] = 0
    order, rest = np.argsort(kinds, kind="stable"), kinds == 1
    place = np.empty(size, dtype=np.intp)
    place[order] = np.arange(size)
    if rest.any():
        inner = graph[rest][:, rest]
        weak = (_WEAK / max(inner.sum(axis=0).max(initial=0.0), 1.0)) * inner
        found = spilu(
            csc_array(weak + eye_array(inner.shape[0])),
            drop_tol=1.0, fill_factor=1.0, permc_spec="MMD_AT_PLUS_A",
        ).perm_c  # fmt: skip
        place[rest] = int(np.count_nonzero(kinds == 0)) + found
    return place
