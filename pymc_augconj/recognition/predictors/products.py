"""Products of a vector with the linear map A(θ) of a block, and maps of one entry a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_augconj.linalg.linear_map import RowSelection
from pymc_augconj.point import Argument, Point
from pymc_augconj.python_mode.tape import TapeBuilder
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.typing import Index

#: The key of the vector of a product.
DIRECTION = Argument("direction")
#: The key of the coefficients of a map's parts.
COEFFICIENTS = Argument("coefficients")


class Product:
    """Products A(θ) v, or Aᵀ(θ) w, as a function of the point and a vector of length ``size``.

    With ``fixed`` entries they depend on no point; a vector is multiplied by ``mask`` first.
    """

    def __init__(
        self,
        function: PointFunction,
        size: int,
        fixed: Point | None = None,
        mask: np.ndarray | None = None,
    ) -> None:
        self._function, self.size, self._fixed, self._mask = function, size, fixed, mask
        self.names = tuple(n for n in function.names if n != DIRECTION and fixed is None)
        self.shared = function.shared

    def __call__(self, point: Point, vector: np.ndarray) -> np.ndarray:
        return np.array(self._function(self._given(point, vector)), dtype=float)

    def once(self, point: Point, vector: np.ndarray) -> np.ndarray:
        """Return a product without compiling, for a few evaluations."""
        return np.array(self._function.uncompiled(self._given(point, vector)), dtype=float)

    def _given(self, point: Point, vector: np.ndarray) -> Point:
        vector = vector if self._mask is None else self._mask * vector
        return {**(point if self._fixed is None else self._fixed), DIRECTION: vector}

    def masked(self, mask: np.ndarray) -> Product:
        """Return the products with some columns of A, zero elsewhere."""
        return Product(self._function, self.size, self._fixed, mask)

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
        return Product(self.product, size, {COEFFICIENTS: np.eye(self.count)[k]})


@dataclass(frozen=True)
class Selection:
    """The entry that each row of A selects, and its coefficient at every point examined."""

    index: np.ndarray
    coefs: list[np.ndarray]

    @property
    def is_one_multiple(self) -> bool:
        """Whether all rows have one coefficient, not zero, at every point."""
        return all(c.size and c[0] != 0.0 and np.all(c == c[0]) for c in self.coefs)

    def map(self, size: int) -> RowSelection:
        """Return it with the coefficients of the first point."""
        coef = self.coefs[0]
        return RowSelection(self.index, None if np.all(coef == 1.0) else coef, size)


def find_selection(product: Product, points: Sequence[Point]) -> Selection | None:
    """Return the single entries of A's rows, or None if a row has more than one."""
    points = points if product.names else points[:1]
    ramp = np.arange(1.0, product.size + 1.0)
    coefs: list[np.ndarray] = []
    index, known = np.empty(0, dtype=np.intp), np.empty(0, dtype=bool)
    for point in points:
        coef = product.once(point, np.ones(product.size))
        if not np.isfinite(coef).all():
            return None
        nonzero = coef != 0.0
        picked = np.divide(product.once(point, ramp), coef, out=np.ones_like(coef), where=nonzero)
        found = np.clip(np.rint(picked), 1, product.size).astype(np.intp) - 1
        if not coefs:
            index, known = found, nonzero
        else:
            # A coefficient that is zero at one point (β = 0) does not show the entry.
            if np.any(known & nonzero & (index != found)):
                return None
            index = np.where(known, index, found)
            known = known | nonzero
        coefs.append(coef)
    weights = random_vector(product.size)
    for columns in _subsets(product.size):
        vector = np.where(columns, weights, 0.0)
        for point, coef in zip(points, coefs, strict=True):
            # Zeros add up to exactly zero; a second entry has a term that is not zero.
            others = product.once(point, vector)[~(columns[index] & (coef != 0.0))]
            if np.any(others != 0.0):
                return None
    return Selection(index, coefs)


def _subsets(size: int) -> Iterator[np.ndarray]:
    """Yield masks such that each of any two columns is in a mask without the other.

    They are the digits of a column's number, and of its number of zeros (Berger's code): about
    log₂ size masks.
    """
    columns = np.arange(size)
    n_digits = max(size - 1, 0).bit_length()
    zeros = np.full(size, n_digits)
    for digit in range(n_digits):
        mask = (columns >> digit) & 1 == 1
        zeros -= mask
        yield mask
    for digit in range(n_digits.bit_length()):
        yield (zeros >> digit) & 1 == 1


def random_vector(size: int) -> np.ndarray:
    """Return numbers between one and two."""
    return next(random_vectors(size))


def random_vectors(size: int) -> Iterator[np.ndarray]:
    """Yield vectors of numbers between one and two."""
    # A fixed stream: recognition of one model gives one result.
    rng = np.random.default_rng(20_261_121)
    while True:
        yield rng.uniform(1.0, 2.0, size)
