"""The loops that run any tape: compiled functions for all graphs.

In :func:`run_rows` a register is a vector, which has a number for each of many rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, Index

from .elementary import (
    betaln,
    erf,
    erfc,
    erfcx,
    exp,
    expm1,
    gammaln,
    log,
    log1mexp,
    log1p,
    softplus,
    tanh,
)
from .tape import FACTORIZE, RUN

# From here on terms of the expansion of I₀ at infinity fall below the other number.
_I0_FAR, _I0_SMALL = 30.0, 1e-17
_WITHOUT_COUNTS: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}


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
        return expm1(x)
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
        return erf(x)
    if op == 24:
        return erfc(x)
    if op == 25:
        return tanh(x)
    if op == 26:
        return math.sin(x)
    if op == 27:
        return math.cos(x)
    if op == 28:
        return 1.0 / (1.0 + math.exp(-x))
    if op == 29:
        return softplus(x)
    if op == 30:
        return log1mexp(x)
    if op == 31:
        return 1.0 if math.isnan(x) else 0.0
    if op == 32:
        return x if x == 0.0 or math.isnan(x) else math.copysign(1.0, x)
    if op == 33:
        return erfcx(x)
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
    elif op == 8:
        for k in range(count):
            to[k] = expm1(x[k])
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
    elif op == 15:
        for k in range(count):
            to[k] = 1.0 if x[k] != y[k] else 0.0
    elif op == 16:
        for k in range(count):
            to[k] = 1.0 if (x[k] != 0.0) & (y[k] != 0.0) else 0.0
    elif op == 17:
        for k in range(count):
            to[k] = 1.0 if (x[k] != 0.0) | (y[k] != 0.0) else 0.0
    elif op == 18:
        for k in range(count):
            to[k] = 1.0 if x[k] == 0.0 else 0.0
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
    elif op == 23:
        for k in range(count):
            to[k] = erf(x[k])
    elif op == 24:
        for k in range(count):
            to[k] = erfc(x[k])
    elif op == 25:
        for k in range(count):
            to[k] = tanh(x[k])
    elif op == 28:
        for k in range(count):
            to[k] = 1.0 / (1.0 + exp(-x[k]))
    elif op == 29:
        for k in range(count):
            to[k] = softplus(x[k])
    elif op == 30:
        for k in range(count):
            to[k] = log1mexp(x[k])
    elif op == 31:
        for k in range(count):
            to[k] = 1.0 if x[k] != x[k] else 0.0
    elif op == 33:
        for k in range(count):
            to[k] = erfcx(x[k])
    elif op == 34:
        for k in range(count):
            to[k] = 1.0 if abs(x[k]) == math.inf else 0.0
    elif op == 37:
        for k in range(count):
            to[k] = betaln(x[k], y[k])
        for k in range(count):
            if not (0.0 < x[k] < math.inf and 0.0 < y[k] < math.inf):
                to[k] = _operation(op, x[k], y[k], 0.0)
    elif op == 38:
        for k in range(count):
            to[k] = x[k] - y[k] * z[k]
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
