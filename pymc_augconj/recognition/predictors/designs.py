"""Finds the linear map A(θ) of a block by evaluating A on a few vectors.

The structure is found numerically, so that it does not depend on the user's spelling. Some products
are zero if and only if every row of A has a single entry, also if a second entry is tiny relative
to the first. One comparison, of columns in their own units, shows whether θ only scales the
columns. At every other value of θ one product checks the structure again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from pymc_augconj.errors import RecognitionError
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap
from pymc_augconj.point import FixedValue, Point, PointMap
from pymc_augconj.python_mode.tape import TapeBuilder
from pymc_augconj.recognition.graph.functions import SharedData

from .coefficients import Parts, Product, Selection, find_selection, random_vector
from .maps import (
    Entries,
    FixedMap,
    GeneralMap,
    Map,
    ScaledColumns,
    ScaledSelection,
    SumOfParts,
    Terms,
    is_selected,
)

#: A dense design of more entries than this (2.4 GB) is refused.
LARGEST_DENSE_DESIGN = 300_000_000

# Columns that underflow at other points are compared where parameters have moved so little.
_NEARBY = (0.01, 0.1)
# Where columns still underflow, it is tried beyond the best point, as seen from the start.
_FURTHER = (2.0, 3.0)


class BlockMap:
    """A block's map A as a function of the point; RecognitionError if it is dense and too large.

    ``product`` has products with A, and ``transposed`` returns those with Aᵀ, which few maps ask
    for. The structure is examined at ``points``, two or more different values of θ. At
    ``wide_points``, far from those, rows of A that are equal must still be so: engines merge them
    (a coefficient like σ((x − θ)/0.01) is 0 or 1 for most x at any one θ). The structure at a few
    values of θ says little about others if the ``dependence`` of A on θ is "kinked" or "discrete"
    (comparisons, indices) rather than "smooth". If it is "affine" in θ or exp(θ), no entry vanishes
    by underflow. ``parts`` is A as a sum of fixed parts whose coefficients depend on θ, if it is
    one. ``group`` latents are correlated in each of several groups, one after another: a row may
    take one of each kind (an intercept and a slope).
    """

    def __init__(
        self,
        product: Product,
        transposed: Callable[[], Product],
        points: Sequence[Point],
        wide_points: Sequence[Point],
        name: str,
        dependence: str = "smooth",
        parts: Parts | None = None,
        group: int = 1,
    ) -> None:
        self.names, self._parts, self._group = product.names, parts, group
        self._product, self._transposed = product, transposed
        self._points, self._wide_points = list(points), list(wide_points)
        self._name, self._dependence = name, dependence
        self._data = SharedData(product.shared)
        self._at = self._read()

    @property
    def kind(self) -> str:
        """The entry in the printed table of latents."""
        return self._at.kind

    def __call__(self, point: Point) -> LinearMap:
        if self._data.changed():
            # pm.set_data has changed a design or an index, and perhaps the structure.
            self._data = SharedData(self._product.shared)
            self._at = self._read()
        return self._at(point)

    def on_tape(self, tape: TapeBuilder, entries: Entries) -> Terms:
        """Return A as a sum: factors are of shape (), (N, 1) or (1, size); see :class:`.OnTape`."""
        at, may_differ = self._at, self._dependence in ("kinked", "discrete")
        if isinstance(at, ScaledColumns):
            may_differ |= bool(at.is_zero.any())
        if may_differ and isinstance(at, ScaledColumns | GeneralMap):
            # Where entries have kinks, or underflow, a structure may not hold elsewhere.
            at = GeneralMap(self._product)
        return at.on_tape(tape, entries)

    def _read(self) -> Map:
        product, points = self._product, self._points
        if self._parts is not None:
            summed = self._sum_of_parts(self._parts)
            if summed is not None:
                return summed
        found = None if self._dependence == "discrete" else find_selection(product, points)
        if found is not None and self._holds_elsewhere(found):
            if product.names:
                return ScaledSelection(product, found.index, self._name)
            return FixedMap(found.map(product.size))
        if not product.names and self._group > 1:
            kind = np.arange(product.size) % self._group
            kinds = [product.masked(1.0 * (kind == k)) for k in range(self._group)]
            summed = self._sum_of(FixedValue(np.ones(self._group)), kinds)
            if summed is not None:
                return summed
        self._refuse_too_large()
        if self._dependence == "discrete" or found is not None:
            return GeneralMap(product)
        if not product.names:
            return FixedMap(DenseMap(product.matrix(points[0])))
        transposed = self._transposed()
        reference = self._reference(transposed)
        matrix = product.matrix(reference)
        make = partial(ScaledColumns, product, transposed, matrix, reference)
        columns = make(np.zeros(len(matrix), dtype=bool))
        if self._holds(columns, reference):
            return columns
        others = [point for point in points if point is not reference]
        matrices = [matrix, *(product.matrix(point) for point in others)]
        # A prior that is an observation has rows that no hyperparameter scales.
        is_fixed = np.all([(own == matrix).all(axis=1) for own in matrices], axis=0)
        if is_fixed.any():
            columns = make(is_fixed)
            if self._holds(columns, reference):
                return columns
        return GeneralMap(product, matrices, vanishes=self._dependence != "affine")

    def _reference(self, transposed: Product) -> Point:
        """Return the first point, or one where fewer columns underflow."""
        start, *others = self._points
        weights = random_vector(self._product.once(start, np.zeros(self._product.size)).size)

        def n_zeros(point: Point) -> int:
            found = transposed(point, weights)
            return int(np.sum(found == 0.0)) if np.isfinite(found).all() else found.size

        if n_zeros(start) == 0:
            return start
        best = min((start, *others, *self._wide_points), key=n_zeros)
        return min((best, *(self._towards(start, best, k) for k in _FURTHER)), key=n_zeros)

    def _towards(self, one: Point, other: Point, share: float) -> Point:
        """Return ``one`` with hyperparameters moved by a share of their way to ``other``."""
        names = self._product.names
        return {**one, **{n: (1.0 - share) * one[n] + share * other[n] for n in names}}

    def _holds(self, columns: ScaledColumns, reference: Point) -> bool:
        """Return whether only factors of columns differ, with each column seen at two points."""
        others = [point for point in self._points if point is not reference]
        others += [self._towards(reference, others[0], share) for share in _NEARBY]
        seen = columns.is_zero.copy()
        for point in others:
            factors = columns.factors(point)
            if factors is None:
                return False
            seen |= ~columns.underflow(factors)
        return bool(seen.all())

    def _sum_of_parts(self, parts: Parts) -> SumOfParts | None:
        """Return the map with fixed parts; None if another form is better."""
        products = [parts.part(k, self._product.size) for k in range(parts.count)]
        if parts.count > 1:
            return self._sum_of(parts.coefs, products)
        found = find_selection(products[0], [{}])
        if found is None:
            self._refuse_too_large()
            dense = DenseMap(products[0].matrix({}))
            return SumOfParts(parts.coefs, [dense], ScaledColumns.kind)
        return SumOfParts(parts.coefs, [found.map(self._product.size)], ScaledSelection.kind)

    def _sum_of(
        self, coefs: PointMap[np.ndarray], products: Sequence[Product]
    ) -> SumOfParts | None:
        """Return the sum of several selections, a :class:`SumOfParts`; None for other parts."""
        found = [find_selection(product, [{}]) for product in products]
        if any(one is None for one in found):
            return None
        every = [one for one in found if one is not None]
        return SumOfParts.of(coefs, every, self._product.size)

    def _holds_elsewhere(self, found: Selection) -> bool:
        """Return whether rows that are equal at the examined θ are equal at other θ.

        Entries of columns that no row takes may have underflowed at the examined θ alone.
        """
        product, index, is_one_multiple = self._product, found.index, found.is_one_multiple
        unused = np.unique(index).size < product.size
        if not product.names or (is_one_multiple and not unused):
            return True
        if self._dependence == "kinked" and not is_one_multiple:
            return False
        first = group = np.zeros(index.size, dtype=np.intp)
        if not is_one_multiple:
            keys = np.stack([index, *found.coefs], axis=1)
            _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        probe = random_vector(product.size)
        for point in self._wide_points:
            coef = product.once(point, np.ones(product.size))
            if not np.isfinite(coef).all():
                continue
            if not np.array_equal(coef, coef[first][group.ravel()]):
                return False
            if unused and not is_selected(product.once(point, probe), coef, probe[index]):
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
