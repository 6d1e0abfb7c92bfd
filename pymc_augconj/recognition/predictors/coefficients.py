"""Maps A(θ) = Σ_k c_k(θ) B_k with fixed parts B_k, found from the graph of their products.

Examples are the scale of non-centred effects, ``mu + tau * z``, and the Cholesky factor of
correlated effects, ``z @ chol.T``. c(θ) are the arguments with θ of the operations on the latents.
Every later operation must be linear in c(θ). The kind of operation decides this, so that it holds
for every value of θ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import AugmentationError
from pymc_augconj.linalg.linear_map import RowSelection
from pymc_augconj.point import Argument, Point
from pymc_augconj.python_mode.tape import TapeBuilder
from pymc_augconj.recognition.graph.affine import descendants, is_linear_by_its_ops
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.graph.rewrite import substitute
from pymc_augconj.typing import Index

#: The key of the vector of a product.
DIRECTION = Argument("direction")
#: The key of the coefficients of a map's parts.
COEFFICIENTS = Argument("coefficients")
# Entries of the vectors, or of their products, that are computed at a time.
_BATCH = 2**20


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
        self._of_many: PointFunction | None = None
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
        """Return A, Fortran-ordered."""
        first = self(point, np.eye(1, self.size)[0])
        columns = np.empty((first.size, self.size), order="F")
        columns[:, 0] = first
        # Of the vectors and of their products.
        length = _BATCH // max(columns.shape)
        if length < 2 or DIRECTION not in self._function.names:
            for j in range(1, self.size):
                columns[:, j] = self(point, np.eye(1, self.size, j)[0])
            return columns
        self._of_many = self._of_many or self._function.of_many(DIRECTION)
        for start in range(1, self.size, length):
            units = np.eye(min(length, self.size - start), self.size, start)
            columns[:, start : start + length] = self._of_many(self._given(point, units)).T
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


def columns_apart(nonzero: np.ndarray) -> np.ndarray:
    """Return groups of columns, by number, such that no row has two entries in one group."""
    taken: list[np.ndarray] = []
    groups = np.empty(nonzero.shape[1], dtype=np.intp)
    for j, column in enumerate(nonzero.T):
        free = (k for k, rows in enumerate(taken) if not np.any(rows & column))
        groups[j] = k = next(free, len(taken))
        if k == len(taken):
            taken.append(np.zeros_like(column))
        taken[k] |= column
    return groups


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


#: The most parts of a map: sums over pairs of them are kept.
_MOST = 8


def find_coefficients(
    product: TensorVariable, direction: TensorVariable, hyperparameters: Collection[TensorVariable]
) -> tuple[TensorVariable, TensorVariable, TensorVariable] | None:
    """Return c(θ), shape (K,), of a map with parts; None if it has no parts, or too many.

    ``product`` is A(θ) v, simplified, and ``direction`` v. Also returned are a symbol for c, and
    Σ_k c_k B_k v in terms of it, without θ.
    """
    taken = _taken(product, direction, list(hyperparameters))
    if not taken or any(None in var.type.shape or var.dtype != "float64" for var in taken):
        return None
    sizes = [prod(var.type.shape) for var in taken]
    if sum(sizes) > _MOST:
        return None
    if not is_linear_by_its_ops(product, taken):
        return None
    coefs = pt.vector("coefficients", shape=(sum(sizes),), dtype="float64")
    starts = np.cumsum([0, *sizes])
    places = {
        var: coefs[start : start + size].reshape(var.type.shape)
        for var, start, size in zip(taken, starts, sizes, strict=False)
    }
    (without,) = substitute([product], places)
    # Not by depends_on: a hyperparameter may be there for the sake of its shape alone.
    if not set(hyperparameters).isdisjoint(graph_inputs([without])):
        return None
    return pt.concatenate([var.ravel() for var in taken]), coefs, without


def _taken(
    product: TensorVariable, direction: TensorVariable, hyperparameters: Sequence[TensorVariable]
) -> list[TensorVariable]:
    """Return the arguments with θ of operations on v, as few numbers as possible."""
    moving = descendants(product, [direction])
    inside = {direction, *moving}
    from_theta = {*hyperparameters, *descendants(product, hyperparameters)}
    found = [
        parent
        for var in moving
        for parent in var.owner.inputs
        if parent in from_theta and parent not in inside
    ]
    return list(dict.fromkeys(_smallest(var, from_theta) for var in found))


def _smallest(var: TensorVariable, from_theta: Collection[Variable]) -> TensorVariable:
    """Return the smallest array of which ``var`` is a linear function without other arguments."""
    smallest = var
    while var.owner is not None and None not in var.type.shape:
        inputs = [parent for parent in var.owner.inputs if parent in from_theta]
        if len(inputs) != 1 or not is_linear_by_its_ops(var, inputs):
            break
        (var,) = inputs
        if None not in var.type.shape and prod(var.type.shape) < prod(smallest.type.shape):
            smallest = var
    return smallest


def affine_in_latents(
    mean: PointFunction, theta: Point, shapes: Mapping[Any, tuple[int, ...]]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return a mean as constant + Σ matrix @ value, over the latents that it depends on.

    ``mean`` is a function of constrained values by the names of free variables, ``shapes`` has the
    shapes of the latents. Raises AugmentationError if the mean depends on a whitened process.
    """
    hidden = [name for name in mean.names if name not in theta and name not in shapes]
    if hidden:
        raise AugmentationError(
            "gp: expected a prior mean that depends on no whitened process, found "
            f"{hidden} in it; write these with gp.prior(…, reparameterize=False)"
        )
    latents = [name for name in mean.names if name in shapes]
    return affine_parts(
        lambda values: mean({**theta, **values}), {name: shapes[name] for name in latents}
    )


def affine_parts(
    function: Callable[[Point], np.ndarray], shapes: Mapping[Any, tuple[int, ...]]
) -> tuple[np.ndarray, dict[Any, np.ndarray]]:
    """Return constant and matrices of a function that is affine in named values of given shapes."""
    zeros = {name: np.zeros(shape) for name, shape in shapes.items()}
    constant = np.array(function(zeros), dtype=float).ravel()
    matrices = {}
    for name, shape in shapes.items():
        units = np.eye(int(np.prod(shape))).reshape(-1, *shape)
        columns = [np.ravel(function({**zeros, name: unit})) - constant for unit in units]
        matrices[name] = np.stack(columns, axis=1)
    return constant, matrices
