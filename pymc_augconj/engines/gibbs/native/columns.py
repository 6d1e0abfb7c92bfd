"""Scales of single latents in the native loop: horseshoes and their kin.

Column j of Φ is a known column of X times a *gain*, the standard deviation of the latent times its
factor. Matrices are dense, as all latents meet: :mod:`.column_steps` conditions by the solver that
the Python step prefers, through the precision of weights or, of more latents than rows, the
covariance of predictors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.latents.by_gram import GramSolver
from pymc_augconj.latents.by_observations import ObservationSolver
from pymc_augconj.latents.by_weights import WeightSolver
from pymc_augconj.linalg.sparse import SparsePattern
from pymc_augconj.point import Point
from pymc_augconj.python_mode.tape import NoTapeError, TapeBuilder
from pymc_augconj.typing import Array, Index

from .entries import log_priors_by_entry, read_ridges
from .rows import Rows, Slot

#: Updates of hyperparameters, in the order of a step.
MOVES = ("prior_only", "joint", "likelihood", "collapsed")


class Columns(NamedTuple):
    """Latents that vectors of scales multiply, in their order.

    Attributes
    ----------
    X : ndarray, shape (R, D)
    gains, offset : ndarray of int
        Registers of the gain of every column, and of the offset of every row.
    theta, first : ndarray of int
        Registers of the hyperparameters of each of MOVES, and where these begin.
    inside, border : ndarray of int
        Columns of the covariance of predictors, and those of its border; none where the precision
        of weights is factorised.
    h, lam : ndarray, shape (R,)
    factor, of, h_of : ndarray of int, shape (R,)
        Sites as in :class:`.Rows`, one of every row.
    base_by, base : ndarray
        Registers and numbers, the products of which are in the log density of exact sites.
    not_exact : ndarray of int
        Rows with an ω, in the order of their numbers.
    of_theta, begin, log_prior : ndarray of int
        Entries of the vectors as in :class:`.Entries`, and their log priors.
    latents : ndarray of int
        The column that each entry scales.
    ridges : ndarray of int, shape (ridges, 5)
        As in :class:`.Entries`.
    before, Phi, L, M, z, sites, beta, eta : ndarray
        Overwritten: where a move along a ridge begins; the design; factors of the matrix and of the
        border; what is solved for; h and λ about the offset; coefficients of the border, the
        predictors.
    """

    X: Array
    gains: Index
    offset: Index
    theta: Index
    first: Index
    inside: Index
    border: Index
    h: Array
    lam: Array
    factor: Index
    of: Index
    h_of: Index
    base_by: Index
    base: Array
    not_exact: Index
    of_theta: Index
    begin: Index
    log_prior: Index
    latents: Index
    ridges: Index
    before: Array
    Phi: Array
    L: Array
    M: Array
    z: Array
    sites: Array
    beta: Array
    eta: Array


def pattern_of_columns(chain: Chain) -> SparsePattern:
    """Return the order of the latents; refuse models that need more than the loop has."""
    plan, blocks, none = chain.plan, chain.model.blocks, np.empty(0, dtype=np.intp)
    others = plan.of_blocks or plan.factors or plan.level or plan.followed or plan.left_to_pymc
    if others or plan.by_column != plan.by_entry or not chain.is_whole or chain.model.forward:
        raise NoTapeError("moves that the loop does not make")
    alike = (b.is_independent or b.is_standard for b in blocks)
    if not all(alike) or any(b.is_flat or b.transform is not None for b in blocks):
        raise NoTapeError("latents that are not independent and normal")
    part = chain.parts[0]
    solver, groups = part.solver.preferred, part.priors.groups
    if not isinstance(solver, (GramSolver, ObservationSolver, WeightSolver)):
        raise NoTapeError("another solver")
    if groups.inverse is not None or groups.coupling.rows:
        raise NoTapeError("predictors that are merged or coupled")
    size = chain.model.latent_size
    own = solver.pattern.pattern.order if isinstance(solver, GramSolver) else np.arange(size)
    return SparsePattern(size, none, none, given=own, dense=none, exact=True)


def read_columns(
    chain: Chain, point: Point, tape: TapeBuilder, entries: Mapping[Any, Index],
    slots: Sequence[Slot], offset: Index, std: Index, order: Index, sites: Rows,
    theta: Sequence[Index],
) -> Columns:  # fmt: skip
    """Return the columns in an order, of ``slots`` times ``std``, with the model's sites.

    ``theta`` has registers of the hyperparameters of each of MOVES.
    """
    plan, R, D = chain.plan, chain.model.n_rows, order.size
    X, factor, rows = np.zeros((R, D)), np.full(D, -1), np.arange(R)
    for slot in slots:
        np.add.at(X, (rows, slot.latent), slot.number)
        own = slot.number != 0.0
        at, by = slot.latent[own], slot.factor[own]
        before = factor[at]
        factor[at] = by
        if (factor[at] != by).any() or ((before >= 0) & (before != by)).any():
            raise NoTapeError("columns of several factors")
    factor = np.where(factor < 0, tape.constants(1.0), factor)
    gains = tape.apply("Mul", std, factor)
    by_row = np.argsort(sites.first)
    if sites.held or not np.array_equal(sites.first[by_row], rows) or (
        (sites.first != sites.second).any()
    ):  # fmt: skip
        raise NoTapeError("other sites than one of every row")
    members = plan.by_column
    latents = []
    starts = np.cumsum([0, *(b.total_size for b in chain.model.blocks)])
    for member in members:
        assert member.columns is not None  # see plan
        latents.append(np.argsort(order)[starts[member.columns.block] + member.columns.latents])
    of_entries = [entries[h.value_name].ravel() for h in members]
    is_border = np.zeros(D, dtype=bool)
    by_rows = isinstance(chain.parts[0].solver.preferred, ObservationSolver)
    if by_rows:
        is_border = chain.parts[0].priors.at(point).border.mask[order]
    none, no_index = np.empty(0), np.empty(0, dtype=np.intp)
    base = [np.broadcast_arrays(*own) for own in sites.base]
    n, p = R if by_rows else D, np.count_nonzero(is_border)
    return Columns(
        X=X[:, order],
        gains=gains[order],
        offset=offset,
        theta=np.concatenate(theta),
        first=np.cumsum([0, *(x.size for x in theta)]),
        inside=np.flatnonzero(~is_border) if by_rows else no_index,
        border=np.flatnonzero(is_border),
        h=sites.h[by_row].astype(float),
        lam=sites.lam[by_row].astype(float),
        factor=sites.factor[by_row],
        of=sites.of[by_row],
        h_of=sites.h_of[by_row],
        base_by=np.concatenate([no_index, *(by.ravel() for by, *_ in base)]),
        base=np.concatenate([none, *(number.ravel() for _, number in base)]),
        not_exact=sites.not_exact,
        of_theta=np.concatenate(of_entries),
        begin=np.cumsum([0, *(x.size for x in of_entries)]),
        log_prior=log_priors_by_entry(plan, tape, entries, members),
        latents=np.concatenate(latents),
        ridges=read_ridges(plan, tape, entries),
        before=np.empty(1 + max(x.size for x in of_entries)),
        Phi=np.empty((R, D)),
        L=np.empty((n, n)),
        M=np.empty((p, p)),
        z=np.empty((p + 1, n)),
        sites=np.empty((2, R)),
        beta=np.empty(p),
        eta=np.empty(R),
    )
