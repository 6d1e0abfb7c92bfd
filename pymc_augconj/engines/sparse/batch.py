"""A minibatch in two parts, the second on another thread where they are large enough.

Everything that a minibatch says is a sum over its rows. The parts are the same whatever the number
of threads, so that a seed gives one result on every machine. The other thread begins with the next
minibatch, up to where this needs q(w), while the step of q(w) is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from pymc_augconj.latents.derivatives import accumulate
from pymc_augconj.model import Point
from pymc_augconj.parallel.threads import available_cores
from pymc_augconj.typing import Array, Index

from .gradient import DesignGradient, add_each, is_long, slopes_by_factor
from .model import SparseModel
from .separate import SeparateModel, slopes_of_components
from .sites import SparseSites

__all__ = ["HalvedModel", "PartOfBatch", "Posterior", "SparseBatch"]

Triple = tuple[Array, Array, Array]
# WeightsPosterior or SeparatePosterior, as the model has them.
Posterior = Any

# Rows from which two threads save more than they cost.
SMALLEST_HALVED = 512
# Of the rows, in the first part: its thread has the step of q(w) to make besides.
_FIRST_SHARE = 0.45


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


class HalvedModel:
    """A sparse model and its sites, whose larger minibatches are halved; a context manager."""

    def __init__(self, model: SparseModel | SeparateModel, sites: SparseSites) -> None:
        self.model, self.sites = model, sites
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 1

    def __enter__(self) -> HalvedModel:
        return self

    def __exit__(self, *details: Any) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def begin[T](self, function: Callable[[], T]) -> Callable[[], T]:
        """Have ``function()`` evaluated on the other thread, or if there is none when asked for."""
        if self._pool is None:
            return cache(function)
        # A thread does not begin with the errors that this one ignores.
        ignored: Any = {kind: how for kind, how in np.geterr().items() if how == "ignore"}

        def evaluate() -> T:
            with np.errstate(**ignored):
                return function()

        return self._pool.submit(evaluate).result

    def start(
        self,
        point: Point,
        inducing: Sequence[Array],
        rows: Index | slice,
        posterior: Callable[[], Posterior],
    ) -> SparseBatch:
        """Begin to work on the rows at θ and at the posterior, for which it may have to wait."""

        def work(i: int) -> PartOfBatch:
            design, moments, targets = self._work(point, inducing, parts[i], i, posterior)
            (mean, var, half), (value, h, lam) = moments, targets
            natural = design.natural(h, lam)
            return PartOfBatch(parts[i], design, mean, var, half, value, h, lam, *natural)

        parts = self._parts(point, inducing, rows)
        more = [self.begin(partial(work, i)) for i in range(1, len(parts))]
        return SparseBatch(self, rows, posterior, [cache(partial(work, 0)), *more])

    def expected(
        self, point: Point, inducing: Sequence[Array], rows: Index | slice, q: Posterior
    ) -> float:
        """Return Σ ℓ over the rows."""

        def work(i: int) -> float:
            _, _, (value, _, _) = self._work(point, inducing, parts[i], i, lambda: q)
            return float(np.sum(value))

        parts = self._parts(point, inducing, rows)
        if len(parts) > 1:
            q.prepare()
        more = [self.begin(partial(work, i)) for i in range(1, len(parts))]
        return work(0) + sum(value() for value in more)

    def _work(
        self,
        point: Point,
        inducing: Sequence[Array],
        rows: Index | slice,
        number: int,
        posterior: Callable[[], Posterior],
    ) -> tuple[Any, Any, Triple]:
        """Return the design of a part of the rows, its moments at q(w), and the target sites."""
        design = self.model.design(point, inducing, rows, thread=number % self._threads)
        moments = design.moments(posterior())
        return design, moments, self.sites.targets(point, rows, *moments[:2])

    def _parts(
        self, point: Point, inducing: Sequence[Array], rows: Index | slice
    ) -> list[Index | slice]:
        """Split the rows; precompute the data that threads share."""
        n_rows = self.model.n_observations if isinstance(rows, slice) else len(rows)
        self.model.prepare(point, inducing)
        if n_rows < SMALLEST_HALVED:
            return [rows]
        if self._pool is None and available_cores() > 1:
            self._threads = self.model.open_threads(2)
            if self._threads > 1:
                self._pool = ThreadPoolExecutor(1)
        indices = np.arange(n_rows) if isinstance(rows, slice) else rows
        first = int(_FIRST_SHARE * n_rows)
        return [indices[:first], indices[first:]]


class SparseBatch:
    """The rows of a minibatch at one θ and q(w), evaluated from the moment it is made.

    :meth:`wait` comes first.
    """

    def __init__(
        self,
        halved: HalvedModel,
        rows: Index | slice,
        posterior: Callable[[], Posterior],
        begun: list[Callable[[], PartOfBatch]],
    ) -> None:
        self.rows = rows
        self._halved, self._posterior, self._begun = halved, posterior, begun

    def wait(self) -> None:
        """Finish the work on all parts."""
        self.q = self._posterior()
        parts = self.parts = [part() for part in self._begun]
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
        """Wait for the other thread and discard its result, in place of :meth:`wait`."""
        for part in self._begun[1:]:
            with suppress(Exception):
                part()

    @property
    def is_halved(self) -> bool:
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
        """Begin :meth:`.DesignGradient.of_sites`, overwriting the parts; return how to end it."""
        q, parts, halved = self.q, self.parts, self._halved
        model = halved.model
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

        factor = halved.begin(by_factor) if long else None
        more = [halved.begin(partial(of_rows, i)) for i in range(1, len(parts))]

        def end() -> tuple[dict[str, Array], list[Array | None]]:
            found = [of_rows(0)]
            if factor is not None:
                total, moved = through[0].of_factors(factor())
                found += [each() for each in more]
            else:
                found += [each() for each in more]
                by_rows = (each[2] for each in found if each[2] is not None)
                total, moved = through[0].of_factors(sum(by_rows, np.zeros(())))
            for by_theta, by_inducing, _ in found:
                accumulate(total, by_theta)
                moved = add_each(moved, by_inducing)
            return total, moved

        return end

    def _gradient_of_components(
        self, model: SeparateModel
    ) -> Callable[[], tuple[dict[str, Array], list[Array | None]]]:
        def of_rows(i: int) -> tuple[dict[str, Array], list[Array | None]]:
            p = self.parts[i]
            return slopes_of_components(model, p.design, self.q, p.half, p.h, p.lam, p.mean)

        more = [self._halved.begin(partial(of_rows, i)) for i in range(1, len(self.parts))]

        def end() -> tuple[dict[str, Array], list[Array | None]]:
            total, moved = of_rows(0)
            for each in more:
                by_theta, by_inducing = each()
                accumulate(total, by_theta)
                moved = add_each(moved, by_inducing)
            return total, moved

        return end
