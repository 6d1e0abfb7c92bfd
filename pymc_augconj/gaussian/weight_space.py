"""Conditioning on sites through D latent weights, for D well below the number of predictors.

Predictors η = m + Φ v with v ~ N(0, I_D): a latent block u ~ N(0, S Sᵀ) with design A enters as
u = S v, Φ = A S. With r = h − Λm and M = I + ΦᵀΛΦ,

    v | sites ~ N(M⁻¹Φᵀr, M⁻¹),        μ = m + Φ M⁻¹Φᵀr,        Σ = Φ M⁻¹ Φᵀ,
    log Z = hᵀm − ½ mᵀΛm − ½ log|M| + ½ rᵀΦ M⁻¹ Φᵀr,

    α = h − Λμ = ∂log Z/∂m.

All this equals :mod:`.observation_space` with K = ΦΦᵀ. There is no division by λ, so negative
precisions are allowed as long as M is positive definite, which its Cholesky factorisation decides;
with Φ = chol(K) this module conditions any Gaussian on such sites.

References
----------
Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, section 2.1.
Rue (2001), Fast sampling of Gaussian Markov random fields.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg.blas import dsyrk, dtrsv
from scipy.linalg.lapack import dpotrf, dtrtrs

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.blas import diagonal_view, square_work_array
from pymc_augconj.linalg.rounding import dense_error
from pymc_augconj.typing import Array, Index

__all__ = [
    "WeightSpaceFactor",
    "WeightSpacePosterior",
    "cholesky",
    "condition",
    "cov_at",
    "factorize",
]


@dataclass(frozen=True, slots=True)
class WeightSpaceFactor:
    """The Cholesky factor of M = I + ΦᵀΛΦ, with Φ and Λ.

    Attributes
    ----------
    Phi : array, shape (N, D)
        Whitened design; kept by reference.
    lam : array, shape (N,)
        Site precisions.
    chol_M : array, shape (D, D)
        The factor in the lower triangle; the upper one is meaningless. It is the `work` array
        of :func:`factorize`, so the factor lives until that array is used again.
    log_det : float
        log|M| = log|I + ΛK|.
    error : float
        Estimated rounding error of `log_det`.
    diagonal : array, shape (D,)
        Diagonal of M.
    """

    Phi: Array
    lam: Array
    chol_M: Array
    log_det: float
    error: float
    diagonal: Array


@dataclass(frozen=True, slots=True)
class WeightSpacePosterior:
    """The Gaussian posterior of v and of η = m + Φ v given the sites.

    Attributes
    ----------
    factor : WeightSpaceFactor
    latent_mean : array, shape (D,)
        E[v].
    mean : array, shape (N,)
        μ = E[η].
    alpha : array, shape (N,)
        α = h − Λμ, the derivative of `log_normalizer` by the prior mean. The subtraction leaves
        an absolute error of about 1e-16 |h|.
    log_normalizer : float
        log ∫ exp(hᵀη − ½ ηᵀΛη) N(η | m, ΦΦᵀ) dη.
    """

    factor: WeightSpaceFactor
    latent_mean: Array
    mean: Array
    alpha: Array
    log_normalizer: float

    def var(self) -> Array:
        """Return the marginal variances of η, shape (N,)."""
        half = _half(self.factor, self.factor.Phi)
        return np.einsum("ij,ij->j", half, half)

    def cov(self) -> Array:
        """Return the covariance Φ M⁻¹ Φᵀ of η, shape (N, N)."""
        half = _half(self.factor, self.factor.Phi)
        return half.T @ half


def factorize(Phi: Array, lam: Array, *, work: Array | None = None) -> WeightSpaceFactor:
    """Factorise M = I + ΦᵀΛΦ.

    Parameters
    ----------
    Phi : array, shape (N, D)
        Whitened design, C- or Fortran-ordered.
    lam : array, shape (N,)
        Site precisions, finite, of either sign.
    work : array, shape (D, D), optional
        Fortran-ordered array to write the factor to.

    Returns
    -------
    WeightSpaceFactor

    Raises
    ------
    NotPositiveDefiniteError
        If negative precisions outweigh the prior, so that no Gaussian posterior exists, or a
        number is not finite.
    """
    M = square_work_array(Phi.shape[1], work)
    M.fill(0.0)
    diagonal_view(M)[...] = 1.0
    negative = lam < 0.0
    if negative.any():
        M = _add_gram(M, -1.0, Phi[negative], -lam[negative])
        M = _add_gram(M, 1.0, Phi[~negative], lam[~negative])
    else:
        M = _add_gram(M, 1.0, Phi, lam)
    return WeightSpaceFactor(Phi, lam, *cholesky(M, lam))


def cholesky(M: Array, lam: Array) -> tuple[Array, float, float, Array]:
    """Overwrite M = I + ΦᵀΛΦ with its lower factor; return it, log|M|, its error and diag M.

    Parameters
    ----------
    M : array, shape (D, D)
        Fortran-ordered; its lower triangle is read.
    lam : array
        Site precisions, for the error's message.

    Raises
    ------
    NotPositiveDefiniteError
        As for :func:`factorize`.
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


def condition(factor: WeightSpaceFactor, m: Array, h: Array) -> WeightSpacePosterior:
    """Return the posterior given the sites (h, λ), in O(ND) from the factor.

    Parameters are those of :func:`.observation_space.condition`.
    """
    Phi, lam = factor.Phi, factor.lam
    r = h - lam * m
    projected = r @ Phi
    half = dtrsv(factor.chol_M, projected, lower=1)
    latent_mean = dtrsv(factor.chol_M, half, lower=1, trans=1)
    mean = m + Phi @ latent_mean
    log_normalizer = 0.5 * float(m @ (h + r) + half @ half - factor.log_det)
    return WeightSpacePosterior(factor, latent_mean, mean, h - lam * mean, log_normalizer)


def cov_at(factor: WeightSpaceFactor, Phi: Array, first: Index, second: Index) -> Array:
    """Return the posterior variances of all rows of Φ v, then the covariances of pairs of rows.

    Parameters
    ----------
    factor : WeightSpaceFactor
    Phi : array, shape (N, D)
    first, second : array of int
        The rows of each pair.
    """
    half = _half(factor, Phi)
    pairs = np.einsum("ij,ij->j", half[:, first], half[:, second])
    return np.concatenate([np.einsum("ij,ij->j", half, half), pairs])


def _add_gram(M: Array, sign: float, rows: Array, weights: Array) -> Array:
    """Return M + sign · rowsᵀ diag(weights) rows, lower triangle, in place; weights ≥ 0."""
    if weights.size == 0:
        return M
    rows = np.sqrt(weights)[:, None] * rows
    if rows.flags.f_contiguous:
        return dsyrk(sign, rows, beta=1.0, c=M, trans=1, lower=1, overwrite_c=1)
    return dsyrk(sign, rows.T, beta=1.0, c=M, lower=1, overwrite_c=1)


def _half(factor: WeightSpaceFactor, Phi: Array) -> Array:
    """Return L_M⁻¹ Φᵀ, shape (D, rows of Φ)."""
    half, _ = dtrtrs(factor.chol_M, Phi.T, lower=1)
    return half
