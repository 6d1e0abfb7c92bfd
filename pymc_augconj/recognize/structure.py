"""Which variables of a model are latents, hyperparameters, or drawn forward.

Facts about dependence only; nothing here looks at a formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import walk

from ..errors import NotAffineError, RecognitionError
from .latents import GaussianVariable, find_gaussian_variables

__all__ = ["Structure", "direct_parents", "forward_variables", "gaussian_candidates"]


@dataclass(eq=False)
class Structure:
    """The roles of the free variables.

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


def gaussian_candidates(
    model: Model, forward: Sequence[Variable]
) -> tuple[list[GaussianVariable], dict[str, str]]:
    """Return the Gaussian variables that enter the model through means alone.

    Returns
    -------
    candidates : list of GaussianVariable
        Largest first.
    demoted : dict
        Names of Gaussian variables that must be hyperparameters, and why.

    Raises
    ------
    RecognitionError
        If a Gaussian process or a multivariate normal would have to be a hyperparameter.
    """
    roots = [parent for rv in model.basic_RVs for parent in parameters_of(rv)]
    candidates = [
        candidate
        for candidate in find_gaussian_variables(model, [*roots, *model.potentials])
        if candidate.rv not in set(forward)
    ]
    demoted: dict[str, str] = {}
    while True:
        reason = _first_demotion(model, candidates, set(forward))
        if reason is None:
            return candidates, demoted
        candidate, why = reason
        if not candidate.diagonal:
            raise NotAffineError(
                f"latent variable {candidate.name!r} ({candidate.form}): expected it to enter the "
                f"model only through predictors and means, but {why}; sample this model with "
                "pm.sample's NUTS"
            )
        candidates.remove(candidate)
        demoted[candidate.name] = why


def _first_demotion(
    model: Model, candidates: list[GaussianVariable], forward: set[Variable]
) -> tuple[GaussianVariable, str] | None:
    by_rv = {candidate.rv: candidate for candidate in candidates}
    for potential in model.potentials:
        for parent in direct_parents([potential], model):
            if parent in by_rv:
                return by_rv[parent], f"the potential {potential.name!r} depends on it"
    for rv in model.free_RVs:
        if rv in forward:
            continue
        if rv in by_rv:
            graphs, what = [by_rv[rv].scale], "covariance"
        else:
            graphs, what = parameters_of(rv), "prior"
        for parent in direct_parents(graphs, model):
            if parent in by_rv and parent is not rv:
                return by_rv[parent], f"the {what} of {rv.name!r} depends on it"
    return None


def explain_no_latent(model: Model) -> RecognitionError:
    """Return the error for a model in which no Gaussian latent variable was found."""
    transformed = [
        rv.name
        for rv in model.free_RVs
        if type(rv.owner.op).__name__ in ("NormalRV", "MvNormalRV")
        and model.rvs_to_transforms[rv] is not None
    ]
    if transformed:
        return RecognitionError(
            f"variable {transformed[0]!r} is Gaussian but has a transform, so that its law is a "
            "truncated or ordered one; expected a Gaussian latent variable without a transform; "
            "remove the transform= argument, or sample this model with pm.sample's NUTS"
        )
    listed = ", ".join(
        f"{rv.name!r} ({type(rv.owner.op).__name__.removesuffix('RV')})" for rv in model.free_RVs
    )
    return RecognitionError(
        "the model has no Gaussian latent variable: expected a pm.gp.Latent prior, an MvNormal or "
        f"a Normal variable in the predictor, found {listed or 'no free variable'}; sample this "
        "model with pm.sample's NUTS"
    )
