"""The random variables of a model: their dependences and names, and their values as functions.

Names are the names that users of PyMC write: the class of a random variable often has another name
(``NegBinomialRV``, ``WeibullBetaRV``), and PyMC writes some distributions as others: an ordered
logistic regression as a ``Categorical``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.transforms import _default_transform
from pymc.distributions.truncated import TruncatedRV
from pymc.initial_point import make_initial_point_expression
from pymc.model import Model
from pymc.pytensorf import compile as pm_compile
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable, equal_computations
from pytensor.graph.traversal import ancestors, explicit_graph_inputs, graph_inputs, toposort, walk
from pytensor.tensor.random.type import RandomGeneratorType
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import RecognitionError
from pymc_augconj.point import Point
from pymc_augconj.python_mode import without_compilation
from pymc_augconj.typing import Generator

from .functions import Gradient, Inputs, PointFunction, Pullback
from .interpreter import Interpreter, NotInterpretedError, interpret, op_name
from .rewrite import Variables, is_random, substitute

_NONE: frozenset[Variable] = frozenset()
# Points of the prior at which a factor must be positive. Every second is so many times as far from
# the start: data may prefer what few draws of the prior are.
_DRAWS, _FAR = 100, 3.0


class ModelIndex:
    """The random variables of a model and their dependences, from one walk through its graph.

    Attributes that :class:`pymc.Model` has are those of ``model`` when the index was made.
    ``parents`` are the random variables that each one, and each potential, depends on with no other
    between; ``users`` the operations that each variable of the graph enters.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.free_RVs, self.observed_RVs = tuple(model.free_RVs), tuple(model.observed_RVs)
        self.basic_RVs = (*self.free_RVs, *self.observed_RVs)
        self.potentials: tuple[Variable, ...] = tuple(model.potentials)
        self.rvs_to_values: Mapping[Variable, Any] = MappingProxyType(dict(model.rvs_to_values))
        self.rvs_to_transforms: Mapping[Variable, Any] = MappingProxyType(
            dict(model.rvs_to_transforms)
        )
        self.values_to_rvs = {value: rv for rv, value in self.rvs_to_values.items()}
        #: Entries of the point, by name.
        self.inputs = {(v := self.rvs_to_values[rv]).name: v for rv in self.free_RVs}
        # By variable of the graph: itself, or the random variables next above it.
        self._nearest: dict[Variable, frozenset[Variable]] = {}
        basic = set(self.basic_RVs)
        parents: dict[Variable, frozenset[Variable]] = {}
        users: dict[Variable, list[Apply]] = {}
        for node in toposort([*self.basic_RVs, *self.potentials]):
            above = _NONE.union(*(self._nearest.get(var, _NONE) for var in node.inputs))
            for var in dict.fromkeys(node.inputs):
                users.setdefault(var, []).append(node)
            for out in node.outputs:
                self._nearest[out] = frozenset([out]) if out in basic else above
                if out in basic:
                    parents[out] = above
        parents |= {potential: self.parents_of([potential]) for potential in self.potentials}
        self.parents: Mapping[Variable, frozenset[Variable]] = MappingProxyType(parents)
        self.users: Mapping[Variable, Sequence[Apply]] = MappingProxyType(users)

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelIndex, (self.model,)

    def parents_of(self, graphs: Iterable[Variable]) -> frozenset[Variable]:
        """Return the random variables that ``graphs`` depend on with no other between."""

        def expand(var: Variable) -> Variables:
            return () if var in self._nearest or var.owner is None else var.owner.inputs

        return _NONE.union(*(self._nearest.get(var, _NONE) for var in walk(list(graphs), expand)))

    def with_ancestors(self, variables: Iterable[Variable]) -> set[Variable]:
        """Return random variables and all their ancestors."""
        return set(walk(list(variables), lambda var: list(self.parents[var])))

    @cached_property
    def used(self) -> frozenset[Variable]:
        """The random variables that another one or a potential depends on."""
        return _NONE.union(*self.parents.values())

    @cached_property
    def given_data(self) -> Mapping[Variable, Variable]:
        """Data in place of observed variables; free ones keep their identity."""
        free = {rv: rv for rv in self.free_RVs}
        return MappingProxyType(free | {rv: self.rvs_to_values[rv] for rv in self.observed_RVs})

    def covers_support(self, rv: Variable) -> bool:
        """Return whether the transform of ``rv`` covers the support of its distribution.

        PyMC's own transform does, and so does no transform; another may cover only a part, as
        ``ordered`` does.
        """
        transform = self.rvs_to_transforms[rv]
        if transform is None:
            return True
        default = _default_transform(rv.owner.op, rv)
        if default is None or transform is default:
            return transform is default
        value, inputs = self.rvs_to_values[rv], rv.owner.inputs
        if default.forward(rv, *inputs).type != value.type:
            return False
        return equal_computations(
            [transform.backward(value, *inputs), transform.log_jac_det(value, *inputs)],
            [default.backward(value, *inputs), default.log_jac_det(value, *inputs)],
        )

    def in_values(self, graphs: Variables) -> list[Variable]:
        """Return the graphs with random variables replaced by functions of PyMC's point."""
        return substitute(graphs, self._in_values)

    @cached_property
    def _in_values(self) -> dict[Variable, Variable]:
        found: dict[Variable, Variable] = {}
        # Observed variables are data; free ones are in the order of their definition.
        for rv in (*self.observed_RVs, *self.free_RVs):
            found[rv], transform = self.rvs_to_values[rv], self.rvs_to_transforms.get(rv)
            if transform is not None:
                value = transform.backward(found[rv], *substitute(rv.owner.inputs, found))
                found[rv] = rv.type.filter_variable(value, allow_convert=True)
        return found


def distribution_parameters(rv: Variable) -> list[Variable]:
    """Return the graphs of a random variable's distribution parameters."""
    op = rv.owner.op
    try:
        return list(op.dist_params(rv.owner))
    except (AttributeError, NotImplementedError, ValueError):
        # A symbolic random variable without a signature has no dist_params.
        return [parent for parent in rv.owner.inputs if isinstance(parent, TensorVariable)]


def static_shape(variable: Variable) -> tuple[int, ...]:
    """Return the shape of ``variable``, computed if its type does not have it.

    The types of the graph's explicit inputs must have known shapes.
    """
    if all(length is not None for length in variable.type.shape):
        return tuple(variable.type.shape)
    inputs = [leaf for leaf in explicit_graph_inputs([variable]) if not isinstance(leaf, Constant)]
    inputs = [leaf for leaf in inputs if not isinstance(leaf, SharedVariable)]
    with without_compilation():
        function = pytensor.function(inputs, variable.shape, on_unused_input="ignore")
    shape = function(*(np.zeros(leaf.type.shape, dtype=leaf.dtype) for leaf in inputs))
    return tuple(int(length) for length in shape)


def distribution_name(rv: Variable) -> str:
    """Return the name of the distribution of a random variable."""
    op = rv.owner.op
    name = name_of_op(type(op).__name__)
    if isinstance(op, CustomDistRV | CustomSymbolicDistRV):
        return name.removesuffix(f"_{rv.name}")
    if name in ("Mixture", "Hurdle"):
        return _name_of_mixture(name, rv)
    return _name_of_categorical(rv) if name == "Categorical" else name


def name_of_op(name: str) -> str:
    """Return the name of a distribution, given that of the class of its random variables."""
    return _public_names().get(name, name.removesuffix("RV").lstrip("_"))


@cache
def _public_names() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in pm.distributions.__all__:
        kind = getattr(getattr(pm.distributions, name), "rv_type", None)
        if kind is not None:
            found.setdefault(kind.__name__, name)
    return found


def _name_of_mixture(name: str, rv: Variable) -> str:
    _, _, *components = rv.owner.inputs  # behind the generator and the weights
    components = [var for var in components if is_random(var)]
    names = [name_of_op(type(component.owner.op).__name__) for component in components]
    if names == ["Normal"]:
        return "NormalMixture"
    if len(names) != 2 or names[0] != "DiracDelta":
        return name
    if name == "Mixture":
        return f"ZeroInflated{names[1]}"
    # Counts beyond the hurdle are truncated at one.
    op = components[1].owner.op
    return name + (
        name_of_op(type(op.base_rv_op).__name__) if isinstance(op, TruncatedRV) else names[1]
    )


def _name_of_categorical(rv: Variable) -> str:
    """Distinguish classes with cutpoints from others by PyMC's formula of the probabilities."""
    p = rv.owner.op.dist_params(rv.owner)[0]
    while p.owner is not None and isinstance(p.owner.op, ViewOp):
        (p,) = p.owner.inputs
    parts = [] if p.owner is None else p.owner.inputs
    if op_name(p) == "Sub":
        # σ(c_k − η) − σ(c_(k−1) − η)
        joined = {part.owner.inputs[0] for part in parts if op_name(part) == "Subtensor"}
        if [op_name(part) for part in joined] == ["Join"]:
            return "OrderedLogistic" if _contains(joined, "Sigmoid") else "Categorical"
    if op_name(p) == "Exp" and op_name(parts[0]) == "Join" and _contains(parts, "Erfc"):
        return "OrderedProbit"
    return "Categorical"


def _contains(graphs: Iterable[Variable], name: str) -> bool:
    return any(op_name(var) == name for var in ancestors(graphs))


# Standard deviations, on the unconstrained scale, of the points at which structure is examined.
_SPREAD = 0.3
_WIDE_SPREAD = 3.0


class ValueSpace:
    """Functions of the entries of the point that are hyperparameters.

    ``inputs`` are the value variables of the random variables ``hyperparameters``, by key.
    """

    def __init__(
        self, model: ModelIndex, hyperparameters: Variables, mode: Any = None, first_calls: int = 0
    ) -> None:
        self.model, self.hyperparameters = model, hyperparameters
        self.mode, self._first_calls = mode, first_calls
        values = [model.rvs_to_values[rv] for rv in hyperparameters]
        self.inputs: dict[str, Variable] = {value.name: value for value in values}

    def function(
        self, graphs: Variable | Variables, arguments: Inputs | None = None
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
        how = self.mode, self._first_calls
        return Pullback(self.model.in_values([graph]), self.inputs, arguments or {}, *how)

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

    def _prior_draws(self) -> Iterator[Callable[[Generator], dict[str, np.ndarray]]]:
        """Yield functions that draw hyperparameters: all of them at once if possible."""
        graphs = {}
        for rv in self.hyperparameters:
            transform = self.model.rvs_to_transforms[rv]
            value = rv if transform is None else transform.forward(rv, *rv.owner.inputs)
            graphs[self.model.rvs_to_values[rv].name] = value
        try:
            yield _prior_draw(graphs)
        except NotInterpretedError:
            for name, graph in graphs.items():
                with suppress(NotInterpretedError):
                    yield _prior_draw({name: graph})

    def wide_points(self, initial: Point, n_points: int = 6) -> list[dict[str, np.ndarray]]:
        """Return points far from ``initial``, where structure must be the same."""
        rng = np.random.default_rng(1)
        return [self._around(initial, _WIDE_SPREAD, rng) for _ in range(n_points)]

    def _around(self, initial: Point, spread: float, rng: Generator) -> dict[str, np.ndarray]:
        moved = dict(initial)
        for name, var in self.inputs.items():
            if var.dtype.startswith("float"):
                step = spread * rng.standard_normal(initial[name].shape)
                moved[name] = np.asarray(initial[name] + step)
        return moved


def is_positive(model: ModelIndex, factor: Variable) -> bool:
    """Return whether a learned factor is positive at its start, in its prior and far out."""
    within = set(ancestors([factor]))
    space = ValueSpace(model, [v for v in model.free_RVs if v in within], first_calls=_DRAWS + 1)
    start, read = space.points()[0], space.function(factor)
    points = space.prior_points(start, _DRAWS)
    for point in points[::2]:
        point |= {n: start[n] + _FAR * (point[n] - start[n]) for n in space.inputs}
    return all(bool(np.all(read(point) > 0.0)) for point in [start, *points])


def _prior_draw(graphs: Mapping[str, Variable]) -> Callable[[Generator], dict[str, np.ndarray]]:
    """Return a function that draws graphs of random variables, with a child for each generator."""
    outputs = list(graphs.values())
    leaves = [leaf for leaf in graph_inputs(outputs) if isinstance(leaf.type, RandomGeneratorType)]
    run = Interpreter(outputs, leaves, draws=True)
    return lambda rng: dict(zip(graphs, run.as_written(*rng.spawn(len(leaves))), strict=True))


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


def _initial_point_by_pymc(model: Model, graphs: Variables) -> dict[str, np.ndarray]:
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
