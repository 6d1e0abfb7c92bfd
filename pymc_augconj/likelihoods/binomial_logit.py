"""Binomial observations with a logit link, by Pólya–Gamma augmentation.

    p(y | η) = C(n, y) σ(η)^y σ(−η)^(n−y),    ω ~ PG(n, η),    λ = ω,  h = y − n/2.

References
----------
Polson, N. G., Scott, J. G. & Windle, J. (2013). Bayesian inference for logistic models using
Pólya–Gamma latent variables. Journal of the American Statistical Association 108.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import betainc, betaln, expit

from pymc_augconj.auxiliary.polya_gamma.atom import log_polya_gamma
from pymc_augconj.auxiliary.polya_gamma.distribution import (
    mean_polya_gamma,
    random_polya_gamma,
)
from pymc_augconj.typing import Array

from .base import Likelihood, Params, Pattern, is_count, refusal
from .joint import Joint, JointWriter
from .registry import register

__all__ = ["BinomialLogit"]

_LOG_2 = np.log(2.0)


@register
class BinomialLogit(Likelihood):
    """Counts y ∈ {0, …, n} out of n trials, success probability σ(η); n may be zero."""

    name = "Binomial"
    link = "logit"
    augmentation = "Pólya–Gamma PG(n, η)"
    discrete = True
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

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        n = params["n"]
        log_choose = -np.log1p(n) - betaln(n - y + 1.0, y + 1.0)
        return log_choose - y * np.logaddexp(0.0, -eta) - (n - y) * np.logaddexp(0.0, eta)

    def draw_auxiliary(
        self, rng: np.random.Generator, y: Array, eta: Array, params: Params
    ) -> Array:
        return random_polya_gamma(rng, params["n"], eta)

    def sites(self, y: Array, omega: Any, params: Params) -> tuple[Array, Array]:
        return y - 0.5 * params["n"], omega

    def as_logistic(self, y: Array, params: Params) -> tuple[Array, Array]:
        return y, params["n"]

    def expected_sites(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array]:
        n = params["n"]
        return y - 0.5 * n, mean_polya_gamma(n, np.sqrt(mean**2 + var))

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        # log ∫ exp(−½ ω c²) PG(ω | n, 0) dω = −n log cosh(c/2)
        n = params["n"]
        log_choose = -np.log1p(n) - betaln(n - y + 1.0, y + 1.0)
        half = 0.5 * np.sqrt(mean**2 + var)
        return log_choose + (y - 0.5 * n) * mean - n * np.logaddexp(half, -half)

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        p = expit(eta)
        return params["n"] * p, params["n"] * p * (1.0 - p)

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        n, k = params["n"], np.floor(y)
        inside = np.clip(k, 0.0, np.maximum(n - 1.0, 0.0))
        found = betainc(np.maximum(n - inside, 1.0), inside + 1.0, expit(-eta))
        return np.where(k < 0.0, 0.0, np.where(k >= n, 1.0, found))

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        n = params["n"]
        log_choose = -np.log1p(n) - betaln(n - y + 1.0, y + 1.0)
        return log_choose - n * _LOG_2 + log_polya_gamma(omega, n, np.zeros(1))

    def log_conditional(self, omega: Any, y: Array, eta: Array, params: Params) -> Array:
        return log_polya_gamma(omega, params["n"], eta)

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Params) -> Joint:
        math = write.math

        def log_factor(y: Any, eta: Any, omega: Any, params: Any) -> Any:
            n = params["n"]
            lam = math.where(n > 0, omega, 0.0)
            log_choose = math.gammaln(n + 1.0) - math.gammaln(y + 1.0) - math.gammaln(n - y + 1.0)
            return log_choose - n * _LOG_2 + (y - 0.5 * n) * eta - 0.5 * lam * eta**2

        # PG(0, ·) is zero with certainty: there the site ignores ω, whose distribution is then any.
        return [write.polya_gamma("omega", math.maximum(params["n"], 1.0))], log_factor
