"""Asymmetric Laplace observations (quantile regression), as normal ones of random variance.

In PyMC's parametrisation, with e = y − η, a = b (κ + 1/κ)/2 and d = b (κ − 1/κ)/2,

    p(y | η) = b / (κ + 1/κ) · exp(−a |e| − d e),
    ω ~ InverseGaussian(mean a/|e|, shape a²),    λ = ω,  h = ω y + d.

The slopes are a + d = bκ above η and a − d = b/κ below it. At e = 0 the mean of ω is infinite, and
ω = a²/χ²₁.

References
----------
Kozumi, H. & Kobayashi, G. (2011). Gibbs sampling methods for Bayesian quantile regression. Journal
of Statistical Computation and Simulation 81.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_augconj.auxiliary.inverse_gaussian import logpdf_inverse_gaussian, random_inverse_gaussian
from pymc_augconj.typing import Array

from .base import Likelihood, Params, Pattern
from .folded_normal import folded_normal
from .joint import Joint, JointWriter, normal_factor
from .registry import register

__all__ = ["AsymmetricLaplace"]

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


@register
class AsymmetricLaplace(Likelihood):
    """Real y of which η is the quantile at level κ²/(1 + κ²)."""

    name = "Asymmetric Laplace"
    augmentation = "inverse Gaussian precision"
    patterns = (Pattern("AsymmetricLaplaceRV", inputs=("b", "kappa", "mu"), predictor="mu"),)

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        # a + d and d − a, which would cancel where κ is far from one.
        b, kappa = params["b"], params["kappa"]
        e = y - eta
        return _log_norm(params) - b * np.where(e >= 0.0, kappa * e, -e / kappa)

    def draw_auxiliary(
        self, rng: np.random.Generator, y: Array, eta: Array, params: Params
    ) -> Array:
        a, _ = _slopes(params)
        return random_inverse_gaussian(rng, _mean(a, np.abs(y - eta)), a**2)

    def sites(self, y: Array, omega: Any, params: Params) -> tuple[Array, Array]:
        _, d = _slopes(params)
        return omega * y + d, omega

    def expected_sites(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array]:
        a, d = _slopes(params)
        lam = _mean(a, np.sqrt((y - mean) ** 2 + var))
        return lam * y + d, lam

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        a, d = _slopes(params)
        e = y - mean
        return _log_norm(params) - a * np.sqrt(e**2 + var) - d * e

    def expected_log_density(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array, Array]:
        a, d = _slopes(params)
        distance, d_mean, d_var = folded_normal(y - mean, var)
        value = _log_norm(params) - a * distance - d * (y - mean)
        return value, a * d_mean + d, -a * d_var

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

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        # exp(−a|e|) = ∫ a (2π)^(−½) ω^(−3/2) exp(−½ ω e² − ½ a²/ω) dω
        a, d = _slopes(params)
        log_prior = np.log(a) - _HALF_LOG_2PI - 1.5 * np.log(omega) - 0.5 * a**2 / omega
        return _log_norm(params) - d * y - 0.5 * omega * y**2 + log_prior

    def log_conditional(self, omega: Any, y: Array, eta: Array, params: Params) -> Array:
        a, _ = _slopes(params)
        return logpdf_inverse_gaussian(omega, _mean(a, np.abs(y - eta)), a**2)

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Params) -> Joint:
        math, (a, _) = write.math, _slopes(params)
        omega = write.inverse_gamma("omega", 1.0, 0.5 * a**2)
        normal = normal_factor(math)

        def log_factor(y: Any, eta: Any, omega: Any, params: Any) -> Any:
            a, d = _slopes(params)
            return normal(y, eta, omega, params) + 2.0 * math.log(params["b"] / a) - d * (y - eta)

        return [omega], log_factor


def _slopes(params: Params) -> tuple[Array, Array]:
    """Return a and d, the even and the odd part of the slope of −log p."""
    b, kappa = params["b"], params["kappa"]
    return 0.5 * b * (kappa + 1.0 / kappa), 0.5 * b * (kappa - 1.0 / kappa)


def _log_norm(params: Params) -> Array:
    kappa = params["kappa"]
    return np.log(params["b"]) - np.log(kappa + 1.0 / kappa)


def _mean(a: Array, distance: Array) -> Array:
    # Infinite, as it should be, at a distance of zero.
    with np.errstate(divide="ignore", over="ignore"):
        return a / distance
