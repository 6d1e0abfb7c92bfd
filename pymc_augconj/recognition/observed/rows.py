"""Densities of single observations: graphs of N observations, for any number of rows.

PyMC's log density of an observed variable has one row per observation. This module rebuilds it for
any number of rows: vectors of unknown length (with further axes of length one if the observations
have several axes) replace the N observations, their predictors and all other values that differ
between observations, and nodes that contain the number N are removed. Conditions on parameters,
which PyMC requires of all rows together, are required of each row.

The distribution of an observed variable is a product over observations. The graph of a potential is
arbitrary, so that the second half of the module follows the axes of the predictor through every
operation. It treats ``exp(f)[:, None]`` and ``exp(f)[observed]`` as ``exp(f[:, None])`` and
``exp(f[observed])``. PyMC writes parameters in the last form for a variable with unobserved
entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort, walk, walk_toposort
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import All
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.point import Argument
from pymc_augconj.python_mode.tape import Registers
from pymc_augconj.recognition.graph.affine import depends_on, is_affine
from pymc_augconj.recognition.graph.dependence import distribution_parameters, static_shape
from pymc_augconj.recognition.graph.functions import Inputs, PointFunction
from pymc_augconj.recognition.graph.interpreter import op_name
from pymc_augconj.recognition.graph.rewrite import Variables, is_number, simplify, substitute

from .links import as_probit

_Y = Argument("y")


def conjuncts(conditions: Variables) -> list[Variable]:
    """Split conjunctions, so that a condition on one parameter does not depend on the others."""

    def joins(var: Variable) -> bool:
        op = None if var.owner is None else var.owner.op
        return isinstance(op, All | MakeVector | ScalarFromTensor | TensorFromScalar)

    every = walk(conditions, lambda var: var.owner.inputs if joins(var) else (), bfs=False)
    return [var for var in every if not joins(var)]


def dependents(graphs: Variables, bases: Collection[Variable]) -> set[Variable]:
    """Return the variables of ``graphs`` that depend on ``bases``, these included; shapes count."""
    known = set(bases)
    for node in toposort(graphs, blockers=bases):
        if not known.isdisjoint(node.inputs):
            known.update(node.outputs)
    return known


def rebuild(graph: Variable, symbols: Mapping[Variable, Variable]) -> Variable:
    """Return ``graph`` with symbols of unknown length for variables with one row per observation.

    Symbols keep the number of axes, with more for a number that all observations share.
    """
    new: dict[Variable, Variable] = dict(symbols)
    for var in _moving([graph], symbols):
        if var not in new:
            inputs = [new.get(part, part) for part in _parts(var.owner)]
            for before, now in zip(var.owner.outputs, _remade(var, inputs), strict=True):
                new.setdefault(before, now)
    return new.get(graph, graph)


def _moving(graphs: Variables, bases: Collection[Variable]) -> Iterator[Variable]:
    """Yield what rows of ``graphs`` are computed from that depends on ``bases``, those first."""
    moving = dependents(graphs, bases)

    def parts(var: Variable) -> Variables:
        return [] if var in bases else [part for part in _parts(var.owner) if part in moving]

    return walk_toposort(moving.intersection(graphs), parts)


def _parts(node: Apply) -> list[Variable]:
    if isinstance(node.op, CheckParameterValue):
        # All rows must meet a condition, which is the same as that each of them meets its own.
        return [node.inputs[0], *conjuncts(node.inputs[1:])]
    # The shapes of these do not matter.
    return node.inputs[: 1 if isinstance(node.op, Alloc | SpecifyShape) else None]


def _remade(var: Variable, inputs: list[Variable]) -> list[Variable]:
    op = var.owner.op
    if isinstance(op, CheckParameterValue):
        density, *conditions = inputs
        met = reduce(pt.and_, [_of_rows(condition, density.ndim) for condition in conditions])
        return [pt.switch(met, density, -np.inf)]
    if op_name(var) == "Sub" and is_number(inputs[0], 1.0):
        eta = as_probit(inputs[1])
        if eta is not None:
            # 1 − Φ(η), which rounds to zero from η = 8 on, is written as Φ(−η).
            return [0.5 * pt.erfc(eta / np.sqrt(2.0))]
    if isinstance(op, Alloc):
        (value,) = inputs
        return [pt.shape_padleft(value, var.ndim - value.ndim)]
    if isinstance(op, SpecifyShape):
        return inputs
    if isinstance(op, Join):
        # What all rows share is of length one.
        rows = [part for part in inputs if part.type.shape[0] is None]
        if op.axis != 0 and 0 < len(rows) < len(inputs):
            like = pt.zeros_like(rows[0].take([0], axis=op.axis))
            inputs = [part if part in rows else part + like for part in inputs]
        return op.make_node(*inputs).outputs
    if isinstance(op, DimShuffle | Reshape) and _is_shared_number(var, inputs[0]):
        return inputs[:1]
    if isinstance(op, DimShuffle) and 0 in op.drop and inputs[0].type.shape[0] is None:
        # The axis of a single observation, removed and added again.
        order = list(op.new_order)
        order[order.index("x")] = 0
        return [inputs[0].dimshuffle(order)]
    if isinstance(op, OpFromGraph):
        # Its inner graph is for fixed types.
        inner = op.fgraph.unfreeze()
        inner_inputs = dict(zip(inner.inputs, inputs, strict=True))
        return [rebuild(output, inner_inputs) for output in inner.outputs]
    return op.make_node(*inputs).outputs


def _is_shared_number(var: Variable, rebuilt: Variable) -> bool:
    """Return whether ``var`` is one number for all observations, rebuilt as one for each row."""
    if rebuilt.type.shape[:1] != (None,) or not all(var.type.broadcastable):
        return False
    op, before = var.owner.op, var.owner.inputs[0].ndim
    keeps = isinstance(op, DimShuffle) and 0 not in op.drop and before == rebuilt.ndim
    return not keeps and var.ndim <= rebuilt.ndim


def _of_rows(condition: Variable, ndim: int) -> Variable:
    """Return whether the condition holds in each row, or as a whole if it has no rows.

    A row is an entry of a density of ``ndim`` axes.
    """
    condition = pt.as_tensor(condition)
    if ndim == 0 or condition.ndim == 0 or condition.type.shape[0] is not None:
        return pt.all(condition)
    if condition.ndim <= ndim:
        return condition
    return pt.all(condition, axis=tuple(range(ndim, condition.ndim)))


class RowFunction:
    """A rebuilt graph as a NumPy function of observations, predictors and parameters.

    ``graph`` has one number a row, and other axes of length one; ``y``, each of ``etas`` and
    ``rows`` are vectors of unknown length, ``scalars`` numbers that all rows share.
    """

    def __init__(
        self,
        graph: Variable,
        y: Variable,
        etas: Variables,
        scalars: Mapping[str, Variable],
        rows: Mapping[str, Variable],
    ) -> None:
        self._dtype = y.dtype
        self._scalars, self._rows = tuple(scalars), tuple(rows)
        self._etas = tuple(Argument("eta", str(i)) for i in range(len(etas)))
        inputs: Inputs = {_Y: y, **dict(zip(self._etas, etas, strict=True)), **scalars, **rows}
        self._function = PointFunction(graph.astype("float64").ravel(), inputs)

    def __call__(
        self, y: np.ndarray, eta: np.ndarray, params: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Return the value of every row, for ``eta`` of shape (P, …); arguments broadcast."""
        if isinstance(eta, Registers):
            return self._on_tape(y, eta, params)
        params = {name: np.asarray(params[name], float) for name in (*self._scalars, *self._rows)}
        shape = np.broadcast_shapes(np.shape(y), np.shape(eta)[1:], *map(np.shape, params.values()))
        given: dict[Any, np.ndarray] = dict(zip(self._etas, np.asarray(eta, float), strict=True))
        given[_Y] = np.asarray(y, self._dtype)
        given |= {name: params[name] for name in self._rows}
        vectors = {name: _wide(value, shape).ravel() for name, value in given.items()}
        if all(params[name].size == 1 for name in self._scalars):
            scalars = {name: params[name].reshape(()) for name in self._scalars}
            return self._evaluate(vectors, scalars).reshape(shape)
        # Numbers that differ between draws: one evaluation for each.
        table = np.stack(np.broadcast_arrays(*(params[name] for name in self._scalars)), axis=-1)
        distinct, which = np.unique(
            table.reshape(-1, len(self._scalars)), axis=0, return_inverse=True
        )
        which = np.broadcast_to(which.reshape(table.shape[:-1]), shape).ravel()
        order = np.argsort(which, kind="stable")
        ends = np.cumsum(np.bincount(which, minlength=len(distinct)))
        found = np.empty(order.size)
        # All ends, so that no rows are no part.
        for values, members in zip(distinct, np.split(order, ends)[:-1], strict=True):
            scalars = {n: np.array(v) for n, v in zip(self._scalars, values, strict=True)}
            here = {name: vector[members] for name, vector in vectors.items()}
            found[members] = self._evaluate(here, scalars)
        return found.reshape(shape)

    def _on_tape(self, y: Any, eta: Registers, params: Mapping[str, Any]) -> Any:
        """Return the registers of the value of one row."""
        entries: Any = {_Y: y.index, **dict(zip(self._etas, eta.index, strict=True))}
        entries |= {name: params[name].index for name in self._rows}
        entries |= {name: params[name].index.reshape(()) for name in self._scalars}
        tape: Any = eta.tape
        return Registers(tape, self._function.on_tape(tape, entries))

    def _evaluate(
        self, vectors: dict[Any, np.ndarray], scalars: dict[str, np.ndarray]
    ) -> np.ndarray:
        return np.array(_wide(self._function({**vectors, **scalars}), vectors[_Y].shape))


def _wide(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    # np.broadcast_to takes as long as a density of a few rows.
    value = np.asarray(value)
    return value if value.shape == shape else np.broadcast_to(value, shape)


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
    found = dict(known)
    for var in _moving([graph], known):
        if var not in found:
            found[var] = _axes(var, [part for part in _parts(var.owner) if part in found], found)
    return found.get(graph)


def _axes(var: Variable, parts: Variables, found: dict[Variable, Axes]) -> Axes:
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


def _together(parts: Variables, found: dict[Variable, Axes]) -> Axes:
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


def with_indices_inside(rv: Variable, latents: Variables) -> Variable:
    """Return the random variable with indices inside its parameters and components."""
    moving = [p for p in distribution_parameters(rv) if depends_on(p, latents)]
    drawn = [p for p in moving if isinstance(p.owner and p.owner.op, RNGConsumerOp)]
    replaced = {component: with_indices_inside(component, latents) for component in drawn}
    plain = [p for p in moving if p not in drawn]
    replaced |= dict(zip(plain, graphs_with_indices_inside(plain, latents), strict=True))
    inputs = [replaced.get(var, var) for var in rv.owner.inputs]
    node = rv.owner.clone_with_new_inputs(inputs, strict=False)
    return node.outputs[rv.owner.outputs.index(rv)]


def graphs_with_indices_inside(graphs: Variables, latents: Variables) -> list[TensorVariable]:
    """Return graphs with indices inside, all at once so that shared variables stay shared."""
    known: dict[tuple[Variable, ...], TensorVariable] = {}
    return [_inside(graph, latents, known) for graph in (simplify(graphs) if graphs else ())]


def _inside(
    graph: TensorVariable, latents: Variables, known: dict[tuple[Variable, ...], TensorVariable]
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
    latents: Variables,
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
