"""Axes of the predictor in graphs: separability of observations, and indices beside it.

The distribution of an observed variable is a product over observations. The graph of a potential is
arbitrary, so that this module follows the axes of the predictor through every operation. It treats
``exp(f)[:, None]`` and ``exp(f)[observed]`` as ``exp(f[:, None])`` and ``exp(f[observed])``. PyMC
writes parameters in the last form for a variable with unobserved entries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.basic import Alloc, Join
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.recognition.graph.affine import depends_on, is_affine
from pymc_augconj.recognition.graph.dependence import distribution_parameters, static_shape
from pymc_augconj.recognition.graph.rewrite import simplify, substitute

from .rows import conjuncts, dependents

# Of each axis of a variable, which axis of the observations it is; None if it is none of them.
Axes = tuple[int | None, ...]


class _MixedError(Exception):
    """An operation mixes entries of the predictor."""


def is_separate(graph: Variable, predictors: Collection[Variable], ndim: int) -> bool:
    """Return whether entry i of ``graph`` depends on entry i of each of ``predictors`` alone.

    All have ``ndim`` axes, the axes of the observations; along an axis of length one a predictor
    has the same entry for all.
    """

    def rows(var: Variable) -> Axes:
        # A number for all observations may have fewer axes.
        return tuple(range(ndim - var.ndim, ndim))

    return axes_of(graph, {var: rows(var) for var in predictors}) == rows(graph)


def axes_of(graph: Variable, known: Mapping[Variable, Axes]) -> Axes | None:
    """Return the axis of the observations for each axis of ``graph``, given the axes of others.

    None if it mixes entries of different observations, or depends on none of the others.
    """
    try:
        return _follow(graph, known)
    except _MixedError:
        return None


def _follow(graph: Variable, known: Mapping[Variable, Axes]) -> Axes | None:
    """Return the axes of ``graph``; None if it depends on none of the variables ``known``."""
    moving = dependents([graph], known)
    found = dict(known)
    stack = [graph]
    while stack:
        var = stack[-1]
        if var in found or var not in moving:
            stack.pop()
            continue
        needed = [part for part in _parts(var.owner) if part in moving]
        if waiting := [part for part in needed if part not in found]:
            stack.extend(waiting)
        else:
            found[stack.pop()] = _axes(var, needed, found)
    return found.get(graph)


def _parts(node: Apply) -> list[Variable]:
    if isinstance(node.op, CheckParameterValue):
        # All rows must meet a condition, which is the same as that each of them meets its own.
        return [node.inputs[0], *conjuncts(node.inputs[1:])]
    # The shapes of these do not matter.
    return node.inputs[: 1 if isinstance(node.op, Alloc | SpecifyShape) else None]


def _axes(var: Variable, parts: Sequence[Variable], found: dict[Variable, Axes]) -> Axes:
    """Return the axes of ``var``, from those of its inputs that depend on the predictors."""
    node = var.owner
    op, first = node.op, node.inputs[0]
    axes = found.get(first)
    if isinstance(op, Elemwise):
        return _together(parts, found)
    if isinstance(op, OpFromGraph):
        inner = zip(op.fgraph.inputs, node.inputs, strict=True)
        output = op.fgraph.outputs[node.outputs.index(var)]
        within = _follow(output, {new: found[old] for new, old in inner if old in found})
        if within is None:
            raise _MixedError
        return within
    if len(parts) != 1 and not isinstance(op, CheckParameterValue | Join):
        raise _MixedError
    if isinstance(op, CheckParameterValue | ViewOp | SpecifyShape) and axes is not None:
        return axes
    if isinstance(op, Alloc) and axes is not None:
        return (None,) * (var.ndim - len(axes)) + axes
    if isinstance(op, DimShuffle) and axes is not None:
        if any(axes[i] is not None for i in op.drop):
            raise _MixedError
        return tuple(None if i == "x" else axes[i] for i in op.new_order)
    if isinstance(op, CAReduce) and axes is not None:
        reduced = range(len(axes)) if op.axis is None else op.axis
        if any(axes[i] is not None for i in reduced):
            raise _MixedError
        return tuple(axis for i, axis in enumerate(axes) if i not in reduced)
    if isinstance(op, Subtensor) and axes is not None:
        return _subtensor(op, axes)
    if isinstance(op, Softmax | LogSoftmax) and axes is not None:
        over = range(len(axes)) if op.axis is None else np.atleast_1d(op.axis)
        if all(axes[i] is None for i in over):
            return axes
    if isinstance(op, Join):
        own = {found[part] for part in parts}
        if len(own) == 1 and next(iter(own))[op.axis] is None:
            return own.pop()
    raise _MixedError


def _together(parts: Sequence[Variable], found: dict[Variable, Axes]) -> Axes:
    """Return the axes of an elementwise function of ``parts``."""
    result: list[int | None] = []
    for i in range(parts[0].ndim):
        # An axis of length one that is none of the rows' is repeated.
        own = {found[p][i] for p in parts if found[p][i] is not None or not p.type.broadcastable[i]}
        if len(own) > 1:
            raise _MixedError
        result.append(own.pop() if own else None)
    named = [axis for axis in result if axis is not None]
    if len(set(named)) < len(named):
        raise _MixedError
    return tuple(result)


def _subtensor(op: Subtensor, axes: Axes) -> Axes:
    result = []
    for i, axis in enumerate(axes):
        index = op.idx_list[i] if i < len(op.idx_list) else slice(None)
        whole = isinstance(index, slice) and index == slice(None)
        if axis is not None and not whole:
            raise _MixedError
        if isinstance(index, slice):
            result.append(axis)
    return tuple(result)


def with_indices_inside(rv: Variable, latents: Sequence[Variable]) -> Variable:
    """Return the random variable with indices inside its parameters and components."""
    moving = [p for p in distribution_parameters(rv) if depends_on(p, latents)]
    drawn = [p for p in moving if isinstance(p.owner and p.owner.op, RNGConsumerOp)]
    replaced = {component: with_indices_inside(component, latents) for component in drawn}
    plain = [p for p in moving if p not in drawn]
    replaced |= dict(zip(plain, graphs_with_indices_inside(plain, latents), strict=True))
    inputs = [replaced.get(var, var) for var in rv.owner.inputs]
    node = rv.owner.clone_with_new_inputs(inputs, strict=False)
    return node.outputs[rv.owner.outputs.index(rv)]


def graphs_with_indices_inside(
    graphs: Sequence[Variable], latents: Sequence[Variable]
) -> list[TensorVariable]:
    """Return graphs with indices inside, all at once so that shared variables stay shared."""
    known: dict[tuple[Variable, ...], TensorVariable] = {}
    return [_inside(graph, latents, known) for graph in (simplify(graphs) if graphs else ())]


def _inside(
    graph: TensorVariable,
    latents: Sequence[Variable],
    known: dict[tuple[Variable, ...], TensorVariable],
) -> TensorVariable:
    """Return ``graph`` with its indices moved inside, as far as the predictor."""
    if graph.owner is None or not depends_on(graph, latents):
        return graph
    if not isinstance(graph.owner.op, AdvancedSubtensor):
        parts = {part: _inside(part, latents, known) for part in graph.owner.inputs}
        return substitute([graph], {part: new for part, new in parts.items() if new is not part})[0]
    indexed, *where = graph.owner.inputs
    if not isinstance(indexed.owner and indexed.owner.op, Elemwise) or is_affine(indexed, latents):
        return graph
    taken = []
    for part in indexed.owner.inputs:
        if (part, *where) not in known:
            known[part, *where] = _taken(part, graph, latents, known)
        taken.append(known[part, *where])
    return indexed.owner.op(*taken)


def _taken(
    part: TensorVariable,
    graph: TensorVariable,
    latents: Sequence[Variable],
    known: dict[tuple[Variable, ...], TensorVariable],
) -> TensorVariable:
    """Return one argument of the indexed operation, with the indices of ``graph``."""
    indexed, *where = graph.owner.inputs
    if all(part.type.broadcastable):
        return pt.shape_padleft(part.reshape(()), graph.ndim)
    # An axis of length one would be indexed beyond its end.
    wide = part.type.broadcastable == indexed.type.broadcastable
    whole = part if wide else pt.broadcast_to(part, static_shape(indexed))
    return _inside(graph.owner.op(whole, *where), latents, known)
