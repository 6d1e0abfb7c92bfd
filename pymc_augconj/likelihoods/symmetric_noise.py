"""Likelihoods of real y = η + e with symmetric noise.

Not a likelihood, but what those share of which p(y | η) is a function of |e|, and

    p(y, ω | η) ∝ exp(−½ λ(ω) e²) p(ω),    λ = λ(ω),  h = λ y.

ω | y, η has a distribution that depends on e² alone, and the optimal q(ω) is that at
E[e²] = (y − m)² + v, as is the bound. In :class:`NormalMixture` y is normal given ω, and in
:class:`GammaMixture` ω has a gamma distribution. In :class:`TiltedLaplace`, a Laplace density times
a linear factor exp(−d e), d is added to h.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.special import erf, gammaln

from pymc_augconj.auxiliary.inverse_gaussian import logpdf_inverse_gaussian, random_inverse_gaussian
from pymc_augconj.typing import Array

from .base import Expected, Likelihood, Params, Sites
from .joint import Joint, JointWriter, normal_factor

__all__ = ["GammaMixture", "NormalMixture", "SymmetricNoise", "TiltedLaplace", "log_gamma_density"]

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


class SymmetricNoise(Likelihood):
    """p(y | η) is a function of |e|, and the site given ω one of y alone."""

    @abstractmethod
    def log_density_at(self, distance: Array, params: Params) -> Array:
        """Return log p(y | η) where |y − η| is ``distance``."""

    @abstractmethod
    def precision(self, omega: Any, params: Params) -> Array:
        """Return λ(ω)."""

    @abstractmethod
    def conditional(self, square: Array, params: Params) -> tuple[Any, ...]:
        """Return the parameters of the distribution of ω | y, η where e² is ``square``."""

    @abstractmethod
    def draw(self, rng: Generator, *parameters: Array) -> Array:
        """Draw ω given the parameters of its distribution."""

    @abstractmethod
    def mean(self, *parameters: Array) -> Array:
        """Return E[ω]."""

    @abstractmethod
    def logpdf(self, omega: Any, *parameters: Array) -> Array:
        """Return the log density of ω."""

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
        return [self.write_prior(write, params)], normal_factor(write.math, self.precision)


class GammaMixture(NormalMixture):
    """ω ~ Gamma(a, r): Student-t noise."""

    @abstractmethod
    def gamma_prior(self, params: Params) -> tuple[Array | float, Array]:
        """Return a and r."""

    def as_normal_mixture(self, y: Array, params: Params) -> tuple[Any, Any]:
        return self.gamma_prior(params)

    def conditional(self, square: Array, params: Params) -> tuple[Any, ...]:
        shape, rate = self.gamma_prior(params)
        return shape + 0.5, rate + 0.5 * square

    def draw(self, rng: Generator, *parameters: Array) -> Array:
        shape, rate = parameters
        return rng.standard_gamma(shape, size=rate.shape) / rate

    def mean(self, *parameters: Array) -> Array:
        shape, rate = parameters
        return shape / rate

    def logpdf(self, omega: Any, *parameters: Array) -> Array:
        return log_gamma_density(omega, *parameters)

    def log_prior(self, omega: Any, params: Params) -> Array:
        return log_gamma_density(omega, *self.gamma_prior(params))

    def write_prior(self, write: JointWriter, params: Params) -> Any:
        return write.gamma("omega", *self.gamma_prior(params))


class TiltedLaplace(NormalMixture):
    """Noise of log density c − a |e| − d e, by ω ~ InverseGaussian(mean a/|e|, shape a²).

    At e = 0 the mean of ω is infinite, and ω = a²/χ²₁.
    """

    @abstractmethod
    def slopes(self, y: Array, params: Params) -> tuple[Any, Any]:
        """Return a, free of y, and d."""

    @abstractmethod
    def log_norm(self, params: Params, math: Any = np) -> Any:
        """Return c, by the functions of ``math``."""

    def as_tilted_laplace(self, y: Array, params: Params) -> tuple[Any, Any, Any]:
        return *self.slopes(y, params), self.log_norm(params)

    def log_density_at(self, distance: Array, params: Params) -> Array:
        a, _ = self.slopes(np.zeros(()), params)
        return self.log_norm(params) - a * distance

    def conditional(self, square: Array, params: Params) -> tuple[Any, ...]:
        a, _ = self.slopes(np.zeros(()), params)
        with np.errstate(divide="ignore", over="ignore"):
            return a / np.sqrt(square), a**2

    def draw(self, rng: Generator, *parameters: Array) -> Array:
        return random_inverse_gaussian(rng, *parameters)

    def mean(self, *parameters: Array) -> Array:
        return parameters[0]

    def logpdf(self, omega: Any, *parameters: Array) -> Array:
        return logpdf_inverse_gaussian(omega, *parameters)

    def sites(self, y: Array, omega: Any, params: Params) -> Sites:
        return omega * y + self.slopes(y, params)[1], omega

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        _, d = self.slopes(y, params)
        return super().expected_log_bound(y, mean, var, params) - d * (y - mean)

    def expected_log_density(self, y: Array, mean: Array, var: Array, params: Params) -> Expected:
        a, d = self.slopes(y, params)
        distance, d_mean, d_var = _folded_normal(y - mean, var)
        value = self.log_norm(params) - a * distance - d * (y - mean)
        return value, a * d_mean + d, -a * d_var

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        return super().log_base(y, omega, params) - self.slopes(y, params)[1] * y

    def log_prior(self, omega: Any, params: Params) -> Array:
        # exp(−a|e|) = ∫ a (2π)^(−½) ω^(−3/2) exp(−½ ω e² − ½ a²/ω) dω
        a, _ = self.slopes(np.zeros(()), params)
        return self.log_norm(params) + np.log(a) - 2.0 * np.log(omega) - 0.5 * a**2 / omega

    def write_prior(self, write: JointWriter, params: Params) -> Any:
        a, _ = self.slopes(np.zeros(()), params)
        return write.inverse_gamma("omega", 1.0, 0.5 * a**2)

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Params) -> Joint:
        omega, normal = super().joint(write, y, eta, params)

        def log_factor(y: Any, eta: Any, omega: Any, params: Any) -> Any:
            a, d = self.slopes(y, params)
            constant = self.log_norm(params, write.math) + write.math.log(2.0 / a)
            return normal(y, eta, omega, params) + constant - d * (y - eta)

        return omega, log_factor


def log_gamma_density(x: Array, shape: Array | float, rate: Array) -> Array:
    """Return the log density of a gamma distribution."""
    return shape * np.log(rate) - gammaln(shape) + (shape - 1.0) * np.log(x) - rate * x


def _folded_normal(mean: Array, var: Array) -> Expected:
    """Return E|e| for e ~ N(mean, var), and its derivatives by mean and by var; var > 0.

    With z = m/√v, E|e| = 2√v φ(z) + m (2 Φ(z) − 1), ∂/∂m = 2 Φ(z) − 1 and ∂/∂v = φ(z)/√v.
    """
    std = np.sqrt(var)
    density = np.exp(-0.5 * (mean / std) ** 2 - _HALF_LOG_2PI) / std
    slope = erf(mean / (std * np.sqrt(2.0)))
    return 2.0 * var * density + mean * slope, slope, density
