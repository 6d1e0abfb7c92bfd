"""Products and solves with triangular matrices, in place, that let other threads run.

SciPy's wrappers of BLAS and LAPACK hold the interpreter's lock while they compute. Here the
routines that SciPy exports for other languages are called through :mod:`ctypes`, which releases it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from scipy.linalg import cython_blas, cython_lapack

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
