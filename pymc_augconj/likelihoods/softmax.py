"""Classes with the softmax link, one class after the other by Pólya–Gamma augmentation.

Of n trials c_k fall into class k, with probability p_k = exp(η_k) / Σ_j exp(η_j); a categorical
observation is one trial. Each predictor is a separate group. Given the others, the predictor of
class k has a logit likelihood with an offset,

    C_k = log Σ_{j≠k} exp(η_j),        ψ = η_k − C_k is the logit of p_k,
    ω ~ PG(n, ψ),                      λ = ω,  h = c_k − n/2 + ω C_k.

The η of a reference class is zero, and not a predictor.

The ω of all classes have no joint distribution that gives a bound for coordinate ascent. E log p
comes from a quadrature rule: with d = K − 1 differences of predictors, E log(1 + Σ exp(δ_j)) to
1e-10 for d ≤ 2, and beyond by :mod:`~pymc_augconj.quadrature.expectation`, which states its error.
A sampler omits classes with E e^{η_j − η_k} < 1e-7, k the class of the largest mean; if at most two
others remain it uses :func:`~pymc_augconj.quadrature.expectation.product_rule`.

References
----------
Holmes, C. C. & Held, L. (2006). Bayesian auxiliary variable models for binary and multinomial
regression. Bayesian Analysis 1.
Polson, Scott & Windle (2013), Bayesian inference for logistic models using Pólya–Gamma latent
variables, JASA 108.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any

import numpy as np
from scipy.special import gammaln, softmax

from pymc_augconj.auxiliary.polya_gamma.distribution import log_polya_gamma, random_polya_gamma
from pymc_augconj.quadrature.expectation import (
    MOST_DIMENSIONS,
    WithGradient,
    gaussian_cubature,
    product_rule,
    quasi_monte_carlo,
    quasi_monte_carlo_apart,
)
from pymc_augconj.typing import Array, Generator, Index

from .base import Expected, Params, Pattern, Sites, is_count, refusal, refuse_classes
from .contract import MultiLikelihood, Traits
from .pattern import PredictorInput
from .registry import register

_LOG_2 = np.log(2.0)
# The logarithm of an omitted part of a sum.
_NEGLIGIBLE = np.log(1e-7)


class Softmax(MultiLikelihood):
    """Counts of classes, which a subclass derives from y.

    There are K predictors, or K − 1 beside a reference, the class whose logit is zero.
    """

    link = "softmax"
    discrete = True
    traits = Traits(expected_by_rule=True)
    why_no_bound = (
        "the softmax has no augmentation of all classes at once, and so no bound for "
        "coordinate ascent; use method='vgp', or pac.LogisticSoftmax, which has one"
    )

    def __init__(self, n_predictors: int, reference: int | None = None) -> None:
        self.n_predictors, self.reference = n_predictors, reference
        self.n_classes: int = n_predictors + (reference is not None)
        #: Class of each predictor, then the reference.
        self.classes = [k for k in range(self.n_classes) if k != reference]
        self.classes += [] if reference is None else [reference]

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        return tuple((p,) for p in range(self.n_predictors))

    @abstractmethod
    def _trials(self, y: Array, params: Params) -> tuple[Array, Array, Array]:
        """Return n, the counts in the order of ``classes``, and the log number of arrangements."""

    def _logits(self, eta: Array) -> Array:
        """Return the predictors with the reference's, zero."""
        if self.reference is None:
            return eta
        return np.concatenate([eta, np.zeros_like(eta[:1])])

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        n, counts, log_arrangements = self._trials(y, params)
        logits = self._logits(eta)
        # y may have fewer axes than a predictor.
        missing = range(1, 1 + logits.ndim - counts.ndim)
        linear = np.sum(np.expand_dims(counts, tuple(missing)) * logits, axis=0)
        return log_arrangements + linear - n * np.logaddexp.reduce(logits, axis=0)

    def log_density_and_gradient(self, y: Array, eta: Array, params: Params) -> tuple[Array, Array]:
        n, counts, log_arrangements = self._trials(y, params)
        logits = self._logits(eta)
        log_sum = np.logaddexp.reduce(logits, axis=0)
        value = log_arrangements + np.sum(counts * logits, axis=0) - n * log_sum
        return value, (counts - n * np.exp(logits - log_sum))[: self.n_predictors]

    def expected_log_density(self, y: Array, mean: Array, cov: Array, params: Params) -> Expected:
        return self._expected(y, mean, cov, params, rough=False)

    def expected_roughly(self, y: Array, mean: Array, cov: Array, params: Params) -> Expected:
        # A prior of wide processes would take a hundred thousand nodes.
        return self._expected(y, mean, cov, params, rough=True)

    def _expected(
        self, y: Array, mean: Array, cov: Array, params: Params, *, rough: bool
    ) -> tuple[Array, Array, Array]:
        # Differences from the last logit, in which the log of the sum is one of d = K − 1 numbers.
        P = self.n_predictors
        A, last = np.eye(P), np.zeros(P)
        if self.reference is None:
            A, last = np.hstack([np.eye(P - 1), -np.ones((P - 1, 1))]), np.eye(P)[-1]
        expected = quasi_monte_carlo if rough else _expected_log_sum
        log_sum, d_mean, d_cov = expected(
            partial(_log_sum, with_zero=True), A @ mean, np.einsum("ap,pqn,bq->abn", A, cov, A)
        )
        n, counts, log_arrangements = self._trials(y, params)
        value = log_arrangements + np.sum(counts[:P] * mean, axis=0) - n * (last @ mean + log_sum)
        by_mean = counts[:P] - n * (last[:, None] + A.T @ d_mean)
        return value, by_mean, -n * np.einsum("ap,abn,bq->pqn", A, d_cov, A)

    def expected_with_gradient(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array] | None:
        P = self.n_predictors
        n, counts, log_arrangements = self._trials(y, params)
        log_sum, d_mean = _log_sum_of_few(self._logits(mean), self._logits(var))
        value = log_arrangements + np.sum(counts[:P] * mean, axis=0) - n * log_sum
        return value, counts[:P] - n * d_mean[:P]

    def expected_log_density_apart(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> Expected | None:
        if self.n_classes <= MOST_DIMENSIONS:
            return super().expected_log_density_apart(y, mean, var, params)
        log_sum, d_mean, d_var = quasi_monte_carlo_apart(
            partial(_log_sum, with_zero=self.reference is not None), mean, var
        )
        n, counts, log_arrangements = self._trials(y, params)
        own = counts[: self.n_predictors]
        value = log_arrangements + np.sum(own * mean, axis=0) - n * log_sum
        return value, own - n * d_mean, -n * d_var

    def class_probabilities(self, eta: Array, params: Params) -> Array:
        return np.asarray(softmax(self._logits(eta), axis=0))[np.argsort(self.classes)]

    def _offset(self, eta: Array, group: int) -> Array:
        """Return C_k, free of η_k."""
        others = np.delete(self._logits(eta), group, axis=0)
        return np.asarray(np.logaddexp.reduce(others, axis=0))

    def draw_auxiliary(
        self, rng: Generator, y: Array, eta: Array, params: Params, group: int
    ) -> Array:
        n, _, _ = self._trials(y, params)
        return random_polya_gamma(rng, n, eta[group] - self._offset(eta, group))

    def sites(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Sites:
        n, counts, _ = self._trials(y, params)
        h = counts[group] - 0.5 * n + omega * self._offset(eta, group)
        return h[None], omega[None]

    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        raise NotImplementedError(self.why_no_bound)

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        raise NotImplementedError(self.why_no_bound)

    def log_base(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Array:
        n, counts, log_arrangements = self._trials(y, params)
        C = self._offset(eta, group)
        others = np.delete(counts * (self._logits(eta) - C), group, axis=0).sum(axis=0)
        centred = -(counts[group] - 0.5 * n) * C - 0.5 * omega * C**2
        log_omega = log_polya_gamma(omega, n, np.zeros(1))
        return log_arrangements + others + centred - n * _LOG_2 + log_omega

    def log_conditional(
        self, omega: Any, y: Array, eta: Array, params: Params, group: int
    ) -> Array:
        n, _, _ = self._trials(y, params)
        return log_polya_gamma(omega, n, eta[group] - self._offset(eta, group))


@register
class Categorical(Softmax):
    """One class y ∈ {0, …, K − 1}."""

    name = "Categorical"
    augmentation = "Pólya–Gamma PG(1, logit of a class), class by class"
    patterns = (
        Pattern(
            "CategoricalRV",
            inputs=("p",),
            predictors=(PredictorInput("p", "softmax", classes=True),),
        ),
    )

    def check(self, y: Array, params: Params) -> str | None:
        return refuse_classes(y, self.n_classes)

    def _trials(self, y: Array, params: Params) -> tuple[Array, Array, Array]:
        counts = np.equal.outer(np.array(self.classes, dtype=float), y).astype(float)
        # A number, not an array of ones, for which PG(1, ·) has draws of its own.
        return np.ones(()), counts, np.zeros(())


@register
class Multinomial(Softmax):
    """Counts of K classes; y is their sum n, and ``params["entry_k"]`` that of class k."""

    name = "Multinomial"
    augmentation = "Pólya–Gamma PG(n, logit of a class), class by class"
    patterns = (
        Pattern(
            "MultinomialRV",
            inputs=("n", "p"),
            predictors=(PredictorInput("p", "softmax", classes=True),),
        ),
    )

    def check(self, y: Array, params: Params) -> str | None:
        total = np.zeros_like(y)
        for k in range(self.n_classes):
            count = np.broadcast_to(params[f"entry_{k}"], y.shape)
            if sentence := refusal(count, is_count(count), "non-negative integer counts"):
                return sentence
            total = total + count
        n = np.broadcast_to(params["n"], y.shape)
        return refusal(y, (y == total) & (y == n), "counts that sum to n")

    def _trials(self, y: Array, params: Params) -> tuple[Array, Array, Array]:
        shape = np.broadcast_shapes(np.shape(y), np.shape(params["entry_0"]))
        counts = np.stack([np.broadcast_to(params[f"entry_{k}"], shape) for k in self.classes])
        return y, counts, gammaln(y + 1.0) - np.sum(gammaln(counts + 1.0), axis=0)


def _expected_log_sum(log_sum: WithGradient, mean: Array, cov: Array) -> tuple[Array, Array, Array]:
    """Return E log(1 + Σ exp(δ_j)), δ ~ N(mean, cov) in R^d, and its derivatives."""
    if len(mean) > MOST_DIMENSIONS:
        return quasi_monte_carlo(log_sum, mean, cov)
    # It may overwrite what it is given.
    return gaussian_cubature(lambda delta, which: log_sum(delta.copy(), which)[0], mean, cov)


def _log_sum_of_few(mean: Array, var: Array) -> tuple[Array, Array]:
    """Return E log Σ exp(η_j) for independent normal η_j, (K, N), and its derivatives by means."""
    K, size = mean.shape
    everyone, top = np.arange(size), mean.argmax(axis=0)
    m_top, v_top = mean[top, everyone], var[top, everyone]
    # The logarithm of the mean of each part.
    part = mean - m_top + 0.5 * (var + v_top)
    part[top, everyone] = -np.inf
    others, count = np.argsort(-part, axis=0), np.count_nonzero(part > _NEGLIGIBLE, axis=0)
    value, d_mean = m_top.copy(), np.zeros((K, size))
    d_mean[top, everyone] = 1.0
    for d in range(1, min(K - 1, MOST_DIMENSIONS) + 1):
        some = np.flatnonzero(count == d)
        near = others[:d, some]
        cov = np.eye(d)[:, :, None] * var[near, some] + v_top[some]
        found, slopes = product_rule(
            partial(_log_sum, with_zero=True), mean[near, some] - m_top[some], cov
        )
        value[some] += found
        d_mean[near, some] = slopes
        d_mean[top[some], some] -= slopes.sum(axis=0)
    if (many := np.flatnonzero(count > MOST_DIMENSIONS)).size:
        found, slopes, _ = quasi_monte_carlo_apart(
            partial(_log_sum, with_zero=False), mean[:, many], var[:, many]
        )
        value[many], d_mean[:, many] = found, slopes
    return value, d_mean


def _log_sum(eta: Array, which: Index, *, with_zero: bool) -> tuple[Array, Array]:
    """Return log Σ exp(η_j), or log(1 + Σ exp(η_j)), and its gradient, which overwrites η."""
    # In place: this is all that a fit of many classes costs.
    top = eta.max(axis=0)
    if with_zero:
        np.maximum(top, 0.0, out=top)
    eta -= top
    powers = np.exp(eta, out=eta)
    total = powers.sum(axis=0)
    if with_zero:
        total += np.exp(-top)
    powers /= total
    return top + np.log(total), powers
