"""Sets of latents that one Gaussian move draws together, for likelihoods with groups of predictors.

Given ω_g and the other groups, the predictors of one group of a likelihood are Gaussian. So a move
draws the latents that enter one group, together with the latents of all groups connected to it by
common latents: a *component*. A latent that enters two groups of one likelihood has no Gaussian
conditional.

Independent latents of one block, such as the outputs of a process for each class, or the intercepts
of classes, may belong to different components: they are its *pieces*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import AugmentationError
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Key, Point, PointMap
from pymc_augconj.typing import Array, Index, Mask


@dataclass(frozen=True)
class Component:
    """Latents that one move draws, and their predictors.

    ``latents`` are those of each of the ``blocks``; ``members`` are pairs of observed variable and
    group, in the order of their rows.
    """

    blocks: tuple[int, ...]
    latents: tuple[Index, ...]
    members: tuple[tuple[int, int], ...]


def find_components(
    model: LatentGaussianModel,
    groups: Sequence[tuple[tuple[int, ...], ...]],
    maps_at: Sequence[Sequence[LinearMap]],
) -> list[Component]:
    """Return the components in the order of their groups.

    ``groups`` are the groups of predictors of each observed variable, ``maps_at`` the blocks' maps
    at one or more θ. Predictors without latents belong to no component. Raises AugmentationError if
    a latent enters two groups of one variable.
    """
    if not model.blocks:
        return []
    cells = [(s, g) for s, own in enumerate(groups) for g in range(len(own))]
    every = tuple(np.arange(block.total_size) for block in model.blocks)
    if len(cells) == len(model.sites):
        return [Component(tuple(range(len(every))), every, tuple(cells))]
    rows = [model.sites[s].row_numbers[list(groups[s][g])].ravel() for s, g in cells]
    # Each cell starts as a set of its own; a piece joins the sets that it enters.
    label = np.arange(len(cells))
    entered: list[Mask] = []
    for index, block in enumerate(model.blocks):
        pieces = every[index] if block.is_independent else every[index] // block.size
        own = np.zeros((pieces.max() + 1, len(cells)), dtype=bool)
        for c, at in enumerate(rows):
            for maps in maps_at:
                own[pieces[_columns(maps[index].rows(at))], c] = True
        entered.append(own[pieces])
        for joined in np.unique(own, axis=0):
            if joined.any():
                label[np.isin(label, label[joined])] = label[joined].min()
    for s, site in enumerate(model.sites):
        labels = [label[c] for c, cell in enumerate(cells) if cell[0] == s]
        if len(set(labels)) < len(labels):
            raise AugmentationError(
                f"{site.label} ({site.likelihood.name}): expected each latent "
                "variable to enter one group of its predictors, since the others are held fixed "
                "while it is drawn, found some that enter, or are tied to, several; sample with "
                "sites='held', or fit with method='vgp'"
            )
    # The component of each latent; a latent without predictors may be drawn by any move.
    order = sorted(range(len(cells)), key=lambda c: (cells[c][1], cells[c][0]))
    used = {label[c] for own in entered for c in np.flatnonzero(own.any(axis=0))}
    names = list(dict.fromkeys(label[c] for c in order if label[c] in used)) or [label[order[0]]]
    component_of = [
        np.where(own.any(axis=1), label[own.argmax(axis=1)], names[0]) for own in entered
    ]
    components = []
    for name in names:
        latents = {b: np.flatnonzero(own == name) for b, own in enumerate(component_of)}
        latents = {b: own for b, own in latents.items() if own.size}
        members = sorted(cells[c] for c in order if label[c] == name)
        components.append(Component(tuple(latents), tuple(latents.values()), tuple(members)))
    return components


def _columns(A: LinearMap) -> Mask:
    """Return the latents with a nonzero coefficient."""
    return np.asarray(A.largest_entries() > 0.0)


@dataclass(frozen=True)
class RowsOf:
    """Some rows of a vector or map that is a function of the point, and columns of a map.

    The rows have no entry in other columns.
    """

    whole: PointMap[Any]
    rows: Index
    columns: Index | None = None

    @property
    def names(self) -> tuple[Key, ...]:
        return self.whole.names

    def __call__(self, point: Point) -> Any:
        value = self.whole(point)
        return value[self.rows] if isinstance(value, np.ndarray) else self._part(value)

    def _part(self, A: LinearMap) -> LinearMap:
        part = A.rows(self.rows)
        if self.columns is not None and self.columns.size < part.size:
            part = part.select(self.columns)
        if isinstance(part, RowSelection) and part.coef is not None and (part.coef == 1.0).all():
            return RowSelection(part.index, None, part.size)
        return part

    def on_tape(self, tape: Any, entries: Mapping[Any, Index]) -> Any:
        """Return the registers of a vector; of a map its parts, with those of their factors."""
        found = tape.evaluate(self.whole, entries)
        if isinstance(found, np.ndarray):
            return found[self.rows]
        chosen = [(c[self.rows] if np.size(c) > 1 else c, A) for c, A in found]
        return [(c, self._part(A)) for c, A in chosen]


def restricted_model(
    model: LatentGaussianModel, component: Component, rows: Index
) -> LatentGaussianModel:
    """Return the model of a component and its predictors, without other latents."""
    pairs = list(zip(component.blocks, component.latents, strict=True))
    whole = all(own.size == model.blocks[i].total_size for i, own in pairs)
    if whole and len(pairs) == len(model.blocks) and rows.size == model.n_rows:
        return model
    blocks = tuple(_restricted_block(model.blocks[i], own) for i, own in pairs)
    maps = tuple(RowsOf(model.maps[i], rows, own) for i, own in pairs)
    offset = RowsOf(model.offset, rows)
    return replace(model, blocks=blocks, maps=maps, offset=offset, n_rows=rows.size)


def _restricted_block(block: LatentBlock, latents: Index) -> LatentBlock:
    if latents.size == block.total_size:
        return block
    mean = None if block.mean is None else RowsOf(block.mean, latents)
    if not block.is_independent:
        copies = latents.size // block.size
        return replace(block, copies=copies, shape=(latents.size,), mean=mean)
    pull = block.scale_pullback

    def pullback(point: Point, G: Array) -> dict[str, Array]:
        assert pull is not None
        whole = np.zeros(block.total_size)
        whole[latents] = G
        return pull(point, whole)

    scale, pulled = RowsOf(block.scale, latents), None if pull is None else pullback
    found = replace(block, size=latents.size, copies=1, shape=(latents.size,), mean=mean)
    return replace(found, scale=scale, scale_pullback=pulled)
