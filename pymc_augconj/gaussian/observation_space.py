"""Conditioning N predictors on their sites with one N × N Cholesky factorisation.

Prior η ~ N(m, K), sites exp(hᵢ ηᵢ − ½ λᵢ ηᵢ²) with λ ≥ 0. With Λ = diag(λ) and C = K + Λ⁻¹,

    r = h − Λ m,        α = (I + ΛK)⁻¹ r = C⁻¹ Λ⁻¹ r,        R = (K + Λ⁻¹)⁻¹ = C⁻¹,

    μ = m + K α,        Σ = K − K R K,
    log Z = hᵀm − ½ mᵀΛm − ½ log|I + ΛK| + ½ rᵀKα,

    ∂log Z/∂m = α,      ∂log Z/∂K = ½ (α αᵀ − R),
    ∂log Z/∂h = μ,      ∂log Z/∂λ = −½ (diag Σ + μ²).

C is as stable as the textbook's B = I + Λ^½ K Λ^½ (Rasmussen & Williams 2006, alg. 3.1): they
differ by a diagonal scaling, under which the rounding errors of a Cholesky factorisation do not
change (Higham 2002, section 10.1). Forming C takes a copy and N additions, where B takes two
multiplications for each entry; and α needs neither a product with K nor the subtraction by which B
loses digits when λK is large. B also allows λᵢ = 0, see :data:`SMALLEST_PRECISION`.

Coefficients β ~ N(0, I) with columns H, η = m + f + Hβ, are a *border* of C: K is the covariance of
f alone, so that wide ones bring no large numbers into it. With C = L Lᵀ and H̃ = L⁻¹H,

    M = I + H̃ᵀH̃ = L_M L_Mᵀ,        Q = H̃ L_M⁻ᵀ,        P = L⁻ᵀQ,        B = H L_M⁻ᵀ − K P,
    R = L⁻ᵀ (I − Q Qᵀ) L⁻¹,        Σ = K − K C⁻¹K + B Bᵀ,        μ = m + K α + H E[β],
    E[β] = L_M⁻ᵀ Qᵀ L⁻¹ Λ⁻¹ r,        Cov[β] = M⁻¹,        Cov[β, η] = L_M⁻ᵀ Bᵀ,

and log|M| is added to log|I + ΛK|. Scaling a column of H scales its row and column of M, and leaves
the rounding errors of all the rest as they are.

References
----------
Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, section 3.4.3.
Higham (2002), Accuracy and Stability of Numerical Algorithms, 2nd ed.
Wilson et al. (2020), Efficiently sampling functions from Gaussian process posteriors.
Doucet (2010), A note on efficient conditional simulation of Gaussian distributions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg.blas import dsyr, dsyrk, dtrsm, dtrsv
from scipy.linalg.lapack import dpotrf, dpotri, dtrtrs

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.blas import (
    copy_lower,
    diagonal_view,
    lower_column_norms,
    lower_inverse,
    mirror_lower,
    square_work_array,
    symmetric_product,
)
from pymc_augconj.linalg.rounding import EPS, dense_error
from pymc_augconj.typing import Array

from . import weight_space

__all__ = [
    "ObservationSpaceFactor",
    "ObservationSpacePosterior",
    "condition",
    "factorize",
    "matheron_weights",
]


# A precision λ acts through λK; below this value (6e-61) that product is far under the rounding
# unit for any K of less than 1e40, so a smaller λ, zero included, gives the same floating-point
# result. A power of four, so that dividing by it or by its root is exact.
SMALLEST_PRECISION = 2.0**-200

# Below this fraction of 1/λ a posterior variance is taken from K − K R K, see `var`.
SMALLEST_RELATIVE_VAR = 1e-4


@dataclass(frozen=True, slots=True)
class ObservationSpaceFactor:
    """The Cholesky factors of C = K + Λ⁻¹ and of its border, with K and Λ.

    Attributes
    ----------
    K : array, shape (N, N)
        Prior covariance of η, symmetric; kept by reference.
    lam : array, shape (N,)
        Site precisions, at least `SMALLEST_PRECISION`.
    chol_C : array, shape (N, N)
        The factor in the lower triangle; the upper one is meaningless. It is the `work` array
        of :func:`factorize`, so the factor lives until that array is used again.
    log_det : float
        log|I + Λ(K + H Hᵀ)|.
    prior_var, diagonal : array, shape (N,)
        Diagonals of K and of C.
    error : float
        Estimated rounding error of ½ `log_det`.
    H, Q : array, shape (N, p)
    chol_M : array, shape (p, p)
        The factor in the lower triangle.
    """

    K: Array
    lam: Array
    chol_C: Array
    log_det: float
    prior_var: Array
    diagonal: Array
    error: float
    H: Array
    Q: Array
    chol_M: Array

    def right_solve(self, X: Array) -> Array:
        """Return X L_M⁻ᵀ for X of shape (rows, p)."""
        return dtrsm(1.0, self.chol_M, X.T, lower=1).T if X.size else X

    def back_solve(self, X: Array) -> Array:
        """Return L_M⁻ᵀ X for X of shape (p, columns)."""
        return dtrsm(1.0, self.chol_M, X, lower=1, trans_a=1) if X.size else X

    def half_solve(self, x: Array) -> Array:
        """Return L_M⁻¹ x."""
        return dtrsv(self.chol_M, x, lower=1) if x.size else x

    def response_border(self) -> Array:
        """Return P, for which R = C⁻¹ − P Pᵀ, shape (N, p)."""
        Q = self.Q
        return dtrsm(1.0, self.chol_C, Q, lower=1, trans_a=1) if Q.size else Q

    def covariance_border(self) -> Array:
        """Return B, shape (N, p)."""
        return self.right_solve(self.H) - self.K @ self.response_border()


@dataclass(frozen=True, slots=True)
class ObservationSpacePosterior:
    """The Gaussian posterior of η given its sites.

    Attributes
    ----------
    factor : ObservationSpaceFactor
    mean : array, shape (N,)
        μ = E[η].
    alpha : array, shape (N,)
        α = K⁻¹(μ − m) = h − Λμ, also the derivative of `log_normalizer` by the prior mean.
    coefficients : array, shape (p,)
        E[β].
    log_normalizer : float
        log ∫ exp(hᵀη − ½ ηᵀΛη) N(η | m, K + H Hᵀ) dη.
    error : float
        Estimated rounding error of `log_normalizer`.
    """

    factor: ObservationSpaceFactor
    mean: Array
    alpha: Array
    coefficients: Array
    log_normalizer: float
    error: float

    def var(self, *, work: Array | None = None) -> Array:
        """Return the marginal variances diag Σ, shape (N,); `work` is (N, N), Fortran-ordered.

        R = C⁻¹ gives Σᵢᵢ = (1 − Rᵢᵢ/λᵢ)/λᵢ from the inverse of the triangular factor alone, a
        third of the work of K − K R K. Where λᵢΣᵢᵢ ≪ 1 the subtraction loses digits, and the
        variance comes from K − K R K.
        """
        factor = self.factor
        lam, chol_C, K, P = factor.lam, factor.chol_C, factor.K, factor.response_border()
        response = lower_column_norms(lower_inverse(chol_C, work)) - np.vecdot(P, P)
        relative = 1.0 - response / lam
        var = relative / lam
        weak = relative < SMALLEST_RELATIVE_VAR
        if weak.any():
            half, _ = dtrtrs(chol_C, K[:, weak], lower=1)
            B = factor.covariance_border()[weak]
            explained = np.einsum("ij,ij->j", half, half)
            var[weak] = np.diagonal(K)[weak] - explained + np.vecdot(B, B)
        return var

    def cov(self) -> Array:
        """Return the posterior covariance Σ, shape (N, N)."""
        factor = self.factor
        half, _ = dtrtrs(factor.chol_C, factor.K, lower=1)
        B = factor.covariance_border()
        return np.asarray(factor.K - half.T @ half + B @ B.T)

    def gradient_wrt_cov(self, *, work: Array | None = None) -> Array:
        """Return G = ½ (α αᵀ − R), the derivative of `log_normalizer` by K, shape (N, N).

        G is symmetric: d log Z = Σᵢⱼ Gᵢⱼ dKᵢⱼ for symmetric dK. It overwrites `work` if given.
        """
        G = square_work_array(self.mean.size, work)
        copy_lower(self.factor.chol_C, G)
        G, _ = dpotri(G, lower=1, overwrite_c=1)
        P = self.factor.response_border()
        if P.size:
            G = dsyrk(-1.0, P, beta=1.0, c=G, lower=1, overwrite_c=1)
        G = mirror_lower(dsyr(-1.0, self.alpha, a=G, lower=1, overwrite_a=1))
        G *= -0.5
        return G


def factorize(
    K: Array, lam: Array, *, H: Array | None = None, work: Array | None = None
) -> ObservationSpaceFactor:
    """Factorise C = K + Λ⁻¹, and its border.

    Parameters
    ----------
    K : array, shape (N, N)
        Symmetric prior covariance of η, both triangles filled; fastest if Fortran- or C-ordered.
        It may be singular.
    lam : array, shape (N,)
        Site precisions, λ ≥ 0 and finite. For negative ones use :mod:`.weight_space` with
        Φ = chol(K).
    H : array, shape (N, p), optional
        Columns of coefficients β ~ N(0, I) whose covariance H Hᵀ is not part of K.
    work : array, shape (N, N), optional
        Fortran-ordered array to write the factor to. Reuse it from step to step, as
        allocation dominates for small N.

    Returns
    -------
    ObservationSpaceFactor

    Raises
    ------
    NotPositiveDefiniteError
        If a precision is negative, NaN or infinite, or C has no Cholesky factor: K is not finite or
        not positive semi-definite, or λK exceeds about 1e15, beyond what float64 resolves.
    """
    smallest, largest = lam.min(), lam.max()
    if not (smallest >= 0.0 and largest < np.inf):
        raise NotPositiveDefiniteError(
            f"expected finite site precisions lam ≥ 0, got values from {smallest} to {largest}; "
            "for negative ones use weight_space.factorize with Phi = chol(K)"
        )
    if smallest < SMALLEST_PRECISION:
        lam = np.maximum(lam, SMALLEST_PRECISION)
    chol_C = square_work_array(lam.size, work)
    # A C-ordered symmetric K is the Fortran-ordered K.T; either way the copy is contiguous.
    copy_lower(K if K.flags.f_contiguous else K.T, chol_C)
    prior_var = diagonal_view(chol_C).copy()
    diagonal_view(chol_C)[...] += 1.0 / lam
    diagonal = diagonal_view(chol_C).copy()
    chol_C, info = dpotrf(chol_C, lower=1, clean=0, overwrite_a=1)
    # log|I + ΛK| = log|Λ| + log|C|, multiplied before the logarithm so that a tiny λ cancels.
    log_det = 2.0 * float(np.log(np.sqrt(lam) * diagonal_view(chol_C)).sum()) if info == 0 else 0.0
    if info != 0 or not np.isfinite(log_det):
        raise NotPositiveDefiniteError(
            f"K + 1/lam has no Cholesky factor (LAPACK info {info}, lam from {smallest:.2e} to "
            f"{largest:.2e}): expected K finite and positive semi-definite with lam * K below "
            "about 1e15; check the kernel's hyperparameters, or factorise K with "
            "cholesky_with_jitter and add the jitter it reports"
        )
    error = 0.5 * dense_error(chol_C, diagonal)
    if H is None:
        H = np.empty((lam.size, 0))
    Q, chol_M, more, of_border = _border(chol_C, H, lam)
    return ObservationSpaceFactor(
        K, lam, chol_C, log_det + more, prior_var, diagonal, error + of_border, H, Q, chol_M
    )


def _border(chol_C: Array, H: Array, lam: Array) -> tuple[Array, Array, float, float]:
    """Return Q, L_M, log|M| and the estimated rounding error of half of it."""
    if not H.size:
        return H, np.empty((0, 0)), 0.0, 0.0
    if H.shape[1] == 1:
        # An intercept alone is frequent, and call overhead dominates; M is then its own scale.
        half = dtrsv(chol_C, H[:, 0], lower=1)
        pivot = math.sqrt(1.0 + float(half @ half))
        if pivot < math.inf:
            return (half / pivot)[:, None], np.array([[pivot]]), 2.0 * math.log(pivot), EPS
    half = dtrsm(1.0, chol_C, H, lower=1)
    M = dsyrk(1.0, half, trans=1, lower=1)
    diagonal_view(M)[...] += 1.0
    chol_M, log_det, error, _ = weight_space.cholesky(M, lam)
    Q = dtrsm(1.0, chol_M, half, side=1, lower=1, trans_a=1, overwrite_b=1)
    return Q, chol_M, log_det, 0.5 * error


def condition(factor: ObservationSpaceFactor, m: Array, h: Array) -> ObservationSpacePosterior:
    """Return the posterior of η ~ N(m, K) given the sites (h, λ), in O(N²) from the factor.

    Parameters
    ----------
    factor : ObservationSpaceFactor
        From :func:`factorize`.
    m : array, shape (N,)
        Prior mean of η.
    h : array, shape (N,)
        Linear coefficients of the sites.

    Returns
    -------
    ObservationSpacePosterior
    """
    r = h - factor.lam * m
    half = dtrsv(factor.chol_C, r / factor.lam, lower=1, overwrite_x=1)
    coefficients = half[:0]
    if factor.H.size:
        projected = half @ factor.Q
        half -= factor.Q @ projected
        coefficients = dtrsv(factor.chol_M, projected, lower=1, trans=1, overwrite_x=1)
    alpha = dtrsv(factor.chol_C, half, lower=1, trans=1, overwrite_x=1)
    shift = symmetric_product(factor.K, alpha) + factor.H @ coefficients
    # hᵀm − ½ mᵀΛm = ½ mᵀ(h + r)
    log_normalizer = 0.5 * float(m @ (h + r) + r @ shift - factor.log_det)
    error = factor.error + _quadratic_error(factor, r - alpha, alpha)
    if coefficients.size > 1:
        # Of nearly equal columns, coefficients are large and cancel: ½ βᵀ ΔM β.
        diagonal = np.einsum("ij,ij->i", np.tril(factor.chol_M), np.tril(factor.chol_M))
        error += 0.5 * EPS * math.sqrt(coefficients.size) * float(coefficients**2 @ diagonal)
    return ObservationSpacePosterior(factor, m + shift, alpha, coefficients, log_normalizer, error)


def _quadratic_error(factor: ObservationSpaceFactor, pull: Array, alpha: Array) -> float:
    """Return the estimated rounding error of ½ rᵀKα.

    It changes by ½ (r − α)ᵀ ΔC α, with |ΔCᵢᵢ| ≤ ε Cᵢᵢ and |ΔCᵢⱼ| ≤ ε √(Kᵢᵢ Kⱼⱼ) of random signs.
    """
    own = float(np.abs(pull * alpha) @ factor.diagonal)
    product = float(pull**2 @ factor.prior_var) * float(alpha**2 @ factor.prior_var)
    return 0.5 * EPS * (own + math.sqrt(alpha.size * product))


def matheron_weights(factor: ObservationSpaceFactor, h: Array, eta0: Array, eps: Array) -> Array:
    """Return the weights w of an exact posterior draw η = η₀ + K w, given a prior draw η₀.

    w = (I + ΛK)⁻¹ r₀,        r₀ = h − Λη₀ − Λ^½ ε,

    that is, the prior draw is corrected by the posterior mean's response to the difference
    between the pseudo-observations h/λ and their simulated counterparts η₀ + ε/√λ.

    Parameters
    ----------
    factor : ObservationSpaceFactor
        From :func:`factorize`.
    h : array, shape (N,)
        Linear coefficients of the sites.
    eta0 : array, shape (N,) or (count, N)
        A draw from the prior N(m, K), or several; where there is a border, plus H times a draw of
        its coefficients from their posterior.
    eps : array, of the same shape
        Standard normal draws, independent of `eta0`.

    Returns
    -------
    array, of the same shape
        Weights w. Where η₀ = m + Σ_b A_b u₀_b with u₀_b ~ N(·, K_b), the joint posterior draw of
        the blocks is u_b = u₀_b + K_b A_bᵀ w; for a whitened block, with v₀ = ξ, u₀ = L ξ, it is
        v = ξ + Lᵀ A_bᵀ w.
    """
    lam = factor.lam
    return _solve(factor, (h - lam * eta0 - np.sqrt(lam) * eps) / lam)


def _solve(factor: ObservationSpaceFactor, x: Array) -> Array:
    """Return C⁻¹ x, of each row of x where there are several, overwriting x."""
    if x.ndim == 2:
        half = dtrsm(1.0, factor.chol_C, x.T, lower=1, overwrite_b=1)
        return dtrsm(1.0, factor.chol_C, half, lower=1, trans_a=1, overwrite_b=1).T
    # Two dtrsv take a fifth of the time of one dpotrs.
    half = dtrsv(factor.chol_C, x, lower=1, overwrite_x=1)
    return dtrsv(factor.chol_C, half, lower=1, trans=1, overwrite_x=1)
