"""Processes at their inducing inputs, and inducing inputs by k-means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.cluster.vq import kmeans2

from pymc_augconj.engines.base import ProcessPrior
from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.registry import block_prior
from pymc_augconj.linalg.dense import TriangularFactor, cholesky_with_jitter, diagonal_view
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import FixedValue, Point
from pymc_augconj.typing import Array

__all__ = ["factor_at", "inducing_block", "inducing_inputs", "process_cov", "selection_of"]

# Inputs that k-means looks at: enough for its centres, and a second of time at most.
_LARGEST_SAMPLE = 20_000


def inducing_inputs(rng: np.random.Generator, X: Array, size: int) -> Array:
    """Choose inducing inputs among and between the rows of X by k-means++.

    Parameters
    ----------
    rng : Generator
    X : ndarray, shape (n, d)
        A memory map is read in part.
    size : int
        M; all of X if it has no more distinct rows.

    Returns
    -------
    ndarray, shape (M, d)

    References
    ----------
    Arthur, D. & Vassilvitskii, S. (2007). k-means++: the advantages of careful seeding. SODA.
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
    """Return the Cholesky factor of a process's covariance at its inducing inputs.

    ``options`` are those of :func:`.cholesky_with_jitter`.
    """
    name = f"the covariance of {prior.name!r} at its inducing inputs"
    return TriangularFactor(
        cholesky_with_jitter(process_cov(prior, point, Z), name=name, **options)[0]
    )


def selection_of(prior: ProcessPrior, A: LinearMap, copies: int = 1) -> RowSelection:
    """Return the map of a process, as what it has to be.

    Raises
    ------
    AugmentationError
        If a predictor takes more than one of its values.
    """
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
