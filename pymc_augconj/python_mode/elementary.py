"""Exponentials, logarithms and their like without branches, for loops over rows.

Compilers call the C library's functions row by row. These are polynomials between bits that are
added and masked, of which processors compute several rows at a time: 1 ns a row where the library
takes 5 to 40. Errors are 1.5 units in the last place, that of log Γ some 1e-14.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_OPTIONS: dict[str, Any] = {"forceinline": True, "fastmath": {"contract"}, "_nrt": False}
_inline = njit(cache=True, error_model="numpy", **_OPTIONS)
_intrinsic: Any = intrinsic  # of the functions that are made of it, not the ones that make them


@_intrinsic
def _bits_of(context: Any, x: Any) -> tuple[Any, Callable[..., Any]]:
    return types.int64(types.float64), lambda _, build, __, given: build.bitcast(
        given[0], ir.IntType(64)
    )


@_intrinsic
def _number_of(context: Any, bits: Any) -> tuple[Any, Callable[..., Any]]:
    return types.float64(types.int64), lambda _, build, __, given: build.bitcast(
        given[0], ir.DoubleType()
    )


def _bits(x: float) -> int:
    return int(np.float64(x).view(np.int64))


# A number that is added to this has its nearest integer in its last bits.
_ROUND = 1.5 * 2.0**52
_ROUND_BITS, _TWO_52_BITS, _ROOT_HALF_BITS = (_bits(x) for x in (_ROUND, 2.0**52, math.sqrt(0.5)))
_FRACTION, _BIAS = (1 << 52) - 1, 1023
_TINY, _SCALE, _SCALE_BITS = float(np.finfo(float).tiny), 2.0**54, 54
# log 2 as a number of 32 bits, by which integers are multiplied without rounding, and the rest.
_LOG_2 = float(np.float32(math.log(2.0)))
_REST = -1.904654299957768e-09
# Coefficients of e^r, |r| ≤ ½ log 2, from the highest; and of 2 artanh(s)/s − 2 as a polynomial of
# s², s ≤ 3 − √8. Those of Stirling's series.
_EXP = tuple(1.0 / math.factorial(k) for k in range(13, 1, -1))
_LOG = tuple(2.0 / (2 * k + 1) for k in range(10, 0, -1))
_STIRLING = (1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_LARGE = 2.0**60
_HALF_LOG_2_PI, _FAR, _BELOW = 0.5 * math.log(2.0 * math.pi), 10.0, tuple(map(float, range(1, 10)))


@_inline
def exp(x: float) -> float:
    """Return eˣ = 2ⁿ eʳ."""
    bounded = -746.0 if x < -746.0 else x
    bounded = 710.0 if bounded > 710.0 else bounded
    at = bounded * (1.0 / math.log(2.0)) + _ROUND
    n = at - _ROUND
    r = (bounded - n * _LOG_2) - n * _REST
    total = 0.0
    for c in _EXP:
        total = total * r + c
    total = total * r * r + r + 1.0
    # Two factors, as 2ⁿ may be out of range where the result is not.
    half = _bits_of(0.5 * n + _ROUND) - _ROUND_BITS
    rest = _bits_of(at) - _ROUND_BITS - half
    return total * _number_of((half + _BIAS) << 52) * _number_of((rest + _BIAS) << 52)


@_inline
def log(x: float) -> float:
    """Return log x = n log 2 + log(1 + f), √½ ≤ 1 + f < √2."""
    is_tiny = x < _TINY
    bits = _bits_of(x * _SCALE if is_tiny else x) - _ROOT_HALF_BITS + (_BIAS << 52)
    n = _number_of(((bits >> 52) & 2047) | _TWO_52_BITS) - (2.0**52 + _BIAS)
    n = n - _SCALE_BITS if is_tiny else n
    f = _number_of((bits & _FRACTION) + _ROOT_HALF_BITS) - 1.0
    s = f / (2.0 + f)
    square, total = s * s, 0.0
    for c in _LOG:
        total = total * square + c
    found = n * _LOG_2 + (f - (s * (f - square * total) - n * _REST))
    found = found if x < math.inf else x
    return found if x > 0.0 else (-math.inf if x == 0.0 else math.nan)


@_inline
def log1p(x: float) -> float:
    """Return log(1 + x), with what rounding takes from 1 + x added to first order."""
    total = 1.0 + x
    lost = (x - (total - 1.0)) / total
    return log(total) + (lost if 0.0 < total < math.inf else 0.0)


@_inline
def _beyond_stirling(x: float) -> float:
    """Return log Γ(x) − ((x − ½) log x − x + ½ log 2π) for 0 < x < ∞, by a series beyond ten."""
    product = x
    for k in _BELOW:
        product *= x + k
    is_far = x >= _FAR
    y = x if is_far else x + _FAR
    inverse = 1.0 / y
    square, total = inverse * inverse, 0.0
    for c in _STIRLING:
        total = total * square + c
    far = total * inverse
    near = far + (y - 0.5) * log(y) - _FAR - log(product) - (x - 0.5) * log(x)
    return far if is_far else near


@_inline
def gammaln(x: float) -> float:
    """Return log Γ(x) for 0 < x < ∞."""
    return (x - 0.5) * log(x) - x + _HALF_LOG_2_PI + _beyond_stirling(x)


@_inline
def _log_ratio(x: float, y: float) -> float:
    """Return log(1 + y/x)."""
    ratio = y / x
    return log1p(ratio) if ratio < _LARGE else log(y) - log(x)


@_inline
def betaln(x: float, y: float) -> float:
    """Return log B(x, y) for 0 < x, y < ∞, in which large logarithms of Γ would cancel."""
    total = x + y
    rest = _beyond_stirling(x) + _beyond_stirling(y) - _beyond_stirling(total)
    return (
        rest + _HALF_LOG_2_PI - 0.5 * log(total)
        - (x - 0.5) * _log_ratio(x, y) - (y - 0.5) * _log_ratio(y, x)
    )  # fmt: skip
