"""The loop that runs any tape: one compiled function for all graphs."""

from __future__ import annotations

import math

from numba import njit

from pymc_augconj.typing import Array, Index

__all__ = ["run_tape"]

_LOG_HALF = math.log(0.5)


@njit(cache=True, error_model="numpy")
def run_tape(code: Index, r: Array) -> None:
    """Execute all instructions.

    Parameters
    ----------
    code : ndarray of int, shape (n, 5)
        Opcode, register of the result, and registers of up to three arguments.
    r : ndarray
        The registers, overwritten.
    """
    for i in range(code.shape[0]):
        op = code[i, 0]
        x, y, z = r[code[i, 2]], r[code[i, 3]], r[code[i, 4]]
        if op == 0:
            value = x + y
        elif op == 1:
            value = x * y
        elif op == 2:
            value = x - y
        elif op == 3:
            value = x / y
        elif op == 4:
            value = -x
        elif op == 5:
            value = math.exp(x)
        elif op == 6:
            value = math.log(x)
        elif op == 7:
            value = math.log1p(x)
        elif op == 8:
            value = math.expm1(x)
        elif op == 9:
            value = math.sqrt(x)
        elif op == 10:
            value = x**y
        elif op == 11:
            value = abs(x)
        elif op == 12:
            value = 1.0 if x > y else 0.0
        elif op == 13:
            value = 1.0 if x >= y else 0.0
        elif op == 14:
            value = 1.0 if x == y else 0.0
        elif op == 15:
            value = 1.0 if x != y else 0.0
        elif op == 16:
            value = 1.0 if x != 0.0 and y != 0.0 else 0.0
        elif op == 17:
            value = 1.0 if x != 0.0 or y != 0.0 else 0.0
        elif op == 18:
            value = 1.0 if x == 0.0 else 0.0
        elif op == 19:
            value = y if x != 0.0 else z
        elif op == 20:
            value = x if x >= y or x != x else y
        elif op == 21:
            value = x if x <= y or x != x else y
        elif op == 22:
            value = math.lgamma(x)
        elif op == 23:
            value = math.erf(x)
        elif op == 24:
            value = math.erfc(x)
        elif op == 25:
            value = math.tanh(x)
        elif op == 26:
            value = math.sin(x)
        elif op == 27:
            value = math.cos(x)
        elif op == 28:
            value = 1.0 / (1.0 + math.exp(-x))
        elif op == 29:
            value = max(x, 0.0) + math.log1p(math.exp(-abs(x)))
        elif op == 30:
            value = math.log1p(-math.exp(x)) if x < _LOG_HALF else math.log(-math.expm1(x))
        elif op == 31:
            value = 1.0 if math.isnan(x) else 0.0
        else:
            value = x if x == 0.0 or math.isnan(x) else math.copysign(1.0, x)
        r[code[i, 1]] = value
