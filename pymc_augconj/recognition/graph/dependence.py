"""Which random variables a graph depends on, and what a random variable's node depends on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import explicit_graph_inputs, walk
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.python_mode import without_compilation

__all__ = ["direct_parents", "distribution_parameters", "parameters_of", "static_shape"]


def direct_parents(graphs: Sequence[Variable], model: Model) -> set[Variable]:
    """Return the random variables that ``graphs`` depend on with no other between."""
    basic = set(model.basic_RVs)

    def expand(var: Variable) -> Sequence[Variable]:
        return () if var in basic or var.owner is None else var.owner.inputs

    return {var for var in walk(list(graphs), expand) if var in basic}


def parameters_of(rv: Variable) -> list[Variable]:
    """Return the inputs of a random variable's node, on which its distribution depends."""
    return list(rv.owner.inputs)


def distribution_parameters(rv: Variable) -> list[Variable]:
    """Return the graphs of a random variable's distribution parameters."""
    op = rv.owner.op
    try:
        return list(op.dist_params(rv.owner))
    except (AttributeError, NotImplementedError, ValueError):
        # A symbolic random variable without a signature has no dist_params.
        return [parent for parent in rv.owner.inputs if isinstance(parent, TensorVariable)]


def static_shape(variable: Variable) -> tuple[int, ...]:
    """Return the shape of ``variable``, computed if its type does not have it.

    The types of the graph's explicit inputs must have known shapes.
    """
    if all(length is not None for length in variable.type.shape):
        return tuple(variable.type.shape)
    inputs = [leaf for leaf in explicit_graph_inputs([variable]) if not isinstance(leaf, Constant)]
    inputs = [leaf for leaf in inputs if not isinstance(leaf, SharedVariable)]
    with without_compilation():
        function = pytensor.function(inputs, variable.shape, on_unused_input="ignore")
    shape = function(*(np.zeros(leaf.type.shape, dtype=leaf.dtype) for leaf in inputs))
    return tuple(int(length) for length in shape)
