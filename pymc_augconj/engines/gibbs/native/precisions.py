"""Latents that are not independent: flat with their prior precision in G, or whitened.

A walk, an autoregression or a map has the density exp(−½ uᵀQ u) |Q|^½ (2π)^{−n/2}. Against flat u
that is a site like those of observations, with a sparse Q. The elimination is that of Python's
precision solver in the same order, and so are its draws.

A small covariance, or a Cholesky factor, stays whitened: its root L is part of the design. Where
all latents meet, G is summed for u = L v instead, of which it has few entries, and multiplied by L,
unless that is known. So are the values of a map whose neighbours' differences have a known scale.

Latents of several blocks that are drawn in turn share the values that they read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.moves.ridges import Ridge
from pymc_augconj.latents.by_precision import PrecisionSolver
from pymc_augconj.latents.dense import FLAT_STD
from pymc_augconj.latents.precision import IntrinsicPrior
from pymc_augconj.linalg.sparse import SparsePattern
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Argument, Point
from pymc_augconj.python_mode.tape import NoTapeError, TapeBuilder
from pymc_augconj.typing import Array, Index

#: Latents with a covariance that the tape factorises.
LARGEST_ROOT = 80


class Roots(NamedTuple):
    """Roots L of blocks u = L v: from G and g of u, LᵀGL and Lᵀg are those of v.

    ``first`` has the first latent of each root and its size, ``registers`` the entries by rows.
    """

    first: Index
    registers: Index


def read_precisions(
    model: LatentGaussianModel, tape: TapeBuilder, entries: Mapping[Any, Index]
) -> tuple[Index, Index, Index, Index]:
    """Return registers, rows and columns of entries of Q of all latents in the lower triangle.

    Also that of Σ ½ log|Q| and the logarithms of the scales that stand for it.
    """
    found, start, log_peak = [np.empty((3, 0), dtype=np.intp)], 0, tape.constants(0.0)
    for block in model.blocks:
        if block.is_sparse and block.entries is not None:
            rows, cols = start + block.entries
            # The precisions of the first values of walks come after these.
            values = tape.evaluate(block.scale, entries)[: rows.size]
            found.append(np.stack([values, rows, cols])[:, rows >= cols])
            constant = block.size * (0.5 * math.log(2.0 * math.pi) + math.log(FLAT_STD))
            for term in (tape.evaluate(block.log_peak, entries), tape.constants(constant)):
                log_peak = tape.apply("Add", log_peak, term.reshape(()))
        start += block.total_size
    values, rows, cols = np.concatenate(found, axis=1)
    return values, rows, cols, log_peak


def read_scales(block: LatentBlock, tape: TapeBuilder, entries: Mapping[Any, Index]) -> Index:
    """Return the registers of a block's standard deviations in the loop."""
    if block.is_sparse or has_root(block):
        std = FLAT_STD if block.is_sparse else 1.0
        return np.full(block.total_size, tape.constants(std))
    return np.ravel(tape.evaluate(block.scale, entries))


def has_root(block: LatentBlock) -> bool:
    """Return whether the loop has whitened latents v in the place of a block's u = L v."""
    return block.is_correlated or block.is_intrinsic


def read_root(block: LatentBlock, tape: TapeBuilder, entries: Mapping[Any, Index]) -> Index | None:
    """Return the registers of L with u = L v; None where the loop has u.

    L is a lower triangle; that of an intrinsic block is any matrix, but known.
    """
    if block.is_intrinsic:
        if block.scale.names:
            raise NoTapeError("differences of neighbours whose scale is learned")
        known = IntrinsicPrior(block, block.scale({}))
        return tape.constants(known.scale(np.eye(block.size)).T)
    if not block.is_correlated:
        return None
    if block.size > LARGEST_ROOT:
        raise NoTapeError("a large covariance")
    begin, scale = len(tape), np.tril(tape.evaluate(block.scale, entries))
    # Those of entries above the diagonal.
    tape.drop(begin, scale)
    return tape.factorize(scale) if block.has_covariance else scale


def read_log_det(
    model: LatentGaussianModel, std: Index, roots: Sequence[Index | None], tape: TapeBuilder
) -> Index:
    """Return the register of Σ log √(2π) s of the latents that are not flat, with s of entries."""
    for block, root in zip(model.blocks, roots, strict=True):
        if root is not None and not block.whitened:
            pivots = np.diagonal(root)
            if block.is_intrinsic:
                log_det = np.linalg.slogdet(tape.split(root)[0])[1]
                pivots = np.full(block.size, tape.constants(math.exp(log_det / block.size)))
            std = np.append(std, np.tile(pivots, block.copies))
    is_flat = np.array([b.is_flat for b in model.blocks for _ in range(b.total_size)], dtype=bool)
    constant = tape.constants(0.5 * math.log(2.0 * math.pi) * np.count_nonzero(~is_flat))
    kept = np.append(~is_flat, np.ones(std.size - is_flat.size, dtype=bool))
    scales, counts = np.unique(std[kept], return_counts=True)
    logs = tape.apply("Mul", tape.constants(counts), tape.apply("Log", scales))
    return reduce(partial(tape.apply, "Add"), logs, constant)


def join_roots(blocks: Sequence[LatentBlock], roots: Sequence[Index | None]) -> Roots:
    """Return the roots of all blocks that are no numbers, one for every copy."""
    first, registers, start = [np.empty((0, 2), dtype=np.intp)], [np.empty(0, dtype=np.intp)], 0
    for block, root in zip(blocks, roots, strict=True):
        if root is not None and not block.is_intrinsic:
            begin = start + block.size * np.arange(block.copies)
            first.append(np.stack([begin, np.full_like(begin, block.size)], axis=1))
            registers.append(np.tile(root.ravel(), block.copies))
        start += block.total_size
    return Roots(np.concatenate(first), np.concatenate(registers))


def pattern_of_precision(chain: Chain, point: Point) -> SparsePattern:
    """Return the pattern of the sparse precision and its border, in Python's order."""
    blocks, solver = chain.model.blocks, chain.parts[0].solver.preferred
    own = PrecisionSolver.pattern(blocks, chain.priors.groups)
    if own is None or not isinstance(solver, PrecisionSolver):
        raise NoTapeError("another solver")
    stops = np.cumsum([b.total_size for b in blocks])
    numbers = [np.arange(stop - b.total_size, stop) for stop, b in zip(stops, blocks, strict=True)]
    within, outside = (
        np.concatenate([numbers[0][:0], *(numbers[i] for i in which)])
        for which in (own.within, own.outside)
    )
    rows, cols = (within[x] for x in own.met)
    given = np.append(within[own.sparsity.order], outside)
    return SparsePattern(int(stops[-1]), rows, cols, given=given, dense=outside, exact=True)


def coordinates(chain: Chain, point: Point) -> list[Array]:
    """Return every block's v in the loop, flat."""
    pairs = zip(chain.model.blocks, chain.whitened(point), chain.innovations(point), strict=True)
    return [u / FLAT_STD if b.is_sparse else v for b, v, u in pairs]


#: Columns and shapes of the values of all blocks in a row of these, by entry of the point.
Spans = Mapping[str, tuple[slice, tuple[int, ...]]]


def columns_of(shapes: Sequence[tuple[int, ...]]) -> list[tuple[slice, tuple[int, ...]]]:
    """Return columns and shapes of arrays of some shapes, one after the other."""
    stops = np.cumsum([0, *map(math.prod, shapes)]).tolist()
    return [(slice(*own), shape) for own, shape in zip(pairwise(stops), shapes, strict=True)]


class Shared(NamedTuple):
    """A row of ``size`` values that blocks read and draw; empty where there is one block only.

    Attributes
    ----------
    values : ndarray of int, shape (n, 2)
        Registers of all hyperparameters, and of the latents for their means, and columns of these.
    latents : ndarray of int, shape (D, 2)
        Registers of the means of the latents, and columns of these.
    roots : ndarray of int, shape (entries, 3)
        Entries of the roots L, or standard deviations, row by row with the diagonal last: the
        latents of the row and the column, and a register.
    ridges : ndarray of int, shape (ridges + 1, 2)
        Where the values that move along each begin, and their end; and its log Jacobian.
    ends : ndarray of int, shape (m, 5)
        Of each of these values its column; the column of what is added, −1 where it is multiplied;
        the sign of its change; whether it is a logarithm, and whether what is added is one.
    """

    size: int
    values: Index
    latents: Index
    roots: Index
    ridges: Index
    ends: Index


def read_shared(
    chain: Chain, tape: TapeBuilder, entries: Mapping[Any, Index], order: Index, std: Index,
    roots: Sequence[Index | None], columns: Spans, ridges: Sequence[Ridge],
) -> Shared:  # fmt: skip
    """Return what the latents of a chain, eliminated in an order, share; nothing of no columns.

    ``std`` are the registers of their scales in their own order, and ``roots`` those of blocks.
    """
    none, ends = np.empty((0, 2), dtype=np.intp), [np.empty((0, 5), dtype=np.intp)]
    if not columns:
        return Shared(0, none, none, np.empty((0, 3), dtype=np.intp), none, *ends)
    blocks, of_theta = chain.model.blocks, [h.value_name for h in chain.model.hyperparameters]
    if any(b.transform is not None or b.is_flat for b in blocks):
        raise NoTapeError("latents that are not normal, which others multiply")
    if any(h.factor_order for h in chain.model.hyperparameters):
        raise NoTapeError("values that are not coordinates")
    needs = {name for b in blocks if b.mean is not None for name in b.mean.names}
    if any(b.whitened and Argument("value", b.name) in needs for b in blocks):
        raise NoTapeError("means that depend on latents whose whitened values are shared")
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
        _entries_of_roots(blocks, roots, std, order),
        np.stack([begin, jacobians], axis=1),
        np.concatenate(ends),
    )


def _entries_of_roots(
    blocks: Sequence[LatentBlock], roots: Sequence[Index | None], std: Index, order: Index
) -> Index:
    found, stops = list[Index](), np.cumsum([b.total_size for b in blocks])[:-1]
    places, scales = (np.split(x, stops) for x in (np.argsort(order), std))
    for block, root, own, scale in zip(blocks, roots, places, scales, strict=True):
        # The values of a whitened block are v.
        L = scale.reshape(-1, 1, 1) if root is None or block.whitened else root
        row, col = np.tril_indices(L.shape[-1])
        copies = own.reshape(-1, L.shape[-1])
        fields = np.broadcast_arrays(copies[:, row], copies[:, col], L[..., row, col])
        found.append(np.stack(fields, axis=-1).reshape(-1, 3))
    return np.concatenate(found)
