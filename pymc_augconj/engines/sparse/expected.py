"""A density of which each predictor has a residual variance: E log p(y | η + e), e ~ N(0, r).

Through inducing points a predictor is ηᵢ = mᵢ + aᵢᵀv + eᵢ, see :mod:`.design`. The optimal
free-form posterior of v and θ is that of a model in which log p is replaced by its expectation over
eᵢ (Hensman et al. 2015),

    q(v, θ) ∝ p(θ) N(v; 0, I) exp Σ E_{N(η; mᵢ + aᵢᵀv, rᵢ)} log p(yᵢ | η),

so that for any sampler that needs log p alone this is one more density, with rᵢ(θ) among its
parameters. Where a likelihood has no closed form the expectation is *defined* as a Gauss–Hermite
sum of 32 nodes, the same function of (η, r) at every step.

References
----------
Hensman, Matthews, Filippone & Ghahramani (2015), MCMC for variationally sparse Gaussian processes.
NIPS.
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.engines.variational.vgp import expectations
from pymc_augconj.errors import AugmentationError
from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.several import MultiDensity
from pymc_augconj.quadrature.hermite import N_NODES, hermite
from pymc_augconj.typing import Array

__all__ = ["EXTRA_VAR", "SMALLEST_VAR", "ExpectedDensity"]

#: The entry of ``params`` that holds r, shape (N,); no name of PyMC's.
EXTRA_VAR = "residual variance"

#: Least r, so that its square root has a derivative; it changes no density by 1e-11.
SMALLEST_VAR = 1e-12

# Values of a density at once: 4 MB.
_CHUNK = 500_000


class ExpectedDensity(MultiDensity):
    """The expectation of a density of one predictor over its residual.

    Parameters
    ----------
    terms : MultiDensity
        What is expected, as engines see it.

    Raises
    ------
    AugmentationError
        If it has several predictors.
    """

    def __init__(self, terms: MultiDensity, label: str = "an observed variable") -> None:
        if terms.n_predictors != 1:
            raise AugmentationError(
                f"{label} ({terms.name}): expected a likelihood of one predictor for sampling "
                f"through inducing points, found {terms.n_predictors}; sample without inducing=…, "
                "or fit with pac.fit(method='svi')"
            )
        self.terms = terms
        self.name, self.link, self.discrete = terms.name, terms.link, terms.discrete
        self.is_normalized, self.has_observations = terms.is_normalized, terms.has_observations

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        """Return E log p(y | η + e), for η of shape (1, …, N)."""
        shape = np.broadcast_shapes(eta.shape[1:], y.shape)
        if len(shape) == 1:
            return self._expected(y, np.broadcast_to(eta[0], shape), params)
        # Closed forms are for vectors.
        y = np.broadcast_to(y, shape).ravel()
        params = {
            name: np.broadcast_to(value, shape).ravel() if np.ndim(value) else value
            for name, value in params.items()
        }
        return self._expected(y, np.broadcast_to(eta[0], shape).ravel(), params).reshape(shape)

    def _expected(self, y: Array, mean: Array, params: Params) -> Array:
        """Return the expectation at predictors of shape (N,)."""
        var = params[EXTRA_VAR]
        closed = self.terms.expected_log_density(y, mean[None], var[None, None], params)
        if closed is not None:
            return closed[0]
        return self._summed(y, mean, params, *hermite())

    def _summed(self, y: Array, mean: Array, params: Params, nodes: Array, weights: Array) -> Array:
        """Return the expectation by quadrature."""
        std, total = np.sqrt(params[EXTRA_VAR]), np.zeros(mean.shape)
        step = max(_CHUNK // mean.size, 1)
        for part in (slice(i, i + step) for i in range(0, nodes.size, step)):
            eta = mean + nodes[part, None] * std
            total += weights[part] @ self.terms.log_density(y, eta[None], params)
        return total

    def error(self, y: Array, eta: Array, params: Params) -> float:
        """Return by how much twice the nodes move Σ E log p(y | η + e); 0 for a closed form."""
        var = params[EXTRA_VAR][None, None]
        if self.terms.expected_log_density(y, eta, var, params) is not None:
            return 0.0
        few, many = (
            self._summed(y, eta[0], params, *hermite(count)).sum()
            for count in (N_NODES, 2 * N_NODES)
        )
        return float(abs(many - few))

    def expected_log_density(
        self, y: Array, mean: Array, cov: Array, params: Params
    ) -> tuple[Array, Array, Array]:
        """Return the expectation with cov + r in place of r, to the accuracy of the VGP."""
        return expectations(self.terms, y, mean, cov + params[EXTRA_VAR], params)
