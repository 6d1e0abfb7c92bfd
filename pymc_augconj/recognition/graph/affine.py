"""Whether a predictor is affine in the latents, decided on the graph; and its coefficients.

η(u) is affine in u exactly when its pullback w ↦ (∂η/∂u)ᵀ w does not depend on u. The pullback
is differentiated symbolically and simplified; if u has vanished from the result, η is affine,
whatever its spelling. The matrix A = ∂η/∂u itself is then found by evaluating A on a few
vectors: whether every row of A has a single entry (indexing, possibly scaled) takes three
products, so a million observations never become a dense matrix.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytensor.tensor as pt
from pytensor.gradient import grad
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import walk
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.variable import TensorVariable

from .affine_ops import affine_by_its_ops
from .functions import UNCONNECTED
from .rewrite import is_random, simplify, substitute

__all__ = [
    "at_zero",
    "depends_on",
    "descendants",
    "first_nonlinear_op",
    "has_misleading_derivative",
    "is_affine",
    "pullback",
    "pushforward",
    "scalar_name",
    "value_leaves",
]

# Elementwise ops that are affine piece by piece: constant derivatives, but not affine.
_PIECEWISE_AFFINE = frozenset(
    {"Ceil", "Floor", "IntDiv", "Mod", "RoundHalfAwayFromZero", "RoundHalfToEven", "Sign", "Trunc"}
)


def depends_on(
    graphs: Variable | Sequence[Variable], inputs: Variable | Collection[Variable]
) -> bool:
    """Return whether any of ``graphs`` has any of ``inputs`` among its ancestors."""
    graphs = [graphs] if isinstance(graphs, Variable) else list(graphs)
    inputs = {inputs} if isinstance(inputs, Variable) else set(inputs)
    return bool(graphs) and any(var in inputs for var in walk(graphs, _value_parents))


def _value_parents(var: Variable) -> Sequence[Variable]:
    # The shape of an array does not depend on the values in it.
    if var.owner is None or isinstance(var.owner.op, Shape | Shape_i):
        return ()
    return var.owner.inputs


def value_leaves(graphs: Sequence[Variable]) -> list[Variable]:
    """Return the leaves that the values of ``graphs`` depend on; shapes do not count."""
    return [var for var in walk(list(graphs), _value_parents) if var.owner is None]


def pullback(
    predictor: TensorVariable, inputs: Sequence[TensorVariable]
) -> tuple[TensorVariable, list[TensorVariable]]:
    """Return a vector input w and the graphs of Aᵦᵀ w for each of ``inputs``, simplified."""
    weights = predictor.type.clone(name=None)("pullback_weights")
    return weights, simplify(grad((predictor * weights).sum(), list(inputs), **UNCONNECTED))


def pushforward(
    weights: TensorVariable, transposed: TensorVariable, block: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    """Return an input v of the type of ``block`` and the graph of A v, given that of Aᵀ w.

    A v is the gradient of ⟨Aᵀ w, v⟩ with respect to w; it uses reverse derivatives only, which
    every differentiable op has.
    """
    direction = block.type.clone(name=None)("pushforward_direction")
    (product,) = grad((transposed * direction).sum(), [weights], **UNCONNECTED)
    return direction, product


def at_zero(
    graphs: Sequence[TensorVariable], inputs: Sequence[TensorVariable]
) -> list[TensorVariable]:
    """Return the graphs, simplified, with zeros for vectors ``inputs`` of known length.

    If the graphs do not depend on the values of ``inputs``, this removes their shapes.
    """
    zeros = {var: pt.zeros(var.type.shape, dtype=var.dtype) for var in inputs}
    return simplify(substitute(graphs, zeros))


def is_affine(predictor: TensorVariable, inputs: Sequence[TensorVariable]) -> bool:
    """Return whether ``predictor`` is jointly affine in ``inputs``, for every other value."""
    used = [var for var in inputs if depends_on(predictor, var)]
    if not used:
        return True
    found = affine_by_its_ops(predictor, used)
    if found is not None:
        return found
    between = descendants(predictor, used)
    if any(has_misleading_derivative(var) or is_random(var) for var in between):
        return False
    try:
        _, gradients = pullback(predictor, used)
    except (NotImplementedError, TypeError):
        # An op without a derivative: nothing shows that the predictor is affine.
        return False
    return not depends_on(gradients, used)


def first_nonlinear_op(predictor: TensorVariable, inputs: Sequence[TensorVariable]) -> str:
    """Return the name of the first op, from the latents on, that is not affine in them."""
    for var in descendants(predictor, inputs):
        if not var.dtype.startswith("float") or not is_affine(var, inputs):
            op = var.owner.op
            scalar_op = getattr(op, "scalar_op", None)
            return type(scalar_op if scalar_op is not None else op).__name__
    return "unknown"


def has_misleading_derivative(var: TensorVariable) -> bool:
    """Return whether derivatives do not depend on the argument although the op is not affine."""
    if not var.dtype.startswith("float"):
        return True
    return scalar_name(var) in _PIECEWISE_AFFINE


def scalar_name(var: Variable) -> str:
    """Return the name of the scalar op of an elementwise node; "NoneType" for other nodes."""
    return "" if var.owner is None else type(getattr(var.owner.op, "scalar_op", None)).__name__


def descendants(predictor: Variable, inputs: Sequence[Variable]) -> list[TensorVariable]:
    """Return the variables between ``inputs`` and ``predictor``, in topological order.

    The predictor is one of them, the inputs are not.
    """
    between: dict[Variable, bool] = dict.fromkeys(inputs, True)
    order: list[TensorVariable] = []
    stack = [predictor]
    while stack:
        var = stack[-1]
        if var in between:
            stack.pop()
            continue
        parents = _value_parents(var)
        waiting = [parent for parent in parents if parent not in between]
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        between[var] = any(between[parent] for parent in parents)
        if between[var] and isinstance(var, TensorVariable):
            order.append(var)
    return order
