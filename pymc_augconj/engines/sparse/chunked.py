"""The bound through inducing points on data in chunks, of which only sums over rows are seen.

Coordinate ascent of :mod:`.fit` in the natural parameters of q(w): with precision I + B and
precision times mean b, a sweep takes (B, b) to

    B̂ = Σ φᵢ λ̂ᵢ φᵢᵀ,    b̂ = Σ φᵢ (ĥᵢ − λ̂ᵢ offsetᵢ)

at the moments of q(w), the sum of the target sites of all rows. Part of the way there is that part
of the way of every site. So (b, B) are the sites of one observation of all D weights, and the loop
is that of every variational engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pymc_augconj.engines.base import Evaluation, FitProblem, SiteRule
from pymc_augconj.engines.variational.bound import Stage
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.derivatives import accumulate
from pymc_augconj.model import Point
from pymc_augconj.parallel.executor import Executor, Task
from pymc_augconj.typing import Array, Index

from .chunk_sums import (
    Chunk,
    ChunkReader,
    ChunkState,
    ChunkSums,
    Which,
    add_sums,
    gradient_of_chunk,
    gram_of_chunk,
    inputs_of_chunk,
    sums_of_chunk,
)
from .gradient import DesignGradient, add_each, slopes_by_factor
from .model import SparseModel
from .posterior import WeightsPosterior

__all__ = [
    "ChunkedBound",
    "ChunkedData",
    "ChunkedFamily",
    "ChunkedInputs",
    "Rows",
    "chunked_gradient",
    "through_factors",
]

_EPS = 1000.0 * np.finfo(float).eps


#: Rows of the data: numbers of chunks, and which rows of these.
Rows = Sequence[tuple[int, Which]]


class ChunkedData:
    """The data of a fit in chunks, and who works on them.

    Parameters
    ----------
    executor : Executor
    read : ChunkReader
    chunks : sequence of (Chunk, sequence)
        Each with its arrays: what a task takes for them, or has a method ``load``.
    follows : sequence of bool
        Whether a process has its inputs at the rows of the data; else at all chunks the same.
    """

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

    def total(
        self, function: Callable[..., ChunkSums], state: ChunkState, rows: Rows | None = None
    ) -> ChunkSums:
        """Return the sums over some rows, by default of all chunks."""
        shared = self.executor.share(state)
        if rows is None:
            rows = [(i, slice(None)) for i in range(len(self.chunks))]
        tasks = [self._submit(function, shared, *each) for each in rows]
        return self.executor.reduce(add_sums, tasks)

    def inputs(self, process: int) -> ChunkedInputs:
        """Return the inputs of a process, as an array of which rows can be taken."""
        return ChunkedInputs(self, process)

    def some_inputs(self, process: int, rows: Index) -> Array:
        """Return the inputs of a process at some rows, in ascending order."""
        ends = np.cumsum([chunk.size for chunk, _ in self.chunks])
        cuts = np.searchsorted(rows, ends)
        tasks = []
        for i, own in enumerate(np.split(rows, cuts[:-1])):
            if own.size:
                which = own - (ends[i] - self.chunks[i][0].size)
                tasks.append(self._submit(inputs_of_chunk, None, i, which))
        return np.concatenate([found[process] for found in self.executor.gather(tasks)])

    def _submit(
        self, function: Callable[..., Any], what: Any, number: int, which: Which
    ) -> Task[Any]:
        chunk, arrays = self.chunks[number]
        return self.executor.submit(function, self._read, what, chunk, which, *arrays)


class ChunkedInputs:
    """The inputs of a process, which are in chunks."""

    def __init__(self, data: ChunkedData, process: int) -> None:
        self._data, self._process = data, process

    def __len__(self) -> int:
        return self._data.n_rows

    def __getitem__(self, rows: Index) -> Array:
        return self._data.some_inputs(self._process, rows)


class ChunkedFamily:
    """The bound for every θ: what the loop and the optimiser ask of a family of bounds."""

    def __init__(self, problem: FitProblem, rule: SiteRule) -> None:
        self.rule, self.stages = rule, [Stage()]
        self.warms_up = problem.model.has_bounded_densities
        #: Where the first climb begins, if not at the prior.
        self.first: tuple[Array, Array] | None
        sparse = problem.sparse
        assert sparse is not None
        assert sparse.data is not None
        self.data, self.inducing = sparse.data, list(sparse.inducing)
        self.first = None
        if sparse.first is not None:
            self.first = sparse.first.linear, _packed(sparse.first.precision)
        #: At the rows that the user's model holds.
        self.model = SparseModel(problem.model, sparse.priors, problem.point)

    def at(self, point: Point) -> ChunkedBound:
        """Return the bound at θ."""
        return ChunkedBound(self, point)

    def total(
        self, function: Callable[..., ChunkSums], point: Point, q: WeightsPosterior
    ) -> ChunkSums:
        """Return the sums of all chunks at q(w) and θ."""
        return self.data.total(function, ChunkState(point, self.inducing, q, self.rule))


class ChunkedBound:
    """The bound at one θ, as a function of b and the entries of B, diagonal first."""

    def __init__(self, family: ChunkedFamily, point: Point) -> None:
        self.family, self.point = family, point
        self.size = family.model.size(family.inducing)

    def at_prior(self) -> WeightsEvaluation:
        """Return the evaluation at q = p."""
        return self.evaluate(np.zeros(self.size), np.zeros(self.size * (self.size + 1) // 2))

    def evaluate(self, h: Array, lam: Array, keep: Evaluation | None = None) -> WeightsEvaluation:
        """Return the evaluation at b = ``h`` and B = ``lam``.

        Raises
        ------
        NotPositiveDefiniteError
            If negative precisions outweigh the prior.
        """
        q = WeightsPosterior(_unpacked(lam, self.size), h)
        sums = self.family.total(sums_of_chunk, self.point, q)
        assert not isinstance(sums.gram, float)
        assert not isinstance(sums.linear, float)
        cov = q.solve_half(q.half(np.eye(self.size, order="F")))
        magnitude = sums.magnitude + abs(q.divergence) + abs(q.log_det)
        return WeightsEvaluation(
            h, lam, sums.linear, _packed(sums.gram), q.mean, _packed(cov), sums.value,
            q.divergence, magnitude * _EPS, Coupling(self.size), _AtWeights(q, self),
        )  # fmt: skip

    @cached_property
    def gram(self) -> Array:
        """Φ Φᵀ over all rows, as entries."""
        prior = WeightsPosterior.prior(self.size)
        gram = self.family.total(gram_of_chunk, self.point, prior).gram
        assert not isinstance(gram, float)
        return _packed(gram)


@dataclass(frozen=True)
class _AtWeights:
    q: WeightsPosterior
    bound: ChunkedBound


@dataclass(frozen=True)
class WeightsEvaluation(Evaluation):
    """The bound at one q(w): ``mean`` and ``cov`` are those of the weights."""

    @cached_property
    def residual(self) -> float:
        """How far (b, B) are from their targets: of the means in standard deviations, and of S."""
        q, size = self.posterior.q, self.mean.size
        change = _unpacked(self.target_lam - self.lam, size)
        if not (np.isfinite(change).all() and np.isfinite(self.target_h).all()):
            return float("nan")
        pull = q.half(np.asfortranarray((self.target_h - self.h - change @ self.mean)[:, None]))
        relative = q.half(np.asfortranarray(q.half(change).T))
        return float(np.sqrt(np.sum(pull**2) + np.sum(relative**2)))

    @property
    def precision_units(self) -> Array:
        """What a unit of each entry of B does to q, for changes to be weighed by."""
        std = np.sqrt(self.var)
        units = self.var + std * np.abs(self.mean)
        i, j = np.tril_indices(self.mean.size, -1)
        # An entry off the diagonal stands for two.
        return np.concatenate([units, np.sqrt(2.0 * units[i] * units[j])])

    def narrow(self, std: float) -> tuple[Array, Array]:
        """Return the sum of sites of this standard deviation about the prior mean, at all rows."""
        return np.zeros_like(self.h), self.posterior.bound.gram / std**2


def chunked_gradient(bound: ChunkedBound, at: Evaluation) -> dict[str, Array]:
    """Return d bound/dθ at sites that equal their targets."""
    family, q = bound.family, at.posterior.q
    sums = family.total(gradient_of_chunk, bound.point, q)
    return through_factors(family.model, bound.point, family.inducing, q, sums)[0]


def through_factors(
    model: SparseModel,
    point: Point,
    inducing: Sequence[Array],
    q: WeightsPosterior,
    sums: ChunkSums,
) -> tuple[dict[str, Array], list[Array | None]]:
    """Return the derivatives by θ and by inducing inputs, given :func:`.gradient_of_chunk`'s sums.

    What they lack goes through the factors L of K(Z, Z), which are the same for all rows.
    """
    assert not isinstance(sums.gram, float)
    assert not isinstance(sums.pulled, float)
    design = model.design(point, inducing, np.arange(1))
    by_factor = slopes_by_factor(q, design.n_sparse, sums.gram, sums.pulled)
    by_theta, by_inducing = DesignGradient(model, design).of_factors(by_factor)
    accumulate(by_theta, sums.by_theta)
    return by_theta, add_each(by_inducing, sums.by_inducing)


def _packed(matrix: Array) -> Array:
    """Return the entries of a symmetric matrix, its diagonal first."""
    return np.concatenate([np.diagonal(matrix), matrix[np.tril_indices(len(matrix), -1)]])


def _unpacked(entries: Array, size: int) -> Array:
    """Return the symmetric matrix, Fortran-ordered."""
    matrix = np.zeros((size, size), order="F")
    matrix[np.tril_indices(size, -1)] = entries[size:]
    matrix += matrix.T.copy()
    np.fill_diagonal(matrix, entries[:size])
    return matrix
