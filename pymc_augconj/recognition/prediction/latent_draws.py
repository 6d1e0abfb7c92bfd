"""The variables of the user's model, from the latents of engines; predictors from draws."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import AugmentationError
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Argument, Point, PointMap
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.predictors.coefficients import affine_parts
from pymc_augconj.recognition.processes.other_graphs import data_as_constants

from .evaluate import BatchFunction, batch_function, unconstrained_function, value_at_zero
from .new_inputs import NewPredictors


@dataclass(frozen=True)
class AffineMean:
    """The prior mean of a latent given other latents c: constant + Σ_c T_c value_c, flat."""

    constant: np.ndarray
    #: T_c by the name of the latent c, shape (total_size, total_size_c).
    matrices: dict[str, np.ndarray] = field(default_factory=dict)


class LatentMeans:
    """The prior means of the latents as functions of θ and of other latents.

    ``point`` may be any; the means of latents in ``without`` are empty.
    """

    def __init__(
        self, model: Model, lgm: LatentGaussianModel, point: Point, without: Collection[str] = ()
    ) -> None:
        self._blocks, self._without = lgm.blocks, without
        # The user's variable at v = 0, as a function of the values of other latents.
        self._of_whitened = {
            block.name: _mean_of_whitened(model, block, lgm, point)
            for block in lgm.blocks
            if block.whitened and block.name not in without and block.name in model.named_vars
        }

    def affine(self, point: Point) -> list[AffineMean]:
        """Return the mean of every latent at θ."""
        found = []
        for block in self._blocks:
            mean, read = self._reads(block)
            if mean is None:
                size = 0 if block.name in self._without else block.total_size
                found.append(AffineMean(np.zeros(size)))
                continue
            fixed = {**point, **{key: np.zeros(shape) for key, (_, shape) in read.items()}}
            constant, matrices = affine_parts(
                partial(_at, mean, fixed), {key: shape for key, (_, shape) in read.items()}
            )
            of_others = {read[key][0]: matrix for key, matrix in matrices.items()}
            found.append(AffineMean(constant, of_others))
        return found

    def values(self, point: Point, innovations: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the values of all latents, flat, at θ given one set of innovations."""
        values: dict[str, np.ndarray] = {}
        known: dict[str, np.ndarray] = {}
        waiting = [(b, u, *self._reads(b)) for b, u in zip(self._blocks, innovations, strict=True)]
        while waiting:
            # A mean needs the latents on which it depends; of a whitened one, the innovation.
            ready = [all(of in known for of, _ in read.values()) for *_, read in waiting]
            block, innovation, mean, read = waiting.pop(ready.index(True))
            value = innovation
            if mean is not None:
                others = {key: known[of].reshape(shape) for key, (of, shape) in read.items()}
                value = value + np.ravel(mean({**point, **others}))
            values[block.name] = value
            known[block.name] = innovation if block.whitened else value
        return [values[block.name] for block in self._blocks]

    def in_innovations(
        self, mean: PointFunction, point: Point, values: Point
    ) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """Return the mean of a process as constant + Σ matrix @ innovation, by a block's position.

        ``mean`` is a function of the variables' ``values``, by name.
        """
        blocks, names = {b.name: (i, b) for i, b in enumerate(self._blocks)}, list(mean.names)
        for name in names:
            if name in blocks:
                names += [of for of, _ in self._reads(blocks[name][1])[1].values()]
        behind = dict(blocks[name] for name in names if name in blocks)
        if not behind:
            return np.ravel(mean(values)), {}

        def at(innovations: Mapping[int, np.ndarray]) -> np.ndarray:
            zeros = {i: np.zeros(b.total_size) for i, b in enumerate(self._blocks)}
            found = self.values(point, list({**zeros, **innovations}.values()))
            own = {block.name: found[i].reshape(block.shape) for i, block in behind.items()}
            return mean({**values, **own})

        return affine_parts(at, {i: (b.total_size,) for i, b in behind.items()})

    def _reads(
        self, block: LatentBlock
    ) -> tuple[PointMap[np.ndarray] | None, dict[Any, tuple[str, tuple[int, ...]]]]:
        """Return a block's mean and its arguments: the key, name and shape of other latents."""
        mean = self._of_whitened.get(block.name) if block.whitened else block.mean
        if mean is None or block.name in self._without:
            return None, {}
        keys: dict[Any, tuple[str, tuple[int, ...]]] = {
            Argument("value", b.name): (b.name, (b.total_size,)) for b in self._blocks
        }
        if block.whitened:
            keys = {b.value_name: (b.name, b.shape) for b in self._blocks if b is not block}
        return mean, {key: keys[key] for key in mean.names if key in keys}


def _at(mean: PointMap[np.ndarray], point: Point, values: Point) -> np.ndarray:
    return mean({**point, **values})


def _mean_of_whitened(
    model: Model, block: LatentBlock, lgm: LatentGaussianModel, point: Point
) -> PointMap[np.ndarray]:
    """Return m of f = m + chol(K) v, which is the user's variable at v = 0."""
    mean = value_at_zero(model, block.name, block.value_name, point)
    others = [b for b in lgm.blocks if b is not block and b.value_name in mean.names]
    hidden = [b.name for b in others if b.whitened]
    if hidden:
        raise AugmentationError(
            f"{block.name!r}: expected a prior mean that depends on no whitened process, found "
            f"{hidden} in it; write these with gp.prior(…, reparameterize=False)"
        )
    return mean


class LatentDraws:
    """The model's other variables from draws of its latents, at the current data.

    θ is that of ``point``, or drawn where its entries are among the drawn ones.
    """

    def __init__(self, model: Model, lgm: LatentGaussianModel, point: Point) -> None:
        self._model, self._forward, self._point = model, lgm.forward, point
        self._data = data_as_constants(model.unobserved_RVs)
        self._blocks = [(b.name, b.value_name, b.whitened) for b in lgm.blocks]
        self._hyperparameters = {h.name for h in lgm.hyperparameters}
        self._function: BatchFunction | None = None

    def __call__(
        self, entries: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Return variables that are neither latent nor hyperparameter, draws on the first axis."""
        entries = dict(entries)
        moving = [*entries, *(v.value_name for v in self._forward)]
        if self._function is None:
            known = {name for block in self._blocks for name in block[:2]} | self._hyperparameters
            names = [rv.name for rv in self._model.unobserved_RVs if rv.name not in known]
            self._function = batch_function(self._model, names, moving, self._point, self._data)
        entries |= self._draw_forward(entries, rng)
        return self._function(entries) if self._function.names else {}

    def _draw_forward(
        self, entries: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        if not self._forward:
            return {}
        visible = [name for name, _, _ in self._blocks]
        function = batch_function(self._model, visible, list(entries), self._point, self._data)
        values = function(entries)
        latent = {name for _, name, _ in self._blocks}
        zeros = {n: np.zeros(np.shape(v)) if n in latent else v for n, v in entries.items()}
        centre = function(zeros)
        drawn: dict[str, list[Any]] = {v.value_name: [] for v in self._forward}
        for i in range(len(next(iter(entries.values())))):
            point = {**self._point, **{name: value[i] for name, value in entries.items()}}
            for name, _, whitened in self._blocks:
                value = values[name][i] - (centre[name][i] if whitened else 0.0)
                point[Argument("value", name)] = np.array(value, dtype=float).ravel()
            for variable in self._forward:
                draw = variable.draw(rng, point).reshape(variable.shape)
                point[variable.value_name] = draw
                drawn[variable.value_name].append(draw)
        return {name: np.stack(draws) for name, draws in drawn.items()}


@dataclass(frozen=True)
class NewProcess:
    """Draws of a process at new inputs, ``f_new`` of shape (S, outputs, new inputs).

    ``mean_old`` is its prior mean at the old inputs, as a function of values by name.
    """

    name: str
    f_new: np.ndarray
    mean_old: PointFunction


def predictors_of_draws(
    model: Model,
    read: NewPredictors,
    draws: Mapping[str, np.ndarray],
    processes: Sequence[NewProcess],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return η, (P, S, new inputs), and the likelihood's parameters, (S, 1) or (new inputs,).

    ``draws`` has the hyperparameters and the latents in the predictors.
    """
    lgm = read.lgm
    size, _, width = processes[0].f_new.shape
    eta = np.zeros((read.site.shape[0], size, width))
    params: dict[str, np.ndarray] = {}
    to_point = point_of_draw(model, lgm, read.start, draws)
    latents = LatentMeans(model, lgm, read.start, [process.name for process in processes])
    for members in equal_draws(draws, [h.name for h in lgm.hyperparameters]):
        point = to_point(members[0])
        values = {name: value[members[0]] for name, value in draws.items()}
        means = {q.name: latents.in_innovations(q.mean_old, point, values) for q in processes}
        for p, new in enumerate(read.at(point, means)):
            eta[p, members] += new.offset
            for process in processes:
                coef = new.through[process.name].coef
                eta[p, members] += np.einsum("k,skn->sn", coef, process.f_new[members])
            for i, row in new.rows.items():
                for s in members:
                    eta[p, s] += row @ innovation_of_draw(lgm.blocks[i], lgm, point, draws, int(s))
        for name, value in read.params(point).items():
            if value.ndim:
                params[name] = value
            else:
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
