"""Solving with a triangular factor, for few columns or for many.

Few are solved for by LAPACK. For many the factor is inverted once, and products take its place:
as fast on one core, and unlike SciPy's wrappers of LAPACK they let other threads run.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dtrsm
from scipy.linalg.lapack import dtrtri

__all__ = ["TriangularFactor", "is_wide"]

Array = NDArray[np.float64]


def is_wide(columns: Array) -> bool:
    """Return whether the columns are many, as the size of the factor goes."""
    return columns.shape[1] > columns.shape[0]


class TriangularFactor:
    """A lower triangular matrix L, Fortran-ordered, with zeros above the diagonal."""

    def __init__(self, chol: Array):
        self.chol = chol

    @cached_property
    def inverse(self) -> Array:
        """L⁻¹."""
        return dtrtri(self.chol, lower=1)[0]

    def solve(self, columns: Array) -> Array:
        """Return L⁻¹ X."""
        if is_wide(columns):
            return _times(self.inverse, columns)
        return dtrsm(1.0, self.chol, columns, lower=1)

    def solve_transposed(self, columns: Array) -> Array:
        """Return L⁻ᵀ X."""
        if is_wide(columns):
            return _times(self.inverse.T, columns)
        return dtrsm(1.0, self.chol, columns, lower=1, trans_a=1)


def _times(matrix: Array, columns: Array) -> Array:
    """Return the product, Fortran-ordered."""
    out = np.empty((matrix.shape[0], columns.shape[1]), order="F")
    return np.matmul(matrix, columns, out=out)
