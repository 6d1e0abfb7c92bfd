"""One operation of a graph as a plain function of NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any

import numpy as np
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.link.c.op import COp
from pytensor.scalar.basic import Cast, Clip, Identity, ScalarOp, Second
from pytensor.scalar.math import Log1mexp, Softplus
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.utils import import_func_from_string

__all__ = ["Call", "call_of", "is_exact", "is_linear", "is_plain", "performed"]

Call = Callable[..., Sequence[Any]]

# Of an operation that is called for each block by itself.
_MANY_BLOCKS = 64

_import = cache(import_func_from_string)


def is_plain(node: Apply) -> bool:
    """Return whether an operation is one of NumPy's, or is executed by PyTensor as if it were.

    Others have an inner graph to compile, draw random numbers, write to their inputs, need not
    all of their inputs, or call a Python function for every element.
    """
    op = node.op
    if isinstance(op, HasInnerGraph | RNGConsumerOp) or op.destroy_map:
        return False
    if type(op).make_thunk not in (Op.make_thunk, COp.make_thunk):
        return False
    if type(op).make_py_thunk is not Op.make_py_thunk:
        return False
    if isinstance(op, Blockwise):
        return _has_gufunc(op) or is_plain(_core_node(node))
    if isinstance(op, Elemwise):
        return op.nfunc_spec is not None or type(op.scalar_op) in _WITHOUT_UFUNC
    return True


# Operations whose results are among their inputs, or whole numbers.
_EXACT_SCALAR_OPS = frozenset(
    {"Abs", "Ceil", "Clip", "Floor", "Identity", "Maximum", "Minimum", "Neg", "Second", "Sign"}
    | {"Switch", "Trunc"}
)
_EXACT_OPS = frozenset(
    {"AdvancedSubtensor", "AdvancedSubtensor1", "Alloc", "CheckParameterValue", "DimShuffle"}
    | {"ExtractDiag", "Eye", "Join", "MakeVector", "MatrixTranspose", "Max", "Min", "Reshape"}
    | {"ScalarFromTensor", "SpecifyShape", "Split", "Subtensor", "TensorFromScalar", "ViewOp"}
)


def is_exact(node: Apply) -> bool:
    """Return whether an operation is known to round nothing."""
    op = node.op
    if not isinstance(op, Elemwise):
        return type(op).__name__ in _EXACT_OPS
    return isinstance(op.scalar_op, Cast) or type(op.scalar_op).__name__ in _EXACT_SCALAR_OPS


def is_linear(node: Apply) -> bool:
    """Return whether an operation moves entries, adds them up or multiplies matrices."""
    op = getattr(node.op, "core_op", node.op)
    name = type(op).__name__
    # The least of some bounds bounds nothing.
    return name in ("Dot", "Sum") or (name != "Min" and is_exact(node))


def _has_gufunc(op: Blockwise) -> bool:
    return (op.gufunc_spec or getattr(op.core_op, "gufunc_spec", None)) is not None


def _core_node(node: Apply) -> Apply:
    """Return the operation on one block, of one that is on several."""
    return node.op._create_dummy_core_node(node.inputs)


def call_of(node: Apply, *, in_double: bool = False) -> Call:
    """Return a function of the values of the node's inputs that returns its outputs' values.

    With ``in_double`` elementwise operations of single precision are executed in double.
    """
    op = node.op
    if isinstance(op, ViewOp):
        return _as_it_is
    if isinstance(op, CheckParameterValue) and op.can_be_replaced_by_ninf:
        # Another rounding may move a parameter out of its range, a probability of one say.
        return _first if in_double else _first_if_all
    if isinstance(op, Blockwise) and not _has_gufunc(op):
        return _blockwise(node)
    if isinstance(op, Elemwise):
        known = all(length is not None for var in node.inputs for length in var.type.shape)
        # Lengths of one that the types do not know are not to be broadcast: PyTensor looks.
        if known or type(op.scalar_op) in _WITHOUT_UFUNC:
            return _elementwise(node, in_double)
    return performed(node)


def performed(node: Apply) -> Call:
    """Return PyTensor's own execution of a node, as a function."""
    op = node.op
    op.prepare_node(node, None, None, "py")
    n_outputs = len(node.outputs)

    def call(*values: Any) -> Sequence[Any]:
        storage = [[None] for _ in range(n_outputs)]
        op.perform(node, list(values), storage)
        return [found for (found,) in storage]

    return call


def _blockwise(node: Apply) -> Call:
    batch_ndim, core = node.op.batch_ndim(node), performed(_core_node(node))

    def call(*values: Any) -> Sequence[Any]:
        batch = np.broadcast_shapes(*(np.shape(value)[:batch_ndim] for value in values))
        if math.prod(batch) > _MANY_BLOCKS:
            raise ValueError("many blocks")
        blocks = [np.broadcast_to(v, (*batch, *np.shape(v)[batch_ndim:])) for v in values]
        found = [core(*(block[i] for block in blocks)) for i in np.ndindex(batch)]
        return [np.reshape(out, (*batch, *np.shape(out[0]))) for out in zip(*found, strict=True)]

    return call


def _as_it_is(value: Any) -> Sequence[Any]:
    return (value,)


def _first(value: Any, *conditions: Any) -> Sequence[Any]:
    return (value,)


def _first_if_all(value: Any, *conditions: Any) -> Sequence[Any]:
    return (value if np.all(conditions) else np.full_like(value, -np.inf),)


def _elementwise(node: Apply, in_double: bool) -> Call:
    scalar_op, nfunc_spec = node.op.scalar_op, node.op.nfunc_spec
    dtype = node.outputs[0].dtype
    raised = in_double and dtype == "float32"
    if raised:
        dtype = "float64"
    if type(scalar_op) in _WITHOUT_UFUNC:
        function = _WITHOUT_UFUNC[type(scalar_op)]
    else:
        function = _import(nfunc_spec[0])
        if len(node.inputs) != nfunc_spec[1]:
            function = _folded(function)
        elif isinstance(function, np.ufunc) and _is_float_of_integers(node):
            function = _in_precision(function, dtype)

    def call(*values: Any) -> Sequence[Any]:
        given: Sequence[Any] = values
        if raised:
            given = [np.asarray(v, float) if v.dtype == np.float32 else v for v in values]
        found = np.asarray(function(*given), dtype=dtype)
        return (found if found.base is None else found.copy(),)

    return call


def _folded(function: Callable) -> Callable:
    """Return a function of two arguments as one of many: sums and products."""
    return lambda *values: reduce(function, values)


def _is_float_of_integers(node: Apply) -> bool:
    found, given = (np.dtype(var.dtype).kind for var in (node.outputs[0], node.inputs[0]))
    return found == "f" and given in "biu"


def _in_precision(function: np.ufunc, dtype: str) -> Callable:
    # Of int8 NumPy computes a root or a quotient in half precision.
    signature = np.dtype(dtype).char * function.nin + "->" + np.dtype(dtype).char
    return lambda *values: function(*values, signature=signature)


def _log1mexp(x: np.ndarray) -> np.ndarray:
    return np.where(x < -np.log(2.0), np.log1p(-np.exp(x)), np.log(-np.expm1(x)))


_WITHOUT_UFUNC: dict[type[ScalarOp], Callable] = {
    Cast: lambda x: x,
    Clip: np.clip,
    Identity: lambda x: x,
    Log1mexp: _log1mexp,
    Second: lambda like, x: np.broadcast_to(x, np.broadcast_shapes(np.shape(like), np.shape(x))),
    Softplus: lambda x: np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))),
}
