"""From a precision matrix, given by its entries that are not always zero, to a covariance.

With P the reversal of rows and columns and P Q P = M Mᵀ, K = Q⁻¹ has the lower Cholesky factor
chol(K) = P M⁻ᵀ P. No entry of K is rounded before it is factorised: the small differences along a
random walk with a vague start would not survive that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dlauum, dpbtrf, dpotrf, dtbtrs, dtrtri

from pymc_augconj.errors import NotPositiveDefiniteError

__all__ = ["FactorizedCovariance", "covariance_of_precision"]

Array = NDArray[np.float64]

# A band of fewer diagonals than this share of the matrix is factorised as one.
_NARROW = 0.1


class FactorizedCovariance(NamedTuple):
    """A covariance K, shape (n, n), and its lower Cholesky factor, Fortran-ordered."""

    cov: Array
    chol: Array


def covariance_of_precision(
    size: int,
    rows: NDArray[np.intp],
    cols: NDArray[np.intp],
    values: Array,
    *,
    name: str = "the precision matrix",
) -> FactorizedCovariance:
    """Return K = Q⁻¹ and its Cholesky factor.

    Parameters
    ----------
    size : int
        n, of the (n, n) matrix Q.
    rows, cols, values : ndarray
        Entries of Q, each once, both triangles; the others are zero.
    name : str
        What the matrix is, for the error message.

    Raises
    ------
    NotPositiveDefiniteError
        If Q has an entry that is not finite or no Cholesky factor, or is singular to working
        precision.
    """
    lower = rows >= cols
    # Entry (i, j) of Q is entry (n − 1 − j, n − 1 − i) of P Q P, in the lower triangle as well.
    i, j, values = size - 1 - cols[lower], size - 1 - rows[lower], values[lower]
    width = int((i - j).max(initial=0))
    info = 1
    if np.isfinite(values).all():
        inverse, info = (
            _inverse_of_band(size, i, j, values, width)
            if width < _NARROW * size
            else _inverse_of_factor(size, i, j, values)
        )
    if info == 0:
        # Of a singular Q rounding leaves positive pivots.
        largest = np.bincount(i[i == j], values[i == j], size) * np.diagonal(inverse) ** 2
        info = int(not largest.max(initial=0.0) * size * np.finfo(float).eps < 1.0)
    if info != 0:
        raise NotPositiveDefiniteError(
            f"{name} has no Cholesky factor: expected a positive definite matrix"
        )
    cov, _ = dlauum(inverse, lower=1)
    cov = np.tril(cov)[::-1, ::-1].T
    cov = np.asfortranarray(cov + np.tril(cov, -1).T)
    return FactorizedCovariance(cov, np.asfortranarray(inverse[::-1, ::-1].T))


def _inverse_of_band(
    size: int, i: NDArray[np.intp], j: NDArray[np.intp], values: Array, width: int
) -> tuple[Array, int]:
    """Return M⁻¹, and LAPACK's verdict."""
    band = np.zeros((width + 1, size), order="F")
    band[i - j, j] = values
    band, info = dpbtrf(band, lower=1, overwrite_ab=1)
    if info != 0:
        return band, info
    return dtbtrs(band, np.eye(size, order="F"), uplo="L", overwrite_b=1)


def _inverse_of_factor(
    size: int, i: NDArray[np.intp], j: NDArray[np.intp], values: Array
) -> tuple[Array, int]:
    reversed_Q = np.zeros((size, size), order="F")
    reversed_Q[i, j] = values
    M, info = dpotrf(reversed_Q, lower=1, clean=1, overwrite_a=1)
    return dtrtri(M, lower=1, overwrite_c=1) if info == 0 else (M, info)
