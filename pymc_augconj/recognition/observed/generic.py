"""Recognition of an observed variable of any distribution by PyMC's own log density.

Its parameters must depend on the latents through affine predictors, see :mod:`.affine_parts`;
observations with several axes are in C order. Then log p(y | η) is PyMC's density with symbols
for y and η, and with its hyperparameters as ``params``, see :mod:`.row_reader`. ``params`` also has
the entries of vectors of counts or shares.

PyMC's density of a cumulative model computes the probability of every class at every row, and the
logarithm of one of them. This module recognises a cumulative logit model by its values, in any
spelling. Then

    σ(b) − σ(a) = (1 − e^(a − b)) / ((1 + e^−b) (1 + e^a))

takes one exponential and one logarithm a row.

References
----------
McCullagh (1980), Regression models for ordinal data. JRSS B 42.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.censored import CensoredRV
from pymc.distributions.distribution import PartialObservedRV
from pymc.distributions.multivariate import DirichletMultinomialRV
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.random.basic import CategoricalRV, DirichletRV, MultinomialRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.utils import explicit_expand_dims

from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.generic import GenericLikelihood, LogDensity
from pymc_augconj.likelihoods.registry import known_likelihoods
from pymc_augconj.python_mode.tape import Registers
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.dependence import (
    ModelIndex,
    distribution_name,
    distribution_parameters,
    static_shape,
)
from pymc_augconj.recognition.graph.derive import log_cdf_of, log_density_of, with_exact_complements
from pymc_augconj.recognition.graph.interpreter import op_name
from pymc_augconj.recognition.graph.rewrite import Variables, simplify, substitute
from pymc_augconj.recognition.latents.innovations import (
    Latents,
    variable_in_innovations,
)
from pymc_augconj.typing import Array

from .affine_parts import AffinePart, between, find_predictors, with_factors_inside
from .links import known_link, split_power
from .observed_graph import ObservedGraph, flatten
from .row_reader import RowParameters, RowReader
from .rows import with_indices_inside

# Values at which densities are compared, where differences of probabilities keep their digits.
_ETA, _CUTPOINTS = (-1.7, -0.4, 0.0, 0.9, 2.1), (-1.5, 2.0)
_ROUNDING = 1e-10
# Fewer rows take less time as they are read.
_FEW_ROWS = 500
# Cutpoints within which no exponential overflows.
_LARGEST = 300.0


class OrderedDensity:
    """A density, by the closed form if this has digits, otherwise by PyMC's formula.

    ``names`` are the parameters that are cutpoints, in their order.
    """

    def __init__(self, read: LogDensity, names: tuple[str, ...]) -> None:
        self._read, self._names = read, names
        # The observations asked for last, their classes, and terms at some cutpoints.
        self._known: tuple[Any, Any, Any, list[Array]] = (np.empty(0), None, None, [])

    def __call__(self, y: Array, eta: Any, params: Params) -> Array:
        """Return log p(y | η)."""
        if isinstance(eta, Registers):
            return self._on_tape(y, eta[0], params)
        if np.size(eta) < _FEW_ROWS:
            found = self._read(y, eta, params)
            if not np.any(found == -np.inf):
                return found
        cutpoints = np.array([np.ravel(params[name])[0] for name in self._names])
        is_one = all(np.size(params[name]) == 1 for name in self._names)
        if not is_one or not np.all(np.abs(cutpoints) < _LARGEST) or np.any(np.diff(cutpoints) < 0):
            return self._read(y, eta, params)
        found = self.closed_form(y, eta[0], cutpoints)
        known = np.isfinite(found)
        if not known.all():
            bad = ~known
            y, eta = np.broadcast_arrays(y, eta[0])
            found[bad] = self._read(y[bad], eta[None, bad], params)
        return found

    def _on_tape(self, y: Any, eta: Any, params: Any) -> Any:
        """Return the closed form; not finite where a class has less than e⁻⁷⁰⁰."""
        lower: Any = -np.inf
        upper: Any = np.inf
        for k, name in enumerate(self._names):
            lower = np.where(y == float(k + 1), params[name], lower)
            upper = np.where(y == float(k), params[name], upper)
        of_gap, E = np.log(-np.expm1(lower - upper)), np.exp(eta)
        return of_gap - np.log((1.0 + E * np.exp(-upper)) * (1.0 + np.exp(lower) / E))

    def closed_form(self, y: Array, eta: Array, cutpoints: Array) -> Array:
        """Return the density; not finite where it has no digits."""
        known_y, k, at, terms = self._known
        if known_y is not y:
            # Anything else is one more class, without a probability.
            is_class = (y >= 0) & (y <= cutpoints.size)
            k, at = np.where(is_class, y, cutpoints.size + 1).astype(np.intp), None
        with np.errstate(all="ignore"):
            if at is None or not np.array_equal(at, cutpoints):
                bounds = np.concatenate([[-np.inf], cutpoints, [np.inf]])
                # Both factors over 1 − e^(l − u), multiplied out: each term has a number a class.
                share = -np.expm1(-np.diff(bounds))
                lower, upper = np.exp(bounds[:-1]), np.exp(-bounds[1:])
                of_class = np.stack([lower, upper, 1.0 + lower * upper]) / share
                terms = [np.take(np.append(one, np.inf), k) for one in of_class]
                # Some of the rows do not take the place of all.
                if np.size(y) >= np.size(known_y):
                    self._known = y, k, cutpoints, terms
            over_E, of_E, of_one = terms
            E = np.exp(eta)
            found = over_E / E
            found += of_E * E
            found += of_one
            np.negative(np.log(found, out=found), out=found)
        return found


def in_closed_form(read: LogDensity, names: tuple[str, ...]) -> tuple[LogDensity, tuple[str, ...]]:
    """Return a density of classes by its closed form, if it is a cumulative model.

    Also return the names of its cutpoints, none for another model. ``names`` are its parameters
    besides y and η, all of them numbers.
    """
    if not names:
        return read, ()
    cutpoints = np.linspace(*_CUTPOINTS, len(names))
    y, eta = (part.ravel() for part in np.meshgrid(np.arange(-1.0, len(names) + 2), _ETA))
    for scale in (0.7, 1.0):
        params = {n: np.array(scale * c) for n, c in zip(names, cutpoints, strict=True)}
        try:
            expected = read(y, eta[None], params)
        except Exception:
            # Of other numbers of classes, say.
            return read, ()
        found = OrderedDensity(read, names).closed_form(y, eta, scale * cutpoints)
        if not np.allclose(found, expected, rtol=_ROUNDING, atol=_ROUNDING):
            return read, ()
    return OrderedDensity(read, names), names


# Distributions of vectors of counts or shares.
_OF_VECTORS = (MultinomialRV, DirichletMultinomialRV, DirichletRV)
# Names of the functions of a predictor.
_LINKS = {"Exp": "log", "Sigmoid": "logit", "Softplus": "softplus"}


def read_generic(
    model: ModelIndex, rv: Variable, latents: Latents, *, several: bool
) -> ObservedGraph | str:
    """Return the density of an observed variable given its predictors, or the obstacle found.

    With ``several`` there may be several predictors, and observations may be vectors of counts
    or shares.
    """
    shape = static_shape(rv)
    inputs = [latent.input for latent in latents]
    supp = getattr(rv.owner.op, "ndim_supp", 0)
    if isinstance(rv.owner.op, PartialObservedRV):
        return "observed and missing entries in one variable"
    if supp > 1 or (supp == 1 and not (several and isinstance(rv.owner.op, _OF_VECTORS))):
        return f"a multivariate distribution, {distribution_name(rv)}"
    shape = shape[: len(shape) - supp]
    if not shape:
        return "a single observation without an axis (write observed=[…] and parameters of one row)"
    within = variable_in_innovations(model, rv, latents)
    parents = with_factors_inside(model, within.owner.inputs, inputs)
    within = within.owner.clone_with_new_inputs(parents).outputs[within.owner.outputs.index(within)]
    if several:
        within = _with_all_axes(within, len(shape))
    reason = "a density whose observations cannot be separated"
    for inside in (False, True):
        form = with_indices_inside(within, inputs) if inside else within
        parameters = distribution_parameters(form)
        parts = find_predictors(parameters, inputs, shape, several=several)
        if isinstance(parts, str):
            reason = parts
            continue
        found = _read(model, rv, form, parts, inputs, shape)
        if found is not None:
            return found
    return reason


def _with_all_axes(rv: Variable, ndim: int) -> Variable:
    """Return the random variable with as many axes in its parameters as observations have."""
    op = rv.owner.op
    if not isinstance(op, RandomVariable):
        return rv
    rng, size, *parameters = rv.owner.inputs
    padded = explicit_expand_dims(parameters, op.ndims_params, ndim)
    if padded == parameters:
        return rv
    return op.make_node(rng, size, *simplify(padded)).outputs[1]


def _read(
    model: ModelIndex,
    rv: Variable,
    within: Variable,
    parts: Sequence[AffinePart],
    inputs: Variables,
    shape: tuple[int, ...],
) -> ObservedGraph | None:
    """Read a random variable, in terms of innovations, as written."""
    # PyMC derives some densities in a changed copy of the graph, in which η and parameters could
    # not be found: they are replaced by inputs.
    moving = [var for part in parts for var in part.offsets]
    held = {var: pt.tensor(var.name, dtype=var.dtype, shape=static_shape(var)) for var in moving}
    (apart,) = substitute([within], held)
    parameters = RowParameters(shape, model)
    censored = isinstance(rv.owner.op, CensoredRV)
    if censored:
        apart = _with_symbols_for_bounds(apart, parameters)
    within_held = [
        replace(part, offsets={held[var]: offset for var, offset in part.offsets.items()})
        for part in parts
    ]
    etas = [held[var] for var in moving]
    value, y = apart.type(), None
    if value.ndim > len(shape):
        entries = model.rvs_to_values[rv]
        value = value.type.clone(shape=static_shape(rv))()
        parameters.add("entry", value, entries)
        y = entries.sum(axis=-1)
    parameters.collect(distribution_parameters(apart), [*etas, *parameters.symbols])
    (apart,) = substitute([apart], parameters.hold())
    density, log_cdf = log_density_of(model, apart, value), log_cdf_of(model, apart, value)
    if density is None or density.ndim != len(shape):
        return None
    reader = RowReader(value if y is None else None, within_held, parameters)
    log_density = reader.read(with_exact_complements(density))
    if log_density is None:
        return None
    base = within.owner.inputs[0] if censored else within
    name = f"Censored {distribution_name(base)}" if censored else distribution_name(rv)
    predictors = [eta for part in parts for eta in part.predictors]
    several, n_classes = len(predictors) > 1, None
    is_class = not several and isinstance(base.owner.op, CategoricalRV) and not parameters.rows
    names = tuple(parameters.scalars) if is_class else ()
    best, cutpoints = in_closed_form(log_density, names)
    if several and isinstance(base.owner.op, CategoricalRV):
        n_classes = static_shape(distribution_parameters(base)[0])[-1]
    likelihood = GenericLikelihood(
        name,
        "its own" if several else _link(base, moving, inputs),
        best,
        None if log_cdf is None else reader.read(log_cdf),
        discrete=not base.dtype.startswith("float"),
        n_predictors=len(predictors),
        n_classes=n_classes,
        censored=censored,
        cutpoints=cutpoints,
    )
    return ObservedGraph(
        variable=rv,
        value=model.rvs_to_values[rv],
        likelihood=likelihood,
        predictors=simplify([flatten(eta, shape, rv) for eta in predictors]),
        params=parameters.graphs,
        shape=shape,
        y=y,
        names=_names(rv, base, parts, inputs) if several else (),
    )


def _with_symbols_for_bounds(rv: Variable, parameters: RowParameters) -> Variable:
    """Return a censored variable of float type, whose bounds are added to ``parameters``."""
    base, *bounds = rv.owner.inputs[:3]
    arguments: list[Variable | None] = []
    for name, bound, none in zip(("lower", "upper"), bounds, (-np.inf, np.inf), strict=True):
        if isinstance(bound, Constant) and np.all(bound.data == none):
            arguments.append(None)
            continue
        graph = pt.shape_padleft(bound.astype("float64"), rv.ndim - bound.ndim)
        symbol = pt.tensor(name, dtype="float64", shape=static_shape(graph))
        parameters.add(name, symbol, graph)
        arguments.append(symbol)
    return CensoredRV.rv_op(base, *arguments)


def _link(within: Variable, predictors: Variables, latents: Variables) -> str:
    parameters = [p for p in distribution_parameters(within) if depends_on(p, latents)]
    if set(parameters).intersection(predictors):
        return "identity"
    links = {_named_link(graph, latents) for graph in simplify(parameters)}
    return links.pop() if len(links) == 1 else "its own"


def _named_link(graph: Variable, latents: Variables) -> str:
    return (known_link(graph, latents, affine=True) or "its own").removeprefix("scaled_")


def _names(
    rv: Variable, within: Variable, parts: Sequence[AffinePart], latents: Variables
) -> tuple[str, ...]:
    """Return the predictors' roles in the distribution: "mu", "log sigma"; "" if unknown."""
    parameters = distribution_parameters(within)
    known = _parameter_names(within, len(parameters))
    names: list[str] = []
    for part in parts:
        if part.class_axis is not None:
            names += [f"class {k}" for k, moves in enumerate(part.moving) if moves]
            continue
        own = [i for i, p in enumerate(parameters) if depends_on(p, list(part.offsets))]
        others = [var for other in parts if other is not part for var in other.offsets]
        if len(own) == 1 and known and not depends_on(parameters[own[0]], others):
            graph, of = parameters[own[0]], known[own[0]]
            link = "identity" if graph in part.offsets else _link_of_power(graph, latents)
            names.append({"identity": of, "its own": f"link of {of}"}.get(link, f"{link} {of}"))
            continue
        first = {
            op_name(var)
            for var in between(parameters, list(part.offsets))
            if set(var.owner.inputs).intersection(part.offsets)
        }
        names.append(_LINKS.get(first.pop(), "") if len(first) == 1 else "")
    return tuple(names)


def _link_of_power(graph: Variable, latents: Variables) -> str:
    (graph,) = simplify([graph])
    link = _named_link(graph, latents)
    # A power of an exponential is one.
    log = link == "its own" and _named_link(split_power(graph, latents)[0], latents) == "log"
    return "log" if log else link


def _parameter_names(rv: Variable, count: int) -> tuple[str, ...]:
    """Return a distribution's parameter names in the patterns of likelihoods."""
    for likelihood in known_likelihoods().values():
        for pattern in likelihood.patterns:
            if pattern.rv == type(rv.owner.op).__name__ and len(pattern.inputs) == count:
                return pattern.inputs
    return ()
