"""Vectors whose entries are independent given the latents, as the native loop reads them.

What their log density is made of belongs to one entry each: terms of the log prior, latents whose
scales depend on it, and rows. That is read off the tape, by the entries that registers depend on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.model import Hyperparameter
from pymc_augconj.plan import Plan
from pymc_augconj.point import Point
from pymc_augconj.python_mode.tape import NoTapeError, Registers, TapeBuilder, registers_of
from pymc_augconj.typing import Array, Index, Mask

from .row_tapes import RowTapes, join, read_row_tape
from .rows import Slot, read_params

_NONE, _SEVERAL = -1, -2


class Design(NamedTuple):
    """Predictors of some rows in terms of u.

    Attributes
    ----------
    offsets : ndarray of int
        Registers of the offsets.
    columns, numbers, multiples : ndarray, shape (most entries, rows)
        The entries of every row: latents, numbers, and registers by which these are multiplied.
        Numbers are zero where there are fewer.
    shared : ndarray of int, shape (most entries, 2)
        Whether all rows have the same latent, and the same register.
    """

    offsets: Index
    columns: Index
    numbers: Array
    multiples: Index
    shared: Index


class Entries(NamedTuple):
    """Vectors that are updated by entry.

    Attributes
    ----------
    of_theta, begin : ndarray of int
        Registers of all entries, and where those of each vector begin.
    log_prior : ndarray of int
        Registers of the terms of the log prior that depend on every entry, added up.
    by_latent, by_row : ndarray of int, shape (vectors, count)
        The entry that each depends on, −1 where there is none. Flat latents have none.
    predicted : Design
        Of all rows of observed variables that depend on an entry.
    densities : RowTapes
        Their log densities, in the file of which these are computed.
    coefs, eta : ndarray
        Overwritten: entries of that design, and the predictors.
    ridges : ndarray of int, shape (ridges, 5)
        Of each :class:`.EntryRidge` the register of h, the number of the vector, the sign, whether
        it scales, and the register of c.
    before, value : ndarray
        Overwritten: where a move along a ridge begins, and log densities of entries.
    """

    of_theta: Index
    begin: Index
    log_prior: Index
    by_latent: Index
    by_row: Index
    predicted: Design
    densities: RowTapes
    coefs: Array
    eta: Array
    ridges: Index
    before: Array
    value: Array


def make_design(slots: Sequence[Slot], own: Index, places: Index, offset: Index) -> Design:
    """Return the design of the rows ``own``, with latents at other ``places``."""
    numbers = np.stack([slot.number[own] for slot in slots])
    columns = np.stack([places[slot.latent[own]] for slot in slots])
    multiples = np.stack([slot.factor[own] for slot in slots])
    met = numbers != 0.0
    if (most := met.sum(axis=0).max(initial=0)) < len(slots):
        # Those that are zero last.
        by_row = np.argsort(~met, axis=0, kind="stable")[:most]
        numbers = np.take_along_axis(numbers, by_row, axis=0)
        columns = np.take_along_axis(columns, by_row, axis=0)
        multiples = np.take_along_axis(multiples, by_row, axis=0)
    shared = [[(x == x[:1]).all() for x in each] for each in zip(columns, multiples, strict=True)]
    return Design(
        offset[own], columns, numbers, multiples, np.array(shared, dtype=np.intp).reshape(-1, 2)
    )


def read_entries(
    chain: Chain, point: Point, tape: TapeBuilder, entries: Mapping[Any, Index],
    slots: Sequence[Slot], offset: Index, std: Index, order: Index,
) -> Entries:  # fmt: skip
    """Return the vectors that the plan updates by entry; ``std`` are registers of scales."""
    plan, model, none = chain.plan, chain.model, np.empty(0, dtype=np.intp)
    own = [entries[h.value_name].ravel() for h in plan.by_entry]
    log_prior = log_priors_by_entry(plan, tape, entries, plan.by_entry)
    params = [read_params(data, tape, entries) if own else {} for data in chain.data]
    owners = [_owners(tape, registers) for registers in own]
    is_flat = np.repeat([b.is_flat for b in model.blocks], [b.total_size for b in model.blocks])
    by_latent = [np.where(is_flat, _NONE, owner[std])[order] for owner in owners]
    rows, by_row, tapes = [none], [np.empty((len(own), 0), dtype=np.intp)], []
    for data, known in zip(chain.data, params, strict=True):
        (row, *more), size = data.site.row_numbers, data.y.size
        index = [x.index for x in known.values() if isinstance(x, Registers)]
        read = [np.broadcast_to(x, (size,)) for x in index if x.size in (1, size)]
        read += [np.where(s.number[row] != 0.0, s.factor[row], 0) for s in slots]
        by = [_combined(owner, [*read, offset[row]]) for owner in owners]
        if all((found == _NONE).all() for found in by):
            continue
        if more or any(x.size not in (1, size) for x in index):
            raise NoTapeError("entries of several predictors")
        rows.append(row)
        by_row.append(np.array(by))
        tapes.append(read_row_tape(data, known, data.site.params(point), tape))
    at, of_row = np.concatenate(rows), np.concatenate(by_row, axis=1)
    of_latent = np.array(by_latent, dtype=np.intp).reshape(len(own), order.size)
    if (of_latent == _SEVERAL).any() or (of_row == _SEVERAL).any():
        raise NoTapeError("entries that a register hides")
    design = make_design(slots, at, np.argsort(order), offset)
    ridges = read_ridges(plan, tape, entries)
    for of_h, number, *_ in ridges:
        met = _owners(tape, np.array([of_h])) != _NONE
        # Densities of entries are all that a move computes beside the prior.
        of_data = np.full(model.n_rows, _NONE)
        of_data[at] = of_row[number]
        alone = (~is_flat & met[std])[order] & (of_latent[number] == _NONE)
        for data, known in zip(chain.data, params, strict=True):
            predicted = np.array(data.site.row_numbers)
            found = _meets(met, predicted, known, slots, offset) & (of_data[predicted[0]] == _NONE)
            alone = np.append(alone, found)
        if alone.any():
            raise NoTapeError("moves that the loop does not make")
    largest = max((x.size for x in own), default=0)
    return Entries(
        np.concatenate([none, *own]),
        np.cumsum([0, *(x.size for x in own)]),
        log_prior,
        of_latent,
        of_row,
        design,
        join(tapes),
        np.empty(design.numbers.shape),
        np.empty((1, at.size)),
        ridges,
        np.empty(1 + largest),
        np.empty(largest),
    )


def read_ridges(plan: Plan, tape: TapeBuilder, entries: Mapping[Any, Index]) -> Index:
    """Return the ridges of vectors, see :class:`Entries`."""
    names, found = [h.value_name for h in plan.by_entry], []
    for r in plan.ridges.values():
        h, c = (entries[x[0]].flat[x[1]] if x else tape.constants(0.0) for x in (r.h, r.beside))
        found.append((int(h), names.index(r.vector), r.sign, r.scales, int(c)))
    return np.array(found, dtype=np.intp).reshape(-1, 5)


def _meets(
    met: Mask, rows: Index, params: Mapping[str, Any], slots: Sequence[Slot], offset: Index
) -> Mask:
    """Return whether observations, of rows (P, N), depend on one of the registers ``met``."""
    found = met[offset[rows]].any(axis=0)
    for slot in slots:
        found |= ((slot.number[rows] != 0.0) & met[slot.factor[rows]]).any(axis=0)
    for index in (x.index for x in params.values() if isinstance(x, Registers)):
        found |= met[index] if index.size in (1, found.size) else met[index].any()
    return found


def log_priors_by_entry(
    plan: Plan, tape: TapeBuilder, entries: Mapping[Any, Index], members: Sequence[Hyperparameter]
) -> Index:
    """Return registers of the log prior that depends on every entry of some vectors."""
    found = []
    for h in members:
        terms = [x.ravel() for x in tape.evaluate(plan.densities_of(h).priors, entries)]
        own, term = entries[h.value_name].ravel(), np.concatenate(terms)
        owner = _owners(tape, own)[term]
        of_entry = [term[owner == i] for i in range(own.size)]
        found += [reduce(partial(tape.apply, "Add"), x) for x in of_entry]
    return np.array(found, dtype=np.intp)


def _owners(tape: TapeBuilder, own: Index) -> Index:
    """Return the entry of ``own`` that each register depends on."""
    code, start = tape.finish()
    owner = [_NONE] * start.size
    for entry, register in enumerate(own.tolist()):
        owner[register] = entry
    for row in code.tolist():
        written, read = registers_of(row)
        found = {owner[x] for x in read} - {_NONE}
        of_all = found.pop() if len(found) == 1 else _SEVERAL if found else _NONE
        for to in written:
            owner[to] = of_all
    return np.array(owner)


def _combined(owner: Index, index: Sequence[Index]) -> Index:
    """Return the one entry that any of some registers of every row depend on."""
    each = np.stack([owner[x] for x in index])
    largest = each.max(axis=0)
    return np.where(((each != _NONE) & (each != largest)).any(axis=0), _SEVERAL, largest)
