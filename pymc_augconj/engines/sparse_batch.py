"""A minibatch in two parts, each on a thread of its own where it is large enough.

Everything that a minibatch says is a sum over its rows. The parts are the same whatever the number
of threads, so that a seed gives one result on every machine. What the next minibatch has to do
before it needs q(w), its kernels and whitened designs, goes on beside the step of q(w).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..model import Point
from .derivatives import accumulate
from .sparse_design import SparseDesign, add_each, is_long, slopes_by_factor
from .sparse_model import SparseModel
from .sparse_sites import SparseSites
from .threads import available_cores
from .weights_posterior import WeightsPosterior

__all__ = ["HalvedModel", "PartOfBatch", "SparseBatch"]

Array = NDArray[np.float64]

# Rows from which two threads save more than they cost.
SMALLEST_HALVED = 512
# Of the rows, in the part that is begun first: the other thread has the step of q(w) to do.
_FIRST_SHARE = 0.53
# Two parts, and the inducing points.
_LANES = 3


@dataclass
class PartOfBatch:
    """What some rows of a minibatch say at q(w) and θ.

    Attributes
    ----------
    design : SparseDesign
    mean, var, half : ndarray
        From :meth:`.SparseDesign.moments`.
    value, h, lam : ndarray
        From :meth:`.SparseSites.targets`.
    gram, linear : ndarray
        From :meth:`.SparseDesign.natural`.
    """

    design: SparseDesign
    mean: Array
    var: Array
    half: Array
    value: Array
    h: Array
    lam: Array
    gram: Array
    linear: Array

    @property
    def slope(self) -> Array:
        """∂ℓ/∂m."""
        return self.h - self.lam * self.mean


class HalvedModel:
    """A sparse model and its sites, whose larger minibatches are halved; a context manager."""

    def __init__(self, model: SparseModel, sites: SparseSites):
        self.model, self.sites = model, sites
        self._pool: ThreadPoolExecutor | None = None
        self._lanes = 1

    def __enter__(self) -> HalvedModel:
        return self

    def __exit__(self, *details) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def submit[T](self, function: Callable[[], T]) -> Future[T]:
        """Have ``function()`` evaluated, on another thread where there are any."""
        if self._pool is not None:
            return self._pool.submit(function)
        future: Future[T] = Future()
        future.set_result(function())
        return future

    def start(
        self,
        point: Point,
        inducing: Sequence[Array],
        rows: NDArray[np.intp] | slice,
        posterior: Callable[[], WeightsPosterior],
    ) -> SparseBatch:
        """Begin to work on the rows at θ and at the posterior, for which it may have to wait."""
        parts = self._split(rows)
        # Threads only read what this has put by.
        self.model.prepare(point, inducing)
        begun = []
        for i, part in enumerate(parts):

            def work(i: int = i, part=part) -> PartOfBatch:
                design = self.model.design(point, inducing, part, lane=i % self._lanes)
                mean, var, half = design.moments(posterior())
                value, h, lam = self.sites.targets(point, part, mean, var)
                natural = design.natural(h, lam)
                return PartOfBatch(design, mean, var, half, value, h, lam, *natural)

            begun.append(self.submit(work))
        return SparseBatch(self, rows, posterior, begun)

    def expected(self, point: Point, inducing: Sequence[Array], rows, q: WeightsPosterior) -> float:
        """Return Σ ℓ over the rows."""
        parts = self._split(rows)
        self.model.prepare(point, inducing)
        if len(parts) > 1:
            q.prepare()

        def work(i: int) -> float:
            design = self.model.design(point, inducing, parts[i], lane=i % self._lanes)
            mean, var, _ = design.moments(q)
            return float(np.sum(self.sites.targets(point, parts[i], mean, var)[0]))

        begun = [self.submit(lambda i=i: work(i)) for i in range(len(parts))]
        return sum(future.result() for future in begun)

    def _split(self, rows) -> list[NDArray[np.intp] | slice]:
        n_rows = self.model.n_rows if isinstance(rows, slice) else len(rows)
        if n_rows < SMALLEST_HALVED:
            return [rows]
        if self._pool is None and available_cores() > 1:
            self._lanes = self.model.open_lanes(_LANES)
            if self._lanes == _LANES:
                self._pool = ThreadPoolExecutor(2)
        indices = np.arange(n_rows) if isinstance(rows, slice) else rows
        first = int(_FIRST_SHARE * n_rows)
        return [indices[:first], indices[first:]]

    def lane_of_factors(self) -> int:
        """Return which copy of the laws no part uses."""
        return self._lanes - 1


class SparseBatch:
    """The rows of a minibatch at one θ and q(w), worked on since it was made.

    :meth:`wait` comes first.
    """

    def __init__(
        self,
        halved: HalvedModel,
        rows: NDArray[np.intp] | slice,
        posterior: Callable[[], WeightsPosterior],
        begun: list[Future[PartOfBatch]],
    ):
        self.rows = rows
        self._halved, self._posterior, self._begun = halved, posterior, begun

    def wait(self) -> None:
        """Wait for what has been begun; raises what that raised."""
        self.q = self._posterior()
        parts = self.parts = [future.result() for future in self._begun]
        first, *rest = parts
        self.size = sum(part.mean.size for part in parts)
        #: Φ Λ Φᵀ and Φ (h − Λ offset).
        self.gram, self.linear = first.gram, first.linear
        for part in rest:
            self.gram += part.gram
            self.linear = self.linear + part.linear
        self.value = float(sum(np.sum(part.value) for part in parts))

    def leave(self) -> None:
        """Wait, whatever comes of it, until no thread works on it any more."""
        wait(self._begun)

    @property
    def is_halved(self) -> bool:
        """Whether there is more than one part."""
        return len(self._begun) > 1

    def moments(self) -> tuple[Array, Array]:
        """Return means and variances of the predictors."""
        parts = self.parts
        if len(parts) == 1:
            return parts[0].mean, parts[0].var
        return tuple(np.concatenate([getattr(p, name) for p in parts]) for name in ("mean", "var"))

    def gradient(self) -> Callable[[], tuple[dict[str, Array], list[Array | None]]]:
        """Begin with :meth:`.SparseDesign.gradient`, which uses up the parts; return how to end."""
        q, parts, halved = self.q, self.parts, self._halved
        design = parts[0].design
        n_sparse = design.n_sparse
        long = is_long(n_sparse, self.size)
        slopes = [part.slope for part in parts]

        def of_factors():
            if long:
                pulled = sum(p.design.Phi @ slope for p, slope in zip(parts, slopes, strict=True))
                by_factor = slopes_by_factor(q, n_sparse, self.gram, pulled)
            else:
                by_factor = sum(future.result()[2] for future in begun)
            return design.gradient_of_factors(by_factor, halved.lane_of_factors())

        begun = [
            halved.submit(
                lambda part=part, slope=slope: part.design.gradient_of_rows(
                    q, part.half, slope, part.lam, not long
                )
            )
            for part, slope in zip(parts, slopes, strict=True)
        ]
        factors = halved.submit(of_factors)

        def end() -> tuple[dict[str, Array], list[Array | None]]:
            total, moved = factors.result()
            for future in begun:
                by_theta, by_inducing, _ = future.result()
                accumulate(total, by_theta)
                moved = add_each(moved, by_inducing)
            return total, moved

        return end
