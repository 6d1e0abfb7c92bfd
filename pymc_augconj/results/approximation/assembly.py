"""From what a fitting engine gives back to the :class:`.approximation.Approximation` of a model."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pandas as pd

from pymc_augconj.engines.base import FitOutcome, Iteration, SparseProblem
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.registry import block_prior
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.recognition.prediction.evaluate import constrained
from pymc_augconj.recognition.prediction.latent_draws import LatentDraws, affine_means
from pymc_augconj.recognition.processes.input_data import checksums

from .approximation import Approximation
from .fingerprint import Fingerprint
from .layout import AffineMean, Labels, LazyMeans
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
    """Return a fit as the user gets it.

    Parameters
    ----------
    method : str
    model : pymc.Model
    lgm : LatentGaussianModel
        Its reading.
    outcome : FitOutcome
    random_seed : int, optional
    sparse : SparseProblem, optional
        What the engine was given where processes act through inducing points.
    """
    point = outcome.point
    observed = {site.name: _observed(model, site, point) for site in lgm.sites}
    hyper = [h.name for h in lgm.hyperparameters]
    variables = tuple(rv.name for rv in model.unobserved_RVs)
    laws = {} if sparse is None else {law.name: law for law in sparse.laws}

    def read_means() -> list[AffineMean]:
        return [
            AffineMean(laws[block.name].mean(point, outcome.inducing[block.name]))
            if block.name in laws
            else AffineMean(*parts)
            for block, parts in zip(lgm.blocks, affine_means(model, lgm, point, laws), strict=True)
        ]

    # Data may be given other values by the time that means are asked for.
    means = tuple(read_means()) if model.data_vars else LazyMeans(read_means)
    labels = Labels(
        {name: [str(d) for d in dims] for name, dims in model.named_vars_to_dims.items()},
        {
            # One label an entry, also where labels are tuples.
            str(d): pd.Index(c, tupleize_cols=False).to_numpy()
            for d, c in model.coords.items()
            if c is not None
        },
    )
    evaluate = LatentDraws(model, lgm, dict(point))
    full = {**{name: np.asarray(value) for name, value in point.items()}, **outcome.point}
    shapes = {name: np.shape(value) for name, value in observed.items()}
    kind, further = (
        Approximation,
        {"evaluate": evaluate, "pointwise": PointwiseLogLikelihood(lgm, full, shapes)},
    )
    if laws:
        variables += tuple(f"{name}_u" for name in laws)
        kind, further = (
            SparseApproximation,
            {
                "inducing": outcome.inducing,
                "laws": laws,
                "value_names": {b.name: b.value_name for b in lgm.blocks if b.name in laws},
                "deterministics": evaluate,
            },
        )
    return kind(
        method=method,
        h=outcome.h,
        lam=outcome.lam,
        theta=constrained(model, hyper, point),
        point={h.value_name: np.array(point[h.value_name]) for h in lgm.hyperparameters},
        log_evidence=outcome.evidence,
        objective=outcome.objective,
        history=_history(outcome),
        converged=outcome.converged,
        message=outcome.message,
        timings={},
        diagnostics=outcome.diagnostics,
        prior=_without_graphs(outcome.prior),
        groups=outcome.groups,
        space=outcome.space,
        means=means,
        labels=labels,
        variables=variables,
        observed=observed,
        random_seed=random_seed,
        data=checksums(model.data_vars),
        fingerprint=Fingerprint.of(lgm, point, observed),
        **further,
    )


def _history(outcome: FitOutcome) -> pd.DataFrame:
    done = outcome.iterations
    # None where the sites are at their targets from the start.
    columns = {one.name: [getattr(each, one.name) for each in done] for one in fields(Iteration)}
    # The count starts anew at every value of θ.
    starts = np.diff(columns["iteration"], prepend=np.inf) <= 0
    return pd.DataFrame({"theta": np.cumsum(starts) - 1, **columns})


def _observed(model: Any, site, point) -> np.ndarray:
    shape = model.rvs_to_values[model[site.name]].type.shape
    y = np.array(site.y(point))
    return y.reshape(shape) if None not in shape else y


def _without_graphs(prior: LatentPrior) -> LatentPrior:
    """Return the prior with nothing but numbers in it."""
    blocks = tuple(
        block_prior(replace(b.block, scale=None, scale_pullback=None, mean=None), b.array, b.jitter)
        for b in prior.blocks
    )
    return LatentPrior(prior.offset, blocks, prior.full_maps, prior.maps)
