"""Negative binomial observations, real α > 0, by Pólya–Gamma augmentation.

    p(y | η) = Γ(y + α) / (Γ(α) y!) · σ(η)^y σ(−η)^α,    ω ~ PG(y + α, η),    λ = ω,  h = (y − α)/2.

The mean is μ = α e^η. A model written in the mean has η = log μ − log α, one written in PyMC's
success probability p has p = σ(−η): both reach NegBinomialRV as (α, σ(−η)).

See :mod:`.powers_of_sigmoid`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import betainc, betaln, expit

from pymc_augconj.typing import Array

from .base import Params, Pattern, is_count, refusal
from .powers_of_sigmoid import PowersOfSigmoid
from .registry import register

__all__ = ["NegativeBinomial"]


@register
class NegativeBinomial(PowersOfSigmoid):
    """Counts y ∈ {0, 1, …} of mean α e^η and variance α e^η (1 + e^η)."""

    name = "Negative binomial"
    augmentation = "Pólya–Gamma PG(y + α, η)"
    patterns = (
        Pattern(
            "NegBinomialRV",
            inputs=("n", "p"),
            predictor="p",
            link="logit",
            negate=True,
            rename=(("n", "alpha"),),
        ),
    )

    def check(self, y: Array, params: Params) -> str | None:
        return refusal(y, is_count(y), "a non-negative integer")

    def trials(self, y: Array, params: Params) -> Array:
        return y + params["alpha"]

    def failures(self, y: Array, params: Params) -> Array:
        return params["alpha"]

    def log_arrangements(self, y: Array, params: Params) -> Array:
        # log Γ(y + α)/(Γ(α) y!) through the beta function, which does not cancel at large α.
        alpha = params["alpha"]
        return -np.log(y + alpha) - betaln(alpha, y + 1.0)

    def written_log_arrangements(self, math: Any, y: Any, params: Params) -> Any:
        alpha = params["alpha"]
        return math.gammaln(y + alpha) - math.gammaln(y + 1.0) - math.gammaln(alpha)

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        mean = params["alpha"] * np.exp(eta)
        return mean, mean * (1.0 + np.exp(eta))

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        k = np.floor(y)
        found = betainc(params["alpha"], np.maximum(k, 0.0) + 1.0, expit(-eta))
        return np.where(k < 0.0, 0.0, found)
