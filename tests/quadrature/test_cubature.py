"""Expectations of several predictors at once, against closed forms and one-dimensional rules."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, log_expit

from pymc_augconj.quadrature.expectation import gaussian_cubature, gaussian_expectation


def moments(P: int, size: int = 4, seed: int = 0):
    rng = np.random.default_rng(seed)
    root = 0.6 * rng.normal(size=(P, P, size))
    return rng.normal(size=(P, size)), np.einsum("pkn,qkn->pqn", root, root)


@pytest.mark.parametrize("P", [1, 2, 3])
def test_an_exponential_has_its_closed_form(P):
    mean, cov = moments(P)
    a = np.linspace(-0.7, 0.9, P + 1)[1:]
    value, d_mean, d_cov = gaussian_cubature(
        lambda eta, which: np.exp(np.einsum("p,pnk->nk", a, eta)), mean, cov
    )
    expected = np.exp(a @ mean + 0.5 * np.einsum("p,pqn,q->n", a, cov, a))
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    np.testing.assert_allclose(d_mean, a[:, None] * expected, rtol=1e-8)
    outer = 0.5 * np.multiply.outer(a, a)
    np.testing.assert_allclose(d_cov, outer[:, :, None] * expected, rtol=1e-7, atol=1e-9)


def test_a_quadratic_form_and_its_derivatives():
    mean, cov = moments(2)
    M = np.array([[1.0, -0.4], [-0.4, 2.0]])
    value, d_mean, d_cov = gaussian_cubature(
        lambda eta, which: np.einsum("pnk,pq,qnk->nk", eta, M, eta), mean, cov
    )
    expected = np.einsum("pn,pq,qn->n", mean, M, mean) + np.einsum("pq,pqn->n", M, cov)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(d_mean, 2.0 * M @ mean, atol=1e-8)
    np.testing.assert_allclose(d_cov, np.repeat(M[:, :, None], 4, axis=2), atol=1e-7)


def test_independent_predictors_are_integrated_one_by_one():
    mean, cov = moments(2)
    cov = cov * np.eye(2)[:, :, None]
    value, _, _ = gaussian_cubature(lambda eta, w: expit(eta[0]) * log_expit(eta[1]), mean, cov)
    first = gaussian_expectation(lambda eta, w: expit(eta), mean[0], cov[0, 0])[0]
    second = gaussian_expectation(lambda eta, w: log_expit(eta), mean[1], cov[1, 1])[0]
    np.testing.assert_allclose(value, first * second, rtol=1e-9)


def test_each_site_has_its_own_function():
    mean, cov = moments(2)
    y = np.arange(4.0)
    found = gaussian_cubature(lambda eta, which: y[which, None] + 0.0 * eta[0], mean, cov)[0]
    np.testing.assert_allclose(found, y)


@pytest.mark.parametrize("sharp", [1.0, 5.0, 25.0])
def test_a_sharp_function_takes_more_nodes_and_is_as_accurate(sharp):
    # A logistic step in one rotated direction: a one-dimensional integral.
    direction = np.array([0.6, 0.8])
    mean, cov = moments(2)
    found = gaussian_cubature(
        lambda eta, w: log_expit(sharp * np.einsum("p,pnk->nk", direction, eta)), mean, cov
    )[0]
    along = np.einsum("p,pqn,q->n", direction, cov, direction)
    expected = gaussian_expectation(lambda x, w: log_expit(sharp * x), direction @ mean, along)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_predictors_that_are_one_and_the_same():
    # V of rank one: (x, −x/2). The expectation is one-dimensional.
    mean = np.array([[0.3, -0.4], [0.1, 0.8]])
    direction = np.array([1.0, -0.5])
    var = np.array([0.7, 2.0])
    cov = np.multiply.outer(np.multiply.outer(direction, direction), var)
    value, d_mean, d_cov = gaussian_cubature(
        lambda eta, w: log_expit(eta[0]) * np.exp(0.3 * eta[1]), mean, cov
    )

    def along(x, w):
        shifted = [mean[p, w, None] + direction[p] * x for p in range(2)]
        return log_expit(shifted[0]) * np.exp(0.3 * shifted[1])

    expected, slope, by_var = gaussian_expectation(along, np.zeros(2), var)
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    np.testing.assert_allclose(direction @ d_mean, slope, rtol=1e-7)
    np.testing.assert_allclose(
        np.einsum("p,pqn,q->n", direction, d_cov, direction), by_var, rtol=1e-3
    )


def test_a_kink_is_left_at_the_accuracy_reached_and_a_nan_stays_one():
    mean, cov = moments(2, size=2)
    found = gaussian_cubature(lambda eta, w: np.abs(eta[0] + eta[1]), mean, cov, rtol=1e-6)[0]
    scale = np.sqrt(np.einsum("pqn->n", cov))
    exact = gaussian_expectation(lambda x, w: np.abs(x), mean.sum(axis=0), scale**2)[0]
    np.testing.assert_allclose(found, exact, atol=1e-3)
    nothing = gaussian_cubature(lambda eta, w: np.full(eta[0].shape, np.nan), mean, cov)
    assert np.isnan(nothing[0]).all()
