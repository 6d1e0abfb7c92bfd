"""Bounds on the rounding of a graph's results, by the formulas of its operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import Cast
from pytensor.tensor.elemwise import Elemwise

from pymc_augconj.python_mode.operations import lower

# Units in the last place by which rounding may move a result; and, of operations without a
# formula, evaluations with other rounding, and how much larger an error may be than they show.
_ULPS, _N_ROUNDINGS, _SAFETY = 4.0, 3, 32.0
_LEAST = np.nextafter(0.0, 1.0)
_DOUBLE, _SINGLE = float(np.finfo(np.float64).eps), float(np.finfo(np.float32).eps)
Call = Callable[..., Sequence[Any]]

# Operations whose results are among their inputs, or whole numbers.
_EXACT_SCALAR_OPS = frozenset(
    {"Abs", "Ceil", "Clip", "Floor", "Identity", "Maximum", "Minimum", "Neg", "Second", "Sign"}
    | {"Switch", "Trunc"}
)
_EXACT_OPS = frozenset(
    {"AdvancedSubtensor", "Alloc", "CheckParameterValue", "DimShuffle", "ExtractDiag", "Eye"}
    | {"Join", "MakeVector", "Max", "Min", "Reshape", "ScalarFromTensor", "SpecifyShape", "Split"}
    | {"Subtensor", "TensorFromScalar", "ViewOp"}
)


class _Number(NamedTuple):
    """A result in double precision, a bound on its error, and the result with other rounding."""

    value: Any
    bound: Any
    moved: Sequence[Any]


class Rounding:
    """Evaluates a graph in double precision, with a bound on the error of each entry.

    Elementwise operations are evaluated with each argument moved by its own bound, both ways; the
    bounds of sums and products of matrices follow from magnitudes. Near p = 1 the bounds thus show
    the number of correct digits of log(1 − p). For any other operation (a Cholesky factor) the
    bound is the largest difference of a few evaluations of the graph in which every result is moved
    by a few units in the last place (Parker's Monte Carlo arithmetic, 1997). A number in single
    precision, such as the √2 of a normal distribution function, is moved by a unit in its last
    place, twice the rounding error: another graph of the same density may have double precision.

    ``finished`` has, for each of ``nodes``, the variables that no later operation needs.
    """

    def __init__(
        self,
        nodes: Sequence[Apply],
        finished: Sequence[Sequence[Variable]],
        outputs: Sequence[Variable],
    ) -> None:
        self._calls = [
            (_call_of(node), node, last) for node, last in zip(nodes, finished, strict=True)
        ]
        self._outputs = outputs
        by_formula = all(map(_has_formula, nodes))
        single = any(
            any(map(_is_rounded, node.inputs))
            or (_is_single(node.outputs[0]) and not _is_exact(node))
            for node in nodes
        )
        # The units of other rounding, coarse ones where numbers have single precision.
        self._units = [] if by_formula else [_DOUBLE] * _N_ROUNDINGS
        self._units += [_SINGLE] * _N_ROUNDINGS if single and not by_formula else []

    def __call__(
        self, arguments: Mapping[Variable, Any], shared: Mapping[Variable, Any]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return every output and its bound."""
        rng = np.random.default_rng(0)
        n = len(self._units)
        known = {var: _Number(value, 0.0, [value] * n) for var, value in shared.items()}
        for var, value in arguments.items():
            moved = [_moved(value, rng) if unit == _DOUBLE else value for unit in self._units]
            known[var] = _Number(value, _own(value), moved)
        for call, node, last in self._calls:
            given = [self._number(var, known, rng) for var in node.inputs]
            known.update(zip(node.outputs, self._results(call, node, given, rng), strict=True))
            for var in last:
                known.pop(var, None)
        found = [self._number(var, known, rng) for var in self._outputs]
        return [(np.asarray(n.value), np.broadcast_to(n.bound, np.shape(n.value))) for n in found]

    def _number(
        self, var: Variable, known: Mapping[Variable, _Number], rng: np.random.Generator
    ) -> _Number:
        if var in known or not isinstance(var, Constant):
            return known[var]
        value, is_rounded = var.data, _is_rounded(var)
        moved = [
            _moved_single(value, rng) if is_rounded and unit == _SINGLE else value
            for unit in self._units
        ]
        return _Number(value, _SINGLE * np.abs(value) if is_rounded else 0.0, moved)

    def _results(
        self, call: Call, node: Apply, given: Sequence[_Number], rng: np.random.Generator
    ) -> list[_Number]:
        found = call(*[number.value for number in given])
        rounds = not _is_exact(node)
        single = rounds and _is_single(node.outputs[0])
        runs = []
        for k, unit in enumerate(self._units):
            run = call(*[number.moved[k] for number in given])
            if rounds and unit == _DOUBLE:
                run = [_moved(value, rng) for value in run]
            elif single and unit == _SINGLE:
                run = [_moved_single(value, rng) for value in run]
            runs.append(run)
        moved = [[run[i] for run in runs] for i in range(len(found))]
        if not _has_formula(node):
            bounds = [self._by_moving(*pair) for pair in zip(found, moved, strict=True)]
        elif not any(map(_is_float, found)):
            bounds = [0.0] * len(found)
        else:
            bounds = _by_formula(call, node, given, found)
        if single:
            bounds[0] = bounds[0] + _SINGLE * np.abs(found[0])
        return [_Number(*number) for number in zip(found, bounds, moved, strict=True)]

    def _by_moving(self, value: Any, moved: Sequence[Any]) -> Any:
        if not _is_float(value):
            return 0.0
        total: Any = 0.0
        for unit, factor in ((_DOUBLE, _SAFETY), (_SINGLE, 1.0)):
            runs = [run for run, own in zip(moved, self._units, strict=True) if own == unit]
            if runs:
                total = total + factor * np.max([difference(run, value) for run in runs], axis=0)
        return total


def _is_exact(node: Apply) -> bool:
    """Return whether an operation is known to round nothing."""
    op = node.op
    if not isinstance(op, Elemwise):
        return type(op).__name__ in _EXACT_OPS
    return isinstance(op.scalar_op, Cast) or type(op.scalar_op).__name__ in _EXACT_SCALAR_OPS


def _has_formula(node: Apply) -> bool:
    """Return whether an operation is elementwise, or moves, adds or multiplies entries."""
    name = type(getattr(node.op, "core_op", node.op)).__name__
    # The least of some bounds bounds nothing.
    return (
        isinstance(node.op, Elemwise)
        or name in ("CumOp", "Dot", "Sum")
        or (name != "Min" and _is_exact(node))
    )


def _call_of(node: Apply) -> Call:
    """Return an operation in double precision, as a function that returns all its outputs."""
    if isinstance(node.op, CheckParameterValue) and node.op.can_be_replaced_by_ninf:
        # Another rounding may move a parameter out of its range, a probability of one say.
        return lambda value, *conditions: [value]
    function = lower(node, in_double=True)[0]
    return function if len(node.outputs) > 1 else lambda *values: [function(*values)]


def _by_formula(
    call: Call, node: Apply, given: Sequence[_Number], found: Sequence[Any]
) -> list[Any]:
    """Return bounds of an operation's results, given those of its arguments."""
    if isinstance(node.op, Elemwise):
        (value,) = found
        total = 0.0 if _is_exact(node) else _own(value)
        values = [number.value for number in given]
        for i, number in enumerate(given):
            if np.any(number.bound):
                ends = [number.value + number.bound, number.value - number.bound]
                others = [call(*values[:i], end, *values[i + 1 :])[0] for end in ends]
                total = total + np.max([difference(other, value) for other in others], axis=0)
        return [total]
    if _is_exact(node):  # it moves entries, and may add them up
        return list(call(*map(_bound_or_value, given)))
    sizes = [np.abs(number.value) for number in given]
    above = [size + number.bound + _own(size) for size, number in zip(sizes, given, strict=True)]
    pairs = zip(call(*above), call(*sizes), strict=True)
    return [difference(high, size) + _own(size) for high, size in pairs]


def _bound_or_value(number: _Number) -> Any:
    if not _is_float(number.value):
        return number.value
    return np.array(np.broadcast_to(number.bound, np.shape(number.value)), number.value.dtype)


def difference(value: Any, other: Any) -> np.ndarray:
    """Return |value − other|: zero for equal infinities, infinite for NaN."""
    off = np.where(np.equal(value, other), 0.0, np.abs(np.subtract(value, other)))
    return np.where(np.isnan(off), np.inf, off)


def _own(value: Any) -> Any:
    """Return the possible effect of rounding on a result."""
    if not _is_float(value):
        return 0.0
    value = np.asarray(value)
    # Of numbers below the smallest normal one the last place is an absolute amount. An infinity
    # stays one, unless moving an argument makes it finite.
    ulp = _DOUBLE * np.abs(value) + _LEAST * (value != 0.0)
    return _ULPS * np.where(np.isinf(value), 0.0, ulp)


def _moved(value: Any, rng: np.random.Generator) -> Any:
    """Return ``value`` moved by a few units in the last place."""
    if not _is_float(value):
        return value
    return value + _own(value) * rng.uniform(-1.0, 1.0, np.shape(value))


def _moved_single(value: Any, rng: np.random.Generator) -> Any:
    """Return a number of single precision moved by one unit in the last place of that."""
    return value * (1.0 + _SINGLE * rng.choice([-1.0, 1.0]))


def _is_float(value: Any) -> bool:
    return getattr(value, "dtype", np.dtype(object)).kind == "f"


def _is_single(var: Variable) -> bool:
    """Return whether a variable is one number in single precision."""
    return getattr(var, "dtype", None) == "float32" and all(n == 1 for n in var.type.shape)


def _is_rounded(var: Variable) -> bool:
    """Return whether a variable is a constant that single precision has rounded, √2 but not ½."""
    if not (isinstance(var, Constant) and _is_single(var)):
        return False
    # PyTensor keeps numbers that single precision holds in it: these have few decimal digits.
    number = var.data.item()
    return bool(np.isfinite(number)) and float(str(np.float32(number))) != number
