"""The loops that run any tape: compiled functions for all graphs.

In :func:`run_rows` a register is a vector, which has a number for each of many rows.

Exponentials, logarithms and their like are without branches, for loops over rows.
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

from pymc_augconj.typing import Array, Index

from .tape import FACTORIZE, RUN

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
def softplus(x: float) -> float:
    """Return log(1 + eˣ) = max(x, 0) + log(1 + t), t = e^−|x|; as in :func:`log`, of (1 + t)/2."""
    t = exp(-abs(x))
    is_halved = t > math.sqrt(2.0) - 1.0
    f, divisor = (t - 1.0, 3.0 + t) if is_halved else (t, 2.0 + t)
    s = f / divisor
    square, total = s * s, 0.0
    for c in _LOG:
        total = total * square + c
    rest = 2.0 * s + s * square * total
    return (x if x > 0.0 else 0.0) + (rest + math.log(2.0) if is_halved else rest)


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


_LOG_HALF = math.log(0.5)
# From here on e^(x²) erfc(x) is a continued fraction, of so many terms.
_ERFCX_FAR, _TERMS = 4.0, 60
# From here on terms of the expansion of I₀ at infinity fall below the other number.
_I0_FAR, _I0_SMALL = 30.0, 1e-17
_WITHOUT_COUNTS: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}


@njit(cache=True, error_model="numpy")
def _erfcx(x: float) -> float:
    if x < _ERFCX_FAR:
        return math.exp(x * x) * math.erfc(x)
    if x > 1e8:
        return 1.0 / (x * math.sqrt(math.pi))
    # Abramowitz & Stegun (1964), 7.1.14.
    tail = x
    for k in range(_TERMS, 0, -1):
        tail = x + 0.5 * k / tail
    return 1.0 / (tail * math.sqrt(math.pi))


@njit(cache=True, error_model="numpy")
def _i0e(x: float) -> float:
    """Return e^-|x| I₀(x), by sums of positive terms (Abramowitz & Stegun 1964, 9.6.12, 9.7.1)."""
    x, term, total, k = abs(x), 1.0, 1.0, 0
    while term > _I0_SMALL * total:
        k += 1
        term *= (0.5 * x / k) ** 2 if x < _I0_FAR else (k - 0.5) ** 2 / (2.0 * k * x)
        total += term
    return total * (math.exp(-x) if x < _I0_FAR else 1.0 / math.sqrt(2.0 * math.pi * x))


@njit(cache=True, error_model="numpy")
def _operation(op: int, x: float, y: float, z: float) -> float:
    if op == 0:
        return x + y
    if op == 1:
        return x * y
    if op == 2:
        return x - y
    if op == 3:
        return x / y
    if op == 4:
        return -x
    if op == 5:
        return math.exp(x)
    if op == 6:
        return math.log(x)
    if op == 7:
        return math.log1p(x)
    if op == 8:
        return math.expm1(x)
    if op == 9:
        return math.sqrt(x)
    if op == 10:
        return x**y
    if op == 11:
        return abs(x)
    if op == 12:
        return 1.0 if x > y else 0.0
    if op == 13:
        return 1.0 if x >= y else 0.0
    if op == 14:
        return 1.0 if x == y else 0.0
    if op == 15:
        return 1.0 if x != y else 0.0
    if op == 16:
        return 1.0 if x != 0.0 and y != 0.0 else 0.0
    if op == 17:
        return 1.0 if x != 0.0 or y != 0.0 else 0.0
    if op == 18:
        return 1.0 if x == 0.0 else 0.0
    if op == 19:
        return y if x != 0.0 else z
    if op == 20:
        return x if x >= y or x != x else y
    if op == 21:
        return x if x <= y or x != x else y
    if op == 22:
        return math.lgamma(x)
    if op == 23:
        return math.erf(x)
    if op == 24:
        return math.erfc(x)
    if op == 25:
        return math.tanh(x)
    if op == 26:
        return math.sin(x)
    if op == 27:
        return math.cos(x)
    if op == 28:
        return 1.0 / (1.0 + math.exp(-x))
    if op == 29:
        return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
    if op == 30:
        return math.log1p(-math.exp(x)) if x < _LOG_HALF else math.log(-math.expm1(x))
    if op == 31:
        return 1.0 if math.isnan(x) else 0.0
    if op == 32:
        return x if x == 0.0 or math.isnan(x) else math.copysign(1.0, x)
    if op == 33:
        return _erfcx(x)
    if op == 34:
        return 1.0 if math.isinf(x) else 0.0
    if op == 35:
        return math.atan2(x, y)
    if op == 36:
        return float(math.trunc(x)) if abs(x) < math.inf else math.nan
    if op == 38:
        return x - y * z
    if op == 39:
        return _i0e(x)
    if 0.0 < x < math.inf and 0.0 < y < math.inf:
        return betaln(x, y)
    return math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y)


@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def _factorize(triangle: Array) -> None:
    """Overwrite the rows of a lower triangle with those of its Cholesky factor, or NaN."""
    i = start = 0
    while start < triangle.size:
        own, square, begin = triangle[start : start + i + 1], 0.0, 0
        for j in range(i):
            other, total = triangle[begin : begin + j + 1], own[j]
            for k in range(j):
                total -= own[k] * other[k]
            own[j] = total / other[j]
            square += own[j] * own[j]
            begin += j + 1
        own[i] = math.sqrt(own[i] - square)
        i, start = i + 1, start + i + 1


@njit(**_WITHOUT_COUNTS)
def _run_row(op: int, to: Array, x: Array, y: Array, z: Array) -> None:
    """Execute one operation for many rows; all loops but the last compute several at a time."""
    count = to.size
    if op == 0:
        for k in range(count):
            to[k] = x[k] + y[k]
    elif op == 1:
        for k in range(count):
            to[k] = x[k] * y[k]
    elif op == 2:
        for k in range(count):
            to[k] = x[k] - y[k]
    elif op == 3:
        for k in range(count):
            to[k] = x[k] / y[k]
    elif op == 4:
        for k in range(count):
            to[k] = -x[k]
    elif op == 5:
        for k in range(count):
            to[k] = exp(x[k])
    elif op == 6:
        for k in range(count):
            to[k] = log(x[k])
    elif op == 7:
        for k in range(count):
            to[k] = log1p(x[k])
    elif op == 9:
        for k in range(count):
            to[k] = math.sqrt(x[k])
    elif op == 11:
        for k in range(count):
            to[k] = abs(x[k])
    elif op == 12:
        for k in range(count):
            to[k] = 1.0 if x[k] > y[k] else 0.0
    elif op == 13:
        for k in range(count):
            to[k] = 1.0 if x[k] >= y[k] else 0.0
    elif op == 14:
        for k in range(count):
            to[k] = 1.0 if x[k] == y[k] else 0.0
    elif op == 16:
        for k in range(count):
            to[k] = 1.0 if (x[k] != 0.0) & (y[k] != 0.0) else 0.0
    elif op == 17:
        for k in range(count):
            to[k] = 1.0 if (x[k] != 0.0) | (y[k] != 0.0) else 0.0
    elif op == 19:
        for k in range(count):
            yes, no = y[k], z[k]
            to[k] = yes if x[k] != 0.0 else no
    elif op == 20:
        for k in range(count):
            to[k] = x[k] if (x[k] >= y[k]) | (x[k] != x[k]) else y[k]
    elif op == 21:
        for k in range(count):
            to[k] = x[k] if (x[k] <= y[k]) | (x[k] != x[k]) else y[k]
    elif op == 22:
        for k in range(count):
            to[k] = gammaln(x[k])
        for k in range(count):
            if not 0.0 < x[k] < math.inf:
                to[k] = math.lgamma(x[k])
    elif op == 37:
        for k in range(count):
            to[k] = betaln(x[k], y[k])
        for k in range(count):
            if not (0.0 < x[k] < math.inf and 0.0 < y[k] < math.inf):
                to[k] = _operation(op, x[k], y[k], 0.0)
    elif op == 28:
        for k in range(count):
            to[k] = 1.0 / (1.0 + exp(-x[k]))
    elif op == 29:
        for k in range(count):
            to[k] = softplus(x[k])
    else:
        for k in range(count):
            to[k] = _operation(op, x[k], y[k], z[k])


@njit(**_WITHOUT_COUNTS)
def run_tape(code: Index, r: Array) -> None:
    """Execute all instructions on the registers ``r``.

    A row of ``code`` has opcode, register of the result, and registers of up to three arguments;
    that of a factorisation the first register of a triangle, twice, and the last one; the first of
    several that are executed at once has their number, see :func:`.in_runs`.
    """
    i, size = 0, code.shape[0]
    while i < size:
        op = code[i, 0]
        if op == 0:
            while i < size and code[i, 0] == 0:
                r[np.uint64(code[i, 1])] = r[np.uint64(code[i, 2])] + r[np.uint64(code[i, 3])]
                i += 1
        elif op == 1:
            while i < size and code[i, 0] == 1:
                r[np.uint64(code[i, 1])] = r[np.uint64(code[i, 2])] * r[np.uint64(code[i, 3])]
                i += 1
        elif op == FACTORIZE:
            _factorize(r[code[i, 1] : code[i, 3] + 1])
            i += 1
        elif op >= RUN:
            count = op // RUN
            to, x, y, z = code[i, 1], code[i, 2], code[i, 3], code[i, 4]
            _run_row(
                op % RUN, r[to : to + count], r[x : x + count], r[y : y + count], r[z : z + count]
            )
            i += count
        else:
            x, y, z = r[code[i, 2]], r[code[i, 3]], r[code[i, 4]]
            r[code[i, 1]] = _operation(op, x, y, z)
            i += 1


@njit(**_WITHOUT_COUNTS)
def run_rows(code: Index, first: int, last: int, r: Array) -> None:
    """Execute instructions from ``first`` to ``last`` for many rows.

    ``r`` has the shape (registers, rows).
    """
    for i in range(first, last):
        to, x, y, z = code[i, 1], code[i, 2], code[i, 3], code[i, 4]
        _run_row(code[i, 0], r[to], r[x], r[y], r[z])
