"""The Cholesky factor of a covariance matrix that may be singular to working precision."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigvalsh
from scipy.linalg.lapack import dpotrf

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.typing import Array

from .blas import copy_lower, diagonal_view, square_work_array

__all__ = ["RELATIVE_JITTERS", "cholesky_with_jitter"]


# Tried in this order, as multiples of the mean of the covariance's diagonal.
RELATIVE_JITTERS = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)


def cholesky_with_jitter(
    K: Array,
    *,
    relative_jitters: tuple[float, ...] = RELATIVE_JITTERS,
    name: str = "the covariance matrix",
    work: Array | None = None,
) -> tuple[Array, float]:
    """Factorise K + jitter·I = L Lᵀ with the smallest jitter of a ladder that works.

    Parameters
    ----------
    K : array, shape (N, N)
        Symmetric covariance. Only its lower triangle is read.
    relative_jitters : tuple of float
        Jitters to try in turn, as multiples of the mean of K's diagonal.
    name : str
        Name of the matrix for the error message, for instance ``"the covariance of 'f'"``.
    work : array, shape (N, N), optional
        Fortran-ordered array that L overwrites.

    Returns
    -------
    L : array, shape (N, N)
        Lower Cholesky factor, Fortran-ordered, with zeros above the diagonal.
    jitter : float
        Added to the diagonal: L is the factor of K + jitter·I. Where it is not zero, add it to K
        before using K and L together.

    Raises
    ------
    NotPositiveDefiniteError
        If K has a NaN or an infinity, or no jitter of the ladder suffices.

    References
    ----------
    Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, appendix A.4.
    """
    K = np.asarray(K, dtype=np.float64)
    if K.ndim != 2 or K.shape[0] != K.shape[1]:
        raise ValueError(f"expected {name} to be a square matrix, got shape {K.shape}")
    L = square_work_array(K.shape[0], work)
    scale = float(np.mean(np.diagonal(K)))
    for relative in relative_jitters:
        copy_lower(K, L)
        jitter = relative * scale
        if jitter != 0.0:
            diagonal_view(L)[...] += jitter
        L, info = dpotrf(L, lower=1, clean=1, overwrite_a=1)
        # Every entry of K reaches the diagonal of L, so its N numbers tell whether K is finite.
        if info == 0 and np.isfinite(diagonal_view(L)).all():
            return L, jitter
        _refuse_non_finite(K, name)
    raise NotPositiveDefiniteError(_explain_failure(K, relative_jitters, scale, name))


def _refuse_non_finite(K: Array, name: str) -> None:
    # Entries above the diagonal are not read, and may be uninitialised.
    finite = np.isfinite(K) | ~np.tri(len(K), dtype=bool)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise NotPositiveDefiniteError(
            f"expected {name} to be finite, got {np.count_nonzero(~finite)} entries that are NaN "
            f"or infinite, the first at [{row}, {column}]; check the inputs for missing values "
            "and the kernel's hyperparameters for overflow"
        )


def _explain_failure(K: Array, relative_jitters: tuple[float, ...], scale: float, name: str) -> str:
    smallest = eigvalsh(K, lower=True, subset_by_index=(0, 0))[0]
    tried = ", ".join(f"{relative * scale:.1e}" for relative in relative_jitters)
    message = (
        f"expected {name} to be positive definite, got a smallest eigenvalue of about "
        f"{smallest:.2e}; it has no Cholesky factor even with {tried} added to its diagonal "
    )
    asymmetry = float(np.abs(K - K.T).max())
    if asymmetry > 1e-8 * float(np.abs(K).max()):
        return message + (
            f"— it is not symmetric (entries differ from their mirror image by up to "
            f"{asymmetry:.1e}): check how it is built"
        )
    return message + (
        "— remove duplicated inputs, add a larger jitter or a white-noise term to the kernel, or "
        "give the length scale a prior that keeps it well below the range of the inputs"
    )
