"""Executing graphs without rewriting them, by one NumPy call per operation.

Rewriting a graph takes PyTensor some tens of milliseconds, and most functions of a model are
evaluated a few times at most. What rewriting is good for besides speed is lost, the stable form
of formulas like log(1 + exp x): see :meth:`.compile.PointFunction.uncompiled`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import ViewOp
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs, toposort
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.op import RandomVariable, RNGConsumerOp

from .numpy_calls import call_of, is_exact, is_plain

__all__ = ["LARGEST_ARRAY", "Interpreter", "NotInterpretedError", "interpret"]

#: Arrays of more entries (8 MB) are worth rewriting for: it saves passes over them.
LARGEST_ARRAY = 2**20

# PyTensor's stabilising rewrites replace formulas that contain one of these.
_OF_UNSTABLE_FORMULAS = frozenset(
    {"Erf", "Erfc", "Erfcx", "Expm1", "Log", "Log10", "Log1mexp", "Log1p", "Log2", "LogSoftmax"}
    | {"Sigmoid", "Softmax", "Softplus"}
)


# Evaluations with other rounding, the units in the last place that they move a result by, and how
# much larger an error may be than the largest that they show.
_N_ROUNDINGS, _SAFETY = 3, 32.0
_LEAST = np.nextafter(0.0, 1.0)
_DOUBLE, _SINGLE = float(np.finfo(np.float64).eps), float(np.finfo(np.float32).eps)
_ULPS = np.array([-4.0, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0])


class NotInterpretedError(Exception):
    """A graph, or its value at these arguments, is not for the interpreter."""


class Interpreter:
    """A graph as a function, executed an operation at a time.

    What depends on constants alone is computed at the first call and kept.

    Parameters
    ----------
    outputs, inputs : sequence of Variable
        The graph, and those of its leaves that are arguments: all but constants and shared
        variables, of which the values are read at every call.
    draws : bool
        Whether the graph may have random variables, whose generators are arguments.
    largest_array : int
        Entries of the largest array.

    Raises
    ------
    NotInterpretedError
        If it has an operation that is not one of NumPy's: a random variable, a loop.
    """

    def __init__(
        self,
        outputs: Sequence[Variable],
        inputs: Sequence[Variable],
        *,
        draws: bool = False,
        largest_array: int = LARGEST_ARRAY,
    ) -> None:
        self._outputs, self._inputs = _expanded(outputs), list(inputs)
        self._largest = largest_array
        nodes = list(toposort(self._outputs))
        leaves = graph_inputs(self._outputs)
        self._shared = [
            leaf for leaf in leaves if isinstance(leaf, SharedVariable) and leaf not in self._inputs
        ]
        moving = {*self._inputs, *self._shared}
        self._constant_nodes: list[Apply] = []
        self._moving_nodes: list[Apply] = []
        for node in nodes:
            if not (is_plain(node) or (draws and isinstance(node.op, RandomVariable))):
                raise NotInterpretedError(str(node.op))
            if any(_size_of(var) > largest_array for var in node.outputs):
                raise NotInterpretedError("large")
            if moving.isdisjoint(node.inputs):
                self._constant_nodes.append(node)
            else:
                self._moving_nodes.append(node)
                moving.update(node.outputs)
        self._known: dict[Variable, Any] | None = None
        self._calls: list[tuple] | None = None
        self._calls_in_double: list[tuple] | None = None
        used = [var for node in self._moving_nodes for var in node.inputs]
        self._constants = {var for var in [*used, *self._outputs] if var not in moving}
        self._last = _last_uses(self._moving_nodes, [*self._constants, *self._outputs])

    @property
    def is_stable(self) -> bool:
        """Whether rewriting would find no part to replace by one that is numerically more stable.

        Nodes that depend on constants only do not count, as rewriting does not change them either.
        """
        return not any(map(_may_be_unstable, self._moving_nodes))

    def __getstate__(self) -> dict[str, Any]:
        # What a worker process does not need, and can make again.
        return self.__dict__ | {"_known": None, "_calls": None, "_calls_in_double": None}

    def __call__(self, *arguments: Any) -> list[np.ndarray]:
        """Return the outputs, which are the caller's to write to.

        Raises
        ------
        NotInterpretedError
            If an operation fails, or an array is too large, or an entry is not finite.
        """
        found = self.as_written(*arguments)
        if not all(np.isfinite(value).all() for value in found):
            raise NotInterpretedError("not finite")
        return found

    def as_written(self, *arguments: Any) -> list[np.ndarray]:
        """Return the outputs, finite or not.

        Raises
        ------
        NotInterpretedError
            If an operation fails, or an array is too large.
        """
        with _failures_as_not_interpreted():
            return self._evaluate(arguments)

    def with_rounding(self, *arguments: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the outputs, finite or not, and a bound on the rounding error of each entry.

        The graph is evaluated a few times with the arguments, and the result of every operation
        that rounds, moved by a few units in the last place (Parker's Monte Carlo arithmetic,
        1997): what cancels later, or is amplified, shows in the result. What PyTensor computes in
        single precision, as it does with small integers, counts with its difference from double
        precision. A number that it has in single precision, the √2 of a normal distribution
        function say, is moved by a unit in the last place of that, which is twice what rounding
        can do: another graph of the same density may have it in double precision.

        Raises
        ------
        NotInterpretedError
            If an operation fails, or an array is too large.
        """
        rng = np.random.default_rng(0)
        with _failures_as_not_interpreted():
            values, in_double = self._evaluate(arguments), self._in_double(arguments)
            fine = [self._in_double(arguments, rng) for _ in range(_N_ROUNDINGS)]
            n_coarse = _N_ROUNDINGS if self._has_single() else 0
            coarse = [self._in_double(arguments, rng, single=True) for _ in range(n_coarse)]
            bounds = []
            for value, exact, *others in zip(values, in_double, *fine, *coarse, strict=True):
                errors = [np.abs(other - exact) for other in others]
                bound = _SAFETY * np.max(errors[:_N_ROUNDINGS], axis=0)
                bound += np.max(errors[_N_ROUNDINGS:], axis=0, initial=0.0)
                bound += 2.0 * np.abs(value - exact)
                bounds.append(np.where(np.isnan(bound), np.inf, bound))
        return values, bounds

    def _has_single(self) -> bool:
        """Return whether the graph has a number in single precision that is rounded."""
        nodes = [*self._constant_nodes, *self._moving_nodes]
        return any(
            any(map(_is_rounded, node.inputs))
            or (_is_single(node.outputs[0]) and not is_exact(node))
            for node in nodes
        )

    def _in_double(
        self,
        arguments: Sequence[Any],
        rng: np.random.Generator | None = None,
        *,
        single: bool = False,
    ) -> list[np.ndarray]:
        """Return the outputs in double precision.

        With ``rng`` the arguments and the result of each operation are moved by some units in the
        last place, with ``single`` only numbers in single precision, by one unit of that.
        """
        if self._calls_in_double is None:
            nodes = [*self._constant_nodes, *self._moving_nodes]
            self._calls_in_double = [
                (call_of(node, in_double=True), node.inputs, node.outputs, is_exact(node), last)
                for node, last in zip(nodes, _last_uses(nodes, self._outputs), strict=True)
            ]
        values: dict[Variable, Any] = {}
        if rng is not None and single:
            numbers = dict.fromkeys(v for _, vs, *_ in self._calls_in_double for v in vs)
            values = {v: _moved_single(v.data, rng) for v in numbers if _is_rounded(v)}
        elif rng is not None:
            arguments = [_moved(value, rng) for value in arguments]
        values |= dict(zip(self._inputs, arguments, strict=True))
        values |= {var: _value(var) for var in self._shared}
        for call, inputs, outputs, exact, last in self._calls_in_double:
            found = call(*[values.get(v, getattr(v, "data", None)) for v in inputs])
            if rng is not None and not exact:
                if not single:
                    found = [_moved(value, rng) for value in found]
                elif _is_single(outputs[0]):
                    found = [_moved_single(value, rng) for value in found]
            self._store(values, outputs, found)
            for var in last:
                values.pop(var, None)
        return [np.asarray(values.get(v, getattr(v, "data", None))) for v in self._outputs]

    def _evaluate(self, arguments: Sequence[Any]) -> list[np.ndarray]:
        if self._calls is None or self._known is None:
            self._known = self._evaluate_constants()
            self._calls = [
                (call_of(node), node.inputs, node.outputs, last)
                for node, last in zip(self._moving_nodes, self._last, strict=True)
            ]
        values = self._known | dict(zip(self._inputs, arguments, strict=True))
        values |= {var: _value(var) for var in self._shared}
        not_ours = {id(value) for value in values.values()}
        for call, inputs, outputs, last in self._calls:
            self._store(values, outputs, call(*[values[var] for var in inputs]))
            for var in last:
                del values[var]
        results = []
        for value in (np.asarray(values[var]) for var in self._outputs):
            shared = id(value) in not_ours or value.base is not None
            not_ours.add(id(value))
            results.append(value.copy() if shared else value)
        return results

    def _store(
        self, values: dict[Variable, Any], outputs: Sequence[Variable], found: Sequence[Any]
    ) -> None:
        for var, value in zip(outputs, found, strict=True):
            if getattr(value, "size", 0) > self._largest:
                raise NotInterpretedError("large")
            values[var] = value

    def _evaluate_constants(self) -> dict[Variable, Any]:
        """Return the values of constants, and of what depends on nothing else, that are needed."""
        leaves = [*self._constants, *(v for node in self._constant_nodes for v in node.inputs)]
        values = {var: var.data for var in leaves if isinstance(var, Constant)}
        last = _last_uses(self._constant_nodes, self._constants)
        for node, finished in zip(self._constant_nodes, last, strict=True):
            self._store(values, node.outputs, call_of(node)(*[values[var] for var in node.inputs]))
            for var in finished:
                del values[var]
        return values


def interpret(outputs: Sequence[Variable]) -> list[np.ndarray]:
    """Return the values of graphs that have no arguments; raises as an interpreter does."""
    return Interpreter(outputs, ())()


def _expanded(outputs: Sequence[Variable]) -> list[Variable]:
    """Return graphs in which ops that stand for a graph, log Σ exp say, are that graph."""
    found = list(outputs)
    while node := next(filter(_is_a_graph, toposort(found)), None):
        found = clone_replace(found, dict(zip(node.outputs, inline_ofg_node(node), strict=True)))
    return found


def _is_a_graph(node: Apply) -> bool:
    return isinstance(node.op, OpFromGraph) and not isinstance(node.op, RNGConsumerOp)


@contextmanager
def _failures_as_not_interpreted() -> Iterator[None]:
    try:
        with np.errstate(all="ignore"):
            yield
    except NotInterpretedError:
        raise
    except Exception as error:
        # Whoever asks compiles the graph then, and meets the error there if it is a real one.
        raise NotInterpretedError(str(error)) from error


def _moved(value: Any, rng: np.random.Generator) -> Any:
    """Return ``value`` moved by a few units in the last place."""
    value = np.asarray(value)
    if value.dtype.kind != "f":
        return value
    ulps = _ULPS[rng.integers(0, _ULPS.size, value.shape, dtype=np.uint8)]
    # Of numbers below the smallest normal one the last place is an absolute amount.
    return value * (1.0 + _DOUBLE * ulps) + np.where(value != 0.0, _LEAST * ulps, 0.0)


def _moved_single(value: Any, rng: np.random.Generator) -> Any:
    """Return a number of single precision moved by one unit in the last place of that."""
    return value * (1.0 + _SINGLE * rng.choice([-1.0, 1.0]))


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


def _value(shared: SharedVariable) -> np.ndarray:
    value = shared.get_value(borrow=True)
    if isinstance(value, np.ma.MaskedArray):  # pm.set_data masks NaN
        raise NotInterpretedError("masked")
    return value


def _size_of(var: Variable) -> int:
    """Return the number of entries that the type of ``var`` tells; 0 where it does not."""
    shape = getattr(var.type, "shape", ())
    return 0 if None in shape else math.prod(shape)


def _may_be_unstable(node: Apply) -> bool:
    name = _name(node)
    if name not in _OF_UNSTABLE_FORMULAS:
        return False
    (argument, *_) = node.inputs
    while argument.owner is not None and isinstance(argument.owner.op, DimShuffle | ViewOp):
        (argument,) = argument.owner.inputs
    # What a transform to positive values leaves: log(exp x), which is x wherever it is finite.
    return not (name == "Log" and argument.owner is not None and _name(argument.owner) == "Exp")


def _name(node: Apply) -> str:
    return type(getattr(node.op, "scalar_op", node.op)).__name__


def _last_uses(nodes: Sequence[Apply], kept: Iterable[Variable]) -> list[list[Variable]]:
    """Return, for every node, the results that no later one needs."""
    seen = set(kept)
    last: list[list[Variable]] = []
    for node in reversed(nodes):
        finished = [var for var in dict.fromkeys([*node.inputs, *node.outputs]) if var not in seen]
        seen.update(finished)
        last.append(finished)
    return last[::-1]
