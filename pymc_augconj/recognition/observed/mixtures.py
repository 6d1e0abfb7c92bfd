"""``pm.Mixture`` and ``pm.NormalMixture`` of likelihoods with an augmentation.

They are observed, or the prior of a coefficient x, that is, of observations zero given x − μ_k.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.mixture import MixtureRV
from pytensor.graph.basic import Variable, equal_computations
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.likelihoods.base import Likelihood
from pymc_augconj.likelihoods.mixture import MixtureComponent, MixtureLikelihood
from pymc_augconj.recognition.graph.affine import depends_on, is_affine
from pymc_augconj.recognition.graph.dependence import (
    ModelIndex,
    distribution_parameters,
    static_shape,
)
from pymc_augconj.recognition.graph.rewrite import simplify
from pymc_augconj.recognition.latents.innovations import GaussianVariable, variable_in_innovations

from .affine_parts import column_of
from .observed_graph import ObservedGraph, flatten, flatten_parameter
from .patterns import candidates_of, peeled_input

# Distributions that are symmetric about their location, which is the predictor.
_SYMMETRIC = frozenset({"NormalRV", "StudentTRV", "LaplaceRV", "CauchyRV", "LogisticRV"})


def read_mixture(
    model: ModelIndex,
    rv: Variable,
    latents: Sequence[GaussianVariable],
    prior_of: GaussianVariable | None = None,
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


def _split(given: Sequence[Variable], count: int) -> Iterator[tuple[Variable, list[Variable]]]:
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
    rv: Variable, params: Sequence[Variable], latents: Sequence[Variable]
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
