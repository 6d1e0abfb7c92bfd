"""Symmetric positive definite matrices with entries near the diagonal alone.

Rows and columns are brought into an order in which the entries stand within a band of b diagonals
on either side: the reverse order, or the order of Cuthill and McKee where it is narrower. The
Cholesky factor has the same band: it takes O(n b²), a solution or a draw O(n b). So do the entries
of the inverse within the band, by the recursion of Takahashi, Fagan & Chin.

References
----------
Cuthill & McKee (1969), Reducing the bandwidth of sparse symmetric matrices. ACM '69.
Rue & Martino (2007), Approximate Bayesian inference for hierarchical Gaussian Markov random field
models. Journal of Statistical Planning and Inference 137 (the recursion for the inverse).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.linalg.blas import dtbmv
from scipy.linalg.lapack import dpbtrf, dpbtrs, dpotri, dpttrf, dtbtrs
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from pymc_augconj.errors import NotPositiveDefiniteError, UncertainEvidenceError
from pymc_augconj.typing import Array, Index

from .rounding import probes, trace_error

__all__ = ["BandPattern", "BandedFactor", "factor_of_walks", "refuse_improper"]

# Below this share of diagonals the dense inverse is solved for within the band.
_NARROW = 0.1


class BandPattern:
    """Pattern of a symmetric matrix, ordered so that its entries form a band.

    Bands are stored flat, column by column: the diagonal and the b entries below it.

    Parameters
    ----------
    size : int
        n.
    rows, cols : ndarray of int
        Indices of the entries, in any order; one triangle without its diagonal suffices.

    Attributes
    ----------
    width : int
        b.
    order, place : ndarray of int, shape (n,)
        Rows in the order of the band, and the position of each row in it.
    is_reversed : bool
        Whether the order is the reverse of the rows' own.
    """

    def __init__(self, size: int, rows: Index, cols: Index) -> None:
        self.size = size
        distance = np.abs(rows - cols)
        self.width = int(distance.max(initial=0))
        # With the reverse order Pᵀ L⁻ᵀ P is the lower Cholesky factor of Q⁻¹.
        self.order: Index = np.arange(size, dtype=np.intp)[::-1]
        self.place: Index = self.order
        self.is_reversed = True
        # No order is narrower than two diagonals.
        if self.width > 1:
            graph = csr_array((np.ones(rows.size), (rows, cols)), shape=(size, size))
            order = reverse_cuthill_mckee((graph + graph.T).tocsr(), symmetric_mode=True)
            place = np.empty(size, dtype=np.intp)
            place[order] = np.arange(size)
            width = int(np.abs(place[rows] - place[cols]).max(initial=0))
            if width < self.width:
                self.order, self.place, self.width = order.astype(np.intp), place, width
                self.is_reversed = False

    @property
    def n_flat(self) -> int:
        """Length of a flat band."""
        return self.size * (self.width + 1)

    @property
    def diagonal(self) -> slice:
        """Positions of the diagonal in a flat band."""
        return slice(None, None, self.width + 1)

    @property
    def multiplications(self) -> float:
        """Approximate number of multiplications of a factorisation."""
        return self.size * (self.width + 1.0) ** 2

    def positions(self, rows: Index, cols: Index) -> Index:
        """Return the positions of entries, of either triangle, in a flat band."""
        i, j = self.place[rows], self.place[cols]
        return np.minimum(i, j) * (self.width + 1) + np.abs(i - j)

    def forward(self, x: Array) -> Array:
        """Return x with its last axis in the order of the band."""
        return x[..., ::-1] if self.is_reversed else x[..., self.order]

    def back(self, x: Array) -> Array:
        """Return x, given in the order of the band, in the original order."""
        return x[..., ::-1] if self.is_reversed else x[..., self.place]

    def factorize(self, flat: Array, name: str = "a banded matrix") -> BandedFactor:
        """Return the Cholesky factor of a flat band, which is overwritten.

        Raises
        ------
        NotPositiveDefiniteError
            If the matrix is not positive definite to working precision, or an entry is not
            finite; the message has ``name``.
        """
        diagonal = flat[self.diagonal].copy()
        factorize = _tridiagonal if self.width == 1 and diagonal.size > 1 else _banded
        band, info = factorize(flat.reshape(-1, self.width + 1).T)
        log_det = 2.0 * float(np.log(band[0]).sum()) if info == 0 else np.nan
        refuse_improper(name, diagonal, band[0], log_det)
        return BandedFactor(band, log_det, diagonal)


def factor_of_walks(flat: Array, firsts: Array, name: str) -> BandedFactor:
    """Return the factor of the precision of random walks, one after the other.

    Parameters
    ----------
    flat : ndarray
        The flat band of two diagonals, from the last value of the last walk on.
    firsts : ndarray, shape (W,)
        Precisions of the first values.
    name : str
        For the message.

    Raises
    ------
    NotPositiveDefiniteError
        If a precision is not a positive number.
    """
    pivots = -flat[1::2]
    pivots[pivots.size // firsts.size - 1 :: pivots.size // firsts.size] = firsts[::-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        log_det, roots = float(np.log(pivots).sum()), np.sqrt(pivots)
    unrounded = np.zeros_like(pivots)
    refuse_improper(name, unrounded, roots, log_det)
    return BandedFactor(np.array([roots, flat[1::2] / roots], order="F"), log_det, unrounded)


def refuse_improper(name: str, diagonal: Array, roots: Array, log_det: float) -> None:
    """Raise unless a factor with the diagonal ``roots`` belongs to a positive definite matrix.

    Raises
    ------
    NotPositiveDefiniteError
        If its log determinant is not finite.
    UncertainEvidenceError
        If the matrix is singular to working precision.
    """
    # An entry that is NaN passes some of LAPACK's tests, and of a singular matrix rounding leaves
    # positive pivots.
    digits = diagonal.size * np.finfo(float).eps
    if not np.isfinite(log_det):
        raise NotPositiveDefiniteError(
            f"{name} has no Cholesky factor: expected a positive definite matrix"
        )
    if not np.all(diagonal * digits < roots**2):
        raise UncertainEvidenceError(f"{name}: expected an invertible one, found none to rounding")


def _banded(band: Array) -> tuple[Array, int]:
    """Overwrite a band with its Cholesky factor; return it and LAPACK's ``info``."""
    return dpbtrf(band, lower=1, overwrite_ab=1)


def _tridiagonal(band: Array) -> tuple[Array, int]:
    """Factorise a tridiagonal matrix like :func:`_banded`, without a BLAS call per column."""
    pivots, multipliers, info = dpttrf(band[0], band[1, :-1])
    if info == 0:
        np.sqrt(pivots, out=band[0])
        band[1, :-1] = multipliers * band[0, :-1]
    return band, info


class BandedFactor:
    """L with a banded matrix P Q Pᵀ = L Lᵀ; vectors are in the order of the band.

    Vectors are (n,), or (count, n) where there are several.

    Attributes
    ----------
    band : ndarray, shape (b + 1, n)
        L, Fortran-ordered: its diagonal, and the entries below it.
    log_det : float
        log|Q|.
    diagonal : ndarray, shape (n,)
        Diagonal of P Q Pᵀ; zeros where L was not computed from Q, and is exact.
    """

    def __init__(self, band: Array, log_det: float, diagonal: Array) -> None:
        self.band, self.log_det, self.diagonal = band, log_det, diagonal

    @cached_property
    def error(self) -> float:
        """The estimated rounding error of the log determinant."""
        if not self.diagonal.any():
            return 0.0
        # Pivots do not show errors that accumulate from one to the next.
        return trace_error(self.half_solve(probes(self.diagonal)))

    @property
    def size(self) -> int:
        """The number of rows, n."""
        return self.band.shape[1]

    def half_solve(self, x: Array) -> Array:
        """Return L⁻¹ x."""
        return self._solve_triangle(x, "N")

    def transpose_solve(self, x: Array) -> Array:
        """Return L⁻ᵀ x: a draw from N(0, Q⁻¹) where x is one from N(0, I)."""
        return self._solve_triangle(x, "T")

    def solve(self, x: Array) -> Array:
        """Return Q⁻¹ x."""
        if self._is_bidiagonal:
            return self.transpose_solve(self.half_solve(x))
        solved, _ = dpbtrs(self.band, np.array(np.atleast_2d(x), order="C").T, lower=1)
        return solved.T.reshape(x.shape)

    def product(self, x: Array) -> Array:
        """Return L x."""
        return self._multiply(x, 0)

    def transpose_product(self, x: Array) -> Array:
        """Return Lᵀ x."""
        return self._multiply(x, 1)

    def inverse(self) -> Array:
        """Return the entries of Q⁻¹ within the band, flat."""
        # Imported here, as only variances need Numba.
        from .banded_kernels import inverse_within_band

        return inverse_within_band(self.band.T).ravel()

    def dense_inverse(self) -> Array:
        """Return Q⁻¹, shape (n, n), Fortran-ordered."""
        n, width = self.size, self.band.shape[0] - 1
        if width < _NARROW * n:
            cov = self.solve(np.eye(n))
        else:
            L = np.zeros((n, n), order="F")
            for i in range(width + 1):
                L[np.arange(i, n), np.arange(n - i)] = self.band[i, : n - i]
            cov, _ = dpotri(L, lower=1, overwrite_c=1)
        lower = np.tril(cov)
        return np.asfortranarray(lower + np.tril(lower, -1).T)

    def _solve_triangle(self, x: Array, trans: str) -> Array:
        if not x.size:
            return x.copy()
        if self._is_bidiagonal:
            from .banded_kernels import solve_bidiagonal

            rows = np.ascontiguousarray(np.atleast_2d(x))
            return solve_bidiagonal(self.band.T, rows, trans == "T").reshape(x.shape)
        columns = np.array(np.atleast_2d(x), order="C").T
        solved, _ = dtbtrs(self.band, columns, uplo="L", trans=trans, overwrite_b=1)
        return solved.T.reshape(x.shape)

    @property
    def _is_bidiagonal(self) -> bool:
        """Whether L has two diagonals, for which a BLAS call per column costs more than a loop."""
        return self.band.shape[0] == 2

    def _multiply(self, x: Array, trans: int) -> Array:
        if self._is_bidiagonal:
            product, below = self.band[0] * x, self.band[1, :-1]
            if trans:
                product[..., :-1] += below * x[..., 1:]
            else:
                product[..., 1:] += below * x[..., :-1]
            return product
        if x.ndim == 2:
            return np.array([self._multiply(row, trans) for row in x]).reshape(x.shape)
        return dtbmv(self.band.shape[0] - 1, self.band, x, lower=1, trans=trans) if x.size else x
