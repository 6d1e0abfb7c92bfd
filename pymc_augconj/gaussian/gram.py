"""Weight space with the design summed out: for many evaluations at one set of sites.

With predictors η = A₀ S v, v ~ N(0, I), S = diag(s), sites (h, λ) enter only through

    G = A₀ᵀ Λ A₀,  g = A₀ᵀ h:        M = I + S G S,   b = S g,
    v | sites ~ N(M⁻¹ b, M⁻¹),        log Z = −½ log|M| + ½ bᵀ M⁻¹ b,

so that after one pass over the observations every further value of s costs D³/3 multiplications,
whatever their number. It equals :mod:`.weight_space` with Φ = A₀ S and prior mean zero.

References
----------
Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg.blas import dsyrk, dtrsv
from scipy.linalg.lapack import dpotrf

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.blas import copy_lower, diagonal_view, square_work_array
from pymc_augconj.typing import Array

__all__ = ["GramFactor", "factorize", "log_normalizer", "weighted_gram"]


@dataclass(frozen=True, slots=True)
class GramFactor:
    """The Cholesky factor of M = I + S G S.

    Attributes
    ----------
    scale : array, shape (D,)
        The diagonal of S.
    chol_M : array, shape (D, D)
        Lower triangle: the factor, in the work array given to :func:`factorize`.
    log_det : float
        log|M|.
    """

    scale: Array
    chol_M: Array
    log_det: float


def weighted_gram(A: Array, lam: Array) -> Array:
    """Return the lower triangle of G = Aᵀ diag(λ) A, shape (D, D), for λ ≥ 0."""
    weighted = np.sqrt(lam)[:, None] * A
    if weighted.flags.f_contiguous:
        return dsyrk(1.0, weighted, trans=1, lower=1)
    return dsyrk(1.0, weighted.T, lower=1)


def factorize(gram: Array, scale: Array, *, work: Array | None = None) -> GramFactor:
    """Factorise M = I + S G S.

    Parameters
    ----------
    gram : array, shape (D, D)
        G; its lower triangle is read.
    scale : array, shape (D,)
        The diagonal of S.
    work : array, shape (D, D), optional
        Fortran-ordered array to write the factor to.

    Raises
    ------
    NotPositiveDefiniteError
        If an entry is not finite.
    """
    M = square_work_array(scale.size, work)
    copy_lower(gram, M)
    M *= scale
    M *= scale[:, None]
    diagonal_view(M)[...] += 1.0
    chol_M, info = dpotrf(M, lower=1, clean=0, overwrite_a=1)
    log_det = 2.0 * float(np.log(diagonal_view(chol_M)).sum()) if info == 0 else np.nan
    if info != 0 or not np.isfinite(log_det):
        raise NotPositiveDefiniteError(
            f"the posterior precision I + S G S has no Cholesky factor (LAPACK info {info}): "
            "expected a finite design, finite scales and finite site precisions"
        )
    return GramFactor(scale, chol_M, log_det)


def log_normalizer(factor: GramFactor, projected: Array) -> float:
    """Return log Z for g = A₀ᵀ h (``projected``, shape (D,))."""
    half = dtrsv(factor.chol_M, factor.scale * projected, lower=1, overwrite_x=1)
    return 0.5 * float(half @ half - factor.log_det)
