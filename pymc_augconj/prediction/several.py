"""Predictive distributions of y with several predictors: mixtures over draws of these.

Or, of classes, over independent normal ones, where their probabilities have an integral.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.special import logsumexp

from pymc_augconj.likelihoods.base import DensityLikelihood, Params
from pymc_augconj.likelihoods.several import MultiDensity
from pymc_augconj.typing import Array, Index

from .moments import response_moments

__all__ = ["IndependentMixture", "SeveralMixture"]


class _GivenOthers(DensityLikelihood):
    """A likelihood of several predictors as one of the first, the others among its parameters."""

    def __init__(self, several: MultiDensity) -> None:
        self._several = several
        self.name, self.link = several.name, several.link
        self.discrete, self.is_normalized = several.discrete, several.is_normalized

    def check(self, y: Array, params: Params) -> str | None:
        return self._several.check(y, self._split(params)[1])

    def _split(self, params: Params) -> tuple[list[Array], dict[str, Array]]:
        names = [_other(p) for p in range(1, self._several.n_predictors)]
        others = [params[name] for name in names if name in params]
        return others, {name: v for name, v in params.items() if name not in names}

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        others, rest = self._split(params)
        return self._several.log_density(y, np.stack(np.broadcast_arrays(eta, *others)), rest)


def _other(p: int) -> str:
    return f"predictor {p + 1}"


class SeveralMixture:
    """Over draws: a :class:`~.mixtures.Mixture` of several predictors.

    Parameters
    ----------
    several : MultiDensity
    eta : ndarray, shape (P, S, N)
        S draws at N new inputs.
    params : mapping
        Each a scalar or of shape (S, 1).
    """

    def __init__(self, several: MultiDensity, eta: Array, params: Mapping[str, Array]) -> None:
        self.likelihood: DensityLikelihood = _GivenOthers(several)
        self._several, self.eta, self.params = several, eta, params

    def at(self, which: Index, params: Params) -> SeveralMixture:
        return SeveralMixture(self._several, self.eta[..., which], {**self.params, **params})

    def moments(self) -> tuple[Array, Array]:
        found = self._several.moments(self.eta, self.params)
        if found is None:
            first, *rest = self.eta
            others = {_other(p): eta for p, eta in enumerate(rest, 1)}
            found = response_moments(self.likelihood, first, {**self.params, **others})
        means, variances = found
        mean = means.mean(axis=0)
        return mean, np.mean(variances + (means - mean) ** 2, axis=0)

    def cdf(self, y: Array) -> Array:
        return np.asarray(self._several.cdf(y, self.eta, self.params)).mean(axis=0)

    def log_density(self, y: Array) -> Array:
        wide = np.broadcast_to(y, self.eta.shape[1:])
        terms = self._several.log_density(wide, self.eta, self.params)
        return np.asarray(logsumexp(terms, axis=0) - np.log(self.eta.shape[1]))

    def class_probabilities(self) -> Array | None:
        """Return the probability of each class, shape (K, N); None where y is no class."""
        found = self._several.class_probabilities(self.eta, self.params)
        return None if found is None else found.mean(axis=1)


class IndependentMixture:
    """Over independent normal predictors: the distribution of a class.

    Parameters
    ----------
    several : MultiDensity
        With :meth:`.MultiDensity.class_probabilities_apart`.
    mean, var : ndarray, shape (P, N)
    params : mapping
        Each a scalar or of shape (N,).
    """

    def __init__(
        self, several: MultiDensity, mean: Array, var: Array, params: Mapping[str, Array]
    ) -> None:
        self.likelihood: DensityLikelihood = _GivenOthers(several)
        self._several, self.mean, self.var, self.params = several, mean, var, params

    def class_probabilities(self) -> Array:
        """Return the probability of each class, shape (K, N)."""
        return self._several.class_probabilities_apart(self.mean, self.var, self.params)

    def log_density(self, y: Array) -> Array:
        probabilities = self.class_probabilities()
        classes = np.arange(len(probabilities))[:, None]
        # Not a number for what is no class.
        found = np.where(y == classes, probabilities, np.nan)
        return np.log(np.fmax.reduce(found, axis=0))
