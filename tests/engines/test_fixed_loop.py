"""The loop without hyperparameters: exact moments, and draws that do not depend on its blocks."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.engines.gibbs.native import fixed
from pymc_augconj.engines.gibbs.native.fixed import FixedLoop
from pymc_augconj.engines.gibbs.tilted import Tilted
from pymc_augconj.python_mode.tape import NoTapeError

COUNTS = np.array([0, 3])
MEAN, JITTER = 0.4, 1e-6
STEPS = 20_000


def process_and_intercept():
    """A whitened process beside a centred intercept with a mean of its own."""
    cov = pm.gp.cov.ExpQuad(1, ls=0.5)
    gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(MEAN), cov_func=cov)
    f = gp.prior("f", X=np.array([[0.0], [0.5]]), jitter=JITTER)
    b = pm.Normal("b", 0.3, 0.8)
    pm.Poisson("y", pm.math.exp(f + b), observed=COUNTS)


def by_quadrature():
    """Return means, and means of squares, of both v and of b, on a grid."""
    grid = np.linspace(-6.0, 6.0, 121)
    v0, v1, z = np.meshgrid(grid, grid, grid, indexing="ij")
    L = np.linalg.cholesky(
        np.array([[1.0, np.exp(-0.5)], [np.exp(-0.5), 1.0]]) + JITTER * np.eye(2)
    )
    b = 0.3 + 0.8 * z
    log_density = -0.5 * (v0**2 + v1**2 + z**2)
    for i in range(2):
        eta = MEAN + L[i, 0] * v0 + L[i, 1] * v1 + b
        log_density += COUNTS[i] * eta - np.exp(eta)
    weights = np.exp(log_density - log_density.max())
    x = np.stack([v0, v1, b])
    return [np.sum(weights * g, axis=(1, 2, 3)) / weights.sum() for g in (x, x**2)]


@pytest.fixture(scope="module")
def tuned():
    with pm.Model() as model:
        process_and_intercept()
    step = pac.AugmentedGibbs(model=model)
    point = model.initial_point()
    step.setup_chain(np.random.default_rng(1), 30, 0)
    for _ in range(30):
        point, _ = step.step(point)
    return step, FixedLoop(step._sampler, point), point


def drawn(tuned, steps, rng):
    step, loop, point = tuned
    block = loop.run(rng, step._sampler, point, {}, steps, tune=False)
    *_, last = block.points()
    return block, last


def z_scores(outputs):
    """Return how far moments of draws are from exact ones, in standard errors."""
    scores = []
    for exact, x in zip(by_quadrature(), (outputs, outputs**2), strict=True):
        ess = np.array([az.ess(column[None], method="mean") for column in x.T])
        assert ess.min() > 0.1 * len(x)
        scores.append((x.mean(axis=0) - exact) / (x.std(axis=0) / np.sqrt(ess)))
    return np.abs(scores)


def test_moments_are_exact(tuned):
    block, last = drawn(tuned, STEPS, np.random.default_rng(2))
    assert block.residual.std() > 0.05  # the sites are not the densities
    assert z_scores(block.outputs).max() < 4.5
    step, loop, _ = tuned
    loop.check_density(step._sampler, last, block.log_density[-1])


def test_those_of_wrong_sites_are_not(tuned):
    loop = tuned[1]
    key, given, evidence = loop._given
    loop._given = key, given._replace(h=given.h + 0.3), evidence
    try:
        block, _ = drawn(tuned, STEPS, np.random.default_rng(2))
    finally:
        loop._given = key, given, evidence
    assert z_scores(block.outputs).max() > 10.0


def test_blocks_do_not_change_the_draws(tuned):
    step, loop, point = tuned
    whole, _ = drawn(tuned, 40, np.random.default_rng(3))
    rng, rows = np.random.default_rng(3), []
    for steps in (1, 7, 12, 20):
        block, point = drawn((step, loop, point), steps, rng)
        rows.append(block.outputs)
    np.testing.assert_array_equal(np.concatenate(rows), whole.outputs)


def test_further_values_are_those_of_the_draws():
    with pm.Model():
        a, b = pm.Normal("a"), pm.Normal("b", 1.0, 0.5, shape=3)
        eta = pm.Deterministic("eta", a + pm.math.exp(b)[np.arange(40) % 3])
        pm.Deterministic("square", pm.math.sum(b**2))
        pm.Bernoulli("y", logit_p=eta, observed=np.arange(40) % 2)
        draws = pac.sample(600, chains=1, random_seed=1, progressbar=False)["posterior"]
    a, b = draws["a"].values[..., None], draws["b"].values
    # Exponentials are not the C library's.
    eta = a + np.exp(b)[..., np.arange(40) % 3]
    np.testing.assert_allclose(draws["eta"], eta, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(draws["square"], (b**2).sum(axis=-1), rtol=1e-13)


def test_new_sites_are_taken(tuned):
    """Sites that are chosen anew have another Gaussian distribution, and the same posterior."""
    sites = tuned[0]._sampler.sites
    before = sites.chosen
    sites.h, sites.lam = sites.h + 0.5, 1.3 * sites.lam
    try:
        block, _ = drawn(tuned, STEPS, np.random.default_rng(4))
    finally:
        sites.h, sites.lam = before
    assert z_scores(block.outputs).max() < 4.5


def test_sites_that_fit_badly_are_refused(tuned, monkeypatch):
    step, _, point = tuned
    monkeypatch.setattr(Tilted, "can_follow", True)
    monkeypatch.setattr(fixed, "_LARGEST_STD", 0.01)
    with pytest.raises(NoTapeError, match="fit badly"):
        FixedLoop(step._sampler, point)


def test_learned_hyperparameters_are_refused():
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, pm.HalfNormal("tau"), shape=2)
        pm.Poisson("y", pm.math.exp(a), observed=COUNTS)
    step = pac.AugmentedGibbs(model=model)
    start = step._default_start
    with pytest.raises(NoTapeError, match="hyperparameters"):
        FixedLoop(step.make_sampler(start), start)
