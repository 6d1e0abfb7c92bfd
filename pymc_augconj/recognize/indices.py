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

from .affine import depends_on, is_affine
from .rewrite import simplify, substitute
from .structure import distribution_parameters

__all__ = ["with_indices_inside"]


def with_indices_inside(rv: Variable, latents: Sequence[Variable]) -> Variable:
    """Return the random variable with its parameters, and its components', in that form."""
    replaced = {}
    for parameter in distribution_parameters(rv):
        if not depends_on(parameter, latents):
            continue
        if isinstance(parameter.owner and parameter.owner.op, RNGConsumerOp):
            replaced[parameter] = with_indices_inside(parameter, latents)
        else:
            (plain,) = simplify([parameter])
            replaced[parameter] = _inside(plain, latents)
    inputs = [replaced.get(var, var) for var in rv.owner.inputs]
    node = rv.owner.clone_with_new_inputs(inputs, strict=False)
    return node.outputs[rv.owner.outputs.index(rv)]


def _inside(graph: TensorVariable, latents: Sequence[Variable]) -> TensorVariable:
    """Return ``graph`` with what is indexed indexed before, as far as the predictor."""
    if graph.owner is None or not depends_on(graph, latents):
        return graph
    if not isinstance(graph.owner.op, AdvancedSubtensor):
        parts = {part: _inside(part, latents) for part in graph.owner.inputs}
        return substitute([graph], {part: new for part, new in parts.items() if new is not part})[0]
    indexed, *where = graph.owner.inputs
    if not isinstance(indexed.owner and indexed.owner.op, Elemwise) or is_affine(indexed, latents):
        return graph
    parts = [
        # An axis of length one would be indexed beyond its end.
        part
        if part.type.broadcastable == indexed.type.broadcastable
        else pt.broadcast_to(part, indexed.shape)
        for part in indexed.owner.inputs
    ]
    taken = [_inside(graph.owner.op(part, *where), latents) for part in parts]
    return indexed.owner.op(*taken)
