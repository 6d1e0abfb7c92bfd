"""Whether the sign of a graph depends on some of its inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import Subtensor

from .affine import depends_on, scalar_name

_POSITIVE = frozenset({"Cosh", "Exp", "Exp2", "Sigmoid", "Softplus"})
# Of positive arguments.
_KEEP_POSITIVE = frozenset({"Add", "Expm1", "Log1p", "Maximum", "Minimum", "Pow"})
# The sign of the value follows from the signs of the arguments.
_KEEP_SIGN = frozenset(
    {"Abs", "Cast", "Identity", "Mul", "Neg", "Reciprocal", "Second", "Sqr", "Sqrt", "TrueDiv"}
)
_SHAPES = (Alloc, DimShuffle, Reshape, SpecifyShape, Subtensor, ViewOp)


def has_fixed_sign(graph: Variable, inputs: Sequence[Variable]) -> bool:
    """Return whether ``graph`` visibly has the same sign for all values of ``inputs``."""
    if not depends_on(graph, inputs) or _is_positive(graph):
        return True
    parts = _values(graph) if scalar_name(graph) in _KEEP_SIGN or _has_shape_alone(graph) else []
    return bool(parts) and all(has_fixed_sign(part, inputs) for part in parts)


def _is_positive(graph: Variable) -> bool:
    if isinstance(graph, Constant):
        return bool(np.all(np.asarray(graph.data) > 0))
    if scalar_name(graph) in _POSITIVE:
        return True
    parts = _values(graph)
    kept = scalar_name(graph) in _KEEP_POSITIVE | _KEEP_SIGN - {"Neg"} or _has_shape_alone(graph)
    return kept and bool(parts) and all(map(_is_positive, parts))


def _values(graph: Variable) -> list[Variable]:
    """Return the inputs whose values determine the values of ``graph``."""
    if graph.owner is None:
        return []
    inputs = list(graph.owner.inputs)
    if _has_shape_alone(graph):
        return inputs[:1]
    return inputs[1:] if scalar_name(graph) == "Second" else inputs


def _has_shape_alone(graph: Variable) -> bool:
    return graph.owner is not None and isinstance(graph.owner.op, _SHAPES)
