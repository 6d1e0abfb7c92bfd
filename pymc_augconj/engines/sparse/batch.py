"""A minibatch in parts, on several threads where they are large enough.

Everything that a minibatch says is a sum over its rows. The parts are the same whatever the number
of threads, so that a seed gives one result on every machine. The other threads begin with the next
minibatch, up to where this needs q(w), while the step of q(w) is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_augconj.latents.derivatives import accumulate
from pymc_augconj.model import Point
from pymc_augconj.parallel.executor import Executor, Task, Threads
from pymc_augconj.parallel.threads import available_cores
from pymc_augconj.typing import Array, Index

from .few_rows import chunks
from .gradient import DesignGradient, add_each, is_long, slopes_by_factor, slopes_of_components
from .model import SparseModel
from .separate import SeparateModel
from .sites import SparseSites

__all__ = ["DividedModel", "PartOfBatch", "Posterior", "SparseBatch"]

Triple = tuple[Array, Array, Array]
# WeightsPosterior or SeparatePosterior, as the model has them.
Posterior = Any

# Rows from which two threads save more than they cost, and rows of a part where there are more.
SMALLEST_DIVIDED, _PART = 512, 1024
_MOST_PARTS, _MOST_THREADS = 16, 8
# The last part, beside the others: its thread has the step of q(w) to make before.
_LAST_SHARE = 0.8


@dataclass
class PartOfBatch:
    """What some rows of a minibatch say at q(w) and θ.

    Attributes
    ----------
    rows : ndarray of int or slice
    design : SparseDesign or SeparateDesign
    mean, var, half : ndarray
        From :meth:`.SparseDesign.moments`.
    value, h, lam : ndarray
        From :meth:`.SparseSites.targets`.
    gram, linear : ndarray
        From :meth:`.SparseDesign.natural`.
    """

    rows: Index | slice
    # Any, because these go with one another: see SeparateDesign.
    design: Any
    mean: Array
    var: Array
    half: Any
    value: Array
    h: Array
    lam: Array
    gram: Array
    linear: Array


class DividedModel:
    """A sparse model and its sites, whose larger minibatches are divided; a context manager."""

    def __init__(self, model: SparseModel | SeparateModel, sites: SparseSites) -> None:
        self.model, self.sites = model, sites
        self.executor = Executor()
        #: Number of observations.
        self.n_rows = model.n_observations

    def __enter__(self) -> DividedModel:
        return self

    def __exit__(self, *details: Any) -> None:
        self.executor.close()

    def batches(self, rng: np.random.Generator, size: int) -> Iterator[Index | slice]:
        """Yield the rows of minibatches."""
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
        """Return ``size`` rows from all the data."""
        return np.arange(0, self.n_rows, self.n_rows // size)[:size]

    def groups(self, step: int, count: int) -> list[Index]:
        """Return every ``step``-th row, in up to ``count`` groups."""
        rows = [np.arange(start * step, self.n_rows, step * count) for start in range(count)]
        return [group for group in rows if group.size]

    def start(
        self,
        point: Point,
        inducing: Sequence[Array],
        rows: Index | slice,
        posterior: Callable[[], Posterior],
    ) -> SparseBatch:
        """Begin to work on the rows at θ and at the posterior, for which it may have to wait."""

        def work(own: Index | slice) -> PartOfBatch:
            design, moments, targets = self._work(point, inducing, own, posterior)
            (mean, var, half), (value, h, lam) = moments, targets
            natural = design.natural(h, lam)
            return PartOfBatch(own, design, mean, var, half, value, h, lam, *natural)

        parts = self._parts(point, inducing, rows)
        return SparseBatch(self, rows, posterior, self.executor.map(work, parts))

    def expected(
        self, point: Point, inducing: Sequence[Array], rows: Index | slice, q: Posterior
    ) -> tuple[float, int]:
        """Return Σ ℓ over the rows, and their number."""

        def work(own: Index | slice) -> float:
            _, _, (value, _, _) = self._work(point, inducing, own, lambda: q)
            return float(np.sum(value))

        parts = self._parts(point, inducing, rows)
        if len(parts) > 1:
            q.prepare()
        size = self.n_rows if isinstance(rows, slice) else len(rows)
        return sum(self.executor.gather(self.executor.map(work, parts))), size

    def full_bound(self, point: Point, inducing: Sequence[Array], q: Posterior) -> float:
        """Return the bound on all the data, a chunk of rows at a time."""
        total = 0.0
        for rows in chunks(self.n_rows, self.model.size(inducing)):
            total += self.expected(point, inducing, rows, q)[0]
        return total - q.divergence

    def _work(
        self,
        point: Point,
        inducing: Sequence[Array],
        rows: Index | slice,
        posterior: Callable[[], Posterior],
    ) -> tuple[Any, Any, Triple]:
        """Return the design of a part of the rows, its moments at q(w), and the target sites."""
        design = self.model.design(point, inducing, rows)
        moments = design.moments(posterior())
        return design, moments, self.sites.targets(point, rows, *moments[:2])

    def _parts(
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


class SparseBatch:
    """The rows of a minibatch at one θ and q(w), evaluated from the moment it is made.

    :meth:`wait` comes first.
    """

    def __init__(
        self,
        divided: DividedModel,
        rows: Index | slice,
        posterior: Callable[[], Posterior],
        begun: list[Task[PartOfBatch]],
    ) -> None:
        self.rows = rows
        self._divided, self._posterior, self._begun = divided, posterior, begun

    def wait(self) -> None:
        """Finish the work on all parts."""
        self.q = self._posterior()
        parts = self.parts = self._divided.executor.gather(self._begun)
        first, *rest = parts
        #: Number of observations.
        self.size = sum(part.value.size for part in parts)
        #: Φ Λ Φᵀ and Φ (h − Λ offset).
        self.gram, self.linear = first.gram, first.linear
        for part in rest:
            self.gram += part.gram
            self.linear = self.linear + part.linear
        self.value = float(sum(np.sum(part.value) for part in parts))

    def leave(self) -> None:
        """Wait for the other threads and discard their results, in place of :meth:`wait`."""
        self._divided.executor.drop(self._begun)

    @property
    def is_divided(self) -> bool:
        """Whether there is more than one part."""
        return len(self._begun) > 1

    def moments(self) -> tuple[Array, Array]:
        """Return means and variances of the predictors."""
        parts = self.parts
        if len(parts) == 1:
            return parts[0].mean, parts[0].var
        return np.concatenate([p.mean for p in parts]), np.concatenate([p.var for p in parts])

    def length_of_step(self) -> float:
        """Return the distance of the target sites from none, in units of q."""
        parts = self.parts
        moved = [(p.h - p.lam * p.mean) * np.sqrt(p.var) for p in parts]
        return float(np.linalg.norm(np.concatenate([*moved, *(p.lam * p.var for p in parts)])))

    def gram_of(self, lam: float) -> Array:
        """Return Φ Λ Φᵀ where all rows have the precision ``lam``."""
        sites = [(np.zeros(part.mean.size), np.full(part.mean.size, lam)) for part in self.parts]
        pairs = zip(self.parts, sites, strict=True)
        return sum((part.design.natural(*site)[0] for part, site in pairs), np.zeros(()))

    def gradient(self) -> Callable[[], tuple[dict[str, Array], list[Array | None]]]:
        """Begin the derivatives by θ and inducing inputs, overwriting the parts.

        Returns
        -------
        callable
            Returns them: those of :meth:`.DesignGradient.of_sites`, and by the likelihoods'
            parameters.
        """
        q, parts, divided = self.q, self.parts, self._divided
        model = divided.model
        if isinstance(model, SeparateModel):
            return self._gradient_of_components(model)
        n_sparse = parts[0].design.n_sparse
        long = is_long(n_sparse, self.size)
        through = [DesignGradient(model, part.design) for part in parts]
        slopes = [part.h - part.lam * part.mean for part in parts]

        def of_rows(i: int) -> tuple[dict[str, Array], list[Array | None], Array | None]:
            part = parts[i]
            return through[i].of_rows(q, part.half, slopes[i], part.lam, not long)

        def by_factor() -> Array:
            pairs = zip(parts, slopes, strict=True)
            pulled = sum((p.design.Phi @ slope for p, slope in pairs), np.zeros(()))
            return slopes_by_factor(q, n_sparse, self.gram, pulled)

        run = divided.executor
        factor = [run.submit(by_factor)] if long else []
        begun = run.map(of_rows, range(len(parts)))

        def end() -> tuple[dict[str, Array], list[Array | None]]:
            results = run.gather([*factor, *begun])
            found = results[len(factor) :]
            if factor:
                total, moved = through[0].of_factors(results[0])
            else:
                total, moved = through[0].of_factors(sum((each[2] for each in found), np.zeros(())))
            for by_theta, by_inducing, _ in found:
                accumulate(total, by_theta)
                moved = add_each(moved, by_inducing)
            self._add_slopes_of_sites(total, parts[0].design.point)
            return total, moved

        return end

    def _gradient_of_components(
        self, model: SeparateModel
    ) -> Callable[[], tuple[dict[str, Array], list[Array | None]]]:
        def of_part(p: PartOfBatch) -> tuple[dict[str, Array], list[Array | None]]:
            return slopes_of_components(model, p.design, self.q, p.half, p.h, p.lam, p.mean)

        run = self._divided.executor
        begun = run.map(of_part, self.parts)

        def end() -> tuple[dict[str, Array], list[Array | None]]:
            (total, moved), *more = run.gather(begun)
            for by_theta, by_inducing in more:
                accumulate(total, by_theta)
                moved = add_each(moved, by_inducing)
            self._add_slopes_of_sites(total, self.parts[0].design.designs[0].point)
            return total, moved

        return end

    def _add_slopes_of_sites(self, total: dict[str, Array], point: Point) -> None:
        """Add the derivatives by the likelihoods' parameters."""
        for part in self.parts:
            slopes = self._divided.sites.gradient(point, part.rows, part.mean, part.var)
            accumulate(total, slopes)
