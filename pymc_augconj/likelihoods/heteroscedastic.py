"""Normal observations of mean f, with another predictor g for the precision.

:class:`Heteroscedastic` has a bounded precision, by thinning and Pólya–Gamma augmentation:

    p(y | f, g) = N(y | f, 1/(r σ(g))),        e = y − f.

The group (f,) needs no auxiliary variable: λ = r σ(g), h = λ y. For the group (g,), given f,

    n ~ Poisson(r σ(−g) e²/2),  then ω ~ PG(½ + n, g),        λ = ω,  h = (½ − n)/2.

(n, ω) is integrated out while f moves, so that g needs a new draw of it: f and g drawn together
given one (n, ω) would not have the posterior distribution.

The bound is for independent f and g. Averaged over q(f), log p(y | η) depends on f through
ψ = E[e²]/2 alone, and with ψ in place of e²/2 the augmentation is the one above. With c and σ̃
of g, see :mod:`.powers_of_sigmoid`, the optimal q(n) is Poisson(γ), γ = r σ̃ ψ, and

    bound = ½ log(r/2π) − ½ log 2 + m/4 − ½ log cosh(c/2) − r ψ (1 − σ̃).

:class:`HeteroscedasticLog` has the standard deviation e^g and no augmentation, but E log p is in
closed form for any joint normal distribution of f and g: :func:`expected_normal` with
τ(g) = e^{−2g} and T_k = (−2)ᵏ exp(−2 m_g + 2 V_gg).

References
----------
Lázaro-Gredilla & Titsias (2011), Variational heteroscedastic Gaussian process regression. ICML.
Galy-Fajou, T., Wenzel, F. & Opper, M. (2020). Automated augmented conjugate inference for
non-conjugate Gaussian process models. AISTATS. (It draws f and g at once.)
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.special import expit, gammaln, log_expit, ndtr, xlogy

from pymc_augconj.auxiliary.poisson import random_poisson
from pymc_augconj.auxiliary.polya_gamma.distribution import (
    logpdf_polya_gamma,
    mean_polya_gamma,
    random_polya_gamma,
)
from pymc_augconj.quadrature.expectation import gaussian_expectation
from pymc_augconj.typing import Array, Generator

from .base import Expected, Params, Pattern, Sites
from .contract import MultiDensity, MultiLikelihood
from .pattern import PredictorInput
from .powers_of_sigmoid import log_shrunk
from .registry import register

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


@register
class Heteroscedastic(MultiLikelihood):
    """Real y with mean f and precision r σ(g); the predictors are (f, g)."""

    name = "Normal"
    link = "identity, scaled logit of the precision"
    augmentation = "none for f; thinned count n ~ Poisson(r σ(−g) e²/2), PG(½ + n, g) for g"
    n_predictors = 2
    groups = ((0,), (1,))
    levels = MappingProxyType({"r": 1})
    patterns = (
        Pattern(
            "NormalRV",
            inputs=("mu", "sigma"),
            predictors=(
                PredictorInput("mu"),
                PredictorInput("sigma", "scaled_logit", power=-0.5, scale="r"),
            ),
        ),
    )

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        f, g = eta
        r = params["r"]
        return 0.5 * (np.log(r) + log_expit(g) - r * expit(g) * (y - f) ** 2) - _HALF_LOG_2PI

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        return eta[0], 1.0 / (params["r"] * expit(eta[1]))

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return ndtr((y - eta[0]) / np.sqrt(self.moments(eta, params)[1]))

    def expected_log_density(self, y: Array, mean: Array, cov: Array, params: Params) -> Expected:
        # Integrals over g alone: of log σ, σ and σ″, with two derivatives each.
        def expect(func: Any) -> list[Array]:
            value, d_mean, d_var = gaussian_expectation(
                lambda g, which: func(g), mean[1], cov[1, 1]
            )
            return [value, d_mean, 2.0 * d_var]

        log_terms, low, high = expect(log_expit), expect(expit), expect(_expit_curvature)
        r = params["r"]
        log_terms[0] = log_terms[0] + np.log(r)
        return expected_normal(y, mean, cov, log_terms, [r * s for s in (*low, *high[1:])])

    def draw_auxiliary(
        self, rng: Generator, y: Array, eta: Array, params: Params, group: int
    ) -> tuple[Array, Array] | None:
        if group == 0:
            return None
        f, g = eta
        n = random_poisson(rng, 0.5 * params["r"] * expit(-g) * (y - f) ** 2)
        return n, random_polya_gamma(rng, 0.5 + n, g)

    def sites(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Sites:
        if group == 0:
            lam = params["r"] * expit(eta[1])
            return (lam * y)[None], lam[None]
        n, polya_gamma = omega
        return 0.5 * (0.5 - n)[None], polya_gamma[None]

    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        c, log_thinned = log_shrunk(mean[1], var[1])
        n = params["r"] * np.exp(log_thinned) * _half_square(y, mean, var)
        lam = -params["r"] * np.expm1(log_thinned)
        return np.stack([lam * y, 0.5 * (0.5 - n)]), np.stack([lam, mean_polya_gamma(0.5 + n, c)])

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        c, log_thinned = log_shrunk(mean[1], var[1])
        r, psi = params["r"], _half_square(y, mean, var)
        log_power = 0.5 * np.log(r) + 0.25 * mean[1] - 0.5 * np.logaddexp(0.5 * c, -0.5 * c)
        return log_power + r * psi * np.expm1(log_thinned) - _HALF_LOG_2PI

    def log_base(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Array:
        r = params["r"]
        if group == 0:
            return self.log_density(y, np.stack([np.zeros_like(eta[1]), eta[1]]), params)
        n, polya_gamma = omega
        half = 0.5 * r * (y - eta[0]) ** 2
        log_count = xlogy(n, half) - half - gammaln(n + 1.0) - (0.5 + n) * np.log(2.0)
        log_omega = logpdf_polya_gamma(polya_gamma, 0.5 + n, 0.0)
        return 0.5 * np.log(r) - _HALF_LOG_2PI + log_count + log_omega

    def log_conditional(
        self, omega: Any, y: Array, eta: Array, params: Params, group: int
    ) -> Array:
        if group == 0:
            return np.zeros_like(y)
        (n, polya_gamma), (f, g) = omega, eta
        rate = 0.5 * params["r"] * expit(-g) * (y - f) ** 2
        log_count = xlogy(n, rate) - rate - gammaln(n + 1.0)
        return log_count + logpdf_polya_gamma(polya_gamma, 0.5 + n, g)


@register
class HeteroscedasticLog(MultiDensity):
    """Real y with mean f and standard deviation exp(g); the predictors are (f, g)."""

    name = "Normal"
    link = "identity, log of the standard deviation"
    n_predictors = 2
    patterns = (
        Pattern(
            "NormalRV",
            inputs=("mu", "sigma"),
            predictors=(PredictorInput("mu"), PredictorInput("sigma", "log")),
        ),
    )

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        f, g = eta
        return -_HALF_LOG_2PI - g - 0.5 * ((y - f) * np.exp(-g)) ** 2

    def log_density_and_gradient(self, y: Array, eta: Array, params: Params) -> tuple[Array, Array]:
        f, g = eta
        scaled = (y - f) * np.exp(-g)
        slope = np.stack([scaled * np.exp(-g), scaled**2 - 1.0])
        return -_HALF_LOG_2PI - g - 0.5 * scaled**2, slope

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        return eta[0], np.exp(2.0 * eta[1])

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return ndtr((y - eta[0]) / np.sqrt(self.moments(eta, params)[1]))

    def expected_log_density(self, y: Array, mean: Array, cov: Array, params: Params) -> Expected:
        precision = np.exp(2.0 * (cov[1, 1] - mean[1]))
        zeros = np.zeros_like(y)
        log_terms = [-2.0 * mean[1], zeros - 2.0, zeros]
        return expected_normal(y, mean, cov, log_terms, [(-2.0) ** k * precision for k in range(5)])


def expected_normal(
    y: Array, mean: Array, cov: Array, log_terms: list[Array], terms: list[Array]
) -> tuple[Array, Array, Array]:
    """Return E[log N(y | f, 1/τ(g))], (f, g) ~ N(mean, cov), and its derivatives.

    With T_k = E[τ⁽ᵏ⁾(g)] and e = y − m_f, Stein's identity for g gives

        E[τ(g) (y − f)²] = T₀ (e² + V_ff) − 2 e V_fg T₁ + V_fg² T₂,

    and ∂T_k/∂m_g = T_{k+1}, ∂T_k/∂V_gg = ½ T_{k+2}. ``log_terms`` are E[log τ(g)] and those of its
    first two derivatives, ``terms`` T₀ to T₄.
    """
    e, cross = y - mean[0], cov[0, 1]
    square = e**2 + cov[0, 0]

    def quadratic(k: int) -> Array:
        first = square * terms[k] - 2.0 * e * cross * terms[k + 1]
        return np.asarray(first + cross**2 * terms[k + 2])

    value = 0.5 * (log_terms[0] - quadratic(0)) - _HALF_LOG_2PI
    by_f = e * terms[0] - cross * terms[1]
    by_g = 0.5 * (log_terms[1] - quadratic(1))
    by_cross = 0.5 * (e * terms[1] - cross * terms[2])
    by_var_g = 0.25 * (log_terms[2] - quadratic(2))
    by_var_f = np.broadcast_to(-0.5 * terms[0], by_f.shape)
    d_cov = np.stack([np.stack([by_var_f, by_cross]), np.stack([by_cross, by_var_g])])
    return value, np.stack([by_f, by_g]), d_cov


def _expit_curvature(g: Array) -> Array:
    here, there = expit(g), expit(-g)
    return np.asarray(here * there * (there - here))


def _half_square(y: Array, mean: Array, var: Array) -> Array:
    return np.asarray(0.5 * ((y - mean[0]) ** 2 + var[0]))
