"""A Cholesky factor of a matrix and a few more outer products."""

from __future__ import annotations

import numpy as np

from pymc_augconj.typing import Array

from .sparse import SymmetricFactor

__all__ = ["UpdatedFactor"]


class UpdatedFactor:
    """The factor L (I + V Vᵀ)^½ of L Lᵀ + P Pᵀ, with L a factor and Vᵀ = ``rows``, shape (r, n)."""

    def __init__(self, factor: SymmetricFactor, rows: Array) -> None:
        self.factor, self.rows = factor, rows
        # Vᵀ in coordinates in which its rows are orthogonal.
        self.squares, self.basis, self.log_det = np.empty(0), rows, factor.log_det
        if len(rows):
            self.squares, vectors = np.linalg.eigh(rows @ rows.T)
            self.basis = vectors.T @ rows
            self.log_det += float(np.log1p(self.squares).sum())

    def _along(self, x: Array, factors: Array) -> Array:
        return x + ((x @ self.basis.T) * factors) @ self.basis if factors.size else x

    def shrink(self, x: Array) -> Array:
        """Return (I + V Vᵀ)^−½ x."""
        return self._along(x, (1.0 / np.sqrt(1.0 + self.squares) - 1.0) / self.squares)

    def half_solve(self, x: Array) -> Array:
        """Return the inverse times x."""
        return self.shrink(self.factor.half_solve(x))

    def transpose_solve(self, x: Array) -> Array:
        """Return the inverse of the transpose times x."""
        return self.factor.transpose_solve(self.shrink(x))

    def transpose_product(self, x: Array) -> Array:
        """Return the transpose times x."""
        stretch = (np.sqrt(1.0 + self.squares) - 1.0) / self.squares
        return self._along(self.factor.transpose_product(x), stretch)
