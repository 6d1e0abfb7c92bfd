"""Elementary functions without branches, for compiled loops over rows.

Compilers call the C library's functions row by row. These are polynomials between bits that are
added and masked, of which processors compute several rows at a time: 1 to 4 ns a row where the
library takes 5 to 50. Errors are 1.5 units in the last place, those of log Γ some 1e-14, and those
of eˣ − 1, log(1 − eˣ), tanh and the error functions 8 units.

References
----------
Shepherd & Laframboise (1981), Chebyshev approximation of (1 + 2x) exp(x²) erfc(x) in 0 ≤ x < ∞.
Mathematics of Computation 36.
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
inline = njit(cache=True, error_model="numpy", **_OPTIONS)
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


@inline
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


@inline
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


@inline
def log1p(x: float) -> float:
    """Return log(1 + x), with what rounding takes from 1 + x added to first order."""
    total = 1.0 + x
    lost = (x - (total - 1.0)) / total
    return log(total) + (lost if 0.0 < total < math.inf else 0.0)


@inline
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


@inline
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


@inline
def gammaln(x: float) -> float:
    """Return log Γ(x) for 0 < x < ∞."""
    return (x - 0.5) * log(x) - x + _HALF_LOG_2_PI + _beyond_stirling(x)


@inline
def _log_ratio(x: float, y: float) -> float:
    """Return log(1 + y/x)."""
    ratio = y / x
    return log1p(ratio) if ratio < _LARGE else log(y) - log(x)


@inline
def betaln(x: float, y: float) -> float:
    """Return log B(x, y) for 0 < x, y < ∞, in which large logarithms of Γ would cancel."""
    total = x + y
    rest = _beyond_stirling(x) + _beyond_stirling(y) - _beyond_stirling(total)
    return (
        rest + _HALF_LOG_2_PI - 0.5 * log(total)
        - (x - 0.5) * _log_ratio(x, y) - (y - 0.5) * _log_ratio(y, x)
    )  # fmt: skip


# Where eˣ − 1 and the error function are series, and where log(1 − eˣ) is one of eˣ − 1.
_SMALL, _LOG_HALF = 0.5, math.log(0.5)
_EXPM1 = tuple(1.0 / math.factorial(k) for k in range(15, 0, -1))
_ERF = tuple(
    2.0 / math.sqrt(math.pi) * (-1) ** k / (math.factorial(k) * (2 * k + 1))
    for k in range(12, -1, -1)
)
# Coefficients of Chebyshev polynomials of (x − 4)/(x + 4), whose sum is (1 + 2x) e^(x²) erfc(x).
_ERFCX = (
    1.1774832005374487,
    -0.007260796620301902,
    -0.081265123236185,
    0.06009212804122225,
    -0.02875393558027666,
    0.01059566336347286,
    -0.0031369272945542654,
    0.0007456494372536172,
    -0.00013696965030100656,
    1.7183861600299795e-05,
    -7.158364623461607e-07,
    -2.426139944256021e-07,
    5.5765709394617676e-08,
    -2.105786952444284e-09,
    -1.171788936227635e-09,
    1.9098355071122482e-10,
    1.4088716656105476e-11,
    -6.901109277584013e-12,
    9.167865689290767e-14,
    2.1454418790106403e-13,
    -1.4717436828044463e-14,
    -6.6695024277675e-15,
    7.496683094334168e-16,
    2.2125474681041606e-16,
    -3.242130188968056e-17,
)
_HIGH, _LOW = _ERFCX[:12:-1], _ERFCX[12:0:-1]
# A mask of the first digits of a number; and numbers whose squares are out of range.
_FIRST_DIGITS, _FAR_OUT = -(1 << 27), 28.0


@inline
def expm1(x: float) -> float:
    """Return eˣ − 1."""
    total = 0.0
    for c in _EXPM1:
        total = total * x + c
    return total * x if abs(x) < _SMALL else exp(x) - 1.0


@inline
def log1mexp(x: float) -> float:
    """Return log(1 − eˣ) for x < 0."""
    is_near, t = x > _LOG_HALF, exp(x)
    total = -expm1(x) if is_near else 1.0 - t
    lost = 0.0 if is_near else (total - 1.0 + t) / total
    return log(total) - lost


@inline
def tanh(x: float) -> float:
    """Return tanh x."""
    t = expm1(-2.0 * abs(x))
    found = -t / (2.0 + t)
    return -found if x < 0.0 else found


@inline
def _exp_of_square(x: float, sign: float) -> float:
    """Return e^(x²) or e^(−x²), with what rounding takes from x²."""
    x = abs(x)
    x = _FAR_OUT if x > _FAR_OUT else x
    first = _number_of(_bits_of(x) & _FIRST_DIGITS)
    rest = sign * (x - first) * (x + first)
    return exp(sign * first * first) * (1.0 + rest * (1.0 + rest * (0.5 + rest * (1.0 / 6.0))))


@inline
def _erfcx_of_positive(x: float) -> float:
    """Return e^(x²) erfc(x) for x ≥ 0, by Clenshaw's sum."""
    t = 1.0 - 8.0 / (x + 4.0)
    one = two = 0.0
    # Longer loops are not unrolled, and then not for several rows at a time.
    for c in _HIGH:
        one, two = 2.0 * t * one - two + c, one
    for c in _LOW:
        one, two = 2.0 * t * one - two + c, one
    return (t * one - two + _ERFCX[0]) / (1.0 + 2.0 * x)


@inline
def erfcx(x: float) -> float:
    """Return e^(x²) erfc(x)."""
    found = _erfcx_of_positive(abs(x))
    return 2.0 * _exp_of_square(x, 1.0) - found if x < 0.0 else found


@inline
def erfc(x: float) -> float:
    """Return erfc(x)."""
    found = _erfcx_of_positive(abs(x)) * _exp_of_square(x, -1.0)
    return 2.0 - found if x < 0.0 else found


@inline
def erf(x: float) -> float:
    """Return erf(x)."""
    square, total = x * x, 0.0
    for c in _ERF:
        total = total * square + c
    return total * x if abs(x) < _SMALL else 1.0 - erfc(x)
