"""Rows of the data, in memory or in chunks, and the sums over them that a fit needs.

At q(w) and θ a *reducer* takes evaluated rows to :class:`Sums`: some D² numbers, whatever the
number of rows, which are taken few at a time. Sums of disjoint rows add up to those of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from pymc_augconj.latents.derivatives import accumulate
from pymc_augconj.parallel.executor import Executor, Task, Threads, available_cores
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Generator, Index

from .inducing import WeightsPosterior, joined
from .model import SparseDesign, SparseModel, SparseSites

# Numbers in the largest array of a pass over all rows: 80 MB.
_LARGEST = 10_000_000
# Rows from which two threads save more than they cost, and rows of a part where there are more.
SMALLEST_DIVIDED, _PART = 512, 1024
_MOST_PARTS, _MOST_THREADS = 16, 8
# Relative size of the last part: its thread has the step of q(w) to make before.
_LAST_SHARE = 0.8


@dataclass(frozen=True)
class State:
    """The values that rows are evaluated at."""

    point: Point
    inducing: Sequence[Array]
    q: WeightsPosterior


@dataclass
class Sums:
    """Sums over rows; those that were not requested are zero."""

    count: int = 0
    # Σ ℓ and Σ |ℓ|.
    value: float = 0.0
    magnitude: float = 0.0
    # Φ Λ̂ Φᵀ and Φ (ĥ − Λ̂ offset), flat as in :class:`.WeightsPosterior`.
    gram: Array = field(default_factory=partial(np.zeros, ()))
    linear: Array = field(default_factory=partial(np.zeros, ()))
    # Σ of squared distances of the target sites from none, in units of q.
    squares: float = 0.0
    # Derivatives that do not go through the factors of K(Z, Z).
    slopes: dict[str, Array] = field(default_factory=dict)


def add_sums(parts: Sequence[Sums]) -> Sums:
    """Return the sum of a few."""
    if len(parts) == 1:
        return parts[0]
    total = Sums()
    for part in parts:
        for name in ("count", "value", "magnitude", "gram", "linear", "squares"):
            setattr(total, name, getattr(total, name) + getattr(part, name))
        accumulate(total.slopes, part.slopes)
    return total


@dataclass
class EvaluatedRows:
    """Rows at q(w) and θ: :meth:`.SparseDesign.moments` and :meth:`.SparseSites.targets`."""

    sites: SparseSites
    design: SparseDesign
    q: WeightsPosterior
    mean: Array
    var: Array
    halves: list[Array]
    value: Array
    h: Array
    lam: Array


def evaluated(sites: SparseSites, design: SparseDesign, q: WeightsPosterior) -> EvaluatedRows:
    """Return the rows of a design, evaluated."""
    mean, var, halves = design.moments(q)
    targets = sites.targets(design.point, design.rows, mean, var)
    return EvaluatedRows(sites, design, q, mean, var, halves, *targets)


#: Returns q(w), for which it may have to wait.
Later = Callable[[], WeightsPosterior]
#: Takes evaluated rows to their part of the sums.
Reducer = Callable[[EvaluatedRows], Sums]


def expected_sums(rows: EvaluatedRows) -> Sums:
    """Return Σ ℓ."""
    return Sums(rows.value.size, float(np.sum(rows.value)))


def natural_sums(rows: EvaluatedRows) -> Sums:
    """Return Σ ℓ, Σ |ℓ| and the natural parameters of the target sites."""
    gram, linear = rows.design.natural(rows.h, rows.lam)
    value = rows.value
    return Sums(value.size, float(np.sum(value)), float(np.sum(np.abs(value))), gram, linear)


def start_sums(rows: EvaluatedRows) -> Sums:
    """Return Σ ℓ, the distance of the target sites from none, and Φ Φᵀ as ``gram``."""
    h, lam, mean, var = rows.h, rows.lam, rows.mean, rows.var
    squares = float(np.sum((h - lam * mean) ** 2 * var) + np.sum((lam * var) ** 2))
    gram = rows.design.natural(np.zeros_like(h), np.ones_like(lam))[0]
    return Sums(rows.value.size, float(np.sum(rows.value)), gram=gram, squares=squares)


def slope_sums(rows: EvaluatedRows) -> Sums:
    """Return the derivatives of Σ ℓ at fixed q(w) by θ and Z; overwrites ``rows.halves``."""
    design, mean = rows.design, rows.mean
    slopes = design.slopes(rows.q, rows.halves, rows.h, rows.lam, mean)
    accumulate(slopes, rows.sites.gradient(design.point, design.rows, mean, rows.var))
    return Sums(slopes=slopes)


def all_slopes(
    model: SparseModel, state: State, rest: Callable[[], Sums], natural: tuple[Array, Array]
) -> dict[str, Array]:
    """Return all derivatives of Σ ℓ, given :func:`slope_sums` and (``gram``, ``linear``)."""
    factors = model.by_factors(state.inducing, state.q, *natural)
    sums, total = rest(), dict[str, Array]()
    for c, slope in factors.items():
        accumulate(total, model.parts[c].slopes_by_factor(state.point, state.inducing, slope))
    accumulate(total, sums.slopes)
    return total


def few_rows(n_rows: int, width: int) -> Iterator[Index]:
    """Yield arrays of rows, few enough that ``width`` numbers apiece fit in memory."""
    size = max(_LARGEST // max(width, 1), 1)
    for start in range(0, n_rows, size):
        yield np.arange(start, min(start + size, n_rows))


@dataclass
class BatchPart:
    """Part of a minibatch: moments (of weights for chunks), natural sums, and slopes on demand."""

    mean: Array
    var: Array
    sums: Sums
    slopes: Callable[[], Sums]


class Batch:
    """Rows at one θ and q(w), whose parts an executor works on; :meth:`wait` comes first."""

    q: WeightsPosterior
    #: Of :func:`natural_sums`.
    sums: Sums

    def __init__(
        self, rows: Any, posterior: Later, executor: Executor, begun: list[Task[BatchPart]]
    ) -> None:
        self.rows, self._posterior = rows, posterior
        self._executor, self._begun = executor, begun

    @property
    def is_divided(self) -> bool:
        """Whether several threads of this process share q(w)."""
        return len(self._begun) > 1

    def wait(self) -> None:
        """Finish the evaluation."""
        self.q = self._posterior()
        self._parts: list[BatchPart] = self._executor.gather(self._begun)
        self.sums = add_sums([part.sums for part in self._parts])

    def leave(self) -> None:
        """Discard the evaluation, in place of :meth:`wait`."""
        self._executor.drop(self._begun)

    def moments(self) -> tuple[Array, Array]:
        """Return the means and variances of all parts."""
        parts = self._parts
        return joined([part.mean for part in parts]), joined([part.var for part in parts])

    def begin_slopes(self) -> Callable[[], Sums]:
        """Begin :func:`slope_sums`, which the callable returns; once."""
        begun = [self._executor.submit(part.slopes) for part in self._parts]
        return lambda: add_sums(self._executor.gather(begun))


class Rows[R](Protocol):
    """All rows of the data, of which ``R`` are some."""

    n_rows: int

    def batches(self, rng: Generator, size: int) -> Iterator[R]:
        """Yield the rows of minibatches of about ``size``, which walk through a random order."""

    def spread(self, size: int) -> R:
        """Return about ``size`` rows from all the data."""

    def groups(self, step: int, count: int) -> list[R]:
        """Return every ``step``-th row, in up to ``count`` groups."""

    def total(self, reducer: Reducer, state: State, rows: R | None = None) -> Sums:
        """Return the sums over some rows, by default over all."""

    def start(self, point: Point, inducing: Sequence[Array], rows: R, posterior: Later) -> Batch:
        """Begin a minibatch at θ and at the posterior."""

    def close(self) -> None:
        """Stop work."""


class RowsInMemory:
    """The observations of a model; minibatches in parts, on several threads where they are large.

    The parts are the same for any number of threads, so that a seed gives one result everywhere.
    The other threads begin with the next minibatch, up to where it needs q(w), while q(w) makes its
    step.
    """

    def __init__(self, model: SparseModel, sites: SparseSites) -> None:
        self.model, self.sites = model, sites
        self.executor = Executor()
        self.n_rows = model.n_observations

    def close(self) -> None:
        self.executor.close()

    def batches(self, rng: Generator, size: int) -> Iterator[Index | slice]:
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
        for few in few_rows(chosen.size, state.q.mean.size):
            parts = self._divided(state.point, state.inducing, chosen[few])
            if len(parts) > 1:
                state.q.prepare()
            sums += self.executor.gather(self.executor.map(work, parts))
        return add_sums(sums)

    def start(
        self, point: Point, inducing: Sequence[Array], rows: Index | slice, posterior: Later
    ) -> Batch:
        def work(own: Index | slice) -> BatchPart:
            design = self.model.design(point, inducing, own)
            part = evaluated(self.sites, design, posterior())
            return BatchPart(part.mean, part.var, natural_sums(part), partial(slope_sums, part))

        # First, since it may choose another executor.
        parts = self._divided(point, inducing, rows)
        begun = self.executor.map(work, parts)
        return Batch(rows, posterior, self.executor, begun)

    def _divided(
        self, point: Point, inducing: Sequence[Array], rows: Index | slice
    ) -> Sequence[Index | slice]:
        """Split the rows; precompute the data that threads share."""
        n_rows = self.n_rows if isinstance(rows, slice) else len(rows)
        self.model.prepare(point, inducing)
        if n_rows < SMALLEST_DIVIDED:
            return [rows]
        count = min(max(n_rows // _PART, 2), _MOST_PARTS)
        if self.executor.workers == 1 and available_cores() > 1:
            for prior in [prior for part in self.model.parts for prior in part.priors]:
                prior.compile()
            self.executor = Threads(min(available_cores(), count, _MOST_THREADS))
        indices = np.arange(n_rows) if isinstance(rows, slice) else rows
        size = n_rows / (count - 1 + _LAST_SHARE)
        return np.split(indices, [int(i * size) for i in range(1, count)])
