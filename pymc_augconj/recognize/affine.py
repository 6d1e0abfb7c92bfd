"""Whether a predictor is affine in the latents, decided on the graph; and its coefficients.

η(u) is affine in u exactly when its pullback w ↦ (∂η/∂u)ᵀ w does not depend on u. The pullback
is differentiated symbolically and simplified; if u has vanished from the result, η is affine,
however the user spelled it. The matrix A = ∂η/∂u itself is then found by evaluating A on a few
vectors: whether every row of A has a single entry (indexing, possibly scaled) takes three
products, so a million observations never become a dense matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, grad
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import walk
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.variable import TensorVariable

from .rewrite import simplify

__all__ = ["depends_on", "is_affine", "pullback", "pushforward"]


def depends_on(graphs: Variable | Sequence[Variable], inputs: Variable | Sequence[Variable]):
    """Return whether any of ``graphs`` has any of ``inputs`` among its ancestors."""
    graphs = [graphs] if isinstance(graphs, Variable) else list(graphs)
    inputs = {inputs} if isinstance(inputs, Variable) else set(inputs)
    return bool(graphs) and any(var in inputs for var in walk(graphs, _value_parents))


def _value_parents(var: Variable) -> Sequence[Variable]:
    # The shape of an array does not depend on the values in it.
    if var.owner is None or isinstance(var.owner.op, Shape | Shape_i):
        return ()
    return var.owner.inputs


def pullback(
    predictor: TensorVariable, inputs: Sequence[TensorVariable]
) -> tuple[TensorVariable, list[TensorVariable]]:
    """Return a vector input w and the graphs of Aᵦᵀ w for each of ``inputs``, simplified."""
    weights = predictor.type.clone(name=None)("pullback_weights")
    gradients = grad(
        (predictor * weights).sum(),
        list(inputs),
        disconnected_inputs="ignore",
        return_disconnected="zero",
    )
    assert not any(isinstance(g.type, DisconnectedType) for g in gradients)
    return weights, simplify(gradients)


def pushforward(
    predictor: TensorVariable, inputs: Sequence[TensorVariable], block: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    """Return an input v of the type of ``block`` and the graph of A v, for an affine predictor.

    A v is the gradient of ⟨Aᵀ w, v⟩ with respect to w; it uses reverse derivatives only, which
    every differentiable op has.
    """
    weights, (transposed,) = pullback(predictor, [block])
    direction = block.type.clone(name=None)("pushforward_direction")
    product = grad(
        (transposed * direction).sum(),
        weights,
        disconnected_inputs="ignore",
        return_disconnected="zero",
    )
    return direction, simplify([product])[0]


def is_affine(predictor: TensorVariable, inputs: Sequence[TensorVariable]) -> bool:
    """Return whether ``predictor`` is jointly affine in ``inputs``, for every other value."""
    used = [var for var in inputs if depends_on(predictor, var)]
    if not used:
        return True
    try:
        weights, gradients = pullback(predictor, used)
    except (NotImplementedError, TypeError):
        # An op without a derivative: nothing shows that the predictor is affine.
        return False
    return not depends_on(gradients, used)


def first_nonlinear_op(predictor: TensorVariable, inputs: Sequence[TensorVariable]) -> str:
    """Return the name of the first op on the way from the latents that is not affine in them."""
    for var in _in_order(predictor, inputs):
        if not is_affine(pt.as_tensor(var), inputs):
            op = var.owner.op
            scalar_op = getattr(op, "scalar_op", None)
            return type(scalar_op if scalar_op is not None else op).__name__
    return "unknown"


def _in_order(predictor: Variable, inputs: Sequence[Variable]) -> list[TensorVariable]:
    seen: dict[Variable, bool] = dict.fromkeys(inputs, True)
    order: list[TensorVariable] = []

    def visit(var: Variable) -> bool:
        if var in seen:
            return seen[var]
        seen[var] = False
        if var.owner is not None and any([visit(parent) for parent in var.owner.inputs]):
            seen[var] = True
            if isinstance(var, TensorVariable) and var.dtype.startswith("float"):
                order.append(var)
        return seen[var]

    visit(predictor)
    return order
