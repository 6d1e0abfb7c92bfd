"""Parameters in which axes and indices stand next to the predictor, not around a function of it.

``exp(f)[:, None]`` and ``exp(f)[observed]`` are ``exp(f[:, None])`` and ``exp(f[observed])``. The
last is how PyMC writes the parameters of a variable of which some entries were not observed.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.recognition.graph.affine import depends_on, is_affine
from pymc_augconj.recognition.graph.dependence import distribution_parameters, static_shape
from pymc_augconj.recognition.graph.rewrite import simplify, substitute

__all__ = ["graphs_with_indices_inside", "with_indices_inside"]


def with_indices_inside(rv: Variable, latents: Sequence[Variable]) -> Variable:
    """Return the random variable with its parameters, and its components', in that form."""
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
    """Return graphs, all at once so that what they share is one variable still, in that form."""
    known: dict[tuple, TensorVariable] = {}
    return [_inside(graph, latents, known) for graph in (simplify(graphs) if graphs else ())]


def _inside(
    graph: TensorVariable, latents: Sequence[Variable], known: dict[tuple, TensorVariable]
) -> TensorVariable:
    """Return ``graph`` with what is indexed indexed before, as far as the predictor."""
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
    known: dict[tuple, TensorVariable],
) -> TensorVariable:
    """Return what the indices of ``graph`` take of one argument of what it indexes."""
    indexed, *where = graph.owner.inputs
    if all(part.type.broadcastable):
        return pt.shape_padleft(part.reshape(()), graph.ndim)
    # An axis of length one would be indexed beyond its end.
    wide = part.type.broadcastable == indexed.type.broadcastable
    whole = part if wide else pt.broadcast_to(part, static_shape(indexed))
    return _inside(graph.owner.op(whole, *where), latents, known)
