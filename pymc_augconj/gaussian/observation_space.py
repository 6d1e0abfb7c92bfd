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
    """The Cholesky factor of C = K + Λ⁻¹, with K and Λ.

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
        log|I + ΛK|.
    prior_var, diagonal : array, shape (N,)
        Diagonals of K and of C.
    error : float
        Estimated rounding error of ½ `log_det`.
    """

    K: Array
    lam: Array
    chol_C: Array
    log_det: float
    prior_var: Array
    diagonal: Array
    error: float


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
    log_normalizer : float
        log ∫ exp(hᵀη − ½ ηᵀΛη) N(η | m, K) dη.
    error : float
        Estimated rounding error of `log_normalizer`.
    """

    factor: ObservationSpaceFactor
    mean: Array
    alpha: Array
    log_normalizer: float
    error: float

    def var(self, *, work: Array | None = None) -> Array:
        """Return the marginal variances diag Σ, shape (N,); `work` is (N, N), Fortran-ordered.

        R = C⁻¹ gives Σᵢᵢ = (1 − Rᵢᵢ/λᵢ)/λᵢ from the inverse of the triangular factor alone, a
        third of the work of K − K R K. Where λᵢΣᵢᵢ ≪ 1 the subtraction loses digits, and the
        variance comes from K − K R K.
        """
        lam, chol_C, K = self.factor.lam, self.factor.chol_C, self.factor.K
        relative = 1.0 - lower_column_norms(lower_inverse(chol_C, work)) / lam
        var = relative / lam
        weak = relative < SMALLEST_RELATIVE_VAR
        if weak.any():
            half, _ = dtrtrs(chol_C, K[:, weak], lower=1)
            var[weak] = np.diagonal(K)[weak] - np.einsum("ij,ij->j", half, half)
        return var

    def cov(self) -> Array:
        """Return the posterior covariance Σ = K − K R K, shape (N, N)."""
        return self._conditional_cov(self.factor.K, self.factor.K)

    def gradient_wrt_cov(self, *, work: Array | None = None) -> Array:
        """Return G = ½ (α αᵀ − R), the derivative of `log_normalizer` by K, shape (N, N).

        G is symmetric: d log Z = Σᵢⱼ Gᵢⱼ dKᵢⱼ for symmetric dK. It overwrites `work` if given.
        """
        G = square_work_array(self.mean.size, work)
        copy_lower(self.factor.chol_C, G)
        G, _ = dpotri(G, lower=1, overwrite_c=1)
        G = mirror_lower(dsyr(-1.0, self.alpha, a=G, lower=1, overwrite_a=1))
        G *= -0.5
        return G

    def predict(self, K_cross: Array, m_new: Array, K_new: Array) -> tuple[Array, Array]:
        """Return mean and (co)variance of predictors η* at new inputs.

        E[η*] = m* + K*ᵀα,        cov[η*] = K** − K*ᵀ R K*.

        Parameters
        ----------
        K_cross : array, shape (N, M)
            Prior covariance of η with η*.
        m_new : array, shape (M,)
            Prior mean of η*.
        K_new : array, shape (M,) or (M, M)
            Prior variances of η*, or its prior covariance.

        Returns
        -------
        mean : array, shape (M,)
        var or cov : array, of the shape of `K_new`
        """
        return m_new + K_cross.T @ self.alpha, self._conditional_cov(K_cross, K_new)

    def _conditional_cov(self, K_cross: Array, K_new: Array) -> Array:
        half, _ = dtrtrs(self.factor.chol_C, K_cross, lower=1)
        if K_new.ndim == 1:
            return K_new - np.einsum("ij,ij->j", half, half)
        cov = np.array(K_new, order="F")
        return mirror_lower(dsyrk(-1.0, half, beta=1.0, c=cov, trans=1, lower=1, overwrite_c=1))


def factorize(K: Array, lam: Array, *, work: Array | None = None) -> ObservationSpaceFactor:
    """Factorise C = K + Λ⁻¹.

    Parameters
    ----------
    K : array, shape (N, N)
        Symmetric prior covariance of η, both triangles filled; fastest if Fortran- or C-ordered.
        It may be singular.
    lam : array, shape (N,)
        Site precisions, λ ≥ 0 and finite. For negative ones use :mod:`.weight_space` with
        Φ = chol(K).
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
    return ObservationSpaceFactor(K, lam, chol_C, log_det, prior_var, diagonal, error)


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
    alpha = _solve(factor, r / factor.lam)
    shift = symmetric_product(factor.K, alpha)
    # hᵀm − ½ mᵀΛm = ½ mᵀ(h + r)
    log_normalizer = 0.5 * float(m @ (h + r) + r @ shift - factor.log_det)
    error = factor.error + _quadratic_error(factor, r - alpha, alpha)
    return ObservationSpacePosterior(factor, m + shift, alpha, log_normalizer, error)


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
        A draw from the prior N(m, K), or several.
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
