"""Simulation-based calibration of the whole step, hyperparameters learned.

Parameters and observations are drawn from the model, the posterior of the observations is sampled
from a start that knows nothing of those parameters, and the parameters are ranked among thinned
draws. If the sampler is right, every rank is uniform.

Talts, S., Betancourt, M., Simpson, D., Vehtari, A. & Gelman, A. (2018). Validating Bayesian
inference algorithms with simulation-based calibration. arXiv:1804.06788.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy import stats

from pymc_augconj.plan import Factors

FALSE_ALARMS = 1e-6  # of each of the tests below, all its quantities together
TUNE, THIN, KEPT = 20, 2, 15
BINS = 8  # of the KEPT + 1 ranks, two a bin
LARGEST_AUTOCORRELATION = 0.2  # of the thinned draws: below it they count as independent


def student_t_regression():
    ls, eta = pm.InverseGamma("ls", 5, 3), pm.Gamma("eta", 4, 4)
    sigma = pm.Gamma("sigma", 8, 8)
    X = np.linspace(0.0, 1.0, 8)[:, None]
    index = np.repeat(np.arange(8), 3)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
    f = gp.prior("f", X=X)
    pm.StudentT("y", nu=4, mu=f[index], sigma=sigma, observed=pm.Data("y data", np.zeros(24)))


# A density without an augmentation: its sites are held. Others of this kind are in
# test_held_joint_distribution.py.


def poisson():
    ls, eta = pm.InverseGamma("ls", 5, 3), pm.Gamma("eta", 4, 5)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
    f = 1.0 + gp.prior("f", X=np.linspace(0.0, 1.0, 6)[:, None])
    rate = pm.math.exp(f[np.repeat(np.arange(6), 2)])
    pm.Poisson("y", rate, observed=pm.Data("y data", np.zeros(12, dtype=int)))


# Several predictors an observation, in groups that are drawn one after the other.


def softmax():
    eta = pm.Gamma("eta", 6, 4)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=0.4))
    F = gp.prior("F", X=np.linspace(0.0, 1.0, 4)[:, None], n_outputs=3)
    logits = F.T[np.repeat(np.arange(4), 3)] + pm.Normal("b", 0.0, 0.7, shape=3)
    pm.Categorical("y", logit_p=logits, observed=pm.Data("y data", np.zeros(12, dtype=int)))


# Priors with banded precisions.


def walk_of_counts():
    step, init = pm.Gamma("step", 6, 12), pm.Normal.dist(1.0, 0.5)
    h = pm.GaussianRandomWalk("h", mu=0.1, sigma=step, init_dist=init, shape=8)
    pm.Poisson("y", pm.math.exp(h), observed=pm.Data("y data", np.zeros(8, dtype=int)))


def autoregression_with_outliers():
    rho, s = pm.Normal("rho", 0.6, 0.15, shape=1), pm.Gamma("s", 6, 6)
    a = pm.AR("a", rho=rho, sigma=s, init_dist=pm.Normal.dist(0, 1), shape=8)
    pm.StudentT("y", nu=4, mu=a, sigma=0.5, observed=pm.Data("y data", np.zeros(8)))


# Crossed factors.

_RNG = np.random.default_rng(8)
LEVELS = [np.arange(30) % 5, _RNG.integers(4, size=30)]
COVARIATE = _RNG.normal(size=30)


def crossed_slopes():
    eta = pm.Normal("i0", 0.3, 0.7) + pm.Normal("slope", 0, 0.7) * COVARIATE
    for k, own in enumerate(LEVELS):
        sd = pm.Gamma.dist(4, 5, shape=2)
        chol, *_ = pm.LKJCholeskyCov(f"chol {k}", n=2, eta=2, sd_dist=sd)
        u = pm.MvNormal(f"effects {k}", np.zeros(2), chol=chol, shape=(own.max() + 1, 2))
        eta = eta + u[own, 0] + u[own, 1] * COVARIATE
    pm.Bernoulli("y", logit_p=eta, observed=pm.Data("y data", np.zeros(30, dtype=int)))


STRUCTURED = (walk_of_counts, autoregression_with_outliers)


def quantities(joint, points, observed) -> np.ndarray:
    """Return the log likelihood, and the first of the hyperparameters and of the whitened f."""
    return joint.statistics(points, observed)[:, :7]


def calibrate(joint, replications: int, thin: int = THIN):
    """Return the ranks, shape (replications, quantities), and the draws they are ranks among."""
    start, truths, kept = joint.model.initial_point(), joint.prior(replications), []
    observed = joint.observe(truths)
    for data in observed:
        joint.put(data)
        joint.step.setup_chain(joint.rng, TUNE, thin * KEPT)
        point = dict(start)
        for i in range(TUNE + thin * KEPT):
            if i == TUNE:
                joint.step.stop_tuning()
            point, _ = joint.step.step(point)
            if i >= TUNE and (i - TUNE) % thin == thin - 1:
                kept.append(point)
    draws = quantities(joint, kept, [data for data in observed for _ in range(KEPT)])
    draws = draws.reshape(replications, KEPT, -1)
    below = draws < quantities(joint, truths, observed)[:, None]
    return below.sum(axis=1), draws


def autocorrelation(draws: np.ndarray) -> np.ndarray:
    """Return the autocorrelation at lag one within replications, shape (quantities,)."""
    centred = draws - draws.mean(axis=1, keepdims=True)
    found = (centred[:, 1:] * centred[:, :-1]).sum(axis=(0, 1)) / (centred**2).sum(axis=(0, 1))
    # Centring by the mean of few draws lowers it by one over their number.
    return found + 1.0 / KEPT


def smallest_p_value(ranks: np.ndarray) -> float:
    """Return the smallest p-value of two tests of uniformity, times the number of tests made.

    The χ² test sees any shape; the mean rank sees a shift with more power.
    """
    replications, quantities = ranks.shape
    p_values = []
    for column in ranks.T:
        found = np.bincount(column // ((KEPT + 1) // BINS), minlength=BINS)
        p_values.append(stats.chisquare(found).pvalue)
        z = (column.mean() - KEPT / 2) / np.sqrt(KEPT * (KEPT + 2) / 12.0 / replications)
        p_values.append(2.0 * stats.norm.sf(abs(z)))
    return float(min(p_values)) * 2 * quantities


@pytest.mark.slow
def test_ranks_are_uniform(joint_distribution):
    joint = joint_distribution(student_t_regression, seed=3)
    ranks, draws = calibrate(joint, replications=60)
    # Draws that were correlated would make the ranks of an exact sampler too extreme.
    assert autocorrelation(draws).max() < LARGEST_AUTOCORRELATION
    assert smallest_p_value(ranks) > FALSE_ALARMS


@pytest.mark.slow
def test_ranks_with_held_sites_are_uniform(joint_distribution):
    joint = joint_distribution(poisson, seed=5)
    ranks, draws = calibrate(joint, replications=24)
    assert autocorrelation(draws).max() < LARGEST_AUTOCORRELATION
    assert smallest_p_value(ranks) > FALSE_ALARMS


@pytest.mark.slow
def test_ranks_of_groups_of_predictors_are_uniform(joint_distribution):
    joint = joint_distribution(softmax, seed=6, sites="augmented")
    assert not joint.step.held
    # The scale of all classes is updated given their latents.
    assert [h.name for h in joint.step.plan.joint] == ["eta"]
    ranks, draws = calibrate(joint, replications=24)
    assert autocorrelation(draws).max() < LARGEST_AUTOCORRELATION
    assert smallest_p_value(ranks) > FALSE_ALARMS


@pytest.mark.slow
@pytest.mark.parametrize("build", STRUCTURED, ids=lambda build: build.__name__)
def test_ranks_of_series_are_uniform(joint_distribution, build, monkeypatch):
    # So short a series is conditioned by dense matrices elsewhere.
    monkeypatch.setattr("pymc_augconj.latents.by_precision._CALLS", 0.0)
    joint = joint_distribution(build, seed=7)
    assert joint.step._solver.name == "precision"
    assert joint.step.held == (("y",) if build is walk_of_counts else ())
    ranks, draws = calibrate(joint, replications=24)
    assert autocorrelation(draws).max() < LARGEST_AUTOCORRELATION
    assert smallest_p_value(ranks) > FALSE_ALARMS


def by_factor(model, held, point, groups):
    """Return factors of the coefficients, and of the effects of each kind."""
    return Factors(((0, 1), (2,), (3,)), 2.0)


@pytest.mark.slow
def test_ranks_of_crossed_effects_are_uniform(joint_distribution, monkeypatch):
    monkeypatch.setattr("pymc_augconj.api.step.choose_factors", by_factor)
    joint = joint_distribution(crossed_slopes, seed=8)
    assert joint.step.plan.factors is not None
    ranks, draws = calibrate(joint, replications=24, thin=6)
    assert autocorrelation(draws).max() < LARGEST_AUTOCORRELATION
    assert smallest_p_value(ranks) > FALSE_ALARMS


def test_ranks_of_a_wrong_step_are_not(joint_distribution, wrong):
    joint = joint_distribution(student_t_regression, seed=4)
    wrong.scale_precision(joint.step, 2.0)
    ranks, _ = calibrate(joint, replications=24)
    assert smallest_p_value(ranks) < FALSE_ALARMS
