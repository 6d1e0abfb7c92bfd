"""Executing graphs as they stand: one NumPy call an operation, nothing rewritten before.

Rewriting a graph takes PyTensor some tens of milliseconds, and most functions of a model are
evaluated a few times at most. What rewriting is good for besides speed, the stable form of
formulas like log(1 + exp x), is lost: see :attr:`Interpreter.has_unstable_form`, and
:meth:`~.compile.PointFunction.as_it_stands` for what is done about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort

from .numpy_calls import call_of, is_plain

__all__ = ["Interpreter", "NotInterpretedError"]

# Arrays of more entries (8 MB) are worth rewriting for: it saves passes over them.
_LARGEST_ARRAY = 2**20

# PyTensor's stabilising rewrites replace formulas that contain one of these.
_OF_UNSTABLE_FORMULAS = frozenset(
    {"Erf", "Erfc", "Erfcx", "Expm1", "Log", "Log10", "Log1mexp", "Log1p", "Log2", "LogSoftmax"}
    | {"Sigmoid", "Softmax", "Softplus"}
)


class NotInterpretedError(Exception):
    """A graph, or its value at these arguments, is not for the interpreter."""


class Interpreter:
    """A graph as a function, executed an operation at a time.

    What depends on constants alone is computed at the first call and kept.

    Parameters
    ----------
    outputs, inputs : sequence of Variable
        The graph, and those of its leaves that are arguments, constants excepted all of them.

    Raises
    ------
    NotInterpretedError
        If it has an operation that is not one of NumPy's: a random variable, a loop.
    """

    def __init__(self, outputs: Sequence[Variable], inputs: Sequence[Variable]):
        self._outputs, self._inputs = list(outputs), list(inputs)
        nodes = list(toposort(self._outputs))
        moving = set(self._inputs)
        self._constant_nodes: list[Apply] = []
        self._moving_nodes: list[Apply] = []
        for node in nodes:
            if not is_plain(node):
                raise NotInterpretedError(str(node.op))
            if moving.isdisjoint(node.inputs):
                self._constant_nodes.append(node)
            else:
                self._moving_nodes.append(node)
                moving.update(node.outputs)
        self._known: dict[Variable, Any] | None = None
        self._calls: list[tuple] | None = None
        used = [var for node in self._moving_nodes for var in node.inputs]
        self._constants = {var for var in [*used, *self._outputs] if var not in moving}
        self._last = _last_uses(self._moving_nodes, [*self._constants, *self._outputs])

    @property
    def has_unstable_form(self) -> bool:
        """Whether rewriting might replace a part by one that is numerically more stable."""
        nodes = [*self._constant_nodes, *self._moving_nodes]
        return any(
            type(getattr(node.op, "scalar_op", node.op)).__name__ in _OF_UNSTABLE_FORMULAS
            for node in nodes
        )

    def __call__(self, *arguments: np.ndarray) -> list[np.ndarray]:
        """Return the outputs, which are the caller's to write to.

        Raises
        ------
        NotInterpretedError
            If an operation fails, or an array is too large, or an entry is not finite.
        """
        return self._guarded(self._evaluate, arguments)

    def constants(self) -> list[np.ndarray]:
        """Return the outputs of a graph without arguments, which nobody may write to.

        Raises
        ------
        NotInterpretedError
            As above.
        """
        return self._guarded(self._without_arguments)

    def _guarded(self, evaluate, *arguments) -> list[np.ndarray]:
        try:
            with np.errstate(all="ignore"):
                found = evaluate(*arguments)
        except NotInterpretedError:
            raise
        except Exception as error:
            # Whoever asks compiles the graph then, and meets the error there if it is a real one.
            raise NotInterpretedError(str(error)) from error
        if not all(np.isfinite(value).all() for value in found):
            raise NotInterpretedError("not finite")
        return found

    def _without_arguments(self) -> list[np.ndarray]:
        values = self._evaluate_constants()
        return [np.asarray(values[var]) for var in self._outputs]

    def _evaluate(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self._calls is None:
            self._known = self._evaluate_constants()
            self._calls = [
                (call_of(node), node.inputs, node.outputs, last)
                for node, last in zip(self._moving_nodes, self._last, strict=True)
            ]
        values = self._known | dict(zip(self._inputs, arguments, strict=True))
        not_ours = {id(value) for value in values.values()}
        for call, inputs, outputs, last in self._calls:
            _store(values, outputs, call(*[values[var] for var in inputs]))
            for var in last:
                del values[var]
        results = [np.asarray(values[var]) for var in self._outputs]
        return [
            value.copy() if id(value) in not_ours or value.base is not None else value
            for value in results
        ]

    def _evaluate_constants(self) -> dict[Variable, Any]:
        """Return the values of constants, and of what depends on nothing else, that are needed."""
        values: dict[Variable, Any] = {}
        leaves = [*self._constants, *(v for node in self._constant_nodes for v in node.inputs)]
        values = {var: var.data for var in leaves if isinstance(var, Constant)}
        last = _last_uses(self._constant_nodes, self._constants)
        for node, finished in zip(self._constant_nodes, last, strict=True):
            _store(values, node.outputs, call_of(node)(*[values[var] for var in node.inputs]))
            for var in finished:
                del values[var]
        return values


def _store(values: dict[Variable, Any], outputs: Sequence[Variable], found: Sequence[Any]) -> None:
    for var, value in zip(outputs, found, strict=True):
        if getattr(value, "size", 0) > _LARGEST_ARRAY:
            raise NotInterpretedError("large")
        values[var] = value


def _last_uses(nodes: Sequence[Apply], kept: Iterable[Variable]) -> list[list[Variable]]:
    """Return, for every node, the results that no later one needs."""
    seen = set(kept)
    last: list[list[Variable]] = []
    for node in reversed(nodes):
        finished = [var for var in dict.fromkeys([*node.inputs, *node.outputs]) if var not in seen]
        seen.update(finished)
        last.append(finished)
    return last[::-1]
