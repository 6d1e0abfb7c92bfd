"""Priors with banded precisions agree with their dense twins, and with the Kalman filter."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from statsmodels.datasets import nile

import pymc_augconj as pac
from pymc_augconj.engines.variational.ascent import climb
from pymc_augconj.engines.variational.bound import BoundFamily, VariationalGaussian, bound_gradient

N = 110
RNG = np.random.default_rng(8)
LEVEL = np.cumsum(0.3 * RNG.normal(size=N))
X, COUNTS = RNG.normal(size=N), RNG.poisson(np.exp(LEVEL))


def walk(s):
    return pm.GaussianRandomWalk("z", sigma=s, init_dist=pm.Normal.dist(0, 1), shape=N)


def dense_walk(s):
    steps = pm.math.concatenate([[1.0], s * np.ones(N - 1)])
    root = np.tri(N)
    return pm.MvNormal("z", np.zeros(N), cov=(root * steps**2) @ root.T)


def autoregression(s):
    rho = [0.6, 0.3]
    return pm.AR("z", rho=rho, sigma=s, init_dist=pm.Normal.dist(0, 1, shape=2), shape=N)


def dense_autoregression(s):
    B = np.eye(N) - 0.6 * np.eye(N, k=-1) - 0.3 * np.eye(N, k=-2)
    B[:2] = np.eye(N)[:2]
    steps = pm.math.concatenate([[1.0, 1.0], s * np.ones(N - 2)])
    root = np.linalg.inv(B)
    return pm.MvNormal("z", np.zeros(N), cov=(root * steps**2) @ root.T)


def steps_of_a_walk(s):
    return pt.cumsum(s * pm.Normal("z", 0, 1, shape=N))


def dense_walk_of_steps(s):
    return s * pm.MvNormal("z", np.zeros(N), cov=np.tri(N) @ np.tri(N).T)


W = np.roll(np.eye(N), 1, axis=0) + np.roll(np.eye(N), 3, axis=0)
W = W + W.T


def map_of_areas(s):
    return pm.CAR("z", mu=np.zeros(N), W=W, alpha=0.8, tau=s**-2)


def dense_map(s):
    cov = np.linalg.inv(np.diag(W.sum(0)) - 0.8 * W)
    return pm.MvNormal("z", np.zeros(N), cov=s**2 * cov)


def intrinsic_map(s):
    return pm.ICAR("z", W=W.astype(int), sigma=s, zero_sum_stdev=0.002)


def dense_intrinsic_map(s):
    of_sum = 0.002**2 * np.ones((N, N))
    return pm.MvNormal("z", np.zeros(N), cov=s**2 * np.linalg.pinv(np.diag(W.sum(0)) - W) + of_sum)


TWINS = {
    "walk": (walk, dense_walk),
    "autoregression": (autoregression, dense_autoregression),
    "steps": (steps_of_a_walk, dense_walk_of_steps),
    "map": (map_of_areas, dense_map),
    "intrinsic map": (intrinsic_map, dense_intrinsic_map),
}


def counts(prior):
    with pm.Model() as model:
        s, b = pm.HalfNormal("s", 1), pm.Normal("b", 0, 1)
        eta = b + pm.Normal("beta", 0, 1) * X + pm.LogNormal("a", 0, 0.3) * prior(s)
        pm.Poisson("y", pm.math.exp(eta), observed=COUNTS)
    return model


@pytest.mark.parametrize("name", TWINS)
def test_bound_and_gradient_are_those_of_the_dense_twin(name):
    found = []
    for prior, space in zip(TWINS[name], ("precision", "observation"), strict=True):
        read = pac.recognize(counts(prior))
        point = {**read.start, "s_log__": np.array(-0.9), "a_log__": np.array(0.2)}
        family = BoundFamily(read.model, VariationalGaussian(), [point, *read.probes])
        assert family.preferred.name == space
        bound = family.at(point)
        end = climb(bound, max_iter=50, tol=1e-9).evaluation
        order = np.argsort([block.name for block in read.model.blocks])
        posterior = end.posterior
        var = [posterior.innovation_var(i) for i in order]
        means = [posterior.innovation_means()[i] for i in order]
        gradient = bound_gradient(bound, end)
        found.append([end.bound, gradient["s_log__"], gradient["a_log__"], *var, *means])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)


def test_expectation_propagation_is_that_of_the_dense_twin():
    models = [counts(prior) for prior in TWINS["walk"]]
    fits = [pac.fit("ep", model=m, hyper="fixed", progressbar=False) for m in models]
    assert fits[0].log_evidence == pytest.approx(fits[1].log_evidence, rel=1e-8)
    for moment in ("mean", "std"):
        ours, theirs = (getattr(fit, moment)["z"].values for fit in fits)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


Y = LEVEL + 0.5 * RNG.normal(size=N)
MISSING = np.arange(20, 35)


def kalman_filter(y, step, noise, missing=()):
    """Return the log evidence, and the mean and variance of the last state."""
    mean, var, total = 0.0, 1.0, 0.0
    for t, observed in enumerate(y):
        var += step**2 if t else 0.0
        if t in missing:
            continue
        spread = var + noise**2
        total -= 0.5 * (np.log(2 * np.pi * spread) + (observed - mean) ** 2 / spread)
        gain = var / spread
        mean, var = mean + gain * (observed - mean), (1.0 - gain) * var
    return total, mean, var


@pytest.mark.parametrize("missing", [(), MISSING])
def test_normal_noise_is_filtered(missing):
    seen = np.setdiff1d(np.arange(N), missing)
    with pm.Model() as model:
        z = walk(0.3)
        pm.Normal("y", z[seen] if len(missing) else z, 0.5, observed=Y[seen])
    fit = pac.fit("vgp", model=model, progressbar=False)
    assert fit._latents.space == "precision"
    log_evidence, mean, var = kalman_filter(Y, 0.3, 0.5, missing)
    assert fit.log_evidence == pytest.approx(log_evidence, rel=1e-10)
    assert fit.mean["z"].values[-1] == pytest.approx(mean, rel=1e-8)
    assert fit.std["z"].values[-1] ** 2 == pytest.approx(var, rel=1e-8)


def test_variances_of_the_nile_are_those_published():
    """Of maximum likelihood: Durbin & Koopman (2012), Time Series Analysis by State Space Methods.

    With flat priors on the scales a fit maximises the likelihood.
    """
    flow = nile.load_pandas().data["volume"].to_numpy()
    with pm.Model() as model:
        step, noise = pm.HalfFlat("step", initval=30.0), pm.HalfFlat("noise", initval=100.0)
        init = pm.Normal.dist(1000.0, 1e5)
        level = pm.GaussianRandomWalk("level", sigma=step, init_dist=init, shape=flow.size)
        pm.Normal("flow", level, noise, observed=flow)
    fit = pac.fit("vgp", model=model, progressbar=False)
    assert fit.theta["noise"] ** 2 == pytest.approx(15099, rel=1e-3)
    assert fit.theta["step"] ** 2 == pytest.approx(1469.1, rel=1e-3)


@pytest.mark.parametrize("sites", ["augmented", "held"])
def test_draws_have_the_moments_of_a_kalman_smoother(sites):
    """Noise as good as normal, so that the posterior is known: of held sites and of augmented."""
    with pm.Model() as model:
        pm.StudentT("y", nu=1e4, mu=walk(0.3), sigma=0.5, observed=Y)
    with model:
        step = pac.AugmentedGibbs(rng=3, sites=sites)
        drawn = pm.sample(
            600, tune=50, chains=1, step=step, random_seed=4, progressbar=False,
            compute_convergence_checks=False,
        ).posterior["z"].values[0]  # fmt: skip
    with pm.Model() as normal:
        pm.Normal("y", walk(0.3), 0.5, observed=Y)
    exact = pac.fit("vgp", model=normal, progressbar=False)
    ess = np.array([az.ess(z[None]) for z in drawn.T[::10]])
    assert ess.min() > 100
    error = (drawn.mean(0)[::10] - exact.mean["z"].values[::10]) / exact.std["z"].values[::10]
    assert np.max(np.abs(error) * np.sqrt(ess)) < 5.0
    ratio = drawn.std(0) / exact.std["z"].values
    assert np.abs(np.log(ratio)).max() < 5.0 / np.sqrt(2 * ess.min())
    # The draws know which data they saw.
    assert np.max(np.abs(error + 0.5) * np.sqrt(ess)) > 5.0
