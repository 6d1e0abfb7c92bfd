"""Executing PyTensor graphs an operation at a time, exactly as written or with noisy rounding.

Nothing is compiled and nothing is rewritten. With noise, the result of every operation that
rounds is multiplied by 1 + ε of a few units in the last place ("Monte Carlo arithmetic"): the
spread of the results is the rounding error of the formula itself, wherever it loses digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import toposort
from pytensor.link.vm import VMLinker
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable

__all__ = ["Interpreter", "UnsupportedGraphError", "noisy"]

# Size of the noise, relative: four units in the last place. PyTensor keeps numbers that single
# precision can hold (22647.0) in it, and takes their logarithm and their reciprocal in it.
_SINGLE = 2.0**-21
_NOISE = {np.dtype(np.float64): 2.0**-50, np.dtype(np.float32): _SINGLE}

_SUBNORMAL = np.nextafter(0.0, 1.0)

# Operations that move or choose numbers, or whose result is exact.
_EXACT = frozenset(
    {"Abs", "Cast", "Ceil", "Clip", "Floor", "Identity", "Maximum", "Minimum", "Neg", "Second"}
    | {"RoundHalfAwayFromZero", "RoundHalfToEven", "ScalarMaximum", "ScalarMinimum", "Sign"}
    | {"Switch", "Trunc"}
)
_MOVES = frozenset(
    {"AdvancedIncSubtensor", "AdvancedIncSubtensor1", "AdvancedSubtensor", "AdvancedSubtensor1"}
    | {"Alloc", "AllocDiag", "ARange", "Argmax", "Assert", "CheckAndRaise", "ExtractDiag", "Eye"}
    | {"Flatten", "IncSubtensor", "Join", "MakeVector", "Max", "Nonzero", "Reshape", "Shape"}
    | {"ScalarFromTensor", "Shape_i", "SpecifyShape", "Split", "Subtensor", "TensorFromScalar"}
    | {"TypeCastingOp", "Unbroadcast", "ViewOp"}
)


class UnsupportedGraphError(Exception):
    """A graph has an operation that is not executed here."""


class Interpreter:
    """A graph as a function of the values of some of its variables.

    Parameters
    ----------
    outputs, inputs : sequence of Variable
    """

    def __init__(self, outputs: Sequence[Variable], inputs: Sequence[Variable]):
        self._outputs, self._inputs = list(outputs), list(inputs)
        self._nodes = [_Node(node) for node in toposort(self._outputs, blockers=self._inputs)]
        given = set(self._inputs)
        # In an order of their own, which draws depend on.
        used = [*(var for node in self._nodes for var in node.inputs), *self._outputs]
        leaves = dict.fromkeys(var for var in used if var.owner is None)
        self._constants = {var: var.data for var in leaves if isinstance(var, Constant)}
        self._single = [var for var, data in self._constants.items() if _is_rounded(data)]
        self._shared = [
            var for var in leaves if isinstance(var, SharedVariable) and var not in given
        ]
        unknown = set(leaves) - given - set(self._constants) - set(self._shared)
        if unknown:
            raise UnsupportedGraphError(f"no values for {unknown}")

    def __call__(
        self,
        values: Sequence[Any],
        *,
        noise: np.random.Generator | None = None,
        draws: np.random.Generator | None = None,
        only_single: bool = False,
    ) -> list[Any]:
        """Return the outputs' values.

        Parameters
        ----------
        values : sequence of array
            One for every input.
        noise : numpy.random.Generator, optional
            Of the rounding. It is the caller's to move the inputs.
        draws : numpy.random.Generator, optional
            What random variables draw from.
        only_single : bool
            Whether only what may be of single precision is noisy.
        """
        known: dict[Variable, Any] = {**self._constants}
        if noise is not None:
            known.update({var: noisy(var.data, noise, _SINGLE) for var in self._single})
        for var in self._shared:
            value = var.get_value(borrow=True)
            is_generator = isinstance(value, np.random.Generator)
            known[var] = draws.spawn(1)[0] if is_generator and draws is not None else value
        known.update(zip(self._inputs, values, strict=True))
        with np.errstate(all="ignore"):
            for node in self._nodes:
                node.run(known, noise, draws, only_single)
        return [known[var] for var in self._outputs]


class _Node:
    """One operation, ready to run."""

    def __init__(self, node: Apply):
        self._node, self.inputs = node, node.inputs
        op = node.op
        self._inner: Interpreter | None = None
        self._function: Callable | None = None
        if isinstance(op, OpFromGraph):
            self._inner = Interpreter(op.inner_outputs, op.inner_inputs)
        elif isinstance(op, HasInnerGraph):
            self._function = _function_of(node)  # a loop
        else:
            op.prepare_node(node, None, None, "py")
        name = type(getattr(op, "scalar_op", op)).__name__
        is_move = name in (_EXACT if isinstance(op, Elemwise) else _MOVES)
        self._rounds = not (is_move or isinstance(op, DimShuffle | RandomVariable | OpFromGraph))
        # The error of a factor, or a solution, is that of the result for another matrix.
        self._is_backward = self._rounds and not isinstance(op, Elemwise)

    def run(
        self,
        known: dict[Variable, Any],
        noise: np.random.Generator | None,
        draws: np.random.Generator | None,
        only_single: bool,
    ) -> None:
        """Put the results into ``known``."""
        node = self._node
        values = [known[var] for var in node.inputs]
        if noise is not None and self._is_backward and not only_single:
            values = [noisy(value, noise) for value in values]
        if isinstance(node.op, CheckParameterValue):
            # As PyMC's own functions have it. Rounding may take a probability beyond one, which
            # says nothing of the formula.
            value, *conditions = values
            holds = noise is not None or all(np.all(condition) for condition in conditions)
            found = [value if holds else np.full_like(value, -np.inf)]
        elif self._inner is not None:
            found = self._inner(values, draws=draws)
        elif self._function is not None:
            found = self._function(*values)
        elif isinstance(node.op, CAReduce) and np.ndim(values[0]) == 0:
            found = [values[0]]  # PyMC's CAR sums a scalar along an axis
        else:
            storage: list[list[Any]] = [[None] for _ in node.outputs]
            node.op.perform(node, values, storage)
            found = [value for (value,) in storage]
        rounds = noise is not None and self._rounds
        for var, value in zip(node.outputs, found, strict=True):
            is_noisy = rounds and (not only_single or var.dtype == "float32")
            known[var] = noisy(value, noise) if is_noisy else value


def _is_rounded(data: Any) -> bool:
    """Return whether a constant may have been, or may come to be, rounded to single precision.

    PyTensor keeps 3.5 in single precision, and puts its reciprocal, rounded, in its place.
    """
    if getattr(data, "dtype", None) not in _NOISE or data.size != 1 or not np.isfinite(data).all():
        return False
    if data.dtype == np.float64 and (data != data.astype(np.float32) or data == np.round(data)):
        return False
    mantissa, _ = np.frexp(np.abs(data.ravel()[0]))
    return mantissa not in (0.0, 0.5)


def _function_of(node: Apply) -> Callable:
    mode = Mode(VMLinker(use_cloop=False, c_thunks=False), "fast_compile")
    inputs = [var.clone() for var in node.inputs]
    with pytensor.config.change_flags(cxx=""):
        outputs = node.op.make_node(*inputs).outputs
        return pytensor.function(inputs, outputs, mode=mode)


def noisy(value: Any, noise: np.random.Generator, size: float | None = None) -> Any:
    """Return ``value`` off by ``size``, relative: by default a few units in the last place."""
    size = size or _NOISE.get(getattr(value, "dtype", None))
    if size is None:
        return value
    shape = np.shape(value)
    sign = noise.choice((-1.0, 1.0), shape)
    # Never so little that it is lost when the product is rounded.
    off = 1.0 + sign * size * noise.uniform(0.5, 1.0, shape)
    # What is below the smallest normal number has fewer digits.
    below = np.where(value != 0.0, sign * _SUBNORMAL * noise.integers(2, 5, shape), 0.0)
    return np.asarray(value * off + below, dtype=value.dtype)
