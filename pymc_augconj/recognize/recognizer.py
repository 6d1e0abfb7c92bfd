"""From a PyMC model to a :class:`~pymc_augconj.model.LatentGaussianModel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymc.model import Model, modelcontext
from pytensor.graph.basic import Variable

from ..errors import RecognitionError
from ..model import LatentGaussianModel, Point, Site
from .blocks import read_block, read_hyperparameters
from .checks import check_reading
from .choice import choose_structure
from .compile import NamedValues, PointFunction, untraced
from .data import Inputs, Observations
from .densities import log_densities, log_prior
from .forward import read_forward
from .predictors import Predictors
from .report import Recognition
from .sites import ObservedGraph
from .space import ValueSpace

__all__ = ["read_model", "recognize"]


def recognize(
    model: Model | None = None,
    *,
    vars: Sequence[Variable] | None = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> Recognition:
    """Read a PyMC model as a latent Gaussian model with augmented likelihoods.

    A likelihood without an augmentation is read by its density alone, which is enough for the
    engines ``"vgp"``, ``"ep"``, ``"qp"`` and ``"svi"`` of :func:`~pymc_augconj.fit`; the table
    says so. Nothing is sampled, and the model is not changed. Print the result to see what was
    found and how it will be sampled.

    Parameters
    ----------
    model : pymc.Model, optional
        Taken from the context where omitted.
    vars : sequence of variables, optional
        The variables that a sampler is to update; Gaussian variables that are not among them are
        read as hyperparameters. By default every Gaussian variable is a latent.
    compile_kwargs : dict, optional
        ``{"mode": …}``: a PyTensor mode for the functions extracted from the model. By default
        they run without compilation; ``"NUMBA"`` is about twice as fast an evaluation of a
        kernel matrix, after 10 s or more of compilation the first time.

    Returns
    -------
    Recognition
        Its ``model`` is the :class:`~pymc_augconj.model.LatentGaussianModel` that the engines
        work on.

    Notes
    -----
    How a latent *enters through* the predictors: ``identity``, an entry an observation, in order;
    ``selection``, one entry for each observation, perhaps times data, as an intercept, a slope or
    an effect of a group does; ``design matrix``, several entries for each observation. Predictors
    add what all latents bring.

    Raises
    ------
    NotAffineError
        A predictor is not affine in the Gaussian latents.
    UnknownLikelihoodError
        An observed variable has neither a likelihood with a known augmentation nor a density
        whose parameters depend on one affine predictor.
    DataError
        An observation is out of its likelihood's range, or an input is not finite.
    RecognitionError
        There is no Gaussian latent variable, nothing is observed, the model is one of single
        precision, or the reading disagrees with PyMC's own log density.
    TypeError
        One of ``vars`` is no variable.
    """
    return read_model(modelcontext(model), vars=vars, compile_kwargs=compile_kwargs)


def read_model(
    model: Model,
    *,
    vars: Sequence[Variable] | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    first_calls: int = 0,
) -> Recognition:
    """Return :func:`recognize`'s result for one who will call its functions a few times only.

    Parameters
    ----------
    model, vars, compile_kwargs
        As for :func:`recognize`.
    first_calls : int
        So many calls of each function go without compiling it, see :class:`.PointFunction`.
    """
    with untraced():
        return _read(model, vars, (compile_kwargs or {}).get("mode"), first_calls)


def _read(
    model: Model, vars: Sequence[Variable] | None, mode: Any, first_calls: int
) -> Recognition:
    if not model.observed_RVs:
        raise RecognitionError(
            "the model has no observed variable: expected a likelihood with observed=…"
        )
    _refuse_single_precision(model)
    chosen = None if vars is None else set(_names(vars))
    structure, matched = choose_structure(model, chosen)
    space = ValueSpace(model, structure.hyperparameters, mode, first_calls)
    points = space.points()
    predictors = Predictors(matched, structure.latents, space)
    blocks = tuple(read_block(latent, structure.latents, space) for latent in structure.latents)
    inputs = Inputs(structure)
    inputs.check()
    maps = predictors.maps(points)
    densities = log_densities(matched, structure.latents, space)
    prior = log_prior(structure, space, densities)
    reading = LatentGaussianModel(
        blocks=blocks,
        sites=_sites(matched, space, points[0], inputs),
        hyperparameters=read_hyperparameters(
            structure.latents, matched, predictors.graph, space, points[0]
        ),
        forward=read_forward(structure, space, points[0]),
        n_predictors=sum(observed.size * len(observed.predictors) for observed in matched),
        offset=predictors.offset,
        maps=maps,
        log_prior=space.function(prior),
        log_prior_gradient=space.gradient(prior),
        predictor_pullback=predictors.pullback(),
        predictor=predictors,
        value_names=tuple(value.name for value in model.value_vars),
    )
    for site in reading.sites:
        site.y(points[0])  # refuses data out of range
    theirs = [space.function(density, predictors.innovations) for density in densities]
    check_reading(reading, theirs, [*points, *space.prior_points(points[0])])
    return Recognition(
        reading,
        kinds=tuple(read.kind for read in maps),
        factors=tuple(factor.name for factor in structure.factors),
        start=points[0],
        probes=tuple(points[1:]),
    )


def _names(vars: Sequence[Variable]) -> list[str]:
    for var in vars:
        if not isinstance(var, Variable):
            raise TypeError(
                f"expected vars to be variables of the model, found {var!r}; write vars=[f] or "
                "vars=[model['f']]"
            )
    return [var.name for var in vars]


def _refuse_single_precision(model: Model) -> None:
    # Most covariances of processes have no Cholesky factor in it, and PyMC records NaN.
    for value in model.value_vars:
        if value.dtype in ("float16", "float32"):
            raise RecognitionError(
                f"variable {model.values_to_rvs[value].name!r} is of {value.dtype}: expected a "
                "model of double precision; set pytensor.config.floatX = 'float64' before it is "
                "built"
            )


def _sites(
    matched: Sequence[ObservedGraph], space: ValueSpace, point: Point, inputs: Inputs
) -> tuple[Site, ...]:
    sites = []
    start = 0
    for observed in matched:
        rows = []
        for _ in observed.predictors:
            rows.append(slice(start, start + observed.size))
            start += observed.size
        params = NamedValues(
            list(observed.params), space.function(space.in_values(list(observed.params.values())))
        )
        values = PointFunction(observed.value.astype("float64").ravel(), {}, space.mode)
        sites.append(
            Site(
                name=observed.rv.name,
                likelihood=observed.likelihood,
                size=observed.size,
                rows=tuple(rows),
                y=Observations(
                    observed.rv.name,
                    observed.size,
                    observed.likelihood,
                    values,
                    params,
                    point,
                    inputs,
                ),
                params=params,
                refusal=observed.refusal,
            )
        )
    return tuple(sites)
