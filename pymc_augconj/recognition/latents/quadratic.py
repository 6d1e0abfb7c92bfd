"""Gaussian variables that are recognised by their density, not by their name.

A free variable whose log density is quadratic in its value,

    log p(x | θ) = c(θ) + b(θ)ᵀ x − ½ xᵀ Q(θ) x,        Q positive definite,

is N(m, Q⁻¹) with Q m = b, times a factor that does not depend on x. This covers random walks,
autoregressions, CAR and ICAR, several multivariate normals in one variable and a user's
``CustomDist``. The criterion is symbolic: the gradient b − Q x must be affine in x. The values
of Q are products of its graph with vectors, see :mod:`.precision`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.gradient import grad
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import vectorize_graph

from pymc_augconj.distributions.sparse_normal import (
    log_determinant,
    precision_prior,
    solve_precision,
)
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.latents.precision import PrecisionPrior
from pymc_augconj.point import Argument, Point
from pymc_augconj.recognition.graph.affine import (
    at_zero,
    depends_on,
    descendants,
    has_misleading_derivative,
    is_affine,
)
from pymc_augconj.recognition.graph.dependence import ModelIndex, ValueSpace, static_shape
from pymc_augconj.recognition.graph.derive import log_density_of, support_point_of
from pymc_augconj.recognition.graph.functions import UNCONNECTED
from pymc_augconj.recognition.graph.rewrite import folded, simplify, substitute

from .innovations import GaussianVariable
from .precision import CommonValues, PrecisionGraph, find_entries, precision_graph, values_of_walk

Array = NDArray[np.float64]

# Tolerance of the mean, in prior standard deviations in the worst direction; and its rounding, in
# that of each entry's terms.
_MEAN_TOLERANCE = 1e-6
_MEAN_ROUNDING = 64.0 * np.finfo(float).eps

# Standard deviations, on the unconstrained scale, of the other variables where the density is
# looked at: the coefficients of a long autoregression are explosive not far from its start. Where
# Q has no digits at any, as at first.
_SPREADS = (0.3, 0.03, 0.003, 0.3)

# Largest relative rounding error of variances where the density is examined.
_ROUNDING = 1e-3

# Number of prior draws at which the log density is compared, and the factors that scale them.
_STRETCHES = (1.0, 30.0, 1000.0)

_TOLERANCE = 1e-9


_X, _VECTORS = Argument("x"), Argument("vectors")


@dataclass(eq=False)
class _Density:
    """A quadratic log density: its graph at x, its gradient there, and Q's product with v."""

    x: Variable
    value: Variable
    gradient: Variable
    v: Variable
    product: Variable


def read_quadratic(model: ModelIndex, rv: Variable) -> GaussianVariable | None:
    """Return a free variable without a transform as a Gaussian one; None if it is not Gaussian."""
    shape = static_shape(rv)
    if np.prod(shape) == 0 or not rv.dtype.startswith("float"):
        return None
    density = _density(model, rv, shape)
    if density is None:
        return None
    others = [other for other in model.free_RVs if depends_on(density.value, other)]
    space = ValueSpace(model, others)
    for spread in _SPREADS:
        initial, *near = space.points(spread)
        numbers = _read_numbers(density, space, near, rv, shape)
        if numbers is not None and all(map(numbers.has_digits, near)):
            break
    if numbers is None:
        return None  # an improper density
    graph = numbers.graph
    further = filter(numbers.at, (initial, *space.wide_points(initial, 2)))
    points = [*near, *filter(numbers.has_digits, further)]
    mean = numbers.mean(model, rv, shape, near)
    if mean is None or not numbers.agree(points):
        return None
    log_factor = numbers.log_factor(mean, [*near, initial])
    name = rv.owner.op._print_name[0] if hasattr(rv.owner.op, "_print_name") else "density"
    is_zero = isinstance(mean, Constant) and not np.any(mean.data)
    return GaussianVariable.of(
        model, rv, f"{name}, by its precision", graph.kind, graph.entries,
        mean=None if is_zero else mean, precision=graph, log_factor=log_factor,
        log_peak=numbers.log_peak(mean, log_factor),
    )  # fmt: skip


def _density(model: ModelIndex, rv: Variable, shape: tuple[int, ...]) -> _Density | None:
    x = pt.tensor(f"x[{rv.name}]", dtype="float64", shape=(int(np.prod(shape)),))
    shaped = pt.specify_shape(x.reshape(shape), rv.type.shape).astype(rv.dtype)
    value = log_density_of(model, rv, shaped)
    if value is None:
        return None
    (value,) = simplify([value.sum().astype("float64")])
    # A floor or a comparison has the derivative zero and is not quadratic.
    if any(has_misleading_derivative(var) for var in descendants(value, [x])):
        return None
    try:
        (gradient,) = simplify([grad(value, x, **UNCONNECTED)])
        if not is_affine(gradient, [x]):
            return None
        v = x.type(name=f"v[{rv.name}]")
        product = -grad((gradient * v).sum(), x, **UNCONNECTED)
    except (NotImplementedError, TypeError):
        return None  # an op without a derivative
    (product,) = simplify(at_zero(simplify([product]), [x]), shapes=True)
    # Flat has no precision.
    return _Density(x, value, gradient, v, product) if depends_on(product, v) else None


def _read_numbers(
    density: _Density,
    space: ValueSpace,
    points: Sequence[Point],
    rv: Variable,
    shape: tuple[int, ...],
) -> _Numbers | None:
    """Return the numbers of a density that is Gaussian at ``points``, or None."""
    for constrained in (True, False):
        graph = _read_entries(density, space, points, int(np.prod(shape)), constrained)
        numbers = _Numbers(density, graph, space)
        numbers.take(values_of_walk(rv, shape, graph.rows, graph.cols), points)
        if all(numbers.at(point) for point in points):
            return numbers
        if graph.common is None:
            break
    return None


def _read_entries(
    density: _Density, space: ValueSpace, points: Sequence[Point], size: int, constrained: bool
) -> PrecisionGraph:
    vectors = pt.matrix("vectors", dtype="float64")
    (graph,) = simplify([vectorize_graph(density.product, {density.v: vectors})])
    multiply = space.function(graph, {_VECTORS: vectors})

    def multiply_at(point: Point) -> Callable[[np.ndarray], np.ndarray]:
        return lambda V: np.asarray(multiply.uncompiled({**point, _VECTORS: V}))

    products = [multiply_at(point) for point in points]
    entries = find_entries(products, size, constrained=constrained)
    return precision_graph(density.product, density.v, entries, size)


class _Numbers:
    """The graphs evaluated at several values of the other variables."""

    def __init__(self, density: _Density, graph: PrecisionGraph, space: ValueSpace) -> None:
        self._density, self.graph, self._space = density, graph, space
        self._source = space.function(graph.source)
        self._value = space.function(density.value, {_X: density.x})
        self._gradient = space.function(density.gradient, {_X: density.x})
        self._known: dict[int, tuple[Point, Array, PrecisionPrior]] = {}

    def take(self, formula: CommonValues | None, points: Sequence[Point]) -> None:
        """Take the entries of Q from a formula, if it gives the same values at ``points``."""
        if formula is None:
            return
        # A variable without effect, as in 1 + 0·s, is not in the density either.
        (values,) = simplify([formula.values])
        read, n_entries = self._space.function(values), self.graph.rows.size
        for point in points:
            entries = self._entries_at(point)
            found = np.asarray(read.uncompiled(point))[formula.which[:n_entries]]
            if entries is None or not np.allclose(found, entries, rtol=_TOLERANCE, atol=0.0):
                return
        self.graph.formula, self._source = formula, read

    def _entries_at(self, point: Point) -> Array | None:
        return self.graph.of_source(np.asarray(self._source.uncompiled(point)))

    def at(self, point: Point) -> bool:
        """Return whether the variable is Gaussian at ``point``."""
        entries = self._entries_at(point)
        if entries is None:
            return False
        try:
            prior = precision_prior(self.graph.block, entries)
        except NotPositiveDefiniteError:
            return False
        self._known[id(point)] = point, entries, prior
        return True

    def has_digits(self, point: Point) -> bool:
        """Return whether the covariance at ``point`` has enough digits."""
        _, entries, prior = self._known[id(point)]
        if self.graph.formula is not None:
            return True  # of a walk
        diagonal = entries[: self.graph.rows.size][self.graph.rows == self.graph.cols]
        error = np.finfo(float).eps * self.graph.size * prior.var() * diagonal
        return bool(np.all(error <= _ROUNDING))

    def mean(
        self, model: ModelIndex, rv: Variable, shape: tuple[int, ...], points: Sequence[Point]
    ) -> Variable | None:
        """Return the graph of the mean, of shape ``shape``, or None if it is not found."""
        for candidate in self._means(model, rv, shape):
            mean = pt.broadcast_to(candidate.astype("float64"), shape)
            mean = folded(*simplify([mean], shapes=True))
            self._mean = self._space.function(mean.ravel())
            if all(map(self._is_mean, points)):
                return mean
        return None

    def _means(self, model: ModelIndex, rv: Variable, shape: tuple[int, ...]) -> Iterator[Variable]:
        yield pt.zeros(shape)
        # It usually is the mean, and its graph solves no linear system.
        if (point := support_point_of(model, rv)) is not None:
            yield point
        zero = pt.constant(np.zeros(self.graph.size))
        (linear,) = substitute([self._density.gradient], {self._density.x: zero})
        yield solve_precision(self.graph.block, self.graph.entries, linear).reshape(shape)

    def _mean_at(self, point: Point) -> Array:
        return np.array(self._mean.uncompiled(point), dtype=float)

    def _is_mean(self, point: Point) -> bool:
        graph, mean = self.graph, self._mean_at(point)
        slope = np.asarray(self._gradient.uncompiled({**point, _X: mean}))
        _, entries, prior = self._known[id(point)]
        # Sᵀ g: the error of the mean, in standard deviations; and its rounding, of either sign.
        terms = np.abs(entries[: graph.rows.size] * mean[graph.cols])
        rounding = _MEAN_ROUNDING * np.bincount(graph.rows, terms, graph.size)
        signs = np.random.default_rng(4).choice([-1.0, 1.0], graph.size)
        error, allowed = map(np.linalg.norm, map(prior.scale_transpose, (slope, signs * rounding)))
        return bool(error <= _MEAN_TOLERANCE + allowed)

    def agree(self, points: Sequence[Point]) -> bool:
        """Compare with PyMC's log density at draws from the prior, and in its tails."""
        graph, rng = self.graph, np.random.default_rng(2)
        compared = 0
        for point in points:
            _, entries, prior = self._known[id(point)]
            centre = self._mean_at(point)
            peak = self._log_density(centre, point)
            if not np.isfinite(peak):
                continue  # out of the range of a parameter
            compared += 1
            for stretch in _STRETCHES:
                away = stretch * prior.scale(rng.standard_normal(graph.size))
                x = centre + away
                products = [of[graph.rows] * of[graph.cols] for of in (away, x)]
                if graph.common is not None:
                    # As terms, x of the sum too: it is rounded after what cancels in it.
                    sums = away.sum() ** 2, np.abs(x).sum() ** 2
                    products = [np.append(*pair) for pair in zip(products, sums, strict=True)]
                Q = entries[: products[0].size]
                quadratic = 0.5 * float(Q @ products[0])
                terms = float(np.abs(Q) @ np.abs(products[1]))
                error = abs(peak - quadratic - self._log_density(x, point))
                scale = 1.0 + abs(peak) + quadratic + np.finfo(float).eps / _TOLERANCE * terms
                if not error <= _TOLERANCE * scale:
                    return False
        return compared > 0

    def _log_density(self, x: Array, point: Point) -> float:
        return float(self._value.uncompiled({**point, _X: x}))

    def log_factor(self, mean: Variable, points: Sequence[Point]) -> Variable | None:
        """Return the graph of c(θ), PyMC's log density minus the normal one; None if it is zero."""
        found, scales = [], []
        for point in points:
            if id(point) not in self._known:
                continue
            _, _, prior = self._known[id(point)]
            peak = self._log_density(self._mean_at(point), point)
            if not np.isfinite(peak):
                continue
            half_log_det = -prior.log_det_scale()
            found.append(peak - half_log_det + self._half_log_two_pi)
            scales.append(1.0 + abs(peak) + abs(half_log_det) + self._half_log_two_pi)
        # A sum of as many logarithms as there are entries.
        rounding = _TOLERANCE * np.array(scales)
        if np.all(np.abs(found) <= rounding):
            return None
        if np.all(np.abs(np.subtract(found, found[0])) <= rounding):
            return pt.constant(float(found[0]))
        log_det = log_determinant(self.graph.block, self.graph.entries)
        return self._peak(mean) - 0.5 * log_det + self._half_log_two_pi

    def log_peak(self, mean: Variable, log_factor: Variable | None) -> Variable | None:
        """Return the graph of the normal log density at its mean; None where c depends on θ."""
        if log_factor is None:
            return self._peak(mean)
        return self._peak(mean) - log_factor if isinstance(log_factor, Constant) else None

    def _peak(self, mean: Variable) -> Variable:
        return substitute([self._density.value], {self._density.x: mean.ravel()})[0]

    @property
    def _half_log_two_pi(self) -> float:
        return 0.5 * self.graph.size * float(np.log(2.0 * np.pi))
