"""Maps A(θ) = Σ_k c_k(θ) B_k with fixed parts B_k, found from the graph of their products.

Examples are the scale of non-centred effects, ``mu + tau * z``, and the Cholesky factor of
correlated effects, ``z @ chol.T``. c(θ) are the arguments with θ of the operations on the latents.
Every later operation must be linear in c(θ). The kind of operation decides this, so that it holds
for every value of θ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import graph_inputs
from pytensor.scalar.basic import Add
from pytensor.tensor.basic import Alloc, Join
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import AugmentationError
from pymc_augconj.point import Point
from pymc_augconj.recognition.graph.affine import descendants, scalar_name
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.graph.rewrite import substitute

#: The most parts of a map: sums over pairs of them are kept.
_MOST = 8


@dataclass(frozen=True)
class Coefficients:
    """A product A(θ) v = Σ_k c_k(θ) B_k v.

    ``graph`` is c(θ), shape (K,), and ``input`` its place in ``product``, which is without θ.
    """

    graph: TensorVariable
    input: TensorVariable
    product: TensorVariable

    @property
    def size(self) -> int:
        """K."""
        return int(self.input.type.shape[0])


def find_coefficients(
    product: TensorVariable, direction: TensorVariable, hyperparameters: Collection[TensorVariable]
) -> Coefficients | None:
    """Return the coefficients and parts of a map; None if it has no parts, or too many.

    ``product`` is A(θ) v, simplified, and ``direction`` v.
    """
    taken = _taken(product, direction, list(hyperparameters))
    if not taken or any(None in var.type.shape or var.dtype != "float64" for var in taken):
        return None
    sizes = [prod(var.type.shape) for var in taken]
    if sum(sizes) > _MOST:
        return None
    known: set[Variable] = set(taken)
    for var in descendants(product, taken):
        if not _is_linear(var.owner, known):
            return None
        known.add(var)
    coefs = pt.vector("coefficients", shape=(sum(sizes),), dtype="float64")
    starts = np.cumsum([0, *sizes])
    places = {
        var: coefs[start : start + size].reshape(var.type.shape)
        for var, start, size in zip(taken, starts, sizes, strict=False)
    }
    (without,) = substitute([product], places)
    # Not by depends_on: a hyperparameter may be there for the sake of its shape alone.
    if not set(hyperparameters).isdisjoint(graph_inputs([without])):
        return None
    graph = pt.concatenate([var.ravel() for var in taken])
    return Coefficients(graph, coefs, without)


def _taken(
    product: TensorVariable, direction: TensorVariable, hyperparameters: Sequence[TensorVariable]
) -> list[TensorVariable]:
    """Return the arguments with θ of operations on v, as few numbers as possible."""
    moving = descendants(product, [direction])
    inside = {direction, *moving}
    from_theta = {*hyperparameters, *descendants(product, hyperparameters)}
    found = [
        parent
        for var in moving
        for parent in var.owner.inputs
        if parent in from_theta and parent not in inside
    ]
    return list(dict.fromkeys(_smallest(var, from_theta) for var in found))


def _smallest(var: TensorVariable, from_theta: Collection[Variable]) -> TensorVariable:
    """Return the smallest array of which ``var`` is a linear function without other arguments."""
    smallest = var
    while var.owner is not None and None not in var.type.shape:
        inputs = [parent for parent in var.owner.inputs if parent in from_theta]
        if len(inputs) != 1 or not _is_linear(var.owner, inputs):
            break
        (var,) = inputs
        if None not in var.type.shape and prod(var.type.shape) < prod(smallest.type.shape):
            smallest = var
    return smallest


def _is_linear(node: Apply, known: Collection[Variable]) -> bool:
    """Return whether the output is linear, without a constant, in the inputs ``known`` together."""
    op, moves = node.op, [var in known for var in node.inputs]
    if isinstance(op, Elemwise):
        kind = _ELEMENTWISE.get(scalar_name(node.outputs[0]))
        return kind is not None and kind(node, moves)
    if isinstance(op, Dot):
        return sum(moves) == 1
    if isinstance(op, CAReduce):
        return isinstance(op.scalar_op, Add)
    if isinstance(op, Join):
        return _all_or_zero(node.inputs, moves)
    if isinstance(op, IncSubtensor | AdvancedIncSubtensor):
        return _all_or_zero(node.inputs[:2], moves[:2]) and not any(moves[2:])
    if isinstance(op, DimShuffle | Reshape | SpecifyShape | Alloc | Subtensor | AdvancedSubtensor):
        return moves[0] and not any(moves[1:])
    return False


def _all_or_zero(inputs: Sequence[Variable], moves: Sequence[bool]) -> bool:
    return all(moving or _is_zero(var) for var, moving in zip(inputs, moves, strict=True))


def _is_zero(var: Variable) -> bool:
    if isinstance(var, Constant):
        return not np.any(var.data)
    return (
        var.owner is not None and isinstance(var.owner.op, Alloc) and _is_zero(var.owner.inputs[0])
    )


#: Whether an elementwise operation is linear in the given arguments.
_ELEMENTWISE: dict[str, Callable[[Apply, list[bool]], bool]] = {
    "Add": lambda node, moves: _all_or_zero(node.inputs, moves),
    "Sub": lambda node, moves: _all_or_zero(node.inputs, moves),
    "Mul": lambda node, moves: sum(moves) == 1,
    "Neg": lambda node, moves: True,
    "Identity": lambda node, moves: True,
    "TrueDiv": lambda node, moves: moves == [True, False],
    "Second": lambda node, moves: moves[1],
}


def affine_in_latents(
    mean: PointFunction, theta: Point, shapes: Mapping[Any, tuple[int, ...]]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return a mean as constant + Σ matrix @ value, over the latents that it depends on.

    ``mean`` is a function of constrained values by the names of free variables, ``shapes`` has the
    shapes of the latents. Raises AugmentationError if the mean depends on a whitened process.
    """
    hidden = [name for name in mean.names if name not in theta and name not in shapes]
    if hidden:
        raise AugmentationError(
            "gp: expected a prior mean that depends on no whitened process, found "
            f"{hidden} in it; write these with gp.prior(…, reparameterize=False)"
        )
    latents = [name for name in mean.names if name in shapes]
    return affine_parts(
        lambda values: mean({**theta, **values}), {name: shapes[name] for name in latents}
    )


def affine_parts(
    function: Callable[[Point], np.ndarray], shapes: Mapping[Any, tuple[int, ...]]
) -> tuple[np.ndarray, dict[Any, np.ndarray]]:
    """Return constant and matrices of a function that is affine in named values of given shapes."""
    zeros = {name: np.zeros(shape) for name, shape in shapes.items()}
    constant = np.array(function(zeros), dtype=float).ravel()
    matrices = {}
    for name, shape in shapes.items():
        units = np.eye(int(np.prod(shape))).reshape(-1, *shape)
        columns = [np.ravel(function({**zeros, name: unit})) - constant for unit in units]
        matrices[name] = np.stack(columns, axis=1)
    return constant, matrices
