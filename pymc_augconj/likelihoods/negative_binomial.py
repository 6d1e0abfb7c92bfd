"""Negative binomial observations, real α > 0, by Pólya–Gamma augmentation.

    p(y | η) = Γ(y + α) / (Γ(α) y!) · σ(η)^y σ(−η)^α,    ω ~ PG(y + α, η),    λ = ω,  h = (y − α)/2.

The mean is μ = α e^η. A model written in the mean has η = log μ − log α, one written in PyMC's
success probability p has p = σ(−η): both reach NegBinomialRV as (α, σ(−η)).

References
----------
Polson, N. G., Scott, J. G. & Windle, J. (2013). Bayesian inference for logistic models using
Pólya–Gamma latent variables. Journal of the American Statistical Association 108.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import betainc, betaln, expit

from pymc_augconj.auxiliary.polya_gamma.distribution import (
    logpdf_polya_gamma,
    mean_polya_gamma,
    random_polya_gamma,
)
from pymc_augconj.typing import Array

from .base import Likelihood, Params, Pattern, is_count, refusal
from .joint import Joint, JointWriter
from .registry import register

__all__ = ["NegativeBinomial"]

_LOG_2 = np.log(2.0)


@register
class NegativeBinomial(Likelihood):
    """Counts y ∈ {0, 1, …} of mean α e^η and variance α e^η (1 + e^η)."""

    name = "Negative binomial"
    link = "logit"
    augmentation = "Pólya–Gamma PG(y + α, η)"
    discrete = True
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

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        alpha = params["alpha"]
        log_likelihood = -y * np.logaddexp(0.0, -eta) - alpha * np.logaddexp(0.0, eta)
        return _log_choose(y, alpha) + log_likelihood

    def draw_auxiliary(
        self, rng: np.random.Generator, y: Array, eta: Array, params: Params
    ) -> Array:
        return random_polya_gamma(rng, y + params["alpha"], eta)

    def sites(self, y: Array, omega: Any, params: Params) -> tuple[Array, Array]:
        return 0.5 * (y - params["alpha"]), omega

    def as_logistic(self, y: Array, params: Params) -> tuple[Array, Array]:
        return y, y + params["alpha"]

    def expected_sites(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array]:
        alpha = params["alpha"]
        return 0.5 * (y - alpha), mean_polya_gamma(y + alpha, np.sqrt(mean**2 + var))

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        alpha = params["alpha"]
        half = 0.5 * np.sqrt(mean**2 + var)
        log_laplace = -(y + alpha) * np.logaddexp(half, -half)
        return _log_choose(y, alpha) + 0.5 * (y - alpha) * mean + log_laplace

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        mean = params["alpha"] * np.exp(eta)
        return mean, mean * (1.0 + np.exp(eta))

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        k = np.floor(y)
        found = betainc(params["alpha"], np.maximum(k, 0.0) + 1.0, expit(-eta))
        return np.where(k < 0.0, 0.0, found)

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        total = y + params["alpha"]
        log_prior = logpdf_polya_gamma(omega, total, 0.0)
        return _log_choose(y, params["alpha"]) - total * _LOG_2 + log_prior

    def log_conditional(self, omega: Any, y: Array, eta: Array, params: Params) -> Array:
        return logpdf_polya_gamma(omega, y + params["alpha"], eta)

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Params) -> Joint:
        math = write.math

        def log_factor(y: Any, eta: Any, omega: Any, params: Any) -> Any:
            alpha = params["alpha"]
            total = y + alpha
            log_choose = math.gammaln(total) - math.gammaln(y + 1.0) - math.gammaln(alpha)
            log_linear = 0.5 * (y - alpha) * eta - 0.5 * omega * eta**2
            return log_choose - total * _LOG_2 + log_linear

        return [write.polya_gamma("omega", y + params["alpha"])], log_factor


def _log_choose(y: Array, alpha: Array) -> Array:
    # log Γ(y + α)/(Γ(α) y!) through the beta function, which does not cancel at large α.
    return -np.log(y + alpha) - betaln(alpha, y + 1.0)
