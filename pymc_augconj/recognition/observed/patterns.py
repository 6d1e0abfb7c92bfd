"""Matches of observed variables to the patterns of likelihoods, by simplified graphs.

An input of a distribution is c·bᵉ, where b is a link of one affine predictor; or it has an axis
of classes and is the softmax of as many predictors, or the predictors themselves. Mixtures are
observed, or the prior of a coefficient x, that is, of observations zero given x − μ_k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.mixture import MixtureRV
from pytensor.graph.basic import Variable, equal_computations
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.special import Softmax
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import NotAffineError
from pymc_augconj.likelihoods.base import Density, Likelihood, Pattern
from pymc_augconj.likelihoods.mixture import MixtureComponent, MixtureLikelihood
from pymc_augconj.likelihoods.pattern import PredictorInput
from pymc_augconj.likelihoods.registry import known_likelihoods
from pymc_augconj.recognition.graph.affine import depends_on, is_affine
from pymc_augconj.recognition.graph.dependence import (
    ModelIndex,
    distribution_parameters,
    static_shape,
)
from pymc_augconj.recognition.graph.rewrite import Variables, constant_number, simplify
from pymc_augconj.recognition.latents.innovations import (
    GaussianVariable,
    Latents,
    variable_in_innovations,
)

from .affine_parts import column_of, has_logarithms, is_zero
from .errors import LARGEST_MATRIX, not_affine
from .links import peel, split_power
from .observed_graph import ObservedGraph, flatten, flatten_parameter

# A likelihood's class, and one of its patterns.
Candidate = tuple[Callable[..., Density], Pattern]


def candidates_of(rv: Variable, n_params: int, *, augmented: bool) -> list[Candidate]:
    """Return the patterns of a distribution, of likelihoods with an augmentation or without."""
    return [
        (likelihood, pattern)
        for likelihood in known_likelihoods().values()
        for pattern in likelihood.patterns
        if likelihood.can_augment == augmented
        and pattern.rv == type(rv.owner.op).__name__
        and len(pattern.inputs) == n_params
    ]


def match_patterns(
    model: ModelIndex,
    rv: Variable,
    params: Variables,
    latents: Latents,
    candidates: Sequence[Candidate],
) -> ObservedGraph | str | None:
    """Return the first match, or the name of a parameter whose dependence on latents prevents it.

    ``params`` are the distribution's parameters, in the innovations. Raises NotAffineError if the
    single predictor of a pattern is not affine in the latents.
    """
    inputs = [latent.input for latent in latents]
    misplaced: list[str] = []
    # A numerical probe takes one link for another where the predictor hardly moves: spelling first.
    for by_probe, (likelihood, pattern) in product((False, True), candidates):
        if by_probe and pattern.several:
            continue
        named = dict(zip(pattern.inputs, params, strict=True))
        graphs = {own.name: named.pop(own.name) for own in pattern.predictors}
        others = [name for name, other in named.items() if depends_on(other, inputs)]
        if not pattern.several:
            misplaced = misplaced or others
        if others or not all(depends_on(graph, inputs) for graph in graphs.values()):
            continue
        found = _read(model, rv, likelihood, pattern, graphs, named, latents, by_probe=by_probe)
        if found is not None:
            return found
    return misplaced[0] if misplaced else None


def _read(
    model: ModelIndex,
    rv: Variable,
    likelihood: Callable[..., Density],
    pattern: Pattern,
    graphs: dict[str, Variable],
    named: dict[str, Variable],
    latents: Latents,
    *,
    by_probe: bool,
) -> ObservedGraph | None:
    """Read predictors from ``graphs`` and parameters from the others, or return None."""
    inputs = [latent.input for latent in latents]
    whole, value = static_shape(rv), model.rvs_to_values[rv]
    shape = whole[: len(whole) - getattr(rv.owner.op, "ndim_supp", 0)]
    predictors, names = [], []
    arguments: dict[str, int] = {}
    params = _parameters(rv, pattern, named)
    if params is None:
        return None
    for own in pattern.predictors:
        if own.classes:
            read = _classes(own, graphs[own.name], inputs, shape)
            if read is None:
                return None
            columns, reference = read
            predictors += columns
            arguments["n_predictors"] = len(columns)
            if reference is not None:
                arguments["reference"] = reference
            numbers = [k for k in range(len(columns) + 1) if k != reference]
            kind = "entry" if len(shape) < len(whole) and own.link == "identity" else "class"
            names += [f"{kind} {k}" for k in numbers[: len(columns)]]
            continue
        peeled = peeled_input(graphs[own.name], own, inputs, by_probe=by_probe)
        if peeled is None:
            return None
        eta, scale = peeled
        if pattern.several and all(pt.as_tensor(eta).type.broadcastable) and np.prod(shape) > 1:
            return None  # a number for all observations is a hyperparameter of the others
        predictors.append(-eta if own.negate else eta)
        if own.scale is not None:
            params[own.scale] = scale
        of = own.name if own.power == 1.0 else f"{own.name}^{1.0 / own.power:g}"
        link = own.link.removeprefix("scaled_")
        names.append(of if link == "identity" else f"{link} {of}")
    if pattern.several and len(predictors) == 1:
        return None  # two classes, one of them a reference: read as a density of one predictor
    predictors = simplify([flatten(eta, shape, rv) for eta in predictors])
    if not all(is_affine(eta, inputs) for eta in predictors):
        if pattern.several:
            return None
        raise NotAffineError(not_affine(rv, predictors[0], latents))
    if not all(has_logarithms(model, eta, inputs) for eta in predictors):
        return None
    params = {name: flatten_parameter(graph, shape, rv, name) for name, graph in params.items()}
    y = None
    if value.ndim > len(shape):
        size = int(np.prod(shape))
        counts = value.astype("float64").reshape((size, static_shape(value)[-1]))
        params |= {f"entry_{k}": counts[:, k] for k in range(static_shape(value)[-1])}
        y = counts.sum(axis=1)
    return ObservedGraph(
        variable=rv,
        value=value,
        likelihood=likelihood(**arguments),
        predictors=predictors,
        params=params,
        shape=shape,
        y=y,
        names=tuple(names) if pattern.several else (),
    )


def _parameters(
    rv: Variable, pattern: Pattern, named: dict[str, Variable]
) -> dict[str, Variable] | None:
    """Return parameters by name, matrices by their lower triangles; None if one is too large."""
    renamed = dict(pattern.rename)
    ndims = getattr(rv.owner.op, "ndims_params", None) or ()
    matrices = [name for name, ndim in zip(pattern.inputs, ndims, strict=False) if ndim == 2]
    params = {}
    for name, graph in named.items():
        known = renamed.get(name, name)
        if name not in matrices:
            params[known] = graph
            continue
        order = static_shape(graph)[-1]
        if order > LARGEST_MATRIX:
            return None
        params |= {f"{known}_{i}_{j}": graph[..., i, j] for i in range(order) for j in range(i + 1)}
    return params


# -- one predictor of an input --------------------------------------------------------------------


def peeled_input(
    graph: Variable, own: PredictorInput, latents: Variables, *, by_probe: bool
) -> tuple[Variable, Variable | None] | None:
    """Return η and r of an input that is (r·link⁻¹(η))^power, or None if it is not."""
    if own.power == 1.0:
        matched = peel(graph, own.link, latents, by_probe=by_probe)
        if matched is not None or by_probe:
            return matched
    base, exponent, factor = split_power(graph, latents)
    exponent = exponent / own.power
    factor = factor ** (1.0 / own.power)
    # The input to the power 1/power is factor · base^exponent.
    if own.link in ("log", "scaled_log"):
        matched = peel(base, "log", latents)
        if matched is None:
            return None
        eta = exponent * matched[0]
        return (eta + pt.log(factor), None) if own.scale is None else (eta, factor)
    if abs(exponent) != 1.0:
        return None
    if exponent == -1.0:
        (base,) = simplify([1.0 / base])
    matched = peel(base, own.link, latents)
    if matched is None:
        return None
    eta, scale = matched
    if own.scale is not None:
        return eta, (factor if scale is None else factor * scale)
    number = constant_number(factor)
    return (eta, None) if number is not None and np.all(number == 1.0) else None


# -- an axis of classes ---------------------------------------------------------------------------


def _classes(
    own: PredictorInput, graph: Variable, latents: Variables, shape: tuple[int, ...]
) -> tuple[list[TensorVariable], int | None] | None:
    """Return the predictors of the classes, and the class without one; or None if no match."""
    eta = graph if own.link == "identity" else _logits(graph)
    if eta is None or not is_affine(eta, latents) or not 0 < eta.ndim <= len(shape) + 1:
        return None
    n_classes = static_shape(eta)[-1]
    columns = simplify([column_of(eta, eta.ndim - 1, k) for k in range(n_classes)])
    constant = [k for k, column in enumerate(columns) if not depends_on(column, latents)]
    if not constant or (own.link == "identity" and len(constant) < n_classes):
        return columns, None
    if len(constant) > 1 or own.link != "softmax":
        return None
    (reference,) = constant
    level = columns.pop(reference)
    return columns if is_zero(level) else [column - level for column in columns], reference


def _logits(graph: Variable) -> TensorVariable | None:
    """Return x if ``graph`` is the softmax of x over its last axis, perhaps transposed.

    Of some rows of a softmax, those that are not missing say, it is these rows of x.
    """
    rows = _rows_of(graph)
    if rows is not None:
        logits = _logits(graph.owner.inputs[0])
        return None if logits is None else logits[rows]
    orders, axis = [], graph.ndim - 1
    while graph.owner is not None and isinstance(graph.owner.op, DimShuffle):
        order = graph.owner.op.new_order
        if order[axis] == "x":
            return None
        orders.append(graph.owner.op)
        graph, axis = graph.owner.inputs[0], order[axis]
    if graph.owner is None or not isinstance(graph.owner.op, Softmax):
        return None
    over = range(graph.ndim) if graph.owner.op.axis is None else np.atleast_1d(graph.owner.op.axis)
    if list(over) != [axis]:
        return None
    logits = graph.owner.inputs[0]
    for op in reversed(orders):
        logits = op(logits)
    return logits


def _rows_of(graph: Variable) -> Variable | None:
    """Return the index of rows that are chosen along the first axis of two, None if none are."""
    op = None if graph.owner is None else graph.owner.op
    if not isinstance(op, AdvancedSubtensor) or graph.ndim != 2 or op.idx_list != (0,):
        return None
    return graph.owner.inputs[1]


# Distributions that are symmetric about their location, which is the predictor.
_SYMMETRIC = frozenset({"NormalRV", "StudentTRV", "LaplaceRV", "CauchyRV", "LogisticRV"})


def read_mixture(
    model: ModelIndex, rv: Variable, latents: Latents, prior_of: GaussianVariable | None = None
) -> ObservedGraph | None:
    """Read a mixture, observed or the prior of one of the ``latents``; None for other variables.

    Its weights, and parameters other than predictors, must not depend on latents.
    """
    if not isinstance(rv.owner.op, MixtureRV):
        return None
    inputs = [latent.input for latent in latents]
    _, weights, *given = variable_in_innovations(model, rv, latents).owner.inputs
    if depends_on(weights, inputs):
        return None
    shape = static_shape(rv) if prior_of is None else prior_of.shape
    params: dict[str, TensorVariable] = {}
    predictors: list[TensorVariable] = []
    components = []
    for k, (component, own) in enumerate(_split(given, static_shape(weights)[-1])):
        if prior_of is not None and type(component.owner.op).__name__ not in _SYMMETRIC:
            return None
        found = read_component(component, own, inputs)
        if found is None:
            return None
        likelihood, eta, named = found
        if prior_of is not None:
            eta = prior_of.innovation() - eta
        params[f"log_weight_{k}"] = pt.log(column_of(weights, weights.ndim - 1, k))
        which = None
        if depends_on(eta, inputs):
            (eta,) = simplify([flatten(eta, shape, rv)])
            if not is_affine(eta, inputs):
                return None
            known = [i for i, p in enumerate(predictors) if equal_computations([p], [eta])]
            which = known[0] if known else len(predictors)
            predictors += [] if known else [eta]
        else:
            params[f"eta_{k}"] = eta
        names = {name: f"{name}_{k}" for name in named}
        params |= {names[name]: graph for name, graph in named.items()}
        components.append(MixtureComponent(likelihood, k, which, names))
    if not predictors:
        return None
    size = int(np.prod(shape))
    return ObservedGraph(
        variable=rv,
        value=model.rvs_to_values[rv] if prior_of is None else pt.constant(np.zeros(size)),
        likelihood=MixtureLikelihood(components),
        predictors=predictors,
        params={name: flatten_parameter(graph, shape, rv, name) for name, graph in params.items()},
        shape=shape if prior_of is None else (size,),
        names=tuple(f"predictor {p}" for p in range(len(predictors))),
    )


def _split(given: Variables, count: int) -> Iterator[tuple[Variable, list[Variable]]]:
    """Yield a draw and the parameters of each component, also from one variable with an axis."""
    if len(given) > 1:
        yield from ((component, distribution_parameters(component)) for component in given)
        return
    (stacked,) = given
    for k in range(count):
        columns = []
        for own in distribution_parameters(stacked):
            if own.ndim:
                length = static_shape(own)[-1]
                own = column_of(own, own.ndim - 1, k if length > 1 else 0)
            columns.append(own)
        yield stacked, columns


def read_component(
    rv: Variable, params: Variables, latents: Variables
) -> tuple[Likelihood, TensorVariable, dict[str, TensorVariable]] | None:
    """Return a likelihood of one predictor with an augmentation, its predictor and parameters."""
    params = simplify(params)
    for likelihood, pattern in candidates_of(rv, len(params), augmented=True):
        made = None if pattern.several else likelihood()
        if not isinstance(made, Likelihood):
            continue
        (own,) = pattern.predictors
        named = dict(zip(pattern.inputs, params, strict=True))
        graph = named.pop(own.name)
        if depends_on(list(named.values()), latents):
            continue
        peeled = peeled_input(graph, own, latents, by_probe=False)
        if peeled is None:
            continue
        eta, scale = peeled
        found = {dict(pattern.rename).get(name, name): other for name, other in named.items()}
        if own.scale is not None:
            found[own.scale] = scale
        return made, -eta if own.negate else eta, found
    return None
