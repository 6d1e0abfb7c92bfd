"""Execution of graphs without rewriting, by one NumPy call per operation.

Rewriting a graph takes PyTensor some tens of milliseconds, and most functions of a model are
evaluated a few times at most. Execution without rewriting loses the stable form of formulas like
log(1 + exp x): see :meth:`.functions.PointFunction.uncompiled`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import ViewOp
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, graph_inputs, toposort
from pytensor.scalar.basic import Add, Mul, Neg, Pow, Sqr, Sub
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable, RNGConsumerOp

from pymc_augconj.python_mode.arrays import Call
from pymc_augconj.python_mode.mode import last_uses, own
from pymc_augconj.python_mode.operations import is_plain, lower

from .rounding import Rounding, difference

#: Arrays of more entries (8 MB) are worth rewriting for: it saves passes over them.
LARGEST_ARRAY = 2**20

# PyTensor's stabilising rewrites replace formulas that contain one of these.
_OF_UNSTABLE_FORMULAS = frozenset(
    {"Erf", "Erfc", "Erfcx", "Expm1", "Log", "Log10", "Log1mexp", "Log1p", "Log2", "LogSoftmax"}
    | {"Sigmoid", "Softmax", "Softplus"}
)


class NotInterpretedError(Exception):
    """The interpreter cannot evaluate a graph at these arguments."""


class Interpreter:
    """A graph as a function, executed an operation at a time; parts of constants are computed once.

    ``inputs`` are all leaves except constants and shared variables; with ``draws`` the graph may
    have random variables, whose generators are inputs. Raises NotInterpretedError for an operation
    that NumPy lacks (a loop), or an array of more than ``largest_array`` entries.
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
        self._calls: list[tuple[Any, ...]] | None = None
        self._rounding: Rounding | None = None
        used = [var for node in self._moving_nodes for var in node.inputs]
        self._constants = {var for var in [*used, *self._outputs] if var not in moving}
        self._last = last_uses(self._moving_nodes, [*self._constants, *self._outputs])

    @property
    def is_stable(self) -> bool:
        """Whether rewriting would make no part numerically more stable.

        Nodes that depend on constants only do not count, as rewriting does not change them either.
        """
        return not any(map(_may_be_unstable, self._moving_nodes))

    def __call__(self, *arguments: Any) -> list[np.ndarray]:
        """Return the outputs, the caller's own; NotInterpretedError if an entry is not finite."""
        found = self.as_written(*arguments)
        if not all(np.isfinite(value).all() for value in found):
            raise NotInterpretedError("not finite")
        return found

    def as_written(self, *arguments: Any) -> list[np.ndarray]:
        """Return the outputs, finite or not; NotInterpretedError if an operation fails."""
        with _failures_as_not_interpreted():
            return self._evaluate(arguments)

    def with_rounding(self, *arguments: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the outputs, finite or not, and a bound on the rounding error of each entry.

        Numbers that PyTensor computes in single precision, as it does with small integers, count
        with their difference from double precision. For the bounds see :class:`.Rounding`.
        """
        if self._rounding is None:
            nodes = [*self._constant_nodes, *self._moving_nodes]
            self._rounding = Rounding(nodes, last_uses(nodes, self._outputs), self._outputs)
        with _failures_as_not_interpreted():
            values = self._evaluate(arguments)
            given = dict(zip(self._inputs, arguments, strict=True))
            found = self._rounding(given, {var: _value(var) for var in self._shared})
            bounds = [
                bound + 2.0 * difference(value, exact)
                for value, (exact, bound) in zip(values, found, strict=True)
            ]
        return values, [np.where(np.isnan(bound), np.inf, bound) for bound in bounds]

    def _evaluate(self, arguments: Sequence[Any]) -> list[np.ndarray]:
        if self._calls is None or self._known is None:
            self._known = self._evaluate_constants()
            self._calls = [
                (_call_of(node), node.inputs, node.outputs, last)
                for node, last in zip(self._moving_nodes, self._last, strict=True)
            ]
        values = self._known | dict(zip(self._inputs, arguments, strict=True))
        values |= {var: _value(var) for var in self._shared}
        not_ours = list(values.values())
        for call, inputs, outputs, last in self._calls:
            self._store(values, outputs, call(*[values[var] for var in inputs]))
            for var in last:
                del values[var]
        return own([np.asarray(values[var]) for var in self._outputs], not_ours)

    def _store(self, values: dict[Variable, Any], outputs: Sequence[Variable], found: Any) -> None:
        for var, value in zip(outputs, found if len(outputs) > 1 else (found,), strict=True):
            if getattr(value, "size", 0) > self._largest:
                raise NotInterpretedError("large")
            values[var] = value

    def _evaluate_constants(self) -> dict[Variable, Any]:
        """Return the needed values of constants and of graphs of constants."""
        leaves = [*self._constants, *(v for node in self._constant_nodes for v in node.inputs)]
        values = {var: var.data for var in leaves if isinstance(var, Constant)}
        last = last_uses(self._constant_nodes, self._constants)
        for node, finished in zip(self._constant_nodes, last, strict=True):
            self._store(values, node.outputs, _call_of(node)(*[values[var] for var in node.inputs]))
            for var in finished:
                del values[var]
        return values


def _call_of(node: Apply) -> Call:
    """Return a node's function, without errors for unmet conditions."""
    if isinstance(node.op, CheckParameterValue) and node.op.can_be_replaced_by_ninf:
        return _first_if_all
    return lower(node)[0]


def _first_if_all(value: Any, *conditions: Any) -> Any:
    return value if np.all(conditions) else np.full_like(value, -np.inf)


def interpret(outputs: Sequence[Variable]) -> list[np.ndarray]:
    """Return the values of graphs that have no arguments; raises as an interpreter does."""
    return Interpreter(outputs, ())()


def _expanded(outputs: Sequence[Variable]) -> list[Variable]:
    """Return graphs with ops that represent a graph, such as log Σ exp, replaced by it."""
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


def _value(shared: SharedVariable) -> np.ndarray:
    value = shared.get_value(borrow=True)
    if isinstance(value, np.ma.MaskedArray):  # pm.set_data masks NaN
        raise NotInterpretedError("masked")
    return value


def _size_of(var: Variable) -> int:
    """Return the number of entries by the type of ``var``; 0 if unknown."""
    shape = getattr(var.type, "shape", ())
    return 0 if None in shape else math.prod(shape)


def op_name(var: Variable) -> str:
    """Return the name of the op, the scalar one if there is one; "" for a leaf."""
    op = None if var.owner is None else var.owner.op
    return "" if op is None else type(getattr(op, "scalar_op", op)).__name__


def _may_be_unstable(node: Apply) -> bool:
    name = op_name(node.outputs[0])
    if name not in _OF_UNSTABLE_FORMULAS:
        return False
    (argument, *_) = node.inputs
    while argument.owner is not None and isinstance(argument.owner.op, DimShuffle | ViewOp):
        (argument,) = argument.owner.inputs
    # What a transform to positive values leaves: log(exp x), which is x wherever it is finite.
    return not (name == "Log" and op_name(argument) == "Exp")


_ARITHMETIC = (Add, Mul, Neg, Pow, Sqr, Sub)


def in_real_numbers(graphs: Sequence[Variable]) -> list[Variable]:
    """Return the graphs with correct numbers in place of overflowing whole numbers."""
    found = list(graphs)
    while (overflow := next(overflows(found), None)) is not None:
        node, inputs = overflow
        (before,), (now,) = node.outputs, node.op.make_node(*inputs).outputs
        found = clone_replace(found, {before: now.astype(before.dtype)})
    return found


def overflows(graphs: Sequence[Variable]) -> Iterator[tuple[Apply, list[Variable]]]:
    """Yield operations on real numbers with an overflowing input, and correct inputs."""
    for var in ancestors(graphs):
        node = var.owner
        if node is not None and isinstance(node.op, Elemwise) and var.dtype.startswith("float"):
            inputs = [_right(given) for given in node.inputs]
            if any(now is not before for now, before in zip(inputs, node.inputs, strict=True)):
                yield node, inputs


def _right(var: Variable) -> Variable:
    """Return the value of constant whole numbers as real ones, or ``var`` if they are equal.

    It computes both only for arithmetic of constants, which is rare.
    """
    if not _is_arithmetic(var) or not is_constant(var):
        return var
    with suppress(NotInterpretedError):
        (right,) = interpret([_in_real_numbers(var)])
        with suppress(NotInterpretedError):
            (found,) = interpret([var])
            if np.array_equal(found, right):
                return var
        return pt.constant(right, dtype="float64")
    return var


def _is_arithmetic(var: Variable) -> bool:
    """Return whether a variable is a sum, a product or a power of whole numbers."""
    node = var.owner
    if node is None or np.dtype(var.dtype).kind not in "iu":
        return False
    if isinstance(node.op, DimShuffle):
        return _is_arithmetic(node.inputs[0])
    return isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, _ARITHMETIC)


def is_constant(var: Variable) -> bool:
    """Return whether a graph is one of constants alone."""
    return all(isinstance(leaf, Constant) for leaf in ancestors([var]) if leaf.owner is None)


def _in_real_numbers(var: Variable) -> Variable:
    if not _is_arithmetic(var):
        return pt.cast(var, "float64")
    return var.owner.op.make_node(*map(_in_real_numbers, var.owner.inputs)).outputs[0]
