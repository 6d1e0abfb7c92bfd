"""The prior of a latent between bounds: uniform, or normal and truncated.

    log p(η) = c − ½ τ (η − μ)²        for lower ≤ η ≤ upper,        else −∞,

with τ = 0 for the uniform distribution. There are no observations: y is not used.
"""

from __future__ import annotations

import numpy as np
from numpy.polynomial.legendre import leggauss

from pymc_augconj.quadrature.tilted import Tilted
from pymc_augconj.typing import Array

from .base import DensityLikelihood, Params

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
