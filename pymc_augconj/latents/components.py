"""Which latents one Gaussian move draws together, where a likelihood has groups of predictors.

Given ω_g, the predictors of one group of a likelihood have a Gaussian conditional, the others being
held. So a move draws the latents that enter one group, and with them those of every other group
that a latent of theirs enters: a *component*. A latent that enters two groups of one likelihood
has no Gaussian conditional at all.

Latents of one block that are independent of each other, such as the copies of a process for each
class, or the intercepts of classes, may belong to different components: they are its *pieces*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.model import Key, LatentBlock, LatentGaussianModel, Point, PointMap
from pymc_augconj.typing import Array, Index, Mask

__all__ = ["Component", "find_components", "restricted_model"]


@dataclass(frozen=True)
class Component:
    """Latents and predictors that belong together.

    Attributes
    ----------
    blocks : tuple of int
        Indices of latent blocks.
    latents : tuple of ndarray of int
        Which of the latents of each of them.
    members : tuple of (int, int)
        Observed variable and group, in the order of their rows.
    """

    blocks: tuple[int, ...]
    latents: tuple[Index, ...]
    members: tuple[tuple[int, int], ...]


def find_components(
    model: LatentGaussianModel,
    groups: Sequence[tuple[tuple[int, ...], ...]],
    maps_at: Sequence[Sequence[LinearMap]],
) -> list[Component]:
    """Return the components, those of earlier groups first.

    Predictors that no latent enters belong to none.

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
    every = tuple(np.arange(block.total_size) for block in model.blocks)
    if len(cells) == len(model.sites):
        return [Component(tuple(range(len(every))), every, tuple(cells))]
    rows = [model.sites[s].row_numbers[list(groups[s][g])].ravel() for s, g in cells]
    # Each cell starts as a set of its own; a piece joins those that it enters.
    label = np.arange(len(cells))
    entered: list[Mask] = []
    for index, block in enumerate(model.blocks):
        pieces = _pieces(block)
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
    # That of each latent; one that enters no predictor follows its prior, whichever move draws it.
    order = sorted(range(len(cells)), key=lambda c: (cells[c][1], cells[c][0]))
    used = {label[c] for own in entered for c in np.flatnonzero(own.any(axis=0))}
    names = list(dict.fromkeys(label[c] for c in order if label[c] in used)) or [label[order[0]]]
    component_of = [
        np.where(own.any(axis=1), label[own.argmax(axis=1)], names[0]) for own in entered
    ]
    found = []
    for name in names:
        latents = {b: np.flatnonzero(own == name) for b, own in enumerate(component_of)}
        latents = {b: own for b, own in latents.items() if own.size}
        members = sorted(cells[c] for c in order if label[c] == name)
        found.append(Component(tuple(latents), tuple(latents.values()), tuple(members)))
    return found


def _pieces(block: LatentBlock) -> Index:
    """Return which piece each latent of a block belongs to."""
    latents = np.arange(block.total_size)
    return latents if block.kind == "diagonal" else latents // block.size


def _columns(A: LinearMap) -> Mask:
    """Return which latents have a coefficient other than zero."""
    return np.asarray(A.largest_entries() > 0.0)


@dataclass(frozen=True)
class _RowsOf:
    """A vector or a map as a function of the point, some rows of it, and columns of a map.

    These rows have no entry in other columns.
    """

    whole: PointMap[Any]
    rows: Index
    columns: Index | None = None

    @property
    def names(self) -> tuple[Key, ...]:
        return self.whole.names

    def __call__(self, point: Point) -> Any:
        value = self.whole(point)
        if isinstance(value, np.ndarray):
            return value[self.rows]
        part = value.rows(self.rows)
        if self.columns is not None and self.columns.size < part.size:
            part = part.select(self.columns)
        if isinstance(part, RowSelection) and part.coef is not None and (part.coef == 1.0).all():
            return RowSelection(part.index, None, part.size)
        return part


@dataclass(frozen=True)
class _EntriesOf:
    """Some entries of a vector that is a function of the point."""

    whole: PointMap[Array]
    entries: Index

    @property
    def names(self) -> tuple[Key, ...]:
        return self.whole.names

    def __call__(self, point: Point) -> Array:
        return self.whole(point)[self.entries]


def restricted_model(
    model: LatentGaussianModel, component: Component, rows: Index
) -> LatentGaussianModel:
    """Return the model of a component and its predictors, of which no other latent is part."""
    pairs = list(zip(component.blocks, component.latents, strict=True))
    whole = all(own.size == model.blocks[i].total_size for i, own in pairs)
    if whole and len(pairs) == len(model.blocks) and rows.size == model.n_rows:
        return model
    return replace(
        model,
        blocks=tuple(_restricted_block(model.blocks[i], own) for i, own in pairs),
        maps=tuple(_RowsOf(model.maps[i], rows, own) for i, own in pairs),
        offset=_RowsOf(model.offset, rows),
        n_rows=rows.size,
    )


def _restricted_block(block: LatentBlock, latents: Index) -> LatentBlock:
    """Return some pieces of a block."""
    if latents.size == block.total_size:
        return block
    mean = None if block.mean is None else _EntriesOf(block.mean, latents)
    if block.kind != "diagonal":
        copies = latents.size // block.size
        return replace(block, copies=copies, shape=(latents.size,), mean=mean)
    pull = block.scale_pullback

    def pullback(point: Point, G: Array) -> dict[str, Array]:
        assert pull is not None
        whole = np.zeros(block.total_size)
        whole[latents] = G
        return pull(point, whole)

    return replace(
        block,
        size=latents.size,
        copies=1,
        shape=(latents.size,),
        mean=mean,
        scale=_EntriesOf(block.scale, latents),
        scale_pullback=None if pull is None else pullback,
    )
