"""A precision matrix from a graph of its products with vectors.

The positions of the entries of Q(θ) are found once, by products. Afterwards Q(θ) takes one product
for each colour: columns without a common row have the same colour, and one product gives all their
entries (Curtis, Powell & Reid 1974).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.timeseries import RandomWalkRV
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph
from scipy.sparse import csr_array

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import RecognitionError
from pymc_augconj.latents.precision import IntrinsicPrior, PrecisionPrior
from pymc_augconj.point import Point
from pymc_augconj.recognition.graph.dependence import ValueSpace
from pymc_augconj.recognition.graph.rewrite import simplify
from pymc_augconj.typing import Array, Index

Entries = tuple[Index, Index, tuple[int, int] | None]
Multiply = Callable[[Array], Array]

# Bandwidths to try before computing every column.
_BANDS = (1, 2, 4, 8, 16, 32)

# Largest number of entries of the matrices of one product when columns are computed.
_LARGEST_PRODUCT = 2**20

# Least number of values in the search for a constraint on their sum.
_SMALLEST_SUM = 6

# Tolerances of a product with Q, relative to the sum of the absolute values of its terms: in the
# search for entries, and at every θ, where ill-conditioned graphs have larger rounding errors.
# An entry that is missed has a smaller partial correlation.
_TOLERANCE = 1e-10
_LARGEST_ERROR = 1e-7


class CommonValues(NamedTuple):
    """Entries that are few numbers, each at many places.

    ``values`` is the graph of the numbers; ``which``, (E,) or (E + W,), has the number's index for
    each entry, and for the precision of each walk's first value.
    """

    values: Variable
    which: Index


@dataclass(eq=False)
class PrecisionGraph:
    """Q as a graph: its entries, from its products with a few vectors."""

    size: int
    #: Positions of the entries of Q, in both triangles, row by row, shape (E,).
    rows: Index
    cols: Index
    #: Colour of every column, shape (size,).
    colours: Index
    #: A test vector, whose product checks the entries, shape (size,).
    probe: Array
    #: Graph of the products, one in each row: with each colour's sum of unit vectors; with a unit
    #: vector if there is a common entry; and with ``probe``.
    products: Variable
    #: A position where Q = B + c² 1 1ᵀ has only its common entry c²; None without one. The entries
    #: are then those of B, followed by c².
    common: tuple[int, int] | None
    formula: CommonValues | None = None

    @property
    def entries(self) -> Variable:
        """Graph of the entries of Q, and of the other numbers of a block."""
        if self.formula is not None:
            return self.formula.values[self.formula.which]
        entries = self.products[self.colours[self.cols], self.rows]
        if self.common is None:
            return entries
        square = self.products[-2, self.common[0]]
        return pt.concatenate([entries - square * self._columns_of_colour, [square]])

    @cached_property
    def _columns_of_colour(self) -> Array:
        """Number of columns of each colour, by entry."""
        return np.bincount(self.colours)[self.colours[self.cols]].astype(float)

    @cached_property
    def block(self) -> LatentBlock:
        """The structure of Q: a block without a name or values."""
        nowhere: Any = None
        return LatentBlock(
            name="", value_name="", form="", shape=(self.size,), size=self.size, copies=1,
            whitened=False, kind=self.kind, scale=nowhere, entries=np.stack([self.rows, self.cols]),
        )  # fmt: skip

    @property
    def kind(self) -> str:
        """The kind of prior."""
        return PrecisionPrior.kind if self.common is None else IntrinsicPrior.kind

    @cached_property
    def _places(self) -> Index:
        return self.colours[self.cols] * self.size + self.rows

    @cached_property
    def _starts(self) -> Index:
        return np.concatenate([[0], np.cumsum(np.bincount(self.rows, minlength=self.size))])

    def _by_rows(self, values: Array) -> csr_array:
        """Return the matrix of these entries; entries are sorted by row."""
        return csr_array((values, self.cols, self._starts), shape=(self.size, self.size))

    @property
    def source(self) -> Variable:
        """Graph of the numbers that the entries are computed from."""
        return self.products if self.formula is None else self.formula.values

    def at_places(self, source: NDArray[Any]) -> NDArray[Any]:
        """Return what an array of the source's shape has at the entries without a common one."""
        return source.ravel()[self._places if self.formula is None else self.formula.which]

    def of_source(self, products: Array) -> Array | None:
        """Return the entries, or None if Q has other entries."""
        entries = self.at_places(products)
        if self.formula is not None:
            return entries
        common = np.empty(0)
        if self.common is not None:
            common = products[-2, [self.common[0]]]
            entries = entries - common * self._columns_of_colour
        found = self._by_rows(entries) @ self.probe + common.sum() * self.probe.sum()
        # The test vector is positive.
        scale = self._by_rows(np.abs(entries)) @ self.probe + common.sum() * self.probe.sum()
        agrees = np.abs(found - products[-1]) <= _LARGEST_ERROR * scale
        if not agrees.all() and np.isfinite(products).all():
            return None
        return np.append(entries, common)

    def pull_source(self, weights: Array) -> Array:
        """Return the derivative by the source, given that by the entries."""
        if self.formula is not None:
            which = self.formula.which
            return np.bincount(which[: weights.size], weights, minlength=int(which.max()) + 1)
        n_colours = int(self.colours.max(initial=-1)) + 1
        found = np.zeros((n_colours + (1 if self.common is None else 2), self.size))
        found[self.colours[self.cols], self.rows] = weights[: self.rows.size]
        if self.common is not None:
            found[-2, self.common[0]] = weights[-1] - weights[:-1] @ self._columns_of_colour
        return found


def precision_graph(
    product: Variable, vector: Variable, entries: Entries, size: int
) -> PrecisionGraph:
    """Return Q from the graph of its product with a symbolic ``vector``."""
    rows, cols, common = entries
    colours = _colour(rows, cols, size)
    n_colours = int(colours.max(initial=-1)) + 1
    probe = np.random.default_rng(20_261_121).uniform(1.0, 2.0, size)
    vectors = np.zeros((n_colours + (1 if common is None else 2), size))
    vectors[colours, np.arange(size)] = 1.0
    vectors[-1] = probe
    if common is not None:
        vectors[-2, common[1]] = 1.0
    (products,) = simplify([vectorize_graph(product, {vector: pt.constant(vectors)})])
    return PrecisionGraph(size, rows, cols, colours, probe, products, common)


def find_entries(multiply: Sequence[Multiply], size: int, *, constrained: bool = True) -> Entries:
    """Return rows and columns where a symmetric matrix is not always zero, sorted by rows.

    ``multiply`` has the product ``V -> V Q`` at each of several θ. With ``constrained`` the third
    result is a position where the matrix has only the common entry c² of a constraint on the sum,
    which the other two results then ignore; or None.
    """
    common = _common_entry(multiply, size) if constrained else None
    if common is not None:
        found = _find_sparse([_without(product, common, size) for product in multiply], size)
        if found[0].size < size**2:
            return *found, common
    return *_find_sparse(multiply, size), None


def _without(product: Multiply, place: tuple[int, int], size: int) -> Multiply:
    """Return the products with a matrix minus its common entry."""
    common = product(np.eye(1, size, place[1]))[0, place[0]]

    def multiply(vectors: Array) -> Array:
        found = product(vectors)
        taken = common * vectors.sum(axis=1, keepdims=True)
        left = found - taken
        return np.where(np.abs(left) > _TOLERANCE * (np.abs(found) + np.abs(taken)), left, 0.0)

    return multiply


def _common_entry(multiply: Sequence[Multiply], size: int) -> tuple[int, int] | None:
    """Return a position at which a column has its most frequent, non-zero entry."""
    if size < _SMALLEST_SUM:
        return None
    for column in (0, size - 1):
        entries = [product(np.eye(1, size, column))[0] for product in multiply]
        values, counts = np.unique(entries[0], return_counts=True)
        most = values[counts.argmax()]
        row = int(np.argmax(entries[0] == most))
        is_common = all(2 * np.sum(other == other[row]) > size for other in entries)
        if most > 0.0 and row != column and is_common:
            return row, column
    return None


def _find_sparse(multiply: Sequence[Multiply], size: int) -> tuple[Index, Index]:
    """Return the places, sorted by rows."""
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


class PrecisionEntries:
    """The entries of the precision of the latent ``name`` as a function of the point."""

    def __init__(self, graph: PrecisionGraph, space: ValueSpace, name: str) -> None:
        self.precision, self._name = graph, name
        self._source = source = space.function(graph.source)
        self.names, self.shared, self.graph = source.names, source.shared, source.graph
        self.compile = source.compile

    def on_tape(self, tape: Any, entries: Mapping[Any, Index]) -> Index:
        """Return the registers of the entries; densities of the loop are compared with Python's."""
        return self.precision.at_places(tape.evaluate(self._source, entries))

    def __call__(self, point: Point) -> Array:
        entries = self.precision.of_source(np.asarray(self._source(point), dtype=float))
        if entries is None:
            raise RecognitionError(
                f"variable {self._name!r}: expected a prior precision matrix with the same zeros "
                "as when the model was recognised, found others; if its data have changed, "
                "recognise the model again (build the step again); otherwise sample it with "
                "pm.sample's NUTS"
            )
        return entries


def values_of_walk(
    rv: Variable, shape: tuple[int, ...], rows: Index, cols: Index
) -> CommonValues | None:
    """Return entries of Q at some positions of the flat variable, and precisions of first values.

    None if the variable is not a walk of numbers by normal steps of one scale. If the first value
    has precision τ₀ and the steps τ, the entries are τ₀ + τ, 2τ and τ on the diagonal and −τ beside
    it. For a start much wider than the steps, τ₀ + τ retains no digit of τ₀.
    """
    if not isinstance(rv.owner.op, RandomWalkRV) or rv.owner.op.ndim_supp > 1 or shape[-1] < 2:
        return None
    first, step = rv.owner.inputs[:2]
    if any(type(of.owner.op).__name__ != "NormalRV" for of in (first, step)):
        return None
    *batch, n = shape
    firsts = np.arange(np.prod(batch, dtype=int))
    if rows.size != firsts.size * (3 * n - 2):
        return None
    precisions = [_precision(of) for of in (first, step)]
    if any(tau.ndim > len(batch) and not tau.type.broadcastable[0] for tau in precisions):
        return None  # the scale may differ between steps
    tau_first, tau = (pt.broadcast_to(tau, (1, *batch))[0].ravel() for tau in precisions)
    values = pt.stack([tau_first + tau, 2.0 * tau, tau, -tau, tau_first], axis=1).ravel()
    walk, time = rows // n, rows % n
    diagonal = 0 + (time > 0) + (time == n - 1)
    kinds = diagonal * (rows == cols) + 3 * (rows != cols)
    return CommonValues(values, np.append(5 * walk + kinds, 5 * firsts + 4))


def _precision(normal: Variable) -> Variable:
    _, sigma = normal.owner.op.dist_params(normal.owner)
    # No precision where PyMC's density has no value.
    return pt.switch(sigma > 0.0, sigma.astype("float64") ** -2.0, float("nan"))
