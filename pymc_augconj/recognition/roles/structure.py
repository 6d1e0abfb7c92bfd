"""Which variables of a model depend on which.

Facts about dependence only; nothing here looks at a formula.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pymc.model import Model
from pytensor.graph.basic import Variable

from pymc_augconj.recognition.graph.dependence import direct_parents, parameters_of
from pymc_augconj.recognition.latents.innovations import GaussianVariable

from .drawable import refuse_improper, why_not_drawn

__all__ = [
    "Structure",
    "forward_variables",
]


@dataclass(eq=False)
class Structure:
    """The roles of the model's variables.

    Attributes
    ----------
    latents : sequence of GaussianVariable
        Gaussian variables that every predictor is affine in.
    hyperparameters : list of Variable
        Every other free random variable that the observations depend on.
    forward : list of Variable
        Free random variables that no observation and no potential depends on, in topological
        order.
    factors : list of Variable
        Observed variables and potentials that depend on hyperparameters alone.
    held : dict
        As :attr:`~pymc_augconj.model.Hyperparameter.why_not_optimised`, by the names of those
        hyperparameters that have one.
    """

    latents: Sequence[GaussianVariable]
    hyperparameters: list[Variable]
    forward: list[Variable]
    factors: list[Variable]
    held: dict[str, str]


def forward_variables(model: Model) -> tuple[list[Variable], dict[str, str]]:
    """Return the free variables that are drawn from their distributions given the rest.

    Returns
    -------
    forward : list of Variable
        Those that no observed variable and no potential depends on, nor one of ``undrawn``.
    undrawn : dict
        Names of variables that no observed variable and no potential depends on, but that cannot
        be drawn: each with the reason.

    Raises
    ------
    RecognitionError
        If one of these has an improper prior.
    """
    parents = {rv: direct_parents(parameters_of(rv), model) for rv in model.basic_RVs}
    needed = _with_ancestors(
        [*model.observed_RVs, *direct_parents(model.potentials, model)], parents
    )
    undrawn: dict[Variable, str] = {}
    for rv in model.free_RVs:
        if rv not in needed and (why := why_not_drawn(model, rv)) is not None:
            refuse_improper(model, rv)
            undrawn[rv] = why
    needed |= _with_ancestors(undrawn, parents)
    # model.free_RVs is in the order of definition, which is a topological order.
    forward = [rv for rv in model.free_RVs if rv not in needed]
    return forward, {rv.name: why for rv, why in undrawn.items()}


def _with_ancestors(
    variables: Iterable[Variable], parents: Mapping[Variable, Iterable[Variable]]
) -> set[Variable]:
    found: set[Variable] = set()
    frontier = list(variables)
    while frontier:
        rv = frontier.pop()
        if rv not in found:
            found.add(rv)
            frontier.extend(parents[rv])
    return found
