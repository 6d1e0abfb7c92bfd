"""A density of which each predictor has a residual variance: E log p(y | η + e), e ~ N(0, r).

Through inducing points a predictor is ηᵢ = mᵢ + aᵢᵀv + eᵢ, see :mod:`.component`. The optimal
free-form posterior of v and θ is that of a model in which log p is replaced by its expectation over
eᵢ (Hensman et al. 2015),

    q(v, θ) ∝ p(θ) N(v; 0, I) exp Σ E_{N(η; mᵢ + aᵢᵀv, rᵢ)} log p(yᵢ | η),

so that for any sampler that needs log p alone this is one more density, with rᵢ(θ) among its
parameters. The residuals of an observation's predictors are independent, each being of processes
of its own. Where a likelihood has no closed form the expectation is *defined* as a sum over fixed
nodes, the same function of (η, r) at every step: see :func:`.normal_nodes`.

References
----------
Hensman, Matthews, Filippone & Ghahramani (2015), MCMC for variationally sparse Gaussian processes.
NIPS.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pymc_augconj.engines.variational.vgp import expectations
from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.contract import MultiDensity
from pymc_augconj.quadrature.nodes import normal_nodes
from pymc_augconj.typing import Array

__all__ = ["SMALLEST_VAR", "ExpectedDensity", "residual_name"]

#: Least r, so that its square root has a derivative; it changes no density by 1e-11.
SMALLEST_VAR = 1e-12

# Values of a density at once: 4 MB.
_CHUNK = 500_000


def residual_name(predictor: int) -> str:
    """Return the entry of ``params`` that holds r of a predictor, shape (N,); no name of PyMC's."""
    return f"residual variance of predictor {predictor}"


class ExpectedDensity(MultiDensity):
    """The expectation of a density over the residuals of its predictors.

    Parameters
    ----------
    terms : MultiDensity
        What is expected, as engines see it.
    """

    def __init__(self, terms: MultiDensity) -> None:
        self.terms = terms
        self.n_predictors, self.levels = terms.n_predictors, terms.levels
        own = terms.traits
        self.traits = replace(
            type(self).traits, factorises=own.factorises, propagates=own.propagates
        )
        self.name, self.link, self.discrete = terms.name, terms.link, terms.discrete
        self.is_normalized, self.has_observations = terms.is_normalized, terms.has_observations

    def _residual_var(self, params: Params) -> Array:
        """Return the variances of residuals, shape (P, N)."""
        return np.stack([params[residual_name(p)] for p in range(self.n_predictors)])

    def _residual_cov(self, params: Params) -> Array:
        """Return the covariances of residuals, shape (P, P, N)."""
        return np.einsum("pq,pn->pqn", np.eye(self.n_predictors), self._residual_var(params))

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        """Return E log p(y | η + e), for η of shape (P, …, N)."""
        shape = np.broadcast_shapes(eta.shape[1:], y.shape)
        eta = np.broadcast_to(eta, (len(eta), *shape))
        if len(shape) == 1:
            return self.expected(y, eta, params)
        # Closed forms are for vectors.
        y = np.broadcast_to(y, shape).ravel()
        params = {
            name: np.broadcast_to(value, shape).ravel() if np.ndim(value) else value
            for name, value in params.items()
        }
        return self.expected(y, eta.reshape(len(eta), -1), params).reshape(shape)

    def expected(self, y: Array, mean: Array, params: Params) -> Array:
        """Return the expectation at predictors of shape (P, N)."""
        found = self.closed(y, mean, params)
        return self.summed(y, mean, params, *normal_nodes(len(mean))) if found is None else found

    def closed(self, y: Array, mean: Array, params: Params) -> Array | None:
        """Return the expectation where it has a closed form; None where it is a sum."""
        found = self.terms.expected_with_gradient(y, mean, self._residual_var(params), params)
        return None if found is None else found[0]

    def summed(self, y: Array, mean: Array, params: Params, nodes: Array, weights: Array) -> Array:
        """Return the expectation as a sum over nodes; shapes as :meth:`expected`."""
        std = np.sqrt(self._residual_var(params))[:, None]
        total = np.zeros(y.shape)
        step = max(_CHUNK // mean.size, 1)
        for part in (slice(i, i + step) for i in range(0, weights.size, step)):
            eta = mean[:, None] + nodes[:, part, None] * std
            total += weights[part] @ self.terms.log_density(y, eta, params)
        return total

    def log_density_and_gradient(self, y: Array, eta: Array, params: Params) -> tuple[Array, Array]:
        """Return E log p(y | η + e) and an approximation of its gradient, for η of shape (P, N)."""
        var = self._residual_var(params)
        found = self.terms.expected_with_gradient(y, eta, var, params)
        if found is not None:
            return found
        # What is sampled is the sum, from which the integral differs a little.
        slopes = expectations(self.terms, y, eta, var, params, rough=True)[1]
        return self.expected(y, eta, params), slopes

    def propagated_sites(
        self,
        y: Array,
        mean: Array,
        cov: Array,
        residual_var: Array,
        sites: tuple[Array, Array],
        params: Params,
    ) -> tuple[Array, Array]:
        """See :meth:`.MultiDensity.propagated_sites`."""
        residual_var = residual_var + self._residual_var(params)
        return self.terms.propagated_sites(y, mean, cov, residual_var, sites, params)

    def error(self, y: Array, eta: Array, params: Params) -> float:
        """Return by how much twice the nodes move Σ E log p(y | η + e); 0 for a closed form."""
        if self.closed(y, eta, params) is not None and not self.terms.traits.expected_by_rule:
            return 0.0
        few = self.expected(y, eta, params)
        many = self.summed(y, eta, params, *normal_nodes(len(eta), 2))
        return float(abs(many.sum() - few.sum()))

    def expected_log_density(
        self, y: Array, mean: Array, cov: Array, params: Params
    ) -> tuple[Array, Array, Array]:
        """Return the expectation with cov + r in place of r, as held sites need it."""
        cov = cov + self._residual_cov(params)
        found = self.terms.expected_roughly(y, mean, cov, params)
        if found is not None:
            return found
        return expectations(self.terms, y, mean, cov, params, rough=True)
