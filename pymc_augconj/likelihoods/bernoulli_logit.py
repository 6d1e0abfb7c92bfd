"""Bernoulli observations with a logit link, by Pólya–Gamma augmentation.

    p(y | η) = σ(η)^y σ(−η)^(1−y),    ω ~ PG(1, η),    λ = ω,  h = y − ½.

See :mod:`.powers_of_sigmoid`.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from pymc_augconj.typing import Array

from .base import Params, Pattern, refusal
from .powers_of_sigmoid import PowersOfSigmoid
from .registry import register


@register
class BernoulliLogit(PowersOfSigmoid):
    """Binary y ∈ {0, 1}, success probability σ(η)."""

    name = "Bernoulli"
    augmentation = "Pólya–Gamma PG(1, η)"
    patterns = (Pattern("BernoulliRV", inputs=("p",), predictor="p", link="logit"),)

    def check(self, y: Array, params: Params) -> str | None:
        return refusal(y, (y == 0) | (y == 1), "0 or 1")

    def trials(self, y: Array, params: Params) -> Array:
        # A number, not an array of ones, for which PG(1, ·) has draws of its own.
        return np.ones(())

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        p = expit(eta)
        return p, p * (1.0 - p)

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return np.where(y < 0.0, 0.0, np.where(y < 1.0, expit(-eta), 1.0))
