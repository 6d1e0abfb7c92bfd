"""A model as the arrays that the native loop reads.

The model has normal latents and a known design, up to factors that depend on θ; those that are not
independent are in :mod:`.precisions`. Its log prior, scales, coefficients and offsets are on one
tape; what it sums over observations is a polynomial of the registers, see :mod:`.rows`, which also
has their sites.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.coordinates import values_on_tape
from pymc_augconj.engines.gibbs.moves.given_latents import find_levels
from pymc_augconj.engines.gibbs.moves.ridges import Ridge
from pymc_augconj.engines.gibbs.observed import Held
from pymc_augconj.latents.by_gram import GramPattern, GramSolver, can_sum_out, whitened_parts
from pymc_augconj.latents.by_weights import WeightSolver
from pymc_augconj.linalg.dense import EPS, probes
from pymc_augconj.linalg.sparse import SparsePattern
from pymc_augconj.model import Hyperparameter
from pymc_augconj.plan import BY_ENTRY, Plan
from pymc_augconj.point import Argument, Point
from pymc_augconj.python_mode.tape import NoTapeError, TapeBuilder, depending, in_runs
from pymc_augconj.typing import Array, Index

from .columns import MOVES as MOVES_OF_COLUMNS
from .columns import Columns, pattern_of_columns, read_columns
from .entries import Design, Entries, make_design, read_entries
from .precisions import (
    Roots,
    Shared,
    Spans,
    columns_of,
    has_root,
    join_roots,
    pattern_of_precision,
    read_log_det,
    read_precisions,
    read_root,
    read_scales,
    read_shared,
)
from .row_tapes import RowTapes, join
from .rows import Drawn, Polynomial, Rows, Slot, SumBuilder, read_rows, read_slots

#: Updates of hyperparameters that the loop makes.
MOVES = ("collapsed", "likelihood", "level", "prior_only")
#: Dense columns that loops eliminate.
LARGEST_CORNER = 128
#: Log density, log evidence and evaluations of a step; elliptical slices of latents, evaluations
#: that these took, and r.
N_STATS = 6
# Products of two entries of the design in a row, which are kept where λ changes: matrix products
# take less time and memory.
_MOST_PRODUCTS = 1e7
#: Sums that are no entries of G or g: Σ c z o, ½ Σ c o², log p(y | η) − (h η − ½ λ η²), and a bound
#: of the terms that the last adds up.
N_CONSTANTS = 4


class Problem(NamedTuple):
    """A model for the native loop.

    Latents are in the order of elimination, unless it says otherwise. Those that are not
    independent are flat, with their prior precision in G.

    Attributes
    ----------
    density, values : ndarray of int, shape (n, 5)
        Instructions for the log density of θ; and for what is recorded of θ and the latents.
    of_likelihood : ndarray of int
        The instructions for the first that ``likelihood`` changes.
    start : ndarray
        Registers.
    theta, likelihood, prior_only : ndarray of int
        Registers of θ that are updated with the latents integrated out, and given the latents; and
        of those that only others of θ depend on.
    log_prior, log_det : int
        Registers of log p(θ); and of minus the log density of the latents where those that are
        normal are zero, with the log Jacobians of transforms, which is a value.
    log_flat : float
        See :attr:`.LatentPrior.log_flat`.
    scales, std : ndarray of int
        Registers of the scales, each once; and of the scale of every latent.
    sums : Polynomial
        G, flat, g and the constants.
    roots : Roots
        Those by which G and g are multiplied.
    moves_predictors, moves_sites : bool
        Whether predictors depend on ``likelihood``, and held sites on ``theta``.
    drawn, sites
        Observations that have an ω, see :class:`.Rows`.
    design : Design
        Predictors of rows with an ω, and then of those with held sites.
    held : RowTapes
        Log densities of held sites.
    level : ndarray of int
        Registers of those of ``likelihood`` that a level moves against.
    levels : ndarray of int, shape (levels, 3)
        Of each the register of log r, and its rows of ``design``; see :class:`.Level`.
    starts, rows, cols, runs, diagonal : ndarray of int
        The pattern of G, and places of its diagonal.
    border, corner : int
        Its columns that nearly all others meet; and all that are factorised as a dense matrix.
    signs : ndarray, shape (2, D)
        Random signs for estimates of rounding.
    digits : float
        Relative rounding error of a sum over observations.
    latents, outputs : ndarray of int
        Registers of the latents, and of what is recorded.
    shared : Shared
        What it reads of other blocks of latents.
    """

    density: Index
    of_likelihood: Index
    values: Index
    start: Array
    theta: Index
    likelihood: Index
    prior_only: Index
    log_prior: int
    log_det: int
    log_flat: float
    scales: Index
    std: Index
    sums: Polynomial
    roots: Roots
    moves_predictors: bool
    moves_sites: bool
    drawn: Drawn
    sites: Index
    design: Design
    held: RowTapes
    level: Index
    levels: Index
    starts: Index
    rows: Index
    cols: Index
    runs: Index
    diagonal: Index
    border: int
    corner: int
    signs: Array
    digits: float
    latents: Index
    outputs: Index
    shared: Shared


class Layout(NamedTuple):
    """Columns and shapes of what the loop records, entries of the point.

    ``members`` are the hyperparameters of each update, ``order`` is that of elimination.
    """

    entries: dict[str, tuple[slice, tuple[int, ...]]]
    members: dict[str, tuple[Hyperparameter, ...]]
    order: Index


def make_problem(
    chain: Chain, point: Point, change: Callable[[Rows], Rows] = lambda rows: rows,
    columns: Spans | None = None, ridges: Sequence[Ridge] = (),
) -> tuple[Problem, Entries | Columns, Layout]:  # fmt: skip
    """Return a model for the native loop, its vectors by entry or column, and what is recorded.

    ``point`` is that of the chain, and ``change`` is applied to its sites. ``columns`` are those of
    values of several chains, if others draw some, and values of them move along ``ridges``. Raises
    NoTapeError if the step of this model is Python's alone.
    """
    model, tape = chain.model, TapeBuilder()
    plan, by_column = chain.plan, bool(chain.plan.by_column and not columns)
    pattern = pattern_of_columns(chain) if by_column else _pattern(chain, point, not columns)
    inputs = {h.value_name: tape.inputs(h.shape) for h in model.hyperparameters}
    entries, jacobians = values_on_tape(tape, model.hyperparameters, inputs)
    add: Callable[[Index, Index], Index] = partial(tape.apply, "Add")
    begin, log_prior = len(tape), tape.evaluate(model.log_prior, entries)
    # What covariances have above the diagonal.
    tape.drop(begin, log_prior)
    log_prior = reduce(add, jacobians, log_prior)
    every = [read_scales(b, tape, entries) for b in model.blocks]
    std = np.concatenate([np.empty(0, dtype=np.intp), *every])
    roots = [read_root(b, tape, entries) for b in model.blocks]
    slots, of_sums = read_slots(model, tape, entries, roots, any_number=by_column)
    given: Sequence[Index | None] = roots
    all_meet = pattern.corner == pattern.size
    if not (all_meet and np.array_equal(pattern.order, np.arange(pattern.size))):
        # Roots multiply consecutive rows and columns of a dense G.
        given, of_sums = [None] * len(roots), slots
    sites = change(read_rows(chain, point, tape, entries))
    offset = tape.evaluate(model.offset, entries)
    levels = _levels(chain, sites, tape, entries)
    order, of_point = pattern.order, (chain, point, tape, entries)
    by_entry: Entries | Columns
    if by_column:
        sums = SumBuilder().finish()
        theta = [_flat(inputs, plan.moves[move]) for move in MOVES_OF_COLUMNS]
        by_entry = read_columns(*of_point, slots, offset, std, order, sites, theta)
    else:
        sums = _sums(pattern, sites, of_sums, offset, tape, read_precisions(model, tape, entries))
        by_entry = read_entries(*of_point, slots, offset, std, order)
    shared = read_shared(chain, tape, entries, order, std, roots, columns or {}, ridges)
    n_density = len(tape)
    # The model's log density is that of values.
    log_det = reduce(add, jacobians, read_log_det(model, std, roots, tape))
    latents = tape.inputs((order.size,))
    layout = make_layout(plan, model.blocks, order)
    own = layout.members
    log_det = _write_values(chain, tape, entries, latents, log_det, roots)
    written = tape.finish()
    starts, rows, cols, runs = pattern.arrays
    likelihood = _flat(inputs, own["likelihood"])
    density, values = np.split(written.code, [n_density])
    codes, start = in_runs(written, [density, depending(density, likelihood), values])
    problem = Problem(
        density=codes[0],
        of_likelihood=codes[1],
        values=codes[2],
        start=start,
        theta=_flat(inputs, own["collapsed"]),
        likelihood=likelihood,
        prior_only=_flat(inputs, own["prior_only"]),
        log_prior=int(log_prior),
        log_det=int(log_det),
        log_flat=chain.priors.at(point).log_flat,
        scales=np.unique(std),
        std=std[order],
        sums=sums,
        roots=join_roots(model.blocks, given),
        moves_predictors=any(h.value_name in chain.priors.names for h in own["likelihood"]),
        moves_sites=bool(plan.followed),
        drawn=sites.drawn,
        sites=sites.sites,
        design=make_design(slots, sites.not_exact, np.argsort(order), offset),
        held=join(sites.held),
        level=_flat(inputs, own["level"]),
        levels=levels,
        starts=starts,
        rows=rows,
        cols=cols,
        runs=runs,
        diagonal=pattern.diagonal,
        border=pattern.border,
        corner=pattern.corner,
        signs=probes(np.ones(order.size)),
        digits=EPS * math.sqrt(model.n_rows),
        latents=latents[order],
        outputs=np.concatenate([entries[name].ravel() for name in layout.entries]),
        shared=shared,
    )
    return _contiguous(problem), _contiguous(by_entry), layout


def make_layout(plan: Plan, blocks: Sequence[LatentBlock], order: Index) -> Layout:
    """Return the layout of all that a plan updates, and of blocks."""
    every: list[Hyperparameter | LatentBlock] = [*plan.updated, *blocks]
    columns = columns_of([one.shape for one in every])
    moves = plan.moves | {BY_ENTRY: plan.by_entry}
    entries = dict(zip([one.value_name for one in every], columns, strict=True))
    return Layout(entries, moves, order)


def _contiguous(record: Any) -> Any:
    """Return the record with arrays that are contiguous and can be written to.

    So the loop is compiled once for all models.
    """
    if isinstance(record, tuple):
        return type(record)(*map(_contiguous, record))
    return np.array(record, order="C") if isinstance(record, np.ndarray) else record


def _levels(chain: Chain, sites: Rows, tape: TapeBuilder, entries: dict[Any, Index]) -> Index:
    """Return the parameters that levels move against; refuse those of sites with an ω."""
    found, own = [], [data for data in chain.data if not data.exact]
    rows: dict[str, list[int]] = {}
    stops = sites.sites.tolist()
    for data in sorted(own, key=lambda data: isinstance(data.how, Held)):
        if isinstance(data.how, Held):
            stops.append(stops[-1] + data.site.row_numbers.size)
        rows[data.site.name] = stops[len(rows) : len(rows) + 2]
    for level in find_levels(chain.parts, {h.value_name for h in chain.plan.level}):
        site = level.data.site
        if not level.are_cutpoints or len(own) < len(chain.data):
            raise NoTapeError("moves that the loop does not make")
        params = tape.evaluate(site.params, entries)
        cutpoints = np.concatenate([params[name].ravel() for name in level.parameters])
        total = reduce(partial(tape.apply, "Add"), cutpoints)
        log_parameter = tape.apply("TrueDiv", total, tape.constants(-float(cutpoints.size)))
        found.append((log_parameter.item(), *rows[site.name]))
    return np.array(found, dtype=np.intp).reshape(-1, 3)


def _pattern(chain: Chain, point: Point, is_alone: bool) -> SparsePattern:
    """Return the pattern of G; refuse models that need more than the loop has."""
    plan, model = chain.plan, chain.model
    others = plan.joint, plan.of_blocks, is_alone and plan.left_to_pymc
    of_likelihood = {h.value_name for h in plan.likelihood}
    scales = [name for b in model.blocks for name in b.scale.names]
    exact = [name for data in chain.data if data.exact for name in data.site.params.names]
    if any(data.exact for data in chain.data):
        # The loop has no density of exact sites given the latents.
        exact += chain.priors.names
    moving = not of_likelihood.isdisjoint([*scales, *exact])
    # Those drawn forward are drawn after a block of steps of all latents.
    is_left = model.forward and not is_alone
    further = plan.by_column or plan.factors or is_left
    # Updates by entry change neither means nor covariances of latents.
    scaled = [b.scale for b in model.blocks if has_root(b) or b.is_sparse]
    kept = [b.mean for b in model.blocks if b.mean] + scaled
    by_entry = {*(h.value_name for h in plan.by_entry), *(r.h[0] for r in plan.ridges.values())}
    of_held = [n for d in chain.data if isinstance(d.how, Held) for n in d.site.params.names]
    of_prior = {h.value_name for h in plan.collapsed if h not in plan.followed}
    moving |= not of_prior.isdisjoint(of_held)
    moving |= any(not by_entry.isdisjoint(own.names) for own in kept)
    is_whole = chain.is_whole or not (model.blocks or model.sites)
    if any(others) or moving or further or not is_whole:
        raise NoTapeError("moves that the loop does not make")
    structured = [b for b in model.blocks if b.is_sparse]
    rooted = [b for b in model.blocks if has_root(b)]
    known = [b for b in model.blocks if b.is_independent or b.is_standard]
    is_intrinsic = any(b.is_intrinsic for b in rooted)
    if len(structured) + len(rooted) + len(known) < len(model.blocks):
        raise NoTapeError("latents that are not independent")
    # These are for latents that are standard normal, or that a triangular root multiplies.
    standard = plan.level, not is_alone, any(not b.log_peak for b in structured)
    if sum([any(standard), bool(structured), is_intrinsic]) > 1:
        raise NoTapeError("moves that the loop does not make")
    if not model.blocks:
        return SparsePattern(0, *np.empty((2, 0), dtype=np.intp))
    find = pattern_of_precision if structured else _pattern_of_gram
    pattern = find(chain, point)
    if pattern.corner > LARGEST_CORNER:
        raise NoTapeError("many latents that meet")
    return pattern


def _pattern_of_gram(chain: Chain, point: Point) -> SparsePattern:
    """Return the pattern of G of independent latents."""
    solver, maps = chain.parts[0].solver.preferred, chain.priors.at(point).full_maps
    # Sites of vectors couple rows: it is all latents that meet.
    coupled = chain.priors.groups.coupling.first.size > 0
    if can_sum_out(chain.model.blocks, maps):
        maps = tuple(whitened_parts(chain.model.blocks, maps))
    if isinstance(solver, GramSolver):
        pattern = solver.pattern.pattern
    else:
        # Those with one covariance do, by its root.
        coupled |= any(map(has_root, chain.model.blocks))
        pattern = GramPattern(maps).pattern
        all_meet = coupled or pattern.corner == pattern.size
        if not (isinstance(solver, WeightSolver) and all_meet):
            raise NoTapeError("another solver")
        # In the precision of weights all latents meet.
        none, every = np.empty(0, dtype=np.intp), np.arange(pattern.size)
        pattern = SparsePattern(pattern.size, none, none, dense=every)
    # Python's calls take as long for a small dense matrix. In the same order L is the same.
    sparse = GramPattern(maps, small=0).pattern
    if not coupled and np.array_equal(sparse.order, pattern.order):
        pattern = sparse
    return pattern


def _flat(inputs: dict[str, Index], members: Sequence[Hyperparameter]) -> Index:
    own = (inputs[h.value_name].ravel() for h in members)
    return np.concatenate([np.empty(0, dtype=np.intp), *own])


def _write_values(
    chain: Chain, tape: TapeBuilder, entries: dict[Any, Index], latents: Index, log_det: Index,
    roots: Sequence[Index | None],
) -> Index:  # fmt: skip
    """Add the entries of the latents, of which a mean may depend on others.

    Returns ``log_det`` less the logarithms of the Jacobians of transforms.
    """
    blocks = chain.model.blocks
    stops = np.cumsum([b.total_size for b in blocks])
    for i in chain.order:
        block, root = blocks[i], roots[i]
        value = v = latents[stops[i] - block.total_size : stops[i]]
        if root is not None:
            terms = tape.apply("Mul", root, v.reshape(-1, 1, block.size))
            value = reduce(partial(tape.apply, "Add"), np.moveaxis(terms, 2, 0)).ravel()
        if block.mean is not None:
            value = tape.apply("Add", tape.evaluate(block.mean, entries), value)
        entries[Argument("value", block.name)] = value
        if block.transform is not None:
            value, jacobian = block.transform.on_tape(tape, value)
            log_det = tape.apply("Sub", log_det, jacobian)
        entries[block.value_name] = (v if block.whitened else value).reshape(block.shape)
    return log_det


def _sums(
    pattern: SparsePattern, rows: Rows, slots: list[Slot], offset: Index, tape: TapeBuilder,
    precisions: tuple[Index, ...],
) -> Polynomial:  # fmt: skip
    """Return G, flat, with entries of Q; g and the constants."""
    sums, size, n_flat = SumBuilder(), pattern.size, pattern.n_flat
    none = tape.constants(1.0)
    known, by = tape.split(offset)
    places = np.argsort(pattern.order)
    first, second = rows.first, rows.second
    if len(slots) ** 2 * np.count_nonzero(rows.of >= 0) > _MOST_PRODUCTS:
        raise NoTapeError("many products of the design with auxiliary variables")
    for left in slots:
        i, a, by_left = left.latent[first], left.number[first], left.factor[first]
        own, weighted = n_flat + places[i], rows.lam * a
        sums.add((rows.factor, by_left, none), own, rows.h * a, rows.h_of)
        sums.add((rows.factor, by_left, by[second]), own, -weighted * known[second], rows.of)
        for right in slots:
            j, product = right.latent[second], weighted * right.number[second]
            # G is symmetric.
            met = np.flatnonzero((product != 0.0) & (i >= j))
            pairs, which = np.unique(i[met] * size + j[met], return_inverse=True)
            place = pattern.positions(*np.divmod(pairs, size))[which]
            factors = rows.factor[met], by_left[met], right.factor[second[met]]
            sums.add(factors, place, product[met], rows.of[met])
    entries, *places_of_q, log_peak = precisions
    number, of_q = tape.split(entries)
    sums.add((of_q, none, none), pattern.positions(*places_of_q), number)
    constants = n_flat + size
    sums.add((log_peak, none, none), constants, np.array(number.size > 0))
    for at, parts in ((constants + 2, rows.base), (constants + 3, rows.bounds)):
        for register, *value in parts:
            sums.add((register, none, none), at, *value)
    sums.add((rows.factor, none, by[first]), constants, rows.h * known[first], rows.h_of)
    square = 0.5 * rows.lam * known[first] * known[second]
    sums.add((rows.factor, by[first], by[second]), constants + 1, square, rows.of)
    return sums.finish()
