"""Symbolic test that a predictor is affine in the latents, and its coefficients.

η(u) is affine in u if and only if its pullback w ↦ (∂η/∂u)ᵀ w does not depend on u. The pullback
is differentiated symbolically and simplified; if u does not occur in the result, η is affine, for
any spelling. Evaluating A = ∂η/∂u on a few vectors then gives the matrix: three products show
whether every row of A has a single entry (indexing, possibly scaled), so that a million
observations never become a dense matrix.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import grad
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort, walk, walk_toposort
from pytensor.scalar.basic import Add, Identity, Mul, Neg, Second, Sub, Switch, TrueDiv
from pytensor.tensor.basic import Alloc, Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.linalg import SolveTriangular
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.variable import TensorVariable

from .functions import UNCONNECTED
from .interpreter import Interpreter, NotInterpretedError, op_name
from .rewrite import Variables, down_to_random, is_number, is_random, simplify, substitute

# Elementwise ops that are affine piece by piece: constant derivatives, but not affine.
_PIECEWISE_AFFINE = frozenset(
    {"Ceil", "Floor", "IntDiv", "Mod", "RoundHalfAwayFromZero", "RoundHalfToEven", "Sign", "Trunc"}
)


# Entries of the largest array, the multiple of bounds on rounding, and the relative difference, in
# a test of values.
_LARGEST_SHOWN, _MORE_THAN_ROUNDING, _SAME = 2**14, 10.0, 1e-7


def depends_on(graphs: Variable | Variables, inputs: Variable | Collection[Variable]) -> bool:
    """Return whether any of ``graphs`` has any of ``inputs`` among its ancestors."""
    graphs = [graphs] if isinstance(graphs, Variable) else list(graphs)
    inputs = {inputs} if isinstance(inputs, Variable) else set(inputs)
    return bool(graphs) and any(var in inputs for var in walk(graphs, _value_parents))


def _value_parents(var: Variable) -> Variables:
    # The shape of an array does not depend on the values in it.
    if var.owner is None or isinstance(var.owner.op, Shape | Shape_i):
        return ()
    return var.owner.inputs


def value_leaves(graphs: Variables) -> list[Variable]:
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

    If the graphs do not depend on the values of ``inputs``, this also removes their shapes.
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
    if _bends(predictor, used):
        return False
    try:
        _, gradients = pullback(predictor, used)
    except (NotImplementedError, TypeError):
        # An op without a derivative: nothing shows that the predictor is affine.
        return False
    return not depends_on(gradients, used)


def _bends(predictor: TensorVariable, inputs: Collection[TensorVariable]) -> bool:
    """Return whether three values on a line show, by more than rounding, a function that is curved.

    Derivatives show it too, in ten times as long. Values are those that scales and probabilities
    may have; where there are none, nothing is shown.
    """
    leaves = [
        v
        for v in down_to_random([predictor])
        if v in inputs
        or is_random(v)
        or (v.owner is None and not isinstance(v, Constant | SharedVariable))
    ]
    if any(v.dtype != "float64" or None in v.type.shape for v in leaves):
        return False
    rng, fresh = np.random.default_rng(0), {v: v.type() for v in leaves}
    try:
        run = Interpreter(
            substitute([predictor], fresh), [*fresh.values()], largest_array=_LARGEST_SHOWN
        )
        starts = [rng.uniform(0.3, 0.9, v.type.shape) for v in leaves]
        steps = [rng.uniform(0.05, 0.1, v.type.shape) * (v in inputs) for v in leaves]
        points = [[x + k * step for x, step in zip(starts, steps, strict=True)] for k in range(3)]
        found = [[part for (part,) in run.with_rounding(*point)] for point in points]
    except NotInterpretedError:
        return False
    (a, b, c), (of_a, of_b, of_c) = zip(*found, strict=True)
    with np.errstate(invalid="ignore"):
        rounding = _MORE_THAN_ROUNDING * (of_a + 2.0 * of_b + of_c)
        rounding += _SAME * np.abs([a, b, c]).max(initial=0.0)
        return bool(np.any(np.abs(a - 2.0 * b + c) > rounding))


def first_nonlinear_op(predictor: TensorVariable, inputs: Sequence[TensorVariable]) -> str:
    """Return the name of the first op, from the latents on, that is not affine in them."""
    for var in descendants(predictor, inputs):
        if not var.dtype.startswith("float") or not is_affine(var, inputs):
            return op_name(var)
    return "unknown"


def shifted_by(
    predictors: Sequence[TensorVariable],
    inputs: Sequence[TensorVariable],
    others: Collection[Variable],
) -> bool:
    """Return whether predictors depend on each of ``others``, and their slopes on none."""
    if not others or not all(depends_on(predictors, var) for var in others):
        return False
    return not any(depends_on(pullback(eta, inputs)[1], others) for eta in predictors)


def has_misleading_derivative(var: TensorVariable) -> bool:
    """Return whether derivatives are constant although the op is not affine."""
    if not var.dtype.startswith("float"):
        return True
    return op_name(var) in _PIECEWISE_AFFINE


def descendants(predictor: Variable, inputs: Variables) -> list[TensorVariable]:
    """Return the variables between ``inputs`` and ``predictor``, in topological order.

    The predictor is one of them, the inputs are not.
    """
    first = set(inputs)

    def parents(var: Variable) -> Variables:
        return () if var in first else _value_parents(var)

    moving = dict.fromkeys(first)
    for var in walk_toposort([predictor], parents):
        if not moving.keys().isdisjoint(parents(var)):
            moving[var] = None
    return [var for var in moving if var not in first and isinstance(var, TensorVariable)]


# -- operations that are affine in some of their arguments, for any numbers -----------------------
#
# Most predictors are written with these alone, and most parts of a density that are not affine are
# a curved function of a predictor. Finding that out takes no derivatives, and no rewriting of them.


class _Degree(Enum):
    CONSTANT = 0
    LINEAR = 1  # without a constant
    AFFINE = 2
    CURVED = 3  # every entry is of no affine function


_CONSTANT = _Degree.CONSTANT

# Elementwise functions of one argument that are curved on their whole domain.
_CURVES = frozenset(
    {"Erf", "Erfc", "Erfcx", "Exp", "Expm1", "Log", "Log1p", "Reciprocal", "Sigmoid", "Softplus"}
    | {"Sqr", "Sqrt", "Tanh"}
)
# These arrange the entries of their first argument.
_ARRANGING = (Alloc, DimShuffle, Reshape, SpecifyShape, Subtensor, AdvancedSubtensor, ViewOp)
# Of these every entry of the result is one of the argument's, and all of them are there.
_KEEPING = (DimShuffle, Reshape, ViewOp)


def affine_by_its_ops(graph: Variable, inputs: Collection[Variable]) -> bool | None:
    """Return whether ``graph`` is jointly affine in ``inputs``; None if its ops do not show it."""
    found = _degree_of(graph, inputs, _Degree.AFFINE)
    return None if found is None else found is not _Degree.CURVED


def is_linear_by_its_ops(graph: Variable, inputs: Collection[Variable]) -> bool:
    """Return whether its ops show that ``graph`` is linear, without a constant, in ``inputs``."""
    return _degree_of(graph, inputs, _Degree.LINEAR) is _Degree.LINEAR


def _degree_of(graph: Variable, inputs: Collection[Variable], of_inputs: _Degree) -> _Degree | None:
    # Variables outside it do not depend on the inputs.
    known: dict[Variable, _Degree | None] = dict.fromkeys(inputs, of_inputs)
    for node in toposort([graph], blockers=inputs):
        if isinstance(node.op, Shape | Shape_i) or known.keys().isdisjoint(node.inputs):
            continue
        known |= dict.fromkeys(node.outputs)
        if len(node.outputs) == 1:
            known[node.outputs[0]] = _degree(node, [known.get(v, _CONSTANT) for v in node.inputs])
    return known.get(graph, _CONSTANT)


def _degree(node: Apply, degrees: Sequence[_Degree | None]) -> _Degree | None:
    op, (first, *others) = node.op, degrees
    if isinstance(op, Elemwise):
        return _degree_of_elementwise(node, degrees)
    if isinstance(op, _ARRANGING):
        # Indices, and shapes, must not depend on the inputs.
        if any(degree is not _CONSTANT for degree in others):
            return None
        return first if first is not _Degree.CURVED or isinstance(op, _KEEPING) else None
    if isinstance(op, Sum | Join | MakeVector):
        return _added(node.inputs, degrees)
    if isinstance(op, IncSubtensor | AdvancedIncSubtensor):
        is_fixed = all(degree is _CONSTANT for degree in degrees[2:])
        return _added(node.inputs[:2], degrees[:2]) if is_fixed else None
    core = getattr(op, "core_op", op)
    if isinstance(core, Dot) and _CONSTANT in degrees:
        return _if_affine(first if others == [_CONSTANT] else others[0])
    if isinstance(core, SolveTriangular) and first is _CONSTANT:
        return _if_affine(others[0])
    return None


def _degree_of_elementwise(node: Apply, degrees: Sequence[_Degree | None]) -> _Degree | None:
    scalar_op, (first, *others) = node.op.scalar_op, degrees
    if node.outputs[0].dtype != "float64":
        return None
    if isinstance(scalar_op, Identity | Neg):
        return first
    if isinstance(scalar_op, Second):
        return _if_affine(others[0])
    if isinstance(scalar_op, Add | Sub):
        if degrees.count(_Degree.CURVED) == 1 and None not in degrees:
            return _Degree.CURVED
        return _added(node.inputs, degrees)
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
        return _added(node.inputs[1:], others) if first is _CONSTANT else None
    if type(scalar_op).__name__ in _CURVES and first is _Degree.AFFINE:
        return _Degree.CURVED
    return None


def _if_affine(degree: _Degree | None) -> _Degree | None:
    return None if degree is _Degree.CURVED else degree


def _added(inputs: Variables, degrees: Sequence[_Degree | None]) -> _Degree | None:
    """Return the degree of sums, or of an arrangement, of entries of the inputs."""
    if None in degrees or _Degree.CURVED in degrees:
        return None
    if _Degree.LINEAR not in degrees:
        return _Degree.AFFINE
    constants = [v for v, own in zip(inputs, degrees, strict=True) if own is not _Degree.LINEAR]
    return _Degree.LINEAR if all(is_number(v, 0.0) for v in constants) else _Degree.AFFINE


def _is_never_zero(factor: Variable) -> bool:
    """Return whether a factor is not a constant with a zero entry."""
    while factor.owner is not None and isinstance(factor.owner.op, DimShuffle):
        (factor,) = factor.owner.inputs
    return not isinstance(factor, Constant) or bool(np.all(pt.as_tensor(factor).data != 0.0))
