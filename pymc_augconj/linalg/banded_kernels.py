"""The Numba loops of :mod:`.banded`."""

import numpy as np
from numba import njit

from pymc_augconj.typing import Array

__all__ = ["inverse_within_band", "solve_bidiagonal"]


@njit(cache=True, error_model="numpy")
def solve_bidiagonal(factor: Array, x: Array, transpose: bool) -> Array:
    """Return L⁻¹ x, or L⁻ᵀ x, for each row of x, shape (count, n).

    Parameters
    ----------
    factor : ndarray, shape (n, 2)
        The diagonal of L and the entries below it.
    x : ndarray, shape (count, n)
    transpose : bool
    """
    count, n = x.shape
    solved = np.empty((count, n))
    for row in range(count):
        last = 0.0
        if transpose:
            for i in range(n - 1, -1, -1):
                below = factor[i, 1] if i < n - 1 else 0.0
                last = (x[row, i] - below * last) * (1.0 / factor[i, 0])
                solved[row, i] = last
        else:
            below = 0.0
            for i in range(n):
                last = (x[row, i] - below * last) * (1.0 / factor[i, 0])
                solved[row, i] = last
                below = factor[i, 1]
    return solved


@njit(cache=True, error_model="numpy")
def inverse_within_band(factor: Array) -> Array:
    """Return the entries of (L Lᵀ)⁻¹ within the band of L, by Takahashi's recursion.

    With Z the inverse, Z L = L⁻ᵀ is upper triangular with the diagonal 1/Lⱼⱼ, so that

        Lⱼⱼ Zᵢⱼ = [i = j]/Lⱼⱼ − Σ_{k > j} Zᵢₖ Lₖⱼ,        i ≥ j,

    from the last column on; everything on the right is within the band.

    Parameters
    ----------
    factor : ndarray, shape (n, b + 1)
        The columns of L from the diagonal down.

    Returns
    -------
    ndarray, shape (n, b + 1)
        The columns of Z likewise.
    """
    n, diagonals = factor.shape
    inverse = np.zeros((n, diagonals))
    for j in range(n - 1, -1, -1):
        last = min(diagonals - 1, n - 1 - j)
        scale = 1.0 / factor[j, 0]
        for i in range(last, 0, -1):
            total = 0.0
            for k in range(1, last + 1):
                if k < i:
                    total += factor[j, k] * inverse[j + k, i - k]
                else:
                    total += factor[j, k] * inverse[j + i, k - i]
            inverse[j, i] = -scale * total
        total = scale
        for k in range(1, last + 1):
            total -= factor[j, k] * inverse[j, k]
        inverse[j, 0] = scale * total
    return inverse
