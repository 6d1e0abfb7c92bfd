"""Observation space with site precisions of either sign.

Sites of a likelihood that is not log-concave may have λᵢ < 0. Let Λ₊ hold the others, E select the
k negative ones, and let the index + mark results of :mod:`.observation_space` for Λ₊ alone.
Conditioning that posterior on the other k sites is a correction of rank k,

    W = (I − R₊K) E,    S = Eᵀ Σ₊ E,    Q = |Λ₋|⁻¹ − S,
    R = R₊ − W Q⁻¹ Wᵀ,        Σ = Σ₊ + KW Q⁻¹ (KW)ᵀ,        α = α₊ + W Q⁻¹ Eᵀμ₊,
    log|I + ΛK| = log|I + Λ₊K| + log|Λ₋| + log|Q|,

with α₊, μ₊ for all h under Λ₊. A Gaussian posterior exists if and only if Q is positive definite.
The correction costs 2 k N² beyond the factorisation.

References
----------
Woodbury's identity: Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, A.3.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs, dtrtrs

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.blas import copy_lower, mirror_lower, square_work_array
from pymc_augconj.linalg.rounding import dense_error
from pymc_augconj.typing import Array, Index

from . import observation_space

__all__ = ["SignedPosterior"]


class SignedPosterior:
    """The posterior of η ~ N(0, K) given sites (h, λ), λ of either sign.

    Parameters
    ----------
    K : array, shape (N, N)
        Prior covariance, symmetric; kept by reference.
    h, lam : array, shape (N,)
        The sites.
    work : array, shape (N, N), optional
        Fortran-ordered array for the factor, which lives until that array is used again.

    Attributes
    ----------
    mean, alpha : array, shape (N,)
        μ = Kα and α = h − Λμ.
    log_det : float
        log|I + ΛK|.
    log_normalizer : float
        log ∫ exp(hᵀη − ½ ηᵀΛη) N(η | 0, K) dη = ½ (hᵀμ − log|I + ΛK|).
    error : float
        Estimated rounding error of ``log_normalizer``.

    Raises
    ------
    NotPositiveDefiniteError
        If the negative precisions outweigh the prior, so that no Gaussian posterior exists, or a
        matrix is not positive definite in floating point.
    """

    def __init__(self, K: Array, h: Array, lam: Array, *, work: Array | None = None) -> None:
        if not (np.isfinite(lam).all() and np.isfinite(h).all()):
            raise NotPositiveDefiniteError("expected finite sites, got a NaN or an infinity")
        self.K, self.h, self.lam = K, h, lam
        self._negative = np.flatnonzero(lam < 0.0)
        self._factor = observation_space.factorize(K, np.maximum(lam, 0.0), work=work)
        self._positive = observation_space.condition(self._factor, np.zeros_like(h), h)
        self.mean, self.alpha = self._positive.mean, self._positive.alpha
        self.log_det, self.error = self._factor.log_det, self._positive.error
        # W, K W and the Cholesky factor of Q, where a precision is negative.
        self._correction: tuple[Array, Array, Array] | None = None
        if self._negative.size:
            self._correct()
        self.log_normalizer = 0.5 * (float(h @ self.mean) - self.log_det)

    def _correct(self) -> None:
        where = self._negative
        columns = np.asfortranarray(self.K[:, where])
        W, _ = dpotrs(self._factor.chol_C, columns, lower=1)
        W *= -1.0
        W[where, np.arange(where.size)] += 1.0
        KW = self.K @ W
        size = -self.lam[where]
        Q = np.diag(1.0 / size) - KW[where]
        chol_Q, info = dpotrf(Q, lower=1, clean=1)
        if info != 0:
            raise NotPositiveDefiniteError(
                f"{where.size} negative site precisions (the smallest {-size.max():.2e}) outweigh "
                "the prior, so that no Gaussian posterior exists; damp the update that made them"
            )
        # Q is a difference: its rounding error is that of its larger term.
        self.error += dense_error(chol_Q, np.maximum(np.diagonal(Q), 1.0 / size))
        weights, _ = dpotrs(chol_Q, self.mean[where], lower=1)
        self.alpha = self.alpha + W @ weights
        self.mean = self.mean + KW @ weights
        self.log_det += float(np.sum(np.log(size)) + 2.0 * np.log(np.diagonal(chol_Q)).sum())
        self._correction = W, KW, chol_Q

    def var(self, *, work: Array | None = None) -> Array:
        """Return the marginal variances diag Σ, shape (N,)."""
        var = self._positive.var(work=work)
        if self._correction is not None:
            _, KW, chol_Q = self._correction
            half, _ = dtrtrs(chol_Q, KW.T, lower=1)
            var = var + np.einsum("ij,ij->j", half, half)
        return var

    def response(self, *, work: Array | None = None) -> Array:
        """Return R = (K + Λ⁻¹)⁻¹, its limit at λ = 0, shape (N, N)."""
        R = square_work_array(self.h.size, work)
        copy_lower(self._factor.chol_C, R)
        R, _ = dpotri(R, lower=1, overwrite_c=1)
        R = mirror_lower(R)
        if self._correction is not None:
            W, _, chol_Q = self._correction
            half, _ = dtrtrs(chol_Q, W.T, lower=1)
            R -= half.T @ half
        return R

    def explained(self, cross: Array) -> Array:
        """Return X R Xᵀ, the reduction of a covariance by the sites, (P, P), for X of (P, N)."""
        half, correction = self._halves(cross)
        result = half.T @ half
        return result if correction is None else result - correction.T @ correction

    def explained_var(self, cross: Array) -> Array:
        """Return the diagonal of :meth:`explained`, shape (P,)."""
        half, correction = self._halves(cross)
        result = np.einsum("ij,ij->j", half, half)
        if correction is None:
            return result
        return result - np.einsum("ij,ij->j", correction, correction)

    def explained_at(self, cross: Array, first: Index, second: Index) -> Array:
        """Return the entries of :meth:`explained` at rows ``first`` and columns ``second``."""
        half, correction = self._halves(cross)
        result = np.einsum("ij,ij->j", half[:, first], half[:, second])
        if correction is None:
            return result
        return result - np.einsum("ij,ij->j", correction[:, first], correction[:, second])

    def _halves(self, cross: Array) -> tuple[Array, Array | None]:
        half, _ = dtrtrs(self._factor.chol_C, cross.T, lower=1)
        if self._correction is None:
            return half, None
        W, _, chol_Q = self._correction
        correction, _ = dtrtrs(chol_Q, (cross @ W).T, lower=1)
        return half, correction
