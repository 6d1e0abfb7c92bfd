"""Reading an observed variable of any distribution through PyMC's own log density.

Its parameters must depend on the latents through one affine predictor η with one entry per
observation; observations of several axes are taken in C order. Then log p(y | η) is PyMC's density
with symbols for y and η, and with its hyperparameters as ``params``, see :mod:`.row_parameters`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytensor.tensor as pt
from pymc.distributions.distribution import PartialObservedRV
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.likelihoods.censored import CensoredLikelihood
from pymc_augconj.likelihoods.generic import GenericLikelihood
from pymc_augconj.recognition.graph.affine import (
    depends_on,
    is_affine,
)
from pymc_augconj.recognition.graph.complements import with_exact_complements
from pymc_augconj.recognition.graph.dependence import distribution_parameters, static_shape
from pymc_augconj.recognition.graph.derive import log_cdf_of, log_density_of
from pymc_augconj.recognition.graph.names import distribution_name
from pymc_augconj.recognition.graph.rewrite import simplify, substitute
from pymc_augconj.recognition.latents.innovations import GaussianVariable, variable_in_innovations

from .censoring import censored_base, read_censoring
from .indices import with_indices_inside
from .links import peel
from .one_predictor import find_predictor
from .row_parameters import RowParameters
from .row_reader import RowReader

__all__ = ["GenericReading", "read_generic"]


@dataclass(frozen=True, eq=False)
class GenericReading:
    """A likelihood, with the graphs of its predictor and of its parameters."""

    likelihood: GenericLikelihood
    predictor: TensorVariable
    params: dict[str, TensorVariable]


def read_generic(
    model: Model, rv: Variable, latents: Sequence[GaussianVariable]
) -> GenericReading | None:
    """Return the density of an observed variable given one predictor, or None if it has none.

    Parameters
    ----------
    model : pymc.Model
    rv : Variable
        The observed variable.
    latents : sequence of GaussianVariable
    """
    shape = static_shape(rv)
    inputs = [latent.input for latent in latents]
    if not shape or getattr(rv.owner.op, "ndim_supp", 0) != 0:
        return None
    if isinstance(rv.owner.op, PartialObservedRV):
        return None  # one variable for observed and missing entries
    within = variable_in_innovations(model, rv, latents)
    found = _read(model, rv, within, inputs, shape)
    return found or _read(model, rv, with_indices_inside(within, inputs), inputs, shape)


def _read(
    model: Model,
    rv: Variable,
    within: Variable,
    inputs: Sequence[Variable],
    shape: tuple[int, ...],
) -> GenericReading | None:
    """Read a random variable, in terms of innovations, as it is written."""
    offsets = find_predictor(distribution_parameters(within), inputs, shape)
    if offsets is None:
        return None
    # PyMC derives some densities in a changed copy of the graph, in which η and parameters could
    # not be found: they are replaced by inputs.
    held = {var: pt.tensor(var.name, dtype=var.dtype, shape=static_shape(var)) for var in offsets}
    (apart,) = substitute([within], held)
    censoring = read_censoring(apart)
    parameters = RowParameters(shape, model)
    if censoring is not None:
        apart = censoring.rv
        for name, (bound, graph) in censoring.bounds.items():
            parameters.add(name, bound, graph)
    etas = {held[var]: offset for var, offset in offsets.items()}
    parameters.collect(distribution_parameters(apart), [*etas, *parameters.symbols])
    (apart,) = substitute([apart], parameters.hold())
    value = apart.type()
    density, log_cdf = log_density_of(model, apart, value), log_cdf_of(model, apart, value)
    if density is None or density.ndim != len(shape):
        return None
    reader = RowReader(value, etas, parameters)
    log_density = reader.read(with_exact_complements(density))
    if log_density is None:
        return None
    log_cdf = None if log_cdf is None else reader.read(log_cdf)
    censored = censored_base(within)
    base = within if censoring is None or censored is None else censored
    name, kind = distribution_name(rv), GenericLikelihood
    if censoring is not None:
        name, kind = f"Censored {distribution_name(censored_base(rv))}", CensoredLikelihood
    likelihood = kind(
        name,
        _link(base, list(offsets), inputs),
        log_density,
        log_cdf,
        discrete=not base.dtype.startswith("float"),
    )
    return GenericReading(likelihood, next(iter(offsets)), parameters.graphs())


def _link(within: Variable, predictors: Sequence[Variable], latents: Sequence[Variable]) -> str:
    parameters = [p for p in distribution_parameters(within) if depends_on(p, latents)]
    if set(parameters).intersection(predictors):
        return "identity"
    links = {_named_link(graph, latents) for graph in simplify(parameters)}
    return links.pop() if len(links) == 1 else "its own"


def _named_link(graph: Variable, latents: Sequence[Variable]) -> str:
    for link in ("logit", "probit", "log", "scaled_logit", "scaled_square"):
        peeled = peel(graph, link, latents)
        if peeled is not None and is_affine(pt.as_tensor(peeled[0]), latents):
            return link.removeprefix("scaled_")
    return "its own"
