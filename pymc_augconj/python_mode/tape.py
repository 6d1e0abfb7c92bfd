"""A graph as a tape: scalar instructions over a file of registers, run by one compiled loop.

A value of the graph is an array of the numbers of registers. Operations that only move entries are
those of NumPy, see :mod:`.operations`, on these numbers: they take no instruction. An elementwise
operation is an instruction for each different tuple of arguments, of which every one is there once;
sums and products are chains of these. What depends on nothing but constants is computed here. One
instruction may factorise a matrix, in :func:`.run_tape` alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple, Protocol

import numpy as np
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar.basic import Switch
from pytensor.tensor.basic import (
    Alloc,
    AllocDiag,
    ExtractDiag,
    Join,
    MakeVector,
    ScalarFromTensor,
    Split,
    TensorFromScalar,
)
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.linalg import Cholesky, SolveTriangular
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape_i, SpecifyShape
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)

from pymc_augconj.typing import Array, Index

from .operations import cholesky, lower, solve_triangular
from .registers import NoTapeError, Registers

#: Names of scalar operations in the order of their opcodes, see :mod:`.tape_kernel`.
NAMES = (
    *("Add", "Mul", "Sub", "TrueDiv", "Neg", "Exp", "Log", "Log1p", "Expm1", "Sqrt", "Pow", "Abs"),
    *("GT", "GE", "EQ", "NEQ", "AND", "OR", "Invert", "Switch", "Maximum", "Minimum", "GammaLn"),
    *("Erf", "Erfc", "Tanh", "Sin", "Cos", "Sigmoid", "Softplus", "Log1mexp", "IsNan", "Sign"),
    *("Erfcx", "IsInf", "ArcTan2", "Trunc", "BetaLn", "SubMul", "I0e"),
)
#: Opcode of the one instruction for a matrix.
FACTORIZE = len(NAMES)
#: By how much a number of instructions is multiplied and added to an opcode, see :func:`in_runs`.
RUN = 64
# Instructions that take less time by themselves.
_FEW = 4
# Operations that are others of other arguments.
_SAME = {"LT": "GT", "LE": "GE", "Sqr": "Mul", "Reciprocal": "TrueDiv"}
_OPCODES = {name: code for code, name in enumerate(NAMES)}
# Numbers that change nothing.
_NEUTRAL = {_OPCODES["Add"]: (0.0).hex(), _OPCODES["Mul"]: (1.0).hex()}
# Operations that move entries, with how many of their arguments have these; None for all.
_MOVING: dict[type, int | None] = {
    **dict.fromkeys((Alloc, AllocDiag, AdvancedSubtensor, DeepCopyOp, DimShuffle, Reshape), 1),
    **dict.fromkeys((ExtractDiag, ScalarFromTensor, SpecifyShape, Subtensor), 1),
    **dict.fromkeys((TensorFromScalar, ViewOp), 1),
    **dict.fromkeys((AdvancedIncSubtensor, IncSubtensor), 2),
    **dict.fromkeys((Join, MakeVector), None),
}
# Instructions from which NumPy's loops take less time.
_MOST = 75_000
# Order of matrices that one instruction factorises.
_FEWEST_ROWS = 8


class Tape(NamedTuple):
    """Instructions, shape (n, 5), and the registers before the first of them."""

    code: Index
    start: Array


def _keeps_values(cast: Apply) -> bool:
    """Return whether a cast keeps all values; raise NoTapeError where it is none to int64."""
    (given,), (dtype,) = ([v.type.dtype for v in own] for own in (cast.inputs, cast.outputs))
    keeps = dtype == "float64" or np.can_cast(given, dtype)
    if not keeps and dtype != "int64":
        raise NoTapeError(f"a cast to {dtype}")
    return bool(keeps)


def registers_of(row: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Return the registers that an instruction writes, and those that it reads."""
    code, to, *given = row
    of_triangle = range(to, given[1] + 1)
    return (of_triangle, of_triangle) if code == FACTORIZE else ((to,), given)


def depending(code: Index, index: Index) -> Index:
    """Return the instructions that depend on some registers.

    They are all where a factorisation does, which overwrites what it factorises.
    """
    changed, kept = set(index.tolist()), []
    for row in code.tolist():
        written, read = registers_of(row)
        if not changed.isdisjoint(read):
            changed.update(written)
            kept.append(row)
    is_factor = FACTORIZE in (row[0] for row in kept)
    return code if is_factor else np.array(kept, dtype=np.intp).reshape(-1, 5)


def in_runs(tape: Tape, parts: Sequence[Index]) -> tuple[list[Index], Array]:
    """Return parts of a tape in which loops execute several instructions at once, and registers.

    The first of some that are one operation of consecutive registers has their number. Constants
    among the arguments are copied to further registers, one after the other. Those that an earlier
    part executes in a loop are in one in all, as loops have other functions, which round otherwise.
    """
    start, copied, found = tape.start.tolist(), dict[tuple[int, ...], int](), []
    is_constant, in_loop = ~np.isnan(tape.start), np.full(tape.start.size, -1)
    for code in parts:
        given, code = code, code.copy()
        fixed, follows = is_constant[given[:, 2:]], np.diff(given, axis=0) == 1
        same = np.column_stack([follows[:, 1], follows[:, 2:] | (fixed[1:] & fixed[:-1])])
        breaks = ~(same.all(axis=1) & (np.diff(given[:, 0]) == 0) & (given[1:, 0] != FACTORIZE))
        known = in_loop[given[:, 1]]
        breaks |= np.diff(known) != 0
        in_loop[given[:, 1]] = np.maximum(known, 0)
        begin = np.concatenate([[0], np.flatnonzero(breaks) + 1, [len(given)]])
        of_run = known[begin[:-1]] if known.size else known
        size = np.diff(begin)[: of_run.size]
        for i in np.flatnonzero((of_run > 0) | ((of_run < 0) & (size >= _FEW))):
            own = np.arange(begin[i], begin[i + 1])
            rows, fixes = given[own], fixed[own]
            consecutive = (np.diff(rows[:, 2:], axis=0) == 1).all(axis=0) & ~fixes.any(axis=0)
            reads_own = (~fixes & (rows[:, 2:] >= rows[:1, 1])).any()
            if reads_own or not (consecutive | fixes.all(axis=0)).all():
                continue
            for k in np.flatnonzero(~consecutive):
                at = copied.setdefault(tuple(rows[:, 2 + k].tolist()), len(start))
                start += tape.start[rows[:, 2 + k]].tolist() if at == len(start) else []
                code[own, 2 + k] = at + np.arange(own.size)
            code[own[0], 0] += RUN * own.size
            in_loop[rows[:, 1]] = 1
        found.append(code)
    return found, np.array(start)


class OnTape(Protocol):
    """A function of a point that can be written on a tape."""

    def on_tape(self, tape: TapeBuilder, entries: Mapping[Any, Index]) -> Any:
        """Return the registers of the value, given those of the point, or NoTapeError."""


class TapeBuilder:
    """Writes a tape, perhaps one that is run for many rows; register 0 is the number zero."""

    def __init__(self, *, of_rows: bool = False) -> None:
        self._of_rows = of_rows
        self._start = [0.0]
        self._constants = {float.hex(0.0): 0}
        self._code: list[tuple[int, ...]] = []
        self._known: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        return len(self._code)

    def inputs(self, shape: Sequence[int]) -> Index:
        """Return new registers, which are to be filled before the tape runs."""
        first = len(self._start)
        self._start += [math.nan] * math.prod(shape)
        return np.arange(first, len(self._start)).reshape(shape)

    def constants(self, values: Any) -> Index:
        """Return registers of numbers."""
        values = np.asarray(values, dtype=float)
        return np.array(
            [self._constant(x) for x in values.ravel().tolist()], dtype=np.intp
        ).reshape(values.shape)

    def _constant(self, x: float) -> int:
        at = self._constants.setdefault(x.hex(), len(self._start))
        if at == len(self._start):
            self._start.append(x)
        return at

    def split(self, index: Index) -> tuple[Array, Index]:
        """Return numbers and registers whose products are the values: one of them is one."""
        fixed = np.isin(index, list(self._constants.values()))
        values = np.where(fixed, np.array(self._start)[index], 1.0)
        return values, np.where(fixed, self.constants(1.0), index)

    def apply(self, name: str, *arguments: Index) -> Index:
        """Return the registers of an elementwise operation."""
        if name in _SAME:
            others = {"Sqr": arguments * 2, "Reciprocal": (self.constants(1.0), *arguments)}
            name, arguments = _SAME[name], others.get(name, arguments[::-1])
        if name not in _OPCODES:
            raise NoTapeError(name)
        shape = np.broadcast_shapes(*(x.shape for x in arguments))
        columns = [np.broadcast_to(x, shape).ravel().tolist() for x in arguments]
        columns += [[0] * math.prod(shape)] * (3 - len(columns))
        rows = zip(*columns, strict=True)
        found = [self._instruction(_OPCODES[name], *row) for row in rows]
        return np.array(found, dtype=np.intp).reshape(shape)

    def _instruction(self, *code: int) -> int:
        # Sums with zero and products with one would each take a loop over rows.
        neutral = self._constants.get(_NEUTRAL.get(code[0], "")) if self._of_rows else None
        if neutral in code[1:3]:
            return sum(code[1:3]) - neutral
        at = self._known.get(code)
        if at is None:
            # Half of them may be dropped.
            self._check(2 * _MOST)
            at = self._known[code] = len(self._start)
            self._start.append(math.nan)
            self._code.append((code[0], at, *code[1:]))
        return at

    def factorize(self, x: Index) -> Index:
        """Return the lower Cholesky factor of a matrix by one instruction, NaN if there is none.

        The upper triangle is not read.
        """
        lower, found = np.tril_indices(len(x)), np.zeros_like(x)
        found[lower] = self.inputs(lower[0].shape)
        pairs = zip(found[lower].tolist(), x[lower].tolist(), strict=True)
        self._code += [(_OPCODES["Add"], to, own, 0, 0) for to, own in pairs]
        first, last = int(found[0, 0]), int(found[-1, -1])
        self._code.append((FACTORIZE, first, first, last, 0))
        return found

    def evaluate(self, function: Any, entries: Mapping[Any, Index]) -> Any:
        """Return the registers of the value of a function of the point, see :class:`OnTape`."""
        on_tape = getattr(function, "on_tape", None)
        if on_tape is None:
            raise NoTapeError(type(function).__name__)
        return on_tape(self, entries)

    def drop(self, first: int, needed: Index) -> None:
        """Drop instructions from ``first`` on that some registers do not depend on."""
        wanted, kept = set(needed.ravel().tolist()), []
        for row in reversed(self._code[first:]):
            written, read = registers_of(row)
            if not wanted.isdisjoint(written):
                wanted.update(read)
                kept.append(row)
            else:
                self._known.pop((row[0], *row[2:]), None)
        self._code[first:] = reversed(kept)

    def _check(self, most: int) -> None:
        if len(self._code) > most:
            raise NoTapeError(f"more than {most} instructions")

    def finish(self) -> Tape:
        self._check(_MOST)
        code = np.array(self._code, dtype=np.intp).reshape(-1, 5)
        return Tape(code, np.array(self._start))

    # -- graphs -------------------------------------------------------------------------------

    def read(
        self, fgraph: FunctionGraph, order: Sequence[Apply], given: Sequence[Any]
    ) -> list[Any]:
        """Return the registers of a rewritten graph's outputs.

        ``given`` has for each of its inputs :class:`Registers`, or an array of numbers.
        """
        values: dict[Variable, Any] = dict(zip(fgraph.inputs, given, strict=True))

        def value_of(var: Variable) -> Any:
            return var.data if isinstance(var, Constant) else values[var]

        for node in order:
            own = [value_of(v) for v in node.inputs]
            if isinstance(node.op, Split) and not any(isinstance(v, Registers) for v in own[1:]):
                parts = np.split(self._index(own[0]), np.cumsum(own[1])[:-1], node.op.axis)
                values |= zip(node.outputs, (Registers(self, x) for x in parts), strict=True)
                continue
            if len(node.outputs) > 1:
                raise NoTapeError(str(node.op))
            values[node.outputs[0]] = self._executed(node, own)
        return [self._index(value_of(var)) for var in fgraph.outputs]

    def _index(self, value: Any) -> Index:
        return value.index if isinstance(value, Registers) else self.constants(value)

    def _executed(self, node: Apply, values: list[Any]) -> Any:
        op, (out,) = node.op, node.outputs
        if not any(isinstance(value, Registers) for value in values):
            return np.asarray(lower(node)[0](*values))
        if isinstance(op, Shape_i):
            return np.asarray(values[0].index.shape[op.i])
        # Constants may be of single precision, and chosen between.
        chosen = isinstance(op, Elemwise) and isinstance(op.scalar_op, Switch)
        if out.dtype not in ("float64", "int64", "bool") and not chosen:
            raise NoTapeError(f"{op} of type {out.dtype}")
        if isinstance(op, Elemwise):
            index = self._elementwise(node, [self._index(value) for value in values])
        elif isinstance(op, CAReduce):
            index = self._reduced(type(op.scalar_op).__name__, self._index(values[0]), op.axis)
        elif isinstance(op, CumOp) and op.axis is not None:
            index = self._accumulated(op, self._index(values[0]))
        elif isinstance(op, Dot):
            index = self._product(*map(self._index, values))
        elif isinstance(op, Cholesky) and op.lower and out.ndim == 2:
            x = self._index(values[0])
            by_entry = self._of_rows or len(x) < _FEWEST_ROWS
            index = cholesky(self.apply, x) if by_entry else self.factorize(x)
        elif isinstance(op, SolveTriangular) and out.ndim <= 2 and not op.unit_diagonal:
            index = solve_triangular(self.apply, *map(self._index, values), lower=op.lower)
        elif isinstance(op, Softmax | LogSoftmax):
            index = self._softmax(op, self._index(values[0]))
        else:
            index = self._moved(node, values)
        return Registers(self, index)

    def _elementwise(self, node: Apply, arguments: list[Index]) -> Index:
        name = type(node.op.scalar_op).__name__
        if name in ("Add", "Mul"):
            return reduce(partial(self.apply, name), arguments)
        if name == "Cast":
            name = "Identity" if _keeps_values(node) else "Trunc"
        if name == "Identity":
            return arguments[0]
        if name in ("AND", "OR", "Invert") and any(v.dtype != "bool" for v in node.inputs):
            raise NoTapeError(f"{name} of bits")
        if name in ("GammaInc", "GammaIncC", "BetaInc"):
            return self._distribution(name, *arguments)
        return self.apply(name, *arguments)

    def _distribution(self, name: str, *arguments: Index) -> Index:
        """Return P or Q of one event, which are powers: of counts of zero, say."""
        first, *others, x = arguments
        is_one = [bool((a == self.constants(1.0)).all()) for a in (first, *others)]
        if not any(is_one):
            raise NoTapeError(name)
        if name == "BetaInc" and is_one[1]:
            return self.apply("Exp", self.apply("Mul", first, self.apply("Log", x)))
        log_rest = self.apply("Neg", x)
        if name == "BetaInc":
            log_rest = self.apply("Mul", *others, self.apply("Log1p", log_rest))
        if name == "GammaIncC":
            return self.apply("Exp", log_rest)
        return self.apply("Neg", self.apply("Expm1", log_rest))

    def _reduced(self, name: str, x: Index, axis: Sequence[int] | None) -> Index:
        axes = range(x.ndim) if axis is None else axis
        kept = [length for i, length in enumerate(x.shape) if i not in axes]
        terms = np.moveaxis(x, list(axes), range(len(axes))).reshape(-1, *kept)
        if not len(terms):
            raise NoTapeError("a reduction of nothing")
        if name in ("AND", "OR", "Maximum", "Minimum"):
            # A condition on a scale of its own for each group is there once for each row.
            terms = np.unique(terms, axis=0)
        return reduce(partial(self.apply, name), terms)

    def _accumulated(self, op: CumOp, x: Index) -> Index:
        found = np.array(np.moveaxis(x, op.axis, 0))
        for i in range(1, len(found)):
            found[i] = self.apply("Add" if op.mode == "add" else "Mul", found[i - 1], found[i])
        return np.moveaxis(found, 0, op.axis)

    def _softmax(self, op: Any, x: Index) -> Index:
        def over_all(name: str, values: Index) -> Index:
            found = self._reduced(name, values, op.axis)
            return found if op.axis is None else np.expand_dims(found, op.axis)

        away = self.apply("Sub", x, over_all("Maximum", x))
        terms = self.apply("Exp", away)
        total = over_all("Add", terms)
        if isinstance(op, Softmax):
            return self.apply("TrueDiv", terms, total)
        return self.apply("Sub", away, self.apply("Log", total))

    def _product(self, x: Index, y: Index) -> Index:
        left = np.atleast_2d(x)
        right = y[:, None] if y.ndim == 1 else y
        terms = self.apply("Mul", left[:, :, None], right[None])
        return self._reduced("Add", terms, (1,)).reshape(*x.shape[:-1], *y.shape[1:])

    def _moved(self, node: Apply, values: list[Any]) -> Index:
        op = node.op
        if isinstance(op, AdvancedSubtensor) and isinstance(values[-1], Registers):
            return self._chosen(node, values)
        kind = next((kind for kind in _MOVING if isinstance(op, kind)), None)
        if kind is None:
            raise NoTapeError(str(op))
        if isinstance(op, IncSubtensor | AdvancedIncSubtensor) and not op.set_instead_of_inc:
            return self._added(node, values)
        count = _MOVING[kind] or len(values)
        if any(isinstance(value, Registers) for value in values[count:]):
            raise NoTapeError(f"{node.op} at what is not constant")
        # Operations in place overwrite their first argument.
        moved = [np.array(self._index(value)) for value in values[:count]]
        function: Callable[..., Any] = lower(node)[0]
        return np.asarray(function(*moved, *values[count:])).astype(np.intp)

    def _chosen(self, node: Apply, values: list[Any]) -> Index:
        """Return entries of an array whose index on its last axis is not constant."""
        x, *given, last = values
        known = not any(isinstance(value, Registers) for value in given)
        if not known or len(node.op.idx_list) != x.index.ndim or len(given) != x.index.ndim - 1:
            raise NoTapeError(f"{node.op} at what is not constant")
        found = x.index[*given, 0]
        for k in range(1, x.index.shape[-1]):
            is_this = self.apply("EQ", last.index, self.constants(k))
            found = self.apply("Switch", is_this, x.index[*given, k], found)
        return np.broadcast_to(found, np.broadcast_shapes(found.shape, last.index.shape))

    def _added(self, node: Apply, values: list[Any]) -> Index:
        """Return x with y added to a part of it, where an entry may be several times."""
        if any(isinstance(value, Registers) for value in values[2:]):
            raise NoTapeError(f"{node.op} at what is not constant")
        x, y = map(self._index, values[:2])
        is_slice = isinstance(node.op, IncSubtensor)
        take = (Subtensor if is_slice else AdvancedSubtensor)(node.op.idx_list)
        part = lower(take(node.inputs[0], *node.inputs[2:]).owner)[0]
        at = np.asarray(part(np.arange(x.size).reshape(x.shape), *values[2:]))
        left, added, found = at.ravel(), np.broadcast_to(y, at.shape).ravel(), x.ravel().copy()
        while left.size:
            entries, first = np.unique(left, return_index=True)
            if first.size < left.size and getattr(node.op, "ignore_duplicates", False):
                raise NoTapeError(str(node.op))
            found[entries] = self.apply("Add", found[entries], added[first])
            left, added = np.delete(left, first), np.delete(added, first)
        return found.reshape(x.shape)
