"""Simplifying graphs, so that different spellings of one formula look alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph

__all__ = ["simplify", "substitute"]


def simplify(graphs: Sequence[Variable]) -> list[Variable]:
    """Return equivalent graphs in PyTensor's canonical, stabilised form.

    It strips ``Deterministic`` wrappers, recognises 1/(1 + exp(−f)) as Sigmoid, cancels
    log(exp(f)), and so on. Leaves keep their identity; the given graphs are not changed.
    """
    return rewrite_graph(
        list(graphs),
        include=("canonicalize", "stabilize", "specialize"),
        exclude=("c_blas", "use_c_blas", "BlasOpt"),
    )


def substitute(
    graphs: Sequence[Variable], replacements: Mapping[Variable, Variable]
) -> list[Variable]:
    """Return the graphs with variables replaced; a replacement that occurs nowhere is ignored."""
    replacements = {old: new for old, new in replacements.items() if old is not new}
    if not replacements or not graphs:
        return list(graphs)
    return graph_replace(list(graphs), replacements, strict=False)


