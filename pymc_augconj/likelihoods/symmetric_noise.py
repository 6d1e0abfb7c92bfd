"""Likelihoods of real y = η + e with symmetric noise.

The common part of likelihoods for which p(y | η) is a function of |e|, and

    p(y, ω | η) ∝ exp(−½ λ(ω) e²) p(ω),    λ = λ(ω),  h = λ y.

The distribution of ω | y, η depends on e² alone. The optimal q(ω) and the bound are its values at
E[e²] = (y − m)² + v. In :class:`NormalMixture` y is normal given ω.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import gammaln

from pymc_augconj.typing import Array, Generator

from .base import Joint, JointWriter, Likelihood, Params, Sites

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


class SymmetricNoise(Likelihood):
    """p(y | η) is a function of |e|, and the site given ω a function of y alone."""

    #: Draws, mean and log density of ω: functions of (rng, …), (…) and (ω, …), with parameters from
    #: :meth:`conditional`.
    draw: Callable[..., Array]
    mean: Callable[..., Array]
    logpdf: Callable[..., Array]

    @abstractmethod
    def log_density_at(self, distance: Array, params: Params) -> Array:
        """Return log p(y | η) for |y − η| = ``distance``."""

    @abstractmethod
    def precision(self, omega: Any, params: Params) -> Array:
        """Return λ(ω)."""

    @abstractmethod
    def conditional(self, square: Array, params: Params) -> tuple[Any, ...]:
        """Return the parameters of the distribution of ω | y, η for e² = ``square``."""

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        return self.log_density_at(np.abs(y - eta), params)

    def draw_auxiliary(self, rng: Generator, y: Array, eta: Array, params: Params) -> Array:
        return self.draw(rng, *self.conditional((y - eta) ** 2, params))

    def sites(self, y: Array, omega: Any, params: Params) -> Sites:
        lam = self.precision(omega, params)
        return lam * y, lam

    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        omega = self.mean(*self.conditional((y - mean) ** 2 + var, params))
        return self.sites(y, omega, params)

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        return self.log_density_at(np.sqrt((y - mean) ** 2 + var), params)

    def log_conditional(self, omega: Any, y: Array, eta: Array, params: Params) -> Array:
        return self.logpdf(omega, *self.conditional((y - eta) ** 2, params))


class NormalMixture(SymmetricNoise):
    """Normal noise of random precision."""

    @abstractmethod
    def log_prior(self, omega: Any, params: Params) -> Array:
        """Return log p(ω)."""

    @abstractmethod
    def write_prior(self, write: JointWriter, params: Params) -> Any:
        """Write ω ~ p(ω) into a model."""

    def precision(self, omega: Any, params: Params) -> Array:
        return omega

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        lam = self.precision(omega, params)
        return 0.5 * (np.log(lam) - lam * y**2) - _HALF_LOG_2PI + self.log_prior(omega, params)

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Params) -> Joint:
        def log_factor(y: Any, eta: Any, omega: Any, params: Any) -> Any:
            lam = self.precision(omega, params)
            return 0.5 * (write.math.log(lam) - lam * (y - eta) ** 2) - _HALF_LOG_2PI

        return [self.write_prior(write, params)], log_factor


def random_gamma(rng: Generator, shape: Array | float, rate: Array) -> Array:
    """Draw from a gamma distribution, of the shape of ``rate``."""
    return rng.standard_gamma(shape, size=rate.shape) / rate


def log_gamma_density(x: Array, shape: Array | float, rate: Array) -> Array:
    """Return the log density of a gamma distribution."""
    return shape * np.log(rate) - gammaln(shape) + (shape - 1.0) * np.log(x) - rate * x
