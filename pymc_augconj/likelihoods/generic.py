"""Densities that are functions of NumPy arrays: any likelihood of PyMC's, and potentials.

Recognition rebuilds PyMC's density of an observed variable as a plain function of y, η and its
hyperparameters; the classes here hold that function. If y is censored, an observation at
``params["lower"]`` means y ≤ lower, an observation at ``params["upper"]`` means y ≥ upper. A
potential is a sum of terms whose entries are functions of one predictor each; it has no
observations, and y is the number of an entry's term.

The prior of a latent between bounds, uniform or normal and truncated, has no observations either:

    log p(η) = c − ½ τ (η − μ)²        for lower ≤ η ≤ upper,        else −∞,

with τ = 0 for the uniform distribution.

References
----------
Tobin, J. (1958). Estimation of relationships for limited dependent variables. Econometrica 26.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
from numpy.polynomial.legendre import leggauss

from pymc_augconj.errors import AugmentationError
from pymc_augconj.quadrature.tilted import Tilted
from pymc_augconj.typing import Array, Mask

from .base import Density, DensityLikelihood, Params, are_vectors, refusal
from .contract import MultiDensity

# Predictors, at one of which every possible observation has a density.
_ETA, _AWAY = np.array([0.0, -0.5, 0.5, -2.0, 2.0, -6.0, 6.0]), 0.01

LogDensity = Callable[[Array, Array, Params], Array]
#: The density of a term, which does not use y, and from its own names of parameters to the others'.
PotentialTerm = tuple[LogDensity, Mapping[str, str]]


def _possible(density: Density, y: Array, params: Params) -> Mask:
    """Return which y have a density at some predictors: equal, alternating or increasing ones."""
    possible, numbers = np.zeros(y.shape, dtype=bool), np.arange(density.n_predictors)
    ways = [numbers**0.0, (-1.0) ** numbers, np.linspace(-1.0, 1.0, numbers.size)]
    for first, way in product(_ETA, ways[: numbers.size]):
        # Where an exponent is exactly zero, shares of zero have a density that no other has.
        at = first * way + _AWAY
        eta = np.broadcast_to(at[:, None], (at.size, y.size))
        possible |= density.log_density(y, eta, params) > -np.inf
    # Parameters out of range make all y impossible; PyMC refuses them.
    return possible if possible.any() or are_vectors(params) else ~possible


class GenericLikelihood(MultiDensity):
    """One likelihood of PyMC's.

    The link "identity" means that η is a parameter of the distribution itself. ``log_density`` and
    ``log_cdf`` are functions of ``(y, eta, params)``, for ``eta`` of shape (P, …); arguments
    broadcast. ``n_classes`` is the number of classes, if y is a class. A missing bound of a
    censored y is infinite.
    """

    patterns = ()

    def __init__(
        self,
        name: str,
        link: str,
        log_density: LogDensity,
        log_cdf: LogDensity | None = None,
        *,
        discrete: bool = False,
        n_predictors: int = 1,
        n_classes: int | None = None,
        censored: bool = False,
        cutpoints: tuple[str, ...] = (),
    ) -> None:
        self.name, self.link, self.discrete = name, link, discrete
        self.n_predictors, self.n_classes = n_predictors, n_classes
        self.cutpoints = cutpoints
        self._log_density, self._log_cdf, self._censored = log_density, log_cdf, censored

    def bounds(self, params: Params) -> tuple[Array, Array] | None:
        if not self._censored:
            return None
        return params.get("lower", np.array(-np.inf)), params.get("upper", np.array(np.inf))

    def check(self, y: Array, params: Params) -> str | None:
        sentence = refusal(y, np.isfinite(y), "a finite number")
        if sentence is None and self.discrete:
            sentence = refusal(y, y == np.floor(y), "an integer")
        if sentence is not None:
            return sentence
        possible = _possible(self, y, params)
        if are_vectors(params) and not possible.all():
            at = possible.argmin()
            return f"expected entries inside its support, found some outside it at position {at}"
        return refusal(y, possible, f"a value that {self.name} can take")

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        return self._log_density(y, eta, params)

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        if self._log_cdf is None:
            raise AugmentationError(
                f"PyMC has no distribution function of {self.name}, which quantiles of y need; ask "
                "for its mean and standard deviation, or for log densities (ynew=…)"
            )
        return np.exp(self._log_cdf(np.floor(y) if self.discrete else y, eta, params))


class PotentialLikelihood(MultiDensity):
    """A potential, as the sum of its terms."""

    name, link = "potential", "its own"
    patterns = ()
    is_normalized, has_observations = False, False
    unpredictable = (
        "expected an observed variable, found a potential, which has no observations to "
        "predict; use kind='f'"
    )

    def __init__(self, terms: Sequence[PotentialTerm]) -> None:
        self._terms = tuple(terms)

    def check(self, y: Array, params: Params) -> str | None:
        bad = np.flatnonzero(~_possible(self, y, params))
        if bad.size == 0:
            return None
        return f"expected a finite log density of each entry, found none at position {bad[0]}"

    def caution(self, y: Array, prior_mean: Array, params: Params) -> str | None:
        zero, away = (
            self.log_density(y, np.full(prior_mean.shape, eta), params) for eta in (0.0, 0.5)
        )
        # A constraint is symmetric, but has one mode.
        return None if np.all(zero >= away) else super().caution(y, prior_mean, params)

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        named = [{own: params[given] for own, given in names.items()} for _, names in self._terms]
        if len(self._terms) == 1:
            return self._terms[0][0](y, eta, named[0])
        shape = np.broadcast_shapes(np.shape(y), np.shape(eta)[1:])
        y, eta = np.broadcast_to(y, shape), np.broadcast_to(eta, (1, *shape))
        found = np.empty(shape)
        for number, (log_density, _) in enumerate(self._terms):
            at = y == number
            own = {
                name: np.ravel(value) if np.size(value) == 1 else np.broadcast_to(value, shape)[at]
                for name, value in named[number].items()
            }
            found[at] = log_density(y[at], eta[:, at], own)
        return found


# Integrals stop where a normal density is e⁻⁴⁰ of its maximum between the bounds.
_DEPTH = 80.0
_NODES, _WEIGHTS = leggauss(80)
_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


class BoundedNormal(DensityLikelihood):
    """See the module's docstring; parameters ``lower``, ``upper``, ``mu``, ``tau``, ``log_c``."""

    name = "bounded normal"
    patterns = ()
    is_normalized, has_observations, is_positive = False, False, False
    unpredictable = "expected an observed variable, found a prior; use kind='f'"

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        inside = (eta >= params["lower"]) & (eta <= params["upper"])
        log_p = params["log_c"] - 0.5 * params["tau"] * (eta - params["mu"]) ** 2
        return np.where(inside, log_p, -np.inf)

    def landmarks(self, y: Array, params: Params) -> Array:
        bounds = [np.broadcast_to(params[name], y.shape) for name in ("lower", "upper")]
        return np.where(np.isfinite(bounds), bounds, bounds[::-1])

    def tilted_moments(
        self, y: Array, mean: Array, var: Array, params: Params, *, power: float, delta: bool
    ) -> Tilted | None:
        if delta:
            return None
        # The cavity times the normal factor, without the bounds.
        tau, away = power * params["tau"], params["mu"] - mean
        shrink = 1.0 + tau * var
        mean, sd = mean + tau * var * away / shrink, np.sqrt(var / shrink)
        log_factor = -0.5 * (np.log(shrink) + tau * away**2 / shrink)
        low, high = (np.broadcast_to((params[n] - mean) / sd, y.shape) for n in ("lower", "upper"))
        # The standard normal density between the bounds, from its maximum to where it is small.
        top = np.clip(0.0, low, high)
        reach = np.sqrt(top**2 + _DEPTH)
        start = np.maximum(low, top - reach + np.maximum(-top, 0.0))
        stop = np.minimum(high, top + reach - np.maximum(top, 0.0))
        half = 0.5 * (stop - start)
        t = (half * (_NODES[:, None] + 1.0)) + (start - top)
        weights = half * _WEIGHTS[:, None] * np.exp(-0.5 * t * (t + 2.0 * top))
        total = weights.sum(axis=0)
        centre = (weights * t).sum(axis=0) / total
        unit_var = (weights * (t - centre) ** 2).sum(axis=0) / total
        log_total = np.log(total) - 0.5 * top**2 - _HALF_LOG_2PI
        log_Z = power * params["log_c"] + log_factor + log_total
        return Tilted(log_Z, mean + sd * (top + centre), sd**2 * unit_var)
