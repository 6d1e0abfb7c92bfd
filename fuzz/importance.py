"""Posterior expectations of a small model by importance sampling, without the package.

The proposal is a mixture of the prior, which knows nothing of what is tested, and of a Student-t
around given draws. The estimates are self-normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.logprob.utils import CheckParameterValue
from pymc.model import Model
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import toposort
from scipy.special import logsumexp
from scipy.stats import multivariate_t

from .interpreter import Interpreter
from .reference import PriorDraws

__all__ = ["Weighted", "importance_sample"]

Array = NDArray[np.float64]

_PRIOR_DRAWS = 1000
_DRAWS_AROUND = 8000
_DEGREES_OF_FREEDOM = 4
_WIDER = 1.5
_RIDGE = 1e-6


@dataclass(frozen=True)
class Weighted:
    """Draws with weights that add up to one.

    Attributes
    ----------
    draws : ndarray, shape (n, d)
        All free variables, flattened, on the unconstrained scale.
    weights : ndarray, shape (n,)
    """

    draws: Array
    weights: Array

    @property
    def effective(self) -> float:
        """The effective number of draws."""
        return float(1.0 / np.sum(self.weights**2))

    def mean(self, values: Array) -> tuple[Array, Array]:
        """Return means of ``values``, shape (n, k), and their standard errors."""
        mean = self.weights @ values
        return mean, np.sqrt(self.weights**2 @ (values - mean) ** 2)

    def quantiles(self, probabilities: tuple[float, ...]) -> Array:
        """Return quantiles of every scalar, shape (len(probabilities), d)."""
        found = []
        for x in self.draws.T:
            order = np.argsort(x)
            cumulated = np.cumsum(self.weights[order])
            found.append(x[order][np.searchsorted(cumulated, probabilities).clip(max=x.size - 1)])
        return np.array(found).T


def importance_sample(model: Model, around: Array, rng: np.random.Generator) -> Weighted:
    """Return weighted draws from the posterior.

    Parameters
    ----------
    model : pymc.Model
        Its free variables are continuous.
    around : ndarray, shape (m, d)
        Where the posterior may be: any draws; what they miss the prior has to find.
    rng : numpy.random.Generator
    """
    draw = PriorDraws(model)
    densities = _vectorized(model, draw(rng))
    flat = np.array([_flat(model, draw(rng)) for _ in range(_PRIOR_DRAWS)])
    # A transform of the user's own cuts the prior: its density is then not normalised.
    share = _PRIOR_DRAWS / (_PRIOR_DRAWS + _DRAWS_AROUND) if np.isfinite(flat).all() else 0.0
    # In units of their spread: scalars of 1e-7 beside others of order one are no singular shape.
    centre, spread = around.mean(axis=0), around.std(axis=0)
    spread = np.where(spread > 0.0, spread, 1.0)
    correlation = np.atleast_2d(np.cov((around - centre) / spread, rowvar=False))
    shape = _WIDER**2 * correlation + _RIDGE * np.eye(spread.size)
    proposal = multivariate_t(np.zeros(spread.size), shape, _DEGREES_OF_FREEDOM)
    near = np.reshape(proposal.rvs(_DRAWS_AROUND, random_state=rng), (-1, spread.size))
    draws = np.concatenate([flat, centre + spread * near]) if share else centre + spread * near
    log_prior, log_likelihood = densities(draws)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_t = proposal.logpdf((draws - centre) / spread) - np.log(spread).sum() + np.log1p(-share)
        log_proposal = np.logaddexp(log_prior + np.log(share), log_t)
        log_weights = log_prior + log_likelihood - log_proposal
    # Where exponentials overflow PyMC's density may be no number, or +∞.
    log_weights[~(log_weights < np.inf)] = -np.inf
    return Weighted(draws, np.exp(log_weights - logsumexp(log_weights)))


def _flat(model: Model, point: Mapping[str, Array]) -> Array:
    return np.concatenate([np.ravel(point[value.name]) for value in model.value_vars])


def _vectorized(model: Model, point: Mapping[str, Array]) -> Callable[[Array], tuple[Array, Array]]:
    """Return the log prior and the log likelihood of many points, of the shapes of one, at once."""
    terms = [pt.sum(_without_checks(term)) for term in model.logp(sum=False)]
    free = len(model.free_RVs)
    totals = [sum(terms[:free]), sum(terms[free:])]
    values = model.value_vars
    # Without their names: PyTensor takes "0_log__" for a dtype.
    many = [pt.tensor(dtype=v.dtype, shape=(None, *np.shape(point[v.name]))) for v in values]
    graphs = vectorize_graph(totals, dict(zip(values, many, strict=True)))
    # As PyMC evaluates them: log(1 − sigmoid(40)) is not −∞ then.
    stable = rewrite_graph(list(graphs), include=("canonicalize", "stabilize"))
    function = Interpreter(stable, many)
    shapes = [np.shape(point[v.name]) for v in values]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])

    def densities(draws: Array) -> tuple[Array, Array]:
        parts = np.split(draws, ends[:-1], axis=1)
        found = function([p.reshape(-1, *s) for p, s in zip(parts, shapes, strict=True)])
        log_prior, log_likelihood = (np.broadcast_to(x, draws.shape[:1]) for x in found)
        return np.array(log_prior, dtype=float), np.array(log_likelihood, dtype=float)

    return densities


def _without_checks(term: pt.TensorVariable) -> pt.TensorVariable:
    """Return a log density that is −∞ where PyMC's raises an error."""
    replaced = {}
    for node in toposort([term]):
        if isinstance(node.op, CheckParameterValue):
            value, *conditions = node.inputs
            inside, *held = clone_replace([value, *conditions], replaced)
            holds = pt.all(pt.stack([pt.as_tensor(condition).all() for condition in held]))
            replaced[node.outputs[0]] = pt.switch(holds, inside, -np.inf)
    return clone_replace([term], replaced)[0] if replaced else term
