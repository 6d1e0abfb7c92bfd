"""PyMC's own log densities, of the observed variables and of the hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence

import pytensor.tensor as pt
from pymc.logprob.basic import transformed_conditional_logp
from pymc.logprob.utils import CheckParameterValue
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.dependence import direct_parents
from pymc_augconj.recognition.graph.space import ValueSpace
from pymc_augconj.recognition.latents.innovations import GaussianVariable, in_innovations
from pymc_augconj.recognition.observed.observed_graph import ObservedGraph
from pymc_augconj.recognition.observed.rows import conjuncts
from pymc_augconj.recognition.roles.structure import Structure

__all__ = [
    "conditional_log_densities",
    "log_densities",
    "log_prior",
    "prior_terms",
    "whole_potential",
]


def log_densities(
    matched: Sequence[ObservedGraph], latents: Sequence[GaussianVariable], space: ValueSpace
) -> list[pt.TensorVariable]:
    """Return graphs of the observed variables' log densities, each elementwise and flat."""
    graphs = space.in_values([observed.log_density(space.model, latents) for observed in matched])
    return [
        pt.broadcast_to(graph, observed.shape).ravel()
        for graph, observed in zip(graphs, matched, strict=True)
    ]


def whole_potential(
    observed: ObservedGraph, latents: Sequence[GaussianVariable], space: ValueSpace
) -> pt.TensorVariable | None:
    """Return the graph of a potential as PyMC adds it up, shape (1,); None of other variables.

    Its terms, of which :func:`log_densities` has the entries, were found in this graph.
    """
    if observed.density is None:
        return None
    graphs = in_innovations(space.model, [observed.variable], latents)
    (graph,) = space.in_values(graphs)
    return graph.astype("float64").sum().reshape((1,))


def prior_terms(structure: Structure, space: ValueSpace) -> dict[str, Variable]:
    """Return log densities of all that depends on hyperparameters alone, by name."""
    model = space.model
    potentials = [factor for factor in structure.factors if factor in model.potentials]
    variables = [factor for factor in structure.factors if factor not in potentials]
    variables += structure.hyperparameters
    terms = conditional_log_densities(model, variables) + space.in_values(potentials)
    names = [var.name for var in variables + potentials]
    factors = {
        latent.rv.name: latent.log_factor
        for latent in structure.latents
        if latent.log_factor is not None
    }
    terms += space.in_values(list(factors.values()))
    return dict(zip([*names, *factors], terms, strict=True))


def log_prior(
    terms: Sequence[Variable],
    structure: Structure,
    space: ValueSpace,
    densities: Sequence[Variable],
) -> pt.TensorVariable:
    """Return the sum of :func:`prior_terms`.

    It is −∞ where PyMC's ``densities`` of the observed variables are for want of parameters in
    range, which the package's own densities do not look at.
    """
    total = sum((pt.sum(term) for term in terms), start=pt.constant(0.0)).astype("float64")
    conditions = _conditions(densities, space, [latent.input for latent in structure.latents])
    return pt.switch(pt.all(conditions), total, -pt.inf) if conditions else total


def conditional_log_densities(
    model: Model, variables: Sequence[Variable], *, jacobian: bool = True
) -> list[Variable]:
    """Return PyMC's log densities of random variables that depend on none of the latents."""
    if not variables:
        return []
    # model.logp would derive, and drop, the densities of the latents too, covariances and all.
    nodes = {rv.owner for rv in variables}
    # An observed variable that depends on latents is data to a prior that depends on it.
    parents = direct_parents([parent for node in nodes for parent in node.inputs], model)
    given = parents.intersection(model.observed_RVs)
    needed = [rv for rv in model.basic_RVs if rv.owner in nodes or rv in given]
    return transformed_conditional_logp(
        variables,
        rvs_to_values={rv: model.rvs_to_values[rv] for rv in needed},
        rvs_to_transforms={
            rv: model.rvs_to_transforms[rv] for rv in needed if rv in model.rvs_to_transforms
        },
        jacobian=jacobian,
    )


def _conditions(
    densities: Sequence[Variable], space: ValueSpace, innovations: Sequence[Variable]
) -> list[Variable]:
    """Return what PyMC demands of parameters that depend on hyperparameters alone."""
    hyperparameters = list(space.inputs.values())
    demanded = [
        condition
        for var in ancestors(densities)
        if var.owner is not None
        and isinstance(var.owner.op, CheckParameterValue)
        and var.owner.op.can_be_replaced_by_ninf
        for condition in var.owner.inputs[1:]
    ]
    return [
        pt.all(pt.as_tensor(part))
        for part in conjuncts(demanded)
        if depends_on(part, hyperparameters) and not depends_on(part, innovations)
    ]
