"""Products with symmetric and triangular matrices that touch half of them and never copy one.

SciPy's BLAS wrappers silently copy a C-ordered matrix, N² numbers a call. Every function here
takes either memory order, and passes the transpose on to avoid the copy.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.linalg.blas import dsymv, dtrmv

from pymc_augconj.typing import Array

from .unlocked import invert_lower

__all__ = [
    "copy_lower",
    "diagonal_view",
    "lower_column_norms",
    "lower_inverse",
    "lower_product",
    "lower_transpose_product",
    "mirror_lower",
    "square_work_array",
    "symmetric_product",
]


# Columns per step through a triangle in NumPy: few, to skip most of the other triangle, but enough
# that the interpreter's overhead is negligible.
BLOCK = 128


def square_work_array(size: int, work: Array | None = None) -> Array:
    """Return `work` if it fits, or a new (size, size) Fortran-ordered float64 array.

    Raises
    ------
    ValueError
        If `work` is given and is not a Fortran-ordered float64 array of that shape.
    """
    if work is None:
        return np.empty((size, size), order="F")
    if work.shape != (size, size) or not work.flags.f_contiguous or work.dtype != np.float64:
        raise ValueError(
            f"expected a Fortran-ordered float64 work array of shape {(size, size)}, got shape "
            f"{work.shape}, dtype {work.dtype}, Fortran-ordered: {work.flags.f_contiguous}; "
            f"make it with np.empty(({size}, {size}), order='F')"
        )
    return work


def diagonal_view(matrix: Array) -> Array:
    """Return a writable view of the diagonal of a contiguous square matrix, shape (N,)."""
    order: Literal["F", "C"] = "F" if matrix.flags.f_contiguous else "C"
    return matrix.reshape(-1, order=order)[:: matrix.shape[0] + 1]


def symmetric_product(K: Array, x: Array, add_to: Array | None = None) -> Array:
    """Return K x, or `add_to` + K x, for symmetric K of shape (N, N).

    Only one triangle of K is read (the lower one if K is Fortran-ordered, else the upper), half
    the memory traffic of ``K @ x``.
    """
    lower = 1
    if not K.flags.f_contiguous:
        K = K.T
    if add_to is None:
        return dsymv(1.0, K, x, lower=lower)
    return dsymv(1.0, K, x, beta=1.0, y=add_to, lower=lower)


def lower_product(L: Array, x: Array) -> Array:
    """Return L x for lower triangular L of shape (N, N); the upper triangle is not read."""
    if L.flags.f_contiguous:
        return dtrmv(L, x, lower=1)
    return dtrmv(L.T, x, lower=0, trans=1)


def lower_transpose_product(L: Array, x: Array) -> Array:
    """Return Lᵀ x for lower triangular L of shape (N, N); the upper triangle is not read."""
    if L.flags.f_contiguous:
        return dtrmv(L, x, lower=1, trans=1)
    return dtrmv(L.T, x, lower=0)


def copy_lower(source: Array, out: Array) -> None:
    """Copy the lower triangle of `source` into `out`, both (N, N).

    Parts of the upper triangle near the diagonal are copied too; the rest of `out` is left alone.
    """
    for start in range(0, source.shape[0], BLOCK):
        columns = slice(start, start + BLOCK)
        out[start:, columns] = source[start:, columns]


def mirror_lower(matrix: Array) -> Array:
    """Fill the upper triangle of a square matrix from its lower one, in place; return it."""
    for start in range(0, matrix.shape[0], BLOCK):
        stop = min(start + BLOCK, matrix.shape[0])
        corner = matrix[start:stop, start:stop]
        corner[...] = np.tril(corner) + np.tril(corner, -1).T
        matrix[start:stop, stop:] = matrix[stop:, start:stop].T
    return matrix


def lower_column_norms(matrix: Array) -> Array:
    """Return the squared norm of each column of the lower triangle of `matrix`, shape (N,)."""
    norms = np.empty(matrix.shape[0])
    for start in range(0, matrix.shape[0], BLOCK):
        stop = min(start + BLOCK, matrix.shape[0])
        corner = np.tril(matrix[start:stop, start:stop])
        below = matrix[stop:, start:stop]
        norms[start:stop] = np.einsum("ij,ij->j", corner, corner)
        norms[start:stop] += np.einsum("ij,ij->j", below, below)
    return norms


def lower_inverse(L: Array, work: Array | None = None) -> Array:
    """Return L⁻¹ of a lower triangular L of shape (N, N), in `work` if given.

    The upper triangle of L is not read; the upper triangle of the result is arbitrary.
    """
    inverse = square_work_array(L.shape[0], work)
    copy_lower(L, inverse)
    return invert_lower(inverse)
