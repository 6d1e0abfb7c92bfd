"""Binomial observations with a logit link, by Pólya–Gamma augmentation.

    p(y | η) = C(n, y) σ(η)^y σ(−η)^(n−y),    ω ~ PG(n, η),    λ = ω,  h = y − n/2.

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

__all__ = ["BinomialLogit"]


@register
class BinomialLogit(PowersOfSigmoid):
    """Counts y ∈ {0, …, n} out of n trials, success probability σ(η); n may be zero."""

    name = "Binomial"
    augmentation = "Pólya–Gamma PG(n, η)"
    patterns = (Pattern("BinomialRV", inputs=("n", "p"), predictor="p", link="logit"),)

    def check(self, y: Array, params: Params) -> str | None:
        not_a_count = refusal(y, is_count(y), "an integer from 0 to n")
        if not_a_count is not None:
            return not_a_count
        n = np.broadcast_to(params["n"], y.shape)
        above = y > n
        if not above.any():
            return None
        return refusal(y, ~above, f"an integer from 0 to n = {n[np.argmax(above)]:.12g}")

    def trials(self, y: Array, params: Params) -> Array:
        return params["n"]

    def log_arrangements(self, y: Array, params: Params) -> Array:
        n = params["n"]
        return -np.log1p(n) - betaln(n - y + 1.0, y + 1.0)

    def written_log_arrangements(self, math: Any, y: Any, params: Params) -> Any:
        n = params["n"]
        return math.gammaln(n + 1.0) - math.gammaln(y + 1.0) - math.gammaln(n - y + 1.0)

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        p = expit(eta)
        return params["n"] * p, params["n"] * p * (1.0 - p)

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        n, k = params["n"], np.floor(y)
        inside = np.clip(k, 0.0, np.maximum(n - 1.0, 0.0))
        found = betainc(np.maximum(n - inside, 1.0), inside + 1.0, expit(-eta))
        return np.where(k < 0.0, 0.0, np.where(k >= n, 1.0, found))
