"""A kind of prior made for tests in the engines: its class and an entry in the table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.engines.variational.ascent import climb
from pymc_augconj.engines.variational.bound import BoundFamily, CoordinateAscent
from pymc_augconj.latents import joint
from pymc_augconj.likelihoods.contract import lift
from pymc_augconj.likelihoods.normal import Normal
from pymc_augconj.linalg.linear_map import RowSelection
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.plan import make_plan
from tests.engines.test_several_predictors import Constant
from tests.latents.test_kinds import RandomWalk, a_block

STEP, SIGMA, SIZE = 0.7, 0.4, 5
INDEX = np.array([0, 1, 1, 2, 4, 4])
Y = np.array([0.3, 0.9, 0.5, -0.2, 1.4, 1.1])
COV = STEP**2 * np.minimum.outer(np.arange(1.0, SIZE + 1), np.arange(1.0, SIZE + 1))


@pytest.fixture
def model(monkeypatch) -> LatentGaussianModel:
    monkeypatch.setitem(joint._KINDS, RandomWalk.kind, RandomWalk)
    block = replace(a_block(RandomWalk, SIZE), scale=Constant(np.array(STEP)))
    site = Site(
        name="y", likelihood=lift(Normal()), size=Y.size, rows=slice(0, Y.size), y=Constant(Y),
        params=Constant({"sigma": np.array(SIGMA)}),
    )  # fmt: skip
    return LatentGaussianModel(
        blocks=(block,), sites=(site,), hyperparameters=(), forward=(), n_rows=Y.size,
        offset=Constant(np.zeros(Y.size)), maps=(Constant(RowSelection(INDEX, None, SIZE)),),
        log_prior=Constant(np.array(0.0)), log_prior_gradient=lambda point: {},
        predictor_pullback=lambda point, u, w: {}, predictor=lambda point, u: u["u"][INDEX],
    )  # fmt: skip


def exact():
    """Return the posterior's mean and covariance, and log p(y)."""
    A = np.eye(SIZE)[INDEX]
    C = A @ COV @ A.T + SIGMA**2 * np.eye(Y.size)
    gain = COV @ A.T @ np.linalg.inv(C)
    return gain @ Y, COV - gain @ A @ COV, multivariate_normal(np.zeros(Y.size), C).logpdf(Y)


def test_bound_of_a_normal_likelihood_is_the_evidence(model):
    found = climb(BoundFamily(model, CoordinateAscent(), [{}]).at({}), max_iter=50, tol=1e-10)
    mean, cov, log_evidence = exact()
    assert found.evaluation.bound == pytest.approx(log_evidence, abs=1e-9)
    np.testing.assert_allclose(found.evaluation.mean, mean[INDEX], atol=1e-9)
    np.testing.assert_allclose(found.evaluation.var, np.diag(cov)[INDEX], rtol=1e-9)


def test_gibbs_draws_have_the_posterior(model):
    point = {"u": np.zeros(SIZE)}
    sampler, rng = GibbsSampler(model, make_plan(model), point), np.random.default_rng(1)
    draws = np.empty((4000, SIZE))
    for row in draws:
        point, _ = sampler.step(rng, point, {})
        row[:] = point["u"]
    mean, cov, _ = exact()
    # Without an auxiliary variable nearly independent, and in antithetic order.
    error = np.sqrt(np.diag(cov) / len(draws))
    assert (np.abs(draws.mean(axis=0) - mean) < 5.0 * error).all()
    spread = (draws - mean) @ np.linalg.inv(np.linalg.cholesky(cov)).T
    found = spread.T @ spread / len(draws)
    # Squares of antithetic draws are positively correlated, by a² at lag one.
    inflated = np.sqrt((1.0 + 0.4**4) / (1.0 - 0.4**4))
    assert (np.abs(found - np.eye(SIZE)) < 5.0 * inflated * np.sqrt(2.0 / len(draws))).all()
    assert np.abs(found - 1.2 * np.eye(SIZE)).max() > 5.0 * inflated * np.sqrt(2.0 / len(draws))
