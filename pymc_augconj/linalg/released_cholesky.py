"""A Cholesky factorisation that lets other Python threads run meanwhile.

SciPy's LAPACK wrappers hold the interpreter's lock; the same routine called by its address, which
SciPy publishes for Cython, does not.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
from numba.extending import get_cython_function_address
from numpy.typing import NDArray

__all__ = ["factorize_in_place"]

Array = NDArray[np.float64]


@cache
def _dpotrf():
    pointer = ctypes.c_void_p
    address = get_cython_function_address("scipy.linalg.cython_lapack", "dpotrf")
    # CFUNCTYPE, unlike PYFUNCTYPE, releases the lock for the duration of a call.
    return ctypes.CFUNCTYPE(None, pointer, pointer, pointer, pointer, pointer)(address)


def factorize_in_place(K: Array) -> bool:
    """Write the lower Cholesky factor of K over its lower triangle; the upper is left alone.

    Parameters
    ----------
    K : array, shape (N, N)
        Symmetric, in C order; only its lower triangle is read.

    Returns
    -------
    bool
        Whether K is positive definite. If not, its lower triangle is destroyed.
    """
    if K.dtype != np.float64 or not K.flags.c_contiguous or not K.flags.writeable:
        raise ValueError(f"expected a writeable float64 array in C order, got {K.dtype} {K.flags}")
    n, info = ctypes.c_int(K.shape[0]), ctypes.c_int(0)
    # Rows in C order are LAPACK's columns: its upper triangle is the lower one here.
    uplo = ctypes.c_char(b"U")
    at = ctypes.addressof
    _dpotrf()(at(uplo), at(n), K.ctypes.data, at(n), at(info))
    return info.value == 0 and bool(np.isfinite(np.einsum("ii->i", K)).all())
