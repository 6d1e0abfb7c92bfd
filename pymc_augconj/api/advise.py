"""``pac.advise``: the cost and the errors of each engine on a model, from a short pilot run."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import pandas as pd
from pymc.model import Model, modelcontext

from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.choice import cheapest_solver
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.recognition.recognizer import read_model

from .fit import fit
from .recognize import expected_time

# Matrices of the largest order that an engine holds.
_MATRICES = 3
_ERRORS = {
    "sample": "nothing but Monte Carlo error, which az.summary reports",
    "nested": "the form of the latents given hyperparameters; k is of the hyperparameters",
    "ep": "hyperparameters at a point, so intervals are too narrow; k is of the latents given it",
    "vgp": "as 'ep', and deviations of the latents are too small",
    "cavi": "as 'vgp', more so, and its evidence is the loosest bound",
}


class _OutOfTimeError(Exception):
    pass


def advise(
    model: Model | None = None, *, seconds: float = 5.0, random_seed: int | None = None
) -> pd.DataFrame:
    """Return the cost and the typical errors of each engine on a model.

    The function makes every fit, and stops it after ``seconds``. The time of four chains of 1200
    steps of :func:`~pymc_augconj.sample` follows from 50 steps, or from 1300 where these are fast.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the model of the context.
    seconds : float
        Time limit of each fit. A single iteration is not interrupted.
    random_seed : int, optional

    Returns
    -------
    DataFrame
        By engine: ``seconds`` (NaN for a stopped or refused fit), ``pareto_k`` (below 0.7 is
        good), ``megabytes`` of the largest matrices, and ``wrong``: typical errors, or the reason
        for the NaN.

    Raises
    ------
    AugmentationError
        If the model cannot be recognised.

    Examples
    --------
    >>> pac.advise(model)  # doctest: +SKIP
    """
    model = modelcontext(model)
    read = read_model(model)
    groups = LatentPriors(read.model, (read.start, *read.probes)).groups
    order = cheapest_solver(read.model.blocks, groups).largest_order(read.model.blocks, groups)
    rows: dict[str, dict[str, Any]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for engine, wrong in _ERRORS.items():
            pilot = _sampled if engine == "sample" else _fitted
            row: dict[str, Any] = {"seconds": np.nan, "pareto_k": np.nan}
            try:
                row |= pilot(engine, model, seconds, random_seed) | {"wrong": wrong}
            except _OutOfTimeError:
                row["wrong"] = f"stopped after {seconds:g} s"
            except AugmentationError as error:
                row["wrong"] = f"refused: {error}"
            rows[engine] = row | {"megabytes": 8e-6 * _MATRICES * order**2}
    table = pd.DataFrame.from_dict(rows, "index").rename_axis("engine")
    return table[["seconds", "pareto_k", "megabytes", "wrong"]]


def _fitted(method: str, model: Model, seconds: float, seed: int | None) -> dict[str, Any]:
    """Return time and k̂ of a fit."""
    start = time.perf_counter()

    def stop(_: object) -> None:
        if time.perf_counter() > start + seconds:
            raise _OutOfTimeError

    found = fit(method, model=model, random_seed=seed, progressbar=False, callback=stop)
    return {"seconds": time.perf_counter() - start, "pareto_k": found.pareto_k}


def _sampled(_: str, model: Model, seconds: float, seed: int | None) -> dict[str, Any]:
    """Return the time of a whole run of the sampler."""
    return {"seconds": expected_time(model, seconds, seed)[1]}
