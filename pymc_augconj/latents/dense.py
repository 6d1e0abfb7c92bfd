"""Latents with any covariance matrix: S is its lower Cholesky factor. Independent latents.

A block may hold independent outputs u that share K, one after another.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError, RecognitionError
from pymc_augconj.linalg.dense import (
    RELATIVE_JITTERS,
    TriangularFactor,
    cholesky_with_jitter,
    lower_product,
    lower_transpose_product,
    symmetric_product,
)
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection
from pymc_augconj.typing import Array

from .base import BlockPrior, PredictorGradient


class DensePrior(BlockPrior):
    """Given by K, shape (size, size)."""

    kind = "dense"

    def __init__(self, block: LatentBlock, array: Array, jitter: float = 0.0) -> None:
        super().__init__(block, array, jitter)
        self._chol: Array | None = None
        self._jittered: DensePrior | None = None

    @cached_property
    def cov(self) -> Array:
        """K."""
        return self.array

    @classmethod
    def matrix_order(cls, block: LatentBlock) -> int:
        return block.size

    def factorized(self) -> DensePrior:
        """See :class:`.BlockPrior`.

        A whitened block takes no jitter, because PyMC computes its f from the plain factor.
        """
        if self._chol is None and self._jittered is None:
            name = f"the covariance of {self.block.name!r}"
            jitters = (0.0,) if self.block.whitened else RELATIVE_JITTERS
            chol, jitter = cholesky_with_jitter(self.cov, name=name, relative_jitters=jitters)
            if jitter == 0.0:
                self._chol = chol
            else:
                cov = np.array(self.cov, order="F")
                cov[np.diag_indices_from(cov)] += jitter
                self._jittered = DensePrior(self.block, cov, jitter)
                self._jittered._chol = chol
        return self if self._jittered is None else self._jittered

    @property
    def chol(self) -> Array:
        """Lower Cholesky factor of K, Fortran-ordered."""
        chol = self._chol if self._chol is not None else self.factorized()._chol
        assert chol is not None
        return chol

    def _is_one(self, x: Array) -> bool:
        """Return whether ``x`` is one vector of one output: a triangular product is cheaper."""
        return x.ndim == 1 and self.block.copies == 1

    def _by_copy(self, x: Array) -> Array:
        return x.reshape(-1, self.block.size)

    def scale(self, v: Array) -> Array:
        if self._is_one(v):
            return lower_product(self.chol, v)
        return (self._by_copy(v) @ self.chol.T).reshape(v.shape)

    def scale_transpose(self, x: Array) -> Array:
        if self._is_one(x):
            return lower_transpose_product(self.chol, x)
        return (self._by_copy(x) @ self.chol).reshape(x.shape)

    def unscale(self, u: Array) -> Array:
        solved = solve_triangular(self.chol, self._by_copy(u).T, lower=True)
        return solved.T.reshape(u.shape)

    def unscale_transpose(self, x: Array) -> Array:
        solved = solve_triangular(self.chol, self._by_copy(x).T, lower=True, trans=1)
        return solved.T.reshape(x.shape)

    def log_det_scale(self) -> float:
        return self.block.copies * float(np.log(np.diagonal(self.chol)).sum())

    def var(self) -> Array:
        return np.tile(np.diagonal(self.cov), self.block.copies)

    def apply_cov(self, x: Array) -> Array:
        if self._is_one(x):
            return symmetric_product(self.cov, x)
        return (self._by_copy(x) @ self.cov).reshape(x.shape)

    def predictor_cov(self, A: LinearMap) -> Array:
        if isinstance(A, DenseMap):
            parts = (part.matrix @ self.cov @ part.matrix.T for part in self._parts(A))
            return sum(parts, np.zeros(()))
        if self.block.copies == 1:
            cov = self.cov if A.is_identity else self.cov[np.ix_(A.index, A.index)]
        else:
            which, within = np.divmod(A.index, self.block.size)
            cov = np.zeros((A.index.size, A.index.size))
            for copy in range(self.block.copies):
                rows = np.flatnonzero(which == copy)
                cov[np.ix_(rows, rows)] = self.cov[np.ix_(within[rows], within[rows])]
        return cov if A.coef is None else cov * np.multiply.outer(A.coef, A.coef)

    def cross_cov(self, A: LinearMap) -> Array:
        if isinstance(A, DenseMap) or self.block.copies > 1:
            return np.vstack([self.cov @ part.matrix.T for part in self._parts(A)])
        columns = self.cov if A.is_identity else self.cov[:, A.index]
        return columns if A.coef is None else columns * A.coef

    def pull_cov(self, A: LinearMap, gradient: PredictorGradient) -> Array:
        return self._pull_output(A, gradient)

    def pull_design(self, A: LinearMap, G: Array) -> Array:
        weights = TriangularFactor(self.chol).pull(self.chol.T @ self._pull_scale(A, G))
        return 0.5 * (weights + weights.T)


class FactorPrior(DensePrior):
    """Given by the Cholesky factor L of K, shape (size, size), lower triangular: S = L.

    K is formed on demand and never factorised, because rounding loses the small directions of an
    ill-conditioned L Lᵀ. Derivatives are by L.
    """

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


#: Standard deviation of a flat coefficient. Scaling rows and columns does not change the rounding
#: errors of a Cholesky factorisation, so any number will do whose square outweighs the precision
#: that data add by more than 1e16; a power of two keeps u = S v exact.
FLAT_STD = 2.0**100


class DiagonalPrior(BlockPrior):
    """Given by its standard deviations, shape (total_size,)."""

    kind = "diagonal"

    def __init__(self, block: LatentBlock, array: Array, jitter: float = 0.0) -> None:
        self.std = np.array(array, dtype=float)
        if not (self.std >= 0.0).all():
            raise NotPositiveDefiniteError(
                f"the standard deviations of {block.name!r} must not be negative or NaN, "
                f"found {self.std[~(self.std >= 0.0)][0]}"
            )
        super().__init__(block, self.std, jitter)

    @classmethod
    def matrix_order(cls, block: LatentBlock) -> int:
        return 0

    @property
    def diagonal_scale(self) -> Array:
        return self.std

    def scale(self, v: Array) -> Array:
        return self.std * v

    def scale_transpose(self, x: Array) -> Array:
        return self.std * x

    def unscale(self, u: Array) -> Array:
        # A latent without variance is its mean for every v.
        return np.divide(u, self.std, out=np.zeros_like(u), where=self.std > 0.0)

    def unscale_transpose(self, x: Array) -> Array:
        return self.unscale(x)

    def log_det_scale(self) -> float:
        return float(np.log(self.std).sum())

    def log_density(self, v: Array) -> float:
        if not self.block.is_flat:
            return super().log_density(v)
        transform = self.block.transform
        return 0.0 if transform is None else transform.log_jacobian(self.scale(v))

    def var(self) -> Array:
        return self.std**2

    def apply_cov(self, x: Array) -> Array:
        return self.std**2 * x

    def predictor_cov(self, A: LinearMap) -> Array:
        if not isinstance(A, RowSelection):
            return super().predictor_cov(A)
        same = np.equal.outer(A.index, A.index)
        values = self.std[A.index] if A.coef is None else self.std[A.index] * A.coef
        return np.where(same, np.multiply.outer(values, values), 0.0)

    def pull_cov(self, A: LinearMap, gradient: PredictorGradient) -> Array:
        return 2.0 * self.std * gradient.congruence_diagonal(A)

    def pull_design(self, A: LinearMap, G: Array) -> Array:
        return np.einsum("ji,ij->j", G, A.dense())


class StandardPrior(DiagonalPrior):
    """Standard normal latents; the whitened design is the design itself, without a copy."""

    kind = "standard"

    def whitened_design(self, A: LinearMap) -> Array:
        return A.dense()
