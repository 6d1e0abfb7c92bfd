"""Expectations of a log density over the residual of its predictor."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.engines.sparse.weights import ExpectedDensity, residual_name
from pymc_augconj.engines.variational.bound import expectations
from pymc_augconj.likelihoods.bernoulli_logit import BernoulliLogit
from pymc_augconj.likelihoods.contract import MultiDensity, lift
from pymc_augconj.likelihoods.logistic_softmax import LogisticSoftmax
from pymc_augconj.likelihoods.poisson_log import PoissonLog
from pymc_augconj.likelihoods.robust_max import RobustMax
from pymc_augconj.likelihoods.softmax import Categorical, Multinomial
from pymc_augconj.likelihoods.student_t import StudentT
from pymc_augconj.quadrature.expectation import gaussian_expectation, normal_nodes

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
    density = ExpectedDensity(lift(likelihood))
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
    density = ExpectedDensity(lift(likelihood))
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
    # Held sites need few digits, from however wide a prior.
    rough = density.expected_log_density(y, eta, cov, params)
    for found, own in zip(rough, terms.expected_log_density(y, eta, 2.0 * cov, {}), strict=True):
        np.testing.assert_allclose(found, own, atol=0.01)
        assert not np.array_equal(found, own)
    # The sampler's rule has fewer nodes than PyMC's model, and is more accurate.
    found = density.log_density(y, eta[:, None], params)[0]
    np.testing.assert_allclose(found, exact, atol=2e-6)
    whole = density.summed(y, eta, params, *normal_nodes(3, 2)).sum()
    assert density.error(y, eta, params) == pytest.approx(abs(whole - found.sum()))
    np.testing.assert_allclose(density.summed(y, eta, params, *normal_nodes(3)), exact, atol=2e-5)


SEVERAL = {
    "softmax of two": (Categorical(2), np.array([0.0, 1.0, 1.0]), {}),
    "softmax": (Categorical(3), np.array([0.0, 2.0, 1.0]), {}),
    "softmax with a reference": (Categorical(2, reference=1), np.array([0.0, 2.0, 1.0]), {}),
    "softmax of five": (Categorical(5), np.array([0.0, 4.0, 1.0]), {}),
    "multinomial": (
        Multinomial(2),
        np.array([3.0, 5.0, 2.0]),
        {"entry_0": np.array([1.0, 5.0, 0.0]), "entry_1": np.array([2.0, 0.0, 2.0])},
    ),
    "logistic-softmax": (LogisticSoftmax(2), np.array([0.0, 1.0, 1.0]), {}),
    "robust-max": (RobustMax(4), np.array([0.0, 2.0, 3.0]), {"epsilon": np.array(0.01)}),
    "Student-t": (lift(StudentT()), *CASES["student"][1:]),
}


@pytest.mark.parametrize("scale", [1.0, 8.0])
@pytest.mark.parametrize("name", SEVERAL)
def test_value_and_gradient_are_those_of_the_expectation(name, scale):
    """Also where classes are so far apart that some are left out."""
    terms, y, params = SEVERAL[name]
    rng, P = np.random.default_rng(4), terms.n_predictors
    eta, along = rng.normal(size=(2, P, 3))
    eta *= scale
    var = rng.uniform(0.1, 0.6, (P, 3))
    params = params | {residual_name(p): own for p, own in enumerate(var)}
    density = ExpectedDensity(terms)
    value, gradient = density.log_density_and_gradient(y, eta, params)
    np.testing.assert_allclose(density.log_density(y, eta, params), value, rtol=1e-13)
    cov = np.einsum("pq,pn->pqn", np.eye(P), var)
    whole = expectations(terms, y, eta, cov, params)[0]
    # For more than three classes both are by fixed points, of which each has its own.
    np.testing.assert_allclose(value, whole, atol=3e-3 if name == "softmax of five" else 1e-5)
    step = 1e-4
    ends = [density.log_density(y, eta + t * along, params) for t in (step, -step)]
    slope = (ends[0] - ends[1]) / (2.0 * step)
    np.testing.assert_allclose(np.sum(gradient * along, axis=0), slope, atol=1e-5)


@pytest.mark.parametrize("dimension", [1, 2, 3, 5])
def test_nodes_have_the_moments_of_normal_numbers(dimension):
    for refinement in (1, 2):
        nodes, weights = normal_nodes(dimension, refinement)
        assert weights.sum() == pytest.approx(1.0)
        np.testing.assert_allclose(nodes @ weights, 0.0, atol=1e-12)
        np.testing.assert_allclose((nodes * weights) @ nodes.T, np.eye(dimension), atol=1e-10)
