"""Constant whole numbers, which PyTensor stores in as few bits as the arguments need.

``pm.HalfStudentT("s", nu=3, sigma=10)`` has both in eight bits, in which 3 · 10² is 44.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Add, Mul, Neg, Pow, Sqr, Sub
from pytensor.tensor.elemwise import DimShuffle, Elemwise

from .interpreter import NotInterpretedError, interpret

_ARITHMETIC = (Add, Mul, Neg, Pow, Sqr, Sub)


def in_real_numbers(graphs: Sequence[Variable]) -> list[Variable]:
    """Return the graphs with correct numbers in place of overflowing whole numbers."""
    found = list(graphs)
    while (overflow := next(overflows(found), None)) is not None:
        node, inputs = overflow
        (before,), (now,) = node.outputs, node.op.make_node(*inputs).outputs
        found = clone_replace(found, {before: now.astype(before.dtype)})
    return found


def overflows(graphs: Sequence[Variable]) -> Iterator[tuple[Apply, list[Variable]]]:
    """Yield operations on real numbers with an overflowing input, and correct inputs."""
    for var in ancestors(graphs):
        node = var.owner
        if node is not None and isinstance(node.op, Elemwise) and var.dtype.startswith("float"):
            inputs = [_right(given) for given in node.inputs]
            if any(now is not before for now, before in zip(inputs, node.inputs, strict=True)):
                yield node, inputs


def _right(var: Variable) -> Variable:
    """Return the value of constant whole numbers as real ones, or ``var`` if they are equal.

    It computes both only for arithmetic of constants, which is rare.
    """
    if not _is_arithmetic(var) or not is_constant(var):
        return var
    with suppress(NotInterpretedError):
        (right,) = interpret([_in_real_numbers(var)])
        with suppress(NotInterpretedError):
            (found,) = interpret([var])
            if np.array_equal(found, right):
                return var
        return pt.constant(right, dtype="float64")
    return var


def _is_arithmetic(var: Variable) -> bool:
    """Return whether a variable is a sum, a product or a power of whole numbers."""
    node = var.owner
    if node is None or np.dtype(var.dtype).kind not in "iu":
        return False
    if isinstance(node.op, DimShuffle):
        return _is_arithmetic(node.inputs[0])
    return isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, _ARITHMETIC)


def is_constant(var: Variable) -> bool:
    """Return whether a graph is one of constants alone."""
    return all(isinstance(leaf, Constant) for leaf in ancestors([var]) if leaf.owner is None)


def _in_real_numbers(var: Variable) -> Variable:
    if not _is_arithmetic(var):
        return pt.cast(var, "float64")
    return var.owner.op.make_node(*map(_in_real_numbers, var.owner.inputs)).outputs[0]
