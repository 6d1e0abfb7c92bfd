"""Reading an observed variable of any distribution through PyMC's own log density.

Its parameters must depend on the latents through one affine predictor η with one entry an
observation. Then log p(y | η) is PyMC's density with stand-ins for y and η, and with its
hyperparameters as ``params``: each a number, or one number an observation. A vector that all
observations share, such as cutpoints, is as many numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Switch
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from ..likelihoods.generic import GenericLikelihood
from .affine import depends_on, descendants, has_misleading_derivative, is_affine
from .latents import GaussianVariable, in_innovations, static_shape
from .links import peel
from .probe import without_number
from .rewrite import simplify
from .rows import RowFunction, dependents, rebuild

__all__ = ["GenericReading", "read_generic"]

# A vector that all observations share becomes at most so many numbers.
_LARGEST_VECTOR = 64


@dataclass(frozen=True, eq=False)
class GenericReading:
    """A likelihood, with the graphs of its predictor and of its parameters."""

    likelihood: GenericLikelihood
    predictor: TensorVariable
    params: dict[str, TensorVariable]


def read_generic(
    model: Model, rv: Variable, latents: Sequence[GaussianVariable]
) -> GenericReading | None:
    """Return how an observed variable depends on one predictor, or None where it does not.

    Parameters
    ----------
    model : pymc.Model
    rv : Variable
        The observed variable.
    latents : sequence of GaussianVariable
    """
    shape = static_shape(rv)
    inputs = [latent.input for latent in latents]
    if len(shape) != 1 or getattr(rv.owner.op, "ndim_supp", 0) != 0:
        return None
    (within,) = in_innovations([rv], list(latents))
    offsets = _predictors(within, inputs, shape)
    if offsets is None:
        return None
    value = rv.type()
    densities = [pm.logp(within, value), _log_cdf(within, value)]
    graphs = [graph for graph in densities if graph is not None]
    if any(graph.ndim != 1 for graph in graphs):
        return None
    bases = [value, *offsets]
    parameters = _Parameters(shape[0], model)
    parameters.collect([offset for offset in offsets.values() if not _is_zero(offset)], [])
    parameters.collect(_distribution_inputs(within), bases)
    parameters.collect(graphs, [*bases, *parameters.stand_ins])
    if not parameters.possible:
        return None
    y = pt.vector("y", dtype=rv.dtype)
    row = pt.vector("eta", dtype="float64")
    stand_ins = {value: y, **parameters.stand_ins}
    for var, offset in offsets.items():
        shifted = row
        if not _is_zero(offset):
            shifted = row + rebuild(offset, parameters.stand_ins)
        stand_ins[var] = shifted.astype(var.dtype)
    try:
        functions = [
            RowFunction(rebuild(graph, stand_ins), y, row, parameters.scalars, parameters.rows)
            for graph in graphs
        ]
        for function in functions:
            _try(function, parameters)
    except Exception:  # any op may refuse to be rebuilt, in its own way
        return None
    likelihood = GenericLikelihood(
        type(rv.owner.op).__name__.removesuffix("RV").lstrip("_"),
        _link(within, list(offsets), inputs),
        *functions,
        discrete=not rv.dtype.startswith("float"),
    )
    return GenericReading(likelihood, next(iter(offsets)), parameters.graphs())


def _log_cdf(within: Variable, value: Variable) -> Variable | None:
    try:
        return pm.logcdf(within, value)
    except (NotImplementedError, TypeError, ValueError):
        return None


def _distribution_inputs(rv: Variable) -> list[Variable]:
    """Return what a random variable depends on but for its generator and its size."""
    op = rv.owner.op
    if hasattr(op, "dist_params"):
        # A symbolic random variable without a signature does not know them.
        with suppress(NotImplementedError, ValueError):
            return list(op.dist_params(rv.owner))
    return [var for var in rv.owner.inputs if isinstance(var, TensorVariable)]


# -- the predictor --------------------------------------------------------------------------------


def _predictors(
    within: Variable, latents: Sequence[Variable], shape: tuple[int, ...]
) -> dict[Variable, Variable | None] | None:
    """Return the affine variables through which ``within`` depends on the latents.

    Each is given as η, the first, plus something free of latents.
    """
    found: dict[Variable, None] = {}
    seen: set[Variable] = set()
    stack = _distribution_inputs(within)
    while stack:
        var = stack.pop()
        if var in seen or not depends_on(var, latents):
            continue
        seen.add(var)
        if _has_rows(var, shape) and is_affine(pt.as_tensor(var), latents):
            # From −f/√2, as in Φ(f), to f.
            plain = without_number(var, latents)
            found[plain if _has_rows(plain, shape) else var] = None
        elif var.owner is None:
            return None
        elif isinstance(var.owner.op, RNGConsumerOp):
            stack.extend(_distribution_inputs(var))
        else:
            stack.extend(filter(_is_tensor, var.owner.inputs))
    offsets = _one_predictor(list(found), latents, shape)
    if offsets is None or any(_has_steps(v, list(offsets)) for v in _between(within, offsets)):
        return None
    return offsets


def _one_predictor(
    found: Sequence[Variable], latents: Sequence[Variable], shape: tuple[int, ...]
) -> dict[Variable, Variable | None] | None:
    if not found:
        return None
    first, *rest = found
    offsets: dict[Variable, Variable | None] = {first: None}
    for other in rest:
        (difference,) = simplify([other - first])
        if depends_on(difference, latents):
            break
        offsets[other] = difference
    else:
        return offsets
    # Multiples of η, say: what all of them are made of.
    common, *chains = (_chain(var, latents, shape) for var in found)
    for var in common:
        if all(var in chain for chain in chains) and is_affine(var, latents):
            return {var: None}
    return None


def _chain(var: Variable, latents: Sequence[Variable], shape: tuple[int, ...]) -> list[Variable]:
    """Return what ``var`` is a function of, and what that is one of, and so on."""
    chain = []
    while True:
        if _has_rows(var, shape):
            chain.append(var)
        parts = [] if var.owner is None else var.owner.inputs
        parts = {part for part in parts if depends_on(part, latents)}
        if len(parts) != 1:
            return chain
        (var,) = parts


def _is_zero(offset: Variable | None) -> bool:
    number = None if offset is None else _number(offset)
    return offset is None or (number is not None and not number.any())


def _number(var: Variable) -> np.ndarray | None:
    """Return the number that every entry of a constant is."""
    while isinstance(var.owner and var.owner.op, Alloc):
        var = var.owner.inputs[0]
    if not isinstance(var, Constant) or np.unique(var.data).size != 1:
        return None
    return np.ravel(var.data)[:1]


def _between(within: Variable, found: Collection[Variable]) -> list[Variable]:
    return [
        var
        for parameter in _distribution_inputs(within)
        for var in descendants(parameter, list(found))
        if not isinstance(var.owner.op, RNGConsumerOp)
    ]


def _has_steps(var: Variable, predictors: Sequence[Variable]) -> bool:
    """Return whether ``var`` is constant in η, piece by piece."""
    scalar_op = getattr(var.owner.op, "scalar_op", None)
    if isinstance(scalar_op, Switch):
        return not depends_on(var.owner.inputs[1:], predictors)
    return var.dtype.startswith("float") and has_misleading_derivative(var)


def _has_rows(var: Variable, shape: tuple[int, ...]) -> bool:
    if not (isinstance(var, TensorVariable) and var.dtype.startswith("float") and var.ndim == 1):
        return False
    return static_shape(var) == shape


def _link(within: Variable, predictors: Sequence[Variable], latents: Sequence[Variable]) -> str:
    parameters = [p for p in _distribution_inputs(within) if depends_on(p, latents)]
    if set(parameters).intersection(predictors):
        return "identity"
    links = {_named_link(graph, latents) for graph in simplify(parameters)}
    return links.pop() if len(links) == 1 else "its own"


def _named_link(graph: Variable, latents: Sequence[Variable]) -> str:
    for link in ("logit", "probit", "log", "scaled_logit", "scaled_square"):
        peeled = peel(graph, link, latents)
        if peeled is not None and is_affine(pt.as_tensor(peeled[0]), latents):
            return link.removeprefix("scaled_")
    return "its own"


# -- the parameters -------------------------------------------------------------------------------


class _Parameters:
    """What a density depends on besides y and η.

    Attributes
    ----------
    scalars, rows : dict
        Inputs by name: numbers, and vectors of unknown length.
    stand_ins : dict
        From variables of the model to graphs of these inputs.
    possible : bool
        False where something is neither shared by all observations nor one row each.
    """

    def __init__(self, size: int, model: Model):
        self._size, self._random = size, set(model.basic_RVs)
        self.scalars: dict[str, Variable] = {}
        self.rows: dict[str, Variable] = {}
        self.stand_ins: dict[Variable, Variable] = {}
        self.possible = True
        self._graphs: dict[str, TensorVariable] = {}

    def graphs(self) -> dict[str, TensorVariable]:
        """Return the parameters as graphs of the model's variables, by their names."""
        return self._graphs

    def collect(self, graphs: Sequence[Variable], bases: Sequence[Variable]) -> None:
        """Add the largest parts of ``graphs`` that do not depend on ``bases``."""
        moving = dependents(graphs, bases)
        seen: set[Variable] = set()
        stack = list(graphs)
        while stack:
            var = stack.pop()
            if var in seen or var in bases:
                continue
            seen.add(var)
            if var in moving:
                stack.extend(_valued(var))
            elif self._matters(var):
                self._add(var)

    def _matters(self, var: Variable) -> bool:
        """Return whether the value of ``var`` is more than a constant that all rows share."""
        if not _is_tensor(var):
            return False
        if isinstance(var, Constant):
            return var.ndim > 0 and var.data.shape[0] == self._size > 1
        if isinstance(var.owner and var.owner.op, RNGConsumerOp) and var not in self._random:
            return False
        leaves = ancestors([var], blockers=self._random)
        if any(v in self._random or isinstance(v, SharedVariable) for v in leaves):
            return True
        return var.ndim > 0 and static_shape(var)[0] == self._size > 1

    def _add(self, var: Variable) -> None:
        number = _number(var)
        if number is not None:
            self.stand_ins[var] = pt.constant(number.reshape((1,) * var.ndim))
            return
        leaves = list(ancestors([var], blockers=self._random))
        if not all(self._known(leaf) for leaf in leaves):
            self.possible = False
            return
        sources = self._sources(var, leaves)
        if sources:
            for source in sources:
                if source not in self.stand_ins:
                    self._add(source)
            if self.possible:
                self.stand_ins[var] = rebuild(var, self.stand_ins)
            return
        name = self._name(var)
        graph = pt.as_tensor(var).astype("float64")
        shape = static_shape(var)
        if all(length == 1 for length in shape):
            stand_in = self._scalar(name, graph.reshape(())).reshape(shape)
        elif shape[0] == self._size and len(shape) == 1:
            stand_in = self._row(name, graph)
        elif shape[0] == self._size and len(shape) == 2 and shape[1] <= _LARGEST_VECTOR:
            columns = [self._row(f"{name}_{j}", graph[:, j]) for j in range(shape[1])]
            stand_in = pt.stack(columns, axis=1)
        elif np.prod(shape) == max(shape) <= _LARGEST_VECTOR:
            flat = graph.reshape((max(shape),))
            entries = [self._scalar(f"{name}_{j}", flat[j]) for j in range(max(shape))]
            stand_in = pt.stack(entries).reshape(shape)
        else:
            self.possible = False
            return
        if var.dtype == "bool":
            stand_in = pt.gt(stand_in, 0.5)
        self.stand_ins[var] = stand_in.astype(var.dtype)

    def _known(self, leaf: Variable) -> bool:
        # An input of any other kind is a copy of a latent's, which PyMC makes here and there.
        constant = isinstance(leaf, Constant | SharedVariable)
        return leaf.owner is not None or constant or leaf in self._random

    def _sources(self, var: Variable, leaves: Sequence[Variable]) -> list[Variable]:
        """Return the model's variables that ``var`` is to be computed from, row by row.

        None where it is one itself, or where it differs between rows.
        """
        if var in self._random or (var.ndim > 0 and static_shape(var)[0] == self._size > 1):
            return []
        if any(isinstance(leaf, SharedVariable) for leaf in leaves if _is_tensor(leaf)):
            return []
        sources = [leaf for leaf in leaves if leaf in self._random]
        small = all(np.prod(static_shape(source)) <= _LARGEST_VECTOR for source in sources)
        return sources if small else []

    def _scalar(self, name: str, graph: TensorVariable) -> Variable:
        self._graphs[name], self.scalars[name] = graph, pt.scalar(name, dtype="float64")
        return self.scalars[name]

    def _row(self, name: str, graph: TensorVariable) -> Variable:
        graph = pt.specify_shape(graph, (self._size,))
        self._graphs[name], self.rows[name] = graph, pt.vector(name, dtype="float64")
        return self.rows[name]

    def _name(self, var: Variable) -> str:
        taken = {name.rsplit("_", 1)[0] for name in self._graphs} | set(self._graphs)
        while var.name is None and isinstance(var.owner and var.owner.op, DimShuffle):
            (var,) = var.owner.inputs
        name = var.name or f"parameter{len(self.stand_ins)}"
        return name if name not in taken else f"{name}_{len(self.stand_ins)}"


def _is_tensor(var: Variable) -> bool:
    return isinstance(var.type, TensorType)


def _valued(var: Variable) -> list[Variable]:
    """Return the inputs of an operation but for those that say shapes and places."""
    if var.owner is None:
        return []
    only_first = isinstance(var.owner.op, Alloc | Reshape | Subtensor)
    return var.owner.inputs[: 1 if only_first else None]


def _try(function: RowFunction, parameters: _Parameters) -> None:
    """Evaluate at a number of rows that the model does not have; numbers do not matter."""
    params = dict.fromkeys((*parameters.scalars, *parameters.rows), np.array(0.5))
    for size in (1, 3):
        function(np.zeros(size), np.full(size, 0.1), params)
