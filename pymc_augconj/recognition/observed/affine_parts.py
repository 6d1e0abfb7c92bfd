"""The affine predictors through which graphs depend on the latents: one or several.

Several predictors are the largest parts of the graphs that are affine in the latents and have one
entry for each observation, or also an axis of classes, with a predictor in each column. Parts that
differ by a term without latents, or are functions of one affine variable, share a predictor.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Mul, Sign, Switch
from pytensor.tensor.basic import Alloc, Join
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.recognition.graph.affine import (
    depends_on,
    descendants,
    has_misleading_derivative,
    is_affine,
)
from pymc_augconj.recognition.graph.dependence import (
    ModelIndex,
    distribution_parameters,
    is_positive,
    static_shape,
)
from pymc_augconj.recognition.graph.interpreter import op_name
from pymc_augconj.recognition.graph.rewrite import (
    Variables,
    constant_number,
    down_to_random,
    is_random,
    is_tensor,
    simplify,
    substitute,
)

from .links import peel, stripped, without_number
from .rows import axes_of, is_separate

#: What may be found in place of predictors.
PRODUCT = "a product of predictors, which is not affine in all latents together"
#: Largest number of predictors of an observation.
_MOST = 32


# Affine variables: each is η, the first of them, plus a term without latents.
Offsets = dict[Variable, Variable | None]


@dataclass(frozen=True, eq=False)
class AffinePart:
    """Affine variables of the same axes that are functions of the same predictors.

    The first consists of ``columns``: one for each class along ``class_axis``, or itself if that is
    None. Each ``moving`` column depends on the latents and is a predictor.
    """

    offsets: Offsets
    class_axis: int | None
    columns: tuple[TensorVariable, ...]
    moving: tuple[bool, ...] = (True,)

    @classmethod
    def of_one(cls, offsets: Offsets) -> AffinePart:
        """Return variables with one entry for each observation, functions of one predictor."""
        return cls(offsets, None, (pt.as_tensor(next(iter(offsets))),))

    @property
    def predictors(self) -> list[TensorVariable]:
        return [c for c, moves in zip(self.columns, self.moving, strict=True) if moves]

    def assembled(
        self, etas: Iterator[TensorVariable], constants: Sequence[TensorVariable | None]
    ) -> TensorVariable:
        """Return the first variable, its columns replaced by ``etas``, or by ``constants``."""
        given = zip(constants, self.moving, strict=True)
        parts = [next(etas) if moves else constant for constant, moves in given]
        return parts[0] if self.class_axis is None else pt.stack(parts, axis=self.class_axis)


def find_predictors(
    graphs: Variables, latents: Variables, shape: tuple[int, ...], *, several: bool = False
) -> list[AffinePart] | str:
    """Return the parts through which ``graphs`` depend on the latents, or a reason why not.

    ``graphs`` are the parameters of a distribution or a log density of observations of ``shape``.
    With ``several`` there may be several predictors, rather than one with an entry for each
    observation.
    """
    found: dict[Variable, int | None] = {}
    affine: set[Variable] = set()
    seen: set[Variable] = set()
    # In the order of the parameters.
    stack = list(reversed(graphs))
    while stack:
        var = stack.pop()
        if var in seen or not depends_on(var, latents):
            continue
        seen.add(var)
        may_be_part = has_rows(var, shape) or (several and _is_float(var))
        if may_be_part and is_affine(pt.as_tensor(var), latents):
            axes = _class_axes(var, shape)
            if not axes and not has_rows(var, shape):
                return (
                    f"a parameter that is a function of affine numbers of shape "
                    f"{static_shape(var)}, not of one entry for each observation"
                )
            affine.add(var)
            if axes:
                found[var] = _class_axis(var, axes, graphs, shape)
            else:
                # From −f/√2, as in Φ(f), to f.
                plain = without_number(var, latents)
                found[plain if has_rows(plain, shape) else var] = None
        elif var.owner is None:
            return (
                "a parameter that depends on latents, but not through affine predictors with one "
                "entry for each observation"
            )
        elif isinstance(var.owner.op, RNGConsumerOp):
            stack.extend(reversed(distribution_parameters(var)))
        else:
            stack.extend(filter(is_tensor, reversed(var.owner.inputs)))
    if not found:
        return "no predictor that depends on latents"
    inner = between(graphs, found)
    rows = [var for var, axis in found.items() if axis is None]
    if several:
        others = substitute(graphs, {var: var.type() for var in rows})
        elsewhere = {var for var in ancestors(others) if is_random(var)}
        rows = [_without_parameters(var, elsewhere, latents, shape) for var in rows]
        found = dict.fromkeys(rows) | {v: axis for v, axis in found.items() if axis is not None}
        if any(_is_product(var, affine) for var in inner):
            return PRODUCT
        if math.prod(shape) > 1 and any(math.prod(static_shape(var)) == 1 for var in rows):
            return "a predictor with one entry for all observations"
        parts = _of_rows(rows, latents, shape)
        parts += _of_classes({v: a for v, a in found.items() if a is not None}, latents)
    else:
        offsets = one_predictor(rows, latents, shape)
        if offsets is None:
            return "several predictors"
        parts, inner = [AffinePart.of_one(offsets)], between(graphs, offsets)
    moving = [var for part in parts for var in part.offsets]
    if any(has_steps(var, moving) for var in inner):
        return "a function of a predictor that is constant piece by piece, such as its sign"
    count = sum(len(part.predictors) for part in parts)
    return (
        parts if count <= _MOST else f"{count} predictors for each observation, more than {_MOST}"
    )


def with_factors_inside(model: ModelIndex, graphs: Variables, latents: Variables) -> list[Variable]:
    """Return the graphs with exp(η + log c) for c·exp(η), where c is learned and positive.

    Sites of η + log c are as good for any c, which takes the level of η with it; not so where the
    density depends on c or η also in another way, as in c·exp(η)/(1 + exp(η)).
    """
    factors: dict[Variable, tuple[Variable, Variable]] = {}
    for var in between(graphs, latents):
        if op_name(var) in {"Mul", "TrueDiv"}:
            eta, c = peel(var, "scaled_log", latents) or (var, var)
            if c is not var and _drawn(c) and is_affine(eta, latents):
                factors[var] = eta, c
    rest = substitute(graphs, {var: var.type() for var in factors})
    inside: dict[Variable, Variable] = {}
    for var, (eta, c) in factors.items():
        alone = not depends_on(rest, [v for v in latents if depends_on(eta, v)])
        if alone and _drawn(*rest).isdisjoint(_drawn(c)) and is_positive(model, c):
            inside[var] = pt.exp(eta + pt.log(c)).astype(var.dtype)
    return substitute(graphs, inside) if inside else list(graphs)


def has_logarithms(model: ModelIndex, eta: Variable, latents: Variables) -> bool:
    """Return whether the learned factors that a predictor has logarithms of are positive."""
    logs = [var.owner.inputs[0] for var in down_to_random([eta]) if op_name(var) == "Log"]
    peeled = [peel(x, "scaled_log", latents) if depends_on(x, latents) else (x, x) for x in logs]
    learned = [one[1] for one in peeled if one is not None and _drawn(one[1])]
    return all(is_positive(model, factor) for factor in learned)


def _drawn(*graphs: Variable) -> set[Variable]:
    """Return the random variables that graphs are written with."""
    return set(filter(is_random, down_to_random(graphs)))


def _without_parameters(
    var: Variable, elsewhere: set[Variable], latents: Variables, shape: tuple[int, ...]
) -> Variable:
    """Strip terms of parameters that the density has elsewhere too: f from log α − f.

    Sites of log α − f would have to follow α, as negative binomial densities truncated at zero do.
    """

    def are_elsewhere(outer: Variable, others: list[Variable]) -> bool:
        own = {part for part in ancestors(others) if is_random(part)}
        shared = all(all(part.type.broadcastable) for part in others)
        known = shared and own <= elsewhere and (bool(own) or not others)
        return known and op_name(outer) in {"Add", "Sub", "Neg"}

    inner = stripped(var, latents, are_elsewhere)
    return inner if has_rows(inner, shape) else var


def one_predictor(found: Variables, latents: Variables, shape: tuple[int, ...]) -> Offsets | None:
    """Return affine variables as functions of one predictor, or None if they need several."""
    if not found:
        return None
    chains = [_chain(var, latents, shape) for var in found]
    # Of f and f − c, the one that the other is made of.
    bases = [var for var in found if all(var in chain for chain in chains)]
    first = bases[0] if bases else found[0]
    offsets: Offsets = {first: None}
    for other in found:
        (difference,) = simplify([other - first])
        if depends_on(difference, latents):
            break
        offsets.setdefault(other, difference)
    else:
        return offsets
    # Multiples of η, say: what all of them are made of, entry by entry.
    for var in chains[0]:
        if all(var in chain for chain in chains) and is_affine(var, latents):
            apart = all(is_separate(v, [var], len(shape)) for v in found if v is not var)
            return {var: None} if apart else None
    return None


def _chain(var: Variable, latents: Variables, shape: tuple[int, ...]) -> list[Variable]:
    """Return ``var``, the variable of which it is a function, the variable of that, and so on."""
    chain = []
    while True:
        if has_rows(var, shape):
            chain.append(var)
        parts = [] if var.owner is None else var.owner.inputs
        parts = {part for part in parts if depends_on(part, latents)}
        if len(parts) != 1:
            return chain
        (var,) = parts


def is_zero(offset: Variable | None) -> bool:
    """Return whether an offset is the number zero."""
    number = None if offset is None else constant_number(offset)
    return offset is None or (number is not None and not number.any())


def between(graphs: Variables, found: Collection[Variable]) -> list[Variable]:
    """Return the variables between ``found`` and ``graphs``, without random variables."""
    return [
        var
        for graph in graphs
        for var in descendants(graph, list(found))
        if not isinstance(var.owner.op, RNGConsumerOp)
    ]


def has_steps(var: Variable, predictors: Variables) -> bool:
    """Return whether ``var`` is constant in η, piece by piece."""
    scalar_op = getattr(var.owner.op, "scalar_op", None)
    if isinstance(scalar_op, Switch):
        return not depends_on(var.owner.inputs[1:], predictors)
    if isinstance(scalar_op, Sign) and has_fixed_sign(var.owner.inputs[0], predictors):
        return False  # the mark of a positive scale, as PyMC writes Gamma(mu, sigma)
    return var.dtype.startswith("float") and has_misleading_derivative(var)


def _is_float(var: Variable) -> bool:
    return isinstance(var, TensorVariable) and var.dtype.startswith("float")


def has_rows(var: Variable, shape: tuple[int, ...]) -> bool:
    """Return whether ``var`` has one number an observation, or one for all (along an axis)."""
    if not _is_float(var):
        return False
    if var.ndim != len(shape):
        return var.ndim < len(shape) and all(var.type.broadcastable)
    return all(a in (1, b) for a, b in zip(static_shape(var), shape, strict=True))


def _is_product(var: Variable, affine: set[Variable]) -> bool:
    """Return whether ``var`` multiplies two of the affine variables."""
    op = var.owner.op
    op = op.core_op if isinstance(op, Blockwise) else op
    multiplies = isinstance(op, Dot) or (isinstance(op, Elemwise) and isinstance(op.scalar_op, Mul))
    return multiplies and sum(part in affine for part in var.owner.inputs) > 1


# -- one entry for each observation ---------------------------------------------------------------


def _of_rows(found: Variables, latents: Variables, shape: tuple[int, ...]) -> list[AffinePart]:
    groups: list[tuple[list[Variable], Offsets]] = []
    for var in found:
        for i, (others, _) in enumerate(groups):
            members = [*others, var]
            offsets = one_predictor(members, latents, shape)
            if offsets is not None:
                groups[i] = members, offsets
                break
        else:
            groups.append(([var], {var: None}))
    return [AffinePart.of_one(offsets) for _, offsets in groups]


# -- an axis of classes ---------------------------------------------------------------------------


def _class_axes(var: TensorVariable, shape: tuple[int, ...]) -> list[int]:
    """Return the axes besides which ``var`` has those of the observations, the last first."""
    if var.ndim != len(shape) + 1:
        return []
    own = static_shape(var)
    return [
        axis
        for axis in reversed(range(var.ndim))
        if own[axis] > 1
        and all(
            length in (1, expected)
            for length, expected in zip(own[:axis] + own[axis + 1 :], shape, strict=True)
        )
    ]


def _class_axis(
    var: TensorVariable, axes: Sequence[int], graphs: Variables, shape: tuple[int, ...]
) -> int:
    """Return the axis of the classes among several possible ``axes``."""
    for axis in axes if len(axes) > 1 else ():
        own: list[int | None] = list(range(len(shape)))
        own.insert(axis, None)
        for graph in graphs:
            found = axes_of(graph, {var: tuple(own)})
            if found is not None and found[: len(shape)] == tuple(range(len(shape))):
                return axis
    return axes[0]


def _of_classes(found: dict[TensorVariable, int], latents: Variables) -> list[AffinePart]:
    parts: list[AffinePart] = []
    for var, axis in found.items():
        for i, part in enumerate(parts):
            base = next(iter(part.offsets))
            if part.class_axis != axis or static_shape(var)[axis] != static_shape(base)[axis]:
                continue
            (difference,) = simplify([var - base])
            if not depends_on(difference, latents):
                parts[i] = replace(part, offsets={**part.offsets, var: difference})
                break
        else:
            columns = simplify([column_of(var, axis, k) for k in range(static_shape(var)[axis])])
            moving = tuple(depends_on(column, latents) for column in columns)
            parts.append(AffinePart({var: None}, axis, tuple(columns), moving))
    return parts


def column_of(var: TensorVariable, axis: int, k: int) -> TensorVariable:
    """Return entry ``k`` along an axis, without the graphs of other entries."""
    op = None if var.owner is None else var.owner.op
    if isinstance(op, Join) and op.axis == axis:
        start = 0
        for part in var.owner.inputs:
            length = static_shape(part)[axis]
            if k < start + length:
                return column_of(part, axis, k - start)
            start += length
    if isinstance(op, Elemwise):
        parts = [
            column_of(part, axis, 0 if part.type.broadcastable[axis] else k)
            for part in var.owner.inputs
        ]
        return op(*parts)
    if isinstance(op, DimShuffle) and op.new_order[axis] != "x" and not op.drop:
        inner = op.new_order[axis]
        column = column_of(var.owner.inputs[0], inner, k)
        order = [i for i in op.new_order if i != inner]
        return column.dimshuffle([i if i == "x" else i - (i > inner) for i in order])
    return var[(*(slice(None),) * axis, k)]


_POSITIVE = frozenset({"Cosh", "Exp", "Exp2", "Sigmoid", "Softplus"})
# Of positive arguments.
_KEEP_POSITIVE = frozenset({"Add", "Expm1", "Log1p", "Maximum", "Minimum", "Pow"})
# The sign of the value follows from the signs of the arguments.
_KEEP_SIGN = frozenset(
    {"Abs", "Cast", "Identity", "Mul", "Neg", "Reciprocal", "Second", "Sqr", "Sqrt", "TrueDiv"}
)
_SHAPES = (Alloc, DimShuffle, Reshape, SpecifyShape, Subtensor, ViewOp)


def has_fixed_sign(graph: Variable, inputs: Variables) -> bool:
    """Return whether ``graph`` visibly has the same sign for all values of ``inputs``."""
    if not depends_on(graph, inputs) or _is_positive(graph):
        return True
    parts = _values(graph) if op_name(graph) in _KEEP_SIGN or _has_shape_alone(graph) else []
    return bool(parts) and all(has_fixed_sign(part, inputs) for part in parts)


def _is_positive(graph: Variable) -> bool:
    if isinstance(graph, Constant):
        return bool(np.all(np.asarray(graph.data) > 0))
    if op_name(graph) in _POSITIVE:
        return True
    parts = _values(graph)
    kept = op_name(graph) in _KEEP_POSITIVE | _KEEP_SIGN - {"Neg"} or _has_shape_alone(graph)
    return kept and bool(parts) and all(map(_is_positive, parts))


def _values(graph: Variable) -> list[Variable]:
    """Return the inputs whose values determine the values of ``graph``."""
    if graph.owner is None:
        return []
    inputs = list(graph.owner.inputs)
    if _has_shape_alone(graph):
        return inputs[:1]
    return inputs[1:] if op_name(graph) == "Second" else inputs


def _has_shape_alone(graph: Variable) -> bool:
    return graph.owner is not None and isinstance(graph.owner.op, _SHAPES)
