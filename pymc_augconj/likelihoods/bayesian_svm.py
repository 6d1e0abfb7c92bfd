"""The Bayesian support vector machine, a pseudo-likelihood.

    p(y | η) = exp(−2 max(1 − yη, 0)),  y = ±1, which does not sum to one over y,
    1/ω ~ 1/InverseGaussian, that is ω ~ InverseGaussian(mean 1/|1 − yη|, shape 1),
    λ = ω,  h = y(1 + ω).

It is exp(−(1 − yη)) exp(−|1 − yη|), whose second factor is a Laplace density of 1 − yη. Polson and
Scott's auxiliary variable is 1/ω.

References
----------
Polson, N. G. & Scott, S. L. (2011). Data augmentation for support vector machines. Bayesian
Analysis 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_augconj.auxiliary.inverse_gaussian import logpdf_inverse_gaussian, random_inverse_gaussian
from pymc_augconj.typing import Array

from .base import Likelihood, Params, Pattern, refusal
from .folded_normal import folded_normal
from .joint import Joint, JointWriter
from .registry import register

__all__ = ["BayesianSVM"]

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


@register
class BayesianSVM(Likelihood):
    """y = ±1 under the hinge loss."""

    name = "Bayesian SVM (pseudo-likelihood)"
    link = "hinge"
    augmentation = "inverse Gaussian"
    patterns = (Pattern("BayesianSVMRV", inputs=("f",), predictor="f"),)
    is_normalized = False

    @property
    def unpredictable(self) -> str:
        return (
            "its factors exp(−2 max(1 − y f, 0)) do not sum to one over y = −1 and 1, so that "
            "there are no probabilities of y; predict kind='f' and take its sign, or use "
            "pm.Bernoulli"
        )

    def check(self, y: Array, params: Params) -> str | None:
        return refusal(y, np.abs(y) == 1, "-1 or 1")

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        return -2.0 * np.maximum(1.0 - y * eta, 0.0)

    def draw_auxiliary(
        self, rng: np.random.Generator, y: Array, eta: Array, params: Params
    ) -> Array:
        return random_inverse_gaussian(rng, _mean(np.abs(1.0 - y * eta)), np.ones(1))

    def sites(self, y: Array, omega: Any, params: Params) -> tuple[Array, Array]:
        return y * (1.0 + omega), omega

    def expected_sites(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array]:
        lam = _mean(np.sqrt((1.0 - y * mean) ** 2 + var))
        return y * (1.0 + lam), lam

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        margin = 1.0 - y * mean
        return -margin - np.sqrt(margin**2 + var)

    def expected_log_density(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array, Array]:
        margin = 1.0 - y * mean
        distance, slope, d_var = folded_normal(margin, var)
        return -margin - distance, y * (1.0 + slope), -d_var

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        return -1.0 - 0.5 * omega - 1.5 * np.log(omega) - _HALF_LOG_2PI - 0.5 / omega

    def log_conditional(self, omega: Any, y: Array, eta: Array, params: Params) -> Array:
        return logpdf_inverse_gaussian(omega, _mean(np.abs(1.0 - y * eta)), np.ones(1))

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Params) -> Joint:
        def log_factor(y: Any, eta: Any, omega: Any, params: Any) -> Any:
            return y * eta - 1.0 - 0.5 * omega * (1.0 - y * eta) ** 2

        return [write.inverse_gamma("omega", 0.5, 0.5)], log_factor


def _mean(distance: Array) -> Array:
    # Infinite, as it should be, at a distance of zero.
    with np.errstate(divide="ignore", over="ignore"):
        return 1.0 / distance
