"""Simplifying graphs, so that different spellings of one formula look alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytensor.graph.basic import Variable, clone_get_equiv
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import walk
from pytensor.tensor.random.op import RNGConsumerOp

from ..python_mode import COMPILED_ONLY

__all__ = ["simplify", "substitute"]


def simplify(graphs: Sequence[Variable]) -> list[Variable]:
    """Return equivalent graphs in PyTensor's canonical, stabilised form.

    It strips ``Deterministic`` wrappers, recognises 1/(1 + exp(−f)) as Sigmoid, cancels
    log(exp(f)), and so on. Leaves and random variables keep their identity; the given graphs, and
    with them the user's model, are not changed.
    """
    graphs = list(graphs)
    # Rewriting happens in place, and would reach what random variables depend on.
    stand_ins = {rv: rv.type(name=rv.name) for rv in _random_variables(graphs)}
    leaves = {graph: graph for graph in graphs if graph.owner is None}
    kept = {**leaves, **stand_ins}
    copies = clone_get_equiv(list(kept), graphs, copy_inputs=False, copy_orphans=False, memo=kept)
    simplified = rewrite_graph(
        [copies[graph] for graph in graphs],
        include=("canonicalize", "stabilize", "specialize"),
        exclude=COMPILED_ONLY,
    )
    return substitute(simplified, {stand_in: rv for rv, stand_in in stand_ins.items()})


def _random_variables(graphs: Sequence[Variable]) -> list[Variable]:
    """Return the random variables that ``graphs`` depend on with no other between."""

    def expand(var: Variable) -> Sequence[Variable]:
        return () if var.owner is None or _is_random(var) else var.owner.inputs

    return [var for var in walk(graphs, expand) if _is_random(var)]


def _is_random(var: Variable) -> bool:
    return var.owner is not None and isinstance(var.owner.op, RNGConsumerOp)


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
