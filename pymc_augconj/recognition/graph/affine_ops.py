"""Operations that are affine in some of their arguments, whatever the numbers.

Most predictors are written with these alone, and most parts of a density that are not affine are a
curved function of a predictor. To find that out takes no derivatives, and no rewriting of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.scalar.basic import Add, Identity, Mul, Neg, Sub, Switch, TrueDiv
from pytensor.tensor.basic import Alloc, Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

__all__ = ["affine_by_its_ops"]


class _Degree(Enum):
    CONSTANT = 0
    AFFINE = 1
    CURVED = 2  # every entry is of no affine function


_CONSTANT = _Degree.CONSTANT

# Elementwise functions of one argument that are curved wherever they are defined.
_CURVES = frozenset(
    {"Erf", "Erfc", "Erfcx", "Exp", "Expm1", "Log", "Log1p", "Reciprocal", "Sigmoid", "Softplus"}
    | {"Sqr", "Sqrt", "Tanh"}
)
# These arrange the entries of their first argument.
_ARRANGING = (Alloc, DimShuffle, Reshape, SpecifyShape, Subtensor, AdvancedSubtensor, ViewOp)
# Of these every entry of the result is one of the argument's, and all of them are there.
_KEEPING = (DimShuffle, Reshape, ViewOp)


def affine_by_its_ops(graph: Variable, inputs: Collection[Variable]) -> bool | None:
    """Return whether ``graph`` is jointly affine in ``inputs``; None if its ops do not tell."""
    # What is not among them does not depend on the inputs.
    known: dict[Variable, _Degree | None] = dict.fromkeys(inputs, _Degree.AFFINE)
    for node in toposort([graph], blockers=inputs):
        if isinstance(node.op, Shape | Shape_i) or known.keys().isdisjoint(node.inputs):
            continue
        known |= dict.fromkeys(node.outputs)
        if len(node.outputs) == 1:
            known[node.outputs[0]] = _degree(node, [known.get(v, _CONSTANT) for v in node.inputs])
    found = known.get(graph, _CONSTANT)
    return None if found is None else found is not _Degree.CURVED


def _degree(node: Apply, degrees: Sequence[_Degree | None]) -> _Degree | None:
    op, (first, *others) = node.op, degrees
    if isinstance(op, Elemwise):
        return _degree_of_elementwise(node, degrees)
    if isinstance(op, _ARRANGING):
        # Indices, and shapes, must not depend on the inputs.
        if any(degree is not _CONSTANT for degree in others):
            return None
        return first if first is _Degree.AFFINE or isinstance(op, _KEEPING) else None
    if isinstance(op, Sum | Join | MakeVector):
        return _if_affine(degrees)
    if isinstance(getattr(op, "core_op", op), Dot):
        return _if_affine(degrees) if _CONSTANT in degrees else None
    return None


def _degree_of_elementwise(node: Apply, degrees: Sequence[_Degree | None]) -> _Degree | None:
    scalar_op, (first, *others) = node.op.scalar_op, degrees
    if node.outputs[0].dtype != "float64":
        return None
    if isinstance(scalar_op, Identity | Neg):
        return first
    if isinstance(scalar_op, Add | Sub):
        if degrees.count(_Degree.CURVED) == 1 and None not in degrees:
            return _Degree.CURVED
        return _if_affine(degrees)
    if isinstance(scalar_op, Mul | TrueDiv):
        moving = [i for i, degree in enumerate(degrees) if degree is not _CONSTANT]
        if len(moving) != 1 or (isinstance(scalar_op, TrueDiv) and moving != [0]):
            return None
        (i,) = moving
        factors = [var for j, var in enumerate(node.inputs) if j != i]
        if degrees[i] is _Degree.CURVED and not all(map(_is_never_zero, factors)):
            return None
        return degrees[i]
    if isinstance(scalar_op, Switch):
        return _if_affine(others) if first is _CONSTANT else None
    if type(scalar_op).__name__ in _CURVES and first is _Degree.AFFINE:
        return _Degree.CURVED
    return None


def _if_affine(degrees: Iterable[_Degree | None]) -> _Degree | None:
    known = all(degree in (_CONSTANT, _Degree.AFFINE) for degree in degrees)
    return _Degree.AFFINE if known else None


def _is_never_zero(factor: Variable) -> bool:
    """Return whether a factor is not zero everywhere, as far as it is known."""
    while factor.owner is not None and isinstance(factor.owner.op, DimShuffle):
        (factor,) = factor.owner.inputs
    return not isinstance(factor, Constant) or bool(np.all(pt.as_tensor(factor).data != 0.0))
