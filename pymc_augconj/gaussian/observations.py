"""Conditioning N predictors on their sites with one N × N Cholesky factorisation.

Prior η ~ N(0, K), sites exp(hᵢ ηᵢ − ½ λᵢ ηᵢ²). For λ ≥ 0, Λ = diag(λ) and C = K + Λ⁻¹ = L Lᵀ,

    α = (I + ΛK)⁻¹ h = C⁻¹ Λ⁻¹ h,        R = C⁻¹,        μ = K α,        Σ = K − K R K,
    log Z = ½ hᵀKα − ½ log|I + ΛK|,        ∂log Z/∂K = ½ (α αᵀ − R).

C is as stable as the textbook's I + Λ^½ K Λ^½ (Rasmussen & Williams 2006, algorithm 3.1), of which
it is a diagonal scaling (Higham 2002, section 10.1), and α loses no digits where λK is large.

Coefficients β ~ N(0, I) with columns H, η = f + Hβ, are a *border* of C: K is the covariance of f
alone, so that wide ones bring no large numbers into it. With H̃ = L⁻¹H,

    M = I + H̃ᵀH̃ = L_M L_Mᵀ,        Q = H̃ L_M⁻ᵀ,        P = L⁻ᵀQ,        B = H L_M⁻ᵀ − K P,
    R = L⁻ᵀ (I − Q Qᵀ) L⁻¹,        Σ = K − K C⁻¹K + B Bᵀ,        μ = K α + H E[β],
    E[β] = L_M⁻ᵀ Qᵀ L⁻¹ Λ⁻¹ h,        Cov[β] = M⁻¹,        Cov[β, η] = L_M⁻ᵀ Bᵀ,

and log|M| is added to log|I + ΛK|.

Sites of a likelihood that is not log-concave may have λᵢ < 0. Let Λ₊ hold the others, E select the
k negative ones, and the index + mark results for Λ₊ alone (α₊ and μ₊ for all h). Conditioning on
the other k sites is a correction of rank k, at 2 k N² multiplications,

    W = E − C⁻¹KE − P BᵀE,    V = Σ₊E = K (E − C⁻¹KE) + B BᵀE,    S = |Λ₋|⁻¹ − Eᵀ V,
    R = R₊ − W S⁻¹ Wᵀ,        Σ = Σ₊ + V S⁻¹ Vᵀ,        α = α₊ + W S⁻¹ Eᵀμ₊,
    log|I + ΛK| = log|I + Λ₊K| + log|Λ₋| + log|S|,

and of the coefficients of the border, with T = L_M⁻ᵀBᵀE,

    E[β] = E₊[β] + T S⁻¹ Eᵀμ₊,    Cov[β] = M⁻¹ + T S⁻¹ Tᵀ,    Λ Cov[η, β] = P L_M⁻¹ − W S⁻¹ Tᵀ.

A Gaussian posterior exists if and only if S is positive definite.

References
----------
Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, sections 3.4.3 and A.3.
Higham (2002), Accuracy and Stability of Numerical Algorithms, 2nd ed.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg.blas import dsyrk, dtrsm, dtrsv
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs, dtrtrs

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.dense import (
    EPS,
    copy_lower,
    dense_error,
    diagonal_view,
    lower_column_norms,
    lower_inverse,
    mirror_lower,
    square_work_array,
    symmetric_product,
)
from pymc_augconj.typing import Array, Index

from .sites import Rotation, cholesky

# A precision λ acts through λK; below this value (6e-61) that product is far under the rounding
# unit for any K of less than 1e40, so a smaller λ, zero included, gives the same floating-point
# result. A power of four, so that dividing by it or by its root is exact.
SMALLEST_PRECISION = 2.0**-200

# Below this fraction of 1/λ a posterior variance is taken from K − K R K, see `var`.
SMALLEST_RELATIVE_VAR = 1e-4


class ConditionedPredictors:
    """The posterior of η ~ N(0, K + H Hᵀ) given sites (h, λ), λ of either sign.

    K, (N, N), is symmetric, perhaps singular, and kept by reference; H, (N, p), has the columns of
    the border. The factor lives in ``work``, (N, N) and Fortran-ordered, until that is used again.
    ``mean``, ``alpha`` and ``coefficients`` are μ, α = h − Λμ and E[β]. ``log_det`` is
    log|I + Λ(K + H Hᵀ)|, ``log_normalizer`` log ∫ exp(hᵀη − ½ ηᵀΛη) N(η | 0, K + H Hᵀ) dη; their
    estimated rounding errors are 2 ``factor_error`` and ``error``.

    Raises NotPositiveDefiniteError if the negative precisions outweigh the prior, or a number is
    not finite, or C has no Cholesky factor: K is not positive semi-definite, or λK exceeds about
    1e15.
    """

    def __init__(
        self, K: Array, h: Array, lam: Array, *, H: Array | None = None, work: Array | None = None
    ) -> None:
        smallest, largest = lam.min(), lam.max()
        if not (-np.inf < smallest and largest < np.inf and np.isfinite(h).all()):
            raise NotPositiveDefiniteError("expected finite sites, got a NaN or an infinity")
        self.K, self.is_signed = K, bool(smallest < 0.0)
        self.precision = np.maximum(lam, SMALLEST_PRECISION)
        self.H = np.empty((lam.size, 0)) if H is None else H
        self._factorize(square_work_array(lam.size, work))
        self._factorize_border()
        self._condition(h)
        # W, V and T, each with L_S⁻ᵀ, where a precision is negative.
        self._correction: tuple[Array, Array, Array] | None = None
        if self.is_signed:
            self._correct(np.flatnonzero(lam < 0.0), lam)
        self.log_normalizer = 0.5 * (float(h @ self.mean) - self.log_det)

    def _factorize(self, C: Array) -> None:
        K, lam = self.K, self.precision
        # A C-ordered symmetric K is the Fortran-ordered K.T; either way the copy is contiguous.
        copy_lower(K if K.flags.f_contiguous else K.T, C)
        self._prior_var = diagonal_view(C).copy()
        diagonal_view(C)[...] += 1.0 / lam
        self._diagonal = diagonal_view(C).copy()
        self.chol_C, info = dpotrf(C, lower=1, clean=0, overwrite_a=1)
        pivots = diagonal_view(self.chol_C)
        # log|I + ΛK| = log|Λ| + log|C|, multiplied before the logarithm so that a tiny λ cancels.
        self.log_det = 2.0 * float(np.log(np.sqrt(lam) * pivots).sum()) if info == 0 else 0.0
        if info != 0 or not np.isfinite(self.log_det):
            raise NotPositiveDefiniteError(
                f"K + 1/lam has no Cholesky factor (LAPACK info {info}, lam from {lam.min():.2e} "
                f"to {lam.max():.2e}): expected K finite and positive semi-definite with lam * K "
                "below about 1e15; check the kernel's hyperparameters, or factorise K with "
                "cholesky_with_jitter and add the jitter it reports"
            )
        self.factor_error = 0.5 * dense_error(self.chol_C, self._diagonal)

    def _factorize_border(self) -> None:
        H = self.H
        if not H.size:
            self._Q, self.chol_M = H, np.empty((0, 0))
            return
        if H.shape[1] == 1:
            # An intercept alone is frequent, and call overhead dominates; M is then its own scale.
            column = dtrsv(self.chol_C, H[:, 0], lower=1)
            pivot = math.sqrt(1.0 + float(column @ column))
            if pivot < math.inf:
                self._Q, self.chol_M = (column / pivot)[:, None], np.array([[pivot]])
                self.log_det += 2.0 * math.log(pivot)
                self.factor_error += EPS
                return
        half = dtrsm(1.0, self.chol_C, H, lower=1)
        M = dsyrk(1.0, half, trans=1, lower=1)
        diagonal_view(M)[...] += 1.0
        self.chol_M, log_det, error, _ = cholesky(M, self.precision)
        self._Q = dtrsm(1.0, self.chol_M, half, side=1, lower=1, trans_a=1, overwrite_b=1)
        self.log_det += log_det
        self.factor_error += 0.5 * error

    def _condition(self, h: Array) -> None:
        half = dtrsv(self.chol_C, h / self.precision, lower=1, overwrite_x=1)
        self.coefficients = half[:0]
        if self.H.size:
            projected = half @ self._Q
            half -= self._Q @ projected
            self.coefficients = dtrsv(self.chol_M, projected, lower=1, trans=1, overwrite_x=1)
        self.alpha = dtrsv(self.chol_C, half, lower=1, trans=1, overwrite_x=1)
        self.mean = symmetric_product(self.K, self.alpha) + self.H @ self.coefficients
        self.error = self.factor_error + self._quadratic_error(h - self.alpha)
        if self.coefficients.size > 1:
            # Of nearly equal columns, coefficients are large and cancel: ½ βᵀ ΔM β.
            diagonal = np.einsum("ij,ij->i", np.tril(self.chol_M), np.tril(self.chol_M))
            square = float(self.coefficients**2 @ diagonal)
            self.error += 0.5 * EPS * math.sqrt(self.coefficients.size) * square

    def _quadratic_error(self, pull: Array) -> float:
        """Return the estimated rounding error of ½ hᵀKα, given h − α.

        It changes by ½ (h − α)ᵀ ΔC α, with |ΔCᵢᵢ| ≤ ε Cᵢᵢ and |ΔCᵢⱼ| ≤ ε √(Kᵢᵢ Kⱼⱼ) of random
        signs.
        """
        alpha = self.alpha
        own = float(np.abs(pull * alpha) @ self._diagonal)
        product = float(pull**2 @ self._prior_var) * float(alpha**2 @ self._prior_var)
        return 0.5 * EPS * (own + math.sqrt(alpha.size * product))

    def _correct(self, where: Index, lam: Array) -> None:
        """Condition on the sites ``where`` λ is negative."""
        size = -lam[where]
        columns = np.asfortranarray(self.K[:, where])
        W, _ = dpotrs(self.chol_C, columns, lower=1)
        W *= -1.0
        W[where, np.arange(where.size)] += 1.0
        B = self._covariance_border()
        V = self.K @ W + B @ B[where].T
        W -= self._response_border() @ B[where].T
        S = np.diag(1.0 / size) - V[where]
        chol_S, info = dpotrf(S, lower=1, clean=1)
        if info != 0:
            raise NotPositiveDefiniteError(
                f"{where.size} negative site precisions (the smallest {-size.max():.2e}) outweigh "
                "the prior, so that no Gaussian posterior exists; damp the update that made them"
            )
        # S is a difference: its rounding error is that of its larger term.
        self.error += dense_error(chol_S, np.maximum(np.diagonal(S), 1.0 / size))
        T = self.back_solve(B[where].T)
        W, V, T = (dtrtrs(chol_S, X.T, lower=1)[0].T for X in (W, V, T))
        weights, _ = dtrtrs(chol_S, self.mean[where], lower=1)
        self.alpha = self.alpha + W @ weights
        self.mean = self.mean + V @ weights
        self.coefficients = self.coefficients + T @ weights
        self.log_det += float(np.sum(np.log(size)) + 2.0 * np.log(np.diagonal(chol_S)).sum())
        self._correction = W, V, T

    # -- products with the factors ----------------------------------------------------------------

    def solve(self, x: Array) -> Array:
        """Return C⁻¹ x, of each row of x where there are several, overwriting x."""
        if x.ndim == 2:
            half = dtrsm(1.0, self.chol_C, x.T, lower=1, overwrite_b=1)
            return dtrsm(1.0, self.chol_C, half, lower=1, trans_a=1, overwrite_b=1).T
        # Two dtrsv take a fifth of the time of one dpotrs.
        half = dtrsv(self.chol_C, x, lower=1, overwrite_x=1)
        return dtrsv(self.chol_C, half, lower=1, trans=1, overwrite_x=1)

    def half_solve(self, x: Array) -> Array:
        """Return L_M⁻¹ x for x of shape (p,) or (p, columns)."""
        if not x.size:
            return x
        return (
            dtrsv(self.chol_M, x, lower=1) if x.ndim == 1 else dtrsm(1.0, self.chol_M, x, lower=1)
        )

    def back_solve(self, X: Array) -> Array:
        """Return L_M⁻ᵀ X for X of shape (p, columns)."""
        return dtrsm(1.0, self.chol_M, X, lower=1, trans_a=1) if X.size else X

    def _response_border(self) -> Array:
        """Return P, shape (N, p)."""
        return dtrsm(1.0, self.chol_C, self._Q, lower=1, trans_a=1) if self._Q.size else self._Q

    def _covariance_border(self) -> Array:
        """Return B, shape (N, p)."""
        return self.half_solve(self.H.T).T - self.K @ self._response_border()

    # -- moments ----------------------------------------------------------------------------------

    def var(self, *, work: Array | None = None) -> Array:
        """Return the marginal variances diag Σ, shape (N,); `work` is (N, N), Fortran-ordered.

        R = C⁻¹ gives Σᵢᵢ = (1 − Rᵢᵢ/λᵢ)/λᵢ from the inverse of the triangular factor alone, a
        third of the work of K − K R K. Where λᵢΣᵢᵢ ≪ 1 the subtraction loses digits, and the
        variance comes from K − K R K.
        """
        lam, P = self.precision, self._response_border()
        response = lower_column_norms(lower_inverse(self.chol_C, work)) - np.vecdot(P, P)
        relative = 1.0 - response / lam
        var = relative / lam
        weak = relative < SMALLEST_RELATIVE_VAR
        if weak.any():
            half, _ = dtrtrs(self.chol_C, self.K[:, weak], lower=1)
            B = self._covariance_border()[weak]
            explained = np.einsum("ij,ij->j", half, half)
            var[weak] = np.diagonal(self.K)[weak] - explained + np.vecdot(B, B)
        if self._correction is not None:
            V = self._correction[1]
            var = var + np.vecdot(V, V)
        return var

    def cov_at(self, first: Index, second: Index, K: Array, H: Array, rotation: Rotation) -> Array:
        """Return entries of Cov(η) at rows ``first`` and columns ``second``.

        The prior covariance of η is K + H Hᵀ; conditioned are its coordinates Qᵀη.
        """
        cross = rotation.forward(K)
        half, _ = dtrtrs(self.chol_C, cross.T, lower=1)
        X = self.half_solve(H.T).T - cross @ self._response_border()
        if self._correction is not None:
            X = np.hstack([X, rotation.back(self._correction[1].T).T])
        explained = np.einsum("ij,ij->j", half[:, first], half[:, second])
        return np.asarray(K[first, second] - explained + np.vecdot(X[first], X[second]))

    def response(self) -> Array:
        """Return R = (K + H Hᵀ + Λ⁻¹)⁻¹, its limit at λ = 0, shape (N, N)."""
        R = square_work_array(self.mean.size)
        copy_lower(self.chol_C, R)
        R, _ = dpotri(R, lower=1, overwrite_c=1)
        R, X = mirror_lower(R), self._subtracted
        if X.size:
            R -= X @ X.T
        return R

    @property
    def _subtracted(self) -> Array:
        """X with R = C⁻¹ − X Xᵀ, shape (N, number of columns)."""
        P = self._response_border()
        return P if self._correction is None else np.hstack([P, self._correction[0]])

    def _halves(self, cross: Array) -> tuple[Array, Array]:
        """Return Y and Z with X R Xᵀ = Y Yᵀ − Z Zᵀ."""
        half, _ = dtrtrs(self.chol_C, cross.T, lower=1)
        return half.T, cross @ self._subtracted

    def explained(self, cross: Array) -> Array:
        """Return X R Xᵀ, the reduction of a covariance by the sites, (P, P), for X of (P, N)."""
        Y, Z = self._halves(cross)
        return Y @ Y.T - Z @ Z.T

    def explained_var(self, cross: Array) -> Array:
        """Return the diagonal of :meth:`explained`, shape (P,)."""
        Y, Z = self._halves(cross)
        return np.vecdot(Y, Y) - np.vecdot(Z, Z)

    def coefficients_cov(self) -> Array:
        """Return Cov[β], shape (p, p)."""
        half = self.back_solve(np.eye(self.coefficients.size))
        cov = half @ half.T
        return (
            cov if self._correction is None else cov + self._correction[2] @ self._correction[2].T
        )

    def weighted_coefficients_cov(self) -> Array:
        """Return Λ Cov[η, β], shape (N, p)."""
        found = self.back_solve(self._response_border().T).T
        if self._correction is None:
            return found
        W, _, T = self._correction
        return found - W @ T.T
