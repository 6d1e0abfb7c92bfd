"""The random variables of a model: their dependences, parameters and names.

Names are the names that users of PyMC write: the class of a random variable often has another name
(``NegBinomialRV``, ``WeibullBetaRV``), and PyMC writes some distributions as others: an ordered
logistic regression as a ``Categorical``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.truncated import TruncatedRV
from pymc.model import Model
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, explicit_graph_inputs, toposort, walk
from pytensor.tensor.basic import Join
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.python_mode import without_compilation

from .affine import scalar_name
from .rewrite import is_random, substitute

_NONE: frozenset[Variable] = frozenset()


class ModelIndex:
    """The random variables of a model and their dependences, from one walk through its graph.

    Attributes that :class:`pymc.Model` has are those of ``model`` when the index was made.

    Attributes
    ----------
    model : pymc.Model
    parents : mapping
        The random variables that each one, and each potential, depends on with no other between.
    users : mapping
        The operations that each variable of the graph enters.
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

        def expand(var: Variable) -> Sequence[Variable]:
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

    def in_values(self, graphs: Sequence[Variable]) -> list[Variable]:
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


def name_of_op(op_name: str) -> str:
    """Return the name of a distribution, given that of the class of its random variables."""
    return _public_names().get(op_name, op_name.removesuffix("RV").lstrip("_"))


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
    if scalar_name(p) == "Sub":
        # σ(c_k − η) − σ(c_(k−1) − η)
        joined = {part.owner.inputs[0] for part in parts if _is(part, Subtensor)}
        if len(joined) == 1 and all(_is(part, Join) for part in joined):
            return "OrderedLogistic" if _contains(joined, "Sigmoid") else "Categorical"
    if scalar_name(p) == "Exp" and _is(parts[0], Join) and _contains(parts, "Erfc"):
        return "OrderedProbit"
    return "Categorical"


def _is(var: Variable, kind: type) -> bool:
    return var.owner is not None and isinstance(var.owner.op, kind)


def _contains(graphs: Iterable[Variable], name: str) -> bool:
    return any(scalar_name(var) == name for var in ancestors(graphs))
