"""QP: its guarantees against EP, the Wasserstein distance by brute force, convergence."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri

from benchmarks.ep_on_arrays import dense_prior, run_ep, run_qp
from pymc_augconj.engines.ep.objective import (
    EPObjective,
    SiteGroup,
    all_moments,
)
from pymc_augconj.engines.ep.solve import solve, solve_qp
from pymc_augconj.likelihoods.bernoulli_logit import BernoulliLogit
from pymc_augconj.likelihoods.bernoulli_probit import BernoulliProbit
from pymc_augconj.likelihoods.contract import LikelihoodDensity
from pymc_augconj.likelihoods.laplace import Laplace
from pymc_augconj.likelihoods.normal import Normal
from pymc_augconj.likelihoods.student_t import StudentT

LIKELIHOODS = {
    "logit": (BernoulliLogit(), {}),
    "probit": (BernoulliProbit(), {}),
    "laplace": (Laplace(), {"b": np.asarray(0.5)}),
    "student_t": (StudentT(), {"nu": np.asarray(3.0), "sigma": np.asarray(0.3)}),
}


def problem(name, n=25):
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-3.0, 3.0, n))[:, None]
    C = np.exp(-0.5 * (x - x.T) ** 2)
    likelihood, params = LIKELIHOODS[name]
    y = np.sin(2.0 * x[:, 0]) + 0.3 * rng.standard_t(3, n)
    if likelihood.link != "identity":
        y = (y > 0) * 1.0
    return C, LikelihoodDensity(likelihood, y, params)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_one_observation_is_the_nearest_gaussian(name):
    """The L2 Wasserstein distance to the posterior, from quantiles on a grid of probabilities."""
    likelihood, params = LIKELIHOODS[name]
    density = LikelihoodDensity(likelihood, np.ones(1), params)
    objective = EPObjective(
        dense_prior(np.array([[2.0]]), np.array([-0.7])), (SiteGroup(slice(None), density),)
    )
    ep, qp = solve(objective).evaluation, solve_qp(objective).evaluation
    f = np.linspace(-13.0, 12.0, 2_000_001)
    p = np.exp(density(f[:, None], np.zeros(1, dtype=int))[:, 0] - 0.25 * (f + 0.7) ** 2)
    F = np.cumsum(p) - 0.5 * p
    F /= p.sum()
    inside = (F > 1e-13) & (F < 1.0 - 1e-13)
    weight, z = p[inside] / p.sum(), ndtri(F[inside])
    # argmin over (μ, σ) of E[(f − μ − σz)²]: a regression of quantiles on those of N(0, 1).
    mean = weight @ f[inside]
    std = weight @ ((f[inside] - mean) * z)
    assert qp.mean[0] == pytest.approx(mean, abs=1e-7)
    assert np.sqrt(qp.var[0]) == pytest.approx(std, abs=1e-7)
    assert ep.mean[0] == pytest.approx(qp.mean[0], abs=1e-8)
    assert qp.var[0] < ep.var[0]


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_guarantees_for_the_same_tilted_distributions(name):
    C, density = problem(name)
    objective = EPObjective(dense_prior(C, np.zeros(25)), (SiteGroup(slice(None), density),))
    at = solve(objective).evaluation
    delta = all_moments(objective.groups, at.cavity_mean, at.cavity_var, delta=True).delta
    assert (delta > 0.0).all()
    assert (delta < 1.0).all()
    shrunk = objective.rematched(at, 1.0 - delta)
    # The same mean, no more variance, no less precision than EP's update from the same state.
    assert (shrunk.matched_var < at.matched_var).all()
    assert (shrunk.target_lam > at.target_lam).all()
    gain = ((1.0 - delta) ** -2 - 1.0) / at.tilted.var
    np.testing.assert_allclose(shrunk.target_lam - at.target_lam, gain, rtol=1e-6, atol=1e-10)
    for one in (at, shrunk):
        nu = at.cavity_mean / at.cavity_var + one.target_h
        mean = nu / (1.0 / at.cavity_var + one.target_lam)
        np.testing.assert_allclose(mean, at.tilted.mean, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_fixed_point_agrees_with_its_own_delta(name):
    C, density = problem(name)
    objective = EPObjective(dense_prior(C, np.zeros(25)), (SiteGroup(slice(None), density),))
    ep, qp = solve(objective), solve_qp(objective)
    assert qp.converged
    at = objective.evaluate(qp.evaluation.h, qp.evaluation.lam)
    delta = all_moments(objective.groups, at.cavity_mean, at.cavity_var, delta=True).delta
    np.testing.assert_allclose(at.mean, at.tilted.mean, atol=1e-8)
    np.testing.assert_allclose(np.sqrt(at.var), np.sqrt(at.tilted.var) * (1.0 - delta), rtol=1e-8)
    assert at.bound == qp.evaluation.bound
    assert (at.var < ep.evaluation.var).all()


def test_starts_agree_and_ep_is_the_default():
    C, density = problem("logit")
    start, _ = run_ep(C, np.zeros(25), density)
    first, info = run_qp(C, np.zeros(25), density, (start.h, start.lam))
    for other_start in (None, (np.zeros(25), np.zeros(25))):
        second, other = run_qp(C, np.zeros(25), density, other_start)
        assert other.converged
        np.testing.assert_allclose(first.lam, second.lam, atol=1e-7)
        assert other.evidence == pytest.approx(info.evidence, abs=1e-9)


def test_normal_likelihood_needs_no_sweep():
    """δ = 0 for a Gaussian tilted distribution: QP stays at EP's solution."""
    rng = np.random.default_rng(0)
    C = np.exp(-0.5 * np.subtract.outer(np.arange(6.0), np.arange(6.0)) ** 2)
    density = LikelihoodDensity(Normal(), rng.standard_normal(6), {"sigma": np.asarray(0.5)})
    state, info = run_qp(C, np.zeros(6), density)
    assert info.sweeps == 0
    np.testing.assert_allclose(state.lam, 4.0, rtol=1e-8)


@pytest.mark.parametrize("seed", range(12))
def test_hard_set_converges(seed):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-3.0, 3.0, 30))[:, None]
    C = np.exp(-0.5 * (x - x.T) ** 2) + 1e-8 * np.eye(30)
    y = np.linalg.cholesky(C) @ rng.standard_normal(30) + 0.1 * rng.standard_t(2, 30)
    y[rng.choice(30, 6, replace=False)] += rng.choice([-1.0, 1.0], 6) * rng.uniform(3, 10, 6)
    params = {"nu": np.asarray(2.0), "sigma": np.asarray(0.1)}
    state, info = run_qp(C, np.zeros(30), LikelihoodDensity(StudentT(), y, params))
    assert info.converged, info.message
    assert info.n_negative == np.count_nonzero(state.lam < 0.0)


def test_too_few_sweeps_are_told():
    C, density = problem("student_t")
    start, _ = run_ep(C, np.zeros(25), density)
    _, info = run_qp(C, np.zeros(25), density, (start.h, start.lam), max_iter=1)
    assert not info.converged
    assert "increase max_iter" in info.message
