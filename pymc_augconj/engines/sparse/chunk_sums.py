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
from pymc_augconj.latents.derivatives import accumulate
from pymc_augconj.model import LatentGaussianModel, Point, ProcessPrior
from pymc_augconj.parallel.settings import blas_limit
from pymc_augconj.typing import Array, Index

from .design import SparseDesign
from .gradient import DesignGradient
from .model import SparseModel
from .outcome import chunks
from .posterior import WeightsPosterior
from .sites import SparseSites

__all__ = [
    "Chunk", "ChunkReader", "ChunkState", "ChunkSums", "add_sums", "gradient_of_chunk",
    "gram_of_chunk", "inputs_of_chunk", "sums_of_chunk",
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
    rows : int
        Number of predictors.
    value, magnitude : float
        Σ ℓ and Σ |ℓ|.
    gram : ndarray, shape (D, D)
    linear : ndarray, shape (D,)
        Φ Λ̂ Φᵀ and Φ (ĥ − Λ̂ offset).
    pulled : ndarray, shape (D,)
        Φ (ĥ − Λ̂ m).
    by_theta : dict
        Derivatives that do not go through the factors of K(Z, Z).
    """

    rows: int = 0
    value: float = 0.0
    magnitude: float = 0.0
    gram: Array | float = 0.0
    linear: Array | float = 0.0
    pulled: Array | float = 0.0
    by_theta: dict[str, Array] = field(default_factory=dict)

    def add(self, other: ChunkSums) -> None:
        """Add another's, in place."""
        for one in fields(self):
            if one.name != "by_theta":
                setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        accumulate(self.by_theta, other.by_theta)


def add_sums(parts: list[ChunkSums]) -> ChunkSums:
    """Return the sum of a few."""
    total = ChunkSums()
    for part in parts:
        total.add(part)
    return total


def sums_of_chunk(read: ChunkReader, state: ChunkState, chunk: Chunk, *arrays: Any) -> ChunkSums:
    """Return what a step of q(w) needs of the rows."""

    def part(model: SparseModel, sites: SparseSites, rows: Index) -> ChunkSums:
        design, _, (value, h, lam) = _targets(model, sites, state, rows)
        found = ChunkSums(rows.size, float(np.sum(value)), float(np.sum(np.abs(value))))
        found.gram, found.linear = design.natural(h, lam)
        return found

    return _summed(read, state, chunk, arrays, part)


def gradient_of_chunk(
    read: ChunkReader, state: ChunkState, chunk: Chunk, *arrays: Any
) -> ChunkSums:
    """Return what the derivatives by θ need of the rows."""

    def part(model: SparseModel, sites: SparseSites, rows: Index) -> ChunkSums:
        design, (mean, var, half), (_, h, lam) = _targets(model, sites, state, rows)
        gram, linear = design.natural(h, lam)
        slope = h - lam * mean
        pulled = design.Phi @ slope
        by_theta = DesignGradient(model, design).of_rows(state.q, half, slope, lam, False)[0]
        accumulate(by_theta, sites.gradient(state.point, rows, mean, var))
        return ChunkSums(rows.size, gram=gram, linear=linear, pulled=pulled, by_theta=by_theta)

    return _summed(read, state, chunk, arrays, part)


def gram_of_chunk(read: ChunkReader, state: ChunkState, chunk: Chunk, *arrays: Any) -> ChunkSums:
    """Return Φ Φᵀ."""

    def part(model: SparseModel, sites: SparseSites, rows: Index) -> ChunkSums:
        design = model.design(state.point, state.inducing, rows)
        return ChunkSums(rows.size, gram=design.natural(np.zeros(rows.size), np.ones(rows.size))[0])

    return _summed(read, state, chunk, arrays, part)


def inputs_of_chunk(read: ChunkReader, which: Index, chunk: Chunk, *arrays: Any) -> list[Array]:
    """Return the inputs of every process at a few rows."""
    _, processes = _rows_of(read, chunk, arrays)
    return [np.array(process.inputs[which], dtype=float) for process in processes]


def _rows_of(
    read: ChunkReader, chunk: Chunk, arrays: Sequence[Any]
) -> tuple[LatentGaussianModel, Sequence[ProcessPrior]]:
    values = [a.load() if hasattr(a, "load") else np.asarray(a) for a in arrays]
    return read(dict(zip(chunk.names, values, strict=True)), f"chunk {chunk.number}")


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
    arrays: Sequence[Any],
    part: Callable[[SparseModel, SparseSites, Index], ChunkSums],
) -> ChunkSums:
    # Far out there are infinities, which every step is checked for.
    ignored = np.errstate(over="ignore", invalid="ignore", divide="ignore")
    with blas_limit(1), ignored:
        lgm, processes = _rows_of(read, chunk, arrays)
        model = SparseModel(lgm, processes, state.point)
        sites = SparseSites(lgm, state.rule, state.point)
        return add_sums([part(model, sites, rows) for rows in _few(model, state)])


def _few(model: SparseModel, state: ChunkState) -> Iterator[Index]:
    return chunks(model.n_rows, model.size(state.inducing))
