"""Rows in memory; minibatches in parts, on several threads where they are large enough.

The parts are the same whatever the number of threads, so that a seed gives one result on every
machine. The other threads begin with the next minibatch, up to where this needs q(w), while the
step of q(w) is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pymc_augconj.model import Point
from pymc_augconj.parallel.executor import Executor, Task, Threads
from pymc_augconj.parallel.threads import available_cores
from pymc_augconj.typing import Array, Index

from .model import SparseModel
from .posterior import WeightsPosterior
from .rows import (
    EvaluatedRows,
    Reducer,
    State,
    Sums,
    add_sums,
    evaluated,
    few_rows,
    natural_sums,
    slope_sums,
)
from .sites import SparseSites

__all__ = ["RowsInMemory"]

# Rows from which two threads save more than they cost, and rows of a part where there are more.
SMALLEST_DIVIDED, _PART = 512, 1024
_MOST_PARTS, _MOST_THREADS = 16, 8
# Relative size of the last part: its thread has the step of q(w) to make before.
_LAST_SHARE = 0.8


class RowsInMemory:
    """The observations of a sparse model; see :class:`.Rows`."""

    def __init__(self, model: SparseModel, sites: SparseSites) -> None:
        self.model, self.sites = model, sites
        self.executor = Executor()
        self.n_rows = model.n_observations

    def __enter__(self) -> RowsInMemory:
        return self

    def __exit__(self, *details: object) -> None:
        self.executor.close()

    def batches(self, rng: np.random.Generator, size: int) -> Iterator[Index | slice]:
        n = self.n_rows
        if size >= n:
            while True:
                yield slice(None)
        order, used = rng.permutation(n), 0
        while True:
            if used + size > n:
                order, used = rng.permutation(n), 0
            # In ascending order, so that a memory map is read in one direction.
            yield np.sort(order[used : used + size])
            used += size

    def spread(self, size: int) -> Index:
        return np.arange(0, self.n_rows, self.n_rows // size)[:size]

    def groups(self, step: int, count: int) -> list[Index | slice]:
        rows = [np.arange(start * step, self.n_rows, step * count) for start in range(count)]
        return [group for group in rows if group.size]

    def total(self, reducer: Reducer, state: State, rows: Index | slice | None = None) -> Sums:
        def work(own: Index | slice) -> Sums:
            design = self.model.design(state.point, state.inducing, own)
            return reducer(evaluated(self.sites, design, state.q))

        chosen = np.arange(self.n_rows) if rows is None or isinstance(rows, slice) else rows
        sums = []
        for few in few_rows(self.model, state.inducing, chosen.size):
            parts = self.divided(state.point, state.inducing, chosen[few])
            if len(parts) > 1:
                state.q.prepare()
            sums += self.executor.gather(self.executor.map(work, parts))
        return add_sums([Sums(chosen.size), *sums])

    def start(
        self,
        point: Point,
        inducing: Sequence[Array],
        rows: Index | slice,
        posterior: Callable[[], WeightsPosterior],
    ) -> _Batch:
        def work(own: Index | slice) -> tuple[EvaluatedRows, Sums]:
            design = self.model.design(point, inducing, own)
            part = evaluated(self.sites, design, posterior())
            return part, natural_sums(part)

        parts = self.divided(point, inducing, rows)
        return _Batch(self, rows, posterior, self.executor.map(work, parts))

    def divided(
        self, point: Point, inducing: Sequence[Array], rows: Index | slice
    ) -> Sequence[Index | slice]:
        """Split the rows; precompute the data that threads share."""
        n_rows = self.n_rows if isinstance(rows, slice) else len(rows)
        self.model.prepare(point, inducing)
        if n_rows < SMALLEST_DIVIDED:
            return [rows]
        count = min(max(n_rows // _PART, 2), _MOST_PARTS)
        if self.executor.workers == 1 and available_cores() > 1:
            threads = self.model.open_threads(min(available_cores(), count, _MOST_THREADS))
            if threads > 1:
                self.executor = Threads(threads)
        indices = np.arange(n_rows) if isinstance(rows, slice) else rows
        size = n_rows / (count - 1 + _LAST_SHARE)
        return np.split(indices, [int(i * size) for i in range(1, count)])


class _Batch:
    """A minibatch, evaluated from the moment it is made; see :class:`.Batch`."""

    q: WeightsPosterior
    sums: Sums

    def __init__(
        self,
        source: RowsInMemory,
        rows: Index | slice,
        posterior: Callable[[], WeightsPosterior],
        begun: list[Task[tuple[EvaluatedRows, Sums]]],
    ) -> None:
        self.rows = rows
        self._source, self._posterior, self._begun = source, posterior, begun

    @property
    def is_divided(self) -> bool:
        return len(self._begun) > 1

    def wait(self) -> None:
        self.q = self._posterior()
        pairs = self._source.executor.gather(self._begun)
        self._parts = [part for part, _ in pairs]
        count = self._source.n_rows if isinstance(self.rows, slice) else len(self.rows)
        self.sums = add_sums([Sums(count), *(sums for _, sums in pairs)])

    def leave(self) -> None:
        self._source.executor.drop(self._begun)

    def moments(self) -> tuple[Array, Array]:
        parts = self._parts
        return np.concatenate([p.mean for p in parts]), np.concatenate([p.var for p in parts])

    def begin_slopes(self) -> Callable[[], Sums]:
        run = self._source.executor
        begun = run.map(slope_sums, self._parts)
        return lambda: add_sums(run.gather(begun))
