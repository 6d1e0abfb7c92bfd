"""Latents with any covariance matrix, with a Kronecker product of such, or independent.

S is the lower Cholesky factor of K. A block may hold independent outputs u that share K, one after
another.

On a full grid K = K₁ ⊗ K₂ ⊗ …, one factor for each axis, the first axis varying slowest, and
S = L₁ ⊗ L₂ ⊗ … with the Cholesky factors of these: products take O(n Σ nᵢ), and K is formed for
solvers that need it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dtrtri

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
        return 0.0 if self.block.is_flat else super().log_density(v)

    def var(self) -> Array:
        return self.std**2

    def apply_cov(self, x: Array) -> Array:
        return self.std**2 * x

    def predictor_cov(self, A: LinearMap) -> Array:
        if not isinstance(A, RowSelection):
            return super().predictor_cov(A)
        same, values = np.equal.outer(A.index, A.index), A.scaled(self.std).entries
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


def kronecker_product(factors: Sequence[Array], x: Array) -> Array:
    """Return (A₁ ⊗ A₂ ⊗ …) x, of each row of x where there are several."""
    found, after = x, x.shape[-1]
    before = x.size // max(after, 1)
    for A in factors:
        n = len(A)
        after //= n
        columns = found.reshape(before, n, after)
        found = A @ columns if after > 1 else columns[..., 0] @ A.T
        before *= n
    return found.reshape(x.shape)


class KroneckerPrior(BlockPrior):
    """Given by the entries of all Kᵢ, one matrix after another."""

    kind = "kronecker"

    def __init__(self, block: LatentBlock, array: Array, jitter: float = 0.0) -> None:
        super().__init__(block, array, jitter)
        ends = np.cumsum([n * n for n in block.grid])[:-1]
        parts = zip(block.grid, np.split(array, ends), strict=True)
        #: The Kᵢ.
        self.covs = [part.reshape(n, n) for n, part in parts]

    @cached_property
    def chols(self) -> list[Array]:
        name = f"a factor of the covariance of {self.block.name!r}"
        # PyMC computes f from the plain factors.
        return [cholesky_with_jitter(K, name=name, relative_jitters=(0.0,))[0] for K in self.covs]

    @cached_property
    def _inverses(self) -> list[Array]:
        return [dtrtri(L, lower=1)[0] for L in self.chols]

    def factorized(self) -> KroneckerPrior:
        assert self.chols  # raises where there are none
        return self

    @classmethod
    def matrix_order(cls, block: LatentBlock) -> int:
        return block.size

    def scale(self, v: Array) -> Array:
        return kronecker_product(self.chols, v)

    def scale_transpose(self, x: Array) -> Array:
        return kronecker_product([L.T for L in self.chols], x)

    def unscale(self, u: Array) -> Array:
        return kronecker_product(self._inverses, u)

    def unscale_transpose(self, x: Array) -> Array:
        return kronecker_product([inverse.T for inverse in self._inverses], x)

    def apply_cov(self, x: Array) -> Array:
        return kronecker_product(self.covs, x)

    def log_det_scale(self) -> float:
        logs = (float(np.log(np.diagonal(L)).sum()) / len(L) for L in self.chols)
        return self.block.size * sum(logs)

    def var(self) -> Array:
        return reduce(np.multiply.outer, [np.diagonal(K) for K in self.covs]).ravel()

    def _pull(self, G: Array, factors: Sequence[Array]) -> list[Array]:
        """Return the derivatives of ⟨G, A₁ ⊗ A₂ ⊗ …⟩ by each of the factors, G (size, size)."""
        n_axes, found = len(factors), []
        G = G.reshape(*self.block.grid, *self.block.grid)
        for i in range(n_axes):
            operands: list[Any] = [G, list(range(2 * n_axes))]
            for j, A in enumerate(factors):
                operands += [A, [j, n_axes + j]] if j != i else []
            found.append(np.einsum(*operands, [i, n_axes + i], optimize=True))
        return found

    def pull_cov(self, A: LinearMap, gradient: PredictorGradient) -> Array:
        found = self._pull(gradient.congruence(A), self.covs)
        return np.concatenate([G.ravel() for G in found])

    def pull_design(self, A: LinearMap, G: Array) -> Array:
        slopes = zip(self._pull(self._pull_scale(A, G), self.chols), self.chols, strict=True)
        weights = [TriangularFactor(L).pull(L.T @ slope) for slope, L in slopes]
        return np.concatenate([0.5 * (W + W.T).ravel() for W in weights])
