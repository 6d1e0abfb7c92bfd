"""The :class:`.approximation.Approximation` of a model, from an engine's outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pandas as pd

from pymc_augconj.engines.base import FitOutcome, Iteration, ProcessPrior, SparseProblem
from pymc_augconj.engines.nested.importance import NestedPosterior
from pymc_augconj.latents.joint import LatentPrior, block_prior
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import FixedValue, Point
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.prediction.evaluate import constrained
from pymc_augconj.recognition.prediction.latent_draws import LatentDraws, LatentMeans
from pymc_augconj.recognition.processes.input_data import checksums

from .approximation import Approximation
from .fitted_model import (
    AffineMean,
    Fingerprint,
    FittedLatents,
    Labels,
    LazyMeans,
    PointwiseLogLikelihood,
    inducing_name,
)
from .nested import NestedApproximation
from .sparse import SparseApproximation


def approximation_of(
    method: str,
    model: Any,
    lgm: LatentGaussianModel,
    outcome: FitOutcome,
    random_seed: int | None,
    sparse: SparseProblem | None,
) -> Approximation | NestedApproximation:
    """Return the result of a fit of ``model``, parsed as ``lgm``; ``sparse`` is None if dense."""
    point = outcome.point
    processes = {process.name: process for process in sparse.priors} if sparse else {}
    observed = {
        site.name: _observed(model, site, point)
        for site in lgm.sites
        if site.has_observations and site.name in model.named_vars
    }
    facts: dict[str, Any] = {
        "method": method,
        "theta": constrained(model, [h.name for h in lgm.hyperparameters], point),
        "point": {h.value_name: np.array(point[h.value_name]) for h in lgm.hyperparameters},
        "log_evidence": outcome.evidence,
        "objective": outcome.objective,
        "history": _history(outcome),
        "converged": outcome.converged,
        "message": outcome.message,
        "timings": {},
        "diagnostics": outcome.diagnostics,
        "observed": observed,
        "random_seed": random_seed,
        "_labels": Labels.of_model(model),
        "_data": checksums(model.data_vars),
        "_variables": tuple(rv.name for rv in model.unobserved_RVs),
    }
    nested = outcome.nested
    if isinstance(nested, NestedPosterior) and nested.members:
        means_at = LatentMeans(model, lgm, point)
        return NestedApproximation(**facts, _posterior=nested, _means=means_at)
    means = LazyMeans(partial(_means, model, lgm, outcome, processes))
    latents = FittedLatents(
        _without_graphs(outcome.prior),
        outcome.groups,
        outcome.space,
        # The model's data may change before the means are read.
        tuple(means) if model.data_vars else means,
    )
    fingerprint = Fingerprint.of(lgm, point, observed)
    facts |= {"h": outcome.h, "lam": outcome.lam, "_latents": latents, "_fingerprint": fingerprint}
    facts["_variables"] += tuple(inducing_name(name) for name in processes)
    evaluate = LatentDraws(model, lgm, point)
    if processes:
        return SparseApproximation(
            **facts,
            inducing=outcome.inducing,
            _processes=processes,
            _value_names={b.name: b.value_name for b in lgm.blocks if b.name in processes},
            _deterministics=evaluate,
        )
    sizes = {site.name: site.size for site in lgm.sites}
    # A vector-valued observation has one log density.
    shapes = {
        name: value.shape if value.size == sizes[name] else value.shape[:-1]
        for name, value in observed.items()
    }
    pointwise = PointwiseLogLikelihood(lgm, point, shapes)
    return Approximation(**facts, _evaluate=evaluate, _pointwise=pointwise)


def _means(
    model: Any, lgm: LatentGaussianModel, outcome: FitOutcome, processes: Mapping[str, ProcessPrior]
) -> list[AffineMean]:
    """Return the prior mean of each latent; of a process, at its inducing inputs."""
    found = []
    parts = LatentMeans(model, lgm, outcome.point, processes).affine(outcome.point)
    for block, part in zip(lgm.blocks, parts, strict=True):
        if block.name in processes:
            Z = outcome.inducing[block.name]
            mean = processes[block.name].mean(outcome.point, Z)
            found.append(AffineMean(np.tile(mean, block.copies)))
        else:
            found.append(AffineMean(*part))
    return found


def _history(outcome: FitOutcome) -> pd.DataFrame:
    done = outcome.iterations
    # No rows if the sites were at their targets from the start.
    columns = {one.name: [getattr(each, one.name) for each in done] for one in fields(Iteration)}
    # The count restarts at every value of θ.
    starts = np.diff(columns["iteration"], prepend=np.inf) <= 0
    return pd.DataFrame({"theta": np.cumsum(starts) - 1, **columns})


def _observed(model: Any, site: Site, point: Point) -> np.ndarray:
    value = model.rvs_to_values[model[site.name]]
    if site.likelihood.unpredictable is not None:
        # The site's y may be numbers that stand for a vector.
        return np.array(PointFunction(value, {})({}))
    shape = value.type.shape
    y = np.array(site.y(point))
    if None in shape:
        return y
    if y.size < prod(shape):
        # For counts of classes y is the sum.
        params = site.params(point)
        y = np.stack([params[f"entry_{k}"] for k in range(shape[-1])], axis=-1)
    return y.reshape(shape)


def _without_graphs(prior: LatentPrior) -> LatentPrior:
    """Return the prior with all functions of the model's graph removed."""
    blocks = tuple(
        block_prior(
            replace(b.block, scale=FixedValue(b.array), scale_pullback=None, mean=None),
            b.array,
            b.jitter,
        )
        for b in prior.blocks
    )
    return LatentPrior(prior.offset, blocks, prior.full_maps, prior.maps)
