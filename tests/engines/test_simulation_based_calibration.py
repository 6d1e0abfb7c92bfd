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

from pymc_augconj.api import native_step

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


# Priors with banded precisions.


def walk_of_counts():
    step, init = pm.Gamma("step", 6, 12), pm.Normal.dist(1.0, 0.5)
    h = pm.GaussianRandomWalk("h", mu=0.1, sigma=step, init_dist=init, shape=8)
    pm.Poisson("y", pm.math.exp(h), observed=pm.Data("y data", np.zeros(8, dtype=int)))


def autoregression_with_outliers():
    rho, s = pm.Normal("rho", 0.6, 0.15, shape=1), pm.Gamma("s", 6, 6)
    a = pm.AR("a", rho=rho, sigma=s, init_dist=pm.Normal.dist(0, 1), shape=8)
    pm.StudentT("y", nu=4, mu=a, sigma=0.5, observed=pm.Data("y data", np.zeros(8)))


STRUCTURED = (walk_of_counts, autoregression_with_outliers)


def quantities(joint, points, observed) -> np.ndarray:
    """Return the log likelihood, and the first of the hyperparameters and of the whitened f."""
    return joint.statistics(points, observed)[:, :7]


def calibrate(joint, replications: int):
    """Return the ranks, shape (replications, quantities), and the draws they are ranks among."""
    start, truths, kept = joint.model.initial_point(), joint.prior(replications), []
    observed = joint.observe(truths)
    for data in observed:
        joint.put(data)
        joint.step.setup_chain(joint.rng, TUNE, THIN * KEPT)
        point = dict(start)
        for i in range(TUNE + THIN * KEPT):
            if i == TUNE:
                joint.step.stop_tuning()
            point, _ = joint.step.step(point)
            if i >= TUNE and (i - TUNE) % THIN == THIN - 1:
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


@pytest.fixture
def _by_loop(monkeypatch):
    """Let short chains have the compiled loop too, as long ones do."""
    monkeypatch.setattr(native_step, "_FEWEST", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("_by_loop")
def test_ranks_are_uniform(joint_distribution):
    joint = joint_distribution(student_t_regression, seed=3)
    ranks, draws = calibrate(joint, replications=60)
    assert joint.step._loop is not None
    # Draws that were correlated would make the ranks of an exact sampler too extreme.
    assert autocorrelation(draws).max() < LARGEST_AUTOCORRELATION
    assert smallest_p_value(ranks) > FALSE_ALARMS


@pytest.mark.slow
@pytest.mark.usefixtures("_by_loop")
def test_ranks_with_held_sites_are_uniform(joint_distribution):
    joint = joint_distribution(poisson, seed=5)
    ranks, draws = calibrate(joint, replications=24)
    assert joint.step._loop is not None
    assert autocorrelation(draws).max() < LARGEST_AUTOCORRELATION
    assert smallest_p_value(ranks) > FALSE_ALARMS


@pytest.mark.slow
@pytest.mark.usefixtures("_by_loop")
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


def test_ranks_of_a_wrong_step_are_not(joint_distribution, wrong):
    joint = joint_distribution(student_t_regression, seed=4)
    wrong.scale_precision(joint.step, 2.0)
    ranks, _ = calibrate(joint, replications=24)
    assert smallest_p_value(ranks) < FALSE_ALARMS
