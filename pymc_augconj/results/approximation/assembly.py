"""The :class:`.approximation.Approximation` of a model, made of an engine's outcome."""

from __future__ import annotations

from dataclasses import fields, replace
from math import prod
from typing import Any

import numpy as np
import pandas as pd

from pymc_augconj.engines.base import FitOutcome, Iteration, SparseProblem
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.registry import block_prior
from pymc_augconj.model import FixedValue, LatentGaussianModel, Point, Site
from pymc_augconj.recognition.prediction.evaluate import constrained
from pymc_augconj.recognition.prediction.latent_draws import LatentDraws, affine_means
from pymc_augconj.recognition.processes.input_data import checksums

from .approximation import Approximation
from .fingerprint import Fingerprint
from .latents import FittedLatents
from .layout import AffineMean, Labels, LazyMeans, inducing_name
from .pointwise import PointwiseLogLikelihood
from .sparse import SparseApproximation

__all__ = ["approximation_of"]


def approximation_of(
    method: str,
    model: Any,
    lgm: LatentGaussianModel,
    outcome: FitOutcome,
    random_seed: int | None,
    sparse: SparseProblem | None,
) -> Approximation:
    """Return the result of a fit.

    Parameters
    ----------
    method : str
    model : pymc.Model
    lgm : LatentGaussianModel
        The recognised model.
    outcome : FitOutcome
    random_seed : int, optional
    sparse : SparseProblem, optional
        Processes and inducing inputs; None for a dense fit.
    """
    point = outcome.point
    observed = {
        site.name: _observed(model, site, point) for site in lgm.sites if site.has_observations
    }
    hyper = [h.name for h in lgm.hyperparameters]
    variables = tuple(rv.name for rv in model.unobserved_RVs)
    processes = {} if sparse is None else {process.name: process for process in sparse.priors}

    def read_means() -> list[AffineMean]:
        parts = affine_means(model, lgm, point, processes)
        return [
            AffineMean(
                np.tile(
                    processes[block.name].mean(point, outcome.inducing[block.name]), block.copies
                )
            )
            if block.name in processes
            else AffineMean(*part)
            for block, part in zip(lgm.blocks, parts, strict=True)
        ]

    labels = Labels.of_model(model)
    evaluate = LatentDraws(model, lgm, point)
    facts: dict[str, Any] = {
        "method": method,
        "h": outcome.h,
        "lam": outcome.lam,
        "theta": constrained(model, hyper, point),
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
        "_latents": FittedLatents(
            _without_graphs(outcome.prior),
            outcome.groups,
            outcome.space,
            # The model's data may change before the means are read.
            tuple(read_means()) if model.data_vars else LazyMeans(read_means),
        ),
        "_labels": labels,
        "_variables": variables + tuple(inducing_name(name) for name in processes),
        "_data": checksums(model.data_vars),
        "_fingerprint": Fingerprint.of(lgm, point, observed),
    }
    if not processes:
        sizes = {site.name: site.size for site in lgm.sites}
        # A vector-valued observation has one log density.
        shapes = {
            name: value.shape if value.size == sizes[name] else value.shape[:-1]
            for name, value in observed.items()
        }
        pointwise = PointwiseLogLikelihood(lgm, point, shapes)
        return Approximation(**facts, _evaluate=evaluate, _pointwise=pointwise)
    return SparseApproximation(
        **facts,
        inducing=outcome.inducing,
        _processes=processes,
        _value_names={b.name: b.value_name for b in lgm.blocks if b.name in processes},
        _deterministics=evaluate,
    )


def _history(outcome: FitOutcome) -> pd.DataFrame:
    done = outcome.iterations
    # No rows if the sites were at their targets from the start.
    columns = {one.name: [getattr(each, one.name) for each in done] for one in fields(Iteration)}
    # The count restarts at every value of θ.
    starts = np.diff(columns["iteration"], prepend=np.inf) <= 0
    return pd.DataFrame({"theta": np.cumsum(starts) - 1, **columns})


def _observed(model: Any, site: Site, point: Point) -> np.ndarray:
    shape = model.rvs_to_values[model[site.name]].type.shape
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
