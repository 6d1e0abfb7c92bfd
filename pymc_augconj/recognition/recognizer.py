"""From a PyMC model to a :class:`~pymc_augconj.model.LatentGaussianModel`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from pymc.model import Model
from pytensor.graph.basic import Variable

from pymc_augconj.errors import AugmentationError, DataError, RecognitionError
from pymc_augconj.likelihoods.contract import lift
from pymc_augconj.likelihoods.normal import Normal
from pymc_augconj.model import ColumnScales, EntryDensities, LatentGaussianModel, Site
from pymc_augconj.point import Point
from pymc_augconj.python_mode import untraced
from pymc_augconj.recognition.checks.checks import check_reading
from pymc_augconj.recognition.checks.densities import (
    check_proper,
    log_densities,
    log_prior,
    prior_terms,
    warn_of_faults,
    whole_potential,
)
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.dependence import ValueSpace
from pymc_augconj.recognition.graph.derive import all_log_densities
from pymc_augconj.recognition.graph.functions import NamedValues, PointFunction
from pymc_augconj.recognition.latents.innovations import read_block
from pymc_augconj.recognition.observed.links import split_number
from pymc_augconj.recognition.observed.observed_graph import (
    Inputs,
    Observations,
    ObservedGraph,
    mark_unpredictable,
    without_vectors,
)
from pymc_augconj.recognition.predictors.predictors import Predictors
from pymc_augconj.recognition.roles.choice import choose_structure
from pymc_augconj.recognition.roles.entries import (
    FEWEST,
    entry_ridges,
    find_columns,
    separate_entries,
)
from pymc_augconj.recognition.roles.structure import read_forward, read_hyperparameters


@dataclass(frozen=True)
class Recognition:
    """A recognised PyMC model."""

    #: The model for the engines.
    model: LatentGaussianModel
    #: The kind of each latent block's map to the predictors.
    kinds: tuple[str, ...]
    #: Observed variables and potentials that depend on hyperparameters alone.
    factors: tuple[str, ...] = ()
    #: PyMC's default initial point.
    start: Mapping[str, np.ndarray] = field(default_factory=dict)
    #: Test points: other values of the hyperparameters, at which the structure was examined.
    probes: tuple[Mapping[str, np.ndarray], ...] = ()
    #: Names of the predictors of observed variables with several, by the variable's name.
    predictors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Gaussian variables that cannot be latents together with the model's latents.
    alternates: tuple[str, ...] = ()

    def require_proper(self) -> None:
        """Raise a RecognitionError if flat coefficients have an improper posterior.

        A model of part of the data, or of new inputs, need not have a proper one.
        """
        check_proper(self.model, (self.start, *self.probes))


def read_model(
    model: Model,
    *,
    vars: Sequence[Variable] | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    first_calls: int = 0,
) -> Recognition:
    """Recognise ``model``; raise the errors of :func:`pymc_augconj.recognize`.

    ``first_calls`` is the number of initial calls of each function that run uncompiled, see
    :class:`.PointFunction`.
    """
    with untraced():
        try:
            return _read(model, vars, (compile_kwargs or {}).get("mode"), first_calls)
        except (IndexError, ValueError) as error:
            if not isinstance(error, AugmentationError):
                _refuse_uncomputable(model)
            raise


def _read(
    given: Model, vars: Sequence[Variable] | None, mode: Any, first_calls: int
) -> Recognition:
    if not given.observed_RVs and not given.potentials:
        raise RecognitionError(
            "the model has no observed variable: expected a likelihood with observed=…"
        )
    _refuse_single_precision(given)
    chosen = None if vars is None else set(_names(vars))
    model, rewritten = without_vectors(given)
    structure, matched = choose_structure(model, chosen, rewritten)
    mark_unpredictable(matched, rewritten)
    space = ValueSpace(model, structure.hyperparameters, mode, first_calls)
    points = space.points()
    _refuse_start_outside_support(space, points[0])
    predictors = Predictors(matched, structure.latents, space)
    blocks = tuple(read_block(latent, structure.latents, space) for latent in structure.latents)
    inputs = Inputs(structure.latents, matched)
    inputs.check()
    drawn = space.prior_points(points[0])
    maps = predictors.maps(points, drawn)
    densities = log_densities(matched, structure.latents, space)
    terms = prior_terms(structure, space)
    sites = _sites(matched, space, points[0], inputs)
    others = {name for site in sites for name in site.params.names}.union(
        predictors.offset.names, *(b.mean.names for b in blocks if b.mean is not None)
    )
    columns_of = partial(find_columns, blocks, maps, others)
    vectors = _read_vectors(space, [*points, *drawn], list(terms.values()), columns_of)
    prior = log_prior(list(terms.values()), structure, space, densities)
    reading = LatentGaussianModel(
        blocks=blocks,
        sites=sites,
        hyperparameters=read_hyperparameters(
            structure.latents,
            matched,
            predictors.graph,
            space,
            points[0],
            structure.held,
            vectors,
            alone=chosen is None and not structure.alternates,
        ),
        forward=read_forward(structure, space, points[0]),
        n_rows=sum(observed.size * len(observed.predictors) for observed in matched),
        offset=predictors.offset,
        maps=maps,
        log_prior=space.function(prior),
        log_prior_gradient=space.gradient(prior),
        predictor_pullback=predictors.pullback,
        predictor=predictors,
    )
    for site in reading.sites:
        site.y(points[0])  # refuses data out of range
    theirs = [space.function(density, predictors.innovations) for density in densities]
    wholes = {
        observed.variable.name: space.function(whole, predictors.innovations)
        for observed in matched
        if not observed.is_prior
        and (whole := whole_potential(observed, structure.latents, space)) is not None
    }
    check_reading(reading, theirs, wholes, [*points, *drawn])
    names = [observed.variable.name for observed in matched]
    warn_of_faults(model, terms | dict(zip(names, densities, strict=True)), points[0])
    return Recognition(
        reading,
        kinds=tuple(read.kind for read in maps),
        factors=tuple(factor.name for factor in structure.factors),
        start=points[0],
        probes=tuple(points[1:]),
        predictors={
            observed.variable.name: observed.names for observed in matched if observed.names
        },
        alternates=structure.alternates,
    )


def _read_vectors(
    space: ValueSpace,
    points: Sequence[Point],
    prior_terms: Sequence[Variable],
    columns_of: Callable[[Variable, PointFunction, Sequence[Point]], ColumnScales | None],
) -> dict[str, tuple[EntryDensities | None, ColumnScales | None]]:
    """Return facts about the entries of hyperparameters that are long vectors, by value.

    The facts are their densities, if independent given all other variables, and the latents that
    they scale.
    """
    values = [v for v in space.inputs.values() if points[0][v.name].size >= FEWEST]
    values = [value for value in values if value.dtype.startswith("float")]
    if not values:
        return {}
    terms, inputs = all_log_densities(space.model), space.model.inputs
    found: dict[str, tuple[EntryDensities | None, ColumnScales | None]] = {}
    for value in values:
        own, priors = (
            PointFunction([t for t in every if depends_on(t, value)], inputs, space.mode)
            for every in (terms, prior_terms)
        )
        separate = separate_entries(value.name, own, priors, points)
        columns = columns_of(value, priors, points)
        found[value.name] = separate, columns
        known = separate is not None or columns is not None
        ridges = entry_ridges(value, terms, space, points) if known else ()
        if separate is not None:
            separate.ridges = ridges
        if columns is not None:
            columns.densities.ridges = ridges
    return found


def _names(vars: Sequence[Variable]) -> list[str]:
    for var in vars:
        if not isinstance(var, Variable):
            raise TypeError(
                f"expected vars to be variables of the model, found {var!r}; write vars=[f] or "
                "vars=[model['f']]"
            )
    return [var.name for var in vars]


def _refuse_single_precision(model: Model) -> None:
    # In single precision most covariances of processes have no Cholesky factor.
    for value in model.value_vars:
        if value.dtype in ("float16", "float32"):
            raise RecognitionError(
                f"variable {model.values_to_rvs[value].name!r}: expected double precision, found "
                f"{value.dtype}; set pytensor.config.floatX = 'float64' before building the model"
            )


def _refuse_uncomputable(model: Model) -> None:
    """Raise a DataError where PyMC computes no log density either, for wrong shapes or indices."""
    point = model.initial_point()
    for rv in model.basic_RVs:
        try:
            PointFunction(model.logp(rv), {var.name: var for var in model.value_vars})(point)
        except (IndexError, ValueError) as error:
            raise DataError(
                f"variable {rv.name!r}: expected a log density that PyMC can compute, found the "
                f"error {str(error).splitlines()[0]!r}; correct shapes and indices of parameters"
            ) from error


def _refuse_start_outside_support(space: ValueSpace, start: Point) -> None:
    for rv in space.hyperparameters:
        value = start[space.model.rvs_to_values[rv].name]
        if not np.isfinite(value).all():
            raise RecognitionError(
                f"variable {rv.name!r}: expected a finite initial value on PyMC's unconstrained "
                f"scale, found {value[~np.isfinite(value)][0]}; pass an initval= within its support"
                ", and default_transform=None where a transform= replaces the distribution's own"
            )


def _sites(
    matched: Sequence[ObservedGraph], space: ValueSpace, point: Point, inputs: Inputs
) -> tuple[Site, ...]:
    sites = []
    start = 0
    for observed in matched:
        rows = slice(start, start + observed.size * len(observed.predictors))
        start = rows.stop
        params = NamedValues(list(observed.params), space.function(list(observed.params.values())))
        y = observed.value if observed.y is None else observed.y
        values = PointFunction(y.astype("float64").ravel(), {}, space.mode)
        split, common = None, None
        if isinstance(observed.likelihood, Normal):
            split = split_number(observed.params["sigma"], space.hyperparameters)
        if split is not None:
            common = NamedValues(["sigma"], space.function(split[:1])), space.function(split[1])
        sites.append(
            Site(
                name=observed.variable.name,
                likelihood=lift(observed.likelihood),
                size=observed.size,
                rows=rows,
                y=Observations(
                    observed.label,
                    observed.size,
                    observed.likelihood,
                    values,
                    params,
                    point,
                    inputs,
                ),
                params=params,
                common=common,
                refusal=observed.refusal,
                is_prior=observed.is_prior,
            )
        )
    return tuple(sites)
