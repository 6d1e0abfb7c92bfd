"""Simplification of graphs, so that different spellings of one formula become equal.

Guards against rounding replace a probability of exactly 0 or 1 by an adjacent number. For example,
bambi writes p = switch(eq(p, 1), 1 − ε, p) with ε the machine epsilon, so that no log density is
−∞. This equals p unless p was rounded to 1, and recognition treats it as p: the densities differ
where an observation has a probability below ε.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import ancestors, toposort, walk
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.rewriting.shape import ShapeFeature
from pytensor.tensor.type import TensorType

from pymc_augconj.python_mode import EXCLUDED

from .functions import PointFunction
from .interpreter import in_real_numbers, is_constant, op_name

#: Graphs, or the variables that they depend on.
Variables = Sequence[Variable]

# Makes a fused operation of a small power, which has no derivative.
_FUSES = "local_pow_to_nested_squaring"


def simplify(graphs: Variables, *, shapes: bool = False) -> list[Variable]:
    """Return equivalent graphs in PyTensor's canonical, stabilised form.

    It strips ``Deterministic`` wrappers, recognises 1/(1 + exp(−f)) as Sigmoid, cancels
    log(exp(f)), and so on. Leaves and random variables keep their identity; the given graphs are
    not changed.

    With ``shapes`` the shapes in the graphs are computed from the shapes of their leaves, so that
    variables that enter only by their shape vanish.
    """
    # PyTensor rewrites in place, and would change the user's own model; but what it copies has
    # copies of the random variables, which nothing would find. So it sees them as inputs.
    inputs = {var: var.type(name=var.name) for var in down_to_random(graphs) if is_random(var)}
    outputs = in_real_numbers(substitute(graphs, inputs))
    graph = FunctionGraph(outputs=outputs, clone=True, copy_inputs=False)
    if shapes:
        graph.attach_feature(ShapeFeature())
    _rewriter().rewrite(graph)
    return substitute(graph.outputs, {new: var for var, new in inputs.items()})


@cache
def _rewriter() -> GraphRewriter:
    # To look the rewrites up takes half of the time of rewriting a small graph.
    query = RewriteDatabaseQuery(
        include=("canonicalize", "stabilize", "specialize"), exclude=(*EXCLUDED, _FUSES)
    )
    return optdb.query(query)


def is_random(var: Variable) -> bool:
    """Return whether a variable is a draw from a distribution."""
    return var.owner is not None and isinstance(var.owner.op, RNGConsumerOp)


def down_to_random(graphs: Iterable[Variable]) -> Iterator[Variable]:
    """Yield the variables of graphs, but none below a random variable."""
    return walk(graphs, lambda v: () if v.owner is None or is_random(v) else v.owner.inputs)


def substitute(
    graphs: Variables, replacements: Mapping[Variable, Variable], *, strict: bool = True
) -> list[Variable]:
    """Return the graphs with variables replaced; a replacement that occurs nowhere is ignored.

    Whatever does not depend on a replaced variable keeps its identity, so that the model's random
    variables are still found in the result. (PyTensor's ``graph_replace`` copies some of them
    where one replaced variable depends on another.) What a replacement contains is not looked at.
    Its type may be another one, such as other lengths, unless ``strict``.
    """
    new: dict[Variable, Variable] = dict(replacements)
    for node in toposort(graphs, blockers=replacements):
        inputs = [new.get(parent, parent) for parent in node.inputs]
        if any(now is not before for now, before in zip(inputs, node.inputs, strict=True)):
            changed = node.clone_with_new_inputs(inputs, strict=strict)
            for before, now in zip(node.outputs, changed.outputs, strict=True):
                new.setdefault(before, now)
    return [new.get(graph, graph) for graph in graphs]


# Largest change of a number by a guard.
_EPSILON = float(np.finfo(np.float64).eps)


def without_guards(graphs: Variables) -> list[Variable]:
    """Return the graphs with every guard against rounding replaced by its argument."""
    guards = {var: inner for var in ancestors(graphs) if (inner := _guarded(var)) is not None}
    if not guards:
        return list(graphs)
    for guard, inner in guards.items():
        while inner in guards:
            inner = guards[inner]
        guards[guard] = inner
    # What is guarded may itself depend on something guarded.
    return without_guards(substitute(graphs, guards))


def _guarded(var: Variable) -> Variable | None:
    """Return x if ``var`` is switch(eq(x, c), c′, x) with c′ equal to c up to rounding."""
    if op_name(var) != "Switch":
        return None
    condition, then, otherwise = var.owner.inputs
    if op_name(condition) != "EQ" or otherwise not in condition.owner.inputs:
        return None
    if otherwise.type.broadcastable != var.type.broadcastable or otherwise.dtype != var.dtype:
        return None
    limits = [constant_number(part) for part in condition.owner.inputs if part is not otherwise]
    value = constant_number(then)
    if len(limits) != 1 or limits[0] is None or value is None:
        return None
    return otherwise if abs(float(value[0]) - float(limits[0][0])) <= _EPSILON else None


def is_tensor(var: Variable) -> bool:
    """Return whether ``var`` is an array, rather than a generator, say."""
    return isinstance(var.type, TensorType)


def folded(graph: Variable) -> Variable:
    """Return a constant for a graph of constants, any other graph unchanged."""
    if is_constant(graph):
        return pt.constant(np.array(PointFunction(graph, {})({}), dtype=float))
    return graph


def constant_number(var: Variable) -> np.ndarray | None:
    """Return the common number of all entries of a constant, or of a graph of constants."""
    if not is_tensor(var) or not is_constant(var):
        return None
    value = np.asarray(PointFunction(var, {})({}))
    return np.ravel(value)[:1] if np.unique(value).size == 1 else None


def is_number(var: Variable, value: float) -> bool:
    """Return whether ``var`` is a constant with this number in all entries, of any shape."""
    found = get_underlying_scalar_constant_value(var, raise_not_constant=False)
    return isinstance(found, np.ndarray) and bool(found == value)
