"""``pac.update``: draws of a posterior given other data, without a new run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
from pymc.backends.arviz import find_observations
from pymc.model import Model
from scipy.special import logsumexp

from pymc_augconj.engines.base import FitProblem
from pymc_augconj.engines.nested.fit import everywhere, fit_nested
from pymc_augconj.engines.nested.importance import NestedPosterior
from pymc_augconj.engines.options import NestedOptions
from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.parallel.executor import blas_limit
from pymc_augconj.point import Point
from pymc_augconj.recognition.prediction.latent_draws import point_of_draw
from pymc_augconj.recognition.recognizer import Recognition, read_model
from pymc_augconj.results.approximation.fitted_model import Labels
from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.predictions import needed_draws
from pymc_augconj.typing import Array, Generator, Index

from .native_step import Recorder
from .predict import draws_of, model_of
from .step import PythonGibbs

# Draws that are weighted; the least share of them that weights may leave; and the tolerance of the
# sites, of second order in which evidences have their error.
_WEIGHTED, _LEAST_SHARE, _TOL = 500, 0.1, 1e-3


def update(
    result: Any,
    data: Mapping[str, Any],
    *,
    model: Model | None = None,
    coords: Mapping[str, Any] | None = None,
    draws: int = 500,
    random_seed: int | None = None,
) -> DataTree:
    """Return posterior draws given new data, from draws given old data.

    Weights of the hyperparameters θ of up to 500 draws are p(y | θ) with the new data relative to
    p(y | θ) with the old data, both by expectation propagation. Latents given θ and the new data
    are then drawn by an approximation and a step of the Gibbs sampler, which leaves their
    posterior invariant.

    Parameters
    ----------
    result : DataTree or approximation
        Draws of the model with its present data.
    data : mapping of str to array
        All new data, by names of ``pm.Data``, as for ``pm.set_data``: old rows to keep, and new
        rows. The function sets them in the model. It may drop rows, as in a moving window.
    model : pymc.Model, optional
        By default the model of the context, or the fitted model of an approximation.
    coords : mapping, optional
        New labels, as ``pm.set_data`` takes them.
    draws : int
    random_seed : int, optional

    Returns
    -------
    DataTree
        Group ``posterior`` of shape (1, draw, …), with the attribute ``effective_share``: the
        effective number of weighted draws divided by their number. Repeated updates multiply the
        weights, so sample again after some updates.

    Raises
    ------
    AugmentationError
        If the effective share is below a tenth, because the posteriors of θ differ; the model
        then keeps its old data. Or if an observation has several predictors.

    References
    ----------
    Chopin, N. (2002). A sequential particle filter method for static models. Biometrika 89.

    Examples
    --------
    >>> with model:  # doctest: +SKIP
    ...     idata = pac.update(idata, {"X": X_all, "y": y_all})
    """
    tree, model = draws_of(result), model_of(model, result)
    if unknown := [name for name in data if name not in model.named_vars]:
        known = [var.name for var in model.data_vars]
        raise AugmentationError(f"data: expected names of pm.Data {known}, got {unknown}")
    rng = np.random.default_rng(random_seed)
    before = {name: model[name].get_value() for name in data}
    labels = {dim: model.coords[dim] for dim in coords or {}}
    with blas_limit(1):
        old = read_model(model)
        points = _points(tree, model, old)
        sides: list[tuple[NestedPosterior, Any, Any]] = [(_at_mean(old, points), before, labels)]
        try:
            pm.set_data(data, model=model, coords=coords)
            step = PythonGibbs([block.name for block in old.model.blocks], model=model)
            nested = _at_mean(step.recognition, points)
            sides.append((nested, data, coords))

            def change(rows: Index) -> Array:
                """Return log p(y | θ) with the new data minus log p(y | θ) with the old."""
                found = []
                for fitted, now, names in sides:
                    pm.set_data(now, model=model, coords=names)
                    found.append(_log_evidences(fitted, [points[i] for i in rows]))
                return np.asarray(np.where(found[0] > -np.inf, found[1] - found[0], -np.inf))

            flat = [np.concatenate([np.zeros(0), *map(np.ravel, p.values())]) for p in points]
            log_weights = everywhere(change, np.array(flat))
            weights = np.exp(log_weights - logsumexp(log_weights))
            share = float(1.0 / np.sum(weights**2) / len(points))
            if not share >= _LEAST_SHARE:
                raise AugmentationError(
                    f"data: expected new data after which weights of hyperparameters leave at "
                    f"least {_LEAST_SHARE:.0%} of the draws, found {share:.1%}; sample again, "
                    "pac.sample"
                )
        except BaseException:
            pm.set_data(before, model=model, coords=labels)
            raise
        edges = (rng.random() + np.arange(draws)) / draws
        chosen = np.minimum(np.searchsorted(np.cumsum(weights), edges), len(points) - 1)
        values = _redrawn(step, nested, [points[i] for i in chosen], rng, model)
    attrs = {"method": "update", "effective_share": share}
    groups = {"posterior": {name: value[None] for name, value in values.items()}}
    return Labels.of_model(model).tree(groups, find_observations(model), attrs)


def _points(tree: Any, model: Model, read: Recognition) -> list[dict[str, Array]]:
    """Return the entries of hyperparameters at draws spread over all draws."""
    if any(site.shape[0] > 1 for site in read.model.sites):
        raise AugmentationError(
            "model: expected observations of one predictor each, whose evidence is known for any "
            "hyperparameters, found several; sample again, pac.sample"
        )
    draws, sampled = needed_draws(tree, [h.name for h in read.model.hyperparameters])
    count = len(sampled[0]) * len(sampled[1])
    spread = np.linspace(0, count - 1, min(count, _WEIGHTED)).astype(int)
    point_of = point_of_draw(model, read.model, {}, draws)
    return [dict(point_of(i)) for i in spread]


def _at_mean(read: Recognition, points: list[dict[str, Array]]) -> NestedPosterior:
    """Return sites at the mean of the points, with the model's present data."""
    mean = {name: np.mean([p[name] for p in points], axis=0) for name in points[0]}
    options: dict[str, Any] = {"max_iter": 1000, "tol": _TOL, "options": NestedOptions()}
    start = {**read.start, **mean}
    problem = FitProblem(read.model, start, read.probes, (), lambda _: (0.0, {}), **options)
    nested = fit_nested(problem).nested
    assert isinstance(nested, NestedPosterior)  # which this engine always returns
    return nested


def _log_evidences(nested: NestedPosterior, points: list[dict[str, Array]]) -> Array:
    """Return log p(y | θ) at each point, −∞ if it cannot be computed."""
    found = np.full(len(points), -np.inf)
    for i, point in enumerate(points):
        try:
            found[i] = nested.log_evidence(nested.at(point))
        except (NotPositiveDefiniteError, FloatingPointError):
            continue
    return found


def _redrawn(
    step: PythonGibbs,
    nested: NestedPosterior,
    points: list[dict[str, Array]],
    rng: Generator,
    model: Model,
) -> dict[str, Array]:
    """Return all variables with latents drawn given the hyperparameters of each point."""
    sampler = step.make_sampler({**step.recognition.start, **points[0]})
    names = [var.name for var in model.unobserved_RVs]  # as pm.sample's, on the model's own scale
    recorder = Recorder.of(model, names, step.recognition.start)
    rows = []
    for entries in points:
        given = nested.at(entries)
        point: Point = sampler.chain.point_of(given.point, *given.draw(rng))
        point, _ = sampler.step(rng, point, {})
        rows.append([np.array(x) for x in recorder.fn(*(point[n] for n in recorder.fn.names))])
    columns = zip(*rows, strict=True)
    return {name: np.array(x) for name, x in zip(recorder.varnames, columns, strict=True)}
