"""Reading the linear map A(θ) of a block off the graph, by evaluating A on a few vectors.

The structure is found numerically, so that it does not depend on how the user spelled it: whether
every row of A has a single entry takes three products with A, whether θ only scales its columns
takes one comparison. What was found at a few values of θ is checked again, by one product, at
every other value at which the map is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pymc_augconj.errors import RecognitionError
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection
from pymc_augconj.model import Argument, Point
from pymc_augconj.recognition.graph.functions import PointFunction, SharedData

__all__ = ["DIRECTION", "LARGEST_DENSE_DESIGN", "BlockMap", "Product"]

#: The key under which a product takes its vector.
DIRECTION = Argument("direction")

#: A dense design of more entries than this (2.4 GB) is refused.
LARGEST_DENSE_DESIGN = 300_000_000

# Products with A agree with the structure found up to rounding in sums of its entries.
_RELATIVE_TOLERANCE = 1e-9


class Product:
    """Products A(θ) v, or Aᵀ(θ) w, as a function of the point and a vector of length ``size``."""

    def __init__(self, function: PointFunction, size: int):
        self._function, self.size = function, size
        self.names = tuple(name for name in function.names if name != DIRECTION)
        self.shared = function.shared

    def __call__(self, point: Point, vector: np.ndarray) -> np.ndarray:
        return np.array(self._function({**point, DIRECTION: vector}), dtype=float)

    def once(self, point: Point, vector: np.ndarray) -> np.ndarray:
        """Return a product that is one of a few, before there is any need to compile."""
        return np.array(self._function.as_it_stands({**point, DIRECTION: vector}), dtype=float)

    def matrix(self, point: Point) -> np.ndarray:
        """Return A itself, Fortran-ordered, a column a product."""
        unit = np.zeros(self.size)
        columns = None
        for j in range(self.size):
            unit[j] = 1.0
            column = self(point, unit)
            unit[j] = 0.0
            if columns is None:
                columns = np.empty((column.size, self.size), order="F")
            columns[:, j] = column
        return columns


class BlockMap:
    """A block's map A as a function of the point.

    Parameters
    ----------
    product : Product
        Products with A.
    transposed : callable
        Returns products with Aᵀ, which few maps ask for.
    points : sequence of mapping
        Two or more different values of θ at which the structure is examined.
    wide_points : sequence of mapping
        Values far from those, at which rows of A that are equal must still be so: engines merge
        them (a coefficient like σ((x − θ)/0.01) is 0 or 1 for most x at any one θ).
    name : str
        The latent variable, for error messages.
    dependence : {"smooth", "kinked", "discrete"}
        How A depends on θ. A structure seen at a few values of θ tells little about others where
        entries have kinks (rows that are equal now may differ then), or where discrete values
        (comparisons, indices) stand between.

    Raises
    ------
    RecognitionError
        If A would be a dense matrix too large to hold.
    """

    def __init__(
        self,
        product: Product,
        transposed: Callable[[], Product],
        points: Sequence[Point],
        wide_points: Sequence[Point],
        name: str,
        dependence: str = "smooth",
    ):
        self.names = product.names
        self._product, self._transposed = product, transposed
        self._points, self._wide_points = list(points), list(wide_points)
        self._name, self._dependence = name, dependence
        self._data = SharedData(product.shared)
        self._at = self._read()

    @property
    def kind(self) -> str:
        """What a person reads in the recognition table."""
        return self._at.kind

    def __call__(self, point: Point) -> LinearMap:
        if self._data.changed():
            # pm.set_data gave a design or an index other values: the structure may be another.
            self._data = SharedData(self._product.shared)
            self._at = self._read()
        return self._at(point)

    def _read(self) -> _FixedMap | _ScaledSelection | _ScaledColumns | _GeneralMap:
        product, points = self._product, self._points
        found = None if self._dependence == "discrete" else _find_selection(product, points)
        if found is not None and self._holds_elsewhere(found):
            if product.names:
                return _ScaledSelection(product, found.index, self._name)
            ones = np.abs(found.coefs[0] - 1.0).max(initial=0.0) < 1e-12
            coef = None if ones else found.coefs[0]
            return _FixedMap(RowSelection(found.index, coef, product.size))
        self._refuse_too_large()
        if self._dependence == "discrete" or found is not None:
            return _GeneralMap(product)
        matrix = product.matrix(points[0])
        if not product.names:
            return _FixedMap(DenseMap(matrix))
        columns = _ScaledColumns(product, self._transposed(), matrix, points[0])
        if all(columns.holds_at(point) for point in points[1:]):
            return columns
        return _GeneralMap(product)

    def _holds_elsewhere(self, found: _Selection) -> bool:
        """Return whether rows that are equal where A was examined are so at other θ."""
        if not self._product.names or found.is_one_multiple:
            return True
        if self._dependence == "kinked":
            return False
        keys = np.stack([found.index, *found.coefs], axis=1)
        _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        for point in self._wide_points:
            coef = self._product.once(point, np.ones(self._product.size))
            if np.isfinite(coef).all() and not np.array_equal(coef, coef[first][group.ravel()]):
                return False
        return True

    def _refuse_too_large(self) -> None:
        size = self._product.size
        n_rows = self._product.once(self._points[0], np.zeros(size)).size
        if n_rows * size > LARGEST_DENSE_DESIGN:
            raise RecognitionError(
                f"latent variable {self._name!r} enters {n_rows} predictors through a dense design "
                f"matrix of {size} columns, which would take {n_rows * size * 8 / 1e9:.1f} GB; "
                f"expected at most {LARGEST_DENSE_DESIGN:,} entries; use indexing (f[idx]) where "
                "each observation takes one latent value"
            )


class _FixedMap:
    def __init__(self, value: LinearMap):
        self._value = value
        if isinstance(value, DenseMap):
            self.kind = "design matrix"
        else:
            self.kind = "identity" if value.is_identity else "selection"

    def __call__(self, point: Point) -> LinearMap:
        return self._value


class _ScaledSelection:
    kind = "selection, scaled by hyperparameters"

    def __init__(self, product: Product, index: np.ndarray, name: str):
        self._product, self._index, self._name = product, index, name
        self._probe = _random_vector(product.size)

    def __call__(self, point: Point) -> LinearMap:
        coef = self._product(point, np.ones(self._product.size))
        found = self._product(point, self._probe)
        if np.isfinite(coef).all() and not _agree(found, coef * self._probe[self._index], coef):
            raise RecognitionError(
                f"latent variable {self._name!r}: expected every predictor to take the same entry "
                "of it whatever the hyperparameters are, as at the points where the model was "
                "examined, found another one; sample this model with pm.sample's NUTS"
            )
        return RowSelection(self._index, coef, self._product.size)


class _ScaledColumns:
    kind = "design matrix, columns scaled by hyperparameters"

    def __init__(self, product: Product, transposed: Product, matrix: np.ndarray, point: Point):
        self._product, self._transposed, self._matrix = product, transposed, matrix
        self._largest = np.abs(matrix).max(initial=0.0)
        self._probe = _random_vector(matrix.shape[1])
        self._weights = _random_vector(matrix.shape[0])
        reference = transposed(point, self._weights)
        # A column of zeros stays one.
        self._reference = np.where(reference == 0.0, 1.0, reference)

    def _factors(self, point: Point) -> tuple[np.ndarray, bool]:
        """Return the factors of the columns, and whether they reproduce a product with A."""
        factors = self._transposed(point, self._weights) / self._reference
        scaled = factors * self._probe
        if not np.isfinite(factors).all():
            return factors, True
        scale = self._largest * np.abs(scaled).sum()
        return factors, _agree(self._product(point, self._probe), self._matrix @ scaled, scale)

    def holds_at(self, point: Point) -> bool:
        """Return whether only the columns' factors differ at ``point``."""
        return self._factors(point)[1]

    def __call__(self, point: Point) -> LinearMap:
        factors, holds = self._factors(point)
        return DenseMap(self._matrix, factors) if holds else DenseMap(self._product.matrix(point))


class _GeneralMap:
    kind = "design matrix depending on hyperparameters"

    def __init__(self, product: Product):
        self._product = product

    def __call__(self, point: Point) -> LinearMap:
        return DenseMap(self._product.matrix(point))


@dataclass(frozen=True)
class _Selection:
    """Which entry each row of A takes, and its coefficient at every point examined."""

    index: np.ndarray
    coefs: list[np.ndarray]

    @property
    def is_one_multiple(self) -> bool:
        """Whether all rows have one coefficient, not zero, at every point."""
        return all(c.size and c[0] != 0.0 and np.all(c == c[0]) for c in self.coefs)


def _find_selection(product: Product, points: Sequence[Point]) -> _Selection | None:
    """Return the single entries of A's rows, or None where a row has more than one."""
    probe = _random_vector(product.size)
    ramp = np.arange(1.0, product.size + 1.0)
    coefs: list[np.ndarray] = []
    index = known = None
    for point in points if product.names else points[:1]:
        coef = product.once(point, np.ones(product.size))
        if not np.isfinite(coef).all():
            return None
        nonzero = coef != 0.0
        picked = np.divide(product.once(point, ramp), coef, out=np.ones_like(coef), where=nonzero)
        found = np.clip(np.rint(picked), 1, product.size).astype(np.intp) - 1
        if index is None:
            index, known = found, nonzero
        else:
            # A coefficient that vanishes at one point (β = 0) tells no entry.
            if np.any(known & nonzero & (index != found)):
                return None
            index = np.where(known, index, found)
            known = known | nonzero
        if not (
            _agree(product.once(point, probe), coef * probe[index], coef)
            and _agree(product.once(point, probe**2), coef * probe[index] ** 2, coef)
        ):
            return None
        coefs.append(coef)
    return _Selection(index, coefs)


def _random_vector(size: int) -> np.ndarray:
    # A fixed stream: recognition of one model gives one result.
    return np.random.default_rng(20_261_121).uniform(1.0, 2.0, size)


def _agree(found: np.ndarray, expected: np.ndarray, scale: np.ndarray | float) -> bool:
    tolerance = _RELATIVE_TOLERANCE * (np.abs(scale) + 1e-300)
    return bool(np.all(np.abs(found - expected) <= tolerance))
