"""Asymmetric Laplace observations (quantile regression), as normal ones of random variance.

In PyMC's parametrisation, with e = y − η, a = b (κ + 1/κ)/2 and d = b (κ − 1/κ)/2,

    p(y | η) = b / (κ + 1/κ) · exp(−a |e| − d e),
    ω ~ InverseGaussian(mean a/|e|, shape a²),    λ = ω,  h = ω y + d.

The slopes are a + d = bκ above η and a − d = b/κ below it.

References
----------
Kozumi, H. & Kobayashi, G. (2011). Gibbs sampling methods for Bayesian quantile regression. Journal
of Statistical Computation and Simulation 81.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_augconj.typing import Array

from .base import Params, Pattern
from .registry import register
from .symmetric_noise import TiltedLaplace

__all__ = ["AsymmetricLaplace"]


@register
class AsymmetricLaplace(TiltedLaplace):
    """Real y of which η is the quantile at level κ²/(1 + κ²)."""

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
