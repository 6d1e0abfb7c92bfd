"""The predictors at new inputs, from posterior draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pymc.model import Model

from pymc_augconj.block import LatentBlock
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Argument, Point

from .evaluate import unconstrained_function
from .new_inputs import NewPredictors


@dataclass(frozen=True)
class NewProcess:
    """Draws of a process at new inputs, ``f_new`` of shape (S, outputs, new inputs).

    ``mean_old`` returns its prior mean at the old inputs for a draw.
    """

    name: str
    f_new: np.ndarray
    mean_old: Callable[[int], np.ndarray]


def predictors_of_draws(
    model: Model,
    read: NewPredictors,
    draws: Mapping[str, np.ndarray],
    processes: Sequence[NewProcess],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return η, (P, S, new inputs), and the likelihood's parameters, (S, 1), for every draw.

    ``draws`` has the hyperparameters and the latents in the predictors.
    """
    lgm = read.lgm
    size, _, width = processes[0].f_new.shape
    eta = np.zeros((read.site.shape[0], size, width))
    params: dict[str, np.ndarray] = {}
    to_point = point_of_draw(model, lgm, read.start, draws)
    for members in equal_draws(draws, [h.name for h in lgm.hyperparameters]):
        point = to_point(members[0])
        means = {q.name: np.array([q.mean_old(s) for s in members]) for q in processes}
        for p, new in enumerate(read.at(point, {name: mean[0] for name, mean in means.items()})):
            eta[p, members] += new.offset
            for process in processes:
                own, mean = new.through[process.name], means[process.name]
                eta[p, members] += np.einsum("k,skn->sn", own.coef, process.f_new[members])
                if read.new_offset is None:
                    # The mean may depend on latents, and differ where hyperparameters do not.
                    moved = (mean[0] - mean)[:, own.entries[0]] @ own.coef
                    eta[p, members] += moved[:, None]
            for i, row in new.rows.items():
                for s in members:
                    eta[p, s] += row @ innovation_of_draw(lgm.blocks[i], lgm, point, draws, int(s))
        for name, value in read.params(point).items():
            params.setdefault(name, np.empty((size, 1)))[members] = value
    return eta, params


def point_of_draw(
    model: Model, lgm: LatentGaussianModel, start: Point, draws: Mapping[str, np.ndarray]
) -> Callable[[int], Point]:
    """Return PyMC's point of a draw, its hyperparameters on the unconstrained scale."""
    hyper = [h.name for h in lgm.hyperparameters]
    if not hyper:
        return lambda s: start
    function = unconstrained_function(model, hyper)
    names = [h.value_name for h in lgm.hyperparameters]
    drawn = [rv.name for rv in model.free_RVs if rv.name in draws]

    def point(s: int) -> Point:
        values = function({name: np.asarray(draws[name][s]) for name in drawn})
        return {**start, **{n: np.asarray(v) for n, v in zip(names, values, strict=True)}}

    return point


def innovation_of_draw(
    block: LatentBlock,
    lgm: LatentGaussianModel,
    point: Point,
    draws: Mapping[str, np.ndarray],
    s: int,
) -> np.ndarray:
    """Return the innovation of a latent in draw ``s``, whose other variables are in ``point``."""
    value = np.asarray(draws[block.drawn_name][s], dtype=float).ravel()
    if block.mean is None:
        return value
    values = {
        Argument("value", b.name): np.asarray(draws[b.drawn_name][s], dtype=float).ravel()
        for b in lgm.blocks
        if b.drawn_name in draws
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
