"""Processes on a grid whose covariance is a product over its axes, as such products.

The rows of a ``pm.gp.Latent``'s inputs are cells of a grid: each axis has some of the columns, such
as the two of places and that of times. A covariance function k with k(x, x) = k₀ for all x is a
product over the axes where

    k(x, y) = k₀ Πᵢ k(xⁱ, yⁱ)/k₀,

xⁱ having the columns of axis i and those of one input elsewhere. That is compared at inputs whose
distances are of the order of the lengthscales, for random values of all parameters. The graph of a
factor is that of K with the inputs of its axis in the place of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.elemwise import DimShuffle

from pymc_augconj.recognition.graph.dependence import static_shape
from pymc_augconj.recognition.graph.interpreter import NotInterpretedError, interpret, op_name
from pymc_augconj.recognition.graph.rewrite import (
    down_to_random,
    is_number,
    is_random,
    substitute,
)
from pymc_augconj.typing import Array, Index

from .markov import without_noise

# Distinct columns of the inputs at most, whose divisions into axes are tried.
_MOST_COLUMNS = 4
# The least share of the grid's cells that are inputs; the cost of an axis's eigenvectors, and what
# part of a factorisation all may take.
_LEAST_SHARE, _PER_EIGENVECTOR, _MOST_TIME = 0.8, 20.0, 0.02
# Bounds of random values of the parameters, sets of each, and those that must have a covariance.
_BOUNDS, _SETS, _LEAST_SETS = ((1e-3, 0.1), (0.1, 0.95), (0.5, 20.0), (20.0, 1e3)), 2, 3
# Inputs that are compared, the scales of their columns that are tried, correlations that tell
# something, and the tolerance.
_POINTS, _SCALES, _TELLING, _TOLERANCE = 6, np.logspace(-8.0, 8.0, 65), (0.05, 0.95), 1e-9
# Relative addition to the diagonal of a factor, as smooth ones have no Cholesky factor; beyond the
# rounding errors of distances, which are those of coordinates far from zero.
_JITTER = 1e-8


# The matrix of inputs for some parameters, the scales of columns, and steps in these.
_Test = tuple[Callable[[Array], Array], Array, Array]


@dataclass(frozen=True)
class GridProduct:
    """``chol(K) v`` of the inputs as (L₁ ⊗ L₂ ⊗ …) w plus noise, at some of the cells of a grid.

    ``factors`` are graphs of the matrices whose product K is, ``cells`` the cell of each input, and
    ``noise`` the graph of the variance of the noise. ``whitened`` is v, a free variable.
    """

    whitened: Variable
    factors: list[Variable]
    grid: tuple[int, ...]
    cells: Index
    noise: Variable

    @property
    def names(self) -> tuple[str, str]:
        """Names of w and of the noise."""
        name = self.whitened.name.removesuffix("_rotated_")
        return f"{name}_on_grid_rotated_", f"{name}_noise"

    @property
    def roots(self) -> list[Variable]:
        """Graphs of the Lᵢ, of factors with a little more on their diagonals."""
        sizes = zip(self.factors, self.grid, strict=True)
        return [pt.linalg.cholesky(K + _JITTER * K[0, 0] * pt.eye(n)) for K, n in sizes]

    def register(self) -> Variable:
        """Register w and the noise in the model in context, and return the product, (n, 1)."""
        of_grid, of_inputs = self.names
        w = pm.Normal(of_grid, 0.0, 1.0, shape=int(np.prod(self.grid)))
        noise = pm.Normal(of_inputs, 0.0, pt.sqrt(self.noise), shape=self.cells.size)
        values = pm.math.kron_dot(self.roots, w).ravel()
        if not np.array_equal(self.cells, np.arange(int(np.prod(self.grid)))):
            values = values[self.cells]
        return pt.specify_shape((values + noise)[:, None], (self.cells.size, 1))


def grid_product(node: Apply) -> GridProduct:
    """Return a product with a Cholesky factor as one over a grid.

    Raises NotInterpretedError if there is no such form.
    """
    (K,), v = node.inputs[0].owner.inputs, node.inputs[1]
    while v.owner is not None and isinstance(v.owner.op, DimShuffle):
        v = v.owner.inputs[0]
    if not is_random(v) or v.ndim != 1 or op_name(v) != "NormalRV":
        raise NotInterpretedError
    if not all(map(is_number, v.owner.op.dist_params(v.owner), (0.0, 1.0))):
        raise NotInterpretedError
    terms, noise = without_noise(K)
    if not terms or not noise:
        raise NotInterpretedError
    covariance = _Covariance(sum(terms[1:], terms[0]), static_shape(v)[0])
    for columns in _divisions(range(covariance.table.shape[1])):
        found = _cells(covariance.table, columns)
        if found is not None and covariance.is_product(columns):
            axes, values, cells = found
            factors, grid = covariance.factors(axes, values), tuple(map(len, values))
            return GridProduct(v, factors, grid, cells, sum(noise[1:], noise[0]))
    raise NotInterpretedError


class _Covariance:
    """The graph of a covariance function of the rows of ``table``, its distinct columns."""

    def __init__(self, graph: Variable, size: int) -> None:
        self._graph = graph
        self._leaves: dict[Variable, list[int]] = {}
        self._random: list[Variable] = []
        columns: list[Array] = []
        for v in down_to_random([graph]):
            if is_random(v):
                self._random.append(v)
            elif isinstance(v, Constant | SharedVariable) and getattr(v.type, "ndim", 0) == 2:
                value = np.asarray(v.data if isinstance(v, Constant) else v.get_value(borrow=True))
                if len(value) == size > 1:
                    self._leaves[v] = [_number_of(column, columns) for column in value.T]
        if not 2 <= len(columns) <= _MOST_COLUMNS or not np.isfinite(columns).all():
            raise NotInterpretedError
        self.table = np.stack(columns, axis=1).astype(float)

    def at(self, inputs: Array) -> Variable:
        """Return the graph at other inputs.

        Raises NotInterpretedError where it has their number, as of a ``WhiteNoise`` in a product.
        """
        given = {v: pt.constant(inputs[:, own]) for v, own in self._leaves.items()}
        try:
            return substitute([self._graph], given, strict=False)[0]
        except (TypeError, ValueError) as error:
            raise NotInterpretedError from error

    def factors(self, axes: Sequence[Sequence[int]], values: Sequence[Array]) -> list[Variable]:
        """Return the graphs of the factors, at these values of the columns of each axis."""
        first = self.table[:1]
        variance = self.at(first)[0, 0]
        found: list[Variable] = []
        for own, rows in zip(axes, values, strict=True):
            inputs = np.repeat(first, len(rows), axis=0)
            inputs[:, own] = rows
            K = self.at(inputs)
            found.append(K / variance if found else K)
        return found

    def is_product(self, axes: Sequence[Sequence[int]]) -> bool:
        """Return whether it is a product over the axes, at random inputs and parameters."""
        first = self.table[:1]
        for value, scales, steps in self._tests:
            inputs = first + scales * steps
            apart = []
            for own in axes:
                of_axis = np.repeat(first, len(steps), axis=0)
                of_axis[:, own] = inputs[:, own]
                apart.append(of_axis)
            every = value(np.concatenate([inputs, *apart]))
            blocks = [
                every[i : i + _POINTS, i : i + _POINTS] for i in range(0, len(every), _POINTS)
            ]
            variance, product = every[0, 0], np.ones((_POINTS, _POINTS))
            for block in blocks[1:]:
                product = product * (block / variance)
            same = np.abs(np.diagonal(every) - variance).max() <= _TOLERANCE * variance
            if not (same and np.abs(blocks[0] / variance - product).max() <= _TOLERANCE):
                return False
        return True

    @cached_property
    def _tests(self) -> list[_Test]:
        """Comparisons in which distances along each column tell something.

        Raises NotInterpretedError if there are too few.
        """
        rng = np.random.default_rng(0)
        found: list[_Test] = []
        width = self.table.shape[1]
        along = np.concatenate([_SCALES[:, None] * np.eye(width)[i] for i in range(width)])
        for low, high in _BOUNDS:
            for _ in range(_SETS):
                given = {}
                for v in self._random:
                    shape = static_shape(v)
                    drawn = np.exp(rng.uniform(np.log(low), np.log(high), shape))
                    given[v] = pt.constant(drawn.astype(v.dtype))
                value = partial(self._value, given)
                try:
                    row = value(self.table[:1] + np.vstack([np.zeros((1, width)), along]))[0]
                except NotInterpretedError:
                    continue
                correlation = (row[1:] / row[0]).reshape(width, _SCALES.size)
                best = np.argmin(np.abs(correlation - 0.5), axis=1)
                at_best = correlation[np.arange(width), best]
                if ((_TELLING[0] < at_best) & (at_best < _TELLING[1])).all():
                    found.append((value, _SCALES[best], rng.standard_normal((_POINTS, width))))
        if len(found) < _LEAST_SETS:
            raise NotInterpretedError
        return found

    def _value(self, given: dict[Variable, Variable], inputs: Array) -> Array:
        """Return the matrix; raises NotInterpretedError where it is not finite."""
        (K,) = interpret(substitute([self.at(inputs)], given, strict=False))
        if K.shape != (len(inputs), len(inputs)) or not (np.isfinite(K).all() and K[0, 0] > 0.0):
            raise NotInterpretedError
        return K


def _number_of(column: Array, known: list[Array]) -> int:
    """Return the number of a column among the known ones, to which it is added."""
    for i, other in enumerate(known):
        if np.array_equal(column, other):
            return i
    known.append(column)
    return len(known) - 1


def _divisions(columns: Sequence[int]) -> Iterator[list[list[int]]]:
    """Yield all divisions of the columns into at least two axes, those of most axes first."""

    def divide(rest: Sequence[int]) -> Iterator[list[list[int]]]:
        if not rest:
            yield []
            return
        for others in divide(rest[1:]):
            yield [[rest[0]], *others]
            for i, axis in enumerate(others):
                yield [*others[:i], [rest[0], *axis], *others[i + 1 :]]

    found = [axes for axes in divide(list(columns)) if len(axes) > 1]
    yield from sorted(found, key=len, reverse=True)


def _cells(
    table: Array, columns: Sequence[Sequence[int]]
) -> tuple[list[Sequence[int]], list[Array], Index] | None:
    """Return the columns of each axis, the slowest first, its values, and the cell of each row.

    None if the rows are no grid, or its eigenvectors would take long.
    """
    found = [np.unique(table[:, own], axis=0, return_inverse=True) for own in columns]
    places = [place.ravel() for _, place in found]
    order = np.argsort([np.count_nonzero(np.diff(place)) for place in places], kind="stable")
    values = [found[i][0] for i in order]
    grid = tuple(map(len, values))
    work = _PER_EIGENVECTOR * sum(float(n) ** 3 for n in grid)
    if work > _MOST_TIME * float(len(table)) ** 3 / 3.0:
        return None
    cells = np.ravel_multi_index([places[i] for i in order], grid)
    if np.unique(cells).size < _LEAST_SHARE * np.prod(np.array(grid, dtype=float)):
        return None
    return [columns[i] for i in order], values, cells
