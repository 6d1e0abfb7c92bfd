"""Observation space with site precisions of either sign.

Sites of a likelihood that is not log-concave may have λᵢ < 0. Let Λ₊ hold the others, E select the
k negative ones, and let the index + mark results of :mod:`.observation_space` for Λ₊ alone.
Conditioning that posterior on the other k sites is a correction of rank k,

    W = E − C⁻¹KE − P BᵀE,    V = Σ₊E = K (E − C⁻¹KE) + B BᵀE,    S = |Λ₋|⁻¹ − Eᵀ V,
    R = R₊ − W S⁻¹ Wᵀ,        Σ = Σ₊ + V S⁻¹ Vᵀ,        α = α₊ + W S⁻¹ Eᵀμ₊,
    log|I + ΛK| = log|I + Λ₊K| + log|Λ₋| + log|S|,

with α₊, μ₊ for all h under Λ₊, and of the coefficients of the border, with T = L_M⁻ᵀBᵀE,

    E[β] = E₊[β] + T S⁻¹ Eᵀμ₊,    Cov[β] = M⁻¹ + T S⁻¹ Tᵀ,    Λ Cov[η, β] = P L_M⁻¹ − W S⁻¹ Tᵀ.

A Gaussian posterior exists if and only if S is positive definite. The correction costs 2 k N²
beyond the factorisation.

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
from .sites import Rotation

__all__ = ["SignedPosterior"]


class SignedPosterior:
    """The posterior of η ~ N(0, K + H Hᵀ) given sites (h, λ), λ of either sign.

    Parameters
    ----------
    K : array, shape (N, N)
        Prior covariance, symmetric; kept by reference.
    h, lam : array, shape (N,)
        The sites.
    H : array, shape (N, p), optional
        Columns of the border.
    work : array, shape (N, N), optional
        Fortran-ordered array for the factor, which lives until that array is used again.

    Attributes
    ----------
    mean, alpha : array, shape (N,)
        μ and α = h − Λμ.
    coefficients : array, shape (p,)
        E[β].
    log_det : float
        log|I + Λ(K + H Hᵀ)|.
    log_normalizer : float
        log ∫ exp(hᵀη − ½ ηᵀΛη) N(η | 0, K + H Hᵀ) dη = ½ (hᵀμ − log_det).
    error : float
        Estimated rounding error of ``log_normalizer``.

    Raises
    ------
    NotPositiveDefiniteError
        If the negative precisions outweigh the prior, so that no Gaussian posterior exists, or a
        matrix is not positive definite in floating point.
    """

    def __init__(
        self,
        K: Array,
        h: Array,
        lam: Array,
        *,
        H: Array | None = None,
        work: Array | None = None,
    ) -> None:
        if not (np.isfinite(lam).all() and np.isfinite(h).all()):
            raise NotPositiveDefiniteError("expected finite sites, got a NaN or an infinity")
        self.K, self.h, self.lam = K, h, lam
        self._negative = np.flatnonzero(lam < 0.0)
        self.factor = observation_space.factorize(K, np.maximum(lam, 0.0), H=H, work=work)
        self._positive = observation_space.condition(self.factor, np.zeros_like(h), h)
        self.mean, self.alpha = self._positive.mean, self._positive.alpha
        self.coefficients = self._positive.coefficients
        self.log_det, self.error = self.factor.log_det, self._positive.error
        # W, V and T, each with L_S⁻ᵀ, where a precision is negative.
        self._correction: tuple[Array, Array, Array] | None = None
        if self._negative.size:
            self._correct()
        self.log_normalizer = 0.5 * (float(h @ self.mean) - self.log_det)

    def _correct(self) -> None:
        where, size = self._negative, -self.lam[self._negative]
        columns = np.asfortranarray(self.K[:, where])
        W, _ = dpotrs(self.factor.chol_C, columns, lower=1)
        W *= -1.0
        W[where, np.arange(where.size)] += 1.0
        B = self.factor.covariance_border()
        V = self.K @ W + B @ B[where].T
        W -= self.factor.response_border() @ B[where].T
        S = np.diag(1.0 / size) - V[where]
        chol_S, info = dpotrf(S, lower=1, clean=1)
        if info != 0:
            raise NotPositiveDefiniteError(
                f"{where.size} negative site precisions (the smallest {-size.max():.2e}) outweigh "
                "the prior, so that no Gaussian posterior exists; damp the update that made them"
            )
        # S is a difference: its rounding error is that of its larger term.
        self.error += dense_error(chol_S, np.maximum(np.diagonal(S), 1.0 / size))
        W, V, T = (
            dtrtrs(chol_S, X.T, lower=1)[0].T for X in (W, V, self.factor.back_solve(B[where].T))
        )
        weights, _ = dtrtrs(chol_S, self.mean[where], lower=1)
        self.alpha = self.alpha + W @ weights
        self.mean = self.mean + V @ weights
        self.coefficients = self.coefficients + T @ weights
        self.log_det += float(np.sum(np.log(size)) + 2.0 * np.log(np.diagonal(chol_S)).sum())
        self._correction = W, V, T

    def var(self, *, work: Array | None = None) -> Array:
        """Return the marginal variances diag Σ, shape (N,)."""
        var = self._positive.var(work=work)
        if self._correction is not None:
            V = self._correction[1]
            var = var + np.vecdot(V, V)
        return var

    def cov_at(self, first: Index, second: Index, rotation: Rotation) -> Array:
        """Return entries of QΣQᵀ at rows ``first`` and columns ``second``, for a rotation Q."""
        half, _ = dtrtrs(self.factor.chol_C, self.K, lower=1)
        half, K = rotation.back(half), rotation.congruence_back(self.K)
        added = [self.factor.covariance_border()]
        added += [] if self._correction is None else [self._correction[1]]
        found = K[first, second] - np.einsum("ij,ij->j", half[:, first], half[:, second])
        for X in (rotation.back(X.T).T for X in added):
            found += np.vecdot(X[first], X[second])
        return found

    def response(self, *, work: Array | None = None) -> Array:
        """Return R = (K + H Hᵀ + Λ⁻¹)⁻¹, its limit at λ = 0, shape (N, N)."""
        R = square_work_array(self.h.size, work)
        copy_lower(self.factor.chol_C, R)
        R, _ = dpotri(R, lower=1, overwrite_c=1)
        R = mirror_lower(R)
        for X in self._subtracted:
            R -= X @ X.T
        return R

    @property
    def _subtracted(self) -> list[Array]:
        """Factors X with R = C⁻¹ − Σ X Xᵀ."""
        found = [self.factor.response_border()] if self.factor.H.size else []
        return found if self._correction is None else [*found, self._correction[0]]

    def explained(self, cross: Array) -> Array:
        """Return X R Xᵀ, the reduction of a covariance by the sites, (P, P), for X of (P, N)."""
        half, _ = dtrtrs(self.factor.chol_C, cross.T, lower=1)
        result = half.T @ half
        for X in self._subtracted:
            own = cross @ X
            result -= own @ own.T
        return result

    def explained_var(self, cross: Array) -> Array:
        """Return the diagonal of :meth:`explained`, shape (P,)."""
        half, _ = dtrtrs(self.factor.chol_C, cross.T, lower=1)
        result = np.einsum("ij,ij->j", half, half)
        for X in self._subtracted:
            own = cross @ X
            result -= np.vecdot(own, own)
        return result

    def coefficients_cov(self) -> Array:
        """Return Cov[β], shape (p, p)."""
        halves = [self.factor.back_solve(np.eye(self.coefficients.size))]
        halves += [] if self._correction is None else [self._correction[2]]
        return np.sum([X @ X.T for X in halves], axis=0)

    def weighted_coefficients_cov(self) -> Array:
        """Return Λ Cov[η, β], shape (N, p)."""
        found = self.factor.back_solve(self.factor.response_border().T).T
        if self._correction is None:
            return found
        W, _, T = self._correction
        return found - W @ T.T
