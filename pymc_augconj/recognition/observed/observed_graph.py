"""An observed variable or potential, whose density depends on predictors, as flat graphs.

Vector outcomes become observed variables of single entries with the same log density.

==========================  ====================================================================
outcome                     replacement
==========================  ====================================================================
random walk of any steps    its first value, and its differences, each with its distribution
autoregression, order p     its first p values, and the others normal given their predecessors
``MvNormal``, long vectors  z = L⁻¹(μ − y), V = L Lᵀ, by independent normal observations
missing entries of vectors  flat variables u: y − u is observed, zero for missing entries
==========================  ====================================================================

With s = |L|^(1/n) a vector of n entries has the density of n numbers zero whose means are s z and
standard deviations s: Π N(0 | s zᵢ, s) = N(y | μ, V).

Data and inputs are checked when a model is recognised and when its data change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.censored import CensoredRV
from pymc.distributions.distribution import PartialObservedRV
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.random.basic import MvNormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import AugmentationError, DataError, RecognitionError
from pymc_augconj.likelihoods.base import Density
from pymc_augconj.point import Point
from pymc_augconj.recognition.graph.affine import value_leaves
from pymc_augconj.recognition.graph.dependence import (
    ModelIndex,
    distribution_parameters,
    static_shape,
)
from pymc_augconj.recognition.graph.derive import log_density_of
from pymc_augconj.recognition.graph.functions import NamedValues, PointFunction, SharedData
from pymc_augconj.recognition.graph.rewrite import Variables, simplify
from pymc_augconj.recognition.latents.innovations import (
    Latents,
    variable_in_innovations,
)

from .errors import LARGEST_MATRIX


@dataclass(eq=False)
class ObservedGraph:
    """One observed variable or potential, matched to a likelihood."""

    variable: Variable
    #: Its observations; for a potential, the number of the term of each entry of its density.
    value: Variable
    likelihood: Density
    #: Graphs of η, each of shape (size,), in the innovations.
    predictors: list[TensorVariable]
    #: Graphs of the likelihood's parameters: scalars, or of shape (size,).
    params: dict[str, TensorVariable]
    #: Shape of the observations. A vector of counts is one of them.
    shape: tuple[int, ...]
    #: Graph of a potential's log density, elementwise, in the innovations; that of an observed
    #: variable is derived from its distribution.
    density: Variable | None = None
    #: The error of an engine that needs an augmentation; None if there is one.
    refusal: AugmentationError | None = None
    #: Graph of the observations for engines, if that is not ``value``.
    y: Variable | None = None
    #: Names of several predictors in reports.
    names: tuple[str, ...] = ()
    #: As in :class:`~pymc_augconj.model.Site`.
    is_prior: bool = False

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def label(self) -> str:
        """Its name in messages."""
        name = self.variable.name
        return f"prior of {name!r}" if self.is_prior else self.likelihood.label(name)

    def log_density(self, model: ModelIndex, latents: Latents) -> Variable | None:
        """Return the graph of PyMC's log density, elementwise, in the innovations."""
        if self.density is not None:
            return self.density
        within = variable_in_innovations(model, self.variable, latents)
        return log_density_of(model, within, self.value)


def flatten(
    graph: TensorVariable, shape: tuple[int, ...], rv: Variable, what: str = "predictor"
) -> TensorVariable:
    """Return ``graph`` broadcast to one entry per observation, of shape (size,)."""
    graph = graph.astype("float64")
    found = graph.type.shape
    if None in found:
        found = static_shape(graph)
    try:
        fits = np.broadcast_shapes(found, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise RecognitionError(
            f"observed variable {rv.name!r}: expected a {what} of the observations' shape {shape}, "
            f"found shape {found}; index it (f[idx]) so that it has one entry per observation"
        )
    if found == shape and len(shape) == 1:
        return pt.specify_shape(graph, shape)
    return pt.broadcast_to(graph, shape).reshape((int(np.prod(shape)),))


def flatten_parameter(
    graph: Variable, shape: tuple[int, ...], rv: Variable, name: str
) -> TensorVariable:
    """Return a parameter as one number, or as one entry per observation."""
    graph = pt.as_tensor(graph).astype("float64")
    if all(graph.type.broadcastable):
        return graph.reshape(())
    return flatten(graph, shape, rv, f"parameter {name!r}")


# An observed variable, and the graph of its observations.
Outcome = tuple[TensorVariable, TensorVariable]

_UNPREDICTABLE = (
    "expected observations that are independent given the latents, found a vector of dependent "
    "ones; ask for predictors, or draw y by pm.sample_posterior_predictive"
)


def without_vectors(given: Model) -> tuple[ModelIndex, dict[Variable, Variable]]:
    """Return a model with the same log density, and the original outcome of each new one.

    Variables keep their names, and all others their identity. Outcomes do not change if other
    variables depend on them, or if their mean depends on no free variable. ``given`` is unchanged.
    """
    model = ModelIndex(given)
    used = model.used
    observed, values = [], dict(model.rvs_to_values)
    new: dict[Variable, Variable] = {}
    free = {rv: rv for rv in model.free_RVs}
    for rv in model.observed_RVs:
        missing = _missing_of(rv, model)
        outcomes = None
        if rv not in used and used.isdisjoint(missing):
            outcomes = _outcomes(model, rv, missing, free)
        if outcomes is None:
            observed.append(rv)
            continue
        for i, (own, value) in enumerate(outcomes):
            own.name = f"{rv.name} (first)" if i else rv.name
            values[own] = value
        observed += [own for own, _ in outcomes]
        new |= {own: rv for own, _ in outcomes}
    if not new:
        return model, {}
    changed = object.__new__(type(given))  # copying a model would clone its variables
    vars(changed).update(vars(given))
    for before, now in free.items():
        # The type of a value of missing entries does not have its length.
        values[now] = values[before] if now is before else now.type(name=values[before].name)
    kept = [*free.values(), *observed]
    changed.free_RVs, changed.observed_RVs = list(free.values()), observed
    changed.rvs_to_values = {rv: values[rv] for rv in kept}
    changed.values_to_rvs = {value: rv for rv, value in changed.rvs_to_values.items()}
    for name in ("rvs_to_transforms", "rvs_to_initial_values"):
        known = dict(getattr(given, name))
        known |= {now: known.get(before) for before, now in free.items()}
        setattr(changed, name, {rv: known.get(rv) for rv in kept})
    return ModelIndex(changed), new


def mark_unpredictable(matched: Sequence[ObservedGraph], new: Collection[Variable]) -> None:
    """Mark observations of ``new`` variables as not predictable one by one."""
    for observed in matched:
        if observed.variable in new:
            observed.likelihood.unpredictable = _UNPREDICTABLE


def _missing_of(rv: Variable, model: ModelIndex) -> list[Variable]:
    """Return the missing entries of a vector with observed ones, as free variables."""
    if not (isinstance(rv.owner.op, PartialObservedRV) and rv.owner.op.ndim_supp):
        return []
    return [own for own in rv.owner.outputs if own in model.free_RVs]


def _outcomes(
    model: ModelIndex, rv: Variable, missing: Variables, free: dict[Variable, Variable]
) -> list[Outcome] | None:
    """Return replacements of an observed variable, or None; ``free`` gets its missing entries."""
    op, value = rv.owner.op, model.rvs_to_values[rv]
    if not model.parents_of(distribution_parameters(rv)):
        return None
    if isinstance(op, RandomWalkRV):
        return _of_walk(rv, value)
    if isinstance(op, AutoRegressiveRV):
        return _of_autoregression(rv, value)
    if isinstance(op, MvNormalRV):
        return _of_long_vectors(rv, value, model)
    if len(missing) != 1 or type(rv.owner.inputs[0].owner.op).__name__ not in _OF_VECTORS:
        return None
    (gap,) = missing
    entries = pm.Flat.dist(shape=int(_mask(rv).sum()))
    entries.name, free[gap] = gap.name, entries
    shifted, seen = _of_missing(rv, value, entries)
    return _of_long_vectors(shifted, seen, model) or [(shifted, seen)]


def _of_walk(rv: Variable, value: TensorVariable) -> list[Outcome]:
    first, steps, _ = rv.owner.inputs
    axis = value.ndim - rv.owner.op.ndim_supp
    # PyMC has the axis of time first in the distributions of both.
    along = pt.moveaxis(value, axis, 0)
    return [(_copied(steps), along[1:] - along[:-1]), (_copied(first), along[:1])]


def _of_autoregression(rv: Variable, value: TensorVariable) -> list[Outcome]:
    rho, sigma, first, *_ = rv.owner.inputs
    order, constant = rv.owner.op.ar_order, rv.owner.op.constant_term
    length = static_shape(value)[-1]
    mean = rho[..., 0, None] if constant else 0.0
    for lag in range(1, order + 1):
        mean += rho[..., lag - 1 + constant, None] * value[..., order - lag : length - lag]
    later = value[..., order:]
    steps = pm.Normal.dist(mean, sigma[..., None], shape=static_shape(later))
    return [(steps, later), (_copied(first), value[..., :order])]


def _of_long_vectors(
    rv: Variable, value: TensorVariable, model: ModelIndex
) -> list[Outcome] | None:
    """Return independent entries of vectors that are too long for ``MvNormal`` likelihoods."""
    if not isinstance(rv.owner.op, MvNormalRV):
        return None
    mean, cov = distribution_parameters(rv)
    while cov.ndim > 2 and cov.type.broadcastable[0]:
        cov = cov[0]
    length = static_shape(cov)[-1]
    # PyMC gives the mean the shape of the covariance, of which nothing else is in it.
    if (
        length <= LARGEST_MATRIX
        or cov.ndim > 2
        or not model.parents_of(simplify([mean], shapes=True))
    ):
        return None
    root = pt.linalg.cholesky(cov.astype("float64"), lower=True)
    log_scale = pt.log(pt.diagonal(root)).mean()
    scale = pt.exp(log_scale)
    residual = scale * (mean - value.astype("float64"))
    eta = pt.linalg.solve_triangular(root, residual.T, lower=True, b_ndim=residual.ndim).T
    zeros = pt.constant(np.zeros(static_shape(value)))
    return [(pm.Normal.dist(eta, scale, shape=static_shape(value)), zeros)]


# Distributions of vectors by their parameters, and the change of the location.
_OF_VECTORS: dict[str, Callable[..., TensorVariable]] = {
    "MvNormalRV": lambda mu, cov, gap: pm.MvNormal.dist(mu - gap, cov),
    "MvStudentTRV": lambda nu, mu, cov, gap: pm.MvStudentT.dist(nu=nu, mu=mu - gap, scale=cov),
}


def _of_missing(rv: Variable, value: TensorVariable, entries: TensorVariable) -> Outcome:
    """Return vectors with zeros as missing entries, and with a mean reduced by u."""
    dist, mask = rv.owner.inputs[0], _mask(rv)
    number = np.where(mask, np.cumsum(mask).reshape(mask.shape) - 1, mask.sum())
    gap = pt.concatenate([entries, [0.0]])[number]
    shifted = _OF_VECTORS[type(dist.owner.op).__name__](*distribution_parameters(dist), gap)
    return shifted, _scattered(value, mask)


def _mask(rv: Variable) -> np.ndarray:
    """Return where entries of vectors are missing."""
    dist, mask = rv.owner.inputs
    return np.broadcast_to(mask.data, static_shape(dist))


def _scattered(value: TensorVariable, mask: np.ndarray) -> TensorVariable:
    """Return the observed entries in their positions, zero elsewhere."""
    number = np.where(mask, (~mask).sum(), np.cumsum(~mask).reshape(mask.shape) - 1)
    return pt.concatenate([value.astype("float64"), [0.0]])[number]


def _copied(rv: TensorVariable) -> TensorVariable:
    """Return a copy of the variable that can have another name."""
    return rv.owner.clone().outputs[rv.owner.outputs.index(rv)]


class Inputs:
    """The input arrays of a model's covariances and predictors."""

    def __init__(self, latents: Latents, matched: Sequence[ObservedGraph]) -> None:
        leaves: list[tuple[Variable, str]] = []
        self._bounds: set[Variable] = set()
        for latent in latents:
            what = f"an input of the covariance of {latent.name!r}"
            # PyMC's own constants in a log density may be NaN.
            graphs = [latent.scale] if latent.precision is None else latent.rv.owner.inputs
            leaves += [(leaf, what) for leaf in value_leaves(graphs)]
        for observed in matched:
            if observed.density is None:
                what = f"an input of the distribution of {observed.variable.name!r}"
                inputs, op = observed.variable.owner.inputs, observed.variable.owner.op
                bounds = inputs[1:3] if isinstance(op, CensoredRV) else []
            else:
                what = f"an input of the {observed.label}"
                # Any of them may be a bound.
                inputs = bounds = [observed.density]
            leaves += [(leaf, what) for leaf in value_leaves(inputs)]
            # Infinite where an observation is not censored.
            self._bounds.update(value_leaves(bounds))
        self._arrays = [(leaf, what) for leaf, what in leaves if _is_array(leaf)]
        self.shared = tuple(leaf for leaf, _ in self._arrays if isinstance(leaf, SharedVariable))
        self._shapes = [_value(variable).shape for variable in self.shared]

    def check(self) -> None:
        """Raise DataError if shapes have changed, or values are not finite."""
        for variable, expected in zip(self.shared, self._shapes, strict=True):
            found = _value(variable).shape
            if found != expected:
                raise DataError(
                    f"data {variable.name!r}: expected shape {expected}, as when the model was "
                    f"recognised, found {found}; recognise the model again (build the step again) "
                    "after pm.set_data"
                )
        for leaf, what in self._arrays:
            value = _value(leaf)
            if leaf in self._bounds and value.dtype.kind == "f":
                value = value[~np.isinf(value)]
            _refuse_not_finite(value, f"{what} ({leaf.name!r})" if leaf.name else what)


def _value(leaf: Variable) -> np.ndarray:
    return leaf.data if isinstance(leaf, Constant) else leaf.get_value(borrow=True)


def _is_array(leaf: Variable) -> bool:
    return isinstance(leaf, Constant | SharedVariable) and isinstance(_value(leaf), np.ndarray)


def _refuse_not_finite(value: np.ndarray, what: str) -> None:
    if isinstance(value, np.ma.MaskedArray) and value.dtype.kind == "f":
        value = value.filled(np.nan)  # pm.set_data masks NaN
    # Infinite scalars are bounds (of a clip, say), and belong to PyMC's own graphs.
    if value.ndim == 0 or value.dtype.kind != "f":
        return
    if np.isfinite(value.sum()):  # the quick way for large arrays
        return
    bad = np.argwhere(np.isnan(value) | (np.isinf(value) & (value.size > 1)))
    if bad.size:
        where = tuple(int(i) for i in bad[0])
        raise DataError(
            f"{what} has the value {value[where]} at position {where}: expected finite numbers; "
            "drop or impute the rows with missing inputs"
        )


class Observations:
    """The observations of one site, as a function of the point that does not depend on it.

    It evaluates them when shared data have changed, and checks them, ``inputs`` and the
    parameters at ``point``. All consumers share one array, which they must not change.
    """

    names: tuple[str, ...] = ()

    def __init__(
        self,
        label: str,
        size: int,
        likelihood: Density,
        values: PointFunction,
        params: NamedValues,
        point: Point,
        inputs: Inputs,
    ) -> None:
        self._label, self._size, self._likelihood = label, size, likelihood
        self._values, self._params, self._point = values, params, point
        self._inputs = inputs
        self._known: tuple[np.ndarray, SharedData] | None = None

    def __call__(self, point: Point) -> np.ndarray:
        if self._known is None or self._known[1].changed():
            y = np.array(np.ma.filled(self._values({}), np.nan))  # pm.set_data masks NaN
            self._check(y)
            shared = (*self._values.shared, *self._params.shared, *self._inputs.shared)
            self._known = y, SharedData(shared)
        return self._known[0]

    def _check(self, y: np.ndarray) -> None:
        if y.shape != (self._size,):
            raise DataError(
                f"{self._label}: expected {self._size} observations, as when "
                f"the model was recognised, found {y.size}; recognise the model again (build the "
                "step again) after pm.set_data"
            )
        self._inputs.check()
        bad = np.flatnonzero(~np.isfinite(y))
        if bad.size:
            raise DataError(
                f"{self._label} has the value {y[bad[0]]} at position "
                f"{bad[0]}: expected finite numbers; pass a masked array to have PyMC impute "
                "missing observations"
            )
        sentence = self._likelihood.check(y, self._params(self._point))
        if sentence is not None:
            raise DataError(
                f"{self._label} ({self._likelihood.name}): {sentence}; correct "
                "the data or choose another likelihood"
            )
