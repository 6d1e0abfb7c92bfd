"""Minibatches of data in chunks, which are drawn where these are; see :mod:`.batch`.

A minibatch is a random part of each of a few chunks. In a pass over the data every row is in one
minibatch: each chunk is divided at random into parts, and all parts are gone through in a random
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pymc_augconj.model import Point
from pymc_augconj.typing import Array

from .chunk_sums import (
    ChunkState,
    ChunkSums,
    RandomPart,
    gradient_of_chunk,
    gram_of_chunk,
    sums_of_chunk,
    value_of_chunk,
)
from .chunked import ChunkedData, Rows, through_factors
from .model import SparseModel
from .posterior import WeightsPosterior
from .sites import SparseSites

__all__ = ["ChunkedBatch", "ChunkedModel"]

# Chunks of which a minibatch has rows.
_CHUNKS = 4


class ChunkedModel:
    """What :class:`.DividedModel` is to data in memory.

    Parameters
    ----------
    model : SparseModel
        At the rows that the user's model holds.
    sites : SparseSites
    data : ChunkedData
    """

    def __init__(self, model: SparseModel, sites: SparseSites, data: ChunkedData) -> None:
        self.model, self.sites, self.data = model, sites, data
        self.n_rows = data.n_rows

    def __enter__(self) -> ChunkedModel:
        return self

    def __exit__(self, *details: object) -> None:
        """Leave the executor to its owner."""

    def batches(self, rng: np.random.Generator, size: int) -> Iterator[Rows]:
        """Yield the rows of minibatches of about ``size`` rows of the data."""
        sizes = [chunk.size for chunk, _ in self.data.chunks]
        if size >= self.n_rows:
            while True:
                yield [(i, slice(None)) for i in range(len(sizes))]
        each = max(size // min(_CHUNKS, len(sizes)), 1)
        # Parts are smaller where chunks are no multiples of them.
        n_parts = sum(-(-n // each) for n in sizes)
        take = max(round(size * n_parts / self.n_rows), 1)
        left: list[tuple[int, RandomPart]] = []
        while True:
            if len(left) < take:
                seed = int(rng.integers(2**62))
                parts = [
                    (i, RandomPart((seed, i), count, k))
                    for i, count in enumerate(-(-n // each) for n in sizes)
                    for k in range(count)
                ]
                # Those left over come first, so that every row has its turn.
                left += [parts[k] for k in rng.permutation(len(parts))]
            rows, left = left[:take], left[take:]
            yield rows

    def spread(self, size: int) -> Rows:
        """Return about ``size`` rows from all chunks."""
        step = max(self.n_rows // size, 1)
        return [(i, slice(None, None, step)) for i in range(len(self.data.chunks))]

    def groups(self, step: int, count: int) -> list[Rows]:
        """Return every ``step``-th row, in up to ``count`` groups."""
        n = len(self.data.chunks)
        if n >= count:
            return [
                [(i, slice(None, None, step)) for i in range(g, n, count)] for g in range(count)
            ]
        smallest = min(chunk.size for chunk, _ in self.data.chunks)
        count = max(min(count, smallest // step), 1)
        return [[(i, slice(g * step, None, step * count)) for i in range(n)] for g in range(count)]

    def start(
        self,
        point: Point,
        inducing: Sequence[Array],
        rows: Rows,
        posterior: Callable[[], WeightsPosterior],
    ) -> ChunkedBatch:
        """Return a minibatch, which begins when it is waited for."""
        return ChunkedBatch(self, dict(point), [*map(np.copy, inducing)], rows, posterior)

    def expected(
        self, point: Point, inducing: Sequence[Array], rows: Rows, q: WeightsPosterior
    ) -> tuple[float, int]:
        """Return Σ ℓ over the rows of the data, and their number."""
        state = ChunkState(point, inducing, q, self.sites.rule)
        found = self.data.total(value_of_chunk, state, rows)
        return found.value, found.count

    def full_bound(self, point: Point, inducing: Sequence[Array], q: WeightsPosterior) -> float:
        """Return the bound on all the data."""
        state = ChunkState(point, inducing, q, self.sites.rule)
        return self.data.total(value_of_chunk, state).value - q.divergence


class ChunkedBatch:
    """What :class:`.SparseBatch` is to data in memory."""

    #: q(w) need not be prepared for threads of this process.
    is_divided = False

    def __init__(
        self,
        chunked: ChunkedModel,
        point: Point,
        inducing: Sequence[Array],
        rows: Rows,
        posterior: Callable[[], WeightsPosterior],
    ) -> None:
        self.rows = rows
        self._chunked, self._point, self._inducing = chunked, point, inducing
        self._posterior = posterior

    def _total(self, function: Callable[..., ChunkSums]) -> ChunkSums:
        state = ChunkState(self._point, self._inducing, self.q, self._chunked.sites.rule)
        return self._chunked.data.total(function, state, self.rows)

    def wait(self) -> None:
        """Do the work."""
        self.q = self._posterior()
        sums = self._total(sums_of_chunk)
        assert not isinstance(sums.gram, float)
        assert not isinstance(sums.linear, float)
        self.gram, self.linear = sums.gram, sums.linear
        self.value, self.size, self._squares = sums.value, sums.count, sums.squares

    def leave(self) -> None:
        """Nothing has begun."""

    def moments(self) -> tuple[Array, Array]:
        """Return means and variances of the weights."""
        half = self.q.half(np.eye(self.q.mean.size, order="F"))
        return self.q.mean, np.vecdot(half.T, half.T)

    def length_of_step(self) -> float:
        """Return the distance of the target sites from none, in units of q."""
        return float(np.sqrt(self._squares))

    def gram_of(self, lam: float) -> Array:
        """Return Φ Λ Φᵀ where all rows have the precision ``lam``."""
        gram = self._total(gram_of_chunk).gram
        assert not isinstance(gram, float)
        return lam * gram

    def gradient(self) -> Callable[[], tuple[dict[str, Array], list[Array | None]]]:
        """Return what gives the derivatives by θ, likelihoods included, and inducing inputs."""
        sums = self._total(gradient_of_chunk)
        model = self._chunked.model
        return lambda: through_factors(model, self._point, self._inducing, self.q, sums)
