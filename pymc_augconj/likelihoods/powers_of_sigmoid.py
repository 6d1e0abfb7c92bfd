"""Counts with a logit link: powers of σ(η) and σ(−η), by Pólya–Gamma augmentation.

With y successes and b − y failures

    p(y | η) = c(y) σ(η)^y σ(−η)^(b − y),    ω ~ PG(b, η),    λ = ω,  h = y − b/2,

with b = 1 (Bernoulli, in a file of its own), b = n (binomial), or b = y + α, for any α > 0, and
c(y) = Γ(y + α)/(Γ(α) y!) (negative binomial). The mean of the last is μ = α e^η: a model written in
the mean has η = log μ − log α, one in PyMC's success probability p has p = σ(−η), and both reach
NegBinomialRV as (α, σ(−η)). Where b is zero there is nothing to learn from the site, and ω = 0.

In augmentations by thinning, σ(η) = 1 − σ(−η), the number of thinned points has, under
q(η) = N(m, v), a Poisson distribution whose mean is proportional to

    σ̃ = exp(−m/2) / (2 cosh(c/2)),        c² = m² + v,

which is σ(−m) where v = 0, and less elsewhere.

References
----------
Polson, N. G., Scott, J. G. & Windle, J. (2013). Bayesian inference for logistic models using
Pólya–Gamma latent variables. Journal of the American Statistical Association 108.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from scipy.special import betainc, betaln, expit

from pymc_augconj.auxiliary.polya_gamma.distribution import (
    log_polya_gamma,
    mean_polya_gamma,
    random_polya_gamma,
)
from pymc_augconj.typing import Array, Generator

from .base import Joint, JointWriter, Likelihood, Params, Pattern, Sites, is_count, refusal
from .registry import register

_LOG_2 = np.log(2.0)
# Counts from which a table of their functions takes less time.
_MANY = 500


class PowersOfSigmoid(Likelihood):
    """Counts y of successes; a subclass defines the number of trials."""

    link = "logit"
    discrete = True

    @abstractmethod
    def trials(self, y: Array, params: Params) -> Array:
        """Return b; broadcasts against y."""

    def failures(self, y: Array, params: Params) -> Array:
        """Return b − y."""
        return self.trials(y, params) - y

    def log_arrangements(self, y: Array, params: Params) -> Array | float:
        """Return log c(y)."""
        return 0.0

    def written_log_arrangements(self, math: Any, y: Any, params: Params) -> Any:
        """Return log c(y) for variables of a model, by the functions of ``math``."""
        return 0.0

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        if not isinstance(eta, np.ndarray):
            # Few instructions of a tape.
            tail = self.trials(y, params) * np.logaddexp(0.0, eta)
            return self.log_arrangements(y, params) + (y * eta - tail)
        # log σ(η) = min(η, 0) − tail and log σ(−η) = min(−η, 0) − tail.
        tail = self.trials(y, params) * np.log1p(np.exp(-np.abs(eta)))
        log_success = y * np.minimum(eta, 0.0)
        log_failure = self.failures(y, params) * np.minimum(-eta, 0.0)
        return self.log_arrangements(y, params) + log_success + log_failure - tail

    def draw_auxiliary(self, rng: Generator, y: Array, eta: Array, params: Params) -> Array:
        return random_polya_gamma(rng, self.trials(y, params), eta)

    def sites(self, y: Array, omega: Any, params: Params) -> Sites:
        return 0.5 * (y - self.failures(y, params)), omega

    def as_logistic(self, y: Array, params: Params) -> tuple[Array, Array]:
        return y, self.trials(y, params)

    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        omega = mean_polya_gamma(self.trials(y, params), np.sqrt(mean**2 + var))
        return self.sites(y, omega, params)

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        # log ∫ exp(−½ ω c²) PG(ω | b, 0) dω = −b log cosh(c/2)
        half = 0.5 * np.sqrt(mean**2 + var)
        h = 0.5 * (y - self.failures(y, params))
        log_laplace = -self.trials(y, params) * np.logaddexp(half, -half)
        return self.log_arrangements(y, params) + h * mean + log_laplace

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        b = self.trials(y, params)
        log_prior = log_polya_gamma(omega, b, np.zeros(1))
        return self.log_arrangements(y, params) - b * _LOG_2 + log_prior

    def log_conditional(self, omega: Any, y: Array, eta: Array, params: Params) -> Array:
        return log_polya_gamma(omega, self.trials(y, params), eta)

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Params) -> Joint:
        math = write.math

        def log_factor(y: Any, eta: Any, omega: Any, params: Any) -> Any:
            b = self.trials(y, params)
            lam = math.where(b > 0, omega, 0.0)
            log_linear = (y - 0.5 * b) * eta - 0.5 * lam * eta**2
            return self.written_log_arrangements(math, y, params) - b * _LOG_2 + log_linear

        # PG(0, ·) is zero with certainty: there the site ignores ω, whose distribution is then any.
        b = self.trials(y, params)
        return [write.polya_gamma("omega", math.where(b > 0, b, 1.0))], log_factor


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
        # Registers of a tape have no largest count.
        are_numbers = isinstance(y, np.ndarray) and isinstance(alpha, np.ndarray | float)
        is_common = are_numbers and np.size(alpha) == 1 and y.size > _MANY
        if is_common and (largest := y.max()) < y.size / 4:
            counts, alpha = np.arange(largest + 1.0), np.reshape(alpha, ())
            return (-np.log(counts + alpha) - betaln(alpha, counts + 1.0))[y.astype(np.intp)]
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


def log_shrunk(mean: Array, var: Array) -> tuple[Array, Array]:
    """Return c and log σ̃; no digit of 1 − σ̃ = −expm1(log σ̃) is lost where it is small."""
    c = np.sqrt(mean**2 + var)
    # m + c, without cancellation where m < 0
    negative = mean < 0.0
    total = np.where(negative, var / np.where(negative, c - mean, 1.0), mean + c)
    return c, -0.5 * total - np.log1p(np.exp(-c))
