"""One operation of a graph as a Python function: the lowering that all execution here shares.

A value is an array, or in a graph lowered with ``numbers`` a *number* where the type has one entry:
a Python float, int or bool. Numbers broadcast against arrays of any shape, and their arithmetic
costs 50 ns where NumPy's takes 1 µs. Operations that have no function here are executed by
PyTensor's own thunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from math import log
from typing import Any

import numpy as np
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.link.c.op import COp
from pytensor.scalar.basic import Cast, Clip, Identity, ScalarOp, ScalarType, Second
from pytensor.scalar.math import Log1mexp, Softplus
from pytensor.tensor.basic import (
    Alloc,
    AllocDiag,
    ARange,
    MakeVector,
    ScalarFromTensor,
    TensorFromScalar,
)
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.shape import Reshape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import AdvancedIncSubtensor, IncSubtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.utils import import_func_from_string

from pymc_augconj.typing import Index

from .arrays import MAKERS, Call, first, formula, formula_of, of_type, performed

_LOG_HALF = log(0.5)
_DTYPES = frozenset({"float64", "int64", "bool"})
_import = cache(import_func_from_string)
# Operations that leave a number as it is.
_KEEPING = (
    *(Alloc, AllocDiag, CumOp, DeepCopyOp, DimShuffle, Reshape, ScalarFromTensor, SpecifyShape),
    *(TensorFromScalar, ViewOp),
)
# Operations whose functions here take a number as well as an array of it.
_OF_NUMBERS_TOO = (Alloc, ARange, Elemwise, MakeVector)


def lower(node: Apply, *, numbers: bool = False, in_double: bool = False) -> tuple[Call, bool]:
    """Return a function of the values of the node's inputs, and whether it returns a number.

    It returns the output's value, the outputs' values if there are several; of a number perhaps an
    array. With ``in_double`` elementwise operations of single precision are executed in double.
    """
    op, (out, *others) = node.op, node.outputs
    given = [numbers and is_number(var) for var in node.inputs]
    found = numbers and not others and is_number(out)
    if numbers and all(given) and isinstance(op, Elemwise):
        function = _of_numbers(node)
        if isinstance(function, str):
            function = formula(function, len(given))
        if function is not None:
            # A type may not know what rewriting its inputs has shown.
            return (function if found else _filled(function, out)), found
    # A sum of truth values is an integer.
    is_sum = isinstance(op, CAReduce) and node.inputs[0].dtype == out.dtype
    if found and (is_sum or isinstance(op, _KEEPING)) and given[0]:
        return first, True
    if isinstance(op, Elemwise):
        function = _elementwise(node, given, in_double)
    else:
        make = _maker_of(op.__class__)
        function = None if make is None or others else make(node)
    if function is not None and isinstance(op, IncSubtensor | AdvancedIncSubtensor):
        given[1] = False  # what is written to an array may be a number
    if function is None or not isinstance(op, _OF_NUMBERS_TOO):
        function = _of_arrays(function or performed(node), node.inputs, given)
    if not (found or others) and isinstance(out.type, TensorType) and out.type.ndim == 0:
        function = of_type(function, None)  # of NumPy's scalars
    return function, found and isinstance(op, Shape_i)


@cache
def _maker_of(kind: Any) -> Callable[[Apply], Call | None] | None:
    return next((make for known, make in MAKERS.items() if issubclass(kind, known)), None)


def is_number(var: Variable) -> bool:
    """Return whether ``var`` is represented by a Python number."""
    if not isinstance(var.type, ScalarType | TensorType):
        return False
    if any(length != 1 for length in getattr(var.type, "shape", ())):
        return False
    # Constants are of the smallest types that hold them.
    is_real = np.dtype(var.type.dtype).kind in "iuf" and _is_constant(var)
    return var.type.dtype in _DTYPES or is_real


def _is_constant(var: Variable) -> bool:
    """Return whether ``var`` is a constant, with dimensions of one added, or one of two."""
    if var.owner is None:
        return isinstance(var, Constant)
    op, inputs = var.owner.op, var.owner.inputs
    if isinstance(op, Elemwise) and type(op.scalar_op).__name__ == "Switch":
        return all(map(_is_constant, inputs[1:]))
    return isinstance(op, DimShuffle) and _is_constant(inputs[0])


def _filled(function: Call, out: Variable) -> Call:
    return lambda *values: np.array(function(*values), dtype=out.dtype, ndmin=out.type.ndim)


def _of_arrays(function: Call, inputs: Sequence[Variable], given: Sequence[bool]) -> Call:
    """Return a function of numbers and arrays, given one of arrays alone."""
    source, values = formula_of(function, len(inputs))
    for i, (var, is_one) in enumerate(zip(inputs, given, strict=True)):
        if is_one and isinstance(var, Constant):
            source, values = source.replace(f"{{{i}}}", f"{{a{i}}}"), values | {f"a{i}": var.data}
        elif is_one and isinstance(var.type, TensorType):
            made = f"{{array}}({{{i}}}, dtype='{var.dtype}', ndmin={var.type.ndim})"
            source, values = source.replace(f"{{{i}}}", made), values | {"array": np.array}
    return formula(source, len(inputs), **values) if any(given) else function


# -- elementwise -----------------------------------------------------------------------------------


# Functions of numbers, by the scalar op's name. Where Python raises, NumPy may return an infinity
# or NaN: the graph is then executed with arrays. The first accept truth values.
_OF_ANYTHING: dict[str, Call | str] = {
    "EQ": "{0} == {1}", "GE": "{0} >= {1}", "GT": "{0} > {1}", "LE": "{0} <= {1}",
    "LT": "{0} < {1}", "NEQ": "{0} != {1}", "Second": "{1}", "Switch": "{1} if {0} else {2}",
    "Identity": first, "IsInf": math.isinf, "IsNan": math.isnan,
}  # fmt: skip
_OF_BOOLS = {"AND": "{0} & {1}", "Invert": "not {0}", "OR": "{0} | {1}", "XOR": "{0} ^ {1}"}
_OF_MATH = (
    *("Cos", "Cosh", "Erf", "Erfc", "Exp", "Expm1", "Log", "Log10", "Log1p", "Log2", "Pow"),
    *("Sin", "Sinh", "Sqrt", "Tan", "Tanh"),
)
_OF_FLOATS: dict[str, Call | str] = {
    **{name: getattr(math, name.lower()) for name in _OF_MATH},
    "Abs": abs, "GammaLn": math.lgamma, "Neg": "-{0}", "Sub": "{0} - {1}",
    "Reciprocal": "1.0 / {0}", "Sqr": "{0} * {0}", "TrueDiv": "{0} / {1}",
    "Log1mexp": "log1p(-exp({0})) if {0} < -0.6931471805599453 else log(-expm1({0}))",
    "Maximum": "{0} if {0} >= {1} or {0} != {0} else {1}",
    "Minimum": "{0} if {0} <= {1} or {0} != {0} else {1}",
    "Sigmoid": "1.0 / (1.0 + exp(-{0}))",
    "Softplus": "max({0}, 0.0) + log1p(exp(-abs({0})))",
}  # fmt: skip
_JOINED = {"Add": " + ", "Mul": " * "}
_CONVERSIONS = {"float64": float, "int64": int, "bool": bool}


def _joined(name: str, n_arguments: int) -> str:
    return _JOINED[name].join(f"{{{i}}}" for i in range(n_arguments))


def _of_numbers(node: Apply) -> Call | str | None:
    """Return a function, or the source of one."""
    name, dtype = type(node.op.scalar_op).__name__, node.outputs[0].dtype
    if dtype not in _DTYPES:
        return _OF_ANYTHING[name] if name == "Switch" else None
    if name == "Cast":
        return _CONVERSIONS[dtype]
    dtypes = {var.dtype for var in node.inputs}
    if name in _OF_BOOLS:
        return _OF_BOOLS[name] if dtypes == {"bool"} else None
    if name in _OF_ANYTHING:
        return _OF_ANYTHING[name]
    # True + True is True in NumPy; int64 wraps around.
    if dtype != "float64" or "bool" in dtypes:
        return None
    if name in _JOINED:
        return _joined(name, len(node.inputs))
    return _OF_FLOATS.get(name)


_WITHOUT_UFUNC: dict[type[ScalarOp], Call] = {
    Cast: np.array,
    # The lower bound last: PyMC writes censoring from below as clip(x, lower, x).
    Clip: lambda x, lower, upper: np.maximum(np.minimum(x, upper), lower),
    Identity: np.array,
    Log1mexp: lambda x: np.where(x < _LOG_HALF, np.log1p(-np.exp(x)), np.log(-np.expm1(x))),
    Second: lambda x, y: np.array(np.broadcast_arrays(x, y)[1]),
    Softplus: lambda x: np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))),
}


def _elementwise(node: Apply, given: Sequence[bool], in_double: bool) -> Call | None:
    scalar_op, (out, *others) = node.op.scalar_op, node.outputs
    spec: Any = node.op.nfunc_spec or getattr(scalar_op, "nfunc_spec", None)
    without = _WITHOUT_UFUNC.get(type(scalar_op))
    if others or (spec is None and without is None):
        return None
    raised = in_double and out.dtype == "float32"
    dtype = "float64" if raised else out.dtype
    dtypes = [var.dtype for var in node.inputs]
    function: Any = without or _import(spec[0])
    if isinstance(scalar_op, Cast):
        function = partial(np.array, dtype=dtype)
    elif isinstance(function, np.ufunc):
        n_used, target = function.nin, node.op.inplace_pattern.get(0, len(dtypes))
        if len(dtypes) == n_used and dtype[0] == "f" and np.dtype(dtypes[0]).kind in "biu":
            # Of int8 NumPy computes a root or a quotient in half precision.
            char = np.dtype(dtype).char
            function = partial(function, signature=char * n_used + "->" + char)
        # A sum may have one term.
        known = target < min(n_used, len(given))
        in_place = known and n_used <= 2 and not given[target] and dtypes[target] == dtype
        if in_place or len(dtypes) != n_used:
            function = _by_ufunc(function, node, f", out={{{target}}}" if in_place else "")
    if raised:
        function = _in_double(function)
    # Beside a number NumPy keeps the type of an array, of single precision say; of numbers alone it
    # makes no array.
    arrays = {var.dtype for var, is_one in zip(node.inputs, given, strict=True) if not is_one}
    if not {dtype, *arrays} <= {"float64", "bool"}:
        function = of_type(function, dtype)
    function = _of_equal_lengths(function, node, given)
    return function if arrays and arrays <= _DTYPES else _of_arrays(function, node.inputs, given)


def _by_ufunc(function: np.ufunc, node: Apply, out: str) -> Call:
    """Return a ufunc that writes to ``out``, one of two arguments also for more."""
    name, count = type(node.op.scalar_op).__name__, len(node.inputs)
    if not out and name in _JOINED and node.outputs[0].dtype == "float64":
        # In an expression NumPy overwrites large intermediate results.
        return formula(_joined(name, count), count)
    source = "{0}" if count > 1 else f"{{f}}({{0}}{out})"
    for i in range(1, count):
        source = f"{{f}}({source}, {{{i}}}{out})"
    return formula(source, count, f=function)


def _in_double(function: Call) -> Call:
    return lambda *values: function(
        *(np.asarray(v, float) if v.dtype == np.float32 else v for v in values)
    )


def _of_equal_lengths(function: Call, node: Apply, given: Sequence[bool]) -> Call:
    """Compare the lengths that the types do not know: a one is not to be broadcast."""
    shapes = {i: node.inputs[i].type.shape for i, is_one in enumerate(given) if not is_one}
    compared = [
        (axis, i, j)
        for axis in range(node.outputs[0].type.ndim)
        for i, j in pairwise(i for i, shape in shapes.items() if shape[axis] != 1)
        if None in (shapes[i][axis], shapes[j][axis])
    ]
    if not compared:
        return function

    def fail() -> None:
        raise ValueError(f"{node}: lengths of the arguments do not match")

    source, values = formula_of(function, len(given))
    equal = " and ".join(f"{{{i}}}.shape[{a}] == {{{j}}}.shape[{a}]" for a, i, j in compared)
    return formula(f"{source} if {equal} else {{fail}}()", len(given), fail=fail, **values)


# -- whether an operation is like NumPy's ----------------------------------------------------------


@cache
def _is_plain(kind: Any, *, by_thunk: bool = False) -> bool:
    if issubclass(kind, HasInnerGraph | RNGConsumerOp):
        return False
    return not by_thunk or kind.make_thunk in (Op.make_thunk, COp.make_thunk)


def is_plain(node: Apply) -> bool:
    """Return whether an operation is one of NumPy's, or is executed by PyTensor as if it were.

    Others have an inner graph to compile, draw random numbers, write to their inputs, need not
    all of their inputs, or call a Python function for every element.
    """
    op, core = node.op, getattr(node.op, "core_op", node.op)
    if op.destroy_map or not (_is_plain(op.__class__) and _is_plain(core.__class__, by_thunk=True)):
        return False
    if isinstance(op, Elemwise):
        return op.nfunc_spec is not None or type(op.scalar_op) in _WITHOUT_UFUNC
    return True


def cholesky(apply: Callable[..., Index], x: Index) -> Index:
    """Return the lower Cholesky factor of a matrix of registers, NaN if there is none.

    ``apply`` writes an operation on a tape; the upper triangle is not read.
    """
    found = np.zeros_like(x)
    for j in range(len(x)):
        column = x[j:, j]
        for k in range(j):
            column = apply("SubMul", column, found[j:, k], found[j, k])
        found[j, j] = apply("Sqrt", column[0])
        found[j + 1 :, j] = apply("TrueDiv", column[1:], found[j, j])
    return found


def solve_triangular(apply: Callable[..., Index], matrix: Index, x: Index, *, lower: bool) -> Index:
    """Return the solution of a triangular system of registers for a vector, or for columns."""
    order = slice(None) if lower else slice(None, None, -1)
    matrix, found = matrix[order, order], x[order].copy()
    for k in range(len(found)):
        found[k] = apply("TrueDiv", found[k], matrix[k, k])
        column = matrix[k + 1 :, k].reshape(-1, *[1] * (found.ndim - 1))
        found[k + 1 :] = apply("SubMul", found[k + 1 :], column, found[k])
    return found[order]
