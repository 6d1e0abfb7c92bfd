"""From the latents of engines to the variables of the user's model, at one θ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import AugmentationError
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Argument, Point, PointMap
from pymc_augconj.recognition.predictors.random_mean import affine_parts
from pymc_augconj.recognition.processes.input_data import data_as_constants

from .evaluate import BatchFunction, value_at_zero

__all__ = ["LatentDraws", "affine_means"]


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
