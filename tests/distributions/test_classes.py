"""Distributions of classes: their log probabilities are the likelihoods', and they are drawn."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.likelihoods.logistic_softmax import LogisticSoftmax
from pymc_augconj.likelihoods.robust_max import RobustMax
from tests.modes import AS_WRITTEN

F = np.random.default_rng(0).normal(size=(5, 3))
CASES = {
    "logistic-softmax": (pac.LogisticSoftmax, LogisticSoftmax(3), {}),
    "robust-max": (pac.RobustMax, RobustMax(3), {"epsilon": np.array(0.1)}),
}
over = pytest.mark.parametrize(("rv", "likelihood", "params"), CASES.values(), ids=CASES)


def log_p(rv, params, value, f=F):
    return pm.logp(rv.dist(f, **params), value).eval(mode=AS_WRITTEN)


@over
def test_log_probability_is_the_likelihoods(rv, likelihood, params):
    for k in range(3):
        found = log_p(rv, params, np.full(5, k))
        expected = likelihood.log_density(np.full(5, float(k)), F.T, params)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.isneginf(log_p(rv, params, np.array([-1, 3, 7, -2, 3]))).all()


@over
def test_draws_have_these_probabilities(rv, likelihood, params):
    size = 20_000
    draws = pm.draw(rv.dist(F, **params, shape=(size, 5)), random_seed=1)
    assert draws.shape == (size, 5)
    for k in range(3):
        p = np.exp(likelihood.log_density(np.full(5, float(k)), F.T, params))
        error = np.abs((draws == k).mean(axis=0) - p) / np.sqrt(p * (1.0 - p) / size)
        assert error.max() < 5.0
        # Negative control: another class's probabilities.
        other = np.abs((draws == (k + 1) % 3).mean(axis=0) - p) / np.sqrt(p * (1.0 - p) / size)
        assert other.max() > 5.0


@over
def test_in_a_model(rv, likelihood, params):
    with pm.Model() as model:
        b = pm.Normal("b", shape=3)
        rv("y", b, **params, observed=np.array([0, 2]))
        rv("z", b, **params, shape=4)
    assert model.initial_point()["z"].shape == (4,)
    assert model["z"].eval(mode=AS_WRITTEN).shape == (4,)


def test_a_probability_of_mistakes_out_of_range():
    found = log_p(pac.RobustMax, {"epsilon": np.array([0.0, 1.5, 0.2, -0.1, 1.0])}, np.zeros(5))
    np.testing.assert_array_equal(np.isfinite(found), [False, False, True, False, False])
