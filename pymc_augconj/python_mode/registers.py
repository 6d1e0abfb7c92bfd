"""Registers of a tape as arrays: a formula of NumPy and SciPy called with them is written on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Protocol

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from pymc_augconj.typing import Index


class NoTapeError(Exception):
    """A graph has an operation without an opcode, or is large."""


# Opcodes of ufuncs, by name.
_UFUNCS = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "TrueDiv", "negative": "Neg",
    "exp": "Exp", "log": "Log", "log1p": "Log1p", "expm1": "Expm1", "sqrt": "Sqrt",
    "power": "Pow", "square": "Sqr", "absolute": "Abs", "sign": "Sign", "isnan": "IsNan",
    "greater": "GT", "greater_equal": "GE", "less": "LT", "less_equal": "LE", "equal": "EQ",
    "not_equal": "NEQ", "bitwise_and": "AND", "logical_and": "AND", "bitwise_or": "OR",
    "logical_or": "OR", "invert": "Invert", "logical_not": "Invert", "maximum": "Maximum",
    "minimum": "Minimum", "gammaln": "GammaLn", "betaln": "BetaLn", "erf": "Erf",
    "erfc": "Erfc", "tanh": "Tanh", "erfcx": "Erfcx", "sin": "Sin", "cos": "Cos",
    "expit": "Sigmoid", "i0e": "I0e",
}  # fmt: skip


def _log_add_exp(x: Any, y: Any) -> Any:
    if x.ndim == 0 and not x.index:  # register 0 is the number zero
        return _softplus(y)
    return np.maximum(x, y) + np.log1p(np.exp(-np.abs(x - y)))


def _softplus(x: Registers) -> Registers:
    return x.applied("Softplus", x)


def _log_ndtr(x: Any) -> Any:
    z = x / math.sqrt(2.0)
    left = np.log(0.5 * _erfcx(-z)) - z**2
    return np.where(x < -1.0, left, np.log1p(-0.5 * _erfc(z)))


def _erfc(x: Registers) -> Registers:
    return x.applied("Erfc", x)


def _erfcx(x: Registers) -> Registers:
    return x.applied("Erfcx", x)


# Functions that only arrange what they are given.
_OF_INDEX = (np.concatenate, np.stack, np.expand_dims, np.broadcast_to)

# Ufuncs that are made of others.
_FORMULAS: dict[str, Callable[..., Any]] = {
    "logaddexp": _log_add_exp,
    "log_expit": lambda x: -_softplus(-x),
    "log_ndtr": _log_ndtr,
    "ndtr": lambda x: 0.5 * _erfc(x / -math.sqrt(2.0)),
    "xlogy": lambda x, y: np.where(x == 0.0, 0.0, x * np.log(y)),
    "xlog1py": lambda x, y: np.where(x == 0.0, 0.0, x * np.log1p(y)),
}


class Writer(Protocol):
    """An object that writes the instructions of a tape."""

    def constants(self, values: Any) -> Index:
        """Return the registers of numbers."""

    def apply(self, name: str, *arguments: Index) -> Index:
        """Write an operation, and return the registers of its results."""


class Registers(NDArrayOperatorsMixin):
    """Registers of a value as an array, by their numbers ``index`` on a tape.

    A formula of NumPy and SciPy that is called with these is written on the tape.
    """

    def __init__(self, tape: Writer, index: Index) -> None:
        self.tape, self.index = tape, index

    def applied(self, name: str, *arguments: Any) -> Registers:
        """Return an operation of the tape on registers and numbers."""
        return Registers(self.tape, self.tape.apply(name, *map(self._index, arguments)))

    def _index(self, value: Any) -> Index:
        return value.index if isinstance(value, Registers) else self.tape.constants(value)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        name = ufunc.__name__
        if method == "reduce" and options == {"axis": 0}:
            return reduce(ufunc, *inputs)
        if method == "outer" and not options:
            left, right = inputs
            return ufunc(np.expand_dims(left, tuple(range(-right.ndim, 0))), right)
        if method != "__call__" or options:
            raise NoTapeError(f"{name} with options")
        if name == "power" and isinstance(inputs[1], int | float) and inputs[1] == 2:
            name, inputs = "square", inputs[:1]
        if name in _UFUNCS:
            return self.applied(_UFUNCS[name], *inputs)
        if name not in _FORMULAS:
            raise NoTapeError(name)
        return _FORMULAS[name](*(Registers(self.tape, self._index(x)) for x in inputs))

    def __array_function__(
        self, function: Any, types: Any, args: Sequence[Any], kwargs: Any
    ) -> Any:
        if function is np.where and len(args) == 3:
            return self.applied("Switch", *args)
        if function is np.sum and kwargs == {"axis": 0}:
            return reduce(np.add, *args)
        if function is np.shape:
            return args[0].shape
        if function is np.zeros_like:
            return Registers(self.tape, np.zeros_like(self.index))
        if function in _OF_INDEX:
            first, *others = args
            several = isinstance(first, list | tuple)
            given = [self._index(x) for x in first] if several else self._index(first)
            return Registers(self.tape, function(given, *others, **kwargs))
        raise NoTapeError(function.__name__)

    def __array__(self, *options: Any) -> np.ndarray:
        raise NoTapeError("numbers that are not known")

    def __getitem__(self, key: Any) -> Registers:
        return Registers(self.tape, self.index[key])

    def astype(self, dtype: type) -> Registers:
        """Return the same, as all are floats; raise NoTapeError for another type."""
        if dtype is not float:
            raise NoTapeError(f"numbers as {dtype.__name__}")
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        return self.index.shape

    @property
    def size(self) -> int:
        return self.index.size

    @property
    def ndim(self) -> int:
        return self.index.ndim
