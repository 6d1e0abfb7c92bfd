"""Values that several blocks of latents read or draw in turn, and ridges of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.moves.ridges import Ridge
from pymc_augconj.point import Argument
from pymc_augconj.python_mode.tape import NoTapeError, TapeBuilder
from pymc_augconj.typing import Index

#: Columns and shapes of the values of all blocks in a row of these, by entry of the point.
Columns = Mapping[str, tuple[slice, tuple[int, ...]]]


class Shared(NamedTuple):
    """What a block reads of a row of all values; nothing where there is no other block.

    Attributes
    ----------
    size : int
        Values in a row.
    values : ndarray of int, shape (n, 2)
        Registers of all hyperparameters, which may be latents of another block, and of the values
        of the latents that means depend on; and their columns.
    latents : ndarray of int, shape (D, 2)
        Registers of the means of the latents, and columns of these.
    ridges : ndarray of int, shape (ridges + 1, 2)
        Where the values that move along each begin, and their end; and its log Jacobian.
    ends : ndarray of int, shape (m, 7)
        Of each of these values its column; the column of what is added, −1 where it is multiplied;
        the sign of its change; whether it is a logarithm, and whether what is added is one; its
        register; and the number of its latent, −1 for a hyperparameter.
    """

    size: int
    values: Index
    latents: Index
    ridges: Index
    ends: Index


def read_shared(
    chain: Chain, tape: TapeBuilder, entries: Mapping[Any, Index], order: Index, columns: Columns,
    ridges: Sequence[Ridge],
) -> Shared:  # fmt: skip
    """Return what the latents of a chain, eliminated in an order, share; nothing of no columns."""
    none, no_ends = np.empty((0, 2), dtype=np.intp), np.empty((0, 7), dtype=np.intp)
    if not columns:
        return Shared(0, none, none, none, no_ends)
    blocks, places = chain.model.blocks, np.argsort(order)
    of_means = {name for b in blocks if b.mean is not None for name in b.mean.names}
    moved: set[Any] = {end.name for ridge in ridges for end in ridge.ends}
    moved |= {Argument("value", b.name) for b in blocks if b.value_name in moved}
    if not of_means.isdisjoint(moved) or any(b.transform is not None for b in blocks):
        raise NoTapeError("means that move along ridges")
    every = {name: np.arange(own.start, own.stop) for name, (own, _) in columns.items()}
    values = {Argument("value", b.name): tape.inputs((b.total_size,)) for b in blocks}
    means = [
        np.broadcast_to(
            tape.constants(0.0) if b.mean is None else tape.evaluate(b.mean, {**entries, **values}),
            b.total_size,
        )
        for b in blocks
    ]
    latents = [every[b.value_name] for b in blocks]
    registers = [entries[h.value_name].ravel() for h in chain.model.hyperparameters]
    read = [every[h.value_name] for h in chain.model.hyperparameters]
    stops = np.cumsum([0, *(b.total_size for b in blocks)])
    numbers = {
        b.value_name: places[slice(*own)] for b, own in zip(blocks, pairwise(stops), strict=True)
    }
    ends = [_ends(ridge, every, entries, numbers) for ridge in ridges]
    begin, jacobians = np.cumsum([0, *map(len, ends)]), [r.log_jacobian for r in ridges]
    return Shared(
        max(own.stop for own, _ in columns.values()),
        np.stack(
            [np.concatenate([*registers, *values.values()]), np.concatenate([*read, *latents])],
            axis=1,
        ),
        np.stack([np.concatenate(means), np.concatenate(latents)], axis=1)[order],
        np.stack([begin, [*jacobians, 0]], axis=1),
        np.concatenate([no_ends, *ends]),
    )


def _ends(
    ridge: Ridge, columns: Mapping[str, Index], entries: Mapping[Any, Index],
    numbers: Mapping[str, Index],
) -> Index:  # fmt: skip
    """Return the values that a ridge moves, see :class:`Shared`."""
    rows, no = [np.empty((0, 7))], np.array(-1)
    for name, own, sign, other, its in ridge.ends:
        of = (no, numbers[name][own]) if name in numbers else (entries[name].ravel()[own], no)
        source = no if other is None else columns[other][its]
        fields = columns[name][own], source, sign, name in ridge.logs, other in ridge.logs, *of
        rows.append(np.stack(np.broadcast_arrays(*fields), axis=1))
    found = np.concatenate(rows).astype(np.intp)
    if np.unique(found[:, 0]).size < len(found):
        raise NoTapeError("ridges that move a value twice")
    return found
