"""Log densities of held sites as tapes of rows, see :func:`.run_rows`.

A likelihood's own formula is called with registers in place of y, η and the parameters. Its
instructions are in three parts: what depends on y and known parameters alone, on θ too, and on η.
Those of the second part that have few arguments in all rows are on the model's tape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pymc_augconj.engines.gibbs.observed import SiteData
from pymc_augconj.python_mode.tape import NAMES, NoTapeError, Registers, TapeBuilder
from pymc_augconj.typing import Array, Index

# Predictors at which a tape is compared with the formula, and how far they may differ.
_TRIED, _RELATIVE = (0.0, 0.4, -0.4, 1.5, -1.5), 1e-9
# Rows an argument from which an instruction is done once for all rows that have the same ones.
_MANY = 8


class RowTape(NamedTuple):
    """The log density of one observed variable.

    Attributes
    ----------
    code : ndarray of int, shape (n, 5)
    parts : tuple of int
        Where the second and the third part of the instructions begin.
    start : ndarray
        Registers, NaN where they are not constant.
    places : ndarray of int, shape (count,)
        Registers that are to be filled: with y, parameters and what depends on these.
    inputs : ndarray of int, shape (count, N)
        Registers of the model's tape that have these, of every row.
    eta, n_predictors, value : int
        The first register of η and their number, and that of the log density.
    """

    code: Index
    parts: tuple[int, int]
    start: Array
    places: Index
    inputs: Index
    eta: int
    n_predictors: int
    value: int


class RowTapes(NamedTuple):
    """The log densities of several variables.

    Attributes
    ----------
    row_code : ndarray of int, shape (n, 5)
    tables : ndarray of int, shape (variables, 11)
        First and last predictor, first register and number of registers in ``file``, bounds of the
        parts of the code, where η and the log density begin in ``file``, and the predictors of
        each observation.
    file : ndarray
        A register for each observation of the variable, one register after the other.
    given, given_by : ndarray of int
        Entries of ``file`` that have y and parameters, and registers of the model's tape.
    """

    row_code: Index
    tables: Index
    file: Array
    given: Index
    given_by: Index


def read_row_tape(
    data: SiteData, params: Mapping[str, Any], values: Mapping[str, Array], tape: TapeBuilder
) -> RowTape:
    """Return the log density of an observed variable.

    ``params`` are numbers, or registers of the model's ``tape``, with the present ``values``.
    Raises NoTapeError if its formula cannot be written on a tape.
    """
    (count, size), own = data.site.shape, TapeBuilder(of_rows=True)
    likelihood: Any = data.site.likelihood  # called with registers in place of arrays
    sizes = [x.size for x in (data.y, *params.values())]
    if not {1, size}.issuperset(sizes):
        raise NoTapeError("observations of several values")
    y, *symbols = (Registers(own, own.inputs((1,))) for _ in sizes)
    eta = Registers(own, own.inputs((count, 1)))
    given = [tape.constants(data.y)]
    given += [x.index if isinstance(x, Registers) else tape.constants(x) for x in params.values()]
    inputs = np.stack([np.broadcast_to(x, (size,)) for x in given])
    try:
        (value,) = likelihood.log_density(y, eta, dict(zip(params, symbols, strict=True))).index
    except Exception as error:
        # A formula may call anything.
        raise NoTapeError(f"the density of {data.site.name}: {error}") from error
    is_known = [not isinstance(x, Registers) for x in params.values()]
    levels = [0, *(1 - known for known in is_known), *[2] * count]
    code, parts, start = _in_parts(own, levels)
    places = np.arange(1, 1 + len(inputs))
    found = RowTape(code, parts, start, places, inputs, int(eta.index[0, 0]), count, int(value))
    _check(found, data, values)
    known = dict(zip(places.tolist(), (data.y, *params.values()), strict=True))
    known = {i: x for i, x in known.items() if not isinstance(x, Registers)}
    return _shortened(found, known, tape)


def _shortened(found: RowTape, known: Mapping[int, Array], tape: TapeBuilder) -> RowTape:
    """Return a row tape whose instructions with few different arguments are on the model's tape.

    ``known`` are the inputs that are numbers. A choice by these is one of registers.
    """
    from pymc_augconj.python_mode.tape_kernel import run_rows  # which imports Numba

    n, (first, second) = found.inputs.shape[1], found.parts
    file = np.repeat(found.start[:, None], n, axis=1)
    for i, value in known.items():
        file[i] = value
    run_rows(found.code, 0, first, file)
    index = dict(zip(found.places.tolist(), found.inputs, strict=True))
    learned = {i: x for i, x in index.items() if i not in known}
    of_rows: set[int] = set()
    kept = []

    for line in found.code[first:second]:
        code, to, *arguments = line.tolist()
        keys = [
            learned[a] if a in learned else np.unique(file[a], return_inverse=True)[1]
            for a in arguments
        ]
        few = np.unique(np.stack(keys), axis=1).shape[1] <= max(1, n // _MANY)
        if not few or not of_rows.isdisjoint(arguments):
            of_rows.add(to)
            kept.append(line)
            continue
        own = [learned[a] if a in learned else tape.constants(file[a]) for a in arguments]
        if NAMES[code] == "Switch" and arguments[0] not in learned:
            learned[to] = np.where(file[arguments[0]] != 0.0, own[1], own[2])
        else:
            learned[to] = tape.apply(NAMES[code], *own)
    code = np.concatenate([found.code[:first], *(line[None] for line in kept), found.code[second:]])
    index |= learned
    places = np.array([i for i in index if i == found.value or (code[:, 2:] == i).any()], np.intp)
    inputs = np.stack([index[i] for i in places.tolist()]) if places.size else found.inputs[:0]
    parts = first, first + len(kept)
    return found._replace(code=code, parts=parts, places=places, inputs=inputs)


def _in_parts(own: TapeBuilder, inputs: Sequence[int]) -> tuple[Index, tuple[int, int], Array]:
    """Return the instructions by the parts that they belong to, given those of the inputs."""
    code, start = own.finish()
    level = np.zeros(start.size, dtype=np.intp)
    level[1 : 1 + len(inputs)] = inputs
    for _, to, *arguments in code:
        level[to] = level[arguments].max()
    parts = level[code[:, 1]]
    first, second = np.searchsorted(np.sort(parts), [1, 2])
    return code[np.argsort(parts, kind="stable")], (int(first), int(second)), start


def _check(found: RowTape, data: SiteData, values: Mapping[str, Array]) -> None:
    """Compare the tape with the formula, which may have done what leaves no trace in it."""
    from pymc_augconj.python_mode.tape_kernel import run_rows  # which imports Numba

    n = data.y.size
    file = np.repeat(found.start[:, None], n, axis=1)
    file[1] = data.y
    for i, value in enumerate(values.values(), start=2):
        file[i] = value
    for number in range(len(_TRIED)):
        own = [_TRIED[(number + 2 * p) % len(_TRIED)] for p in range(found.n_predictors)]
        eta = np.repeat(own, n).reshape(-1, n)
        file[found.eta : found.eta + found.n_predictors] = eta
        with np.errstate(all="ignore"):
            expected = data.site.likelihood.log_density(data.y, eta, values)
            run_rows(found.code, 0, len(found.code), file)
            difference = np.abs(file[found.value] - expected)
        same = difference <= _RELATIVE * (1.0 + np.abs(expected))
        if not (same | ~np.isfinite(expected)).all():
            raise NoTapeError(f"the density of {data.site.name}, which depends on more")


def join(tapes: Sequence[RowTape]) -> RowTapes:
    """Return the tapes of several variables as one record."""
    tables, files, given, given_by, codes = [], [np.empty(0)], [], [], [np.empty((0, 5), np.intp)]
    row = base = n_code = 0
    for tape in tapes:
        n = tape.inputs.shape[1]
        first, second, last = (n_code + k for k in (*tape.parts, len(tape.code)))
        at = base + n * np.array([tape.eta, tape.value])
        stop = row + n * tape.n_predictors
        bounds = first, second, last
        tables.append([row, stop, base, tape.start.size, n_code, *bounds, *at, tape.n_predictors])
        files.append(np.repeat(tape.start, n))
        given.append((base + n * tape.places[:, None] + np.arange(n)).ravel())
        given_by.append(tape.inputs.ravel())
        codes.append(tape.code)
        row, base, n_code = stop, base + n * tape.start.size, last
    none = np.empty(0, dtype=np.intp)
    return RowTapes(
        np.concatenate(codes),
        np.array(tables, dtype=np.intp).reshape(-1, 11),
        np.concatenate(files),
        np.concatenate([none, *given]),
        np.concatenate([none, *given_by]),
    )
