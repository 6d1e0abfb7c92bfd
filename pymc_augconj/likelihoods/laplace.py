"""Laplace noise, symmetric or not, as normal noise of random variance.

    p(y | η) = exp(c − a |e| − d e),    e = y − η,
    ω ~ InverseGaussian(mean a/|e|, shape a²),    λ = ω,  h = ω y + d.

==================  ===============================================================
Laplace             a = 1/b, d = 0: y | ω ~ N(η, 1/ω), 1/ω ~ Exponential(1/2b²)
asymmetric Laplace  a = b (κ + 1/κ)/2, d = b (κ − 1/κ)/2, in PyMC's parametrisation:
                    slopes a + d = bκ above η and a − d = b/κ below (quantile regression)
SVM                 exp(−2 max(1 − yη, 0)) = exp(−|1 − yη|) exp(−(1 − yη)), y = ±1, where
                    1 − yη = y e: a = 1, d = y; does not sum to one over y
==================  ===============================================================

References
----------
Park & Casella (2008), The Bayesian lasso. Journal of the American Statistical Association 103.
Kozumi & Kobayashi (2011), Gibbs sampling methods for Bayesian quantile regression. Journal of
Statistical Computation and Simulation 81.
Polson & Scott (2011), Data augmentation for support vector machines. Bayesian Analysis 6.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from scipy.special import erf

from pymc_augconj.auxiliary.generalized_inverse_gaussian import (
    logpdf_inverse_gaussian,
    random_inverse_gaussian,
)
from pymc_augconj.typing import Array

from .base import Expected, Joint, JointWriter, Params, Pattern, Sites, refusal
from .registry import register
from .symmetric_noise import NormalMixture

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


class TiltedLaplace(NormalMixture):
    """Noise of log density c − a |e| − d e, by ω ~ InverseGaussian(mean a/|e|, shape a²).

    At e = 0 the mean of ω is infinite, and ω = a²/χ²₁.
    """

    draw = staticmethod(random_inverse_gaussian)
    mean = staticmethod(lambda mean, shape: mean)
    logpdf = staticmethod(logpdf_inverse_gaussian)

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


@register
class Laplace(TiltedLaplace):
    """Real y with median η and mean absolute deviation b."""

    name = "Laplace"
    augmentation = "inverse Gaussian precision"
    patterns = (Pattern("LaplaceRV", inputs=("mu", "b"), predictor="mu"),)

    def slopes(self, y: Array, params: Params) -> tuple[Any, Any]:
        return 1.0 / params["b"], 0.0

    def log_norm(self, params: Params, math: Any = np) -> Any:
        return -math.log(2.0 * params["b"])

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        return eta, np.broadcast_to(2.0 * params["b"] ** 2, np.shape(eta))

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        e = (y - eta) / params["b"]
        tail = 0.5 * np.exp(-np.abs(e))
        return np.where(e < 0.0, tail, 1.0 - tail)


@register
class AsymmetricLaplace(TiltedLaplace):
    """Real y whose quantile at level κ²/(1 + κ²) is η."""

    name = "Asymmetric Laplace"
    augmentation = "inverse Gaussian precision"
    patterns = (Pattern("AsymmetricLaplaceRV", inputs=("b", "kappa", "mu"), predictor="mu"),)

    def slopes(self, y: Array, params: Params) -> tuple[Any, Any]:
        b, kappa = params["b"], params["kappa"]
        return 0.5 * b * (kappa + 1.0 / kappa), 0.5 * b * (kappa - 1.0 / kappa)

    def log_norm(self, params: Params, math: Any = np) -> Any:
        kappa = params["kappa"]
        return math.log(params["b"]) - math.log(kappa + 1.0 / kappa)

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        # a + d and d − a, which would cancel where κ is far from one.
        b, kappa = params["b"], params["kappa"]
        e = y - eta
        return self.log_norm(params) - b * np.where(e >= 0.0, kappa * e, -e / kappa)

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        b, kappa = params["b"], params["kappa"]
        var = (1.0 + kappa**4) / (b * kappa) ** 2
        return eta + (1.0 / kappa - kappa) / b, np.broadcast_to(var, np.shape(eta))

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        b, kappa = params["b"], params["kappa"]
        e = y - eta
        below = kappa**2 / (1.0 + kappa**2) * np.exp(b / kappa * np.minimum(e, 0.0))
        above = 1.0 - np.exp(-b * kappa * np.maximum(e, 0.0)) / (1.0 + kappa**2)
        return np.where(e < 0.0, below, above)


@register
class BayesianSVM(TiltedLaplace):
    """y = ±1 under the hinge loss."""

    name = "Bayesian SVM (pseudo-likelihood)"
    link = "hinge"
    augmentation = "inverse Gaussian"
    patterns = (Pattern("BayesianSVMRV", inputs=("f",), predictor="f"),)
    is_normalized = False

    unpredictable = (
        "its factors exp(−2 max(1 − y f, 0)) do not sum to one over y = −1 and 1, so that "
        "there are no probabilities of y; predict kind='f' and take its sign, or use pm.Bernoulli"
    )

    def check(self, y: Array, params: Params) -> str | None:
        return refusal(y, np.abs(y) == 1, "-1 or 1")

    def slopes(self, y: Array, params: Params) -> tuple[Any, Any]:
        return np.ones(()), y

    def log_norm(self, params: Params, math: Any = np) -> Any:
        return 0.0

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        return -2.0 * np.maximum(1.0 - y * eta, 0.0)


def _folded_normal(mean: Array, var: Array) -> Expected:
    """Return E|e| for e ~ N(mean, var), and its derivatives by mean and by var; var > 0.

    With z = m/√v, E|e| = 2√v φ(z) + m (2 Φ(z) − 1), ∂/∂m = 2 Φ(z) − 1 and ∂/∂v = φ(z)/√v.
    """
    std = np.sqrt(var)
    density = np.exp(-0.5 * (mean / std) ** 2 - _HALF_LOG_2PI) / std
    slope = erf(mean / (std * np.sqrt(2.0)))
    return 2.0 * var * density + mean * slope, slope, density
