"""Which variables of a model depend on which.

Facts about dependence only; nothing here looks at a formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import walk
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.recognition.latents.normal import GaussianVariable

__all__ = [
    "Structure",
    "direct_parents",
    "distribution_parameters",
    "forward_variables",
    "parameters_of",
]


@dataclass(eq=False)
class Structure:
    """The roles of the model's variables.

    Attributes
    ----------
    latents : list of GaussianVariable
        Gaussian variables that every predictor is affine in.
    hyperparameters : list of Variable
        Every other free random variable that the observations depend on.
    forward : list of Variable
        Free random variables that no observation and no potential depends on, in topological
        order.
    observed : list of Variable
        Observed variables that depend on a latent.
    factors : list of Variable
        Observed variables and potentials that depend on hyperparameters alone.
    """

    latents: list[GaussianVariable]
    hyperparameters: list[Variable]
    forward: list[Variable]
    observed: list[Variable]
    factors: list[Variable]


def direct_parents(graphs: Sequence[Variable], model: Model) -> set[Variable]:
    """Return the random variables that ``graphs`` depend on with no other between."""
    basic = set(model.basic_RVs)

    def expand(var: Variable) -> Sequence[Variable]:
        return () if var in basic or var.owner is None else var.owner.inputs

    return {var for var in walk(list(graphs), expand) if var in basic}


def parameters_of(rv: Variable) -> list[Variable]:
    """Return the inputs of a random variable's node: what its distribution depends on."""
    return list(rv.owner.inputs)


def distribution_parameters(rv: Variable) -> list[Variable]:
    """Return the graphs of a random variable's distribution parameters."""
    op = rv.owner.op
    try:
        return list(op.dist_params(rv.owner))
    except (AttributeError, NotImplementedError, ValueError):
        # A symbolic random variable without a signature does not know them.
        return [parent for parent in rv.owner.inputs if isinstance(parent, TensorVariable)]


def forward_variables(model: Model) -> list[Variable]:
    """Return the free variables that no observed variable and no potential depends on."""
    parents = {rv: direct_parents(parameters_of(rv), model) for rv in model.basic_RVs}
    needed: set[Variable] = set()
    frontier = [*model.observed_RVs, *direct_parents(model.potentials, model)]
    while frontier:
        rv = frontier.pop()
        if rv not in needed:
            needed.add(rv)
            frontier.extend(parents[rv])
    # model.free_RVs is in the order of definition, which is a topological order.
    return [rv for rv in model.free_RVs if rv not in needed]
