"""Inducing inputs by k-means, processes at these, and the posterior of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from scipy.cluster.vq import kmeans2
from scipy.linalg.blas import dtrsv

from pymc_augconj.engines.base import ProcessPrior
from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.joint import block_prior
from pymc_augconj.linalg.dense import (
    TriangularFactor,
    cholesky_in_place,
    cholesky_with_jitter,
    diagonal_view,
    lower_column_norms,
    lower_transpose_product,
)
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import FixedValue, Point
from pymc_augconj.typing import Array, Generator

# Inputs that k-means looks at: enough for its centres, and a second of time at most.
_LARGEST_SAMPLE = 20_000


def inducing_inputs(rng: Generator, X: Array, size: int) -> Array:
    """Choose M = ``size`` inducing inputs by k-means++ on rows of X, or all where these are fewer.

    See Arthur, D. & Vassilvitskii, S. (2007), k-means++: the advantages of careful seeding. SODA.
    """
    n = len(X)
    rows = np.arange(n)
    if n > _LARGEST_SAMPLE:
        rows = np.sort(rng.choice(n, size=max(_LARGEST_SAMPLE, 2 * size), replace=False))
    sample = np.unique(np.asarray(X[rows], dtype=float), axis=0)
    if len(sample) <= size:
        return sample
    # Distances in units of each input's spread, as a kernel with a length scale apiece has them.
    spread = sample.std(axis=0)
    spread[spread == 0.0] = 1.0
    centres, _ = kmeans2(sample / spread, size, minit="++", iter=10, rng=rng, missing="warn")
    return centres * spread


def process_cov(prior: ProcessPrior, point: Point, Z: Array) -> Array:
    """Return the covariance of a process at Z, jitter included; Fortran-ordered."""
    # Symmetric, so that the transpose of a C-ordered one is itself, Fortran-ordered.
    zz = np.array(prior.cov(point, Z).T, order="F")
    diagonal_view(zz)[...] += prior.jitter
    return zz


def factor_at(prior: ProcessPrior, point: Point, Z: Array, **options: Any) -> TriangularFactor:
    """Return chol(K(Z, Z)) of a process; options are those of :func:`.cholesky_with_jitter`."""
    name = f"the covariance of {prior.name!r} at its inducing inputs"
    return TriangularFactor(
        cholesky_with_jitter(process_cov(prior, point, Z), name=name, **options)[0]
    )


def selection_of(prior: ProcessPrior, A: LinearMap, copies: int = 1) -> RowSelection:
    """Return the map of a process, as what it has to be."""
    if not isinstance(A, RowSelection):
        raise AugmentationError(
            f"gp {prior.name!r}: expected every observation to take one value of it, perhaps "
            "scaled, for inducing points, but it enters a predictor through a matrix; fit without "
            "inducing points"
        )
    if A.size != copies * len(prior.inputs):
        raise AugmentationError(
            f"gp {prior.name!r}: expected inputs for its {A.size} values, found "
            f"{copies * len(prior.inputs)}"
        )
    return A


def inducing_block(
    lgm: LatentGaussianModel, prior: ProcessPrior, point: Point, Z: Array
) -> BlockPrior:
    """Return the prior of a process's values at inducing inputs, jitter included."""
    index = [block.name for block in lgm.blocks].index(prior.name)
    zz, copies = process_cov(prior, point, Z), lgm.blocks[index].copies
    latent = replace(
        lgm.blocks[index],
        name=f"{prior.name}_u", value_name=f"{prior.name}_u", form="GP at inducing points",
        shape=(len(Z),) if copies == 1 else (copies, len(Z)), size=len(Z), whitened=False,
        kind="dense", scale=FixedValue(zz), scale_pullback=None, mean=None,
    )  # fmt: skip
    return block_prior(latent, zz).factorized()


class ComponentPosterior:
    """The Gaussian with precision I + B and precision times mean b."""

    def __init__(self, precision: Array, linear: Array) -> None:
        self.precision, self.linear = precision, linear
        chol = np.array(precision, order="F")
        diagonal_view(chol)[...] += 1.0
        info = cholesky_in_place(chol)
        if info != 0 or not np.isfinite(np.diagonal(chol)).all():
            raise NotPositiveDefiniteError(
                "the precision of the weights has no Cholesky factor: negative site precisions "
                "outweigh the prior; damp the update that made them"
            )
        self.factor = TriangularFactor(chol)
        self.mean = dtrsv(chol, dtrsv(chol, linear, lower=1), lower=1, trans=1)

    def half(self, Phi: Array) -> Array:
        """Return chol(I + B)⁻¹ Φ, whose columns' squares are variances of φᵀw."""
        return self.factor.solve(Phi)

    def solve_half(self, half: Array, *, overwrite: bool = False) -> Array:
        """Return S Φ, given :meth:`half` of Φ. May overwrite ``half``."""
        return self.factor.solve(half, transposed=True, overwrite=overwrite)


class WeightsPosterior:
    """Π_c N(w_c; μ_c, S_c); all B_c, one after the other, and all b_c are flat vectors."""

    def __init__(self, precision: Array, linear: Array, sizes: Sequence[int]) -> None:
        self.precision, self.linear, self.sizes = precision, linear, tuple(sizes)
        pairs = zip(self.matrices(precision), self.split(linear), strict=True)
        self.parts = [ComponentPosterior(*pair) for pair in pairs]
        self.mean = joined([part.mean for part in self.parts])

    def __reduce__(self) -> tuple[Any, ...]:
        # The factors are computed again where they are needed, rather than sent there.
        return WeightsPosterior, (self.precision, self.linear, self.sizes)

    @classmethod
    def prior(cls, sizes: Sequence[int]) -> WeightsPosterior:
        """Return N(0, I)."""
        return cls(np.zeros(sum(size**2 for size in sizes)), np.zeros(sum(sizes)), sizes)

    def split(self, vector: Array) -> list[Array]:
        """Return the parts of a vector of all weights."""
        return [vector[own] for own in _slices(self.sizes)]

    def matrices(self, entries: Array) -> list[Array]:
        """Return the symmetric matrices of the components, Fortran-ordered."""
        squares = _slices(tuple(size**2 for size in self.sizes))
        pairs = zip(self.sizes, squares, strict=True)
        return [entries[own].reshape(size, size).T for size, own in pairs]

    def prepare(self) -> None:
        """Invert the factors, so that several threads can share them."""
        for part in self.parts:
            _ = part.factor.inverse

    @property
    def var(self) -> Array:
        """Variances of the weights."""
        return joined([lower_column_norms(part.factor.inverse) for part in self.parts])

    def scaled_norm(self, step: Array) -> float:
        """Return the length of a change of the mean, in standard deviations."""
        pairs = zip(self.parts, self.split(step), strict=True)
        scaled = [lower_transpose_product(part.factor.chol, own) for part, own in pairs]
        return float(np.linalg.norm(joined(scaled)))

    @cached_property
    def log_det(self) -> float:
        """log|I + B|."""
        return 2.0 * sum(float(np.log(np.diagonal(p.factor.chol)).sum()) for p in self.parts)

    @cached_property
    def divergence(self) -> float:
        """KL(q(w) ‖ N(0, I))."""
        mean = self.mean
        return 0.5 * (float(self.var.sum()) + float(mean @ mean) - mean.size + self.log_det)

    def towards(
        self, precision: Array, linear: Array, rate: float, scale: float = 1.0
    ) -> WeightsPosterior:
        """Return q with natural parameters moved to ``scale``·(B̂, b̂) by the fraction ``rate``."""
        moved = (1.0 - rate) * self.precision
        moved += (rate * scale) * precision
        linear = (1.0 - rate) * self.linear + (rate * scale) * linear
        return WeightsPosterior(moved, linear, self.sizes)


def joined(arrays: list[Array]) -> Array:
    """Return the arrays one after the other; a single one is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@lru_cache(maxsize=8)
def _slices(lengths: tuple[int, ...]) -> list[slice]:
    return [slice(*ends) for ends in pairwise(accumulate(lengths, initial=0))]
