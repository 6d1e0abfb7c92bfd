"""PyTensor graphs as plain functions of a PyMC point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache, cached_property, reduce
from operator import add
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.maker import Function
from pytensor.compile.mode import Mode, get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import grad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import explicit_graph_inputs, graph_inputs
from pytensor.tensor.random.type import RandomGeneratorType

from pymc_augconj.errors import RecognitionError
from pymc_augconj.point import Argument, Key, Point
from pymc_augconj.python_mode import WRONG, untraced, without_compilation
from pymc_augconj.python_mode.mode import StraightLine
from pymc_augconj.python_mode.tape import NoTapeError, Registers, TapeBuilder
from pymc_augconj.typing import Index

from .interpreter import LARGEST_ARRAY, Interpreter, NotInterpretedError, in_real_numbers, interpret

# Keys are a Key, as in a Point.
Inputs = Mapping[Any, Variable]

# Points whose values NamedValues keeps.
_KEPT_VALUES = 8

#: PyMC's rewrite by which a log density is −∞, not an error, where a parameter is out of range.
OUT_OF_SUPPORT = "local_check_parameter_to_ninf_switch"


@cache
def _of_densities(mode: Mode) -> Mode:
    return mode.including(OUT_OF_SUPPORT).excluding(*WRONG)


class PointFunction:
    """A function of named values, compiled at its first call.

    The explicit inputs of the graph ``outputs`` must be among ``inputs``, by their key in the
    point, or shared variables. The first ``first_calls`` calls run uncompiled where that loses no
    digits and no array has ``largest_array`` entries; use 0 if results must not depend on earlier
    calls. ``names`` are the keys that the graph depends on, ``shared`` the shared variables
    (``pm.Data``), whose values may change between calls. Once compiled without ``mode``, several
    threads may call it.
    """

    def __init__(
        self,
        outputs: Variable | Sequence[Variable],
        inputs: Inputs,
        mode: Any = None,
        first_calls: int = 0,
        largest_array: int = LARGEST_ARRAY,
    ) -> None:
        self._largest_array = largest_array
        self._single = isinstance(outputs, Variable)
        self._outputs = in_real_numbers([outputs] if self._single else list(outputs))
        self.graph = outputs
        leaves = set(explicit_graph_inputs(self._outputs))
        self._inputs = {name: var for name, var in inputs.items() if var in leaves}
        self.names = tuple(self._inputs)
        # Shared variables are not among the explicit inputs.
        self.shared = tuple(
            leaf for leaf in graph_inputs(self._outputs) if isinstance(leaf, SharedVariable)
        )
        if any(isinstance(leaf.type, RandomGeneratorType) for leaf in self.shared):
            raise RecognitionError(
                "the model's graph draws random numbers: expected every random variable to be a "
                "variable of the model, found one made by .dist() (register it under a name: "
                "pm.Normal('b', …) instead of pm.Normal.dist(…)) or of an outer model (use that)"
            )
        if unknown := leaves - set(self._inputs.values()):
            raise KeyError(f"the graph depends on {unknown}, which no input provides")
        self._mode, self._first_calls = mode, first_calls
        self._function: Callable[[Point], list[np.ndarray]] | None = None
        self._interpreter: Interpreter | None = None

    def of_many(self, key: Key) -> PointFunction:
        """Return the function of many values of an input, along a first axis of it and the result.

        What does not depend on this input is computed once.
        """
        one = self._inputs[key]
        many = pt.tensor(dtype=one.type.dtype, shape=(None, *one.type.shape))
        graph = vectorize_graph(self.graph, {one: many})
        return PointFunction(graph, {**self._inputs, key: many}, self._mode, self._first_calls)

    def compile(self) -> PointFunction:
        """Compile now rather than at the first call; return itself."""
        self._compiled()
        return self

    def __getstate__(self) -> dict[str, Any]:
        # A worker process makes again what it needs.
        return self.__dict__ | {"_function": None, "_interpreter": None}

    def _compiled(self) -> Callable[[Point], list[np.ndarray]]:
        if self._function is None and not self._inputs and not self.shared:
            # Constants are computed in less time than it takes to rewrite their graph.
            with suppress(NotInterpretedError):
                values = interpret(self._outputs)
                self._function = lambda _: [np.array(value) for value in values]
        if self._function is None:
            with without_compilation() if self._mode is None else nullcontext():
                function = pytensor.function(
                    list(self._inputs.values()),
                    [pytensor.Out(output, borrow=True) for output in self._outputs],
                    mode=_of_densities(get_mode(self._mode)),
                    trust_input=True,
                    on_unused_input="ignore",
                )
            self._function = _of_point(function, self.names)
        self._interpreter = None
        return self._function

    def on_tape(self, tape: TapeBuilder, entries: Mapping[Any, Index]) -> Any:
        """Return the registers of the value, or of each value; see :class:`.OnTape`."""
        function = self._compiled()
        if not self._inputs and not self.shared:
            return self._unpacked([tape.constants(value) for value in function({})])
        if "graph" not in vars(function):
            raise NoTapeError("a compiled function")
        (fgraph, order), shared = vars(function)["graph"]
        given = [entries[name] for name in self.names]
        # Entries that are floats are numbers, and shared data too.
        values = [x if x.dtype.kind == "f" else Registers(tape, x) for x in given]
        data = [np.asarray(value) for (value,) in shared]
        return self._unpacked(tape.read(fgraph, order, [*values, *data]))

    def __call__(self, point: Point) -> Any:
        """Evaluate at ``point``; returns an array, or a list of arrays for a list of outputs."""
        if self._function is None and self._first_calls > 0:
            self._first_calls -= 1
            values = self._interpreted(_if_stable, point)
            if values is not None:
                return self._unpacked(values)
        return self._unpacked((self._function or self._compiled())(point))

    def uncompiled(self, point: Point) -> Any:
        """Evaluate at ``point`` without rewriting the graph, which takes longer than a few calls.

        Use it where the loss of digits in unstable formulas does not matter. If a value is not
        finite, the graph is compiled and evaluated in a stable form.
        """
        values = self._interpreted(Interpreter.__call__, point)
        if values is None:
            return self.compile()(point)
        return self._unpacked(values)

    def as_written(self, point: Point) -> Any:
        """Evaluate the graph without rewriting, whether or not values are finite.

        None if the interpreter cannot evaluate the graph.
        """
        with suppress(NotInterpretedError):
            return self._unpacked(self._interpret(Interpreter.as_written, point))
        return None

    def with_rounding(self, point: Point) -> tuple[Any, Any] | None:
        """Like :meth:`as_written`, with bounds on rounding: :meth:`.Interpreter.with_rounding`."""
        with suppress(NotInterpretedError):
            values, bounds = self._interpret(Interpreter.with_rounding, point)
            return self._unpacked(values), self._unpacked(bounds)
        return None

    def _unpacked(self, values: list[np.ndarray]) -> Any:
        return values[0] if self._single else values

    def _interpret[T](self, evaluate: Callable[..., T], point: Point) -> T:
        # Another thread may compile meanwhile, and drop the interpreter.
        run = self._interpreter or Interpreter(
            self._outputs, list(self._inputs.values()), largest_array=self._largest_array
        )
        self._interpreter = run
        return evaluate(run, *(point[name] for name in self._inputs))

    def _interpreted(
        self, evaluate: Callable[..., list[np.ndarray]], point: Point
    ) -> list[np.ndarray] | None:
        """Return the values without rewriting; None if the graph is or has to be compiled."""
        if self._function is None and self._mode is None:
            with suppress(NotInterpretedError):
                return self._interpret(evaluate, point)
        return None


def _if_stable(run: Interpreter, *arguments: np.ndarray) -> list[np.ndarray]:
    if not run.is_stable:
        raise NotInterpretedError("unstable")
    return run(*arguments)


def _of_point(function: Function, keys: Sequence[Key]) -> Callable[[Point], list[np.ndarray]]:
    """Return a compiled function of a point's entries; its results are the caller's to write to."""
    run = getattr(function.vm, "jit_fn", None)
    if isinstance(run, StraightLine):
        # Without PyTensor's own storage. pm.set_data masks NaN.
        shared = [one.storage for one in function.input_storage[len(keys) :]]

        def straight(point: Point) -> list[np.ndarray]:
            return run(*[point[key] for key in keys], *[np.asarray(value) for (value,) in shared])

        vars(straight)["graph"] = run.graph, shared
        return straight

    def call(point: Point) -> list[np.ndarray]:
        # At extreme values results may be infinite or NaN, which the sampler handles.
        with np.errstate(all="ignore"):
            return [np.array(value) for value in function(*[point[key] for key in keys])]

    return call


class NamedValues:
    """Several values as a dict of arrays; those at the last few points are cached.

    A step evaluates a likelihood's parameters several times at one point, and a numerical
    normaliser takes half a millisecond.
    """

    def __init__(self, keys: Sequence[str], function: PointFunction) -> None:
        self._keys, self._function = tuple(keys), function
        self.names, self.shared = function.names, function.shared
        self._known: dict[bytes, dict[str, np.ndarray]] = {}

    def __call__(self, point: Point) -> dict[str, np.ndarray]:
        if self.shared:
            return self._evaluate(point)
        at = b"".join(np.asarray(point[name]).tobytes() for name in self.names)
        # Another thread may clear them meanwhile.
        found = self._known.get(at)
        if found is None:
            if len(self._known) >= _KEPT_VALUES:
                self._known.clear()
            found = {key: np.array(v) for key, v in self._evaluate(point).items()}
            self._known[at] = found
        return found

    def compile(self) -> None:
        """Compile now rather than at the first call."""
        self._function.compile()

    def on_tape(self, tape: TapeBuilder, entries: Mapping[Any, Index]) -> dict[str, Index]:
        """Return the registers of every value; see :class:`.OnTape`."""
        return dict(zip(self._keys, self._function.on_tape(tape, entries), strict=True))

    def _evaluate(self, point: Point) -> dict[str, np.ndarray]:
        return dict(zip(self._keys, self._function(point), strict=True))


#: For ``grad``: derivatives by variables that a scalar does not depend on are zero.
UNCONNECTED = {"disconnected_inputs": "ignore", "return_disconnected": "zero"}


class Gradient:
    """Derivatives of a scalar with respect to entries of the point, compiled at the first call.

    They are by those ``inputs`` of float type that ``cost`` depends on; ``arguments`` are further
    inputs.
    """

    def __init__(
        self,
        cost: Variable,
        inputs: Inputs,
        arguments: Inputs | None = None,
        mode: Any = None,
        first_calls: int = 0,
    ) -> None:
        leaves = set(explicit_graph_inputs([cost]))
        self._cost, self._mode, self._first_calls = cost, mode, first_calls
        self._inputs = {**inputs, **(arguments or {})}
        self._wrt = {
            name: var
            for name, var in inputs.items()
            if var in leaves and var.dtype.startswith("float")
        }

    def __call__(self, point: Point) -> dict[str, np.ndarray]:
        """Return the derivatives at ``point``, by entry; empty where there are none."""
        if not self._wrt:
            return {}
        return dict(zip(self._wrt, self._function(point), strict=True))

    def compile(self) -> None:
        """Compile now rather than at the first call."""
        if self._wrt:
            self._function.compile()

    @cached_property
    def _function(self) -> PointFunction:
        with untraced():
            graphs = grad(self._cost, list(self._wrt.values()), **UNCONNECTED)
        return PointFunction(graphs, self._inputs, self._mode, self._first_calls)


class Pullback:
    """``(point, *weights) -> {name: derivative}`` of Σ ⟨weights, graph⟩ over some graphs.

    Arguments are as of :class:`Gradient`, with graphs for a scalar.
    """

    def __init__(
        self, graphs: Sequence[Variable], inputs: Inputs, arguments: Inputs, *how: Any
    ) -> None:
        weights = {Argument("weights", str(i)): g.type.clone()() for i, g in enumerate(graphs)}
        pairs = zip(weights.values(), graphs, strict=True)
        cost = reduce(add, [(own * graph).sum() for own, graph in pairs])
        self._keys = tuple(weights)
        self._gradient = Gradient(cost, inputs, {**arguments, **weights}, *how)

    def compile(self) -> None:
        """Compile now rather than at the first call."""
        self._gradient.compile()

    def __call__(self, point: Point, *weights: np.ndarray) -> dict[str, np.ndarray]:
        return self._gradient({**point, **dict(zip(self._keys, weights, strict=True))})


class SharedData:
    """The values of shared variables when this object was made."""

    def __init__(self, shared: Sequence[SharedVariable]) -> None:
        self._values = [(variable, variable.get_value(borrow=True)) for variable in shared]

    @staticmethod
    def of(graphs: Sequence[Variable]) -> list[SharedVariable]:
        """Return the shared variables that graphs depend on, but random generators."""
        leaves = [leaf for leaf in graph_inputs(graphs) if isinstance(leaf, SharedVariable)]
        return [leaf for leaf in leaves if not isinstance(leaf.type, RandomGeneratorType)]

    def changed(self) -> bool:
        """Return whether the value of any variable has changed since."""
        return any(variable.get_value(borrow=True) is not value for variable, value in self._values)
