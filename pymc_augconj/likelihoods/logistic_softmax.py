"""Classes with the logistic-softmax link, all at once by one joint draw of (a, n, ω).

    p(y | η) = σ(η_y) / Σ_j σ(η_j).

With 1/Σ_j σ(η_j) = ∫ exp(−a Σ_j σ(η_j)) da, and exp(−a σ(η)) = exp(−a) exp(a σ(−η)) thinned,

    a ~ Exponential(rate Σ_j σ(η_j)),  n_j ~ Poisson(a σ(−η_j)),  ω_j ~ PG(1[y = j] + n_j, η_j),
    λ_j = ω_j,  h_j = (1[y = j] − n_j)/2.

(a, n, ω) is drawn from its joint distribution given η, so that no draw depends on the last one.

Averaged over q(η), through the means and variances of each predictor only, the optimal
q(a, n, ω) is of that form with σ̃_j of :mod:`.powers_of_sigmoid` for σ(−η_j), and

    bound = m_y/2 − log(2 cosh(c_y/2)) − log Σ_j (1 − σ̃_j),    E a = 1/Σ_j (1 − σ̃_j).

References
----------
Galy-Fajou, T., Wenzel, F., Donner, C. & Opper, M. (2019). Multi-class Gaussian process
classification made conjugate: efficient inference via data augmentation. UAI.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, gammaln, log_expit, xlogy

from pymc_augconj.auxiliary.poisson import random_poisson
from pymc_augconj.auxiliary.polya_gamma.distribution import (
    log_polya_gamma,
    mean_polya_gamma,
    random_polya_gamma,
)
from pymc_augconj.quadrature.expectation import (
    gaussian_cubature,
    gaussian_expectation,
    quasi_monte_carlo,
)
from pymc_augconj.typing import Array, Generator, Index

from .base import Expected, Params, Pattern, Sites, refuse_classes
from .contract import MultiLikelihood, Traits
from .pattern import PredictorInput
from .powers_of_sigmoid import log_shrunk
from .registry import register

_LOG_2 = np.log(2.0)
# Predictors for which a product rule is cheaper than fixed points.
_MOST_BY_PRODUCT_RULE = 2


@register
class LogisticSoftmax(MultiLikelihood):
    """One class y ∈ {0, …, K − 1}; the auxiliary variable is (a, n, ω), n and ω of (K, N)."""

    name = "Categorical"
    link = "logistic-softmax"
    augmentation = "exponential a, thinned counts n and Pólya–Gamma, of all classes jointly"
    discrete = True
    traits = Traits(expected_by_rule=True)
    patterns = (
        Pattern(
            "LogisticSoftmaxRV", inputs=("f",), predictors=(PredictorInput("f", classes=True),)
        ),
    )

    def __init__(self, n_predictors: int) -> None:
        self.n_predictors = self.n_classes = n_predictors

    def check(self, y: Array, params: Params) -> str | None:
        return refuse_classes(y, self.n_predictors)

    def _indicators(self, y: Array, ndim: int = 2) -> Array:
        """Return 1[y = j], shape (K, …), with ``ndim`` axes."""
        found = np.equal.outer(np.arange(float(self.n_predictors)), y).astype(float)
        return np.expand_dims(found, tuple(range(1, 1 + ndim - found.ndim)))

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        log_terms = log_expit(eta)
        own = np.sum(self._indicators(y, eta.ndim) * log_terms, axis=0)
        return np.asarray(own - np.logaddexp.reduce(log_terms, axis=0))

    def log_density_and_gradient(self, y: Array, eta: Array, params: Params) -> tuple[Array, Array]:
        log_terms, own = log_expit(eta), self._indicators(y, eta.ndim)
        log_sum = np.logaddexp.reduce(log_terms, axis=0)
        slope = (own - np.exp(log_terms - log_sum)) * expit(-eta)
        return np.sum(own * log_terms, axis=0) - log_sum, slope

    def expected_log_density(self, y: Array, mean: Array, cov: Array, params: Params) -> Expected:
        own, which = y.astype(int), np.arange(y.size)
        found = gaussian_expectation(
            lambda eta, i: log_expit(eta), mean[own, which], cov[own, own, which]
        )
        value, d_mean, d_cov = (-part for part in _expected_log_sum(mean, cov))
        d_mean[own, which] += found[1]
        d_cov[own, own, which] += found[2]
        return value + found[0], d_mean, d_cov

    def draw_auxiliary(
        self, rng: Generator, y: Array, eta: Array, params: Params, group: int
    ) -> tuple[Array, Array, Array]:
        a = rng.standard_exponential(y.shape) * np.exp(-np.logaddexp.reduce(log_expit(eta), axis=0))
        n = random_poisson(rng, a * expit(-eta))
        return a, n, random_polya_gamma(rng, self._indicators(y) + n, eta)

    def sites(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Sites:
        _, n, polya_gamma = omega
        return 0.5 * (self._indicators(y) - n), polya_gamma

    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        c, log_thinned = log_shrunk(mean, var)
        n = np.exp(log_thinned) / -np.expm1(log_thinned).sum(axis=0)
        own = self._indicators(y)
        return 0.5 * (own - n), mean_polya_gamma(own + n, c)

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        c, log_thinned = log_shrunk(mean, var)
        own = np.sum(self._indicators(y) * (0.5 * mean - np.logaddexp(0.5 * c, -0.5 * c)), axis=0)
        return np.asarray(own - np.log(-np.expm1(log_thinned).sum(axis=0)))

    def log_base(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Array:
        a, n, polya_gamma = omega
        total = self._indicators(y) + n
        log_counts = xlogy(n, a) - gammaln(n + 1.0) - total * _LOG_2 - a
        return np.sum(log_counts + log_polya_gamma(polya_gamma, total, np.zeros(1)), axis=0)

    def log_conditional(
        self, omega: Any, y: Array, eta: Array, params: Params, group: int
    ) -> Array:
        a, n, polya_gamma = omega
        log_rate = np.logaddexp.reduce(log_expit(eta), axis=0)
        log_thinned = log_expit(-eta)
        log_counts = xlogy(n, a) + n * log_thinned - a * np.exp(log_thinned) - gammaln(n + 1.0)
        log_omega = log_polya_gamma(polya_gamma, self._indicators(y) + n, eta)
        return log_rate - a * np.exp(log_rate) + np.sum(log_counts + log_omega, axis=0)


def _expected_log_sum(mean: Array, cov: Array) -> tuple[Array, Array, Array]:
    """Return E log Σ_j σ(η_j), η ~ N(mean, cov) in R^K, and its derivatives."""
    if len(mean) <= _MOST_BY_PRODUCT_RULE:
        return gaussian_cubature(
            lambda eta, which: np.logaddexp.reduce(log_expit(eta), axis=0), mean, cov
        )

    def both(eta: Array, which: Index) -> tuple[Array, Array]:
        log_terms = log_expit(eta)
        top = log_terms.max(axis=0)
        shares = np.exp(log_terms - top)
        total = shares.sum(axis=0)
        return top + np.log(total), shares / total * expit(-eta)

    return quasi_monte_carlo(both, mean, cov)
