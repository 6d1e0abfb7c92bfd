"""The predictors at new inputs, from posterior draws of the user's own variables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.model import Model
from pytensor.graph.basic import Variable

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import AugmentationError
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Argument, Point, PointMap
from pymc_augconj.recognition.graph.rewrite import substitute
from pymc_augconj.recognition.latents.innovations import GaussianVariable
from pymc_augconj.recognition.predictors.random_mean import affine_parts
from pymc_augconj.recognition.processes.input_data import data_as_constants

from .evaluate import BatchFunction, unconstrained_function, value_at_zero
from .new_inputs import NewPredictors

__all__ = [
    "LatentDraws",
    "NewProcess",
    "affine_means",
    "equal_draws",
    "in_variables",
    "predictors_of_draws",
]


def in_variables(graphs: Sequence[Variable], latents: Sequence[GaussianVariable]) -> list[Variable]:
    """Return the graphs with every innovation replaced by value − mean, or by chol(K) v."""
    replacements = {}
    for latent in latents:
        flat = latent.flat()
        if latent.mean is not None:
            flat -= latent.mean.ravel()
        flat = pt.specify_shape(flat.astype("float64"), latent.input.type.shape)
        replacements[latent.input] = flat
    return substitute(graphs, replacements)


def affine_means(
    model: Model, lgm: LatentGaussianModel, point: Point, without: Collection[str] = ()
) -> list[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Return the prior mean of every latent at θ; an empty one for those in ``without``.

    Returns
    -------
    list of (constant, matrices)
        value = innovation + constant + Σ matrix @ value of the other latent, flattened.
    """
    by_key = {Argument("value", block.name): block for block in lgm.blocks}
    zeros = {key: np.zeros(block.total_size) for key, block in by_key.items()}
    found: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []
    for block in lgm.blocks:
        if block.name in without:
            found.append((np.zeros(0), {}))
            continue
        if block.whitened:
            found.append(_mean_of_whitened(model, block, lgm, point))
            continue
        if block.mean is None:
            found.append((np.zeros(block.total_size), {}))
            continue
        read = {key: zeros[key].shape for key in block.mean.names if key in by_key}
        constant, matrices = affine_parts(partial(_at, block.mean, {**point, **zeros}), read)
        found.append((constant, {by_key[key].name: matrix for key, matrix in matrices.items()}))
    return found


def _at(mean: PointMap[np.ndarray], point: Point, values: Point) -> np.ndarray:
    return mean({**point, **values})


def _mean_of_whitened(
    model: Model, block: LatentBlock, lgm: LatentGaussianModel, point: Point
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return m of f = m + chol(K) v, which is the user's variable at v = 0, in other latents."""
    if block.name not in model.named_vars:
        return np.zeros(block.total_size), {}
    mean = value_at_zero(model, block.name, block.value_name, point)
    others = [b for b in lgm.blocks if b is not block and b.value_name in mean.names]
    hidden = [b.name for b in others if b.whitened]
    if hidden:
        raise AugmentationError(
            f"{block.name!r}: expected a prior mean that depends on no whitened process, found "
            f"{hidden} in it; write these with gp.prior(…, reparameterize=False)"
        )
    constant, matrices = affine_parts(
        lambda values: mean({**point, **values}), {b.value_name: b.shape for b in others}
    )
    return constant, {b.name: matrices[b.value_name] for b in others}


class LatentDraws:
    """The model's other variables from draws of its latents, at one θ and the current data."""

    def __init__(self, model: Model, lgm: LatentGaussianModel, point: Point) -> None:
        self._model, self._forward, self._point = model, lgm.forward, point
        self._data = data_as_constants(model.unobserved_RVs)
        self._blocks = [(b.name, b.value_name, b.whitened) for b in lgm.blocks]
        self._hyperparameters = {h.name for h in lgm.hyperparameters}
        self._function: BatchFunction | None = None

    def __call__(
        self, entries: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Return what is neither latent nor hyperparameter, draws on the first axis."""
        entries = dict(entries)
        moving = [*entries, *(v.value_name for v in self._forward)]
        if self._function is None:
            known = {name for block in self._blocks for name in block[:2]} | self._hyperparameters
            names = [rv.name for rv in self._model.unobserved_RVs if rv.name not in known]
            self._function = BatchFunction(self._model, names, moving, self._point, self._data)
        entries |= self._draw_forward(entries, rng)
        return self._function(entries) if self._function.names else {}

    def _draw_forward(
        self, entries: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        if not self._forward:
            return {}
        visible = [name for name, _, _ in self._blocks]
        function = BatchFunction(self._model, visible, list(entries), self._point, self._data)
        values = function(entries)
        zeros = {name: np.zeros((1, *np.shape(v)[1:])) for name, v in entries.items()}
        centre = {name: np.array(value)[0] for name, value in function(zeros).items()}
        drawn: dict[str, list[Any]] = {v.value_name: [] for v in self._forward}
        for i in range(len(next(iter(entries.values())))):
            point = {**self._point, **{name: value[i] for name, value in entries.items()}}
            for name, _, whitened in self._blocks:
                value = values[name][i] - (centre[name] if whitened else 0.0)
                point[Argument("value", name)] = np.array(value, dtype=float).ravel()
            for variable in self._forward:
                draw = variable.draw(rng, point).reshape(variable.shape)
                point[variable.value_name] = draw
                drawn[variable.value_name].append(draw)
        return {name: np.stack(draws) for name, draws in drawn.items()}


@dataclass(frozen=True)
class NewProcess:
    """Draws of a process at new inputs.

    Attributes
    ----------
    name : str
    f_new : ndarray, shape (S, K, P)
        Of its K outputs at the P new inputs.
    mean_old : callable
        ``draw -> (n,)``: its prior mean at the old inputs.
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
    """Return new predictors and the likelihood's parameters for every draw.

    Parameters
    ----------
    model : pymc.Model
    read : NewPredictors
    draws : mapping
        Draws of the hyperparameters and of the latents in the predictors, on the first axis.
    processes : sequence of NewProcess

    Returns
    -------
    eta : ndarray, shape (P, S, new inputs)
    params : dict
        Each of shape (S, 1).
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
