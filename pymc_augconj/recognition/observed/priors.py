"""Priors that are not normal, as observations without data.

The density of x about a location μ equals the density of an observation zero given the predictor
x − μ, under the reflected distribution: a Student-t prior has the augmentation of the Student-t
likelihood. Other priors enter by their log density.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import NotAffineError, UnknownLikelihoodError
from pymc_augconj.likelihoods.base import Density
from pymc_augconj.likelihoods.bounded import BoundedNormal
from pymc_augconj.recognition.graph.affine import depends_on, is_affine
from pymc_augconj.recognition.graph.dependence import (
    ModelIndex,
    distribution_name,
    distribution_parameters,
)
from pymc_augconj.recognition.graph.derive import log_density_of
from pymc_augconj.recognition.graph.rewrite import simplify, substitute
from pymc_augconj.recognition.latents.innovations import GaussianVariable, in_innovations

from .errors import BOUNDED_ENGINES, DENSITY_ENGINES
from .mixtures import read_component, read_mixture
from .observed_graph import ObservedGraph, flatten, flatten_parameter
from .potentials import read_density

# Distributions p(x | μ) = p(2μ − x | μ) with a likelihood whose predictor is μ; and the parameter,
# if there is one, that reflection inverts.
_REFLECTED = {
    "StudentTRV": None,
    "LaplaceRV": None,
    "CauchyRV": None,
    "LogisticRV": None,
    "AsymmetricLaplaceRV": "kappa",
}


def match_prior(
    model: ModelIndex, latent: GaussianVariable, latents: Sequence[GaussianVariable]
) -> ObservedGraph:
    """Match the prior of one of the ``latents`` to a likelihood, or read its log density.

    Raises NotAffineError if entries of its density are not functions of one affine predictor each.
    """
    rv = latent.rv
    x = rv.type()
    density = log_density_of(model, rv, x)
    if density is None:
        raise NotAffineError(f"variable {rv.name!r}: expected a log density, found none")
    (density,) = in_innovations(model, substitute([density], {x: latent.replaced}), latents)
    density = pt.broadcast_to(density.astype("float64"), latent.shape)
    found = (
        _reflected(model, latent, latents)
        or _bounded(model, latent, latents)
        or read_mixture(model, rv, latents, latent)
    )
    refusal = UnknownLikelihoodError(
        f"variable {rv.name!r}: expected a prior with an augmentation (Normal, StudentT, "
        f"Laplace, AsymmetricLaplace, Cauchy, Logistic), found {distribution_name(rv)}. "
        + (DENSITY_ENGINES if latent.entry_transform is None else BOUNDED_ENGINES)
    )
    if found is None:
        read = read_density(model, rv, density, latents, refusal)
        if isinstance(read, str):
            raise NotAffineError(f"prior of {rv.name!r}: {read}")
        found = read
    return replace(
        found,
        variable=rv,
        density=density.ravel(),
        refusal=None if found.likelihood.can_augment else refusal,
        is_prior=True,
    )


def _reflected(
    model: ModelIndex, latent: GaussianVariable, latents: Sequence[GaussianVariable]
) -> ObservedGraph | None:
    rv, inputs = latent.rv, [other.input for other in latents]
    kind = type(rv.owner.op).__name__
    if kind not in _REFLECTED:
        return None
    params = in_innovations(model, distribution_parameters(rv), latents)
    found = read_component(rv, params, inputs)
    if found is None or not is_affine(found[1], inputs):
        return None
    likelihood, location, named = found
    if (reflected := _REFLECTED[kind]) is not None:
        named[reflected] = 1.0 / named[reflected]
    return _observed_as_zero(latent, likelihood, latent.innovation() - location, named)


def _bounded(
    model: ModelIndex, latent: GaussianVariable, latents: Sequence[GaussianVariable]
) -> ObservedGraph | None:
    rv, shape = latent.rv, latent.shape
    params = in_innovations(model, distribution_parameters(rv), latents)
    if depends_on(params, [other.input for other in latents]):
        return None
    match type(rv.owner.op).__name__:
        case "UniformRV":
            (lower, upper), mu, tau = params, pt.constant(0.0), pt.constant(0.0)
        case "TruncatedNormalRV":
            mu, sigma, lower, upper = params
            tau = sigma.astype("float64") ** -2.0
        case _:
            return None
    peak = pt.clip(mu, lower, upper).astype("float64")
    at_peak = log_density_of(model, rv, pt.broadcast_to(peak, shape).astype(rv.dtype))
    assert at_peak is not None  # PyMC has one of either
    (at_peak,) = in_innovations(model, [at_peak], latents)
    log_c = at_peak + 0.5 * tau * (peak - mu) ** 2
    graphs = {"lower": lower, "upper": upper, "mu": mu, "tau": tau, "log_c": log_c}
    return _observed_as_zero(latent, BoundedNormal(), latent.innovation(), graphs)


def _observed_as_zero(
    latent: GaussianVariable,
    likelihood: Density,
    eta: TensorVariable,
    params: dict[str, TensorVariable],
) -> ObservedGraph:
    rv, shape, size = latent.rv, latent.shape, latent.total_size
    (eta,) = simplify([flatten(eta, shape, rv)])
    return ObservedGraph(
        variable=rv,
        value=pt.constant(np.zeros(size)),
        likelihood=likelihood,
        predictors=[eta],
        params={name: flatten_parameter(graph, shape, rv, name) for name, graph in params.items()},
        shape=(size,),
    )
