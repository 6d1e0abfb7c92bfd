"""A precision matrix from a graph of its products with vectors.

The positions of the entries of Q(θ) are found once, by products. Afterwards Q(θ) takes one product
per colour: columns without a common row have the same colour, and one product gives all of their
entries (Curtis, Powell & Reid 1974).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph
from scipy.sparse import csr_array

from pymc_augconj.errors import RecognitionError
from pymc_augconj.linalg.banded import BandedFactor, BandPattern
from pymc_augconj.model import Argument, Point, PointMap
from pymc_augconj.recognition.graph.functions import Gradient, PointFunction
from pymc_augconj.recognition.graph.rewrite import simplify
from pymc_augconj.recognition.graph.space import ValueSpace
from pymc_augconj.typing import Array, Index

__all__ = ["PrecisionGraph", "find_entries", "precision_graph", "read_precision"]

Entries = tuple[Index, Index]

_WEIGHTS = Argument("weights")

# Bandwidths that are tried before every column is computed.
_BANDS = (1, 2, 4, 8, 16, 32)

# Largest number of entries of the matrices of one product when columns are computed.
_LARGEST_PRODUCT = 2**20

# Tolerances of a product with Q, relative to the sum of the absolute values of its terms: in the
# search for entries, and at every θ, where ill-conditioned graphs have larger rounding errors.
# An entry that is missed has a smaller partial correlation.
_TOLERANCE = 1e-10
_LARGEST_ERROR = 1e-7


@dataclass(eq=False)
class PrecisionGraph:
    """Q as a graph: its entries, from its products with a few vectors.

    Attributes
    ----------
    size : int
    rows, cols : ndarray of int, shape (E,)
        Where Q has entries, in both triangles; row by row.
    colours : ndarray of int, shape (size,)
        Of every column.
    probe : ndarray, shape (size,)
        Another vector, by whose product the entries are checked.
    products : Variable
        Graph of the products, one a row: of each colour's sum of unit vectors, and of ``probe``.
    """

    size: int
    rows: Index
    cols: Index
    colours: Index
    probe: Array
    products: Variable

    @cached_property
    def entries(self) -> Variable:
        """Graph of the entries of Q, shape (E,)."""
        return self.products[self.colours[self.cols], self.rows]

    @cached_property
    def band(self) -> BandPattern:
        """Where the entries stand in a band."""
        return BandPattern(self.size, self.rows, self.cols)

    def factorize(self, entries: Array) -> BandedFactor:
        """Return the factor of Q given its entries; NotPositiveDefiniteError if there is none."""
        flat = np.zeros(self.band.n_flat)
        flat[self.band.positions(self.rows, self.cols)] = entries
        return self.band.factorize(flat)

    @cached_property
    def matrix(self) -> Variable:
        """Graph of Q itself."""
        return pt.zeros((self.size, self.size))[self.rows, self.cols].set(self.entries)

    @cached_property
    def _places(self) -> Index:
        return self.colours[self.cols] * self.size + self.rows

    @cached_property
    def _starts(self) -> Index:
        return np.concatenate([[0], np.cumsum(np.bincount(self.rows, minlength=self.size))])

    def _by_rows(self, values: Array) -> csr_array:
        """Return the matrix of these entries; entries are sorted by row."""
        return csr_array((values, self.cols, self._starts), shape=(self.size, self.size))

    def of_products(self, products: Array) -> Array | None:
        """Return the entries, or None where Q has others than these."""
        entries = products.ravel()[self._places]
        found = self._by_rows(entries) @ self.probe
        # The probe is positive.
        scale = self._by_rows(np.abs(entries)) @ self.probe
        agrees = np.abs(found - products[-1]) <= _LARGEST_ERROR * scale
        return entries if agrees.all() or not np.isfinite(products).all() else None


def precision_graph(
    product: Variable, vector: Variable, entries: Entries, size: int
) -> PrecisionGraph:
    """Return Q from the graph of its product with a symbolic ``vector``."""
    rows, cols = entries
    colours = _colour(rows, cols, size)
    probe = np.random.default_rng(20_261_121).uniform(1.0, 2.0, size)
    vectors = np.zeros((colours.max(initial=-1) + 2, size))
    vectors[colours, np.arange(size)] = 1.0
    vectors[-1] = probe
    (products,) = simplify([vectorize_graph(product, {vector: pt.constant(vectors)})])
    return PrecisionGraph(size, rows, cols, colours, probe, products)


def find_entries(multiply: Sequence[Callable[[Array], Array]], size: int) -> Entries:
    """Return where a symmetric matrix has entries that are not always zero.

    Parameters
    ----------
    multiply : sequence of callable
        At each of several θ: ``V -> V Q``, for vectors in rows.
    size : int
        Of the matrix.
    """
    probe = np.random.default_rng(3).uniform(1.0, 2.0, (1, size))
    expected = [product(probe)[0] for product in multiply]
    for width in _BANDS:
        if 4 * (2 * width + 1) > size:
            break
        within = np.add.outer(np.arange(size), np.arange(-width, width + 1)).ravel()
        rows = np.repeat(np.arange(size), 2 * width + 1)
        rows, cols = (x[(within >= 0) & (within < size)] for x in (rows, within))
        colours = np.arange(size) % (2 * width + 1)
        vectors = (colours == np.arange(2 * width + 1)[:, None]).astype(float)
        bands = [product(vectors)[colours[cols], rows] for product in multiply]
        if all(
            _agree(rows, band * probe[0, cols], right)
            for band, right in zip(bands, expected, strict=True)
        ):
            used = np.any([band != 0.0 for band in bands], axis=0) | (rows == cols)
            return rows[used], cols[used]
    step = max(1, _LARGEST_PRODUCT // max(1, size))
    codes = [np.arange(size) * (size + 1)]
    for start in range(0, size, step):
        columns = np.arange(start, min(start + step, size))
        vectors = np.equal.outer(columns, np.arange(size)).astype(float)
        found = np.any([product(vectors) != 0.0 for product in multiply], axis=0)
        which, rows = np.nonzero(found)
        codes += [columns[which] * size + rows, rows * size + columns[which]]
    rows, cols = np.divmod(np.unique(np.concatenate(codes)), size)
    return rows, cols


def _agree(rows: Index, terms: Array, expected: Array) -> bool:
    found = np.bincount(rows, terms, expected.size)
    scale = np.bincount(rows, np.abs(terms), expected.size)
    return bool(np.all(np.abs(found - expected) <= _TOLERANCE * scale))


def _colour(rows: Index, cols: Index, size: int) -> Index:
    """Colour the columns so that no two of one colour have a row in common."""
    colours = np.arange(size)
    largest = int(np.bincount(rows, minlength=1).max())
    if largest == size:
        return colours
    period = 2 * int(np.abs(rows - cols).max()) + 1
    if period <= 2 * largest:
        return colours % period  # of a band
    taken: list[set[int]] = [set() for _ in range(size)]
    order = np.argsort(cols, kind="stable")
    of_column = np.split(rows[order], np.searchsorted(cols[order], np.arange(1, size)))
    for j, members in enumerate(of_column):
        forbidden = set().union(*(taken[i] for i in members))
        colours[j] = next(colour for colour in range(size) if colour not in forbidden)
        for i in members:
            taken[i].add(int(colours[j]))
    return colours


def read_precision(
    graph: PrecisionGraph, space: ValueSpace, name: str
) -> tuple[PointMap[Array], Callable[[Point, Array], dict[str, Array]]]:
    """Return the entries of Q as a function of the point, and their pullback.

    Parameters
    ----------
    graph : PrecisionGraph
    space : ValueSpace
    name : str
        The latent variable, for error messages.
    """
    (products,) = space.in_values([graph.products])
    return _Entries(graph, space.function(products), name), _Pullback(graph, products, space)


class _Entries:
    """The entries of Q as a function of the point."""

    def __init__(self, graph: PrecisionGraph, products: PointFunction, name: str) -> None:
        self._graph, self._products, self._name = graph, products, name
        self.names, self.shared, self.graph = products.names, products.shared, products.graph
        self.compile = products.compile

    def __call__(self, point: Point) -> Array:
        entries = self._graph.of_products(np.asarray(self._products(point), dtype=float))
        if entries is None:
            raise RecognitionError(
                f"variable {self._name!r}: expected a prior precision matrix with the same zeros "
                "as when the model was recognised, found others; if its data have changed, "
                "recognise the model again (build the step again); otherwise sample it with "
                "pm.sample's NUTS"
            )
        return entries


class _Pullback:
    """``(point, weights) -> {name: derivative}`` of Σ weights·entries."""

    def __init__(self, graph: PrecisionGraph, products: Variable, space: ValueSpace) -> None:
        self._graph, self._products, self._space = graph, products, space

    @cached_property
    def _gradient(self) -> Gradient:
        weights = pt.matrix("weights", dtype="float64")
        return self._space.gradient((weights * self._products).sum(), {_WEIGHTS: weights})

    def __call__(self, point: Point, weights: Array) -> dict[str, Array]:
        graph = self._graph
        of_products = np.zeros((graph.colours.max(initial=-1) + 2, graph.size))
        of_products[graph.colours[graph.cols], graph.rows] = weights
        return self._gradient({**point, _WEIGHTS: of_products})
