"""Symmetric and triangular matrices: products that never copy one, Cholesky factors, solutions.

SciPy's BLAS wrappers silently copy a C-ordered matrix, N² numbers a call. Every function here takes
either memory order, and passes the transpose on to avoid the copy. For many columns a triangular
factor is inverted once, because products are faster than solves.

The rounding error of a log determinant is estimated from the factor that gave it. For a Cholesky
factor L of C, with D the diagonal of C and H = D^−½ C D^−½,

    |Δ log|C|| ≤ c n ε Σᵢⱼ |(H⁻¹)ᵢⱼ|,        tr H⁻¹ = Σᵢ Cᵢᵢ (C⁻¹)ᵢᵢ = ‖L⁻¹ D^½‖²_F.

One solution with the random signs z gives an unbiased estimate of that trace, ‖L⁻¹ D^½ z‖². The
sum Σ Cᵢᵢ/Lᵢᵢ² costs O(n) alone; where it is small no solution is needed.

SciPy's wrappers of BLAS and LAPACK hold the interpreter's lock while they compute. Where threads
share the work, the routines that SciPy exports for other languages are called through
:mod:`ctypes`, which releases it.

References
----------
Higham (2002), Accuracy and Stability of Numerical Algorithms, 2nd ed., section 10.1.
Hutchinson (1990), A stochastic estimator of the trace of the influence matrix.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any, Literal

import numpy as np
from scipy.linalg import cython_blas, cython_lapack, eigvalsh
from scipy.linalg.blas import dsymv, dtrmv, dtrsm
from scipy.linalg.lapack import dpotrf

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.typing import Array

_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _routine(module: ModuleType, name: str) -> tuple[Callable[..., None], type]:
    """Return a routine and the type of its integers; all of its arguments are pointers."""
    capsule = module.__pyx_capi__[name]
    signature = _name_of(capsule)
    count = signature.count(b"*")
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * count)
    integer = ctypes.c_int if b" int *" in signature else ctypes.c_int64
    return prototype(_pointer_of(capsule, signature)), integer


_dtrmm, _Int = _routine(cython_blas, "dtrmm")
_dtrsm, _ = _routine(cython_blas, "dtrsm")
_dger, _ = _routine(cython_blas, "dger")
_dpotrf, _ = _routine(cython_lapack, "dpotrf")
_dtrtri, _ = _routine(cython_lapack, "dtrtri")

_ONE = ctypes.byref(ctypes.c_double(1.0))
_FLAG = {letter: ctypes.byref(ctypes.c_char(letter.encode())) for letter in "LRNTU"}
_STEP = ctypes.byref(_Int(1))


def _checked(matrix: Array) -> tuple[int, Any]:
    """Return the address and the leading dimension of a matrix whose columns are contiguous."""
    rows, columns = matrix.shape
    step, leading = matrix.strides
    leading //= 8
    whole = matrix.size == 0 or ((rows == 1 or step == 8) and (columns == 1 or leading >= rows))
    if matrix.dtype != np.float64 or not (whole and matrix.flags.writeable):
        raise ValueError(
            f"expected a writable matrix of float64 with contiguous columns, got {matrix.dtype} "
            f"of shape {matrix.shape} with strides {matrix.strides}"
        )
    return matrix.ctypes.data, ctypes.byref(_Int(max(leading if columns > 1 else rows, rows, 1)))


def _size(number: int) -> Any:
    return ctypes.byref(_Int(number))


def lower_times(
    L: Array, X: Array, *, transposed: bool = False, right: bool = False, factor: float = 1.0
) -> Array:
    """Overwrite X with L X, Lᵀ X, X L or X Lᵀ, times ``factor``; return it.

    Only the lower triangle of L is read. X is Fortran-ordered, or rows of a matrix that is.
    """
    return _apply(_dtrmm, L, X, transposed, right, factor)


def lower_solve(
    L: Array, X: Array, *, transposed: bool = False, right: bool = False, factor: float = 1.0
) -> Array:
    """Overwrite X like :func:`lower_times`, with L⁻¹ for L."""
    return _apply(_dtrsm, L, X, transposed, right, factor)


def _apply(
    routine: Callable[..., None], L: Array, X: Array, transposed: bool, right: bool, factor: float
) -> Array:
    rows, columns = X.shape
    size = columns if right else rows
    if L.shape != (size, size):
        raise ValueError(f"expected a triangle of shape {(size, size)}, got {L.shape}")
    (at_L, leading_L), (at_X, leading_X) = _checked(L), _checked(X)
    if X.size:
        routine(
            _FLAG["R" if right else "L"], _FLAG["L"], _FLAG["T" if transposed else "N"],
            _FLAG["N"], _size(rows), _size(columns), ctypes.byref(ctypes.c_double(factor)),
            at_L, leading_L, at_X, leading_X,
        )  # fmt: skip
    return X


def add_outer(X: Array, x: Array, y: Array) -> Array:
    """Add x yᵀ to X, in place; return it. Both vectors are contiguous."""
    good = all(v.flags.c_contiguous and v.dtype == np.float64 for v in (x, y))
    if X.shape != (x.size, y.size) or not good:
        raise ValueError(
            f"expected contiguous vectors of float64 for a matrix of shape {X.shape}, got "
            f"{x.dtype} of shape {x.shape} and {y.dtype} of shape {y.shape}"
        )
    at, leading = _checked(X)
    if X.size:
        _dger(
            _size(x.size), _size(y.size), _ONE, x.ctypes.data, _STEP, y.ctypes.data, _STEP,
            at, leading,
        )  # fmt: skip
    return X


def cholesky_in_place(X: Array, *, upper: bool = False) -> int:
    """Overwrite a triangle of X with its Cholesky factor; return LAPACK's ``info``.

    X has contiguous columns, and its other triangle is neither read nor written. ``upper`` writes U
    with X = Uᵀ U instead of L with X = L Lᵀ: for ``X = K.T`` of a K in C order this leaves the
    lower factor in the lower triangle of K.
    """
    info = _Int(0)
    _dpotrf(_FLAG["U" if upper else "L"], _size(len(X)), *_checked(X), ctypes.byref(info))
    return info.value


# Up to this order LAPACK inverts a triangle; beyond it halving is up to twice as fast.
_SMALLEST_HALVED = 64


def invert_lower(L: Array) -> Array:
    """Overwrite the lower triangle of L with the lower triangle of L⁻¹; return it."""
    size = len(L)
    if size <= _SMALLEST_HALVED:
        info = _Int(0)
        _dtrtri(_FLAG["L"], _FLAG["N"], _size(size), *_checked(L), ctypes.byref(info))
        return L
    half = size // 2
    first, corner, last = L[:half, :half], L[half:, :half], L[half:, half:]
    # The inverse of [[A, 0], [B, C]] has −C⁻¹ B A⁻¹ in place of B.
    invert_lower(first)
    invert_lower(last)
    lower_times(last, corner, factor=-1.0)
    lower_times(first, corner, right=True)
    return L


#: Errors of a log evidence, in nats. Up to the first it counts as exact; from the second on it is
#: useless. Between them it is used where no other way of computing it does better.
SMALL_ERROR, LARGEST_ERROR = 1e-2, 1.0
EPS = float(np.finfo(float).eps)

#: Where the sum over the pivots is below this the error is far below SMALL_ERROR: over 400 random
#: problems of 6 to 25 values it was at most 5e-7.
SCREEN = 1e-8
#: Bounds on an error below this are not refined.
SMALL_BOUND = 1e-4
# Number of random sign vectors: it is improbable that all miss the worst direction.
_N_PROBES = 2


@lru_cache(maxsize=64)
def _signs(size: int) -> Array:
    return np.where(np.random.default_rng(size).random((_N_PROBES, size)) < 0.5, -1.0, 1.0)


def probes(diagonal: Array) -> Array:
    """Return rows D^½ z for a matrix with this diagonal, shape (2, n)."""
    return np.sqrt(diagonal) * _signs(diagonal.size)


def trace_error(half: Array) -> float:
    """Return the estimated error of log|C|, given L⁻¹ times each of the :func:`probes`."""
    return EPS * half.shape[-1] * float(np.vdot(half, half)) / len(half)


def dense_error(chol: Array, diagonal: Array) -> float:
    """Return the estimated error of log|C|, given its lower factor and its diagonal."""
    pivots = diagonal_view(chol)
    screened = EPS * diagonal.size * float((diagonal / pivots**2).sum())
    if screened <= SCREEN:
        return screened
    return trace_error(dtrsm(1.0, chol, probes(diagonal).T, lower=1).T)


def precision_error(
    of_log_det: float,
    square: float,
    diagonal: Callable[[], Array],
    mean: Callable[[], Array],
    bound: float = np.inf,
) -> float:
    """Return the estimated error of ½ gᵀM⁻¹g − ½ log|M|, given that of log|M| and gᵀM⁻¹g.

    ``diagonal`` and ``mean`` return the diagonal of M and x = M⁻¹g, which moves by M⁻¹ ΔM x; they
    are called where xᵀ ΔM x ≤ ε tr(H⁻¹) gᵀM⁻¹g is not small enough, nor the same with ``bound`` in
    place of the error of log|M|.
    """
    of_square = min(of_log_det, bound) * square
    if not of_square <= SMALL_BOUND:
        x, terms = mean(), diagonal()
        of_square = EPS * np.sqrt(x.size) * float(x**2 @ terms)
    return 0.5 * (of_log_det + of_square) + EPS * square


# Columns per step through a triangle in NumPy: few, to skip most of the other triangle, but enough
# that the interpreter's overhead is negligible.
BLOCK = 128


def square_work_array(size: int, work: Array | None = None) -> Array:
    """Return `work` if it fits, or a new (size, size) Fortran-ordered float64 array.

    Raises ValueError if `work` is given and is not a Fortran-ordered float64 array of that shape.
    """
    if work is None:
        return np.empty((size, size), order="F")
    if work.shape != (size, size) or not work.flags.f_contiguous or work.dtype != np.float64:
        raise ValueError(
            f"expected a Fortran-ordered float64 work array of shape {(size, size)}, got shape "
            f"{work.shape}, dtype {work.dtype}, Fortran-ordered: {work.flags.f_contiguous}; "
            f"make it with np.empty(({size}, {size}), order='F')"
        )
    return work


def diagonal_view(matrix: Array) -> Array:
    """Return a writable view of the diagonal of a contiguous square matrix, shape (N,)."""
    order: Literal["F", "C"] = "F" if matrix.flags.f_contiguous else "C"
    return matrix.reshape(-1, order=order)[:: matrix.shape[0] + 1]


def leading_square(work: Array, n: int) -> Array:
    """Return an array of shape (n, n), Fortran-ordered, in the memory of a larger one."""
    return work.reshape(-1, order="F")[: n * n].reshape(n, n, order="F")


def symmetric_product(K: Array, x: Array) -> Array:
    """Return K x for symmetric K of shape (N, N).

    Only one triangle of K is read (the lower one if K is Fortran-ordered, else the upper), half
    the memory traffic of ``K @ x``.
    """
    return dsymv(1.0, K if K.flags.f_contiguous else K.T, x, lower=1)


def lower_product(L: Array, x: Array) -> Array:
    """Return L x for lower triangular L of shape (N, N); the upper triangle is not read."""
    if L.flags.f_contiguous:
        return dtrmv(L, x, lower=1)
    return dtrmv(L.T, x, lower=0, trans=1)


def lower_transpose_product(L: Array, x: Array) -> Array:
    """Return Lᵀ x for lower triangular L of shape (N, N); the upper triangle is not read."""
    if L.flags.f_contiguous:
        return dtrmv(L, x, lower=1, trans=1)
    return dtrmv(L.T, x, lower=0)


def copy_lower(source: Array, out: Array) -> None:
    """Copy the lower triangle of `source` into `out`, both (N, N).

    Parts of the upper triangle near the diagonal are copied too; the rest of `out` is left alone.
    """
    for start in range(0, source.shape[0], BLOCK):
        columns = slice(start, start + BLOCK)
        out[start:, columns] = source[start:, columns]


def mirror_lower(matrix: Array) -> Array:
    """Fill the upper triangle of a square matrix from its lower one, in place; return it."""
    for start in range(0, matrix.shape[0], BLOCK):
        stop = min(start + BLOCK, matrix.shape[0])
        corner = matrix[start:stop, start:stop]
        corner[...] = np.tril(corner) + np.tril(corner, -1).T
        matrix[start:stop, stop:] = matrix[stop:, start:stop].T
    return matrix


def lower_column_norms(matrix: Array) -> Array:
    """Return the squared norm of each column of the lower triangle of `matrix`, shape (N,)."""
    norms = np.empty(matrix.shape[0])
    for start in range(0, matrix.shape[0], BLOCK):
        stop = min(start + BLOCK, matrix.shape[0])
        corner = np.tril(matrix[start:stop, start:stop])
        below = matrix[stop:, start:stop]
        norms[start:stop] = np.einsum("ij,ij->j", corner, corner)
        norms[start:stop] += np.einsum("ij,ij->j", below, below)
    return norms


def lower_inverse(L: Array, work: Array | None = None) -> Array:
    """Return L⁻¹ of a lower triangular L of shape (N, N), in `work` if given.

    The upper triangle of L is not read; the upper triangle of the result is arbitrary.
    """
    inverse = square_work_array(L.shape[0], work)
    copy_lower(L, inverse)
    return invert_lower(inverse)


# Tried in this order, as multiples of the mean of the covariance's diagonal.
RELATIVE_JITTERS = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)


def cholesky_with_jitter(
    K: Array,
    *,
    relative_jitters: tuple[float, ...] = RELATIVE_JITTERS,
    name: str = "the covariance matrix",
    work: Array | None = None,
) -> tuple[Array, float]:
    """Return L of K + jitter·I = L Lᵀ and the jitter, the smallest of a ladder that works.

    Only the lower triangle of K is read. ``relative_jitters`` are tried in turn, as multiples of
    the mean of K's diagonal. L is Fortran-ordered, in ``work`` if given, with zeros above the
    diagonal. Raises NotPositiveDefiniteError, about the matrix ``name``, if K has a NaN or an
    infinity, or no jitter of the ladder suffices.
    """
    K = np.asarray(K, dtype=np.float64)
    if K.ndim != 2 or K.shape[0] != K.shape[1]:
        raise ValueError(f"expected {name} to be a square matrix, got shape {K.shape}")
    L = square_work_array(K.shape[0], work)
    scale = float(np.mean(np.diagonal(K)))
    for relative in relative_jitters:
        copy_lower(K, L)
        jitter = relative * scale
        if jitter != 0.0:
            diagonal_view(L)[...] += jitter
        L, info = dpotrf(L, lower=1, clean=1, overwrite_a=1)
        # Every entry of K reaches the diagonal of L, so its N numbers tell whether K is finite.
        if info == 0 and np.isfinite(diagonal_view(L)).all():
            return L, jitter
        _refuse_non_finite(K, name)
    raise NotPositiveDefiniteError(_explain_failure(K, relative_jitters, scale, name))


def _refuse_non_finite(K: Array, name: str) -> None:
    # Entries above the diagonal are not read, and may be uninitialised.
    finite = np.isfinite(K) | ~np.tri(len(K), dtype=bool)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise NotPositiveDefiniteError(
            f"expected {name} to be finite, got {np.count_nonzero(~finite)} entries that are NaN "
            f"or infinite, the first at [{row}, {column}]; check the inputs for missing values "
            "and the kernel's hyperparameters for overflow"
        )


def _explain_failure(K: Array, relative_jitters: tuple[float, ...], scale: float, name: str) -> str:
    smallest = eigvalsh(K, lower=True, subset_by_index=(0, 0))[0]
    tried = ", ".join(dict.fromkeys(f"{relative * scale:.1e}" for relative in relative_jitters))
    message = (
        f"expected {name} to be positive definite, got a smallest eigenvalue of about "
        f"{smallest:.2e}; it has no Cholesky factor even with {tried} added to its diagonal "
    )
    asymmetry = float(np.abs(K - K.T).max())
    if asymmetry > 1e-8 * float(np.abs(K).max()):
        return message + (
            f"— it is not symmetric (entries differ from their mirror image by up to "
            f"{asymmetry:.1e}): check how it is built"
        )
    return message + (
        "— remove duplicated inputs, subtract the mean of inputs far from zero, whose distances "
        "round, add a larger jitter or a white-noise term to the kernel, or give the length scale "
        "a prior that keeps it well below the range of the inputs"
    )


class TriangularFactor:
    """A lower triangular matrix L, Fortran-ordered; its upper triangle is not read."""

    def __init__(self, chol: Array) -> None:
        self.chol = chol

    @cached_property
    def inverse(self) -> Array:
        """L⁻¹."""
        return invert_lower(self.chol.copy(order="F"))

    def solve(self, columns: Array, *, transposed: bool = False, overwrite: bool = False) -> Array:
        """Return L⁻¹ X or L⁻ᵀ X, Fortran-ordered; with ``overwrite`` it may overwrite X."""
        if not (overwrite and columns.flags.f_contiguous and columns.flags.writeable):
            columns = np.array(columns, order="F")
        # An existing inverse is used; a new one pays for more columns than L has.
        if "inverse" in self.__dict__ or columns.shape[1] > columns.shape[0]:
            return lower_times(self.inverse, columns, transposed=transposed)
        return lower_solve(self.chol, columns, transposed=transposed)

    def pull(self, transposed_slope: Array) -> Array:
        """Return weights W with ⟨W, dK⟩ = ⟨slope, dL⟩ for K = L Lᵀ, given Lᵀ slope.

        Half of the formula of Murray (2016), Differentiation of the Cholesky decomposition,
        arXiv:1602.07527, before symmetrisation, which has the same product with dK.
        """
        lower = np.empty(self.chol.shape, order="F")
        np.multiply(transposed_slope, _half_lower(len(lower)), out=lower)
        if "inverse" in self.__dict__:
            lower_times(self.inverse, lower, right=True)
            return lower_times(self.inverse, lower, transposed=True)
        lower_solve(self.chol, lower, right=True)
        return lower_solve(self.chol, lower, transposed=True)


@lru_cache(maxsize=4)
def _half_lower(size: int) -> Array:
    """Return ones below the diagonal, halves on it and zeros above."""
    return np.asfortranarray(np.tri(size) - 0.5 * np.eye(size))
