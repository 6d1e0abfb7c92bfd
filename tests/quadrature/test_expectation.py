"""The nested trapezoidal rule, against closed forms and adaptive quadrature."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from pymc_augconj.quadrature.expectation import (
    expectation_of_sum,
    gaussian_cubature,
    gaussian_expectation,
)

MEAN = np.array([-3.0, -0.2, 0.0, 1.5, 40.0])
VAR = np.array([1e-4, 0.3, 1.0, 25.0, 400.0])

SMOOTH = {
    "logistic": lambda eta: -np.logaddexp(0.0, -eta),
    "Student-t": lambda eta: -2.0 * np.log1p((eta - 0.7) ** 2 / 3.0),
    "quadratic": lambda eta: 0.3 - eta + 0.5 * eta**2,
}


@pytest.mark.parametrize("name", SMOOTH)
def test_agrees_with_adaptive_quadrature(name):
    g = SMOOTH[name]
    value, d_mean, d_var = gaussian_expectation(lambda eta, which: g(eta), MEAN, VAR)
    for i, (m, v) in enumerate(zip(MEAN, VAR, strict=True)):
        std = np.sqrt(v)

        def integral(weight, m=m, std=std):
            points = sorted({-9.0, *np.clip((np.array([0.0, 0.7]) - m) / std, -9, 9), 9.0})
            return sum(
                quad(
                    lambda z: weight(z) * g(m + std * z) * norm.pdf(z),
                    *edges,
                    epsabs=1e-13,
                    epsrel=1e-12,
                    limit=400,
                )[0]
                for edges in pairwise(points)
            )

        scale = 1.0 + abs(value[i])
        assert value[i] == pytest.approx(integral(lambda z: 1.0), abs=2e-9 * scale)
        assert d_mean[i] * std == pytest.approx(integral(lambda z: z), abs=2e-9 * scale)
        expected = integral(lambda z: z**2 - 1.0)
        assert 2.0 * v * d_var[i] == pytest.approx(expected, abs=2e-9 * scale)


def test_exponential_has_its_closed_form():
    mean, var = np.array([0.3, -2.0]), np.array([0.5, 4.0])
    found = gaussian_expectation(lambda eta, which: np.exp(eta), mean, var)
    exact = np.exp(mean + 0.5 * var)
    np.testing.assert_allclose(found, [exact, exact, 0.5 * exact], rtol=1e-8)


def test_a_sum_over_predictors_takes_a_rule_for_each():
    """As a sequential model, whose classes are reached in turn; a softmax is no sum."""
    reached, mean = np.array([1, 3, 2]), np.random.default_rng(0).normal(size=(3, 3))
    cov = (0.3 + 0.5 * np.eye(3))[..., None] * np.array([1.0, 0.01, 4.0])

    def sequential(eta, which):
        passed = np.arange(3)[:, None, None] < reached[which, None]
        return -np.where(passed, np.logaddexp(0.0, -eta), 0.0).sum(axis=0)

    found = expectation_of_sum(sequential, mean, cov)
    for own, expected in zip(found, gaussian_cubature(sequential, mean, cov), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-7, atol=1e-8)

    def softmax(eta, which):
        return eta[0] - np.logaddexp.reduce(eta, axis=0)

    assert expectation_of_sum(softmax, mean, cov) is None
    assert expectation_of_sum(softmax, mean, 1e-12 * cov) is None


def test_each_site_has_its_own_integrand():
    shift = np.array([0.0, 1.0, 2.0])
    found = gaussian_expectation(
        lambda eta, which: (eta - shift[which, None]) ** 2, np.zeros(3), np.ones(3)
    )
    np.testing.assert_allclose(found[0], 1.0 + shift**2, rtol=1e-12)


def test_a_kink_converges_slowly_but_does():
    value, *_ = gaussian_expectation(lambda eta, which: np.abs(eta), np.array([0.1]), np.ones(1))
    exact = np.sqrt(2.0 / np.pi) * np.exp(-0.005) + 0.1 * (2.0 * norm.cdf(0.1) - 1.0)
    assert value[0] == pytest.approx(exact, abs=1e-5)


def test_no_variance_gives_the_value():
    value, d_mean, _ = gaussian_expectation(lambda e, which: np.sin(e), np.ones(1), np.zeros(1))
    assert value[0] == pytest.approx(np.sin(1.0), abs=1e-10)
    assert d_mean[0] == pytest.approx(np.cos(1.0), abs=1e-5)
