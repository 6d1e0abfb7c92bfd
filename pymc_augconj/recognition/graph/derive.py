"""PyMC's log density and log distribution function of one random variable, as graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import PartialObservedRV, support_point
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import TensorType

from .dependence import direct_parents, static_shape
from .rewrite import is_random, substitute

__all__ = ["log_cdf_of", "log_density_of", "support_point_of"]


def log_density_of(model: Model, rv: Variable, value: Variable) -> Variable | None:
    """Return the graph of log p(value), elementwise, or None where PyMC has none.

    Parameters
    ----------
    model : pymc.Model
        Its random variables keep their identity.
    rv : Variable
    value : Variable
        Of the type of ``rv``.
    """
    if isinstance(rv.owner.op, PartialObservedRV):
        return None  # but one of its observed and missing entries together
    try:
        return _derived(pm.logp, model, rv, value)
    except NotImplementedError:
        # For example a censored variable without a distribution function.
        return None


def log_cdf_of(model: Model, rv: Variable, value: Variable) -> Variable | None:
    """Return the graph of log P(Y ≤ value), or None where PyMC has none."""
    try:
        return _derived(pm.logcdf, model, rv, value)
    except (NotImplementedError, TypeError, ValueError):
        return None


def support_point_of(model: Model, rv: Variable) -> Variable | None:
    """Return the graph of PyMC's point in the support of ``rv``; None if it has none."""
    try:
        return _derived(lambda apart, _: support_point(apart), model, rv, rv)
    except (NotImplementedError, TypeError):
        return None


def _derived(
    derive: Callable[[Variable, Variable], Variable], model: Model, rv: Variable, value: Variable
) -> Variable:
    # PyMC derives the density of a variable with an inner one (a censored one) in a copy of the
    # graph, which would have copies of the model's random variables.
    parents = direct_parents(list(rv.owner.inputs), model)
    symbols = {parent: parent.type(name=parent.name) for parent in parents}
    (apart,) = substitute([rv], symbols)
    graph = _without_draws(derive(_in_double(apart), value))
    return substitute([graph], {symbol: parent for parent, symbol in symbols.items()})[0]


def _in_double(rv: Variable) -> Variable:
    """Return a univariate random variable with its parameters in double precision.

    PyTensor stores numbers in the smallest type that holds them: for ν = 10⁶ in single precision,
    log Γ(ν/2) has an error of 0.06.
    """
    op = rv.owner.op
    if not isinstance(op, RandomVariable) or op.ndim_supp or any(op.ndims_params):
        return rv
    # Numbers of trials stay integers.
    kinds = ("float", "int", "uint") if rv.dtype.startswith("float") else ("float",)
    rng, size, *parameters = rv.owner.inputs
    doubled = [p.astype("float64") if p.dtype.startswith(kinds) else p for p in parameters]
    return op.make_node(rng, size, *doubled).outputs[1]


def _without_draws(graph: Variable) -> Variable:
    """Return the graph of a density without random variables.

    PyMC's density of a compound distribution (a random walk) contains its components, for their
    shapes only. They are replaced by NaN, which would show if their values were used.
    """
    drawn = [
        var for var in ancestors([graph]) if is_random(var) and isinstance(var.type, TensorType)
    ]
    arrays = {}
    for var in drawn:
        nothing = np.nan if var.dtype.startswith("float") else 0
        arrays[var] = pt.constant(np.full(static_shape(var), nothing, dtype=var.dtype))
    return substitute([graph], arrays)[0]
