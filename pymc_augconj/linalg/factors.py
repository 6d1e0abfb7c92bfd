"""Cholesky factors P Q Pᵀ = L Lᵀ of banded and sparse matrices, behind one interface.

A :class:`BandedFactor` is LAPACK's, a :class:`SparseFactor` that of a :class:`.SparsePattern`. An
:class:`UpdatedFactor` adds a matrix of low rank to either; a :class:`BorderedFactor` has a border,

    [B  Cᵀ]   [L₁      ] [L₁ᵀ  W  ]
    [C  D ] = [Wᵀ   L₂ ] [     L₂ᵀ],        B = L₁ L₁ᵀ,    W = L₁⁻¹ Cᵀ,    D − WᵀW = L₂ L₂ᵀ.

Vectors are in the order of elimination, (n,), or (count, n) where there are several.

References
----------
Rue & Martino (2007), Approximate Bayesian inference for hierarchical Gaussian Markov random field
models. Journal of Statistical Planning and Inference 137 (the recursion for the inverse).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

import numpy as np
from scipy.linalg.blas import dtbmv, dtrsv
from scipy.linalg.lapack import dpbtrf, dpotrf, dpotri, dpttrf, dtbtrs, dtrtrs

from pymc_augconj.errors import NotPositiveDefiniteError, UncertainEvidenceError
from pymc_augconj.typing import Array, Index

from .dense import mirror_lower, probes, trace_error

# Below this share of diagonals the dense inverse is solved for within the band.
_NARROW = 0.1


class Factor(ABC):
    """The Cholesky factor L of a matrix Q, shape (size, size); ``log_det`` is log|Q|."""

    def __init__(self, size: int, log_det: float, diagonal: Callable[[], Array]) -> None:
        self.size, self.log_det, self._diagonal = size, log_det, diagonal

    @cached_property
    def diagonal(self) -> Array:
        """Diagonal of P Q Pᵀ; zeros where L was not computed from Q, and is exact."""
        return self._diagonal()

    @cached_property
    def error(self) -> float:
        """The estimated rounding error of the log determinant."""
        if not self.diagonal.any():
            return 0.0
        # Pivots do not show errors that accumulate from one to the next.
        return trace_error(self.half_solve(probes(self.diagonal)))

    @abstractmethod
    def _solve(self, x: Array, transpose: bool) -> Array:
        """Return L⁻¹ x or L⁻ᵀ x."""

    @abstractmethod
    def _multiply(self, x: Array, transpose: bool) -> Array:
        """Return L x or Lᵀ x."""

    def half_solve(self, x: Array) -> Array:
        """Return L⁻¹ x."""
        return self._solve(x, False)

    def transpose_solve(self, x: Array) -> Array:
        """Return L⁻ᵀ x: a draw from N(0, Q⁻¹) where x is one from N(0, I)."""
        return self._solve(x, True)

    def product(self, x: Array) -> Array:
        """Return L x."""
        return self._multiply(x, False)

    def transpose_product(self, x: Array) -> Array:
        """Return Lᵀ x."""
        return self._multiply(x, True)

    @abstractmethod
    def inverse(self) -> Array:
        """Return the entries of Q⁻¹ where L has entries, flat like Q."""

    def solve(self, x: Array) -> Array:
        """Return Q⁻¹ x."""
        return self.transpose_solve(self.half_solve(x))

    def dense_inverse(self) -> Array:
        """Return Q⁻¹, shape (n, n), Fortran-ordered."""
        return mirror_lower(np.asfortranarray(self.solve(np.eye(self.size))))


def refuse_improper(name: str, diagonal: Array, roots: Array, log_det: float) -> None:
    """Raise unless a factor with the diagonal ``roots`` belongs to a positive definite matrix.

    NotPositiveDefiniteError if its log determinant is not finite, UncertainEvidenceError if the
    matrix is singular to working precision.
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


def factorize_band(band: Array, name: str) -> BandedFactor:
    """Return the factor of the lower diagonals of a matrix, shape (b + 1, n), overwritten.

    Raises as :meth:`.SymmetricPattern.factorize`.
    """
    diagonal = band[0].copy()
    if len(band) == 2 and diagonal.size > 1:
        # Without a BLAS call per column.
        pivots, multipliers, info = dpttrf(band[0], band[1, :-1])
        if info == 0:
            np.sqrt(pivots, out=band[0])
            band[1, :-1] = multipliers * band[0, :-1]
    else:
        band, info = dpbtrf(band, lower=1, overwrite_ab=1)
    log_det = 2.0 * float(np.log(band[0]).sum()) if info == 0 else np.nan
    refuse_improper(name, diagonal, band[0], log_det)
    return BandedFactor(band, log_det, diagonal)


def factor_of_walks(flat: Array, firsts: Array, name: str) -> BandedFactor:
    """Return the factor of the precision of random walks, one after the other.

    ``flat`` is the flat band of two diagonals, from the last value of the last walk on, and
    ``firsts`` are the precisions of the first values. Raises NotPositiveDefiniteError if a
    precision is not a positive number.
    """
    pivots = -flat[1::2]
    pivots[pivots.size // firsts.size - 1 :: pivots.size // firsts.size] = firsts[::-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        log_det, roots = float(np.log(pivots).sum()), np.sqrt(pivots)
    unrounded = np.zeros_like(pivots)
    refuse_improper(name, unrounded, roots, log_det)
    return BandedFactor(np.array([roots, flat[1::2] / roots], order="F"), log_det, unrounded)


class BandedFactor(Factor):
    """L of a banded matrix: ``band``, (b + 1, n), has its diagonal and the entries below it."""

    def __init__(self, band: Array, log_det: float, diagonal: Array) -> None:
        super().__init__(diagonal.size, log_det, lambda: diagonal)
        self.band = band

    def inverse(self) -> Array:
        # Imported here, as only variances need Numba.
        from .sparse_kernels import inverse_within_band

        return inverse_within_band(self.band.T).ravel()

    def dense_inverse(self) -> Array:
        n, width = self.size, len(self.band) - 1
        if width < _NARROW * n:
            return super().dense_inverse()
        L = np.zeros((n, n), order="F")
        for i in range(width + 1):
            L[np.arange(i, n), np.arange(n - i)] = self.band[i, : n - i]
        return mirror_lower(dpotri(L, lower=1, overwrite_c=1)[0])

    def _solve(self, x: Array, transpose: bool) -> Array:
        if not x.size:
            return x.copy()
        if self._is_bidiagonal:
            from .sparse_kernels import solve_bidiagonal

            rows = np.ascontiguousarray(np.atleast_2d(x))
            return solve_bidiagonal(self.band.T, rows, transpose).reshape(x.shape)
        columns = np.array(np.atleast_2d(x), order="C").T
        trans = "T" if transpose else "N"
        solved, _ = dtbtrs(self.band, columns, uplo="L", trans=trans, overwrite_b=1)
        return solved.T.reshape(x.shape)

    @property
    def _is_bidiagonal(self) -> bool:
        """Whether L has two diagonals, for which a BLAS call per column costs more than a loop."""
        return len(self.band) == 2

    def _multiply(self, x: Array, transpose: bool) -> Array:
        if self._is_bidiagonal:
            product, below = self.band[0] * x, self.band[1, :-1]
            if transpose:
                product[..., :-1] += below * x[..., 1:]
            else:
                product[..., 1:] += below * x[..., :-1]
            return product
        if x.ndim == 2:
            return np.array([self._multiply(row, transpose) for row in x]).reshape(x.shape)
        trans = int(transpose)
        return dtbmv(len(self.band) - 1, self.band, x, lower=1, trans=trans) if x.size else x


class SparseFactor(Factor):
    """L of a sparse matrix, ``arrays`` as of a :class:`.SparsePattern`.

    ``parts`` are L₁ and C L₁⁻ᵀ, with the inverse of the diagonal in place of the diagonal; the
    border's part of L₁⁻¹ Cᵀ; and L₂, in the lower triangle.
    """

    def __init__(
        self,
        arrays: tuple[Index, Index, Index, Index],
        parts: tuple[Array, Array, Array],
        log_det: float,
        diagonal: Callable[[], Array],
    ) -> None:
        super().__init__(len(parts[1]) + len(parts[2]), log_det, diagonal)
        self._arrays, self._parts = arrays, parts

    def inverse(self) -> Array:
        values, border, corner = self._parts
        assert not border.size  # as in no pattern with an order of minimum degree
        inverse = np.zeros(values.size + corner.size)
        # LAPACK inverts a copy of the corner.
        last = mirror_lower(dpotri(corner.T, lower=0)[0].T if corner.size else corner)
        # Imported here, as only such matrices need Numba.
        from .supernodes import invert

        invert(*self._arrays[:2], values, last, inverse[: values.size])
        inverse[values.size :] = last.ravel()
        return inverse

    def pivots(self) -> Array:
        """Return the diagonal of L."""
        values, border, corner = self._parts
        return np.append(1.0 / values[: len(border)], corner.diagonal())

    @property
    def _is_dense(self) -> bool:
        """Whether there are no sparse columns: then no loop is compiled."""
        return not self._parts[0].size

    def _solve(self, x: Array, transpose: bool) -> Array:
        if self._is_dense:
            return solve_triangle(self._parts[2].T, x, not transpose, lower=0)
        from .sparse_kernels import solve

        starts, rows, *_ = self._arrays
        solved = np.array(x, order="C", ndmin=2)
        solve(starts, rows, *self._parts, solved, transpose)
        return solved.reshape(x.shape)

    def _multiply(self, x: Array, transpose: bool) -> Array:
        if self._is_dense:
            lower = np.tril(self._parts[2])
            return x @ (lower if transpose else lower.T)
        from .sparse_kernels import multiply

        starts, rows, *_ = self._arrays
        given = np.array(x, order="C", ndmin=2)
        return multiply(starts, rows, *self._parts, given, transpose).reshape(x.shape)


class SupernodalFactor(SparseFactor):
    """L of a matrix that is eliminated by supernodes."""

    def _solve(self, x: Array, transpose: bool) -> Array:
        if x.size == self.size:
            return super()._solve(x, transpose)
        from .supernodes import solve_by_four

        (starts, rows, *_), (values, _, corner) = self._arrays, self._parts
        n, count = starts.size - 1, len(x)
        padded = np.pad(x, ((0, -count % 4), (0, 0))).reshape(-1, 4, self.size)
        solved = np.ascontiguousarray(padded.swapaxes(1, 2))
        if not transpose:
            solve_by_four(starts, rows, values, solved, transpose)
        for four in solved[:, n:]:
            four[...] = solve_triangle(corner.T, four.T, not transpose, lower=0).T
        if transpose:
            solve_by_four(starts, rows, values, solved, transpose)
        return solved.swapaxes(1, 2).reshape(-1, self.size)[:count]


def solve_triangle(triangle: Array, x: Array, transpose: bool, lower: int = 1) -> Array:
    """Return T⁻¹ x or T⁻ᵀ x, of each row of x where there are several."""
    if not x.size:
        return x.copy()
    if x.ndim == 1:
        return dtrsv(triangle, x, lower=lower, trans=int(transpose))
    return dtrtrs(triangle, x.T, lower=lower, trans=int(transpose))[0].T


class UpdatedFactor:
    """Factor L (I + V Vᵀ)^½ of L Lᵀ + P Pᵀ, where Vᵀ = (L⁻¹P)ᵀ = ``rows``, shape (r, n)."""

    def __init__(self, factor: Factor, rows: Array) -> None:
        self.factor, self.rows = factor, rows
        # Vᵀ rotated so that its rows are orthogonal.
        self.squares, self.basis, self.log_det = np.empty(0), rows, factor.log_det
        if len(rows):
            self.squares, vectors = np.linalg.eigh(rows @ rows.T)
            self.basis = vectors.T @ rows
            self.log_det += float(np.log1p(self.squares).sum())

    @property
    def size(self) -> int:
        """The number of rows, n."""
        return self.factor.size

    def _along(self, x: Array, power: float) -> Array:
        """Return (I + V Vᵀ)^power x."""
        if not self.squares.size:
            return x
        factors = ((1.0 + self.squares) ** power - 1.0) / self.squares
        return x + ((x @ self.basis.T) * factors) @ self.basis

    def shrink(self, x: Array) -> Array:
        """Return (I + V Vᵀ)^−½ x."""
        return self._along(x, -0.5)

    def half_solve(self, x: Array) -> Array:
        return self.shrink(self.factor.half_solve(x))

    def transpose_solve(self, x: Array) -> Array:
        return self.factor.transpose_solve(self.shrink(x))

    def transpose_product(self, x: Array) -> Array:
        return self._along(self.factor.transpose_product(x), 0.5)


class BorderedFactor:
    """L of a matrix with a dense border.

    ``leading`` is L₁, ``border`` is Wᵀ, (m, n₁), and ``corner`` L₂, whose upper triangle is not
    read.
    """

    def __init__(self, leading: Factor | UpdatedFactor, border: Array, corner: Array) -> None:
        self.leading, self.border, self.corner = leading, border, corner
        self.log_det = leading.log_det + 2.0 * float(np.log(corner.diagonal()).sum())

    @classmethod
    def eliminated(
        cls, leading: Factor | UpdatedFactor, border: Array, corner: Array, refusal: str
    ) -> BorderedFactor:
        """Return the factor, given the Schur complement D − WᵀW, which may be overwritten.

        Raises NotPositiveDefiniteError with ``refusal`` if it has no factor or is not finite.
        """
        chol, info = dpotrf(corner, lower=1, clean=0, overwrite_a=1) if len(corner) else (corner, 0)
        factor = cls(leading, border, chol) if info == 0 else None
        # NaN entries pass some of LAPACK's tests.
        if factor is None or not np.isfinite(factor.log_det):
            raise NotPositiveDefiniteError(refusal)
        return factor

    def half_solve(self, x: Array) -> Array:
        first, second = self._split(x)
        return self.joined_half(self.leading.half_solve(first), second)

    def joined_half(self, first: Array, second: Array) -> Array:
        """Return L⁻¹ x, given L₁⁻¹ x₁ and x₂."""
        return np.concatenate(
            [first, solve_triangle(self.corner, second - first @ self.border.T, False)], axis=-1
        )

    def transpose_solve(self, x: Array) -> Array:
        first, second = self._split(x)
        second = solve_triangle(self.corner, second, True)
        return np.concatenate(
            [self.leading.transpose_solve(first - second @ self.border), second], axis=-1
        )

    def transpose_product(self, x: Array) -> Array:
        first, second = self._split(x)
        product = second @ np.tril(self.corner)
        return np.concatenate(
            [self.leading.transpose_product(first) + second @ self.border, product], axis=-1
        )

    def _split(self, x: Array) -> tuple[Array, Array]:
        n = self.leading.size
        return x[..., :n], x[..., n:]
