"""Likelihoods that are powers of σ(η) and σ(−η), by Pólya–Gamma augmentation.

Not a likelihood, but what those with a logit link share. Of a successes and b − a failures

    p(y | η) = c(y) σ(η)^a σ(−η)^(b − a),  a = y,    ω ~ PG(b, η),    λ = ω,  h = y − b/2.

b may be any real number; where it is zero there is nothing to learn from the site, and ω = 0.

References
----------
Polson, N. G., Scott, J. G. & Windle, J. (2013). Bayesian inference for logistic models using
Pólya–Gamma latent variables. Journal of the American Statistical Association 108.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.random import Generator

from pymc_augconj.auxiliary.polya_gamma.distribution import (
    log_polya_gamma,
    mean_polya_gamma,
    random_polya_gamma,
)
from pymc_augconj.typing import Array

from .base import Likelihood, Params, Sites
from .joint import Joint, JointWriter

__all__ = ["PowersOfSigmoid"]

_LOG_2 = np.log(2.0)


class PowersOfSigmoid(Likelihood):
    """Counts y of successes; a subclass says how many trials there are."""

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
        log_success = -y * np.logaddexp(0.0, -eta)
        log_failure = -self.failures(y, params) * np.logaddexp(0.0, eta)
        return self.log_arrangements(y, params) + log_success + log_failure

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
