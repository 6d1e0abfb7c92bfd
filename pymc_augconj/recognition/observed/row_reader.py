"""Graphs of N observations as functions of any number of rows.

Parameters of a density besides y and η are numbers, or one number per observation. A vector that
all observations share, such as cutpoints, is split into numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors, walk
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.recognition.graph.dependence import static_shape
from pymc_augconj.recognition.graph.rewrite import Variables, constant_number, is_tensor

from .affine_parts import AffinePart, is_zero
from .rows import RowFunction, conjuncts, dependents, rebuild

# Largest number of entries of a vector that all observations share.
_LARGEST_VECTOR = 64


class RowParameters:
    """The parameters of a density besides y and η.

    ``graphs`` are graphs of the model's variables, by the parameters' names. ``scalars`` and
    ``rows`` are inputs by name: numbers, and vectors of unknown length; ``symbols`` lead from
    variables of the model to graphs of these. ``possible`` is False if a parameter is neither
    shared by all observations nor has one row for each.
    """

    def __init__(self, shape: tuple[int, ...], model: Model) -> None:
        self._shape, self._random = shape, set(model.basic_RVs)
        self.scalars: dict[str, Variable] = {}
        self.rows: dict[str, Variable] = {}
        self.symbols: dict[Variable, Variable] = {}
        self.possible = True
        self.graphs: dict[str, TensorVariable] = {}

    def collect(self, graphs: Variables, bases: Variables) -> None:
        """Add the largest subgraphs of ``graphs`` that do not depend on ``bases``."""
        moving = dependents(graphs, bases)
        inside = moving.difference(bases)
        for var in walk(graphs, lambda var: _valued(var) if var in inside else (), bfs=False):
            if var not in moving and self._matters(var):
                self._add(var)

    def hold(self) -> dict[Variable, Variable]:
        """Return inputs that replace the collected graphs from now on."""
        held = {
            var: pt.tensor(var.name, dtype=var.dtype, shape=static_shape(var))
            for var in self.symbols
        }
        self.symbols |= {held[var]: symbol for var, symbol in self.symbols.items()}
        return held

    @property
    def ndim(self) -> int:
        """Number of axes of the observations."""
        return len(self._shape)

    def standing(self, row: Variable) -> Variable:
        """Return a vector of rows with as many axes as the observations have."""
        return row.dimshuffle(0, *["x"] * (len(self._shape) - 1))

    def _has_rows(self, shape: tuple[int, ...]) -> bool:
        """Return whether an array of this shape differs between observations."""
        if len(shape) < len(self._shape):
            return False
        pairs = list(zip(shape, self._shape, strict=False))
        fits = all(length in (1, expected) for length, expected in pairs)
        return fits and any(length == expected > 1 for length, expected in pairs)

    def _matters(self, var: Variable) -> bool:
        """Return whether the value of ``var`` is not a constant that all rows share."""
        if not is_tensor(var):
            return False
        if isinstance(var, Constant):
            return self._has_rows(var.data.shape)
        if isinstance(var.owner and var.owner.op, RNGConsumerOp) and var not in self._random:
            return False
        leaves = ancestors([var], blockers=self._random)
        if any(v in self._random or isinstance(v, SharedVariable) for v in leaves):
            return True
        return var.ndim > 0 and self._has_rows(static_shape(var))

    def _add(self, var: Variable) -> None:
        number = constant_number(var)
        if number is not None:
            self.symbols[var] = pt.constant(number.reshape((1,) * var.ndim))
            return
        leaves = list(ancestors([var], blockers=self._random))
        if not all(self._known(leaf) for leaf in leaves):
            self.possible = False
            return
        sources = self._sources(var, leaves)
        if sources:
            for source in sources:
                if source not in self.symbols:
                    self._add(source)
            if self.possible:
                try:
                    self.symbols[var] = rebuild(var, self.symbols)
                except Exception:
                    # Rebuilding an op for any number of rows can fail in any way.
                    self.possible = False
            return
        self.add(self._name(var), var, pt.as_tensor(var))

    def add(self, name: str, var: Variable, graph: TensorVariable) -> None:
        """Make ``graph`` a parameter; a graph of it replaces ``var``."""
        graph, shape = graph.astype("float64"), static_shape(graph)
        if all(length == 1 for length in shape):
            symbol = self._scalar(name, graph.reshape(())).reshape(shape)
        elif self._has_rows(shape) and len(shape) == len(self._shape):
            symbol = self._row(name, graph)
        elif (
            self._has_rows(shape)
            and len(shape) == len(self._shape) + 1
            and shape[-1] <= _LARGEST_VECTOR
        ):
            columns = [self._row(f"{name}_{j}", graph[..., j]) for j in range(shape[-1])]
            symbol = pt.stack(columns, axis=-1)
        elif np.prod(shape) == max(shape) <= _LARGEST_VECTOR:
            flat = graph.reshape((max(shape),))
            entries = [self._scalar(f"{name}_{j}", flat[j]) for j in range(max(shape))]
            symbol = pt.stack(entries).reshape(shape)
        else:
            self.possible = False
            return
        if var.dtype == "bool":
            symbol = pt.gt(symbol, 0.5)
        self.symbols[var] = symbol.astype(var.dtype)

    def _known(self, leaf: Variable) -> bool:
        # Other inputs are copies of a latent, which PyMC makes in some densities.
        constant = isinstance(leaf, Constant | SharedVariable)
        return leaf.owner is not None or constant or leaf in self._random

    def _sources(self, var: Variable, leaves: Variables) -> list[Variable]:
        """Return the model's variables from which ``var`` is computed, row by row.

        The result is empty if ``var`` is such a variable itself, or differs between rows.
        """
        if var in self._random or self._differs(var):
            return []
        if any(isinstance(leaf, SharedVariable) for leaf in leaves if is_tensor(leaf)):
            return []
        sources = [leaf for leaf in leaves if leaf in self._random]
        shapes = [static_shape(source) for source in sources]
        # A shared vector may have as many entries as there are rows: categories, say. Of a matrix,
        # cutpoints of several items, say, it is a row that may be shared.
        small = all(np.prod(s) <= _LARGEST_VECTOR and not self._has_rows(s) for s in shapes)
        vectors = all(np.prod(s) == max(s, default=1) for s in shapes)
        return sources if small and vectors else []

    def _differs(self, var: Variable) -> bool:
        """Return whether ``var`` has one row per observation, rather than one repeated for all."""
        ndim = var.ndim
        while isinstance(var.owner and var.owner.op, Alloc):
            (var, *_) = var.owner.inputs
        return var.ndim == ndim > 0 and self._has_rows(static_shape(var))

    def _scalar(self, name: str, graph: TensorVariable) -> Variable:
        self.graphs[name], self.scalars[name] = graph, pt.scalar(name, dtype="float64")
        return self.scalars[name]

    def _row(self, name: str, graph: TensorVariable) -> Variable:
        size = int(np.prod(self._shape))
        if len(self._shape) > 1:
            graph = pt.broadcast_to(graph, self._shape).reshape((size,))
        graph = pt.specify_shape(graph, (size,))
        self.graphs[name], self.rows[name] = graph, pt.vector(name, dtype="float64")
        return self.standing(self.rows[name])

    def _name(self, var: Variable) -> str:
        taken = {name.rsplit("_", 1)[0] for name in self.graphs} | set(self.graphs)
        while var.name is None and isinstance(var.owner and var.owner.op, DimShuffle):
            (var,) = var.owner.inputs
        name = var.name or f"parameter{len(self.symbols)}"
        return name if name not in taken else f"{name}_{len(self.symbols)}"


class RowReader:
    """Rebuilds graphs of N observations as functions of rows, with common parameters.

    ``value`` is the symbol of the observations, if the graphs have one, and ``parts`` are the
    variables through which they depend on the latents; other dependences are added to
    ``parameters``.
    """

    def __init__(
        self, value: Variable | None, parts: Sequence[AffinePart], parameters: RowParameters
    ) -> None:
        self._values = [] if value is None else [value]
        self._parts, self.parameters = parts, parameters
        self._y = pt.vector("y", dtype="float64" if value is None else value.dtype)
        count = sum(sum(part.moving) for part in parts)
        self._etas = [pt.vector(f"eta_{i}", dtype="float64") for i in range(count)]
        offsets = [offset for part in parts for offset in part.offsets.values()]
        parameters.collect([offset for offset in offsets if not is_zero(offset)], [])
        parameters.collect(_constants(parts), [])

    def read(self, graph: Variable) -> RowFunction | None:
        """Return the function, or None if rows cannot be separated."""
        parameters = self.parameters
        moving = [var for part in self._parts for var in part.offsets]
        parameters.collect([graph], [*self._values, *moving, *parameters.symbols])
        if not parameters.possible:
            return None
        try:
            rebuilt = self._rebuilt(graph)
            function = RowFunction(
                rebuilt, self._y, self._etas, parameters.scalars, parameters.rows
            )
            # Try other numbers of rows, which another axis may have one of; values do not matter.
            params = dict.fromkeys((*parameters.scalars, *parameters.rows), np.array(0.5))
            for size in (1, 3, 7):
                eta = np.full((len(self._etas), size), 0.1)
                function(np.zeros(size), eta, params)
        except Exception:
            # Rebuilding an op can fail in any way.
            return None
        return function

    def _rebuilt(self, graph: Variable) -> Variable:
        parameters = self.parameters
        # A graph of one number is vectorised at the end: within it may be vectors of its own.
        single = [eta.type.clone(shape=())() for eta in self._etas]
        standing = [parameters.standing(eta) for eta in self._etas] if parameters.ndim else single
        symbols = {value: parameters.standing(self._y) for value in self._values}
        symbols |= parameters.symbols
        etas = iter(standing)
        for part in self._parts:
            constants = [
                None if moves else self._constant(column, standing[0])
                for column, moves in zip(part.columns, part.moving, strict=True)
            ]
            first = part.assembled(etas, constants)
            for var, offset in part.offsets.items():
                eta = first
                if not is_zero(offset):
                    eta = eta + rebuild(offset, parameters.symbols)
                symbols[var] = eta.astype(var.dtype)
        rebuilt = rebuild(graph, symbols)
        if parameters.ndim:
            return rebuilt
        return vectorize_graph(rebuilt, dict(zip(single, self._etas, strict=True)))

    def _constant(self, column: TensorVariable, like: TensorVariable) -> TensorVariable:
        """Return a column without a predictor, with the axes of a column that has one."""
        zeros = pt.zeros_like(like)
        return zeros if is_zero(column) else zeros + rebuild(column, self.parameters.symbols)


def _constants(parts: Sequence[AffinePart]) -> list[TensorVariable]:
    return [
        column
        for part in parts
        for column, moves in zip(part.columns, part.moving, strict=True)
        if not moves and not is_zero(column)
    ]


def _valued(var: Variable) -> list[Variable]:
    """Return the inputs of an operation except shapes and positions."""
    if var.owner is None:
        return []
    if isinstance(var.owner.op, CheckParameterValue):
        return [var.owner.inputs[0], *conjuncts(var.owner.inputs[1:])]
    only_first = isinstance(var.owner.op, Alloc | Reshape | Subtensor)
    return var.owner.inputs[: 1 if only_first else None]
