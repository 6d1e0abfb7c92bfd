"""Latents whose covariance is given by its Cholesky factor L: S = L, and K = L Lᵀ.

K is formed on demand and never factorised, because rounding loses the small directions of an
ill-conditioned L Lᵀ. Derivatives are by L.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from pymc_augconj.errors import NotPositiveDefiniteError, RecognitionError
from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.model import LatentBlock
from pymc_augconj.typing import Array

from .base import BlockPrior, PredictorGradient
from .dense import DensePrior

__all__ = ["FactorPrior"]


class FactorPrior(DensePrior):
    """Given by L, shape (size, size), lower triangular."""

    kind = "factor"

    def __init__(self, block: LatentBlock, array: Array, jitter: float = 0.0) -> None:
        BlockPrior.__init__(self, block, array, jitter)
        self._chol = _checked(array, f"the Cholesky factor of the covariance of {block.name!r}")

    @cached_property
    def cov(self) -> Array:
        """K."""
        return self.chol @ self.chol.T

    def factorized(self) -> FactorPrior:
        return self

    def var(self) -> Array:
        return np.tile(np.einsum("ij,ij->i", self.chol, self.chol), self.block.copies)

    def apply_cov(self, x: Array) -> Array:
        return BlockPrior.apply_cov(self, x)

    def pull_cov(self, A: LinearMap, gradient: PredictorGradient) -> Array:
        return np.tril(2.0 * super().pull_cov(A, gradient) @ self.chol)

    def pull_design(self, A: LinearMap, G: Array) -> Array:
        return np.tril(self._pull_scale(A, G))


def _checked(array: Array, name: str) -> Array:
    """Return L, Fortran-ordered."""
    chol = np.array(array, dtype=float, order="F")
    if not np.isfinite(chol).all():
        raise NotPositiveDefiniteError(f"expected {name} to be finite, found NaN or infinity")
    above = np.argwhere(np.triu(chol, 1))
    if above.size:
        # PyMC's compiled log density does not read these entries, but its random draws do.
        row, column = above[0]
        raise RecognitionError(
            f"expected {name} to be lower triangular, found {chol[row, column]:.3g} at "
            f"[{row}, {column}]; pass pt.tril(chol), or lower=False with an upper triangular one"
        )
    diagonal = np.diagonal(chol)
    if (diagonal < 0.0).any():
        # PyMC's log density is −∞ or that of L Lᵀ, depending on what PyTensor makes of its graph.
        raise RecognitionError(
            f"expected {name} to have a positive diagonal, found {diagonal.min():.3g}; give its "
            "diagonal a prior on positive values, or pass cov=chol @ chol.T"
        )
    if not diagonal.all():
        raise NotPositiveDefiniteError(f"expected {name} to be invertible, found a zero diagonal")
    return chol
