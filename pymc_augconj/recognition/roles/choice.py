"""Which Gaussian variables are integrated out: as many as every predictor is jointly affine in.

A Gaussian variable that also enters elsewhere (a product of latents, a covariance, a potential)
becomes a hyperparameter where its components are independent Normals, or where it was recognised
by its density alone (a random walk): a sampler loses speed by that, and nothing else. Where it is a
Gaussian process or a multivariate normal it is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pymc.model import Model
from pytensor.graph.basic import Variable

from pymc_augconj.errors import (
    AugmentationError,
    DataError,
    NotAffineError,
    RecognitionError,
    UnknownLikelihoodError,
)
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.dependence import (
    direct_parents,
    distribution_parameters,
    parameters_of,
)
from pymc_augconj.recognition.latents.normal import (
    GaussianVariable,
    find_gaussian_variables,
    in_innovations,
)
from pymc_augconj.recognition.latents.quadratic import read_quadratic
from pymc_augconj.recognition.observed.match import match_observed
from pymc_augconj.recognition.observed.observed_graph import ObservedGraph

from .errors import no_latent
from .structure import Structure, forward_variables

__all__ = ["choose_structure"]

# Kinds of latents that a sampler may treat as hyperparameters. A fit may do so only for independent
# ones, see ``held``.
_OPTIONAL = ("diagonal", "precision")


def choose_structure(
    model: Model, chosen: Collection[str] | None = None
) -> tuple[Structure, list[ObservedGraph]]:
    """Decide which Gaussian variables are latents, and match the observed ones to likelihoods.

    Parameters
    ----------
    model : pymc.Model
    chosen : collection of str, optional
        Names of the variables that may be latents; by default every one.

    Raises
    ------
    NotAffineError
        If a Gaussian process or a multivariate normal cannot be a latent.
    UnknownLikelihoodError
        If an observed variable that depends on one has no known augmentation.
    RecognitionError
        If there is no latent, or an observed variable depends on no free variable at all.
    DataError
        If an observed variable that depends on a latent has no observations.
    """
    forward, undrawn = forward_variables(model)
    found = _find(model, forward, chosen)
    candidates: Sequence[GaussianVariable]
    candidates, demoted = _acting_through_means(model, found, forward)
    try:
        candidates, matched = _match_most(model, candidates, forward)
    except (NotAffineError, UnknownLikelihoodError) as error:
        # Likelihoods without an augmentation are used only if there is no other way.
        try:
            candidates, matched = _match_most(model, candidates, forward, densities=True)
        except AugmentationError:
            raise error from None
    for observed in matched:
        if observed.size == 0:
            raise DataError(
                f"{observed.label}: expected observations, found the shape "
                f"{observed.shape}; leave the variable out while there are none"
            )
    matched_rvs = [observed.variable for observed in matched]
    unmatched = [rv for rv in model.observed_RVs if rv not in matched_rvs]
    # A variable with a given value (pm.observe) is a constant for those that depend on it.
    used = direct_parents(
        [p for rv in model.basic_RVs for p in parameters_of(rv)] + model.potentials, model
    )
    for rv in unmatched:
        if rv not in used and not direct_parents(distribution_parameters(rv), model):
            raise RecognitionError(
                f"observed variable {rv.name!r}: expected a distribution that depends on a latent "
                "variable or a hyperparameter, found one that depends on no free variable at all; "
                "remove it, or connect it to the model"
            )
    if not candidates:
        raise no_latent(model, demoted, chosen, _refused_without_transforms(model, forward))
    if not matched:
        raise RecognitionError(
            f"observed variable {unmatched[0].name!r}: expected a predictor that contains a "
            "Gaussian latent variable, found none in it; sample this model with pm.sample's NUTS"
        )
    latents = {latent.rv for latent in candidates}
    hyper = [rv for rv in model.free_RVs if rv not in latents and rv not in set(forward)]
    structure = Structure(
        latents=candidates,
        hyperparameters=hyper,
        forward=forward,
        held=_held(found, latents, hyper, demoted, undrawn),
        factors=[*unmatched, *model.potentials],
    )
    return structure, matched


def _held(
    found: Sequence[GaussianVariable],
    latents: Collection[Variable],
    hyper: Sequence[Variable],
    demoted: Mapping[str, str],
    undrawn: Mapping[str, str],
) -> dict[str, str]:
    """Return why some of the hyperparameters ``hyper`` must not be optimised."""
    held = {name: f"nothing observed depends on it, and {why}" for name, why in undrawn.items()}
    for latent in found:
        if latent.kind == "precision" and latent.rv not in latents:
            why = demoted.get(latent.name, "no likelihood that is read is affine in it")
            held[latent.name] = f"it is Gaussian ({latent.form}), but {why}"
    for rv in hyper:
        if type(rv.owner.op).__name__ == "ZeroSumNormalRV":
            held[rv.name] = (
                "it is Gaussian (ZeroSumNormal) on a subspace; write it as E @ pm.Normal('z', 0, "
                "sigma, shape=n - 1), E an (n, n - 1) array of orthonormal columns that sum to "
                "zero, which is read as a latent"
            )
    return held


def _find(
    model: Model, forward: Sequence[Variable], chosen: Collection[str] | None
) -> list[GaussianVariable]:
    """Return the Gaussian variables, in decreasing order of the gain by integrating them out."""
    found = find_gaussian_variables(model, _roots(model))
    known = {candidate.rv for candidate in found}
    for rv in model.free_RVs:
        value = model.rvs_to_values[rv]
        wanted = chosen is None or {rv.name, value.name}.intersection(chosen)
        if wanted and rv not in forward and rv not in known and not model.rvs_to_transforms[rv]:
            candidate = read_quadratic(model, rv)
            found += [] if candidate is None else [candidate]
    found = [c for c in found if c.rv not in forward and c.total_size > 0]
    if chosen is not None:
        found = [c for c in found if {c.name, c.rv.name, c.value.name}.intersection(chosen)]
    # A Gaussian process before its intercept.
    return sorted(found, key=lambda latent: (latent.kind == "diagonal", -latent.total_size))


def _roots(model: Model) -> list[Variable]:
    """Return the graphs in which latents act."""
    return [parent for rv in model.basic_RVs for parent in parameters_of(rv)] + model.potentials


def _match_most(
    model: Model,
    candidates: Sequence[GaussianVariable],
    forward: Sequence[Variable],
    *,
    densities: bool = False,
) -> tuple[Sequence[GaussianVariable], list[ObservedGraph]]:
    """Return as many of the candidates as can be latents, and the matches with these."""
    try:
        return candidates, _match(model, candidates, densities)
    except AugmentationError as error:
        return _largest_consistent(model, candidates, forward, error, densities)


def _match(
    model: Model, latents: Sequence[GaussianVariable], densities: bool
) -> list[ObservedGraph]:
    """Match every observed variable that depends on a latent; raises if one has no match."""
    inputs = [latent.input for latent in latents]
    return [
        match_observed(model, rv, latents, densities=densities)
        for rv in model.observed_RVs
        if depends_on(in_innovations(model, distribution_parameters(rv), latents), inputs)
    ]


def _largest_consistent(
    model: Model,
    candidates: Sequence[GaussianVariable],
    forward: Sequence[Variable],
    error: AugmentationError,
    densities: bool,
) -> tuple[list[GaussianVariable], list[ObservedGraph]]:
    """Add the candidates one by one, the processes first, while all predictors stay affine."""
    accepted: list[GaussianVariable] = []
    for candidate in candidates:
        try:
            _match(model, [*accepted, candidate], densities)
        except AugmentationError as why:
            # A latent known by its density is kept, with a likelihood without an augmentation.
            if candidate.kind not in (_OPTIONAL if densities else _OPTIONAL[:1]):
                raise why from None
        else:
            accepted.append(candidate)
    # The prior of a rejected candidate may depend on an accepted one.
    accepted, _ = _acting_through_means(model, accepted, forward)
    if not accepted:
        raise error
    return accepted, _match(model, accepted, densities)


def _acting_through_means(
    model: Model, candidates: Sequence[GaussianVariable], forward: Sequence[Variable]
) -> tuple[list[GaussianVariable], dict[str, str]]:
    """Leave out candidates until none enters a potential, a covariance or another prior.

    Raises
    ------
    NotAffineError
        If a Gaussian process or a multivariate normal would have to be left out.
    """
    kept = list(candidates)
    left_out: dict[str, str] = {}
    while (found := _first_elsewhere(model, kept, forward)) is not None:
        candidate, why = found
        if candidate.kind not in _OPTIONAL:
            raise NotAffineError(
                f"latent variable {candidate.name!r} ({candidate.form}): expected it to enter the "
                f"model only through predictors and means, but {why}; sample this model with "
                "pm.sample's NUTS"
            )
        kept.remove(candidate)
        left_out[candidate.name] = why
    return kept, left_out


def _first_elsewhere(
    model: Model, candidates: Sequence[GaussianVariable], forward: Sequence[Variable]
) -> tuple[GaussianVariable, str] | None:
    by_rv = {candidate.rv: candidate for candidate in candidates}
    for potential in model.potentials:
        for parent in direct_parents([potential], model):
            if parent in by_rv:
                return by_rv[parent], (
                    f"the potential {potential.name!r} depends on it (if it is the density of "
                    "censored observations, write these with pm.Censored)"
                )
    for rv in model.free_RVs:
        if rv in forward:
            continue
        if rv in by_rv:
            factor = by_rv[rv].log_factor
            graphs, what = [by_rv[rv].scale, *([] if factor is None else [factor])], "covariance"
        else:
            graphs, what = parameters_of(rv), "prior"
        for parent in direct_parents(graphs, model):
            if parent in by_rv and parent is not rv:
                return by_rv[parent], f"the {what} of {rv.name!r} depends on it"
    return None


def _refused_without_transforms(
    model: Model, forward: Sequence[Variable]
) -> AugmentationError | None:
    """Return why the model could not be read without the transforms of Gaussian variables."""
    found = find_gaussian_variables(model, _roots(model), transformed=True)
    try:
        found, _ = _acting_through_means(model, [c for c in found if c.rv not in forward], forward)
        _match_most(model, found, forward, densities=True)
    except AugmentationError as error:
        return error
    return None if found else RecognitionError("it enters the model not only through means")
