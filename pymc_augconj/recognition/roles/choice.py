"""Choice of the latents: as many Gaussian variables as every predictor is jointly affine in.

A Gaussian variable that also enters elsewhere (a product of latents, a covariance, a potential)
becomes a hyperparameter if its components are independent Normals, or if it was recognised by its
density alone (a random walk): the sampler then only loses speed. For a Gaussian process or a
multivariate normal it is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from pytensor.graph.basic import Variable

from pymc_augconj.errors import (
    AugmentationError,
    DataError,
    NotAffineError,
    RecognitionError,
    UnknownLikelihoodError,
)
from pymc_augconj.recognition.graph.affine import descendants, shifted_by
from pymc_augconj.recognition.graph.dependence import ModelIndex, distribution_parameters
from pymc_augconj.recognition.latents.innovations import GaussianVariable, Latents
from pymc_augconj.recognition.latents.normal import find_gaussian_variables, find_stand_ins
from pymc_augconj.recognition.latents.quadratic import read_quadratic
from pymc_augconj.recognition.observed.errors import about_prior, has_integrated_process, no_latent
from pymc_augconj.recognition.observed.match import Matcher, Scope
from pymc_augconj.recognition.observed.observed_graph import ObservedGraph
from pymc_augconj.recognition.observed.potentials import match_prior

from .structure import Structure, forward_variables

# Entries of a vector that slices update one after the other, at a factorisation or more each.
_LONGEST_SLICED = 10
# Operations between coefficients and what is observed; loops that are written out have more, and
# would take minutes to read.
_LONGEST_READ = 40
_NO_PARTS: Mapping[Variable, Variable] = MappingProxyType({})


class _Choice(NamedTuple):
    """The latents, reasons why others are none, and the variables that depend on latents."""

    latents: Latents
    demoted: dict[str, str]
    matched: list[ObservedGraph]


def choose_structure(
    model: ModelIndex,
    chosen: Collection[str] | None = None,
    parts: Mapping[Variable, Variable] = _NO_PARTS,
) -> tuple[Structure, list[ObservedGraph]]:
    """Decide which Gaussian variables are latents, and match the observed ones to likelihoods.

    ``chosen`` names the variables that may be latents, by default all; ``parts`` maps observed
    variables that replace a user's vector to that vector.

    Raises errors of :func:`pymc_augconj.recognize`.
    """
    forward, undrawn = forward_variables(model)
    matcher, found = Matcher(model), _find(model, forward, chosen)
    stand_ins = _wanted(find_stand_ins(model, [*forward, *(c.rv for c in found)]), chosen)
    integrated = chosen is None and has_integrated_process(model, parts.values())
    refusal: AugmentationError | None = None
    try:
        first = _choose(matcher, found, forward)
    except (NotAffineError, UnknownLikelihoodError) as why:
        # Gaussian variables may enter the covariance of an integrated process alone, or be factors
        # of coefficients with other priors.
        in_covariance = integrated and isinstance(why, UnknownLikelihoodError)
        if not ((in_covariance or stand_ins) and all(c.is_independent for c in found)):
            raise
        first, refusal = _Choice([], {}, []), None if in_covariance else why
    others = [*stand_ins, *found]
    between = [descendants(rv, [c.rv for c in others]) for rv in model.observed_RVs]
    # Likelihoods with an augmentation first, as among Gaussian variables.
    short = sum(map(len, between)) <= _LONGEST_READ
    scopes = (Scope.AUGMENTED, Scope.DENSITIES) if short else (Scope.AUGMENTED,)
    for scope in (Scope.SEVERAL,) if first.latents else scopes:
        candidates, demoted, matched = _with_other_priors(matcher, first, others, forward, scope)
        if candidates:
            break
    if refusal is not None and not candidates:
        raise refusal
    for observed in matched:
        if observed.size == 0:
            raise DataError(
                f"{observed.label}: expected observations, found the shape "
                f"{observed.shape}; leave the variable out while there are none"
            )
    used_as_density = {observed.variable for observed in matched}
    unmatched = [rv for rv in model.observed_RVs if rv not in used_as_density]
    for rv in unmatched:
        # A variable with a given value (pm.observe) is a constant for those that depend on it.
        if rv in model.used or rv in parts:
            continue
        if not model.parents_of(distribution_parameters(rv)):
            raise RecognitionError(
                f"observed variable {rv.name!r}: expected a distribution that depends on a latent "
                "variable or a hyperparameter, found one that depends on no free variable at all; "
                "remove it, or connect it to the model"
            )
    if not (candidates or integrated):
        raise no_latent(model, demoted, chosen)
    if candidates and not matched:
        what = f"observed variable {unmatched[0].name!r}" if unmatched else "the model"
        raise RecognitionError(
            f"{what}: expected a predictor that contains a Gaussian latent variable, found none in "
            "it; sample this model with pm.sample's NUTS"
        )
    latents = {latent.rv for latent in candidates}
    hyper = [rv for rv in model.free_RVs if rv not in latents and rv not in set(forward)]
    structure = Structure(
        latents=candidates,
        hyperparameters=hyper,
        forward=forward,
        held=_held(found, latents, demoted, undrawn),
        factors=[*unmatched, *(p for p in model.potentials if p not in used_as_density)],
        alternates=tuple(str(one.rv.name) for one in found if one.rv not in latents),
    )
    return structure, matched


def _choose(matcher: Matcher, found: Latents, forward: Sequence[Variable]) -> _Choice:
    """Choose the latents; use densities without an augmentation only if necessary.

    The same holds for densities of several predictors; they may also keep a vector as a latent.
    """
    first: _Choice | None = None
    error: AugmentationError | None = None
    try:
        first = _choice(matcher, found, forward, Scope.AUGMENTED)
    except (NotAffineError, UnknownLikelihoodError) as why:
        error = why
    in_potentials = any(_entering(matcher.model, p, found) for p in matcher.model.potentials)
    augmented = first is not None and bool(first.latents or not in_potentials)
    if first is None or not augmented or _leaves_vectors(matcher, first, found):
        try:
            second = _choice(matcher, found, forward, Scope.DENSITIES)
            if first is None or not augmented or _extends(second, first):
                first = second
        except AugmentationError as why:
            # This one says what is wrong with a potential.
            error = why if error is None or in_potentials else error
    if first is not None and 0 < len(first.latents) < len(found):
        # Of l and the coefficients β in σ(l)·exp(Xβ), l does not keep out the others.
        later = sorted(found, key=first.latents.__contains__)
        with suppress(AugmentationError):
            other = _choice(matcher, later, forward, Scope.DENSITIES)
            first = other if _shifts(other, first) else first
    if first is not None and not _lost(first, found, augmented):
        return first
    try:
        several = _choice(matcher, found, forward, Scope.SEVERAL)
    except AugmentationError as why:
        if first is not None:
            return first
        raise (why if error is None or not in_potentials else error) from None
    if first is None or _entries_beside(first, several) <= _entries_beside(several, first):
        return several
    return first


def _leaves_vectors(matcher: Matcher, choice: _Choice, found: Latents) -> bool:
    """Return whether an observed variable depends on vectors, and on no latent of the choice.

    By slices they hardly move where latents and they share data, as levels of groups do.
    """
    known, read = {own.rv for own in choice.latents}, {one.variable for one in choice.matched}
    left = [c for c in found if c.rv not in known and c.total_size > 1]
    return any(
        matcher.reading(rv, left).depends for rv in matcher.model.observed_RVs if rv not in read
    )


def _shifts(one: _Choice, other: _Choice) -> bool:
    """Return whether the few latents of ``other`` only shift predictors of ``one``."""
    lost = {own.rv for own in other.latents} - {own.rv for own in one.latents}
    few = sum(own.total_size for own in other.latents) <= _LONGEST_SLICED
    etas = [eta for own in one.matched for eta in own.predictors]
    same = few and len(one.matched) == len(other.matched)
    return same and shifted_by(etas, [own.input for own in one.latents], lost)


def _extends(one: _Choice, other: _Choice) -> bool:
    """Return whether a choice reads what the other reads in the same way."""
    found = _likelihoods(one.matched)
    same = all(found.get(rv) == kind for rv, kind in _likelihoods(other.matched).items())
    return same and not _entries_beside(other, one)


def _entries_beside(one: _Choice, other: _Choice) -> int:
    """Return how many entries are latents of ``one`` alone, a loading for the vector it scales."""
    known = {latent.rv for latent in other.latents}
    return sum(latent.total_size for latent in one.latents if latent.rv not in known)


def _lost(choice: _Choice, found: Latents, augmented: bool) -> bool:
    """Return whether a vector is no latent, but should be a latent of another predictor.

    Under an augmented likelihood this holds only for vectors too long for slices along entries.
    """
    latents = {latent.rv for latent in choice.latents}
    longest = _LONGEST_SLICED if augmented else 1
    return any(
        candidate.total_size > longest
        and candidate.rv not in latents
        and candidate.name not in choice.demoted
        for candidate in found
    )


def _with_other_priors(
    matcher: Matcher,
    choice: _Choice,
    candidates: Latents,
    forward: Sequence[Variable],
    scope: Scope,
) -> _Choice:
    """Add coefficients whose priors are not normal, without changing likelihoods.

    Then add Gaussian variables in their means. A single number beside Gaussian latents stays a
    hyperparameter, for which slices given integrated latents are as good; so does one held alone.
    """
    latents, demoted, matched = choice
    for candidate in candidates:
        if candidate in latents or not (candidate.has_prior or any(c.has_prior for c in latents)):
            continue
        # Known as a parameter, such as a scale or cutpoints: it is in no predictor.
        params = [graph for one in matched for graph in one.params.values()]
        if candidate.rv in matcher.model.parents_of(params):
            continue
        readings = (matcher.reading(rv, [candidate]) for rv in matcher.model.observed_RVs)
        own = [reading for reading in readings if reading.depends]
        # Finding out that a covariance is no affine predictor can take half a minute.
        curved = candidate.has_prior and any(reading.factorises for reading in own)
        if candidate.has_prior and (curved or not own):
            continue
        # Without it those in its mean could not be latents, as its prior depends on them.
        above = matcher.model.parents_of([] if candidate.mean is None else [candidate.mean])
        more = [c for c in candidates if c.rv in above and c not in latents]
        tried = [*latents, *more, candidate]
        try:
            if len(_acting_through_means(matcher, tried, forward, True)[0]) < len(tried):
                continue
            found = _match(matcher, tried, scope)
        except AugmentationError:
            continue
        if _is_bounded(candidate, found) and any(
            len(one.predictors) > 1 and (candidate.is_flat or not one.likelihood.can_augment)
            for one in found
        ):
            # Their sites are variational, which bounds have none of. A normal prior within bounds
            # does without sites, where the others have auxiliary variables.
            continue
        before, now = _likelihoods(matched), _likelihoods(found)
        if now and all(now[variable] == kind for variable, kind in before.items()):
            latents, matched = tried, found
    added = sum(latent.total_size for latent in latents if latent.has_prior)
    few = added < 2 and (bool(choice.latents) or scope is not Scope.AUGMENTED)
    return choice if few else _Choice(latents, demoted, matched)


def _is_bounded(candidate: GaussianVariable, matched: Sequence[ObservedGraph]) -> bool:
    """Return whether the prior of a latent is zero outside bounds."""
    own = [one.likelihood.is_positive for one in matched if one.variable is candidate.rv]
    return candidate.entry_transform is not None or not all(own)


def _likelihoods(matched: Sequence[ObservedGraph]) -> dict[Variable, tuple[str, int]]:
    """Return the likelihood and the number of predictors of every observed variable."""
    return {
        observed.variable: (observed.likelihood.name, len(observed.predictors))
        for observed in matched
        if not observed.is_prior
    }


def _choice(matcher: Matcher, found: Latents, forward: Sequence[Variable], scope: Scope) -> _Choice:
    densities = scope >= Scope.DENSITIES
    candidates, demoted = _acting_through_means(matcher, found, forward, densities)
    latents, matched = _match_most(matcher, candidates, forward, scope)
    return _Choice(latents, demoted, matched)


def _held(
    found: Latents,
    latents: Collection[Variable],
    demoted: Mapping[str, str],
    undrawn: Mapping[str, str],
) -> dict[str, str]:
    """Return reasons why some hyperparameters must not be optimised, by their names."""
    held = {name: f"nothing observed depends on it, and {why}" for name, why in undrawn.items()}
    for latent in found:
        is_vector = latent.precision is not None or latent.transform is not None
        if is_vector and latent.rv not in latents:
            why = demoted.get(latent.name, "no likelihood that is read is affine in it")
            held[latent.rv.name] = f"it is Gaussian ({latent.form}), but {why}"
    return held


def _find(
    model: ModelIndex, forward: Sequence[Variable], chosen: Collection[str] | None
) -> list[GaussianVariable]:
    """Return the Gaussian variables, in decreasing order of the gain by integrating them out."""
    found = find_gaussian_variables(model)
    known = {candidate.rv for candidate in found}
    for rv in model.free_RVs:
        value = model.rvs_to_values[rv]
        wanted = chosen is None or {rv.name, value.name}.intersection(chosen)
        if wanted and rv not in forward and rv not in known and not model.rvs_to_transforms[rv]:
            candidate = read_quadratic(model, rv)
            found += [] if candidate is None else [candidate]
    found = [c for c in found if c.rv not in forward and c.total_size > 0]
    found = _wanted(found, chosen)
    # A Gaussian process before its intercept, and what has a flat prior last.
    return sorted(found, key=lambda c: (c.is_flat, c.is_independent, -c.total_size))


def _wanted(candidates: Latents, chosen: Collection[str] | None) -> list[GaussianVariable]:
    if chosen is None:
        return list(candidates)
    return [c for c in candidates if {c.name, c.rv.name, c.value.name}.intersection(chosen)]


def _match_most(
    matcher: Matcher, candidates: Latents, forward: Sequence[Variable], scope: Scope
) -> tuple[Latents, list[ObservedGraph]]:
    """Return as many latents as possible, processes first, and the matches with them."""
    try:
        return candidates, _match(matcher, candidates, scope)
    except AugmentationError as why:
        error = why
    densities = scope >= Scope.DENSITIES
    accepted: list[GaussianVariable] = []
    for candidate in candidates:
        try:
            if len(accepted) + 1 == len(candidates):
                raise error  # of all of them, as before
            _match(matcher, [*accepted, candidate], scope)
        except AugmentationError as why:
            # A latent known by its density is kept, with a likelihood without an augmentation.
            if not _is_optional(candidate, densities):
                raise why from None
        else:
            accepted.append(candidate)
    # The prior of a rejected candidate may depend on an accepted one.
    accepted, _ = _acting_through_means(matcher, accepted, forward, densities)
    if not accepted:
        raise error
    return accepted, _match(matcher, accepted, scope)


def _match(matcher: Matcher, latents: Latents, scope: Scope) -> list[ObservedGraph]:
    """Match variables that depend on a latent; raise if one has no match."""
    model = matcher.model
    depending = [rv for rv in model.observed_RVs if matcher.reading(rv, latents).depends]
    matched = [matcher.match(rv, latents, scope) for rv in depending]
    for potential in model.potentials:
        found = matcher.potential(potential, latents)
        if isinstance(found, str):
            raise NotAffineError(
                f"potential {potential.name!r}: {found}; sample this model with pm.sample's NUTS"
            )
        matched += [] if found is None else [found]
    return matched + [match_prior(model, own, latents) for own in latents if own.has_prior]


def _acting_through_means(
    matcher: Matcher, candidates: Latents, forward: Sequence[Variable], densities: bool
) -> tuple[list[GaussianVariable], dict[str, str]]:
    """Remove candidates until none enters a potential, a covariance or another prior.

    With ``densities`` they may enter potentials that can be read as densities. Raises
    NotAffineError if a Gaussian process or a multivariate normal would have to be removed.
    """
    kept = list(candidates)
    left_out: dict[str, str] = {}
    while True:
        structured = True
        found = _first_in_potential(matcher, kept, densities)
        if found is not None and not densities:
            # A latent known by its density is kept, with a potential that is read.
            structured = False
        found = found or _first_elsewhere(matcher.model, kept, forward)
        if found is None:
            return kept, left_out
        candidate, why = found
        if not _is_optional(candidate, structured):
            raise NotAffineError(
                f"latent variable {candidate.name!r} ({candidate.form}): expected it to enter the "
                f"model only through predictors and means, but {why}; sample this model with "
                "pm.sample's NUTS"
            )
        kept.remove(candidate)
        left_out[candidate.name] = why


def _is_optional(candidate: GaussianVariable, structured: bool) -> bool:
    """Return whether a sampler may treat a latent, perhaps a structured one, as a hyperparameter.

    A fit may do so only for independent ones, see ``held``.
    """
    return candidate.is_independent or (structured and candidate.has_precision)


def _first_in_potential(
    matcher: Matcher, candidates: Latents, densities: bool
) -> tuple[GaussianVariable, str] | None:
    for potential in matcher.model.potentials:
        entering = _entering(matcher.model, potential, candidates)
        if not entering:
            continue
        why = f"the potential {potential.name!r} depends on it"
        if densities:
            reading = matcher.potential(potential, candidates)
            if not isinstance(reading, str):
                continue
            why += f" and cannot be read as a density ({reading})"
        # The one that costs least: a process comes before its intercept.
        return entering[-1], why
    return None


def _entering(
    model: ModelIndex, potential: Variable, candidates: Latents
) -> list[GaussianVariable]:
    return [candidate for candidate in candidates if candidate.rv in model.parents[potential]]


def _first_elsewhere(
    model: ModelIndex, candidates: Latents, forward: Sequence[Variable]
) -> tuple[GaussianVariable, str] | None:
    by_rv = {candidate.rv: candidate for candidate in candidates}
    for rv in (rv for rv in model.free_RVs if rv not in forward):
        if rv in by_rv:
            graphs = [by_rv[rv].scale, by_rv[rv].log_factor]
            parents, what = model.parents_of([g for g in graphs if g is not None]), "covariance"
        else:
            parents, what = model.parents[rv], "prior"
        for parent in parents:
            if parent in by_rv and parent is not rv:
                advice = about_prior(rv, model.rvs_to_transforms.get(rv))
                return by_rv[parent], f"the {what} of {rv.name!r} depends on it{advice}"
    return None
