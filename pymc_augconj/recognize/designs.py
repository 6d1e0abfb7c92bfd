"""Reading the linear map A(θ) of a block off the graph, by evaluating A on a few vectors.

The structure is found numerically, so that it does not depend on how the user spelled it: whether
every row of A has a single entry takes three products with A, whether θ only scales its columns
takes one comparison. What was found is checked at other values of θ before it is used.
"""

from __future__ import annotations

import numpy as np
from pytensor.tensor.variable import TensorVariable

from ..errors import RecognitionError
from ..gaussian.linear_map import DenseMap, LinearMap, RowSelection
from ..model import Point
from .affine import pullback, pushforward
from .compile import PointFunction

__all__ = ["read_map"]

_DIRECTION = "direction"

# A dense design of more entries than this (2.4 GB) is refused.
LARGEST_DENSE_DESIGN = 300_000_000

# Products with A agree with the structure found up to rounding in sums of its entries.
_RELATIVE_TOLERANCE = 1e-9


class _Map:
    """A block's map as a function of the point."""

    names: tuple[str, ...] = ()
    #: What a person reads in the recognition table.
    kind = ""


class _FixedMap(_Map):
    def __init__(self, value: LinearMap):
        self._value = value
        if isinstance(value, DenseMap):
            self.kind = "design matrix"
        else:
            self.kind = "identity" if value.is_identity else "selection"

    def __call__(self, point: Point) -> LinearMap:
        return self._value


class _ScaledSelection(_Map):
    kind = "selection, scaled by hyperparameters"

    def __init__(self, product: _Product, index: np.ndarray):
        self._product, self._index = product, index
        self.names = product.names

    def __call__(self, point: Point) -> LinearMap:
        coef = self._product(point, np.ones(self._product.size))
        return RowSelection(self._index, coef, self._product.size)


class _ScaledColumns(_Map):
    kind = "design matrix, columns scaled by hyperparameters"

    def __init__(self, transposed: PointFunction, matrix: np.ndarray, point: Point):
        self._transposed, self._matrix = transposed, matrix
        self._weights = _random_vector(matrix.shape[0])
        self.names = tuple(name for name in transposed.names if name != _DIRECTION)
        reference = self._product(point)
        # A column of zeros stays one.
        self._reference = np.where(reference == 0.0, 1.0, reference)

    def _product(self, point: Point) -> np.ndarray:
        return self._transposed({**point, _DIRECTION: self._weights})

    def __call__(self, point: Point) -> LinearMap:
        return DenseMap(self._matrix, self._product(point) / self._reference)


class _GeneralMap(_Map):
    kind = "design matrix depending on hyperparameters"

    def __init__(self, product: _Product):
        self._product = product
        self.names = product.names

    def __call__(self, point: Point) -> LinearMap:
        return DenseMap(self._product.matrix(point))


class _Product:
    """Products A(θ) v, and A(θ) itself."""

    def __init__(self, function: PointFunction, size: int):
        self._function, self.size = function, size
        self.names = tuple(name for name in function.names if name != _DIRECTION)

    def __call__(self, point: Point, direction: np.ndarray) -> np.ndarray:
        return np.array(self._function({**point, _DIRECTION: direction}), dtype=float)

    def matrix(self, point: Point) -> np.ndarray:
        columns = np.eye(self.size)
        first = self(point, columns[0])
        matrix = np.empty((first.size, self.size), order="F")
        matrix[:, 0] = first
        for j in range(1, self.size):
            matrix[:, j] = self(point, columns[j])
        return matrix


def _random_vector(size: int) -> np.ndarray:
    # A fixed stream: recognition of one model gives one result.
    return np.random.default_rng(20_261_121).uniform(1.0, 2.0, size)


def read_map(
    eta: TensorVariable,
    block: TensorVariable,
    inputs: dict,
    points: list[Point],
    size: int,
    name: str,
) -> _Map:
    """Return A = ∂η/∂u as a function of the point.

    Parameters
    ----------
    eta : TensorVariable
        The stacked predictor, shape (N,), affine in ``block``.
    block : TensorVariable
        The flat innovation u.
    inputs : dict
        The inputs that the graph may depend on, by their key in the point.
    points : list of mapping
        Two or more different hyperparameter values at which the structure is examined.
    size : int
        Length of u.
    name : str
        The latent variable, for error messages.

    Raises
    ------
    RecognitionError
        If A would be a dense matrix too large to hold.
    """
    direction, graph = pushforward(eta, [block], block)
    product = _Product(PointFunction(graph, {**inputs, _DIRECTION: direction}), size)

    index = _find_selection(product, points)
    if index is not None:
        if product.names:
            return _ScaledSelection(product, index)
        coef = product(points[0], np.ones(size))
        ones = np.abs(coef - 1.0).max(initial=0.0) < 1e-12
        return _FixedMap(RowSelection(index, None if ones else coef, size))

    n_rows = product(points[0], np.zeros(size)).size
    if n_rows * size > LARGEST_DENSE_DESIGN:
        raise RecognitionError(
            f"latent variable {name!r} enters {n_rows} predictors through a dense design matrix "
            f"of {size} columns, which would take {n_rows * size * 8 / 1e9:.1f} GB; expected at "
            f"most {LARGEST_DENSE_DESIGN:,} entries; use indexing (f[idx]) where each "
            "observation takes one latent value"
        )
    matrix = product.matrix(points[0])
    if not product.names:
        return _FixedMap(DenseMap(matrix))
    weights, (transposed,) = pullback(eta, [block])
    columns = _ScaledColumns(
        PointFunction(transposed, {**inputs, _DIRECTION: weights}), matrix, points[0]
    )
    for point in points[1:]:
        exact = product.matrix(point)
        if not _agree(columns(point).dense(), exact, np.abs(exact).max(initial=0.0)):
            return _GeneralMap(product)
    return columns


def _find_selection(product: _Product, points: list[Point]) -> np.ndarray | None:
    """Return which entry each row of A takes, or None where a row has more than one."""
    probe = _random_vector(product.size)
    ramp = np.arange(1.0, product.size + 1.0)
    index = None
    for point in points if product.names else points[:1]:
        coef = product(point, np.ones(product.size))
        picked = np.divide(product(point, ramp), coef, out=np.ones_like(coef), where=coef != 0.0)
        found = np.clip(np.rint(picked), 1, product.size).astype(np.intp) - 1
        if index is None:
            index = found
        scale = np.abs(coef)
        if not (
            np.array_equal(index, found)
            and _agree(product(point, probe), coef * probe[index], scale)
            and _agree(product(point, probe**2), coef * probe[index] ** 2, scale)
        ):
            return None
    return index


def _agree(found: np.ndarray, expected: np.ndarray, scale: np.ndarray | float) -> bool:
    return bool(np.all(np.abs(found - expected) <= _RELATIVE_TOLERANCE * (scale + 1e-300)))
