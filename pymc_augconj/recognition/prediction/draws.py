"""The predictor at new inputs, from posterior draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from pymc.model import Model

from pymc_augconj.model import Argument, LatentBlock, LatentGaussianModel, Point

from .evaluate import unconstrained_function
from .new_inputs import NewPredictor

__all__ = ["equal_draws", "innovation_of_draw", "point_of_draw", "predictors_of_draws"]


def predictors_of_draws(
    model: Model,
    read: NewPredictor,
    draws: Mapping[str, np.ndarray],
    f_new: np.ndarray,
    mean_old: Callable[[int], np.ndarray],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return new predictors and the likelihood's parameters for every draw.

    Parameters
    ----------
    model : pymc.Model
    read : NewPredictor
    draws : mapping
        Draws of the hyperparameters and of the latents in the predictor, on the first axis.
    f_new : ndarray, shape (S, P)
        Draws of the process at the new inputs.
    mean_old : callable
        ``draw -> (n,)``: the process's prior mean at the old inputs.

    Returns
    -------
    eta : ndarray, shape (S, P)
    params : dict
        Each of shape (S, 1).
    """
    lgm = read.lgm
    hyper, others = [h.name for h in lgm.hyperparameters], read.other_entries()
    to_point = point_of_draw(model, lgm, read.start, draws)
    size = len(f_new)
    given = read.new_offset is not None
    coef, rest = np.empty((size, 1)), np.empty((size, f_new.shape[1] if given else 1))
    params: dict[str, np.ndarray] = {}
    for members in equal_draws(draws, hyper):
        first = members[0]
        point = to_point(first)
        coef[members], entry = read.read_process(point)
        mean = mean_old(first)
        rest[members] = read.offset(point, mean)
        # The process's mean may depend on latents, and so differ where hyperparameters do not.
        if not given:
            for s in members[1:]:
                rest[s] += coef[first] * (mean[entry] - mean_old(s)[entry])
        for i, row in read.others(point).items():
            block = lgm.blocks[i]
            if block.value_name not in others:
                continue
            for s in members:
                rest[s] += row @ innovation_of_draw(block, lgm, point, draws, s)
        for name, value in read.params(point).items():
            params.setdefault(name, np.empty((size, 1)))[members] = value
    return coef * f_new + rest, params


def point_of_draw(
    model: Model, lgm: LatentGaussianModel, start: Point, draws: Mapping[str, np.ndarray]
) -> Callable[[int], Point]:
    """Return PyMC's point of a draw, its hyperparameters on the unconstrained scale."""
    hyper = [h.name for h in lgm.hyperparameters]
    if not hyper:
        return lambda s: start
    function = unconstrained_function(model, hyper)
    names, drawn = [h.value_name for h in lgm.hyperparameters], _variables_of(model, draws)

    def point(s: int) -> Point:
        values = function({name: np.asarray(draws[name][s]) for name in drawn})
        return {**start, **{n: np.asarray(v) for n, v in zip(names, values, strict=True)}}

    return point


def _variables_of(model: Model, draws: Mapping[str, np.ndarray]) -> list[str]:
    """Return the free variables that have draws."""
    return [rv.name for rv in model.free_RVs if rv.name in draws]


def innovation_of_draw(
    block: LatentBlock,
    lgm: LatentGaussianModel,
    point: Point,
    draws: Mapping[str, np.ndarray],
    s: int,
) -> np.ndarray:
    """Return the innovation of a latent in draw ``s``, whose other variables are in ``point``."""
    value = np.asarray(draws[block.value_name][s], dtype=float).ravel()
    if block.mean is None:
        return value
    values = {
        Argument("value", b.name): np.asarray(draws[b.value_name][s], dtype=float).ravel()
        for b in lgm.blocks
        if b.value_name in draws
    }
    return value - np.asarray(block.mean({**point, **values}))


def equal_draws(draws: Mapping[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray]:
    """Return the draws that share the values of ``names``, as arrays of indices."""
    size = len(next(iter(draws.values())))
    if not names:
        return [np.arange(size)]
    columns = np.concatenate(
        [draws[name].reshape(size, -1).astype(float) for name in names], axis=1
    )
    _, inverse = np.unique(columns, axis=0, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(inverse[order])) + 1)
