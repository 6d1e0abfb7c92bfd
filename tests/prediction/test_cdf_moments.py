"""Moments of y from its distribution function, where its density has not given them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from pymc_augconj.likelihoods.generic import GenericLikelihood
from pymc_augconj.prediction.mixtures import (
    DrawnMixture,
    GaussianMixture,
    moments_of_y,
)

MEAN = np.array([-0.4, 1.3, 2.0])


@pytest.fixture
def likelihood():
    """Normal, but its density does not integrate to one, so that it says nothing about moments."""

    def log_density(y, eta, params):
        with np.errstate(over="ignore"):
            return norm.logpdf(y, eta[0], params["sigma"]) + 0.01

    return GenericLikelihood(
        "rough",
        "identity",
        log_density,
        lambda y, eta, params: norm.logcdf(y, eta[0], params["sigma"]),
    )


def test_density_says_nothing(likelihood):
    mixture = GaussianMixture(likelihood, MEAN, np.ones(3), {"sigma": np.array(0.7)})
    assert np.isnan(mixture.moments()[1]).all()


def test_over_a_gaussian_predictor(likelihood):
    mixture = GaussianMixture(likelihood, MEAN, np.full(3, 0.25), {"sigma": np.array(0.7)})
    mean, var = moments_of_y(mixture)
    np.testing.assert_allclose(mean, MEAN, atol=1e-4)
    np.testing.assert_allclose(var, 0.25 + 0.49, rtol=1e-4)


def test_over_draws(likelihood):
    eta = MEAN + np.array([[-0.5], [0.5]])
    mixture = DrawnMixture(likelihood, eta[None], {"sigma": np.array([[0.7]] * 2)})
    mean, var = moments_of_y(mixture)
    np.testing.assert_allclose(mean, MEAN, atol=1e-4)
    np.testing.assert_allclose(var, 0.25 + 0.49, rtol=1e-4)


def test_with_a_parameter_for_each_input(likelihood):
    sigma = np.array([0.5, 2.0, 0.5])
    draws = MEAN + np.array([[-0.5], [0.5]])
    for mixture in (
        GaussianMixture(likelihood, MEAN, np.full(3, 0.25), {"sigma": sigma}),
        DrawnMixture(likelihood, draws[None], {"sigma": sigma}),
    ):
        mean, var = moments_of_y(mixture)
        np.testing.assert_allclose(mean, MEAN, atol=1e-3)
        np.testing.assert_allclose(var, 0.25 + sigma**2, rtol=1e-4)
