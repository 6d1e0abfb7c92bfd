"""Operations on whole arrays as Python functions: shapes, indices, sums and products."""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache, partial
from threading import Lock, RLock
from types import CodeType
from typing import Any

import numpy as np
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.tensor.basic import Alloc, AllocDiag, ARange, Join, MakeVector
from pytensor.tensor.elemwise import CAReduce, DimShuffle
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.linalg import Cholesky
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    unflatten_index_variables,
)

Call = Callable[..., Any]


def first(value: Any, *others: Any) -> Any:
    """Return the first argument."""
    return value


def formula(source: str, n_arguments: int, **values: Any) -> Call:
    """Return a function of ``{0}``, ``{1}``, … that keeps its source, for a linker to write out.

    The source may name functions of :mod:`math`, and ``values`` in braces.
    """
    function: Call = eval(_compiled(source, n_arguments, *values), vars(math) | values)
    vars(function)["formula"] = source, values
    return function


def formula_of(function: Call, n_arguments: int) -> tuple[str, dict[str, Any]]:
    """Return the source and values of a formula; of any other function a call of it."""
    given = ", ".join(f"{{{i}}}" for i in range(n_arguments))
    return getattr(function, "formula", (f"{{f}}({given})", {"f": function}))


@cache
def _compiled(source: str, n_arguments: int, *values: str) -> CodeType:
    names = [f"x{i}" for i in range(n_arguments)]
    body = source.format(*names, **{name: name for name in values})
    return compile(f"lambda {', '.join(names)}: {body}", "<formula>", "eval")


def of_type(function: Call, dtype: str | None) -> Call:
    """Return ``function`` with its result as an array, of a type or its own."""
    return lambda *values: np.asarray(function(*values), dtype=dtype)


_OF_INNER = RLock()


def performed(node: Apply) -> Call:
    """Return PyTensor's own execution of a node, as a function."""
    variables = dict.fromkeys([*node.inputs, *node.outputs])
    storage: dict[Variable, list[Any]] = {var: [None] for var in variables}
    outputs = [storage[var] for var in node.outputs]
    computed = {var: [True] for var in variables}
    thunk = node.op.make_thunk(node, storage, computed, [], impl="py")
    # Inner functions belong to an operation, which several graphs may have.
    one_thread = _OF_INNER if isinstance(node.op, HasInnerGraph) else Lock()

    def call(*values: Any) -> Any:
        with one_thread:
            for var, value in zip(node.inputs, values, strict=True):
                storage[var][0] = value
            thunk()
            found = [value for (value,) in outputs]
            for kept in storage.values():
                kept[0] = None
        return found[0] if len(found) == 1 else found

    return call


def _dimshuffle(node: Apply) -> Call:
    (x,), order = node.inputs, node.op.new_order
    kept = [axis for axis in order if axis != "x"]
    dropped = [axis for axis in range(x.type.ndim) if axis not in kept]
    index = (*(0 for _ in dropped), *(None if axis == "x" else slice(None) for axis in order), ...)
    if not dropped and kept == sorted(kept):
        return operator.itemgetter(index)
    return lambda value: value.transpose(*dropped, *kept)[index]


def _specify_shape(node: Apply) -> Call | None:
    lengths = node.inputs[1:]
    if not all(isinstance(length, Constant) for length in lengths):
        return None
    known = [(axis, int(n.data)) for axis, n in enumerate(lengths) if n.data is not None]

    def call(x: Any, *_: Any) -> Any:
        for axis, length in known:
            if x.shape[axis] != length:
                raise AssertionError(f"expected {length} on axis {axis}, found {x.shape}")
        return x

    return call


def _reshape(node: Apply) -> Call:
    shape = node.inputs[1]
    if not isinstance(shape, Constant):
        return np.reshape
    lengths = tuple(map(int, shape.data))
    return lambda x, _: x.reshape(lengths)


def _alloc(node: Apply) -> Call | None:
    (value, *lengths), dtype = node.inputs, np.dtype(node.outputs[0].dtype)
    # PyTensor refuses to broadcast a length of one that the type does not know.
    if None in value.type.shape:
        return None
    known = all(isinstance(length, Constant) for length in lengths)
    shape = tuple(int(length.data) for length in lengths) if known else None

    def call(x: Any, *lengths: Any) -> Any:
        array = np.empty(tuple(map(int, lengths)) if shape is None else shape, dtype)
        array[...] = x
        return array

    return call


# -- indices ---------------------------------------------------------------------------------------


def _index(node: Apply, variables: Sequence[Variable]) -> Any:
    """Return a constant index; None if it is not."""
    if not all(isinstance(var, Constant) for var in variables):
        return None
    # Scalars index without copying only as plain integers.
    flat = [int(v.data) if np.ndim(v.data) == 0 else v.data for v in variables]
    return unflatten_index_variables(flat, node.op.idx_list)


def _subtensor(node: Apply) -> Call | None:
    op, (_, *variables) = node.op, node.inputs
    index = _index(node, variables)
    if index is not None:
        return formula("{0}[{index}]", len(node.inputs), index=index)
    # Arrays of integers, one for each of the first axes.
    plain = tuple(op.idx_list) == tuple(range(len(variables)))
    if isinstance(op, AdvancedSubtensor) and plain and {v.dtype for v in variables} == {"int64"}:
        return lambda x, *indices: x[indices]
    return None


def _inc_subtensor(node: Apply) -> Call | None:
    op, (x, y, *variables) = node.op, node.inputs
    index = _index(node, variables)
    if index is None:
        return None
    size = None
    if None in y.type.shape:
        # NumPy would broadcast a length of one that PyTensor refuses to.
        at = np.asarray(variables[0].data if variables else None)
        if (x.type.ndim, y.type.ndim, at.ndim, at.dtype.kind) != (1, 1, 1, "i"):
            return None
        size = len(at)
    is_set, inplace = op.set_instead_of_inc, op.inplace
    repeats = isinstance(op, AdvancedIncSubtensor) and not op.ignore_duplicates

    def call(x: Any, y: Any, *_: Any) -> Any:
        if size is not None and len(y) != size:
            raise ValueError(f"expected {size} values for as many indices, found {len(y)}")
        x = x if inplace else x.copy()
        if is_set:
            x[index] = y
        elif repeats:
            np.add.at(x, index, y)
        else:
            x[index] += y
        return x

    return call


# -- reductions and products ----------------------------------------------------------------------


def _reduce(node: Apply) -> Call:
    op, (out,) = node.op, node.outputs
    axis = None if op.axis is None else tuple(op.axis)
    dtype = op.acc_dtype or out.dtype
    if node.inputs[0].dtype == out.dtype == dtype:
        return partial(op.ufunc.reduce, axis=axis)
    return of_type(partial(op.ufunc.reduce, axis=axis, dtype=dtype), out.dtype)


def _joined(*parts: Any, axis: int, dtype: str) -> Any:
    return np.concatenate(parts, axis=axis, dtype=dtype)


# Orders of the matrices whose factors are kept: below, comparing takes as long as factorising.
_FACTORS_KEPT = range(20, 1500)
# Matrices, their factors and the operations, of the last two.
_factors: deque[tuple[Op, Any, Any]] = deque(maxlen=2)


def _cholesky(node: Apply) -> Call:
    """Return the factorisation, for functions of a point that all begin with the same matrix."""
    compute, op = performed(node), node.op

    def call(x: Any) -> Any:
        if len(x) not in _FACTORS_KEPT:
            return compute(x)
        for known, matrix, factor in tuple(_factors):
            if known == op and np.array_equal(matrix, x):
                return factor.copy("K")  # the caller's to write to
        matrix, factor = x.copy(), compute(x)
        _factors.appendleft((op, matrix, factor.copy("K")))
        return factor

    return call


#: Functions of arrays, by the operation; None where PyTensor is to execute it.
MAKERS: dict[type[Op], Callable[[Apply], Call | None]] = {
    AdvancedIncSubtensor: _inc_subtensor,
    AdvancedSubtensor: _subtensor,
    Alloc: _alloc,
    AllocDiag: lambda node: (
        np.diag if node.op.offset == 0 and node.inputs[0].type.ndim == 1 else None
    ),
    ARange: lambda node: partial(np.arange, dtype=node.outputs[0].dtype),
    CAReduce: _reduce,
    Cholesky: _cholesky,
    CumOp: lambda node: partial(
        np.cumsum if node.op.mode == "add" else np.cumprod, axis=node.op.axis
    ),
    DeepCopyOp: lambda node: deepcopy,
    DimShuffle: _dimshuffle,
    Dot: lambda node: np.dot,
    IncSubtensor: _inc_subtensor,
    Join: lambda node: partial(_joined, axis=node.op.axis, dtype=node.outputs[0].dtype),
    MakeVector: lambda node: lambda *entries: np.array(entries, dtype=node.outputs[0].dtype),
    Reshape: _reshape,
    Shape_i: lambda node: lambda x: x.shape[node.op.i],
    SpecifyShape: _specify_shape,
    Subtensor: _subtensor,
    ViewOp: lambda node: first,
}
