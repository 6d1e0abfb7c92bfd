"""The Bayesian support vector machine, a pseudo-likelihood.

    p(y | η) = exp(−2 max(1 − yη, 0)),  y = ±1, which does not sum to one over y,
    1/ω ~ 1/InverseGaussian, that is ω ~ InverseGaussian(mean 1/|1 − yη|, shape 1),
    λ = ω,  h = y(1 + ω).

It is exp(−(1 − yη)) exp(−|1 − yη|), where 1 − yη = y e with e = y − η: a Laplace density of e times
exp(−y e). Polson and Scott's auxiliary variable is 1/ω.

References
----------
Polson, N. G. & Scott, S. L. (2011). Data augmentation for support vector machines. Bayesian
Analysis 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_augconj.typing import Array

from .base import Params, Pattern, refusal
from .registry import register
from .symmetric_noise import TiltedLaplace

__all__ = ["BayesianSVM"]


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
