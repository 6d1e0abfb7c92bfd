"""One operation of a rewritten graph as Python source.

A value is either a *number*, a Python float, int or bool instead of an array whose type has one
entry, or an *array*. Numbers broadcast against arrays of any shape, so that no node
that only adds dimensions remains of them, and their arithmetic costs 50 ns where NumPy's takes
1 µs. Nodes without an expression here are executed by PyTensor's own ``perform``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.basic import (
    Alloc,
    AllocDiag,
    ARange,
    Join,
    MakeVector,
    ScalarFromTensor,
    TensorFromScalar,
)
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    unflatten_index_variables,
)
from pytensor.tensor.type import TensorType
from pytensor.tensor.type_other import NoneTypeT
from pytensor.tensor.utils import import_func_from_string

__all__ = ["NAMES", "Names", "expression", "is_diagonal", "is_number", "view_of"]

_DTYPES = ("float64", "int64", "bool")
_CONVERSIONS = {"float64": "float", "int64": "int", "bool": "bool"}

#: Functions that expressions may call.
NAMES: dict[str, Any] = {
    name: getattr(math, name)
    for name in (
        *("cos", "cosh", "erf", "erfc", "exp", "expm1", "lgamma", "log", "log10", "log1p"),
        *("log2", "isinf", "isnan", "pow", "sin", "sinh", "sqrt", "tan", "tanh"),
    )
} | {"inf": math.inf, "nan": math.nan, "np": np}

# Expressions of numbers, by the scalar op's name; {0}, {1} … are the arguments. Where Python
# raises, NumPy may return an infinity or NaN: the caller then falls back to PyTensor.
_OF_NUMBERS = {
    "Abs": "abs({0})",
    "Cos": "cos({0})",
    "Cosh": "cosh({0})",
    "EQ": "({0} == {1})",
    "Erf": "erf({0})",
    "Erfc": "erfc({0})",
    "Exp": "exp({0})",
    "Expm1": "expm1({0})",
    "GE": "({0} >= {1})",
    "GT": "({0} > {1})",
    "GammaLn": "lgamma({0})",
    "Identity": "{0}",
    "IsInf": "isinf({0})",
    "IsNan": "isnan({0})",
    "LE": "({0} <= {1})",
    "LT": "({0} < {1})",
    "Log": "log({0})",
    "Log10": "log10({0})",
    "Log1p": "log1p({0})",
    "Log2": "log2({0})",
    "Maximum": "({0} if {0} >= {1} or {0} != {0} else {1})",
    "Minimum": "({0} if {0} <= {1} or {0} != {0} else {1})",
    "NEQ": "({0} != {1})",
    "Neg": "(-{0})",
    "Pow": "pow({0}, {1})",
    "Reciprocal": "(1.0 / {0})",
    "Second": "{1}",
    "Sigmoid": "(1.0 / (1.0 + exp(-{0})))",
    "Sin": "sin({0})",
    "Sinh": "sinh({0})",
    "Sqr": "({0} * {0})",
    "Sqrt": "sqrt({0})",
    "Sub": "({0} - {1})",
    "Switch": "({1} if {0} else {2})",
    "Tan": "tan({0})",
    "Tanh": "tanh({0})",
    "TrueDiv": "({0} / {1})",
}
_JOINED = {"Add": " + ", "Mul": " * "}
_OF_BOOLS = {"AND": "({0} & {1})", "Invert": "(not {0})", "OR": "({0} | {1})", "XOR": "({0} ^ {1})"}
# Those that return a truth value for numbers.
_COMPARISONS = frozenset({"EQ", "GE", "GT", "IsInf", "IsNan", "LE", "LT", "NEQ"})
# Those that accept truth values.
_OF_ANYTHING = _COMPARISONS | {"Switch", "Second", "Identity"}


class Names(Protocol):
    """What the writer of a function provides for its expressions."""

    def of(self, var: Variable) -> str:
        """Return the source of a value: a name, or the literal of a constant number."""
        ...

    def array(self, var: Variable) -> str:
        """Return the source of a value as an array of its type, also where it is a number."""
        ...

    def keep(self, value: Any) -> str:
        """Return a name for an object."""
        ...

    def require(self, condition: str) -> None:
        """Have PyTensor evaluate the graph, and perhaps raise, unless a condition holds."""
        ...


def is_number(var: Variable) -> bool:
    """Return whether ``var`` is represented by a Python number."""
    type_ = var.type
    if isinstance(type_, ScalarType):
        known = True
    elif isinstance(type_, TensorType):
        known = all(length == 1 for length in type_.shape)
    else:
        return False
    # Constants are of the smallest types that hold them.
    is_real = np.dtype(type_.dtype).kind in "iuf" and _is_constant(var)
    return known and (type_.dtype in _DTYPES or is_real)


def _is_constant(var: Variable) -> bool:
    """Return whether ``var`` is a constant, with dimensions of one added, or one of two."""
    if var.owner is None:
        return isinstance(var, Constant)
    op, inputs = var.owner.op, var.owner.inputs
    if isinstance(op, Elemwise) and type(op.scalar_op).__name__ == "Switch":
        return all(map(_is_constant, inputs[1:]))
    return isinstance(op, DimShuffle) and _is_constant(inputs[0])


def view_of(node: Apply, index: int) -> Variable | None:
    """Return the input whose memory an output may share, if there is one."""
    op = node.op
    for mapping in (getattr(op, "view_map", {}), op.destroy_map):
        if index in mapping:
            return node.inputs[mapping[index][0]]
    if isinstance(op, Elemwise) and type(op.scalar_op).__name__ in ("Identity", "Cast", "Second"):
        return node.inputs[-1]
    return None


def expression(node: Apply, names: Names) -> str | None:
    """Return source for the only output of ``node``; None if ``perform`` is to be called."""
    op = node.op
    if len(node.outputs) != 1:
        return None
    write = next((w for kind, w in _WRITERS.items() if isinstance(op, kind)), None)
    source = None if write is None else write(node, names)
    is_array = not _is_of_numbers(node) and not isinstance(op, Shape_i)
    if source is not None and is_number(node.outputs[0]) and is_array:
        return f"({source}).item()"
    return source


def _is_of_numbers(node: Apply) -> bool:
    return all(map(is_number, node.inputs))


# -- elementwise ----------------------------------------------------------------------------------


def _elementwise(node: Apply, names: Names) -> str | None:
    if _is_of_numbers(node):
        found = _of_numbers(node, [names.of(var) for var in node.inputs])
        found = found if found is not None else _by_ufunc(node, names)
        if found is None or is_number(node.outputs[0]):
            return found
        # A type that does not know what rewriting its inputs has shown.
        shape = (1,) * node.outputs[0].type.ndim
        return f"np.full({shape}, {found}, dtype='{node.outputs[0].dtype}')"
    if is_number(node.outputs[0]):
        return None
    _require_equal_lengths(node, names)
    return _of_arrays(node, names)


def _of_numbers(node: Apply, given: Sequence[str]) -> str | None:
    name = type(node.op.scalar_op).__name__
    dtype = node.outputs[0].dtype
    if dtype not in _DTYPES and not (name == "Switch" and is_number(node.outputs[0])):
        return None
    if name == "Cast":
        return f"{_CONVERSIONS[dtype]}({given[0]})"
    dtypes = {var.dtype for var in node.inputs}
    if name in _OF_BOOLS:
        return _OF_BOOLS[name].format(*given) if dtypes == {"bool"} else None
    # True + True is True in NumPy; int64 wraps around.
    if name not in _OF_ANYTHING and (dtype != "float64" or "bool" in dtypes):
        return None
    if name in _JOINED:
        return f"({_JOINED[name].join(given)})"
    template = _OF_NUMBERS.get(name)
    return None if template is None else template.format(*given)


def _of_arrays(node: Apply, names: Names) -> str | None:
    name, (out,) = type(node.op.scalar_op).__name__, node.outputs
    if out.dtype not in _DTYPES:
        return None
    if name == "Cast":
        return f"{names.of(node.inputs[0])}.astype('{out.dtype}')"
    if name == "Switch":
        condition, *branches = node.inputs
        if out.dtype != "float64" or condition.dtype != "bool":
            return None
        if any(var.dtype != "float64" and not is_number(var) for var in branches):
            return None
        given = ", ".join(
            f"float({names.of(var)})" if is_number(var) else names.of(var) for var in branches
        )
        return f"np.where({names.of(condition)}, {given})"
    if name == "Sqr" and out.dtype == "float64" == node.inputs[0].dtype:
        x = names.of(node.inputs[0])
        return f"np.multiply({x}, {x}{_in_place(node, names)})"
    return _by_ufunc(node, names)


def _by_ufunc(node: Apply, names: Names) -> str | None:
    """Return calls of NumPy's or SciPy's own function, of two arguments also for more."""
    spec = node.op.nfunc_spec or getattr(node.op.scalar_op, "nfunc_spec", None)
    if spec is None or any(v.dtype not in _DTYPES for v in node.inputs if not is_number(v)):
        return None
    function = import_func_from_string(spec[0])
    if not isinstance(function, np.ufunc) or function.nout != 1:
        return None
    if function.nin != len(node.inputs) and (function.nin != 2 or len(node.inputs) < 2):
        return None
    called, in_place = names.keep(function), _in_place(node, names)
    source, (kind, *others) = names.of(node.inputs[0]), map(_kind, node.inputs)
    if function.nin == 2:
        for var, other in zip(node.inputs[1:], others, strict=True):
            *_, kind = function.resolve_dtypes((kind, other, None))
            source = f"{called}({source}, {names.of(var)}{in_place})"
    else:
        *_, kind = function.resolve_dtypes((kind, *others, None))
        given = ", ".join(map(names.of, node.inputs))
        source = f"{called}({given}{in_place})"
    # Of int8, say, NumPy computes a root in half precision.
    if kind != np.dtype(node.outputs[0].dtype):
        return None
    return f"{source}.item()" if _is_of_numbers(node) else source


def _kind(var: Variable) -> Any:
    """Return what NumPy's promotion sees: a dtype, or the type of a Python number."""
    if not is_number(var):
        return np.dtype(var.dtype)
    return {"f": float, "b": np.dtype(bool)}.get(np.dtype(var.dtype).kind, int)


def _in_place(node: Apply, names: Names) -> str:
    """Return the argument that makes an operation overwrite the input that it may."""
    target = node.op.inplace_pattern.get(0)
    # Of several operations in turn, the first reads two inputs.
    if target is None or target > 1 or is_number(node.inputs[target]):
        return ""
    if node.inputs[target].dtype != node.outputs[0].dtype:
        return ""
    return f", out={names.of(node.inputs[target])}"


def _require_equal_lengths(node: Apply, names: Names) -> None:
    """Have lengths compared that the types do not know: PyTensor refuses to broadcast a one."""
    arrays = list(dict.fromkeys(var for var in node.inputs if not is_number(var)))
    for axis in range(node.outputs[0].type.ndim):
        within = [var for var in arrays if var.type.shape[axis] != 1]
        if any(var.type.shape[axis] is None for var in within):
            for first, second in pairwise(map(names.of, within)):
                names.require(f"{first}.shape[{axis}] == {second}.shape[{axis}]")


# -- shapes ---------------------------------------------------------------------------------------


def _dimshuffle(node: Apply, names: Names) -> str | None:
    (x,) = node.inputs
    if is_number(x):
        return _number_itself(node, names)
    if is_number(node.outputs[0]):
        return None
    kept = [axis for axis in node.op.new_order if axis != "x"]
    source = names.of(x)
    dropped = [axis for axis in range(x.type.ndim) if axis not in kept]
    if dropped:
        at = ", ".join("0" if axis in dropped else ":" for axis in range(x.type.ndim))
        source = f"{source}[{at}]"
        kept = [axis - sum(d < axis for d in dropped) for axis in kept]
    if kept != sorted(kept):
        source = f"{source}.transpose({', '.join(map(str, kept))})"
    if "x" in node.op.new_order:
        at = ", ".join("None" if axis == "x" else ":" for axis in node.op.new_order)
        source = f"{source}[{at}]"
    return source


def _view(node: Apply, names: Names) -> str | None:
    x = node.inputs[0]
    return _number_itself(node, names) if is_number(x) else names.of(x)


def _specify_shape(node: Apply, names: Names) -> str | None:
    x, *lengths = node.inputs
    if is_number(x):
        return _number_itself(node, names)
    for axis, length in enumerate(lengths):
        if is_number(length):
            names.require(f"{names.of(x)}.shape[{axis}] == {names.of(length)}")
        elif not isinstance(length.type, NoneTypeT):
            return None
    return names.of(x)


def _constant(var: Variable) -> np.ndarray | None:
    return np.asarray(var.data) if isinstance(var, Constant) else None


def _reshape(node: Apply, names: Names) -> str | None:
    x, shape = node.inputs
    if is_number(x) and is_number(node.outputs[0]):
        return names.of(x)
    lengths = _constant(shape)
    if lengths is None or is_number(node.outputs[0]):
        return None
    return f"{names.array(x)}.reshape({tuple(int(length) for length in lengths)})"


def _shape(node: Apply, names: Names) -> str | None:
    (x,) = node.inputs
    return "1" if is_number(x) else f"{names.of(x)}.shape[{node.op.i}]"


def _alloc(node: Apply, names: Names) -> str | None:
    value, *shape = node.inputs
    if is_number(node.outputs[0]):
        return names.of(value) if is_number(value) else None
    if value.dtype != "float64" or not all(map(is_number, shape)):
        return None
    lengths = ", ".join(names.of(length) for length in shape)
    if isinstance(value, Constant) and is_number(value) and value.data.item() == 0.0:
        return f"np.zeros(({lengths},))"
    if is_number(value):
        return f"np.full(({lengths},), float({names.of(value)}))"
    return None


def is_diagonal(node: Apply) -> bool:
    """Return whether a node puts a vector on the diagonal of a matrix."""
    op = node.op
    return isinstance(op, AllocDiag) and op.offset == 0 and node.inputs[0].type.ndim == 1


def _alloc_diag(node: Apply, names: Names) -> str | None:
    (x,) = node.inputs
    if not is_diagonal(node):
        return None
    return names.of(x) if is_number(node.outputs[0]) else f"np.diag({names.array(x)})"


def _arange(node: Apply, names: Names) -> str | None:
    (out,) = node.outputs
    if out.dtype not in _DTYPES or is_number(out) or not _is_of_numbers(node):
        return None
    return f"np.arange({', '.join(map(names.of, node.inputs))}, dtype='{out.dtype}')"


def _make_vector(node: Apply, names: Names) -> str | None:
    if not _is_of_numbers(node) or is_number(node.outputs[0]):
        return None
    numbers = ", ".join(names.of(var) for var in node.inputs)
    return f"np.array([{numbers}], dtype='{node.outputs[0].dtype}')"


def _join(node: Apply, names: Names) -> str | None:
    if any(part.dtype != node.outputs[0].dtype for part in node.inputs):
        return None
    arrays = ", ".join(map(names.array, node.inputs))
    return f"np.concatenate(({arrays},), axis={node.op.axis})"


def _number_itself(node: Apply, names: Names) -> str | None:
    # A constant may be a number of a type of which no other is.
    (x, *_), (out,) = node.inputs, node.outputs
    return names.of(x) if is_number(x) and is_number(out) else None


# -- indexing -------------------------------------------------------------------------------------


def _index(node: Apply, variables: Sequence[Variable], names: Names) -> str | None:
    """Return the name of a constant index."""
    flat: list[Any] = []
    for var in variables:
        value = _constant(var)
        if value is None:
            return None
        # Scalars index without copying only as plain integers.
        flat.append(int(value) if value.ndim == 0 and value.dtype.kind in "iu" else value)
    return names.keep(unflatten_index_variables(flat, node.op.idx_list))


def _subtensor(node: Apply, names: Names) -> str | None:
    x, *variables = node.inputs
    index = _index(node, variables, names)
    if index is None or is_number(x):
        return None
    return f"{names.of(x)}[{index}]"


def _advanced_subtensor(node: Apply, names: Names) -> str | None:
    x, *variables = node.inputs
    if not any(getattr(var.type, "ndim", 0) > 0 for var in variables):
        return None
    found = _subtensor(node, names)
    if found is not None or is_number(x) or is_number(node.outputs[0]):
        return found
    # Arrays of integers, one for each of the first axes.
    if tuple(node.op.idx_list) != tuple(range(len(variables))):
        return None
    if any(var.dtype != "int64" for var in variables):
        return None
    return f"{names.of(x)}[{', '.join(map(names.array, variables))}]"


def _inc_subtensor(node: Apply, names: Names) -> str | None:
    op = node.op
    x, y, *variables = node.inputs
    index = _index(node, variables, names)
    if index is None or is_number(x):
        return None
    if not is_number(y) and None in y.type.shape:
        # NumPy would broadcast what PyTensor refuses to.
        at = _constant(variables[0])
        if y.type.ndim != 1 or x.type.ndim != 1:
            return None
        if at is None or at.ndim != 1 or at.dtype == bool:
            return None
        names.require(f"{names.of(y)}.shape[0] == {at.size}")
    kind = "set" if op.set_instead_of_inc else "add"
    if kind == "add" and isinstance(op, AdvancedIncSubtensor) and not op.ignore_duplicates:
        kind = "add_at"
    source = names.of(x) if op.inplace else f"{names.of(x)}.copy()"
    return f"{names.keep(_INCREMENTS[kind])}({source}, {index}, {names.of(y)})"


def _set(x: np.ndarray, index: Any, y: Any) -> np.ndarray:
    x[index] = y
    return x


def _add(x: np.ndarray, index: Any, y: Any) -> np.ndarray:
    x[index] += y
    return x


def _add_at(x: np.ndarray, index: Any, y: Any) -> np.ndarray:
    np.add.at(x, index, y)
    return x


_INCREMENTS = {"set": _set, "add": _add, "add_at": _add_at}


# -- reductions and products ----------------------------------------------------------------------


def _reduce(node: Apply, names: Names) -> str | None:
    op, (x,), (out,) = node.op, node.inputs, node.outputs
    if is_number(x):
        return _number_itself(node, names) if x.dtype == out.dtype else None
    if {x.dtype, out.dtype, op.acc_dtype or out.dtype} not in ({"float64"}, {"bool"}):
        return None
    axis = "None" if op.axis is None else repr(tuple(op.axis))
    return f"{names.keep(op.ufunc)}.reduce({names.of(x)}, axis={axis})"


def _cumulate(node: Apply, names: Names) -> str | None:
    (x,) = node.inputs
    if is_number(x):
        return names.of(x)
    return f"np.cum{'sum' if node.op.mode == 'add' else 'prod'}({names.of(x)}, axis={node.op.axis})"


def _dot(node: Apply, names: Names) -> str | None:
    if any(var.dtype != "float64" for var in node.inputs):
        return None
    x, y = map(names.array, node.inputs)
    return f"np.dot({x}, {y})"


def _copy(node: Apply, names: Names) -> str | None:
    x = node.inputs[0]
    if is_number(x):
        return _number_itself(node, names)
    return f"{names.of(x)}.copy()" if isinstance(x.type, TensorType) else None


_WRITERS = {
    DeepCopyOp: _copy,
    Elemwise: _elementwise,
    DimShuffle: _dimshuffle,
    ViewOp: _view,
    SpecifyShape: _specify_shape,
    Reshape: _reshape,
    Shape_i: _shape,
    ARange: _arange,
    Alloc: _alloc,
    AllocDiag: _alloc_diag,
    MakeVector: _make_vector,
    Join: _join,
    ScalarFromTensor: _number_itself,
    TensorFromScalar: _number_itself,
    AdvancedSubtensor: _advanced_subtensor,
    AdvancedIncSubtensor: _inc_subtensor,
    Subtensor: _subtensor,
    IncSubtensor: _inc_subtensor,
    CAReduce: _reduce,
    CumOp: _cumulate,
    Dot: _dot,
}
