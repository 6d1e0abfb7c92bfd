"""Which latents one Gaussian move draws together, where a likelihood has groups of predictors.

Given ω_g, the predictors of one group of a likelihood have a Gaussian conditional, the others being
held. So a move draws the latents that enter one group, and with them those of every other group
that a latent of theirs enters: a *component*. A latent that enters two groups of one likelihood
has no Gaussian conditional at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection
from pymc_augconj.model import Key, LatentGaussianModel, Point, PointMap
from pymc_augconj.typing import Index

__all__ = ["Component", "find_components", "restricted_model"]


@dataclass(frozen=True)
class Component:
    """Latents and predictors that belong together.

    Attributes
    ----------
    blocks : tuple of int
        Indices of latent blocks.
    members : tuple of (int, int)
        Observed variable and group, in the order of their rows.
    """

    blocks: tuple[int, ...]
    members: tuple[tuple[int, int], ...]


def find_components(
    model: LatentGaussianModel,
    groups: Sequence[tuple[tuple[int, ...], ...]],
    maps_at: Sequence[Sequence[LinearMap]],
) -> list[Component]:
    """Return the components, those of earlier groups first.

    Parameters
    ----------
    model : LatentGaussianModel
    groups : sequence of tuple
        The groups of predictors of each observed variable.
    maps_at : sequence of sequence of LinearMap
        The blocks' maps at one or more values of θ.

    Raises
    ------
    AugmentationError
        If a latent enters two groups of one observed variable.
    """
    cells = [(s, g) for s, own in enumerate(groups) for g in range(len(own))]
    if len(cells) == len(model.sites):
        return [Component(tuple(range(len(model.blocks))), tuple(cells))]
    # Each cell starts as a set of its own; a block joins those that it enters.
    label = {cell: i for i, cell in enumerate(cells)}
    entered: list[list[tuple[int, int]]] = []
    for index in range(len(model.blocks)):
        own = [c for c in cells if any(_enters(m[index], model, groups, c) for m in maps_at)]
        entered.append(own)
        for cell in own[1:]:
            old, new = label[cell], label[own[0]]
            label = {c: new if i == old else i for c, i in label.items()}
    for s, site in enumerate(model.sites):
        labels = [label[s, g] for g in range(len(groups[s]))]
        if len(set(labels)) < len(labels):
            raise AugmentationError(
                f"{site.label} ({site.likelihood.name}): expected each latent "
                "variable to enter one group of its predictors, since the others are held fixed "
                "while it is drawn, found some that enter, or are tied to, several; sample with "
                "sites='held', or fit with method='vgp'"
            )
    found: dict[int, list[tuple[int, int]]] = {}
    for cell, i in sorted(label.items(), key=lambda item: (item[0][1], item[0][0])):
        found.setdefault(i, []).append(cell)
    blocks: dict[int, list[int]] = {i: [] for i in found}
    for index, own in enumerate(entered):
        # One that enters no predictor follows its prior, whichever move draws it.
        blocks[label[own[0]] if own else next(iter(found))].append(index)
    return [Component(tuple(blocks[i]), tuple(sorted(found[i]))) for i in found]


@dataclass(frozen=True)
class _RowsOf:
    """A vector or a map as a function of the point, some rows of it."""

    whole: PointMap[Any]
    rows: Index

    @property
    def names(self) -> tuple[Key, ...]:
        return self.whole.names

    def __call__(self, point: Point) -> Any:
        value = self.whole(point)
        if isinstance(value, np.ndarray):
            return value[self.rows]
        part = value.rows(self.rows)
        if isinstance(part, RowSelection) and part.coef is not None and (part.coef == 1.0).all():
            return RowSelection(part.index, None, part.size)
        return part


def restricted_model(
    model: LatentGaussianModel, blocks: Sequence[int], rows: Index
) -> LatentGaussianModel:
    """Return the model of some latents and predictors, of which no other latent is part."""
    if len(blocks) == len(model.blocks) and rows.size == model.n_rows:
        return model
    return replace(
        model,
        blocks=tuple(model.blocks[i] for i in blocks),
        maps=tuple(_RowsOf(model.maps[i], rows) for i in blocks),
        offset=_RowsOf(model.offset, rows),
        n_rows=rows.size,
    )


def _enters(
    A: LinearMap,
    model: LatentGaussianModel,
    groups: Sequence[tuple[tuple[int, ...], ...]],
    cell: tuple[int, int],
) -> bool:
    s, g = cell
    site = model.sites[s]
    rows = site.row_numbers[list(groups[s][g])].ravel()
    if isinstance(A, DenseMap):
        return bool(np.any(A.dense()[rows]))
    return A.coef is None or bool(np.any(A.coef[rows]))
