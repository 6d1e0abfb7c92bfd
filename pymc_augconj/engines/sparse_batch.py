"""A minibatch in two halves, each on a thread of its own where it is large enough.

Everything that a minibatch says is a sum over its rows. The halves are the same whatever the
number of threads, so that a seed gives one result on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ..model import Point
from .derivatives import accumulate
from .sparse_design import SparseDesign, add_each, is_long, slopes_by_factor
from .sparse_model import SparseModel
from .threads import available_cores
from .weights_posterior import WeightsPosterior

__all__ = ["HalvedModel", "SparseBatch"]

Array = NDArray[np.float64]

# Rows from which two threads save more than they cost.
SMALLEST_HALVED = 512


class HalvedModel:
    """A sparse model whose larger minibatches are worked on in halves; a context manager."""

    def __init__(self, model: SparseModel):
        self.model = model
        self._n_lanes = model.open_lanes(2)
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> HalvedModel:
        if self._n_lanes > 1 and available_cores() > 1:
            self._pool = ThreadPoolExecutor(2)
        return self

    def __exit__(self, *details) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def map[T](self, function: Callable[[int], T], count: int) -> list[T]:
        """Return ``function(i)`` for every half."""
        if count == 1 or self._pool is None:
            return [function(i) for i in range(count)]
        return list(self._pool.map(function, range(count)))

    def batch(self, point: Point, inducing: Sequence[Array], rows) -> SparseBatch:
        """Return the predictors ``rows`` at θ, with their halves."""
        model = self.model
        n_rows = model.n_rows if isinstance(rows, slice) else len(rows)
        parts = [rows]
        if n_rows >= SMALLEST_HALVED:
            indices = np.arange(n_rows) if isinstance(rows, slice) else rows
            parts = np.array_split(indices, 2)
        # Threads only read what this has put by.
        model.prepare(point, inducing)
        designs = self.map(
            lambda i: model.design(point, inducing, parts[i], lane=i % self._n_lanes), len(parts)
        )
        return SparseBatch(self, designs)


class SparseBatch:
    """The predictors of a minibatch: :class:`.sparse_design.SparseDesign` in parts."""

    def __init__(self, halved: HalvedModel, designs: list[SparseDesign]):
        self._halved, self.designs = halved, designs
        stops = np.cumsum([design.offset.size for design in designs])
        starts = [0, *stops[:-1]]
        self._parts = [slice(a, b) for a, b in zip(starts, stops, strict=True)]
        self.size = int(stops[-1])

    def _map(self, function):
        return self._halved.map(
            lambda i: function(self.designs[i], self._parts[i], i), len(self.designs)
        )

    def moments(self, q: WeightsPosterior) -> tuple[Array, Array]:
        """Return means and variances of the predictors."""
        if len(self.designs) > 1:
            q.prepare()
        found = self._map(lambda design, part, i: design.moments(q))
        self._halves = [half for _, _, half in found]
        return tuple(np.concatenate([each[k] for each in found]) for k in range(2))

    def natural(self, h: Array, lam: Array) -> tuple[Array, Array]:
        """Return Φ Λ Φᵀ and Φ (h − Λ offset)."""
        found = self._map(lambda design, part, i: design.natural(h[part], lam[part]))
        gram, linear = found[0]
        for more, others in found[1:]:
            gram += more
            linear = linear + others
        self._gram = gram
        return gram, linear

    def gradient(self, q: WeightsPosterior, h: Array, lam: Array, mean: Array):
        """Return what :meth:`.SparseDesign.gradient` does, once, after the other two."""
        slope = h - lam * mean
        n_sparse = self.designs[0].n_sparse
        long = is_long(n_sparse, self.size)

        def of_rows(design: SparseDesign, part: slice, i: int):
            half = self._halves[i]
            return design.gradient_of_rows(q, half, slope[part], lam[part], not long)

        def of_factors():
            pulled = sum(
                d.Phi @ slope[part] for d, part in zip(self.designs, self._parts, strict=True)
            )
            by_factor = slopes_by_factor(q, n_sparse, self._gram, pulled)
            return self.designs[0].gradient_of_factors(by_factor)

        found = self._map(of_rows)
        if long:
            factors = of_factors()
        else:
            factors = self.designs[0].gradient_of_factors(sum(each[2] for each in found))
        total, moved = factors
        for by_theta, by_inducing, _ in found:
            accumulate(total, by_theta)
            moved = add_each(moved, by_inducing)
        return total, moved
