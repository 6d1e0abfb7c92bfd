"""Densities of single observations: graphs of N observations, for any number of rows.

PyMC's log density of an observed variable has one row per observation. This module rebuilds it for
any number of rows: vectors of unknown length (with further axes of length one if the observations
have several axes) replace the N observations, their predictors and all other values that differ
between observations, and nodes that contain the number N are removed. Conditions on parameters,
which PyMC requires of all rows together, are required of each row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Sub
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import All
from pytensor.tensor.shape import Reshape, SpecifyShape

from pymc_augconj.python_mode.tape import Registers
from pymc_augconj.recognition.graph.functions import PointFunction

from .links import as_probit, is_one

_Y, _ETA = "y", "eta"


def conjuncts(conditions: Sequence[Variable]) -> list[Variable]:
    """Split conjunctions, so that a condition on one parameter does not depend on the others."""
    found: dict[Variable, None] = {}
    stack = list(conditions)
    while stack:
        var = stack.pop()
        op = None if var.owner is None else var.owner.op
        if isinstance(op, All | MakeVector | ScalarFromTensor | TensorFromScalar):
            stack.extend(var.owner.inputs)
        else:
            found[var] = None
    return list(found)


def dependents(graphs: Sequence[Variable], bases: Collection[Variable]) -> set[Variable]:
    """Return the variables of ``graphs`` that depend on ``bases``, these included; shapes count."""
    known = dict.fromkeys(bases, True)
    stack = list(graphs)
    while stack:
        var = stack[-1]
        parents = [] if var.owner is None else var.owner.inputs
        if var in known:
            stack.pop()
        elif waiting := [parent for parent in parents if parent not in known]:
            stack.extend(waiting)
        else:
            known[stack.pop()] = any(known[parent] for parent in parents)
    return {var for var, depends in known.items() if depends}


def rebuild(graph: Variable, symbols: Mapping[Variable, Variable]) -> Variable:
    """Return ``graph`` with symbols of unknown length for variables with one row per observation.

    Symbols keep the number of axes, with more for a number that all observations share.
    """
    changed = dependents([graph], symbols)
    new: dict[Variable, Variable] = dict(symbols)
    stack = [graph]
    while stack:
        var = stack[-1]
        if var in new:
            stack.pop()
            continue
        if var not in changed:
            new[stack.pop()] = var
            continue
        parents = list(var.owner.inputs)
        if isinstance(var.owner.op, CheckParameterValue):
            parents = [parents[0], *conjuncts(parents[1:])]
        elif isinstance(var.owner.op, Alloc | SpecifyShape):
            parents = parents[:1]
        if waiting := [parent for parent in parents if parent not in new]:
            stack.extend(waiting)
            continue
        inputs = [new[parent] for parent in parents]
        for before, now in zip(var.owner.outputs, _remade(var, inputs), strict=True):
            new.setdefault(before, now)
    return new[graph]


def _remade(var: Variable, inputs: list[Variable]) -> list[Variable]:
    op = var.owner.op
    if isinstance(op, CheckParameterValue):
        density, *conditions = inputs
        met = reduce(pt.and_, [_of_rows(condition, density.ndim) for condition in conditions])
        return [pt.switch(met, density, -np.inf)]
    if isinstance(getattr(op, "scalar_op", None), Sub) and is_one(inputs[0]):
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
        etas: Sequence[Variable],
        scalars: Mapping[str, Variable],
        rows: Mapping[str, Variable],
    ) -> None:
        self._dtype = y.dtype
        self._scalars, self._rows = tuple(scalars), tuple(rows)
        named = {f"param:{name}": var for name, var in {**scalars, **rows}.items()}
        flat = graph.astype("float64").ravel()
        self._etas = tuple(f"{_ETA}:{i}" for i in range(len(etas)))
        predictors = dict(zip(self._etas, etas, strict=True))
        self._function = PointFunction(flat, {_Y: y, **predictors, **named})

    def __call__(
        self, y: np.ndarray, eta: np.ndarray, params: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Return the value of every row, for ``eta`` of shape (P, …); arguments broadcast."""
        if isinstance(eta, Registers):
            return self._on_tape(y, eta, params)
        params = {name: np.asarray(params[name], float) for name in (*self._scalars, *self._rows)}
        shape = np.broadcast_shapes(np.shape(y), np.shape(eta)[1:], *map(np.shape, params.values()))
        given = {_Y: y, **dict(zip(self._etas, eta, strict=True))}
        given |= {name: params[name] for name in self._rows}
        vectors = {name: _wide(value, shape).ravel() for name, value in given.items()}
        vectors[_Y] = np.asarray(vectors[_Y], self._dtype)
        for name in self._etas:
            vectors[name] = np.asarray(vectors[name], float)
        several = [name for name in self._scalars if params[name].size > 1]
        if not several:
            scalars = {name: params[name].reshape(()) for name in self._scalars}
            return self._evaluate(vectors, scalars).reshape(shape)
        # Numbers that differ between draws: one evaluation for each.
        columns = [np.broadcast_to(params[name], shape).ravel() for name in self._scalars]
        distinct, which = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        order = np.argsort(which.ravel(), kind="stable")
        ends = np.cumsum(np.bincount(which.ravel(), minlength=len(distinct)))
        found = np.empty(order.size)
        for values, members in zip(distinct, np.split(order, ends[:-1]), strict=True):
            scalars = {n: np.array(v) for n, v in zip(self._scalars, values, strict=True)}
            here = {name: vector[members] for name, vector in vectors.items()}
            found[members] = self._evaluate(here, scalars)
        return found.reshape(shape)

    def _on_tape(self, y: Any, eta: Registers, params: Mapping[str, Any]) -> Any:
        """Return the registers of the value of one row."""
        entries = {_Y: y.index, **dict(zip(self._etas, eta.index, strict=True))}
        entries |= {f"param:{name}": params[name].index for name in self._rows}
        entries |= {f"param:{name}": params[name].index.reshape(()) for name in self._scalars}
        tape: Any = eta.tape
        return Registers(tape, self._function.on_tape(tape, entries))

    def _evaluate(
        self, vectors: dict[str, np.ndarray], scalars: dict[str, np.ndarray]
    ) -> np.ndarray:
        point = {name: vectors[name] for name in (_Y, *self._etas)}
        point |= {f"param:{name}": vectors[name] for name in self._rows}
        point |= {f"param:{name}": value for name, value in scalars.items()}
        return np.array(_wide(self._function(point), vectors[_Y].shape))


def _wide(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    # np.broadcast_to takes as long as a density of a few rows.
    value = np.asarray(value)
    return value if value.shape == shape else np.broadcast_to(value, shape)
