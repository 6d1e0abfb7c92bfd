"""Turning PyTensor graphs into plain functions of a PyMC point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import grad
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import applys_between, explicit_graph_inputs, graph_inputs, toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.type import RandomGeneratorType

from ..errors import RecognitionError
from ..python_mode import python_mode

__all__ = ["Gradient", "NamedValues", "PointFunction", "SharedData", "without_compilation"]

# Points whose values NamedValues keeps.
_KEPT_VALUES = 8


# PyMC's rewrite by which a log density is −∞, not an error, where a parameter is out of range.
_OUT_OF_SUPPORT = "local_check_parameter_to_ninf_switch"


@contextmanager
def without_compilation() -> Iterator[None]:
    """Let what PyTensor compiles run in its Python virtual machine, inner functions included."""
    # An op with an inner graph (Scan) is linked with compiled code wherever there is a compiler,
    # whatever the mode of the function it stands in.
    with pytensor.config.change_flags(mode=python_mode(), cxx=""):
        yield


class PointFunction:
    """A function of named values, compiled at its first call.

    Parameters
    ----------
    outputs : sequence of Variable, or Variable
        The graph. Its explicit inputs must be among ``inputs`` or shared variables.
    inputs : mapping from str to Variable
        The values the graph may depend on, by their key in the point.
    mode : optional
        A PyTensor mode; by default :func:`python_mode`.

    Attributes
    ----------
    names : tuple of str
        The keys that the graph does depend on.
    graph : Variable or sequence of Variable
        What it evaluates.
    shared : tuple of SharedVariable
        What it reads besides (``pm.Data``), whose values may change between calls.
    """

    def __init__(
        self,
        outputs: Variable | Sequence[Variable],
        inputs: Mapping[str, Variable],
        mode: Any = None,
    ):
        self._single = isinstance(outputs, Variable)
        self._outputs = [outputs] if self._single else list(outputs)
        self.graph = outputs
        leaves = set(explicit_graph_inputs(self._outputs))
        self._inputs = {name: var for name, var in inputs.items() if var in leaves}
        self.names = tuple(self._inputs)
        # Shared variables are no explicit inputs.
        self.shared = tuple(
            leaf for leaf in graph_inputs(self._outputs) if isinstance(leaf, SharedVariable)
        )
        unknown = [
            leaf
            for leaf in leaves
            if not isinstance(leaf, Constant | SharedVariable)
            and leaf not in set(self._inputs.values())
        ]
        if any(isinstance(leaf.type, RandomGeneratorType) for leaf in self.shared):
            raise RecognitionError(
                "the model's graph draws random numbers: a random variable is left in it; expected "
                "every one to be a variable of the model; give those made by .dist() a name and "
                "a place in it (pm.Normal('b', …) for pm.Normal.dist(…))"
            )
        if unknown:
            raise KeyError(f"the graph depends on {unknown}, which no input provides")
        self._mode = mode
        self._function = None

    def compile(self) -> PointFunction:
        """Compile now rather than at the first call; returns itself."""
        if self._function is None and not self._inputs and not self.shared:
            # A few operations on constants are done in less time than it takes to rewrite them.
            constants = _interpret(self._outputs)
            if constants is not None:
                self._function = _Constants(constants)
        if self._function is None:
            with without_compilation() if self._mode is None else nullcontext():
                self._function = pytensor.function(
                    list(self._inputs.values()),
                    [pytensor.Out(output, borrow=True) for output in self._outputs],
                    mode=get_mode(self._mode).including(_OUT_OF_SUPPORT),
                    trust_input=True,
                    on_unused_input="ignore",
                )
        return self

    def copies(self, count: int) -> list[PointFunction]:
        """Return this function and further ones, compiled, each for a thread of its own.

        No more than this one where the graph has an op with an inner function, which it would
        share with every copy.
        """
        if any(isinstance(node.op, HasInnerGraph) for node in applys_between((), self._outputs)):
            count = 1
        graph = self._outputs[0] if self._single else self._outputs
        more = (PointFunction(graph, self._inputs, self._mode) for _ in range(count - 1))
        return [function.compile() for function in (self, *more)]

    def __call__(self, point: Mapping[str, np.ndarray]) -> Any:
        """Evaluate at ``point``; returns an array, or a list of arrays for a list of outputs."""
        if self._function is None:
            self.compile()
        # Far out a sampler meets infinities, which are its own to judge.
        with np.errstate(all="ignore"):
            values = self._function(*(point[name] for name in self._inputs))
        return values[0] if self._single else values


class _Constants:
    """What stands for a function without inputs; gives copies, since callers may write to them."""

    def __init__(self, values: Sequence[np.ndarray]):
        self._values = list(values)

    def __call__(self) -> list[np.ndarray]:
        return [np.array(value) for value in self._values]


# Graphs of constants with more operations than this are compiled.
_LARGEST_INTERPRETED = 12


def _interpret(outputs: Sequence[Variable]) -> list[np.ndarray] | None:
    """Evaluate a graph of constants, an operation at a time; None where it is not a small one."""
    nodes = list(toposort(list(outputs)))
    if len(nodes) > _LARGEST_INTERPRETED or not all(_is_plain(node) for node in nodes):
        return None
    storage = {
        var: [var.data if isinstance(var, Constant) else None]
        for node in nodes
        for var in (*node.inputs, *node.outputs)
    }
    storage |= {var: [var.data] for var in outputs if isinstance(var, Constant)}
    for node in nodes:
        computed = {var: [var.owner is None] for var in (*node.inputs, *node.outputs)}
        node.op.make_py_thunk(node, storage, computed, [])()
    return [np.asarray(storage[var][0]) for var in outputs]


def _is_plain(node: Apply) -> bool:
    """Return whether an operation is one of NumPy's as it stands."""
    if isinstance(node.op, HasInnerGraph | CheckAndRaise):
        return False
    return not isinstance(node.op, Elemwise) or node.op.nfunc_spec is not None


class NamedValues:
    """Several values as a dict of arrays; those at the last few points are kept.

    A step asks for a likelihood's parameters several times at one point, and a normaliser that is
    computed takes half a millisecond.

    Parameters
    ----------
    keys : sequence of str
    function : PointFunction
        Returns one array for every key.
    """

    def __init__(self, keys: Sequence[str], function: PointFunction):
        self._keys, self._function = tuple(keys), function
        self.names, self.shared = function.names, function.shared
        self._known: dict[bytes, dict[str, np.ndarray]] = {}

    def __call__(self, point: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the values at ``point``."""
        if self.shared:
            return self._evaluate(point)
        at = b"".join(np.asarray(point[name]).tobytes() for name in self.names)
        if at not in self._known:
            if len(self._known) >= _KEPT_VALUES:
                self._known.clear()
            self._known[at] = {key: np.array(v) for key, v in self._evaluate(point).items()}
        return self._known[at]

    def _evaluate(self, point: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(self._keys, self._function(point), strict=True))


class Gradient:
    """Derivatives of a scalar with respect to entries of the point, compiled at the first call.

    Parameters
    ----------
    cost : Variable
        The scalar's graph.
    inputs : mapping from str to Variable
        Entries of the point; derivatives are taken by the float ones that ``cost`` depends on.
    arguments : mapping from str to Variable
        Further inputs, by their keys in the point.
    mode : optional
        A PyTensor mode; by default :func:`python_mode`.
    """

    def __init__(
        self,
        cost: Variable,
        inputs: Mapping[str, Variable],
        arguments: Mapping[str, Variable] | None = None,
        mode: Any = None,
    ):
        leaves = set(explicit_graph_inputs([cost]))
        self._cost, self._mode = cost, mode
        self._inputs = {**inputs, **(arguments or {})}
        self._wrt = {
            name: var
            for name, var in inputs.items()
            if var in leaves and var.dtype.startswith("float")
        }
        self._function: PointFunction | None = None

    def __call__(self, point: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the derivatives at ``point``, by entry; empty where there are none."""
        if not self._wrt:
            return {}
        return dict(zip(self._wrt, self._build()(point), strict=True))

    def _build(self) -> PointFunction:
        if self._function is None:
            graphs = grad(
                self._cost,
                list(self._wrt.values()),
                disconnected_inputs="ignore",
                return_disconnected="zero",
            )
            self._function = PointFunction(graphs, self._inputs, self._mode)
        return self._function

    def copies(self, count: int) -> list[Gradient]:
        """Return this and further ones, each for a thread of its own."""
        if not self._wrt:
            return [self] * count
        found = []
        for function in self._build().copies(count):
            other = copy(self)
            other._function = function
            found.append(other)
        return found


class SharedData:
    """The values that shared variables held when this was made."""

    def __init__(self, shared: Sequence[SharedVariable]):
        self._values = [(variable, variable.get_value(borrow=True)) for variable in shared]

    def changed(self) -> bool:
        """Return whether any has been given another value since; takes no time."""
        return any(variable.get_value(borrow=True) is not value for variable, value in self._values)
