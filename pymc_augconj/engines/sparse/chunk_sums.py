"""What the rows of one chunk of the data add to the sums of a fit; computed where the chunk is.

At q(w) = N(μ, S) and θ, Σ ℓ, ΦΛ̂Φᵀ and Φ(ĥ − Λ̂ offset) over the rows, and the derivatives of
:mod:`.gradient`: some D² numbers whatever the number of rows, which are taken a few at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np

from pymc_augconj.engines.base import SiteRule
from pymc_augconj.errors import DataError
from pymc_augconj.latents.derivatives import accumulate
from pymc_augconj.model import LatentGaussianModel, Point, ProcessPrior
from pymc_augconj.parallel.settings import blas_limit
from pymc_augconj.typing import Array, Index

from .design import SparseDesign
from .few_rows import chunks
from .gradient import DesignGradient, add_each
from .model import SparseModel
from .posterior import WeightsPosterior
from .sites import SparseSites

__all__ = [
    "Chunk", "ChunkReader", "ChunkState", "ChunkSums", "RandomPart", "Which", "add_sums",
    "gradient_of_chunk", "gram_of_chunk", "inputs_of_chunk", "sums_of_chunk", "value_of_chunk",
]  # fmt: skip


class ChunkReader(Protocol):
    """Returns the model, and its processes, at the rows of a chunk."""

    def __call__(
        self, rows: Mapping[str, np.ndarray], where: str
    ) -> tuple[LatentGaussianModel, Sequence[ProcessPrior]]: ...


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of the data.

    Attributes
    ----------
    number : int
    names : tuple of str
        Of the arrays.
    size : int
        Number of rows.
    """

    number: int
    names: tuple[str, ...]
    size: int


@dataclass(frozen=True)
class RandomPart:
    """One of the parts of equal size into which the rows of a chunk are divided at random.

    Attributes
    ----------
    seed : tuple of int
    count : int
        Number of parts.
    number : int
    """

    seed: tuple[int, ...]
    count: int
    number: int

    def of(self, size: int) -> Index:
        """Return the rows in ascending order, of ``size``."""
        order = np.random.default_rng(self.seed).permutation(size)
        return np.sort(np.array_split(order, self.count)[self.number])


#: Rows of a chunk.
Which = slice | Index | RandomPart


@dataclass(frozen=True)
class ChunkState:
    """What all chunks are evaluated at."""

    point: Point
    inducing: Sequence[Array]
    q: WeightsPosterior
    rule: SiteRule


@dataclass
class ChunkSums:
    """Sums over rows; those that were not asked for are zero.

    Attributes
    ----------
    count : int
        Number of rows of the data.
    value, magnitude : float
        Σ ℓ and Σ |ℓ|.
    gram : ndarray, shape (D, D)
    linear : ndarray, shape (D,)
        Φ Λ̂ Φᵀ and Φ (ĥ − Λ̂ offset).
    pulled : ndarray, shape (D,)
        Φ (ĥ − Λ̂ m).
    by_theta, by_inducing : dict, list
        Derivatives that do not go through the factors of K(Z, Z).
    squares : float
        Σ of squared distances of the target sites from none, in units of q.
    """

    count: int = 0
    value: float = 0.0
    magnitude: float = 0.0
    gram: Array | float = 0.0
    linear: Array | float = 0.0
    pulled: Array | float = 0.0
    squares: float = 0.0
    by_theta: dict[str, Array] = field(default_factory=dict)
    by_inducing: list[Array | None] = field(default_factory=list)

    def add(self, other: ChunkSums) -> None:
        """Add another's, in place."""
        for one in fields(self):
            if one.type in ("int", "float", "Array | float"):
                setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        accumulate(self.by_theta, other.by_theta)
        pairs = self.by_inducing, other.by_inducing
        self.by_inducing = add_each(*pairs) if self.by_inducing else other.by_inducing


def add_sums(parts: list[ChunkSums]) -> ChunkSums:
    """Return the sum of a few."""
    total = ChunkSums()
    for part in parts:
        total.add(part)
    return total


def sums_of_chunk(
    read: ChunkReader, state: ChunkState, chunk: Chunk, which: Which, *arrays: Any
) -> ChunkSums:
    """Return what a step of q(w) needs of the rows."""

    def part(model: SparseModel, sites: SparseSites, rows: Index) -> ChunkSums:
        design, (mean, var, _), (value, h, lam) = _targets(model, sites, state, rows)
        found = ChunkSums(value=float(np.sum(value)), magnitude=float(np.sum(np.abs(value))))
        found.squares = float(np.sum((h - lam * mean) ** 2 * var) + np.sum((lam * var) ** 2))
        found.gram, found.linear = design.natural(h, lam)
        return found

    return _summed(read, state, chunk, which, arrays, part)


def gradient_of_chunk(
    read: ChunkReader, state: ChunkState, chunk: Chunk, which: Which, *arrays: Any
) -> ChunkSums:
    """Return what the derivatives by θ need of the rows."""

    def part(model: SparseModel, sites: SparseSites, rows: Index) -> ChunkSums:
        design, (mean, var, half), (_, h, lam) = _targets(model, sites, state, rows)
        gram, linear = design.natural(h, lam)
        slope = h - lam * mean
        pulled = design.Phi @ slope
        through = DesignGradient(model, design)
        by_theta, by_inducing, _ = through.of_rows(state.q, half, slope, lam, False)
        accumulate(by_theta, sites.gradient(state.point, rows, mean, var))
        return ChunkSums(
            gram=gram, linear=linear, pulled=pulled, by_theta=by_theta,
            by_inducing=by_inducing,
        )  # fmt: skip

    return _summed(read, state, chunk, which, arrays, part)


def value_of_chunk(
    read: ChunkReader, state: ChunkState, chunk: Chunk, which: Which, *arrays: Any
) -> ChunkSums:
    """Return Σ ℓ."""

    def part(model: SparseModel, sites: SparseSites, rows: Index) -> ChunkSums:
        _, _, (value, _, _) = _targets(model, sites, state, rows)
        return ChunkSums(value=float(np.sum(value)))

    return _summed(read, state, chunk, which, arrays, part)


def gram_of_chunk(
    read: ChunkReader, state: ChunkState, chunk: Chunk, which: Which, *arrays: Any
) -> ChunkSums:
    """Return Φ Φᵀ."""

    def part(model: SparseModel, sites: SparseSites, rows: Index) -> ChunkSums:
        design = model.design(state.point, state.inducing, rows)
        return ChunkSums(gram=design.natural(np.zeros(rows.size), np.ones(rows.size))[0])

    return _summed(read, state, chunk, which, arrays, part)


def inputs_of_chunk(
    read: ChunkReader, what: None, chunk: Chunk, which: Which, *arrays: Any
) -> list[Array]:
    """Return the inputs of every process at a few rows."""
    _, processes, _ = _rows_of(read, chunk, which, arrays)
    return [np.array(process.inputs, dtype=float) for process in processes]


def _rows_of(
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


def _targets(
    model: SparseModel, sites: SparseSites, state: ChunkState, rows: Index
) -> tuple[SparseDesign, tuple[Array, Array, Array], tuple[Array, Array, Array]]:
    design = model.design(state.point, state.inducing, rows)
    moments = design.moments(state.q)
    return design, moments, sites.targets(state.point, rows, *moments[:2])


def _summed(
    read: ChunkReader,
    state: ChunkState,
    chunk: Chunk,
    which: Which,
    arrays: Sequence[Any],
    part: Callable[[SparseModel, SparseSites, Index], ChunkSums],
) -> ChunkSums:
    # Far out there are infinities, which every step is checked for.
    ignored = np.errstate(over="ignore", invalid="ignore", divide="ignore")
    with blas_limit(1), ignored:
        lgm, processes, count = _rows_of(read, chunk, which, arrays)
        model = SparseModel(lgm, processes, state.point)
        sites = SparseSites(lgm, state.rule, state.point)
        few = _few(model, state)
        return add_sums([ChunkSums(count), *(part(model, sites, rows) for rows in few)])


def _few(model: SparseModel, state: ChunkState) -> Iterator[Index]:
    return chunks(model.n_rows, model.size(state.inducing))
