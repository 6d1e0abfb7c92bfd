"""Rows of data in chunks: sums over them are computed where the chunks are.

A minibatch is a random part of each of a few chunks. In a pass over the data every row is in one
minibatch: each chunk is divided at random into parts, and all parts are gone through in a random
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pymc_augconj.engines.base import ProcessPrior, SiteRule
from pymc_augconj.errors import DataError
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.parallel.executor import Executor, Task, blas_limit
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Generator, Index

from .model import SparseModel, SparseSites
from .rows import (
    Batch,
    BatchPart,
    Later,
    Reducer,
    State,
    Sums,
    add_sums,
    evaluated,
    few_rows,
    natural_sums,
    slope_sums,
)

# Chunks of which a minibatch has rows.
_CHUNKS = 4


#: Returns the model, and its processes, at rows of data by name; also takes a name for messages.
ChunkReader = Callable[
    [Mapping[str, np.ndarray], str], tuple[LatentGaussianModel, Sequence[ProcessPrior]]
]


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of the data: ``size`` of them, of arrays with these ``names``."""

    number: int
    names: tuple[str, ...]
    size: int


@dataclass(frozen=True)
class RandomPart:
    """One of ``count`` parts of equal size into which the rows of a chunk are divided at random."""

    seed: tuple[int, ...]
    count: int
    number: int

    def of(self, size: int) -> Index:
        """Return the rows in ascending order, of ``size``."""
        order = np.random.default_rng(self.seed).permutation(size)
        return np.sort(np.array_split(order, self.count)[self.number])


#: Rows of a chunk; and rows of the data: numbers of chunks, and which rows of these.
Which = slice | Index | RandomPart
ChunkRows = Sequence[tuple[int, Which]]


class ChunkedData:
    """The data of a fit in chunks, and who works on them."""

    def __init__(
        self,
        executor: Executor,
        read: ChunkReader,
        chunks: Sequence[tuple[Chunk, Sequence[Any]]],
        follows: Sequence[bool],
    ) -> None:
        self.executor, self.chunks, self.follows = executor, chunks, tuple(follows)
        self._read = executor.share(read)
        self.n_rows = sum(chunk.size for chunk, _ in chunks)

    def submit(
        self, function: Callable[..., Any], number: int, which: Which, *more: Any
    ) -> Task[Any]:
        """Begin ``function`` on some rows of a chunk, with ``more`` arguments."""
        chunk, arrays = self.chunks[number]
        return self.executor.submit(function, self._read, chunk, which, *more, *arrays)


@dataclass(frozen=True)
class ChunkedInputs:
    """The inputs of a process, which are in chunks, as an array of which rows can be taken."""

    data: ChunkedData
    process: int

    def __len__(self) -> int:
        return self.data.n_rows

    def __getitem__(self, rows: Index) -> Array:
        """Return the inputs at some rows, in ascending order."""
        ends = np.cumsum([chunk.size for chunk, _ in self.data.chunks])
        tasks = []
        for i, own in enumerate(np.split(rows, np.searchsorted(rows, ends)[:-1])):
            if own.size:
                which = own - (ends[i] - self.data.chunks[i][0].size)
                tasks.append(self.data.submit(_inputs, i, which, self.process))
        return np.concatenate(self.data.executor.gather(tasks))


class RowsInChunks:
    """The rows of all chunks, under a rule; see :class:`.Rows`."""

    def __init__(self, data: ChunkedData, rule: SiteRule) -> None:
        self.data, self.rule, self.n_rows = data, rule, data.n_rows

    def close(self) -> None:
        """Leave the executor to its owner."""

    def batches(self, rng: Generator, size: int) -> Iterator[ChunkRows]:
        sizes = [chunk.size for chunk, _ in self.data.chunks]
        if size >= self.n_rows:
            while True:
                yield self.spread(self.n_rows)
        each = max(size // min(_CHUNKS, len(sizes)), 1)
        # Parts are smaller where chunks are no multiples of them.
        counts = [-(-n // each) for n in sizes]
        take = max(round(size * sum(counts) / self.n_rows), 1)
        left: list[tuple[int, RandomPart]] = []
        while True:
            if len(left) < take:
                seed = int(rng.integers(2**62))
                places = [(i, count, k) for i, count in enumerate(counts) for k in range(count)]
                parts = [(i, RandomPart((seed, i), count, k)) for i, count, k in places]
                # Those left over come first, so that every row has its turn.
                left += [parts[k] for k in rng.permutation(len(parts))]
            rows, left = left[:take], left[take:]
            yield rows

    def spread(self, size: int) -> ChunkRows:
        step = max(self.n_rows // size, 1)
        return [(i, slice(None, None, step)) for i in range(len(self.data.chunks))]

    def groups(self, step: int, count: int) -> list[ChunkRows]:
        n = len(self.data.chunks)
        if n >= count:
            return [
                [(i, slice(None, None, step)) for i in range(g, n, count)] for g in range(count)
            ]
        smallest = min(chunk.size for chunk, _ in self.data.chunks)
        count = max(min(count, smallest // step), 1)
        return [[(i, slice(g * step, None, step * count)) for i in range(n)] for g in range(count)]

    def total(self, reducer: Reducer, state: State, rows: ChunkRows | None = None) -> Sums:
        run = self.data.executor
        shared = run.share((state, self.rule))
        rows = self.spread(self.n_rows) if rows is None else rows
        tasks = [self.data.submit(_sums, *each, reducer, shared) for each in rows]
        return run.reduce(add_sums, tasks)

    def start(
        self, point: Point, inducing: Sequence[Array], rows: ChunkRows, posterior: Later
    ) -> Batch:
        def work() -> BatchPart:
            state = State(point, inducing, posterior())
            slopes = partial(self.total, slope_sums, state, rows)
            return BatchPart(
                state.q.mean, state.q.var, self.total(natural_sums, state, rows), slopes
            )

        # The work begins when the minibatch is waited for.
        here = Executor()
        return Batch(rows, posterior, here, [here.submit(work)])


# -- on the worker ---------------------------------------------------------------------------------


def _sums(
    read: ChunkReader,
    chunk: Chunk,
    which: Which,
    reducer: Reducer,
    shared: tuple[State, SiteRule],
    *arrays: Any,
) -> Sums:
    """Return the sums over some rows of a chunk."""
    state, rule = shared
    # Far out there are infinities, which every step is checked for.
    ignored = np.errstate(over="ignore", invalid="ignore", divide="ignore")
    with blas_limit(1), ignored:
        lgm, processes, count = _read(read, chunk, which, arrays)
        model = SparseModel(lgm, processes, [state.point])
        sites = SparseSites(lgm, rule, state.point)
        parts = []
        for few in few_rows(lgm.n_rows, state.q.mean.size):
            design = model.design(state.point, state.inducing, few)
            parts.append(reducer(evaluated(sites, design, state.q)))
        total = add_sums(parts)
        total.count = count
        return total


def _inputs(read: ChunkReader, chunk: Chunk, which: Which, process: int, *arrays: Any) -> Array:
    """Return the inputs of a process at a few rows of a chunk."""
    return np.array(_read(read, chunk, which, arrays)[1][process].inputs, dtype=float)


def _read(
    read: ChunkReader, chunk: Chunk, which: Which, arrays: Sequence[Any]
) -> tuple[LatentGaussianModel, Sequence[ProcessPrior], int]:
    values = [a.load() if hasattr(a, "load") else np.asarray(a) for a in arrays]
    rows = which.of(chunk.size) if isinstance(which, RandomPart) else which
    where = f"chunk {chunk.number}"
    try:
        chosen = {name: v[rows] for name, v in zip(chunk.names, values, strict=True)}
        return *read(chosen, where), len(chosen[chunk.names[0]])
    except DataError:
        # For the row to be named by its place in the chunk.
        read(dict(zip(chunk.names, values, strict=True)), where)
        raise
