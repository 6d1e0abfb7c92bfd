"""Predictive distributions of y at new inputs: mixtures over a predictor's posterior.

:class:`GaussianMixture` is over η ~ N(mean, var), by quadrature to 1e-10 or in closed form,
:class:`DrawnMixture` over posterior draws of η and of the likelihood's parameters. Each has moments
of y, its distribution function, and the log density at given y. :class:`IndependentMixture` has
probabilities of classes, over independent normal predictors. Parameters may differ between inputs.

If the density of y cannot be integrated (a censored y has atoms, a truncated y edges), its moments
come from its distribution function. With a = Q(p), b = Q(1 − p) for small p, c between them,

    E[y − c] = b − c − ∫ₐᵇ F dy,     E[(y − c)²] = (b − c)² − 2 ∫ₐᵇ (y − c) F dy,

where the probability beyond a and b is moved to a and b; NaN if two quadrature rules disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
from scipy.special import logsumexp, ndtri

from pymc_augconj.errors import AugmentationError
from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.contract import MultiDensity, params_at_nodes, select_params
from pymc_augconj.quadrature.expectation import NODES, WEIGHTS, Integrand, gaussian_expectation
from pymc_augconj.typing import Array, Index

from .moments import response_moments

# p, far above the accuracy of distribution functions, and the largest relative change of the
# variance by moving this probability, which heavy tails exceed.
_TAIL, _TAIL_SHARE = 1e-8, 1e-5
# Intervals of 16 nodes, and the tolerated difference from half as many, in standard deviations.
_PANELS, _ACCURACY = 8, 1e-4


def moments_of_y(mixture: Mixture) -> tuple[Array, Array]:
    """Return mean and variance of y at each input; NaN if they do not exist.

    If the density of a continuous y does not give them, its distribution function does.
    """
    mean, var = mixture.moments()
    unknown = np.flatnonzero(np.isnan(var))
    likelihood = mixture.likelihood
    if unknown.size and not (likelihood.discrete or likelihood.has_moments):
        mean, var = np.array(mean), np.array(var)
        # The distribution function may be missing, too.
        with suppress(AugmentationError):
            mean[unknown], var[unknown] = _by_distribution(mixture.at(unknown), unknown.size)
    return mean, var


def _by_distribution(mixture: Mixture, size: int) -> tuple[Array, Array]:
    a, b = quantiles(mixture, np.array([_TAIL, 1.0 - _TAIL]), size)
    coarse = _integrals(mixture, a, b, _PANELS // 2)
    mean, var = _integrals(mixture, a, b, _PANELS)
    std, half = np.sqrt(np.maximum(var, 0.0)), 0.5 * (b - a)
    stands = np.abs(mean - coarse[0]) <= _ACCURACY * std
    stands &= np.abs(var - coarse[1]) <= _ACCURACY * var
    stands &= half**2 * _TAIL <= _TAIL_SHARE * var
    return np.where(stands, mean, np.nan), np.where(stands, var, np.nan)


def _integrals(mixture: Mixture, a: Array, b: Array, panels: int) -> tuple[Array, Array]:
    centre, half = 0.5 * (a + b), 0.5 * (b - a)
    starts = -1.0 + 2.0 * np.arange(panels) / panels
    first = second = np.zeros(a.size)
    for t, weight in zip(
        (starts[:, None] + (1.0 + NODES) / panels).ravel(), np.tile(WEIGHTS / panels, panels),
        strict=True,
    ):  # fmt: skip
        F = mixture.cdf(centre + half * t)
        first, second = first + weight * F, second + weight * t * F
    shift = half * (1.0 - first)
    return centre + shift, half**2 * (1.0 - 2.0 * second) - shift**2


_BISECTIONS = 60
_LARGEST_DOUBLINGS = 60

_NODES = np.linspace(-8.0, 8.0, 65)
# Largest probability of η for which the moments of y may be missing.
_NEGLIGIBLE = 1e-9


class GaussianMixture:
    """Over η ~ N(mean, var), (N,); parameters are scalars or (N,)."""

    def __init__(self, likelihood: MultiDensity, mean: Array, var: Array, params: Params) -> None:
        self.likelihood, self.params = likelihood, params
        self.mean, self.var = mean, var

    def at(self, which: Index) -> GaussianMixture:
        params = select_params(self.params, which, self.mean.size)
        return GaussianMixture(self.likelihood, self.mean[which], self.var[which], params)

    def _at_nodes(self, which: Index) -> Params:
        return params_at_nodes(self.params, which, self.mean.size)

    def _expect(self, func: Integrand) -> Array:
        return gaussian_expectation(func, self.mean, self.var)[0]

    def moments(self) -> tuple[Array, Array]:
        closed = self.likelihood.predictive_moments(self.mean, self.var, self.params)
        if closed is not None:
            return closed
        if not self.likelihood.has_moments:
            return self._integrated_moments()
        mean = self._expect(lambda eta, which: self._moments_at(eta, which)[0])

        def spread(eta: Array, which: Index) -> Array:
            # Relative to the mean, so that the variance of the means does not cancel.
            centre, var = self._moments_at(eta, which)
            return var + (centre - mean[which, None]) ** 2

        return mean, self._expect(spread)

    def _moments_at(self, eta: Array, which: Index) -> tuple[Array, Array]:
        return response_moments(self.likelihood, eta[None], self._at_nodes(which))

    def _integrated_moments(self) -> tuple[Array, Array]:
        # Smooth functions of η, each costly: one fixed trapezoidal rule, of error below 1e-12.
        weights = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()
        eta = self.mean[:, None] + np.sqrt(self.var)[:, None] * _NODES
        centre, var = self._moments_at(eta, np.arange(self.mean.size))
        # In the tails a density may underflow.
        known = np.isfinite(var)
        weights = np.where(known, weights, 0.0)
        centre, var = np.where(known, centre, 0.0), np.where(known, var, 0.0)
        mean = (weights * centre).sum(axis=1)
        total = (weights * (var + (centre - mean[:, None]) ** 2)).sum(axis=1)
        missing = 1.0 - weights.sum(axis=1) > _NEGLIGIBLE
        return np.where(missing, np.nan, mean), np.where(missing, np.nan, total)

    def cdf(self, y: Array) -> Array:
        return self._expect(
            lambda eta, which: self.likelihood.cdf(y[which, None], eta[None], self._at_nodes(which))
        )

    def log_density(self, y: Array) -> Array:
        closed = self.likelihood.log_predictive(y, self.mean, self.var, self.params)
        if closed is not None:
            return closed
        # Relative to the largest integrand, where y lies far from what η predicts.
        nodes = np.linspace(-9.0, 9.0, 145)
        eta = self.mean[:, None] + np.sqrt(self.var)[:, None] * nodes

        def log_density(eta: Array, which: Index) -> Array:
            params = self._at_nodes(which)
            return self.likelihood.log_density(y[which, None], eta[None], params)

        log_terms = log_density(eta, np.arange(y.size)) - 0.5 * nodes**2
        # Zero where the density is zero everywhere.
        largest = np.maximum(log_terms.max(axis=1), np.finfo(float).min)

        def relative(eta: Array, which: Index) -> Array:
            return np.exp(np.minimum(log_density(eta, which) - largest[which, None], 700.0))

        with np.errstate(divide="ignore"):
            return largest + np.log(self._expect(relative))


class DrawnMixture:
    """Over S draws of P predictors at N inputs, (P, S, N).

    Parameters are scalars, (S, 1) or (N,).
    """

    def __init__(self, likelihood: MultiDensity, eta: Array, params: Mapping[str, Array]) -> None:
        self.likelihood, self.eta, self.params = likelihood, eta, params

    def at(self, which: Index) -> DrawnMixture:
        params = select_params(self.params, which, self.eta.shape[-1])
        return DrawnMixture(self.likelihood, self.eta[..., which], params)

    def moments(self) -> tuple[Array, Array]:
        means, variances = response_moments(self.likelihood, self.eta, self.params)
        mean = means.mean(axis=0)
        return mean, np.mean(variances + (means - mean) ** 2, axis=0)

    def cdf(self, y: Array) -> Array:
        return self.likelihood.cdf(y, self.eta, self.params).mean(axis=0)

    def log_density(self, y: Array) -> Array:
        wide = np.broadcast_to(y, self.eta.shape[1:])
        terms = self.likelihood.log_density(wide, self.eta, self.params)
        return logsumexp(terms, axis=0) - np.log(len(terms))

    def class_probabilities(self) -> Array | None:
        """Return the probability of each class, shape (K, N); None if y is not a class."""
        found = self.likelihood.class_probabilities(self.eta, self.params)
        return None if found is None else found.mean(axis=1)


class IndependentMixture:
    """Over independent normal predictors, (P, N): the distribution of a class.

    The likelihood has :meth:`.MultiDensity.class_probabilities_apart`.
    """

    def __init__(
        self, likelihood: MultiDensity, mean: Array, var: Array, params: Mapping[str, Array]
    ) -> None:
        self.likelihood, self.params = likelihood, params
        self.mean, self.var = mean, var

    def class_probabilities(self) -> Array:
        """Return the probability of each class, shape (K, N)."""
        return self.likelihood.class_probabilities_apart(self.mean, self.var, self.params)

    def log_density(self, y: Array) -> Array:
        probabilities = self.class_probabilities()
        classes = np.arange(len(probabilities))[:, None]
        # NaN for other values than classes.
        found = np.where(y == classes, probabilities, np.nan)
        return np.log(np.fmax.reduce(found, axis=0))


#: Predictive distributions of y at new inputs.
type Mixture = GaussianMixture | DrawnMixture
type Predictive = Mixture | IndependentMixture


def quantiles(mixture: Mixture, levels: Array, size: int) -> Array:
    """Return the quantiles of y, shape (len(levels), P), by bisection of the distribution function.

    For a discrete y they are the smallest values whose distribution function reaches the level.
    """
    discrete = mixture.likelihood.discrete
    return np.stack([_quantile(mixture, float(p), size, discrete) for p in levels])


def _quantile(mixture: Mixture, level: float, size: int, discrete: bool) -> Array:
    lower, upper = _bracket(mixture, level, size, discrete)
    for _ in range(_BISECTIONS):
        middle = np.floor(0.5 * (lower + upper)) if discrete else 0.5 * (lower + upper)
        if discrete and np.all(upper - lower <= 1.0):
            break
        reached = mixture.cdf(middle) >= level
        lower, upper = np.where(reached, lower, middle), np.where(reached, middle, upper)
    return upper


def _bracket(mixture: Mixture, level: float, size: int, discrete: bool) -> tuple[Array, Array]:
    """Return values whose distribution functions are below ``level``, and not below it."""
    if discrete:
        lower, upper, step = -np.ones(size), np.zeros(size), np.ones(size)
    else:
        mean, var = mixture.moments()
        scale = np.sqrt(np.where(np.isfinite(var), var, 1.0))
        guess = np.where(np.isfinite(mean), mean, 0.0) + scale * ndtri(level)
        lower, upper, step = guess - scale, guess + scale, scale
    for _ in range(_LARGEST_DOUBLINGS):
        low = mixture.cdf(upper) < level
        high = np.zeros(size, dtype=bool) if discrete else mixture.cdf(lower) >= level
        if not (low | high).any():
            break
        upper, lower = np.where(low, upper + step, upper), np.where(high, lower - step, lower)
        step = 2.0 * step
    return lower, upper
