"""Forecasts of the next steps of a time series: what ``pac.predict(…, steps=…)`` calls."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np
from pymc.model import Model

from pymc_augconj.errors import AugmentationError
from pymc_augconj.recognition.graph.dependence import static_shape
from pymc_augconj.recognition.prediction.transitions import read_transition
from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.predictions import predictions_tree

from .process_draws import needed_draws

__all__ = ["predict_series"]


def predict_series(
    tree: DataTree,
    model: Model,
    name: str,
    steps: int,
    *,
    dim: str | None,
    coords: Sequence | None,
    rng: np.random.Generator,
) -> DataTree:
    """Return draws of the next steps of a series, one for each posterior draw.

    Parameters
    ----------
    tree : DataTree
        With the group ``posterior``.
    model : pymc.Model
    name : str
        The series.
    steps : int
    dim, coords
        Name and labels of the axis of time.
    rng : Generator

    Raises
    ------
    AugmentationError
        If ``name`` is no series, or the draws are not those of the model.
    """
    if not (isinstance(steps, Integral) and steps >= 1):
        raise AugmentationError(f"steps: expected a positive integer, got {steps!r}")
    if coords is not None and len(coords) != steps:
        raise AugmentationError(f"coords: expected {steps} labels, got {len(coords)}")
    series = read_transition(model, name)
    draws, sampled = needed_draws(tree, [name, *series.names])
    for key in series.names:
        _check_shape(key, draws[key], static_shape(model[key]))
    _check_shape(name, draws[name], series.shape)
    n = series.shape[series.axis]
    last = np.take(draws[name], range(n - series.lags, n), axis=series.axis).astype(float)
    new = series.simulate(draws, last, int(steps), rng)

    named = model.named_vars_to_dims.get(name) or (None,) * len(series.shape)
    dims = [given or f"{name}_dim_{i}" for i, given in enumerate(named)]
    labels = {d: c for d, c in model.coords.items() if d in dims and c is not None}
    if dim is not None:
        dims[series.axis] = dim
    labels[dims[series.axis]] = np.arange(n, n + steps) if coords is None else np.asarray(coords)
    found = {
        name: (("sample", *dims), new),
        f"{name}_mean": (dims, new.mean(axis=0)),
        f"{name}_std": (dims, new.std(axis=0)),
    }
    return predictions_tree(found, labels, {"inference_library": "pymc_augconj"}, sampled)


def _check_shape(name: str, values: np.ndarray, shape: tuple[int, ...]) -> None:
    if values.shape[1:] != shape:
        raise AugmentationError(
            f"posterior: expected draws of {name!r} of the model's shape {shape}, found "
            f"{values.shape[1:]}; pass the model that was sampled as model="
        )
