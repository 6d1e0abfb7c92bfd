"""Recognition of ``pm.Potential``: censored or weighted observations, or a constraint.

PyMC adds up the entries of a potential. Here it is a sum of terms, arrays whose entries are
functions of one predictor each, affine in the latents:

    Σ c (a + b),  c Σ a,  Σ a − Σ b / c,  wᵀ a,      c free of latents.

Terms without latents are part of the first term with latents. Σ (a + b) is Σ a + Σ b if a and b
are functions of different predictors.

Priors that are not normal are observations without data: the density of x about a location μ equals
the density of an observation zero given the predictor x − μ, under the reflected distribution. A
Student-t prior has the augmentation of the Student-t likelihood; others enter by their log density.
A normal prior within bounds, or of an order, is a normal one times the density that is one where x,
or each difference between neighbours, is within bounds, and zero elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import mul
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import Ordered
from pymc.math import logdiffexp
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Add, Cast, Identity, Mul, Neg, Sub, TrueDiv
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.linalg.solvers.core import SolveBase
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import AugmentationError, NotAffineError, UnknownLikelihoodError
from pymc_augconj.likelihoods.base import Density
from pymc_augconj.likelihoods.generic import BoundedNormal, PotentialLikelihood, PotentialTerm
from pymc_augconj.recognition.graph.affine import depends_on, descendants, is_affine
from pymc_augconj.recognition.graph.dependence import (
    ModelIndex,
    distribution_parameters,
    static_shape,
)
from pymc_augconj.recognition.graph.derive import log_density_of, with_exact_complements
from pymc_augconj.recognition.graph.rewrite import (
    Variables,
    down_to_random,
    is_random,
    simplify,
    substitute,
)
from pymc_augconj.recognition.latents.innovations import GaussianVariable, Latents, in_innovations

from .affine_parts import find_predictors, with_factors_inside
from .errors import BOUNDED_ENGINES, DENSITY_ENGINES, JOINT_DENSITY
from .observed_graph import ObservedGraph, flatten, flatten_parameter
from .patterns import read_component, read_mixture
from .row_reader import RowParameters, RowReader
from .rows import RowFunction, graphs_with_indices_inside, is_separate


def read_potential(
    model: ModelIndex, potential: Variable, latents: Latents
) -> ObservedGraph | str | None:
    """Read a potential as a density; None if it does not depend on the latents.

    If it is not a sum of terms whose entries each depend on one predictor, a sentence has the
    expectation and the finding.
    """
    inputs = [latent.input for latent in latents]
    (graph,) = with_factors_inside(model, in_innovations(model, [potential], latents), inputs)
    if not depends_on(graph, inputs):
        return None
    refusal = UnknownLikelihoodError(
        f"potential {potential.name!r}: no augmentation is known for a density that is written as "
        f"a potential. {DENSITY_ENGINES}"
    )
    return read_density(model, potential, graph, latents, refusal)


def read_density(
    model: ModelIndex,
    variable: Variable,
    graph: TensorVariable,
    latents: Latents,
    refusal: AugmentationError,
) -> ObservedGraph | str:
    """Read a graph of the innovations, with the sum over its entries, as a density.

    It belongs to ``variable``; engines that need an augmentation raise ``refusal``. Returns a
    sentence like :func:`read_potential`.
    """
    inputs = [latent.input for latent in latents]
    summands = _summands(graph.astype("float64"), inputs)
    moving = [term for term in summands if depends_on(term, inputs)]
    rest = [term.sum() for term in summands if not depends_on(term, inputs)]
    if rest:
        moving[0] = moving[0] + sum(rest) / max(int(np.prod(static_shape(moving[0]))), 1)
    readings = []
    for term in moving:
        found = _readings(model, term, inputs)
        if isinstance(found, str):
            operations = (
                getattr(v.owner.op, "core_op", v.owner.op) for v in descendants(term, inputs)
            )
            joint = any(isinstance(op, SolveBase) for op in operations)
            return (
                "expected a sum of terms whose entries each depend on one affine predictor of "
                f"the Gaussian latent variables, found {found}{JOINT_DENSITY if joint else ''}"
            )
        readings += found
    return _together(variable, readings, refusal)


def _together(
    variable: Variable, readings: Sequence[_Reading], refusal: AugmentationError
) -> ObservedGraph:
    """Return the terms one after the other."""
    sizes = [reading.size for reading in readings]
    total = sum(sizes)
    terms: list[PotentialTerm] = []
    params: dict[str, TensorVariable] = {}
    for i, reading in enumerate(readings):
        names = {name: f"{name}_{i}" if len(readings) > 1 else name for name in reading.params}
        terms.append((reading.log_density, names))
        before, after = sum(sizes[:i]), sum(sizes[i + 1 :])
        for name, graph in reading.params.items():
            # Other terms do not use the entries that are added.
            padded = graph
            if graph.ndim and total > reading.size:
                ends = pt.alloc(graph[0], before), pt.alloc(graph[0], after)
                padded = pt.specify_shape(pt.concatenate([ends[0], graph, ends[1]]), (total,))
            params[names[name]] = padded
    return ObservedGraph(
        variable=variable,
        value=pt.constant(np.repeat(np.arange(float(len(readings))), sizes)),
        likelihood=PotentialLikelihood(terms),
        predictors=[_concatenated([reading.predictor for reading in readings])],
        params=params,
        shape=(total,),
        density=_concatenated([reading.term.ravel() for reading in readings]),
        refusal=refusal,
    )


def _concatenated(graphs: Sequence[TensorVariable]) -> TensorVariable:
    return graphs[0] if len(graphs) == 1 else pt.concatenate(graphs)


# -- terms ----------------------------------------------------------------------------------------


def _summands(
    graph: TensorVariable, latents: Variables, entries: bool = False
) -> list[TensorVariable]:
    """Return graphs whose entries have the same sum as the entries of ``graph``.

    It splits graphs of one entry; with ``entries`` it splits all, into graphs that broadcast to
    the shape of ``graph`` and add up to it entry by entry.
    """
    node = graph.owner
    if node is None or not depends_on(graph, latents):
        return [graph]
    op, parts = node.op, node.inputs

    def apart(part: TensorVariable) -> list[TensorVariable]:
        return _summands(part, latents, entries)

    if isinstance(op, Sum | DimShuffle | ViewOp) and not entries:
        return apart(parts[0])
    kind = op.scalar_op if isinstance(op, Elemwise) else None
    if isinstance(kind, Identity) or (
        isinstance(kind, Cast) and parts[0].dtype.startswith("float")
    ):
        return apart(parts[0])
    if not entries and not all(graph.type.broadcastable):
        return [graph]
    if isinstance(op, Dot) and not entries:
        return [parts[0].ravel() * parts[1].ravel()]
    if isinstance(kind, Neg):
        return [-term for term in apart(parts[0])]
    if isinstance(kind, Add):
        return [term for part in parts for term in apart(part)]
    if isinstance(kind, Sub):
        added, subtracted = map(apart, parts)
        return [*added, *(-term for term in subtracted)]
    if isinstance(kind, Mul | TrueDiv):
        (first, *others) = moving = [part for part in parts if depends_on(part, latents)]
        if not others and (isinstance(kind, Mul) or first is parts[0]):
            factor = reduce(mul, [part for part in parts if part not in moving])
            if not entries:
                # The number of entries, of a mean, is computed from their shape.
                (factor,) = simplify([factor.reshape(())], shapes=True)
            if not isinstance(kind, Mul):
                return [term / factor for term in apart(first)]
            return [factor * term for term in apart(first)]
    return [graph]


@dataclass(frozen=True, eq=False)
class _Reading:
    """One parsed term: its graph, its predictor, shape (size,), and its density."""

    term: TensorVariable
    size: int
    predictor: TensorVariable
    log_density: RowFunction
    params: dict[str, TensorVariable]


def _readings(model: ModelIndex, term: TensorVariable, latents: Variables) -> list[_Reading] | str:
    """Read a term, or the fewest terms with this sum; or return the obstacle."""
    whole = _read(model, term, latents)
    if not isinstance(whole, str):
        return [whole]
    addends = _summands(term, latents, True)
    if len(addends) == 1:
        return whole
    readings: list[_Reading] = []
    # Those without latents are part of the first one that has them.
    for addend in sorted(addends, key=lambda graph: not depends_on(graph, latents)):
        for i, other in enumerate(readings):
            both = _read(model, other.term + addend, latents)
            if not isinstance(both, str):
                readings[i] = both
                break
        else:
            alone = _read(model, pt.alloc(addend, *static_shape(term)), latents)
            if isinstance(alone, str):
                return alone
            readings.append(alone)
    return readings


def _read(model: ModelIndex, term: TensorVariable, latents: Variables) -> _Reading | str:
    shape = static_shape(term)
    parts, graph = find_predictors([term], latents, shape), term
    if isinstance(parts, str) or not is_separate(graph, parts[0].offsets, len(shape)):
        (graph,) = graphs_with_indices_inside([term], latents)
        parts = find_predictors([graph], latents, shape)
    if isinstance(parts, str):
        return f"a term of shape {shape} that depends on several, or not smoothly on one"
    if shape and not is_separate(graph, parts[0].offsets, len(shape)):
        return f"a term of shape {shape} in which an entry depends on several entries of η"
    parameters = RowParameters(shape, model)
    reader = RowReader(None, parts, parameters)
    log_density = reader.read(with_exact_complements(graph))
    if log_density is None:
        return f"a term of shape {shape} whose entries cannot be separated"
    size = int(np.prod(shape))
    eta = parts[0].columns[0].astype("float64")
    (eta,) = simplify([pt.broadcast_to(eta, shape).reshape((size,))])
    return _Reading(pt.specify_shape(term, shape), size, eta, log_density, parameters.graphs)


_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)
# Distributions p(x | μ) = p(2μ − x | μ) with a likelihood whose predictor is μ; and the parameter,
# if there is one, that reflection inverts.
_REFLECTED = {
    "StudentTRV": None,
    "LaplaceRV": None,
    "CauchyRV": None,
    "AsymmetricLaplaceRV": "kappa",
}


def _log_prior(model: ModelIndex, rv: Variable, x: Variable) -> Variable | None:
    """Return log p(x); of skewed normals as log p(z) − log s of z = (x − m)/s.

    So sites follow the scale. PyMC writes other families as functions of (x − μ)/σ.
    """
    match type(rv.owner.op).__name__, distribution_parameters(rv):
        case "SkewNormalRV", (centre, scale, alpha):
            standard = pm.SkewNormal.dist(alpha)
        case "ExGaussianRV", (mu, sigma, nu):
            centre, scale = mu + nu, pt.sqrt(sigma**2 + nu**2)
            share = nu / scale
            standard = pm.ExGaussian.dist(mu=-share, sigma=sigma / scale, nu=share)
        case _:
            return log_density_of(model, rv, x)
    z = x.type()
    density = log_density_of(model, standard, z)
    if density is None:
        return None
    return substitute([density], {z: (x - centre) / scale})[0] - pt.log(scale)


def match_prior(model: ModelIndex, latent: GaussianVariable, latents: Latents) -> ObservedGraph:
    """Match the prior of one of the ``latents`` to a likelihood, or read its log density.

    Raises NotAffineError if entries of its density are not functions of one affine predictor each.
    """
    rv = latent.rv
    found: ObservedGraph | None
    if latent.is_flat:
        x = rv.type()
        density = _log_prior(model, rv, x)
        if density is None:
            raise NotAffineError(f"variable {rv.name!r}: expected a log density, found none")
        (density,) = in_innovations(model, substitute([density], {x: latent.replaced}), latents)
        density = pt.broadcast_to(density.astype("float64"), latent.shape)
        found = (
            _reflected(model, latent, latents)
            or _bounded(model, latent, latents)
            or read_mixture(model, rv, latents, latent)
        )
    else:
        found, density = _constraint(model, latent, latents)
    refusal = UnknownLikelihoodError(
        f"variable {rv.name!r}: expected a prior with an augmentation (Normal, StudentT, "
        f"Laplace, AsymmetricLaplace, Cauchy), found {latent.form}. "
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
    model: ModelIndex, latent: GaussianVariable, latents: Latents
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
        named[reflected] = 1.0 / named[reflected].astype("float64")
    return _observed_as_zero(rv, likelihood, latent.innovation() - location, named)


def _bounded(model: ModelIndex, latent: GaussianVariable, latents: Latents) -> ObservedGraph | None:
    rv = latent.rv
    params = in_innovations(model, distribution_parameters(rv), latents)
    if depends_on(params, [other.input for other in latents]):
        return None
    x, params = latent.innovation(), [param.astype("float64") for param in params]
    match type(rv.owner.op).__name__:
        case "UniformRV":
            (lower, upper), mu, tau = params, pt.constant(0.0), pt.constant(0.0)
            log_c = -pt.log(upper - lower)
        case "TruncatedNormalRV":
            mu, sigma, lower, upper = params
            centre, scale, log_mass = _between(mu, sigma, lower, upper)
            log_c = -pt.log(sigma) - _HALF_LOG_2PI - log_mass
            x, tau = (x - centre) / scale, (scale / sigma) ** 2
            mu, lower, upper = ((at - centre) / scale for at in (mu, lower, upper))
        case _:
            return None
    graphs = {"lower": lower, "upper": upper, "mu": mu, "tau": tau, "log_c": log_c}
    return _observed_as_zero(rv, BoundedNormal(), x, graphs)


def _between(mu: Variable, sigma: Variable, lower: Any, upper: Any) -> tuple[Any, Any, Variable]:
    """Return the mean of a normal variable between bounds, about its spread, and its log mass.

    Sites of x relative to them are as good for any μ and σ.
    """
    # Where a bound is infinite, derivatives of the quotient are not finite.
    low, high = (
        pt.switch(pt.isinf(bound), end, (pt.switch(pt.isinf(bound), 0.0, bound) - mu) / sigma)
        for bound, end in ((lower, -1e30), (upper, 1e30))
    )
    # In the left tail, where Φ has all digits.
    first, last = pt.switch(low > 0.0, -high, low), pt.switch(low > 0.0, -low, high)
    log_mass = logdiffexp(_log_normal_cdf(last), _log_normal_cdf(first))
    if not any(map(is_random, down_to_random([mu, sigma]))):
        return 0.0, 1.0, log_mass
    at_low, at_high = (pt.exp(-0.5 * z**2 - _HALF_LOG_2PI - log_mass) for z in (low, high))
    away = pt.maximum(pt.maximum(low, -high), 0.0)
    mean = pt.clip(mu + sigma * (at_low - at_high), lower, upper)
    return mean, 1.0 / ((1.0 + away) / sigma + 1.0 / (upper - lower)), log_mass


def _constraint(
    model: ModelIndex, latent: GaussianVariable, latents: Latents
) -> tuple[ObservedGraph, TensorVariable]:
    """Return the constraint of a normal variable within bounds or of an order, and its density."""
    rv, transform = latent.rv, latent.entry_transform
    assert transform is not None
    (x,) = in_innovations(model, [latent.replaced], latents)
    mu, sigma = (v.astype("float64") for v in distribution_parameters(rv))
    lower: Any = 0.0
    upper: Any = np.inf
    if isinstance(transform, Ordered):
        if not transform.positive and (mu.ndim == 0 or mu.type.broadcastable[-1]):
            mu = 0.0 * sigma  # Steps have no mean, even one of latents.
        parts = [pt.broadcast_to(v, latent.shape) for v in (x, mu, sigma)]
        if not transform.ascending:
            parts = [v[..., ::-1] for v in parts]
        if transform.positive:
            parts = [pt.concatenate([pt.zeros_like(v[..., :1]), v], axis=-1) for v in parts]
        x, mu = (v[..., 1:] - v[..., :-1] for v in parts[:2])
        sigma = parts[2][..., 1:] + parts[2][..., :-1]
    else:
        lower, upper = transform.args_fn(*rv.owner.inputs)
        lower, upper = -np.inf if lower is None else lower, np.inf if upper is None else upper
    lower, upper = (pt.as_tensor(bound).astype("float64") for bound in (lower, upper))
    # Where the mean has latents, their spread is that of x for small σ.
    if not depends_on(in_innovations(model, [mu], latents), [other.input for other in latents]):
        centre, scale, _ = _between(mu, sigma, lower, upper)
        x, lower, upper = ((v - centre) / scale for v in (x, lower, upper))
    zero = pt.constant(0.0)
    graphs = {"lower": lower, "upper": upper, "mu": zero, "tau": zero, "log_c": zero}
    found = _observed_as_zero(rv, BoundedNormal(), x, graphs)
    (eta,) = found.predictors
    inside = (eta >= found.params["lower"]) & (eta <= found.params["upper"])
    return found, pt.switch(inside, 0.0, -np.inf)


def _log_normal_cdf(z: TensorVariable) -> TensorVariable:
    """Return log Φ(z), with √2 in double precision."""
    x = -z / np.array(np.sqrt(2.0))
    far = pt.log(pt.erfcx(pt.maximum(x, 0.0)) / 2.0) - x**2
    return pt.switch(z < -1.0, far, pt.log1p(-pt.erfc(-x) / 2.0))


def _observed_as_zero(
    rv: Variable, likelihood: Density, eta: TensorVariable, params: dict[str, TensorVariable]
) -> ObservedGraph:
    shape = static_shape(eta)
    size = int(np.prod(shape))
    (eta,) = simplify([flatten(eta, shape, rv)])
    return ObservedGraph(
        variable=rv,
        value=pt.constant(np.zeros(size)),
        likelihood=likelihood,
        predictors=[eta],
        params={name: flatten_parameter(graph, shape, rv, name) for name, graph in params.items()},
        shape=(size,),
    )
