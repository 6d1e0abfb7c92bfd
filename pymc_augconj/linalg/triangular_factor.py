"""Solving with a triangular factor, for few columns or for many.

For many columns the factor is inverted once, because products are faster than solves.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np

from pymc_augconj.typing import Array

from .unlocked import invert_lower, lower_solve, lower_times

__all__ = ["TriangularFactor"]


class TriangularFactor:
    """A lower triangular matrix L, Fortran-ordered; its upper triangle is not read."""

    def __init__(self, chol: Array) -> None:
        self.chol = chol

    @cached_property
    def inverse(self) -> Array:
        """L⁻¹."""
        return invert_lower(self.chol.copy(order="F"))

    def solve(self, columns: Array, *, overwrite: bool = False) -> Array:
        """Return L⁻¹ X, Fortran-ordered; with ``overwrite`` it may overwrite X."""
        return self._solve(columns, overwrite, transposed=False)

    def solve_transposed(self, columns: Array, *, overwrite: bool = False) -> Array:
        """Return L⁻ᵀ X; see :meth:`solve`."""
        return self._solve(columns, overwrite, transposed=True)

    def _solve(self, columns: Array, overwrite: bool, *, transposed: bool) -> Array:
        if not (overwrite and columns.flags.f_contiguous and columns.flags.writeable):
            columns = np.array(columns, order="F")
        # An existing inverse is used; a new one pays for more columns than L has.
        if "inverse" in self.__dict__ or columns.shape[1] > columns.shape[0]:
            return lower_times(self.inverse, columns, transposed=transposed)
        return lower_solve(self.chol, columns, transposed=transposed)

    def pull(self, transposed_slope: Array) -> Array:
        """Return weights W with ⟨W, dK⟩ = ⟨slope, dL⟩ for K = L Lᵀ, given Lᵀ slope.

        Half of Murray's formula before symmetrisation, which has the same product with dK.

        References
        ----------
        Murray, I. (2016), Differentiation of the Cholesky decomposition, arXiv:1602.07527.
        """
        lower = np.empty(self.chol.shape, order="F")
        np.multiply(transposed_slope, _half_lower(len(lower)), out=lower)
        if "inverse" in self.__dict__:
            lower_times(self.inverse, lower, right=True)
            return lower_times(self.inverse, lower, transposed=True)
        lower_solve(self.chol, lower, right=True)
        return lower_solve(self.chol, lower, transposed=True)


@lru_cache(maxsize=4)
def _half_lower(size: int) -> Array:
    """Return ones below the diagonal, halves on it and zeros above."""
    return np.asfortranarray(np.tri(size) - 0.5 * np.eye(size))
