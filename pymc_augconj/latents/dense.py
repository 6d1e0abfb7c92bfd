"""Products with a block's covariance, scale and map, for many vectors at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.linalg.linear_map import DenseMap, LinearMap

from .joint import BlockPrior

__all__ = [
    "add_prior_cov",
    "apply_rows",
    "cross_cov",
    "prior_var",
    "scale_rows",
    "scale_transpose_rows",
    "transpose_rows",
]

Array = NDArray[np.float64]


def cross_cov(block: BlockPrior, A: LinearMap) -> Array:
    """Return K Aᵀ, shape (total_size, R)."""
    if isinstance(A, DenseMap) or block.std is not None or block.block.copies > 1:
        dense = A.dense()
        if block.std is not None:
            return (dense * block.std**2).T
        parts = np.split(dense, block.block.copies, axis=1)
        return np.vstack([block.cov @ part.T for part in parts])
    columns = block.cov if A.is_identity else block.cov[:, A.index]
    return columns if A.coef is None else columns * A.coef


def prior_var(block: BlockPrior) -> Array:
    """Return the prior variances of u, flat."""
    if block.std is not None:
        return block.std**2
    return np.tile(np.diagonal(block.cov), block.block.copies)


def add_prior_cov(matrix: Array, block: BlockPrior) -> Array:
    """Add the prior covariance of u to ``matrix``, in place; return it."""
    if block.std is not None:
        matrix[np.diag_indices_from(matrix)] += block.std**2
        return matrix
    size = block.block.size
    for i in range(block.block.copies):
        part = slice(i * size, (i + 1) * size)
        matrix[part, part] += block.cov
    return matrix


def scale_rows(block: BlockPrior, v: Array) -> Array:
    """Return u = S v for each row of v, shape (P, total_size)."""
    if block.std is not None:
        return v * block.std
    shaped = v.reshape(-1, block.block.size)
    return (shaped @ block.chol.T).reshape(v.shape)


def scale_transpose_rows(block: BlockPrior, x: Array) -> Array:
    """Return Sᵀ x for each row of x, shape (P, total_size)."""
    if block.std is not None:
        return x * block.std
    shaped = x.reshape(-1, block.block.size)
    return (shaped @ block.chol).reshape(x.shape)


def apply_rows(A: LinearMap, u: Array) -> Array:
    """Return A u for each row of u, shape (P, R)."""
    if isinstance(A, DenseMap):
        return u @ A.dense().T
    taken = u[:, A.index]
    return taken if A.coef is None else taken * A.coef


def transpose_rows(A: LinearMap, w: Array) -> Array:
    """Return Aᵀ w for each row of w, shape (P, total_size)."""
    if A.is_identity:
        return w
    if isinstance(A, DenseMap):
        return w @ A.dense()
    weighted = w if A.coef is None else w * A.coef
    result = np.zeros((w.shape[0], A.size))
    np.add.at(result, (slice(None), A.index), weighted)
    return result
