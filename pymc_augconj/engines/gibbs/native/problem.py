"""A model as the arrays that the native loop reads.

The model has independent normal latents and normal observations of known design, up to factors that
depend on θ. Its log prior, scales, coefficients and offsets are on one tape; what it sums over
observations is a polynomial of the registers, see :mod:`.sums`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.observed import SiteData
from pymc_augconj.latents.by_gram import GramSpace
from pymc_augconj.latents.by_weights import WeightSpace
from pymc_augconj.latents.diagonal import DiagonalPrior
from pymc_augconj.latents.gram_pattern import GramPattern
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.linalg.rounding import EPS, probes
from pymc_augconj.model import Argument, Point
from pymc_augconj.python_mode.tape import NoTapeError, OnTape, Registers, TapeBuilder
from pymc_augconj.typing import Array, Index

from .sums import Polynomial, SumBuilder

__all__ = ["LARGEST_CORNER", "N_CONSTANTS", "Layout", "Problem", "make_problem"]

#: Dense columns that loops eliminate.
LARGEST_CORNER = 128
#: Sums that are no entries of G or g: Σ c z o, ½ Σ c o², and log p(y | η) − (h η − ½ λ η²).
N_CONSTANTS = 3
# Entries of a row's design, of which all pairs are summed.
_MOST_IN_A_ROW = 64


class Problem(NamedTuple):
    """A model for the native loop.

    Latents are in the order of elimination, unless it says otherwise.

    Attributes
    ----------
    density, values : ndarray of int, shape (n, 5)
        Instructions for the log density of θ; and for what is recorded of θ and the latents.
    start : ndarray
        Registers.
    theta : ndarray of int, shape (p,)
        Registers of θ.
    log_prior, log_det : int
        Registers of log p(θ), and of the logarithm of the latents' scales, all multiplied.
    scales, std : ndarray of int
        Registers of the scales, each once; and of the scale of every latent.
    factors, begin, place, value : ndarray
        G, flat, g and the constants as a :class:`.Polynomial`.
    starts, rows, cols, targets, diagonal : ndarray of int
        The pattern of G, and places of its diagonal.
    border, corner : int
        Its columns that nearly all others meet; and all that are factorised as a dense matrix.
    signs : ndarray, shape (2, D)
        Random signs for estimates of rounding.
    digits : float
        Relative rounding error of a sum over observations.
    latents, outputs : ndarray of int
        Registers of the latents, and of what is recorded.
    """

    density: Index
    values: Index
    start: Array
    theta: Index
    log_prior: int
    log_det: int
    scales: Index
    std: Index
    factors: Index
    begin: Index
    place: Index
    value: Array
    starts: Index
    rows: Index
    cols: Index
    targets: Index
    diagonal: Index
    border: int
    corner: int
    signs: Array
    digits: float
    latents: Index
    outputs: Index


class Layout(NamedTuple):
    """Columns and shapes of what the loop records: entries of the point, and further values."""

    entries: dict[str, tuple[slice, tuple[int, ...]]]
    recorded: list[tuple[slice, tuple[int, ...]]] | None
    theta: tuple[str, ...]


def make_problem(
    chain: Chain, point: Point, recorded: OnTape | None = None
) -> tuple[Problem, Layout]:
    """Return a model for the native loop, and what it records.

    Parameters
    ----------
    chain : Chain
    point : mapping
        The chain's point.
    recorded : OnTape, optional
        A function of the point that is recorded too, unless it has no tape.

    Raises
    ------
    NoTapeError
        If the step of this model is Python's alone.
    """
    pattern = _pattern(chain, point)
    model, tape = chain.model, TapeBuilder()
    members = chain.plan.moves["collapsed"]
    entries: dict[Any, Index] = {h.value_name: tape.inputs(h.shape) for h in members}
    log_prior = _read(model.log_prior, tape, entries)
    std = np.concatenate([_read(b.scale, tape, entries).ravel() for b in model.blocks])
    sums = _sums(chain, point, pattern, tape, entries)
    n_density = len(tape)
    scales, counts = np.unique(std, return_counts=True)
    logs = tape.apply("Mul", tape.constants(counts), tape.apply("Log", scales))
    log_det = reduce(partial(tape.apply, "Add"), logs)
    order = pattern.pattern.order
    latents = tape.inputs((order.size,))
    theta = tuple(entries)
    registers = [entries[name].ravel() for name in theta]
    _write_values(chain, tape, entries, latents)
    outputs = {name: entries[name] for name in [*theta, *(b.value_name for b in model.blocks)]}
    further, n_all = None, len(tape)
    if recorded is not None:
        with suppress(NoTapeError):
            further = _read(recorded, tape, outputs)
            n_all = len(tape)
    every = [*outputs.values(), *(further or ())]
    stops = np.cumsum([0, *(x.size for x in every)]).tolist()
    columns = [
        (slice(first, last), x.shape)
        for first, last, x in zip(stops, stops[1:], every, strict=False)
    ]
    written = tape.finish()
    starts, rows, cols, targets = pattern.pattern.arrays
    problem = Problem(
        density=written.code[:n_density],
        values=written.code[n_density:n_all],
        start=written.start,
        theta=np.concatenate([np.empty(0, dtype=np.intp), *registers]),
        log_prior=int(log_prior),
        log_det=int(log_det),
        scales=scales,
        std=std[order],
        **sums._asdict(),
        starts=starts,
        rows=rows,
        cols=cols,
        targets=targets,
        diagonal=pattern.pattern.diagonal,
        border=pattern.pattern.border,
        corner=pattern.pattern.corner,
        signs=probes(np.ones(order.size)),
        digits=EPS * math.sqrt(model.n_rows),
        latents=latents[order],
        outputs=np.concatenate([x.ravel() for x in every]),
    )
    names = dict(zip(outputs, columns, strict=False))
    return problem, Layout(names, None if further is None else columns[len(names) :], theta)


def _pattern(chain: Chain, point: Point) -> GramPattern:
    """Return the pattern of G; refuse models that need more than the loop has."""
    plan, model = chain.plan, chain.model
    others = plan.joint, plan.likelihood, plan.prior_only, plan.of_blocks, plan.left_to_pymc
    if any(others) or plan.by_entry or plan.factors or model.forward or not chain.is_whole:
        raise NoTapeError("moves other than the collapsed one")
    if not all(data.exact for data in chain.data):
        raise NoTapeError("sites that are not exact")
    if any(b.is_flat for b in model.blocks):
        raise NoTapeError("flat latents")
    if not all(b.kind == DiagonalPrior.kind and not b.whitened for b in model.blocks):
        raise NoTapeError("latents that are not independent")
    space = chain.parts[0].space.preferred
    if isinstance(space, GramSpace):
        pattern = space.pattern
    else:
        # In weight space all latents meet.
        pattern = GramPattern(chain.priors.at(point).full_maps)
        if not (isinstance(space, WeightSpace) and pattern.pattern.size == 0):
            raise NoTapeError("another space")
    if pattern.pattern.corner > LARGEST_CORNER:
        raise NoTapeError("many latents that meet")
    return pattern


def _read(function: Any, tape: TapeBuilder, entries: Mapping[Any, Index]) -> Any:
    on_tape = getattr(function, "on_tape", None)
    if on_tape is None:
        raise NoTapeError(type(function).__name__)
    return on_tape(tape, entries)


def _write_values(
    chain: Chain, tape: TapeBuilder, entries: dict[Any, Index], latents: Index
) -> None:
    """Add the entries of the latents, of which a mean may depend on others."""
    blocks = chain.model.blocks
    stops = np.cumsum([b.total_size for b in blocks])
    for i in chain.order:
        block, value = blocks[i], latents[stops[i] - blocks[i].total_size : stops[i]]
        if block.mean is not None:
            value = tape.apply("Add", _read(block.mean, tape, entries), value)
        entries[Argument("value", block.name)] = value
        entries[block.value_name] = value.reshape(block.shape)


# -- sums over observations --------------------------------------------------------------------


class _Slot(NamedTuple):
    """An entry of the design in every row: its latent, its number and the register of a factor."""

    latent: Index
    number: Array
    factor: Index


def _sums(
    chain: Chain,
    point: Point,
    pattern: GramPattern,
    tape: TapeBuilder,
    entries: Mapping[Any, Index],
) -> Polynomial:
    """Return G, flat, g and the constants."""
    model, sums, size, n_flat = chain.model, SumBuilder(), pattern.size, pattern.pattern.n_entries
    none = tape.constants(1.0)
    slots, start = [], 0
    for block, read in zip(model.blocks, model.maps, strict=True):
        for factor, A in _read(read, tape, entries):
            slots += _slots(A, start, model.n_rows, *tape.split(factor))
        start += block.total_size
    if len(slots) > _MOST_IN_A_ROW:
        raise NoTapeError("many latents in a row")
    precision, response = _observations(chain, point, tape, entries, sums, n_flat + size)
    c, by = tape.split(precision)
    known, offset = tape.split(_read(model.offset, tape, entries))
    is_known = offset == none
    away = response - np.where(is_known, known, 0.0)
    places = np.argsort(pattern.pattern.order)
    for b, right in enumerate(slots):
        weighted = c * right.number
        own = n_flat + places[right.latent]
        sums.add((by, right.factor, none), own, weighted * away)
        sums.add((by, right.factor, offset), own, np.where(is_known, 0.0, -weighted))
        for left in slots[: b + 1]:
            met = np.flatnonzero(weighted * left.number)
            i, j = right.latent[met], left.latent[met]
            pairs, which = np.unique(i * size + j, return_inverse=True)
            place = pattern.pattern.positions(*np.divmod(pairs, size))[which]
            # The product of two entries of one latent counts twice.
            twice = 1.0 + ((i == j) & (left is not right))
            factors = by[met], right.factor[met], left.factor[met]
            sums.add(factors, place, (weighted * left.number)[met] * twice)
    constants = n_flat + size
    sums.add((by, none, offset), constants, c * known * response)
    sums.add((by, offset, offset), constants + 1, 0.5 * c * known**2)
    return sums.finish()


def _slots(A: LinearMap, start: int, n_rows: int, known: Array, factor: Index) -> list[_Slot]:
    """Return the entries of a fixed map times numbers and registers, see :class:`.BlockMap`."""
    if isinstance(A, RowSelection):
        by = np.broadcast_to(factor, (n_rows, 1))[:, 0]
        number = np.broadcast_to(known, (n_rows, 1))[:, 0]
        return [_Slot(start + A.index, number if A.coef is None else number * A.coef, by)]
    matrix, shape = known * A.dense(), (n_rows, A.size)
    by = np.broadcast_to(factor, shape)
    return [_Slot(np.full(n_rows, start + j), matrix[:, j], by[:, j]) for j in range(A.size)]


def _observations(
    chain: Chain,
    point: Point,
    tape: TapeBuilder,
    entries: Mapping[Any, Index],
    sums: SumBuilder,
    constants: int,
) -> tuple[Index, Array]:
    """Return the registers of every row's c, and its z; add log p(y | η) − (h η − ½ λ η²)."""
    none = tape.constants(1.0)
    registers, responses = [], []
    for data in chain.data:
        z, c = _as_normal(data, tape, entries)
        by = np.broadcast_to(c, z.shape)
        registers.append(by)
        responses.append(z)
        known, factor = tape.split(by)
        is_known = factor == none
        at = constants + N_CONSTANTS - 1
        sums.add((factor, none, none), at, -0.5 * known * z**2)
        log = np.where(is_known, none, tape.apply("Log", by))
        sums.add((log, none, none), at, 0.5 * np.where(is_known, np.log(known), 1.0))
        sums.add((none, none, none), at, np.array([_rest(data, point)]))
    return np.concatenate(registers), np.concatenate(responses)


def _as_normal(
    data: SiteData, tape: TapeBuilder, entries: Mapping[Any, Index]
) -> tuple[Array, Index]:
    params: dict[str, Any] = {}
    for name, index in _read(data.site.params, tape, entries).items():
        known, factor = tape.split(index)
        is_known = (factor == tape.constants(1.0)).all()
        params[name] = known if is_known else Registers(tape, index)
    found = data.site.terms.as_normal(data.y, params)
    if found is None:
        raise NoTapeError(f"observations of {data.site.name}")
    z, c = found
    return z, c.index if isinstance(c, Registers) else tape.constants(c)


def _rest(data: SiteData, point: Point) -> float:
    """Return what log p(y | η) − (h η − ½ λ η²) has besides ½ Σ log c − c z²."""
    params = data.site.params(point)
    found = data.site.terms.as_normal(data.y, params)
    assert found is not None  # see _as_normal
    z, c = found
    base = data.site.terms.log_base(data.y, None, params, data.eta, 0)
    return float(np.sum(np.broadcast_to(base, z.shape) - 0.5 * (np.log(c) - c * z**2)))
