"""The distribution with density ∝ φ(e²), against distributions that have a name."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest, laplace, logistic, t

from pymc_augconj.auxiliary.laplace_transform.distribution import ResidualDistribution


def student(nu):
    return lambda r: -0.5 * (nu + 1.0) * np.log1p(r / nu)


def log_sech_square(r):
    half = 0.5 * np.sqrt(r)
    return -2.0 * (np.logaddexp(half, -half) - np.log(2.0))


LAWS = {
    "Student-t": (student(3.0), t(3.0)),
    "infinite variance": (student(1.5), t(1.5)),
    "hardly finite variance": (student(2.02), t(2.02)),
    "nearly normal": (student(1e5), t(1e5)),
    "Laplace": (lambda r: -np.sqrt(r), laplace()),
    "wide Laplace": (lambda r: -1e-6 * np.sqrt(r), laplace(scale=1e6)),
    "logistic": (log_sech_square, logistic()),
}


@pytest.mark.parametrize("name", sorted(LAWS))
def test_distribution_function_and_variance(name):
    log_phi, reference = LAWS[name]
    distribution = ResidualDistribution(log_phi)
    size = np.logspace(-8.0, 8.0, 500)
    e = np.concatenate([-size[::-1], [0.0], size])
    # The table's error is stated to be below 1e-8.
    np.testing.assert_allclose(distribution.cdf(e), reference.cdf(e), atol=1e-8)
    assert distribution.variance == pytest.approx(reference.var(), rel=1e-9)


def test_draws_follow_it():
    draws = ResidualDistribution(student(3.0)).random(np.random.default_rng(0), 20_000)
    assert kstest(draws, t(3.0).cdf).pvalue > 1e-4
    # The control: another scale is found out.
    assert kstest(draws, t(3.0, scale=1.1).cdf).pvalue < 1e-4
