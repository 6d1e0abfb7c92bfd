"""Products and solves with triangular matrices, in place, that let other threads run.

SciPy's wrappers of BLAS and LAPACK hold the interpreter's lock while they compute. The routines
behind them are called here as SciPy exports them for other languages, through :mod:`ctypes`, which
releases it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cython_blas, cython_lapack

__all__ = ["add_outer", "cholesky_in_place", "invert_lower", "lower_solve", "lower_times"]

Array = NDArray[np.float64]

_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _routine(module, name: str) -> tuple[Callable[..., None], type]:
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

_ONE = ctypes.c_double(1.0)
_FLAG = {letter: ctypes.c_char(letter.encode()) for letter in "LRNT"}
_STEP = _Int(1)


def _checked(matrix: Array) -> ctypes.c_int:
    """Return the leading dimension of a matrix whose columns are contiguous."""
    rows, columns = matrix.shape
    step, leading = (stride // 8 for stride in matrix.strides)
    whole = matrix.size == 0 or ((rows == 1 or step == 1) and (columns == 1 or leading >= rows))
    if matrix.dtype != np.float64 or not (whole and matrix.flags.writeable):
        raise ValueError(
            f"expected a writable matrix of float64 with contiguous columns, got {matrix.dtype} "
            f"of shape {matrix.shape} with strides {matrix.strides}"
        )
    return _Int(max(leading if columns > 1 else rows, rows, 1))


def lower_times(
    L: Array, X: Array, *, transposed: bool = False, right: bool = False, factor: float = 1.0
) -> Array:
    """Overwrite X with L X, Lᵀ X, X L or X Lᵀ, times ``factor``; return it.

    Parameters
    ----------
    L : ndarray, shape (N, N)
        Only its lower triangle is read.
    X : ndarray
        Fortran-ordered, or rows of a matrix that is.
    """
    return _apply(_dtrmm, L, X, transposed, right, factor)


def lower_solve(
    L: Array, X: Array, *, transposed: bool = False, right: bool = False, factor: float = 1.0
) -> Array:
    """As :func:`lower_times` with L⁻¹ for L."""
    return _apply(_dtrsm, L, X, transposed, right, factor)


def _apply(routine, L: Array, X: Array, transposed: bool, right: bool, factor: float) -> Array:
    rows, columns = X.shape
    size = columns if right else rows
    if L.shape != (size, size):
        raise ValueError(f"expected a triangle of shape {(size, size)}, got {L.shape}")
    leading_L, leading_X = _checked(L), _checked(X)
    if X.size:
        routine(
            ctypes.byref(_FLAG["R" if right else "L"]), ctypes.byref(_FLAG["L"]),
            ctypes.byref(_FLAG["T" if transposed else "N"]), ctypes.byref(_FLAG["N"]),
            ctypes.byref(_Int(rows)), ctypes.byref(_Int(columns)),
            ctypes.byref(ctypes.c_double(factor)), L.ctypes.data, ctypes.byref(leading_L),
            X.ctypes.data, ctypes.byref(leading_X),
        )  # fmt: skip
    return X


def add_outer(X: Array, x: Array, y: Array) -> Array:
    """Add x yᵀ to X, in place; return it. Both vectors are contiguous."""
    if X.shape != (x.size, y.size) or not (x.flags.c_contiguous and y.flags.c_contiguous):
        raise ValueError(f"expected contiguous vectors of {X.shape}, got {x.shape}, {y.shape}")
    leading = _checked(X)
    if X.size:
        _dger(
            ctypes.byref(_Int(x.size)), ctypes.byref(_Int(y.size)), ctypes.byref(_ONE),
            x.ctypes.data, ctypes.byref(_STEP), y.ctypes.data, ctypes.byref(_STEP),
            X.ctypes.data, ctypes.byref(leading),
        )  # fmt: skip
    return X


def cholesky_in_place(X: Array) -> int:
    """Overwrite the lower triangle of X with its Cholesky factor; return LAPACK's ``info``.

    What is above the diagonal stays.
    """
    info, leading = _Int(0), _checked(X)
    _dpotrf(
        ctypes.byref(_FLAG["L"]), ctypes.byref(_Int(len(X))), X.ctypes.data,
        ctypes.byref(leading), ctypes.byref(info),
    )  # fmt: skip
    return info.value


# LAPACK's inverse of a triangle takes up to twice as long as its halves' and two products do.
_SMALLEST_HALVED = 64


def invert_lower(L: Array) -> Array:
    """Overwrite the lower triangle of L with that of L⁻¹; return it."""
    size = len(L)
    if size <= _SMALLEST_HALVED:
        info, leading = _Int(0), _checked(L)
        _dtrtri(
            ctypes.byref(_FLAG["L"]), ctypes.byref(_FLAG["N"]), ctypes.byref(_Int(size)),
            L.ctypes.data, ctypes.byref(leading), ctypes.byref(info),
        )  # fmt: skip
        return L
    half = size // 2
    first, corner, last = L[:half, :half], L[half:, :half], L[half:, half:]
    # The inverse of [[A, 0], [B, C]] has −C⁻¹ B A⁻¹ for B.
    invert_lower(first)
    invert_lower(last)
    lower_times(last, corner, factor=-1.0)
    lower_times(first, corner, right=True)
    return L
