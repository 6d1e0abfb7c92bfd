"""Maps A(θ) of a block: fixed ones, sums, selections, scaled columns, and those without structure.

Each gives A at a point, and on a tape as a sum of fixed maps with factors. Some products show at
every point that the structure still holds there.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pymc_augconj.errors import RecognitionError
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection, SelectionSum
from pymc_augconj.point import Point, PointMap
from pymc_augconj.python_mode.tape import NoTapeError, TapeBuilder
from pymc_augconj.typing import Index

from .coefficients import Product, Selection, columns_apart, random_vector, random_vectors

Entries = Mapping[Any, Index]
# Fixed maps, each with the registers of its factors.
Terms = list[tuple[Index, LinearMap]]

# Rounding of a product with A, relative to the sum of its terms' magnitudes, is below this.
_ROUNDING = 256.0 * np.finfo(float).eps

# A factor of a column is a ratio of sums over its entries. If these cancel by this factor, the
# ratio has too few digits to be compared.
_LARGEST_CANCELLATION = 1e4
# Weights of these sums that are tried.
_MOST_WEIGHTS = 50

# Entries of a column below this at some θ are as good as zero, and have few digits.
_UNDERFLOW = np.finfo(float).tiny / np.finfo(float).eps ** 2

# Selections of the longest sum of these, of which every pair is added up.
_MOST_PARTS = 6

# Columns of a design of another shape at every θ, which a tape computes one by one.
_MOST_COLUMNS = 16

# Relative tolerance at which two entries are the same; different entries differ by far more.
_SAME_ENTRY = 1e-9


class FixedMap:
    """A map that depends on no hyperparameter."""

    def __init__(self, value: LinearMap) -> None:
        self._value = value
        if isinstance(value, DenseMap):
            self.kind = "design matrix"
        else:
            self.kind = "identity" if value.is_identity else "selection"

    def __call__(self, point: Point) -> LinearMap:
        return self._value

    def on_tape(self, tape: TapeBuilder, entries: Entries) -> Terms:
        return [(tape.constants(1.0), self._value)]


class SumOfParts:
    """A(θ) = Σ c_k(θ) B_k, of one part, or of selections that take different entries."""

    def __init__(
        self, coefs: PointMap[np.ndarray], parts: Sequence[RowSelection | DenseMap], kind: str
    ) -> None:
        self._coefs, self.kind = coefs, kind
        self._parts: Any = tuple(parts)

    @classmethod
    def of(
        cls, coefs: PointMap[np.ndarray], found: Sequence[Selection], size: int
    ) -> SumOfParts | None:
        """Return the sum; None if another form is better.

        Where every row takes one entry, it is one selection; where every part takes one entry, it
        is a matrix whose columns are scaled, and products with matrices take less time.
        """
        # A part that does not take part in a row has no entry of its own there.
        index, taken = found[0].index.copy(), np.zeros(found[0].index.size, dtype=bool)
        for one in found:
            nonzero = one.coefs[0] != 0.0
            index[nonzero & ~taken] = one.index[nonzero & ~taken]
            taken |= nonzero
        parts = [
            RowSelection(np.where(one.coefs[0] != 0.0, one.index, index), one.coefs[0], size)
            for one in found
        ]
        if all(np.array_equal(part.index, index) for part in parts):
            return None
        if all(np.unique(one.index[one.coefs[0] != 0.0]).size <= 1 for one in found):
            return None
        kind = "sum of selections" + ", scaled by hyperparameters" * bool(coefs.names)
        return cls(coefs, parts, kind)

    def __call__(self, point: Point) -> LinearMap:
        coefs, (first, *others) = np.array(self._coefs(point), dtype=float), self._parts
        if others:
            return SelectionSum(coefs, self._parts)
        if isinstance(first, RowSelection):
            return first.times(coefs.item())
        return DenseMap(first.matrix, np.full(first.size, coefs.item()))

    def on_tape(self, tape: TapeBuilder, entries: Entries) -> Terms:
        if self._coefs.names:
            coefs = tape.evaluate(self._coefs, entries)
        else:
            coefs = tape.constants(self._coefs({}))
        return list(zip(coefs, self._parts, strict=True))


def is_selected(found: np.ndarray, coef: np.ndarray, entry: np.ndarray) -> bool:
    """Return whether products with a vector are multiples of one entry of it each."""
    # Subnormal numbers have few digits.
    rounding = _SAME_ENTRY * np.abs(coef) + np.finfo(float).tiny
    return bool(np.all(np.abs(found - coef * entry) <= rounding))


class ScaledSelection:
    """A(θ) with one entry in each row, in the same columns at every θ."""

    kind = "selection, scaled by hyperparameters"

    def __init__(self, product: Product, index: np.ndarray, name: str) -> None:
        self._product, self._index, self._name = product, index, name
        self._probe = random_vector(product.size)

    def __call__(self, point: Point) -> LinearMap:
        coef = self._product(point, np.ones(self._product.size))
        if self._product.size == 1:  # two products may differ by rounding alone
            return RowSelection(self._index, coef, 1)
        found = self._product(point, self._probe)
        if np.isfinite(coef).all() and not is_selected(found, coef, self._probe[self._index]):
            raise RecognitionError(
                f"latent variable {self._name!r}: expected every predictor to depend on the same "
                "entry of it at all hyperparameters, found a different entry than where the model "
                "was examined; sample this model with pm.sample's NUTS"
            )
        return RowSelection(self._index, coef, self._product.size)

    def on_tape(self, tape: TapeBuilder, entries: Entries) -> Terms:
        part = RowSelection(self._index, None, self._product.size)
        coef = self._product.on_tape(tape, entries, np.ones(self._product.size))
        return [(coef[:, None], part)]


class ScaledColumns:
    """A(θ) = M diag(c(θ)), with M and the ratios of Aᵀ w to Mᵀ w kept; and rows F that are fixed.

    A product with (p₁/c₁, …) is then the same at every θ, that of F excepted. With pⱼ the inverse
    of the largest entry of column j, it shows where a column has another shape, for any units of
    the others.
    """

    kind = "design matrix, columns scaled by hyperparameters"

    def __init__(
        self, product: Product, transposed: Product, matrix: np.ndarray, point: Point,
        is_fixed: np.ndarray,
    ) -> None:  # fmt: skip
        self._product, self._transposed, self._is_fixed = product, transposed, is_fixed
        self._fixed = matrix[is_fixed]
        if is_fixed.any():
            matrix = np.asfortranarray(np.where(is_fixed[:, None], 0.0, matrix))
        self._matrix, (n_rows, size) = matrix, matrix.shape
        self.is_zero = np.array([not np.any(column) for column in matrix.T])
        size_of = np.abs(matrix)
        # Of thousands of columns the sum of one cancels with almost any weights.
        for weights in itertools.islice(random_vectors(n_rows), _MOST_WEIGHTS):
            self._weights = np.where(is_fixed, 0.0, weights)
            self._reference = transposed(point, self._weights)
            with np.errstate(all="ignore"):
                ratio = (self._weights @ size_of) / np.abs(self._reference)
            cancellation = np.where(self.is_zero, 1.0, ratio)
            self._has_digits = bool(np.all(cancellation <= _LARGEST_CANCELLATION))
            if self._has_digits:
                break
        self._largest = size_of.max(axis=0)
        self._probe = random_vector(size) / np.where(self.is_zero, 1.0, self._largest)
        self._expected = matrix @ self._probe
        self._tolerance = _ROUNDING * (size_of @ (self._probe * cancellation))

    def underflow(self, factors: np.ndarray) -> Index:
        """Return which columns are zero at ``factors`` up to numbers that have few digits."""
        return np.abs(factors) * self._largest < _UNDERFLOW

    def factors(self, point: Point) -> np.ndarray | None:
        """Return the factors of the columns at ``point``, or None if the columns differ."""
        found = self._transposed(point, self._weights)
        if not self._has_digits or np.any(found[self.is_zero] != 0.0):
            return None
        factors = np.divide(found, self._reference, out=np.ones_like(found), where=~self.is_zero)
        with np.errstate(all="ignore"):
            vector = self._probe / factors
            expected, tolerance = self._expected, self._tolerance
            underflow = self.underflow(factors) & ~self.is_zero
            if underflow.any():
                vector[underflow] = 0.0
                expected = expected - self._matrix[:, underflow] @ self._probe[underflow]
            if len(self._fixed):
                expected, tolerance = expected.copy(), tolerance.copy()
                expected[self._is_fixed] = self._fixed @ vector
                tolerance[self._is_fixed] = _ROUNDING * (np.abs(self._fixed) @ np.abs(vector))
            difference = np.abs(self._product(point, vector) - expected)
            return factors if np.all(difference <= tolerance) else None

    def __call__(self, point: Point) -> LinearMap:
        factors = self.factors(point)
        if factors is None:
            return DenseMap(self._product.matrix(point))
        if not len(self._fixed):
            return DenseMap(self._matrix, factors)
        matrix = self._matrix * factors
        matrix[self._is_fixed] = self._fixed
        return DenseMap(matrix)

    def on_tape(self, tape: TapeBuilder, entries: Entries) -> Terms:
        # As in factors, of columns with entries up to one: products of two may underflow.
        unit = np.ldexp(1.0, np.frexp(self._largest)[1])
        found = self._transposed.on_tape(tape, entries, self._weights)
        reference = tape.constants(self._reference / unit)
        scaled = DenseMap(self._matrix / unit)
        terms: Terms = [(tape.apply("TrueDiv", found, reference)[None], scaled)]
        if len(self._fixed):
            fixed = np.zeros_like(self._matrix)
            fixed[self._is_fixed] = self._fixed
            terms.append((tape.constants(1.0), DenseMap(fixed)))
        return terms


class GeneralMap:
    """A(θ) from products: one for each column, or for each group of columns without a common row.

    Columns are grouped by their non-zero entries (Curtis, Powell & Reid 1974); a product with a
    random vector, of columns in their own units, detects entries elsewhere, which may underflow at
    the examined points unless no entry ``vanishes``.
    """

    kind = "design matrix depending on hyperparameters"

    def __init__(
        self, product: Product, matrices: Sequence[np.ndarray] = (), *, vanishes: bool = True
    ) -> None:
        self._product, self._vanishes = product, vanishes
        # The sum of the columns of every group; none where there are too many groups to be of use.
        self._vectors: list[np.ndarray] = []
        # The column that each row takes of every group, where there are few.
        self._index: np.ndarray | None = None
        if matrices:
            nonzero = np.any([matrix != 0.0 for matrix in matrices], axis=0)
            groups = columns_apart(nonzero)
            n_groups = int(groups.max(initial=-1)) + 1
            if 2 * n_groups < product.size:
                self._vectors = [1.0 * (groups == k) for k in range(n_groups)]
                self._rows, self._columns = np.nonzero(nonzero)
                self._group = groups[self._columns]
            if self._vectors and n_groups <= _MOST_PARTS:
                # A row takes an entry of its own again where it takes none of a group.
                index = np.tile(nonzero.argmax(axis=1), (n_groups, 1))
                index[self._group, self._rows] = self._columns
                self._index = index

    def __call__(self, point: Point) -> LinearMap:
        if not self._vectors:
            return DenseMap(self._product.matrix(point))
        sums = np.array([self._product(point, vector) for vector in self._vectors])
        if self._index is None:
            matrix = np.zeros((sums.shape[1], self._product.size), order="F")
            matrix[self._rows, self._columns] = sums[self._group, self._rows]
            found = DenseMap(matrix)
        else:
            pairs = zip(self._index, sums, strict=True)
            parts = tuple(RowSelection(index, c, self._product.size) for index, c in pairs)
            found = SelectionSum(np.ones(len(parts)), parts)
        return found if self._is_whole(found, point) else DenseMap(self._product.matrix(point))

    def on_tape(self, tape: TapeBuilder, entries: Entries) -> Terms:
        product, index, vectors = self._product, self._index, self._vectors
        if index is None:
            if product.size > _MOST_COLUMNS:
                raise NoTapeError(self.kind)
            # Column by column, whatever rows take of each.
            vectors = list(np.eye(product.size))
        coefs = [product.on_tape(tape, entries, vector)[:, None] for vector in vectors]
        if index is None:
            index = np.arange(len(coefs))[:, None].repeat(len(coefs[0]), axis=1)
        elif self._vanishes:
            coefs[0] = self._where_whole(tape, entries, coefs, index)
        parts = [RowSelection(own, None, product.size) for own in index]
        return list(zip(coefs, parts, strict=True))

    def _where_whole(
        self, tape: TapeBuilder, entries: Entries, coefs: Sequence[Index], columns: Index
    ) -> Index:
        """Return the first coefficients, NaN in rows that have entries in other ``columns``."""
        probe = random_vector(self._product.size)
        difference = self._product.on_tape(tape, entries, probe)[:, None]
        magnitude = tape.constants(0.0)
        for coef, index in zip(coefs, columns, strict=True):
            term = tape.apply("Mul", coef, tape.constants(probe[index])[:, None])
            difference = tape.apply("Sub", difference, term)
            magnitude = tape.apply("Add", magnitude, tape.apply("Abs", term))
        bound = tape.apply("Mul", magnitude, tape.constants(_SAME_ENTRY))
        is_whole = tape.apply("GE", bound, tape.apply("Abs", difference))
        return tape.apply("Switch", is_whole, coefs[0], tape.constants(np.nan))

    def _is_whole(self, found: LinearMap, point: Point) -> bool:
        with np.errstate(all="ignore"):
            largest = found.largest_entries()
            probe = random_vector(largest.size) / np.where(largest > 0.0, largest, 1.0)
            difference = np.abs(self._product(point, probe) - found.apply(probe))
            return bool(np.all(difference <= _ROUNDING * found.magnitude(probe)))


Map = FixedMap | SumOfParts | ScaledSelection | ScaledColumns | GeneralMap
