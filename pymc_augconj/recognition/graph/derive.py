"""PyMC's log densities and log distribution functions of random variables, as graphs.

log(1 − F) takes forms that keep its digits, and its finiteness, where F is close to one. PyMC
computes log(1 − exp(log F)) for the probability above a bound. This is exact if log F is itself the
logarithm of a complement. If 1 − F is below the smallest number it is −∞, which makes every
expectation under a Gaussian −∞. This module therefore takes the complement in the formula of log F.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.dist_math import binomln, check_parameters
from pymc.distributions.distribution import PartialObservedRV, support_point
from pymc.logprob.basic import transformed_conditional_logp
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from .dependence import ModelIndex, static_shape
from .interpreter import op_name
from .rewrite import Variables, is_number, is_random, substitute


def log_density_of(model: ModelIndex, rv: Variable, value: Variable) -> Variable | None:
    """Return the graph of log p(value), elementwise, or None if PyMC has none."""
    if isinstance(rv.owner.op, PartialObservedRV):
        return None  # but one of its observed and missing entries together
    try:
        return _derived(_log_density, model, rv, value)
    except NotImplementedError:
        # For example a censored variable without a distribution function.
        return None


def _log_density(rv: Variable, value: Variable) -> Variable:
    """Return PyMC's log density, of a beta-binomial variable with its digits at large α + β.

    PyMC's differences of log Γ exceed zero by thousands there, where a sampler then stays.
    """
    if type(rv.owner.op).__name__ != "BetaBinomialRV":
        return pm.logp(rv, value)
    n, alpha, beta = rv.owner.op.dist_params(rv.owner)

    def log_rising(a: Variable, k: Variable) -> Variable:
        """Return log Γ(a + k)/Γ(a), of large a by Stirling's series, with an error of 1e-12 k."""
        series = k * pt.log(a) + 0.5 * k * (k - 1.0) / a
        return pt.switch(a > 1e6 * (k + 1.0), series, pt.gammaln(a + k) - pt.gammaln(a))

    rising = log_rising(alpha, value) + log_rising(beta, n - value) - log_rising(alpha + beta, n)
    density = pt.switch(pt.and_(value >= 0, value <= n), binomln(n, value) + rising, -np.inf)
    return check_parameters(density, n >= 0, alpha > 0, beta > 0, msg="n >= 0, alpha > 0, beta > 0")


def log_cdf_of(model: ModelIndex, rv: Variable, value: Variable) -> Variable | None:
    """Return the graph of log P(Y ≤ value), or None if PyMC has none."""
    try:
        return _derived(pm.logcdf, model, rv, value)
    except (NotImplementedError, TypeError, ValueError):
        return None


def support_point_of(model: ModelIndex, rv: Variable) -> Variable | None:
    """Return the graph of PyMC's point in the support of ``rv``; None if it has none."""
    try:
        return _derived(lambda apart, _: support_point(apart), model, rv, rv)
    except (NotImplementedError, TypeError):
        return None


def _derived(
    derive: Callable[[Variable, Variable], Variable],
    model: ModelIndex,
    rv: Variable,
    value: Variable,
) -> Variable:
    # PyMC derives the density of a variable with an inner one (a censored one) in a copy of the
    # graph, which would have copies of the model's random variables.
    parents = model.parents_of(rv.owner.inputs)
    symbols = {parent: parent.type(name=parent.name) for parent in parents}
    (apart,) = substitute([rv], symbols)
    graph = _without_draws(derive(_in_double(apart), value))
    return substitute([graph], {symbol: parent for parent, symbol in symbols.items()})[0]


def log_densities_of(
    model: ModelIndex, variables: Variables, *, jacobian: bool = True
) -> list[Variable]:
    """Return the log densities of random variables, elementwise, as functions of PyMC's point.

    To derive a density PyMC rewrites the whole graph, including covariances and their factors. For
    plain draws this function passes only the distributions, and inserts the parameters afterwards.
    """
    if not variables:
        return []
    apart = {rv: found for rv in variables if (found := _without_parameters(model, rv))}
    if len(apart) == len(variables):
        draws = {rv: draw for rv, (draw, _) in apart.items()}
    else:
        # An observed variable that depends on latents is data to a prior that depends on it.
        given = {parent for rv in variables for parent in model.parents[rv]}
        given.intersection_update(model.observed_RVs)
        nodes = {rv.owner for rv in variables}
        draws = {rv: rv for rv in model.basic_RVs if rv.owner in nodes or rv in given}
        apart = {}
    terms = transformed_conditional_logp(
        [draws[rv] for rv in variables],
        rvs_to_values={draw: model.rvs_to_values[rv] for rv, draw in draws.items()},
        rvs_to_transforms={draw: model.rvs_to_transforms.get(rv) for rv, draw in draws.items()},
        jacobian=jacobian,
    )
    parameters = {new: var for _, own in apart.values() for new, var in own.items()}
    graphs = model.in_values(list(parameters.values()))
    return substitute(terms, dict(zip(parameters, graphs, strict=True)))


def all_log_densities(model: ModelIndex) -> list[Variable]:
    """Return the log densities of all random variables, and the potentials, in PyMC's values."""
    terms = log_densities_of(model, model.basic_RVs) + model.in_values(model.potentials)
    return [term.astype("float64") for term in terms]


def _without_parameters(
    model: ModelIndex, rv: Variable
) -> tuple[Variable, dict[Variable, Variable]] | None:
    """Return a draw with unnamed parameters, and the parameters' graphs; None if not plain."""
    if not is_random(rv):
        return None
    node, basic = rv.owner, set(model.basic_RVs)
    given = []
    for var in node.inputs:
        drawn = [parent for parent in ancestors([var], blockers=basic) if is_random(parent)]
        # A mixture's components are draws too, and no values.
        if not basic.issuperset(drawn):
            return None
        given.append(var.type() if drawn and isinstance(var, TensorVariable) else var)
    draw = node.clone_with_new_inputs(given).outputs[node.outputs.index(rv)]
    return draw, {new: var for new, var in zip(given, node.inputs, strict=True) if new is not var}


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


# Of x below it, 1 − x has few digits.
_SMALL = 1e-8
# From this x on, Γ(a, x)/Γ(a) is computed by its continued fraction, as it underflows at 745; that
# number of terms is exact to rounding for a of up to a third of x.
_LARGE, _TERMS = 600.0, 40


def with_exact_complements(graph: Variable) -> Variable:
    """Return ``graph`` with each log(1 − exp(log F)) in the form that suits log F."""
    found: dict[Variable, Variable] = {}
    for var in ancestors([graph]):
        if op_name(var) == "Log1mexp":
            exact = _complement(var.owner.inputs[0])
            if exact is not None:
                found[var] = exact.astype(var.dtype)
    return substitute([graph], found)[0]


def _complement(log_cdf: Variable) -> Variable | None:
    """Return log(1 − exp(log_cdf)) in a better form, or None if none is known."""
    if isinstance(log_cdf, Constant):
        # Nothing below: everything above.
        return pt.zeros_like(log_cdf) if np.all(np.isneginf(log_cdf.data)) else None
    if log_cdf.owner is None:
        return None
    op, (first, *others) = log_cdf.owner.op, log_cdf.owner.inputs
    if isinstance(op, Alloc | DimShuffle | CheckParameterValue):
        inner = _complement(first)
        return None if inner is None else op(inner, *others)
    if op_name(log_cdf) == "Switch":
        branches = [_complement(branch) for branch in others]
        if all(branch is None for branch in branches):
            return None
        plain = [pt.log1mexp(branch) for branch in others]
        exact = [b if b is not None else p for b, p in zip(branches, plain, strict=True)]
        return pt.switch(first, *exact)
    rule = _RULES.get(op_name(log_cdf))
    return None if rule is None else rule(first)


def _of_negative(inner: Variable) -> Variable | None:
    # Logistic: F = exp(−softplus(−z)).
    return -pt.softplus(-inner.owner.inputs[0]) if op_name(inner) == "Softplus" else None


def _of_log(cdf: Variable) -> Variable | None:
    name = op_name(cdf)
    if name == "GammaInc":
        return _log_upper_gamma(*cdf.owner.inputs)
    if name == "GammaIncC":
        return pt.log(pt.gammainc(*cdf.owner.inputs))
    if name == "Sub" and is_number(cdf.owner.inputs[0], 1.0):
        return _log(cdf.owner.inputs[1])
    if name == "BetaInc":
        # Of a small x few digits are left in 1 − x.
        a, b, x = cdf.owner.inputs
        is_small = pt.or_(cdf < 0.5, x < _SMALL)
        return pt.switch(is_small, pt.log1p(-cdf), pt.log(pt.betainc(b, a, 1.0 - x)))
    return None


_RULES: dict[str, Callable[[Variable], Variable | None]] = {
    "Log1mexp": lambda inner: inner,
    "Neg": _of_negative,
    "Log": _of_log,
    "Log1p": lambda inner: _log(-inner),
}


def _log(graph: Variable) -> Variable:
    """Return the log of a product, with its exponentials taken out."""
    if op_name(graph) == "Exp":
        return graph.owner.inputs[0]
    if op_name(graph) == "Neg" and op_name(graph.owner.inputs[0]) == "Mul":
        first, *others = graph.owner.inputs[0].owner.inputs
        return sum((_log(factor) for factor in others), start=_log(-first))
    if op_name(graph) == "Mul":
        first, *others = graph.owner.inputs
        return sum((_log(factor) for factor in others), start=_log(first))
    # PyTensor keeps a number such as ½ in single precision.
    return pt.log(graph.astype("float64"))


def _log_upper_gamma(a: Variable, x: Variable) -> Variable:
    """Return log Γ(a, x)/Γ(a)."""
    large = pt.maximum(x, _LARGE)
    fraction = large + 2.0 * _TERMS + 1.0 - a
    for k in range(_TERMS, 0, -1):
        fraction = large + 2.0 * k - 1.0 - a + k * (a - k) / fraction
    tail = a * pt.log(large) - large - pt.gammaln(a) - pt.log(fraction)
    return pt.switch(pt.and_(x > _LARGE, a < x / 3.0), tail, pt.log(pt.gammaincc(a, x)))
