"""Poisson observations of a bounded rate r σ(η), by thinning and Pólya–Gamma augmentation.

    p(y | η) = (r σ(η))^y exp(−r σ(η)) / y!,
    n ~ Poisson(r σ(−η)),  then ω ~ PG(y + n, η),    λ = ω,  h = (y − n)/2.

n counts the events of a Poisson process of rate r that were thinned away: given y + n events, each
was kept with probability σ(η). Where y + n = 0 there is nothing to learn from the site, and ω = 0.

Under q(η) = N(m, v), with c² = m² + v, the optimal q(n, ω) is
n ~ Poisson(γ), γ = r exp(−m/2) / (2 cosh(c/2)), and ω | n ~ PG(y + n, c).

References
----------
Adams, R. P., Murray, I. & MacKay, D. J. C. (2009). Tractable nonparametric Bayesian inference in
Poisson processes with Gaussian process intensities. ICML.
Donner, C. & Opper, M. (2018). Efficient Bayesian inference of sigmoidal Gaussian Cox processes.
Journal of Machine Learning Research 19.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.special import expit, gammaln, xlogy

from pymc_augconj.auxiliary.polya_gamma.distribution import (
    log_polya_gamma,
    mean_polya_gamma,
    random_polya_gamma,
)
from pymc_augconj.typing import Array, Generator

from .base import Joint, JointWriter, Likelihood, Params, Pattern, Sites
from .poisson_log import Poisson
from .powers_of_sigmoid import log_shrunk
from .registry import register

_LOG_2 = np.log(2.0)


@register
class PoissonSigmoid(Poisson, Likelihood):
    """Counts y ∈ {0, 1, …} of mean r σ(η); the auxiliary variable is the pair (n, ω)."""

    link = "scaled logit"
    augmentation = "thinned count n ~ Poisson(r σ(−η)), Pólya–Gamma PG(y + n, η)"
    prefers_held = True
    levels = MappingProxyType({"rate": 0})
    patterns = (
        Pattern("PoissonRV", inputs=("mu",), predictor="mu", link="scaled_logit", scale="rate"),
    )

    def rate(self, eta: Array, params: Params) -> Array:
        return params["rate"] * expit(eta)

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        rate = params["rate"]
        log_mean_power = xlogy(y, rate) - y * np.logaddexp(0.0, -eta)
        return log_mean_power - rate * expit(eta) - gammaln(y + 1.0)

    def draw_auxiliary(
        self, rng: Generator, y: Array, eta: Array, params: Params
    ) -> tuple[Array, Array]:
        n = rng.poisson(params["rate"] * expit(-eta)).astype(float)
        return n, random_polya_gamma(rng, y + n, eta)

    def sites(self, y: Array, omega: Any, params: Params) -> Sites:
        n, polya_gamma = omega
        return 0.5 * (y - n), polya_gamma

    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        c, log_thinned = log_shrunk(mean, var)
        n = params["rate"] * np.exp(log_thinned)
        return 0.5 * (y - n), mean_polya_gamma(y + n, c)

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        # Given n the bound is that of a binomial atom; the sum over n is an exponential series.
        rate, (c, log_thinned) = params["rate"], log_shrunk(mean, var)
        log_laplace = -np.logaddexp(0.5 * c, -0.5 * c)
        log_power = xlogy(y, rate) + y * (0.5 * mean + log_laplace)
        return log_power + rate * np.expm1(log_thinned) - gammaln(y + 1.0)

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        n, polya_gamma = omega
        rate, total = params["rate"], y + n
        log_counts = xlogy(total, 0.5 * rate) - rate - gammaln(y + 1.0) - gammaln(n + 1.0)
        return log_counts + log_polya_gamma(polya_gamma, total, np.zeros(1))

    def log_conditional(self, omega: Any, y: Array, eta: Array, params: Params) -> Array:
        n, polya_gamma = omega
        rate = params["rate"]
        log_thinned_power = xlogy(n, rate) - n * np.logaddexp(0.0, eta)
        log_count = log_thinned_power - rate * expit(-eta) - gammaln(n + 1.0)
        return log_count + log_polya_gamma(polya_gamma, y + n, eta)

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Params) -> Joint:
        math = write.math
        n = write.poisson("thinned", params["rate"])
        # PG(0, ·) is zero with certainty: there the site ignores ω, whose distribution is then any.
        omega = write.polya_gamma("omega", math.maximum(y + n, 1.0))

        def log_factor(y: Any, eta: Any, n: Any, omega: Any, params: Any) -> Any:
            total = y + n
            lam = math.where(total > 0, omega, 0.0)
            log_constant = y * math.log(params["rate"]) - math.gammaln(y + 1.0) - total * _LOG_2
            return log_constant + 0.5 * (y - n) * eta - 0.5 * lam * eta**2

        return [n, omega], log_factor
