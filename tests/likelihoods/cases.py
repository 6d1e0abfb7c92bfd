"""One line for every likelihood: what the tests of the contract try it with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from scipy.integrate import quad
from scipy.special import expit, gammaln, ndtr

from pymc_augconj.distributions.classes import BayesianSVM as PyMCBayesianSVM
from pymc_augconj.distributions.classes import MaternNoise as PyMCMaternNoise
from pymc_augconj.distributions.super_gaussian import SuperGaussian as PyMCSuperGaussian
from pymc_augconj.likelihoods.base import DensityLikelihood
from pymc_augconj.likelihoods.bernoulli_logit import BernoulliLogit
from pymc_augconj.likelihoods.bernoulli_probit import BernoulliProbit
from pymc_augconj.likelihoods.laplace import AsymmetricLaplace, BayesianSVM, Laplace
from pymc_augconj.likelihoods.logistic import Logistic
from pymc_augconj.likelihoods.matern_noise import MaternNoise
from pymc_augconj.likelihoods.normal import LogNormal, Normal
from pymc_augconj.likelihoods.poisson_log import PoissonLog
from pymc_augconj.likelihoods.poisson_sigmoid import PoissonSigmoid
from pymc_augconj.likelihoods.poisson_square import PoissonSquare
from pymc_augconj.likelihoods.powers_of_sigmoid import BinomialLogit, NegativeBinomial
from pymc_augconj.likelihoods.student_t import Cauchy, StudentT
from pymc_augconj.likelihoods.super_gaussian import Phi, SuperGaussian

BINARY, SIGNS, COUNTS = (0.0, 1.0), (-1.0, 1.0), (0.0, 1.0, 3.0, 8.0)
REALS = (-2.5, 0.4, 3.1)


class Case(NamedTuple):
    """One likelihood: its PyMC distribution given η, values of y and of its parameters, its ω."""

    likelihood: type[DensityLikelihood]
    pymc: Callable[..., Any]
    y: tuple[float, ...]
    values: dict[str, tuple[float, float]]
    auxiliary: str = "positive"
    arguments: tuple = ()

    def build(self) -> DensityLikelihood:
        """An instance; ``arguments`` are for likelihoods that need to be told a formula."""
        return self.likelihood(*self.arguments)

    @property
    def params(self) -> list[dict[str, np.ndarray]]:
        """The sets of parameters to try, one value of each."""
        if not self.values:
            return [{}]
        # Arrays, because PyTensor makes a float32 of a float like 30.0, and computes with it.
        names, columns = self.values.keys(), self.values.values()
        return [
            dict(zip(names, map(np.array, row), strict=True)) for row in zip(*columns, strict=True)
        ]


def at(distribution, predictor):
    return lambda eta, **params: distribution.dist(**{predictor: eta}, **params)


def mean_negative_binomial(eta, alpha):
    return pm.NegativeBinomial.dist(mu=alpha * np.exp(eta), alpha=alpha)


# log φ with its derivative; STRETCHED is a φ nobody has derived an augmentation for.
LAPLACE = Phi(
    ("b",),
    lambda r, v: -np.sqrt(r) / v[0],
    lambda r, v: -0.5 / (v[0] * np.sqrt(r)),
)
STUDENT_T = Phi(
    ("nu",),
    lambda r, v: -0.5 * (v[0] + 1.0) * np.log1p(r / v[0]),
    lambda r, v: -0.5 * (v[0] + 1.0) / (v[0] + r),
)
STRETCHED = Phi(
    ("s",),
    lambda r, v: 1.0 - (1.0 + r / v[0] ** 2) ** 0.3,
    lambda r, v: -0.3 * (1.0 + r / v[0] ** 2) ** -0.7 / v[0] ** 2,
)
STUDENT_T_7_LOG_C = gammaln(4.0) - gammaln(3.5) - 0.5 * np.log(7.0 * np.pi)
STRETCHED_LOG_C = -np.log(
    2.0 * quad(lambda t: np.exp(t + 1.0 - (1.0 + np.exp(2.0 * t)) ** 0.3), -40, 14, limit=500)[0]
)

CASES = [
    Case(Normal, at(pm.Normal, "mu"), REALS, {"sigma": (0.6, 1.7)}, "none"),
    Case(LogNormal, at(pm.LogNormal, "mu"), (0.1, 0.8, 6.0), {"sigma": (0.6, 1.7)}, "none"),
    Case(StudentT, at(pm.StudentT, "mu"), REALS, {"nu": (3.0, 30.0), "sigma": (0.6, 1.4)}),
    Case(Cauchy, at(pm.Cauchy, "alpha"), REALS, {"beta": (0.6, 1.7)}),
    Case(Laplace, at(pm.Laplace, "mu"), REALS, {"b": (0.6, 1.7)}),
    Case(
        AsymmetricLaplace,
        at(pm.AsymmetricLaplace, "mu"),
        REALS,
        {"b": (1.5, 0.7), "kappa": (0.6, 2.5)},
    ),
    Case(Logistic, at(pm.Logistic, "mu"), REALS, {"s": (0.4, 1.3)}),
    Case(BernoulliLogit, at(pm.Bernoulli, "logit_p"), BINARY, {}),
    Case(BernoulliProbit, lambda eta: pm.Bernoulli.dist(p=ndtr(eta)), BINARY, {}, "real"),
    Case(BinomialLogit, at(pm.Binomial, "logit_p"), COUNTS, {"n": (9.0, 40.0)}),
    Case(NegativeBinomial, mean_negative_binomial, COUNTS, {"alpha": (0.7, 6.2)}),
    Case(
        PoissonSigmoid,
        lambda eta, rate: pm.Poisson.dist(rate * expit(eta)),
        COUNTS,
        {"rate": (2.5, 9.0)},
        "count and positive",
    ),
    Case(
        MaternNoise,
        lambda eta, nu, rho: PyMCMaternNoise.dist(float(nu), eta, rho),
        REALS,
        {"nu": (0.5, 1.5, 2.5), "rho": (0.6, 1.3, 1.7)},
    ),
    Case(BayesianSVM, PyMCBayesianSVM.dist, SIGNS, {}),
    Case(
        PoissonLog,
        lambda eta, exposure: pm.Poisson.dist(exposure * np.exp(eta)),
        COUNTS,
        {"exposure": (0.4, 3.0)},
    ),
    Case(
        PoissonSquare,
        lambda eta, exposure: pm.Poisson.dist(exposure * eta**2),
        COUNTS,
        {"exposure": (0.4, 3.0)},
    ),
    # Two that have a closed form, and one that has none.
    Case(
        SuperGaussian,
        lambda eta, b, log_c: pm.Laplace.dist(eta, b),
        REALS,
        {"b": (0.6, 1.7), "log_c": (-np.log(1.2), -np.log(3.4))},
        arguments=(LAPLACE,),
    ),
    Case(
        SuperGaussian,
        lambda eta, nu, log_c: pm.StudentT.dist(nu=nu, mu=eta, sigma=1.0),
        REALS,
        {"nu": (1.0, 7.0), "log_c": (-np.log(np.pi), STUDENT_T_7_LOG_C)},
        arguments=(STUDENT_T,),
    ),
    Case(
        SuperGaussian,
        lambda eta, s, log_c: PyMCSuperGaussian.dist(
            eta, log_phi=lambda r: 1.0 - (1.0 + r / s**2) ** 0.3
        ),
        REALS,
        {"s": (0.6, 1.7), "log_c": (STRETCHED_LOG_C - np.log(0.6), STRETCHED_LOG_C - np.log(1.7))},
        arguments=(STRETCHED,),
    ),
]
