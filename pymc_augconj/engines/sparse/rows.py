"""Rows of the data, in memory or in chunks, and the sums over them that a fit needs.

At q(w) and θ a *reducer* takes evaluated rows to :class:`Sums`: some D² numbers, whatever the
number of rows, which are taken few at a time. Sums of disjoint rows add up to those of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from pymc_augconj.latents.derivatives import accumulate
from pymc_augconj.model import Point
from pymc_augconj.typing import Array, Index

from .model import SparseDesign, SparseModel
from .posterior import WeightsPosterior
from .sites import SparseSites

__all__ = [
    "Batch", "EvaluatedRows", "Reducer", "Rows", "State", "Sums", "add_sums", "evaluated",
    "expected_sums", "few_rows", "natural_sums", "slope_sums", "unit_sums",
]  # fmt: skip

# Numbers in the largest array of a pass over all rows: 80 MB.
_LARGEST = 10_000_000


@dataclass(frozen=True)
class State:
    """The values that rows are evaluated at."""

    point: Point
    inducing: Sequence[Array]
    q: WeightsPosterior


def _zero() -> Array:
    return np.zeros(())


@dataclass
class Sums:
    """Sums over rows; those that were not requested are zero.

    Attributes
    ----------
    count : int
        Number of rows of the data.
    value, magnitude : float
        Σ ℓ and Σ |ℓ|.
    gram, linear : ndarray
        Φ Λ̂ Φᵀ and Φ (ĥ − Λ̂ offset), flat as in :class:`.WeightsPosterior`.
    squares : float
        Σ of squared distances of the target sites from none, in units of q.
    slopes : dict
        Derivatives that do not go through the factors of K(Z, Z).
    """

    count: int = 0
    value: float = 0.0
    magnitude: float = 0.0
    gram: Array = field(default_factory=_zero)
    linear: Array = field(default_factory=_zero)
    squares: float = 0.0
    slopes: dict[str, Array] = field(default_factory=dict)


def add_sums(parts: Sequence[Sums]) -> Sums:
    """Return the sum of a few."""
    total = Sums()
    for part in parts:
        for name in ("count", "value", "magnitude", "gram", "linear", "squares"):
            setattr(total, name, getattr(total, name) + getattr(part, name))
        accumulate(total.slopes, part.slopes)
    return total


@dataclass
class EvaluatedRows:
    """Some rows at q(w) and θ: their design, moments and target sites.

    Attributes
    ----------
    mean, var, halves
        From :meth:`.SparseDesign.moments`.
    value, h, lam
        From :meth:`.SparseSites.targets`.
    """

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


#: Takes evaluated rows to their part of the sums.
Reducer = Callable[[EvaluatedRows], Sums]


def expected_sums(rows: EvaluatedRows) -> Sums:
    """Return Σ ℓ."""
    return Sums(value=float(np.sum(rows.value)), magnitude=float(np.sum(np.abs(rows.value))))


def natural_sums(rows: EvaluatedRows) -> Sums:
    """Return all that a step of q(w) needs."""
    sums, h, lam, mean, var = expected_sums(rows), rows.h, rows.lam, rows.mean, rows.var
    sums.squares = float(np.sum((h - lam * mean) ** 2 * var) + np.sum((lam * var) ** 2))
    sums.gram, sums.linear = rows.design.natural(h, lam)
    return sums


def unit_sums(rows: EvaluatedRows) -> Sums:
    """Return Φ Φᵀ."""
    return Sums(gram=rows.design.natural(np.zeros_like(rows.h), np.ones_like(rows.lam))[0])


def slope_sums(rows: EvaluatedRows) -> Sums:
    """Return the derivatives of Σ ℓ at fixed q(w); overwrites ``rows.halves``.

    By entry of the point, parameters of likelihoods included, and by inducing inputs.
    """
    design, mean = rows.design, rows.mean
    slopes = design.slopes(rows.q, rows.halves, rows.h, rows.lam, mean)
    accumulate(slopes, rows.sites.gradient(design.point, design.rows, mean, rows.var))
    return Sums(slopes=slopes)


def few_rows(model: SparseModel, inducing: Sequence[Array], n_rows: int) -> Iterator[Index]:
    """Yield the numbers of rows, few enough at once that their design is not large."""
    size = max(_LARGEST // max(sum(model.sizes(inducing)), 1), 1)
    for start in range(0, n_rows, size):
        yield np.arange(start, min(start + size, n_rows))


class Batch(Protocol):
    """Rows at one θ and q(w); :meth:`wait` comes first.

    Attributes
    ----------
    rows
        As :meth:`Rows.batches` yields them.
    q : WeightsPosterior
    sums : Sums
        Of :func:`natural_sums`.
    """

    rows: Any
    q: WeightsPosterior
    sums: Sums

    @property
    def is_divided(self) -> bool:
        """Whether several threads of this process share q(w)."""
        ...

    def wait(self) -> None:
        """Finish the evaluation."""
        ...

    def leave(self) -> None:
        """Discard the evaluation, in place of :meth:`wait`."""
        ...

    def moments(self) -> tuple[Array, Array]:
        """Return means and variances of the predictors; of the weights for data in chunks."""
        ...

    def begin_slopes(self) -> Callable[[], Sums]:
        """Begin :func:`slope_sums`, which the callable returns; once."""
        ...


class Rows[R](Protocol):
    """All rows of the data. A context manager, whose end stops all work on them.

    Some of them, ``R``, are observations in memory, or rows of several chunks.
    """

    n_rows: int

    def batches(self, rng: np.random.Generator, size: int) -> Iterator[R]:
        """Yield the rows of minibatches of about ``size``, which walk through a random order."""
        ...

    def spread(self, size: int) -> R:
        """Return about ``size`` rows from all the data."""
        ...

    def groups(self, step: int, count: int) -> list[R]:
        """Return every ``step``-th row, in up to ``count`` groups."""
        ...

    def total(self, reducer: Reducer, state: State, rows: R | None = None) -> Sums:
        """Return the sums over some rows, by default over all."""
        ...

    def start(
        self,
        point: Point,
        inducing: Sequence[Array],
        rows: R,
        posterior: Callable[[], WeightsPosterior],
    ) -> Batch:
        """Begin a minibatch at θ and at the posterior, for which it may have to wait."""
        ...

    def __enter__(self) -> Rows[R]: ...

    def __exit__(self, *details: object) -> None: ...
