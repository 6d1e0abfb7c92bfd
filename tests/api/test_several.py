"""Models of several predictors, as PyMC has them: draws and fits against importance sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import expit, log_softmax

import pymc_augconj as pac

K = np.array([[0.8, 0.4], [0.4, 0.8]])
REAL, COUNTS, CLASSES = np.array([0.4, -1.1]), np.array([0, 3]), np.array([2, 0])
QUIET = {"progressbar": False, "compute_convergence_checks": False}
# Draws from the prior; of these the posterior's weights leave more than a twentieth.
N_PRIOR = 100_000

exp, sigmoid = pm.math.exp, pm.math.sigmoid


def latent(name):
    return pm.MvNormal(name, np.zeros(2), K)


class Case(NamedTuple):
    """How PyMC's model is written, and log p(y | u) for u of shape (latents, 2, draws)."""

    build: Callable
    log_density: Callable
    names: str


def zero_inflated(u):
    psi, y = expit(u[1]), COUNTS[:, None]
    return np.log((1.0 - psi) * (y == 0) + psi * stats.poisson.pmf(y, np.exp(u[0])))


CASES = {
    "scale": Case(
        lambda: pm.Normal("y", latent("f"), sigma=exp(latent("g")), observed=REAL),
        lambda u: stats.norm.logpdf(REAL[:, None], u[0], np.exp(u[1])),
        "fg",
    ),
    "one latent in both": Case(
        lambda: pm.Normal(
            "y", (f := latent("f")), sigma=exp(0.5 * (f + latent("g"))), observed=REAL
        ),
        lambda u: stats.norm.logpdf(REAL[:, None], u[0], np.exp(0.5 * (u[0] + u[1]))),
        "fg",
    ),
    "zero-inflated": Case(
        lambda: pm.ZeroInflatedPoisson(
            "y", mu=exp(latent("f")), psi=sigmoid(latent("g")), observed=COUNTS
        ),
        zero_inflated,
        "fg",
    ),
    "classes that share a latent": Case(
        lambda: pm.Categorical(
            "y",
            logit_p=pt.stack([(f := latent("f")), f + latent("g"), -f], axis=-1),
            observed=CLASSES,
        ),
        lambda u: log_softmax(np.stack([u[0], u[0] + u[1], -u[0]]), axis=0)[CLASSES, [0, 1]],
        "fg",
    ),
}


def model_of(case):
    with pm.Model() as model:
        CASES[case].build()
    return model


class Posterior(NamedTuple):
    """By importance sampling from the prior: log p(y), draws of all latents, and their weights."""

    evidence: float
    draws: np.ndarray
    weights: np.ndarray

    @property
    def moments(self):
        return np.concatenate([self.draws, self.draws**2]) @ self.weights


def posterior(case):
    rng = np.random.default_rng(1)
    z = rng.standard_normal((len(CASES[case].names), 2, N_PRIOR))
    u = np.einsum("ij,pjs->pis", np.linalg.cholesky(K), z)
    log_weights = CASES[case].log_density(u).sum(axis=0)
    weights = np.exp(log_weights - log_weights.max())
    evidence = np.log(weights.mean()) + log_weights.max()
    weights /= weights.sum()
    assert np.sum(weights**2) < 20.0 / N_PRIOR
    return Posterior(evidence, u.reshape(-1, N_PRIOR), weights)


@pytest.mark.parametrize("case", CASES)
def test_held_sites_have_the_posterior(case):
    model = model_of(case)
    assert pac.AugmentedGibbs(model=model).held == ("y",)
    drawn = pac.sample(400, tune=60, chains=1, random_seed=5, model=model, **QUIET).posterior
    latents = np.hstack([drawn[name].values[0] for name in CASES[case].names])
    draws = np.hstack([latents, latents**2])
    ess = [float(az.ess(column[None])) for column in draws.T]
    assert min(ess) > 100.0
    error = np.array([float(az.mcse(column[None])) for column in draws.T])
    assert np.abs((draws.mean(axis=0) - posterior(case).moments) / error).max() < 5.0
    # Negative control: the prior is told apart.
    prior = np.concatenate([np.zeros(4), np.tile(np.diag(K), 2)])
    assert np.abs((draws.mean(axis=0) - prior) / error).max() > 5.0


@pytest.mark.parametrize("case", CASES)
def test_variational_bound(case):
    """It is below log p(y), and above that of the normal distribution with the same moments."""
    fit = pac.fit("vgp", model=model_of(case), progressbar=False)
    exact = posterior(case)
    assert fit.converged
    assert fit.is_bound
    assert fit.log_evidence < exact.evidence
    names = CASES[case].names
    mean, cov = exact.draws @ exact.weights, np.cov(exact.draws, aweights=exact.weights)
    q = stats.multivariate_normal(mean, cov)
    prior = stats.multivariate_normal(np.zeros(mean.size), np.kron(np.eye(len(names)), K))
    u = q.rvs(20_000, random_state=2)
    log_density = CASES[case].log_density(u.T.reshape(len(names), 2, -1)).sum(axis=0)
    terms = log_density + prior.logpdf(u) - q.logpdf(u)
    assert fit.log_evidence > terms.mean() - 5.0 * terms.std() / np.sqrt(len(u))
    # Negative control: the prior itself is no such approximation.
    away = CASES[case].log_density(prior.rvs(20_000, random_state=2).T.reshape(len(names), 2, -1))
    assert away.sum(axis=0).mean() < fit.log_evidence - 0.1


def test_pymc_samples_it():
    with pm.Model():
        CASES["zero-inflated"].build()
        idata = pm.sample(5, tune=5, chains=1, step=pac.AugmentedGibbs(), random_seed=1, **QUIET)
    assert idata.posterior["f"].shape == (1, 5, 2)


def test_a_fit_by_coordinate_ascent_says_what_to_do():
    with pytest.raises(pac.AugmentationError, match=r"'y'.*\"vgp\" approximates it"):
        pac.fit("cavi", model=model_of("scale"), progressbar=False)


def test_log_likelihood_of_an_approximation():
    fit = pac.fit("vgp", model=model_of("scale"), progressbar=False)
    tree = fit.sample(50, random_seed=1, log_likelihood=True)
    f, g = (tree.posterior[name].values for name in "fg")
    expected = stats.norm.logpdf(REAL, f, np.exp(g))
    np.testing.assert_allclose(tree.log_likelihood["y"], expected, rtol=1e-10)
    # Weights of an approximation that is not far from the posterior.
    log_ratio = tree.sample_stats["log_p"] - tree.sample_stats["log_q"]
    assert 0.0 < float(log_ratio.std()) < 2.0


def test_auxiliary_variables_are_not_written_into_a_model():
    with pm.Model() as model:
        F = pm.MvNormal("F", np.zeros(2), K, shape=(3, 2))
        pm.Categorical("y", logit_p=F.T, observed=CLASSES)
    with pytest.raises(pac.AugmentationError, match=r"'y'.*one predictor, found 3.*pac\.sample"):
        pac.augment(model)


@pytest.mark.parametrize("method", ["ep", "qp"])
def test_engines_of_one_predictor_refuse(method):
    with pytest.raises(pac.AugmentationError, match=r"likelihoods of one predictor.*'vgp'"):
        pac.fit(method, model=model_of("scale"), progressbar=False)
