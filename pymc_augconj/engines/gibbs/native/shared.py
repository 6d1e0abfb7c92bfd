"""Values that several blocks of latents read or draw in turn, and ridges of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """A row of ``size`` values that blocks read and draw; empty where there is one block only.

    Attributes
    ----------
    values : ndarray of int, shape (n, 2)
        Registers of all hyperparameters, and of the latents for their means, and columns of these.
    latents : ndarray of int, shape (D, 2)
        Registers of the means of the latents, and columns of these.
    ridges : ndarray of int, shape (ridges + 1, 2)
        Where the values that move along each begin, and their end; and its log Jacobian.
    ends : ndarray of int, shape (m, 5)
        Of each of these values its column; the column of what is added, −1 where it is multiplied;
        the sign of its change; whether it is a logarithm, and whether what is added is one.
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
    none, ends = np.empty((0, 2), dtype=np.intp), [np.empty((0, 5), dtype=np.intp)]
    if not columns:
        return Shared(0, none, none, none, *ends)
    blocks, of_theta = chain.model.blocks, [h.value_name for h in chain.model.hyperparameters]
    if any(b.transform is not None or b.is_flat for b in blocks):
        raise NoTapeError("latents that are not normal, which others multiply")
    every = {name: np.arange(own.start, own.stop) for name, (own, _) in columns.items()}
    values = {Argument("value", b.name): tape.inputs((b.total_size,)) for b in blocks}
    zero, given = tape.constants(0.0), {**entries, **values}
    means = [zero if b.mean is None else tape.evaluate(b.mean, given) for b in blocks]
    means = [np.broadcast_to(m, b.total_size) for m, b in zip(means, blocks, strict=True)]
    registers = np.concatenate([*(entries[name].ravel() for name in of_theta), *values.values()])
    latents = np.concatenate([every[b.value_name] for b in blocks])
    for ridge in ridges:
        rows = []
        for name, own, sign, other, its in ridge.ends:
            source = np.array(-1) if other is None else every[other][its]
            fields = every[name][own], source, sign, name in ridge.logs, other in ridge.logs
            rows.append(np.stack(np.broadcast_arrays(*fields), axis=1))
        ends.append(np.concatenate(rows).astype(np.intp))
    begin, jacobians = np.cumsum([*map(len, ends)]), [*(r.log_jacobian for r in ridges), 0]
    return Shared(
        max(own.stop for own, _ in columns.values()),
        np.stack([registers, np.concatenate([*(every[x] for x in of_theta), latents])], axis=1),
        np.stack([np.concatenate(means), latents], axis=1)[order],
        np.stack([begin, jacobians], axis=1),
        np.concatenate(ends),
    )
