"""Products of a vector with the linear map A(θ) of a block, and with its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_augconj.point import Argument, Point
from pymc_augconj.python_mode.tape import TapeBuilder
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.typing import Index

__all__ = ["COEFFICIENTS", "DIRECTION", "Masked", "Parts", "Product"]

#: The key of the vector of a product.
DIRECTION = Argument("direction")
#: The key of the coefficients of a map's parts.
COEFFICIENTS = Argument("coefficients")


class Product:
    """Products A(θ) v, or Aᵀ(θ) w, as a function of the point and a vector of length ``size``."""

    def __init__(self, function: PointFunction, size: int) -> None:
        self._function, self.size = function, size
        self.names = tuple(name for name in function.names if name != DIRECTION)
        self.shared = function.shared

    def __call__(self, point: Point, vector: np.ndarray) -> np.ndarray:
        return np.array(self._function({**point, DIRECTION: vector}), dtype=float)

    def once(self, point: Point, vector: np.ndarray) -> np.ndarray:
        """Return a product without compiling, for maps that are evaluated a few times."""
        return np.array(self._function.uncompiled({**point, DIRECTION: vector}), dtype=float)

    def on_tape(self, tape: TapeBuilder, entries: Mapping[Any, Index], vector: np.ndarray) -> Index:
        """Return the registers of a product with a fixed vector; see :class:`.OnTape`."""
        return self._function.on_tape(tape, {**entries, DIRECTION: vector})

    def matrix(self, point: Point) -> np.ndarray:
        """Return A, Fortran-ordered, by one product per column."""
        unit = np.zeros(self.size)
        columns = np.empty((0, 0))
        for j in range(self.size):
            unit[j] = 1.0
            column = self(point, unit)
            unit[j] = 0.0
            if j == 0:
                columns = np.empty((column.size, self.size), order="F")
            columns[:, j] = column
        return columns


@dataclass(frozen=True)
class Parts:
    """A(θ) = Σ_k c_k(θ) B_k, see :mod:`.coefficients`.

    ``coefs`` is c(θ), shape (count,), and ``product`` is Σ_k c_k B_k v, of ``COEFFICIENTS`` and
    ``DIRECTION``.
    """

    coefs: PointFunction
    product: PointFunction
    count: int

    def part(self, k: int, size: int) -> Product:
        """Return the products with B_k, a map that does not depend on the point."""
        return _PartProduct(self.product, size, np.eye(self.count)[k])


class _PartProduct(Product):
    def __init__(self, function: PointFunction, size: int, unit: np.ndarray) -> None:
        super().__init__(function, size)
        self.names = tuple(name for name in self.names if name != COEFFICIENTS)
        self._unit = unit

    def __call__(self, point: Point, vector: np.ndarray) -> np.ndarray:
        return super().__call__({COEFFICIENTS: self._unit}, vector)

    def once(self, point: Point, vector: np.ndarray) -> np.ndarray:
        return super().once({COEFFICIENTS: self._unit}, vector)


class Masked(Product):
    """Products with the columns of one kind in groups of ``group``, zero elsewhere."""

    def __init__(self, product: Product, kind: int, group: int) -> None:
        self._whole, self.size, self.names = product, product.size, product.names
        self._mask = 1.0 * (np.arange(product.size) % group == kind)

    def __call__(self, point: Point, vector: np.ndarray) -> np.ndarray:
        return self._whole(point, self._mask * vector)

    def once(self, point: Point, vector: np.ndarray) -> np.ndarray:
        return self._whole.once(point, self._mask * vector)
