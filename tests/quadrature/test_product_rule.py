"""The log of a sum of exponentials by a product rule: its error is what is stated."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from pymc_augconj.quadrature import expectation as rules
from pymc_augconj.quadrature.expectation import gaussian_cubature, product_rule

SITES = 8


def log_sum(delta, which):
    whole = np.concatenate([delta, np.zeros_like(delta[:1])])
    return logsumexp(whole, axis=0), softmax(whole, axis=0)[: len(delta)]


def differences(largest: float, seed: int):
    """Return moments of differences of three independent numbers."""
    rng = np.random.default_rng(seed)
    mean, (a, b, c) = (
        max(largest, 2.0) * rng.normal(size=(2, SITES)),
        rng.uniform(0, 1, (3, SITES)) ** 2,
    )
    cov = np.array([[a + c, c], [c, b + c]])
    return mean, cov * (largest**2 / np.maximum(cov[0, 0], cov[1, 1]))


@pytest.mark.parametrize(
    ("largest", "error"), [(0.28, 2e-6), (0.7, 2e-6), (2.0, 2e-6), (4.0, 1e-4)]
)
@pytest.mark.parametrize("d", [1, 2])
def test_error_is_what_is_stated(largest, error, d):
    mean, cov = differences(largest, 0)
    value, d_mean = product_rule(log_sum, mean[:d], cov[:d, :d])
    exact = gaussian_cubature(lambda x, i: log_sum(x, i)[0], mean[:d], cov[:d, :d], rtol=1e-7)
    np.testing.assert_allclose(value, exact[0], atol=error)
    np.testing.assert_allclose(d_mean, exact[1], atol=10.0 * error)


def test_few_nodes_are_fewer_than_it_takes(monkeypatch):
    mean, cov = differences(2.0, 0)
    exact = product_rule(log_sum, mean, cov)[0]
    monkeypatch.setattr(rules, "_RULES", (6,) * len(rules._RULES))
    assert np.abs(product_rule(log_sum, mean, cov)[0] - exact).max() > 1e-4


def test_without_a_variance_it_is_the_function():
    mean = differences(1.0, 1)[0]
    expected = log_sum(mean, None)
    for found, exact in zip(
        product_rule(log_sum, mean, np.zeros((2, 2, SITES))), expected, strict=True
    ):
        np.testing.assert_allclose(found, exact, atol=1e-14)
