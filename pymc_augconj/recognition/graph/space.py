"""From graphs of random variables to functions of PyMC's point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from pymc.initial_point import make_initial_point_expression
from pymc.model import Model
from pymc.pytensorf import compile as pm_compile
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.random.type import RandomGeneratorType

from pymc_augconj.errors import RecognitionError
from pymc_augconj.point import Argument, Point
from pymc_augconj.python_mode import without_compilation
from pymc_augconj.typing import Array

from .dependence import ModelIndex
from .functions import Gradient, Inputs, PointFunction
from .interpreter import Interpreter, NotInterpretedError, interpret

# Standard deviations, on the unconstrained scale, of the points at which structure is examined.
_SPREAD = 0.3
_WIDE_SPREAD = 3.0

_WEIGHTS = Argument("weights")


class ValueSpace:
    """Functions of the entries of the point that are hyperparameters.

    Attributes
    ----------
    model : ModelIndex
    hyperparameters : sequence of Variable
        Their random variables.
    inputs : dict
        Their value variables, by the key in the point.
    """

    def __init__(
        self,
        model: ModelIndex,
        hyperparameters: Sequence[Variable],
        mode: Any = None,
        first_calls: int = 0,
    ) -> None:
        self.model, self.hyperparameters = model, hyperparameters
        self.mode, self._first_calls = mode, first_calls
        values = [model.rvs_to_values[rv] for rv in hyperparameters]
        self.inputs: dict[str, Variable] = {value.name: value for value in values}

    def function(
        self, graphs: Variable | Sequence[Variable], arguments: Inputs | None = None
    ) -> PointFunction:
        """Return graphs of the model's variables and further ``arguments`` as a function."""
        single = isinstance(graphs, Variable)
        found = self.model.in_values([graphs] if single else list(graphs))
        inputs: Inputs = {**self.inputs, **(arguments or {})}
        outputs = found[0] if single else found
        return PointFunction(outputs, inputs, self.mode, self._first_calls)

    def gradient(self, cost: Variable, arguments: Inputs | None = None) -> Gradient:
        """Return the derivatives of a scalar with respect to the hyperparameters."""
        (cost,) = self.model.in_values([cost])
        return Gradient(cost, self.inputs, arguments, self.mode, self._first_calls)

    def pullback(self, graph: Variable, arguments: Inputs | None = None) -> Pullback:
        """Return the derivatives of ⟨weights, graph⟩ as a function of the weights as well."""
        return Pullback(self, graph, arguments or {})

    def points(self, spread: float = _SPREAD) -> list[dict[str, np.ndarray]]:
        """Return PyMC's initial point, and two more around it."""
        initial = _initial_point(self.model.model)
        rng = np.random.default_rng(0)
        return [initial, *(self._around(initial, spread, rng) for _ in range(2))]

    def prior_points(self, initial: Point, n_points: int = 3) -> list[dict[str, np.ndarray]]:
        """Return points whose hyperparameters are drawn from their prior, the rest ``initial``'s.

        Hyperparameters whose prior draws need a compiled function are far from ``initial`` instead.
        """
        rng = np.random.default_rng(2)
        moved = [self._around(initial, _WIDE_SPREAD, rng) for _ in range(n_points)]
        for draw in self._prior_draws():
            for point in moved:
                with suppress(NotInterpretedError):
                    point |= {n: np.asarray(v, initial[n].dtype) for n, v in draw(rng).items()}
        return moved

    def _prior_draws(self) -> Iterator[Callable[[np.random.Generator], dict[str, np.ndarray]]]:
        """Yield functions that draw hyperparameters: all of them at once if possible."""
        graphs = {}
        for rv in self.hyperparameters:
            transform = self.model.rvs_to_transforms[rv]
            value = rv if transform is None else transform.forward(rv, *rv.owner.inputs)
            graphs[self.model.rvs_to_values[rv].name] = value
        try:
            yield _PriorDraw(graphs)
        except NotInterpretedError:
            for name, graph in graphs.items():
                with suppress(NotInterpretedError):
                    yield _PriorDraw({name: graph})

    def wide_points(self, initial: Point, n_points: int = 6) -> list[dict[str, np.ndarray]]:
        """Return points far from ``initial``, where structure must be the same."""
        rng = np.random.default_rng(1)
        return [self._around(initial, _WIDE_SPREAD, rng) for _ in range(n_points)]

    def _around(
        self, initial: Point, spread: float, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        moved = dict(initial)
        for name, var in self.inputs.items():
            if var.dtype.startswith("float"):
                step = spread * rng.standard_normal(initial[name].shape)
                moved[name] = np.asarray(initial[name] + step)
        return moved


class Pullback:
    """``(point, weights) -> {name: derivative}`` of ⟨weights, graph⟩, derived at the first call."""

    def __init__(self, space: ValueSpace, graph: Variable, arguments: Inputs) -> None:
        self._space, self._graph, self._arguments = space, graph, arguments

    @cached_property
    def _gradient(self) -> Gradient:
        weights = self._graph.type.clone(name=None)("weights")
        cost = (weights * self._graph).sum()
        return self._space.gradient(cost, {**self._arguments, _WEIGHTS: weights})

    def __call__(self, point: Point, weights: Array) -> dict[str, Array]:
        return self._gradient({**point, _WEIGHTS: weights})


class _PriorDraw:
    """Draws graphs of random variables, by name, a generator's child for each of these."""

    def __init__(self, graphs: Mapping[str, Variable]) -> None:
        outputs = list(graphs.values())
        self._names = tuple(graphs)
        self._generators = [
            leaf for leaf in graph_inputs(outputs) if isinstance(leaf.type, RandomGeneratorType)
        ]
        self._run = Interpreter(outputs, self._generators, draws=True)

    def __call__(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        found = self._run.as_written(*rng.spawn(len(self._generators)))
        return dict(zip(self._names, found, strict=True))


def _initial_point(model: Model) -> dict[str, np.ndarray]:
    """Return ``model.initial_point()``, which compiles a function for it."""
    graphs = make_initial_point_expression(
        free_rvs=model.free_RVs,
        rvs_to_transforms=model.rvs_to_transforms,
        initval_strategies=model.rvs_to_initial_values,
        return_transformed=True,
    )
    names = [model.rvs_to_values[rv].name for rv in model.free_RVs]
    try:
        found = interpret(graphs)
    except NotInterpretedError:
        return _initial_point_by_pymc(model, graphs)
    return {name: np.array(value) for name, value in zip(names, found, strict=True)}


def _initial_point_by_pymc(model: Model, graphs: Sequence[Variable]) -> dict[str, np.ndarray]:
    """Return ``model.initial_point()``, which may draw values from a prior."""
    try:
        with without_compilation():
            return model.initial_point(random_seed=0)
    except Exception as error:
        failing = [
            rv.name for rv, graph in zip(model.free_RVs, graphs, strict=True) if _fails(graph)
        ]
        reason = (str(error).splitlines() or [""])[0]
        raise RecognitionError(
            f"{failing[0] if failing else 'the model'!r}: expected an initial value, but PyMC "
            f"cannot compute one ({type(error).__name__}: {reason}); check the shape and the "
            "parameters of this variable, or replace it (a 1 × 1 LKJCholeskyCov by the prior of "
            "its standard deviation)"
        ) from error


def _fails(graph: Variable) -> bool:
    try:
        with without_compilation():
            pm_compile([], [graph], mode="FAST_COMPILE")()
    except Exception:
        return True
    return False
