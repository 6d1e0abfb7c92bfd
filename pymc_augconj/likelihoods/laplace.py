"""Laplace observations, as normal ones of random variance.

    p(y | η) = exp(−|e|/b) / 2b,    e = y − η,
    ω ~ InverseGaussian(mean 1/(b |e|), shape 1/b²),    λ = ω,  h = ω y.

That is y | ω ~ N(η, 1/ω) with 1/ω ~ Exponential(rate 1/2b²).

References
----------
Park, T. & Casella, G. (2008). The Bayesian lasso. Journal of the American Statistical
Association 103.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_augconj.typing import Array

from .base import Params, Pattern
from .registry import register
from .symmetric_noise import TiltedLaplace

__all__ = ["Laplace"]


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
