"""PyMC's own log density of a model, with the error that rounding leaves in it.

Every term is evaluated as PyMC writes it and again with noisy rounding, see :mod:`.interpreter`.
Where the written formula loses its digits (log(1 − p) of a p next to one) the form that PyTensor's
rewrites make of it, which PyMC's compiled functions use, is evaluated in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph

from pymc_augconj.python_mode import EXCLUDED

from .interpreter import Interpreter, noisy

__all__ = ["Density", "PriorDraws", "Reference"]

Array = NDArray[np.float64]
Point = Mapping[str, Array]

# How often with noise; and where that is not enough to tell a difference from rounding, which a
# clipped distance shows in one of a few evaluations only.
_NOISY_EVALUATIONS, _MANY_EVALUATIONS = 2, 20

# Allowed in units of the spread that noise of four units in the last place makes: the other
# formula has operations of its own, and the larger of two spreads is no bound.
_SPREADS = 10.0

# Special functions (log Γ, log Φ, the normaliser of a SuperGaussian) are accurate to some 1e-12.
_RELATIVE = 1e-11

# A log density whose tolerance is beyond this has lost its digits.
_LOOSE = 1e-4

# The logarithm of the smallest number above zero.
_LOG_LEAST = -1074.0 * np.log(2.0)

_NORMAL = ("NormalRV", "MvNormalRV")

# Below this log density PyMC's probabilities may be rounded to zero: log of half an ulp is −37.
_UNDERFLOW = -30.0


@dataclass(frozen=True)
class Density:
    """Log densities with their tolerances; NaN where nothing can be said.

    Attributes
    ----------
    value, tolerance : ndarray, shape (n,)
    underflows : ndarray of bool, shape (n,)
        Where PyMC's formula gives minus infinity as it is written, as its compiled function may.
    """

    value: Array
    tolerance: Array
    underflows: NDArray[np.bool_]

    @property
    def is_tight(self) -> NDArray[np.bool_]:
        """Where a comparison would show an error."""
        return np.isfinite(self.value) & (self.tolerance <= _LOOSE * (1.0 + np.abs(self.value)))

    def sum(self) -> Density:
        """Return the sum as one entry."""
        underflows = self.underflows.any(keepdims=True)
        return Density(self.value.sum(keepdims=True), self.tolerance.sum(keepdims=True), underflows)

    def __add__(self, other: Density) -> Density:
        return Density(
            self.value + other.value,
            self.tolerance + other.tolerance,
            self.underflows | other.underflows,
        )

    def disagrees(self, ours: Array) -> NDArray[np.bool_]:
        """Return where ``ours`` is another log density."""
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(ours - self.value) <= self.tolerance)
        wrong &= np.isfinite(self.value) & np.isfinite(self.tolerance)
        wrong &= ~(np.isneginf(ours) & self.underflows)
        impossible = np.isneginf(self.value) & (self.tolerance == 0.0)
        return wrong | (impossible & ~(ours < _UNDERFLOW))


class Reference:
    """PyMC's log density, term by term.

    Parameters
    ----------
    model : pymc.Model
    seed : int
        Of the noise.
    """

    def __init__(self, model: Model, seed: int = 0):
        self._noise = np.random.default_rng(seed)
        self._evaluations = _NOISY_EVALUATIONS
        variables = [*model.free_RVs, *model.observed_RVs, *model.potentials]
        self.names = [var.name for var in variables]
        self._inputs = list(model.value_vars)
        self._graphs = [pt.as_tensor(graph) for graph in model.logp(sum=False)]
        self._written = Interpreter(self._graphs, self._inputs)
        means = _means(model)
        self._with_means = list(means)
        self._means = Interpreter(list(means.values()), self._inputs)
        self._stable: dict[str, Interpreter] = {}
        self._alone: dict[str, Interpreter] = {}

    def __call__(self, point: Point, *, carefully: bool = False) -> dict[str, Density]:
        """Return the log density of every variable, an entry at a time.

        Taken ``carefully`` where the package's was found to be another.
        """
        self._evaluations = _MANY_EVALUATIONS if carefully else _NOISY_EVALUATIONS
        found = self._evaluate(self._written, point)
        densities = dict(zip(self.names, found, strict=True))
        for name, density in densities.items():
            if not density.is_tight.all():
                densities[name] = self._choose(density, self._in_stable_form(name, point))
        return densities

    def log_density(self, point: Point) -> float:
        """Return the log density of the whole model as it is written; −∞ where it is no number."""
        terms = self._written([point[var.name] for var in self._inputs])
        total = float(sum(np.sum(term) for term in terms))
        return -np.inf if np.isnan(total) else total

    def _evaluate(self, function: Interpreter, point: Point) -> list[Density]:
        values = [point[var.name] for var in self._inputs]
        exact = function(values)
        means = dict(zip(self._with_means, self._means(values), strict=True))
        found = []
        for _ in range(self._evaluations):
            # A difference from a mean has the rounding of the mean.
            moved = [
                noisy(np.asarray(value), self._noise)
                + (noisy(means[var], self._noise) - means[var] if var in means else 0.0)
                for var, value in zip(self._inputs, values, strict=True)
            ]
            found.append(function(moved, noise=self._noise))
        return [_density(value, [values[i] for values in found]) for i, value in enumerate(exact)]

    def _in_stable_form(self, name: str, point: Point) -> Density:
        if name not in self._stable:
            written = self._graphs[self.names.index(name)]
            # Rewriting changes the graph that it is given.
            (graph,) = clone_replace([written])
            rewrites = ("canonicalize", "stabilize", "specialize")
            graph = rewrite_graph(graph, include=rewrites, exclude=EXCLUDED)
            self._stable[name] = Interpreter([graph], self._inputs)
            self._alone[name] = Interpreter([written], self._inputs)
        (density,) = self._evaluate(self._stable[name], point)
        return self._with_single_precision(density, self._alone[name], point)

    def _with_single_precision(
        self, density: Density, written: Interpreter, point: Point
    ) -> Density:
        """Allow for what rewriting computed in single precision, and put in as a constant."""
        values = [point[var.name] for var in self._inputs]
        (exact,) = written(values)
        others = [
            written(values, noise=self._noise, only_single=True)[0]
            for _ in range(self._evaluations)
        ]
        with np.errstate(invalid="ignore"):
            spread = np.ravel(np.abs(np.array(others) - exact).max(axis=0))
        if spread.shape != density.tolerance.shape:
            return density
        return replace(density, tolerance=density.tolerance + _SPREADS * np.nan_to_num(spread))

    @staticmethod
    def _choose(written: Density, stable: Density) -> Density:
        if written.value.shape != stable.value.shape:
            return written
        # Minus infinity, say of a probability that underflows, is no value where there is another.
        better = ~written.is_tight & np.isfinite(stable.value)
        worse = np.isfinite(written.value) & ~(stable.tolerance < written.tolerance)
        better &= ~worse
        value = np.where(better, stable.value, written.value)
        tolerance = np.where(better, stable.tolerance, written.tolerance)
        return Density(value, tolerance, written.underflows)


def _means(model: Model) -> dict[Variable, Variable]:
    """Return the prior means of normal variables and series, by their value variables."""
    rvs = [
        rv
        for rv in model.free_RVs
        if type(rv.owner.op).__name__ in _NORMAL and model.rvs_to_transforms[rv] is None
    ]
    means = [pt.broadcast_to(rv.owner.op.dist_params(rv.owner)[0], rv.shape) for rv in rvs]
    series = [rv for rv in model.free_RVs if type(rv.owner.op).__name__ == "AutoRegressiveRV"]
    series = [rv for rv in series if rv.ndim == 1]
    start = model.initial_point()
    means += [_autoregressive_mean(rv, start[rv.name].size) for rv in series]
    values = [model.rvs_to_values[rv] for rv in rvs + series]
    return dict(zip(values, model.replace_rvs_by_values(means), strict=True))


def _autoregressive_mean(rv: Variable, length: int) -> Variable:
    op, (coefficients, _, start, *_) = rv.owner.op, rv.owner.inputs
    constant = coefficients[0] if op.constant_term else 0.0
    own = coefficients[1:] if op.constant_term else coefficients
    mean = [start.owner.op.dist_params(start.owner)[0].sum()] * op.ar_order
    while len(mean) < length:
        mean.append(constant + sum(own[k] * mean[-1 - k] for k in range(op.ar_order)))
    return pt.stack(mean)


def _density(exact: Array, noisy: list[Array]) -> Density:
    value = np.ravel(np.asarray(exact, dtype=float))
    others = np.array([np.ravel(other) for other in noisy], dtype=float)
    with np.errstate(invalid="ignore"):
        spread = np.abs(others - value).max(axis=0)
    tolerance = _SPREADS * spread + _RELATIVE * (1.0 + np.abs(value))
    # Where the other formula takes the logarithm of a subnormal number, half of its last digit.
    subnormal = (value > _LOG_LEAST) & (value < 0.0)
    tolerance += np.where(subnormal, np.exp(_LOG_LEAST - np.where(subnormal, value, 0.0)), 0.0)
    surely_zero = np.isneginf(value) & np.isneginf(others).all(axis=0)
    return Density(value, np.where(surely_zero, 0.0, tolerance), np.isneginf(value))


class PriorDraws:
    """Draws of the free variables from their prior, as entries of a point.

    Parameters
    ----------
    model : pymc.Model
    """

    def __init__(self, model: Model):
        self._graphs: dict[str, Variable] = {}
        for rv in model.free_RVs:
            transform = model.rvs_to_transforms[rv]
            value = rv if transform is None else transform.forward(rv, *rv.owner.inputs)
            self._graphs[model.rvs_to_values[rv].name] = value
        self._function = Interpreter(list(self._graphs.values()), [])

    def __call__(self, rng: np.random.Generator) -> dict[str, Array]:
        """Return one draw; NaN where a transform of the user's excludes it, or nothing draws it."""
        try:
            found = self._function([], draws=rng)
        except NotImplementedError:
            # A CustomDist without random.
            found = [_drawn(graph, rng) for graph in self._graphs.values()]
        return {name: np.asarray(value) for name, value in zip(self._graphs, found, strict=True)}


def _drawn(graph: Variable, rng: np.random.Generator) -> Array:
    try:
        (value,) = Interpreter([graph], [])([], draws=rng)
    except NotImplementedError:
        return np.array(np.nan)
    return value
