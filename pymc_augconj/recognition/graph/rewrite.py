"""Simplifying graphs, so that different spellings of one formula look alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import walk
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.rewriting.shape import ShapeFeature

from pymc_augconj.python_mode import EXCLUDED

from .whole_numbers import in_real_numbers

__all__ = ["is_random", "simplify", "substitute"]


def simplify(graphs: Sequence[Variable], *, shapes: bool = False) -> list[Variable]:
    """Return equivalent graphs in PyTensor's canonical, stabilised form.

    It strips ``Deterministic`` wrappers, recognises 1/(1 + exp(−f)) as Sigmoid, cancels
    log(exp(f)), and so on. Leaves and random variables keep their identity; the given graphs are
    not changed.

    With ``shapes`` the shapes in the graphs are computed from those of their leaves, so that what
    nothing but the shape of is used vanishes from them.
    """
    # PyTensor rewrites in place, and would change the user's own model; but what it copies has
    # copies of the random variables, which nothing would find. So it sees them as inputs.
    drawn = _nearest_random_variables(graphs)
    inputs = {var: var.type(name=var.name) for var in drawn}
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
        include=("canonicalize", "stabilize", "specialize"), exclude=EXCLUDED
    )
    return optdb.query(query)


def is_random(var: Variable) -> bool:
    """Return whether a variable is a draw from a distribution."""
    return var.owner is not None and isinstance(var.owner.op, RNGConsumerOp)


def _nearest_random_variables(graphs: Sequence[Variable]) -> list[Variable]:
    """Return the random variables that the graphs reach, but none beyond them."""

    def expand(var: Variable) -> Sequence[Variable] | None:
        return None if var.owner is None or is_random(var) else var.owner.inputs

    return [var for var in walk(list(graphs), expand) if is_random(var)]


def substitute(
    graphs: Sequence[Variable], replacements: Mapping[Variable, Variable]
) -> list[Variable]:
    """Return the graphs with variables replaced; a replacement that occurs nowhere is ignored.

    Whatever does not depend on a replaced variable keeps its identity, so that the model's random
    variables are still found in the result. (PyTensor's ``graph_replace`` copies some of them
    where one replaced variable depends on another.) What a replacement contains is not looked at.
    """
    new: dict[Variable, Variable] = dict(replacements)
    stack = list(graphs)
    while stack:
        var = stack[-1]
        if var in new:
            stack.pop()
        elif var.owner is None:
            new[stack.pop()] = var
        elif waiting := [parent for parent in var.owner.inputs if parent not in new]:
            stack.extend(waiting)
        else:
            node = var.owner
            inputs = [new[parent] for parent in node.inputs]
            if any(now is not before for now, before in zip(inputs, node.inputs, strict=True)):
                node = node.clone_with_new_inputs(inputs)
            for before, now in zip(var.owner.outputs, node.outputs, strict=True):
                new.setdefault(before, now)
    return [new[graph] for graph in graphs]
