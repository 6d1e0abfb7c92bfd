"""The random variables that a graph depends on, and the names and parameters of their nodes.

Names are as users of PyMC write them: the class of a random variable often has another one
(``NegBinomialRV``, ``WeibullBetaRV``), and PyMC writes some distributions as others: an ordered
logistic regression as a ``Categorical``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import pymc as pm
import pytensor
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.truncated import TruncatedRV
from pymc.model import Model
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, explicit_graph_inputs, walk
from pytensor.tensor.basic import Join
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.python_mode import without_compilation

from .affine import scalar_name
from .rewrite import is_random

__all__ = [
    "direct_parents",
    "distribution_name",
    "distribution_parameters",
    "name_of_op",
    "parameters_of",
    "static_shape",
]


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


def distribution_name(rv: Variable) -> str:
    """Return the name of the distribution of a random variable."""
    op = rv.owner.op
    name = name_of_op(type(op).__name__)
    if isinstance(op, CustomDistRV | CustomSymbolicDistRV):
        return name.removesuffix(f"_{rv.name}")
    if name in ("Mixture", "Hurdle"):
        return _name_of_mixture(name, rv)
    return _name_of_categorical(rv) if name == "Categorical" else name


def name_of_op(op_name: str) -> str:
    """Return the name of a distribution, given that of the class of its random variables."""
    return _public_names().get(op_name, op_name.removesuffix("RV").lstrip("_"))


@cache
def _public_names() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in pm.distributions.__all__:
        kind = getattr(getattr(pm.distributions, name), "rv_type", None)
        if kind is not None:
            found.setdefault(kind.__name__, name)
    return found


def _name_of_mixture(name: str, rv: Variable) -> str:
    _, _, *components = rv.owner.inputs  # behind the generator and the weights
    components = [var for var in components if is_random(var)]
    names = [name_of_op(type(component.owner.op).__name__) for component in components]
    if names == ["Normal"]:
        return "NormalMixture"
    if len(names) != 2 or names[0] != "DiracDelta":
        return name
    if name == "Mixture":
        return f"ZeroInflated{names[1]}"
    # Counts beyond the hurdle are truncated at one.
    op = components[1].owner.op
    return name + (
        name_of_op(type(op.base_rv_op).__name__) if isinstance(op, TruncatedRV) else names[1]
    )


def _name_of_categorical(rv: Variable) -> str:
    """Tell classes with cutpoints from others by how PyMC writes their probabilities."""
    p = rv.owner.op.dist_params(rv.owner)[0]
    while p.owner is not None and isinstance(p.owner.op, ViewOp):
        (p,) = p.owner.inputs
    parts = [] if p.owner is None else p.owner.inputs
    if scalar_name(p) == "Sub":
        # σ(c_k − η) − σ(c_(k−1) − η)
        joined = {part.owner.inputs[0] for part in parts if _is(part, Subtensor)}
        if len(joined) == 1 and all(_is(part, Join) for part in joined):
            return "OrderedLogistic" if _contains(joined, "Sigmoid") else "Categorical"
    if scalar_name(p) == "Exp" and _is(parts[0], Join) and _contains(parts, "Erfc"):
        return "OrderedProbit"
    return "Categorical"


def _is(var: Variable, kind: type) -> bool:
    return var.owner is not None and isinstance(var.owner.op, kind)


def _contains(graphs: Iterable[Variable], name: str) -> bool:
    return any(scalar_name(var) == name for var in ancestors(graphs))
