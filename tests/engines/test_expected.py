"""Expectations of a log density over the residual of its predictor."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.engines.sparse.expected import ExpectedDensity, residual_name
from pymc_augconj.likelihoods.bernoulli_logit import BernoulliLogit
from pymc_augconj.likelihoods.poisson_log import PoissonLog
from pymc_augconj.likelihoods.several import MultiDensity, as_several
from pymc_augconj.likelihoods.softmax import Categorical
from pymc_augconj.likelihoods.student_t import StudentT
from pymc_augconj.quadrature.expectation import gaussian_expectation
from pymc_augconj.quadrature.nodes import normal_nodes

VAR = residual_name(0)
CASES = {
    "logit": (BernoulliLogit(), np.array([0.0, 1.0, 1.0]), {}),
    "student": (
        StudentT(),
        np.array([0.3, -2.0, 5.0]),
        {"nu": np.array(3.0), "sigma": np.array([1.0, 2.0, 1.5])},
    ),
    "poisson": (PoissonLog(), np.array([0.0, 3.0, 9.0]), {"exposure": np.array(2.0)}),
}


@pytest.mark.parametrize("name", CASES)
def test_log_density_is_the_integral_over_the_residual(name):
    likelihood, y, params = CASES[name]
    var = np.array([1e-12, 0.1, 0.25])
    eta = np.random.default_rng(0).normal(size=(1, 2, 3))
    density = ExpectedDensity(as_several(likelihood))
    found = density.log_density(y, eta, {**params, VAR: var})

    def log_density(at, which):
        columns = {k: np.broadcast_to(v, 3)[which, None] for k, v in params.items()}
        return likelihood.log_density(y[which, None], at, columns)

    for row, own in zip(eta[0], found, strict=True):
        expected = gaussian_expectation(log_density, row, var)[0]
        np.testing.assert_allclose(own, expected, rtol=1e-9)
        alone = density.log_density(y, row[None], {**params, VAR: var})
        np.testing.assert_allclose(alone, own, rtol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_residuals_add_to_the_variance_of_an_approximation(name):
    likelihood, y, params = CASES[name]
    mean, var = np.array([[0.1, 0.4, 1.0]]), np.array([0.3, 0.2, 0.1])
    density = ExpectedDensity(as_several(likelihood))
    given = density.expected_log_density(y, mean, var[None, None], {**params, VAR: 2 * var})
    whole = density.log_density(y, mean, {**params, VAR: 3 * var})
    np.testing.assert_allclose(given[0], whole, rtol=1e-6)
    step = 1e-5
    moved = density.log_density(y, mean, {**params, VAR: 3 * var + step})
    np.testing.assert_allclose(given[2][0, 0], (moved - whole) / step, rtol=1e-3)


class Quartic(MultiDensity):
    """A density whose expectation is a polynomial."""

    name, n_predictors = "quartic", 2

    def log_density(self, y, eta, params):
        return -((eta[0] - y) ** 2) * (1.0 + eta[1] ** 2)


def test_residuals_of_two_predictors_are_independent():
    rng = np.random.default_rng(1)
    y, eta = rng.normal(size=4), rng.normal(size=(2, 3, 4))
    first, second = rng.uniform(0.1, 2.0, (2, 4))
    params = {residual_name(0): first, residual_name(1): second}
    expected = -((eta[0] - y) ** 2 + first) * (1.0 + eta[1] ** 2 + second)
    density = ExpectedDensity(Quartic())
    np.testing.assert_allclose(density.log_density(y, eta, params), expected, rtol=1e-12)
    assert density.error(y, eta[:, 0], params) < 1e-9
    # Exchanged, they give another one.
    swapped = {residual_name(0): second, residual_name(1): first}
    assert np.abs(density.log_density(y, eta, swapped) - expected).max() > 0.1


def test_classes_are_expected_as_a_sum_that_states_its_error():
    rng = np.random.default_rng(2)
    y, eta = np.array([0.0, 2.0, 1.0]), rng.normal(size=(3, 3))
    var = rng.uniform(0.1, 1.0, (3, 3))
    params = {residual_name(p): own for p, own in enumerate(var)}
    terms = Categorical(3)
    density = ExpectedDensity(terms)
    cov = np.einsum("pq,pn->pqn", np.eye(3), var)
    exact = terms.expected_log_density(y, eta, cov, {})[0]
    np.testing.assert_allclose(
        density.summed(y, eta, params, *normal_nodes(3, n_nodes=32)), exact, rtol=1e-9
    )
    found = density.log_density(y, eta[:, None], params)[0]
    np.testing.assert_allclose(found, exact, atol=2e-5)
    error = np.abs(np.sum(found - exact))
    assert 0.9 * error < density.error(y, eta, params) < 1.1 * error


@pytest.mark.parametrize("dimension", [1, 2, 3, 5])
def test_nodes_have_the_moments_of_normal_numbers(dimension):
    for refinement in (1, 2):
        nodes, weights = normal_nodes(dimension, refinement)
        assert weights.sum() == pytest.approx(1.0)
        np.testing.assert_allclose(nodes @ weights, 0.0, atol=1e-12)
        np.testing.assert_allclose((nodes * weights) @ nodes.T, np.eye(dimension), atol=1e-10)
