"""The precision M = I + ΦᵀΛΦ of latent weights v ~ N(0, I) given sites on η = Φ v.

There is no division by λ, so negative precisions are allowed as long as M is positive definite
(Rasmussen & Williams 2006, Gaussian Processes for Machine Learning, section 2.1).
"""

from __future__ import annotations

import numpy as np
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpotrf

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.dense import diagonal_view, square_work_array
from pymc_augconj.linalg.rounding import dense_error
from pymc_augconj.typing import Array


def weight_precision(Phi: Array, lam: Array, work: Array | None = None) -> Array:
    """Return M, lower triangle, in ``work``; Φ is (N, D), and λ of either sign."""
    M = square_work_array(Phi.shape[1], work)
    M.fill(0.0)
    diagonal_view(M)[...] = 1.0
    negative = lam < 0.0
    if not negative.any():
        return _add_gram(M, 1.0, Phi, lam)
    M = _add_gram(M, -1.0, Phi[negative], -lam[negative])
    return _add_gram(M, 1.0, Phi[~negative], lam[~negative])


def _add_gram(M: Array, sign: float, rows: Array, weights: Array) -> Array:
    """Return M + sign · rowsᵀ diag(weights) rows, lower triangle, in place; weights ≥ 0."""
    if weights.size == 0:
        return M
    rows = np.sqrt(weights)[:, None] * rows
    if rows.flags.f_contiguous:
        return dsyrk(sign, rows, beta=1.0, c=M, trans=1, lower=1, overwrite_c=1)
    return dsyrk(sign, rows.T, beta=1.0, c=M, lower=1, overwrite_c=1)


def cholesky(M: Array, lam: Array) -> tuple[Array, float, float, Array]:
    """Overwrite M with its lower factor; return it, log|M|, its estimated error and diag M.

    M is Fortran-ordered; its lower triangle is read, and the upper one of the factor is
    meaningless. ``lam`` is for the message of NotPositiveDefiniteError: if negative precisions
    outweigh the prior, so that no Gaussian posterior exists, or a number is not finite.
    """
    diagonal = diagonal_view(M).copy()
    chol_M, info = dpotrf(M, lower=1, clean=0, overwrite_a=1)
    log_det = 2.0 * float(np.log(diagonal_view(chol_M)).sum()) if info == 0 else 0.0
    if info != 0 or not np.isfinite(log_det):
        raise NotPositiveDefiniteError(
            f"the posterior precision I + ΦᵀΛΦ has no Cholesky factor (LAPACK info {info}, lam "
            f"from {lam.min():.2e} to {lam.max():.2e}): expected a finite design and precisions "
            "whose negative ones do not outweigh the prior; damp the update that made them"
        )
    return chol_M, log_det, dense_error(chol_M, diagonal), diagonal
