"""Even moments, and the expectation of log η², where their formulas change or lose digits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from pymc_augconj.likelihoods.contract import LikelihoodDensity, site_moments
from pymc_augconj.likelihoods.poisson_square import LARGEST_COUNT, PoissonSquare, log_moment
from pymc_augconj.quadrature.tilted import tilted_moments

# The density itself, without δ.
PLAIN = {"power": 1.0, "delta": False}


@pytest.mark.parametrize("order", [0, 1, 2, 3, 7, 8])
def test_moments_of_a_normal(order):
    mean, std = np.array([-1.3, 0.4, 2.0]), np.array([0.3, 1.0, 2.5])
    exact = np.array([norm(m, s).moment(order) for m, s in zip(mean, std, strict=True)])
    found = np.sign(mean) ** order * np.exp(log_moment(np.array(float(order)), mean, std**2))
    np.testing.assert_allclose(found, exact, rtol=1e-12)


def test_odd_moments_about_zero_vanish():
    assert log_moment(np.array(3.0), np.zeros(1), np.ones(1)) == -np.inf


def test_series_and_sum_agree_where_they_meet():
    """m²/2v = 40 is where the asymptotic series takes over."""
    y, params, likelihood = np.ones(2), {"exposure": np.array(1.0)}, PoissonSquare()
    mean = np.array([1.0 - 1e-12, 1.0 + 1e-12])
    below, above = np.stack(
        likelihood.expected_log_density(y, mean, np.full(2, 1.0 / 80.0), params)
    ).T
    np.testing.assert_allclose(below, above, rtol=1e-9)


def test_a_narrow_predictor_is_a_point():
    y, mean, params = np.array([3.0]), np.array([-1.7]), {"exposure": np.array(0.8)}
    likelihood = PoissonSquare()
    value, d_mean, d_var = likelihood.expected_log_density(y, mean, np.full(1, 1e-12), params)
    assert value == pytest.approx(likelihood.log_density(y, mean, params), rel=1e-10)
    # Derivatives of log p: 2y/η − 2cη, and half of −2y/η² − 2c.
    assert d_mean == pytest.approx(6.0 / mean - 1.6 * mean, rel=1e-10)
    assert d_var == pytest.approx(-3.0 / mean**2 - 0.8, rel=1e-10)


@pytest.mark.parametrize(("mean", "var"), [(0.0, 1.0), (1.2, 0.5), (-4.0, 9.0), (5.0, 0.02)])
def test_tilted_moments_against_quadrature(mean, var):
    y = np.array([0.0, 1.0, 4.0, 30.0, 120.0])
    exposure, many = np.array(0.7), np.ones(y.size)
    params = {"exposure": exposure}
    closed = PoissonSquare().tilted_moments(y, mean * many, var * many, params, **PLAIN)
    density = LikelihoodDensity(PoissonSquare(), y, params)
    exact = tilted_moments(density, mean * many, var * many)
    np.testing.assert_allclose(closed.log_Z, exact.log_Z, atol=1e-8)
    np.testing.assert_allclose(closed.mean, exact.mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(closed.var, exact.var, rtol=1e-7)


def test_closed_form_is_left_where_it_would_lose_digits():
    likelihood, params = PoissonSquare(), {"exposure": np.array(1.0)}
    y, two, narrow = np.array([4.0]), np.array([2.0]), np.full(1, 1e-7)
    assert likelihood.tilted_moments(y, two, narrow, params, **PLAIN) is None
    found = site_moments(LikelihoodDensity(likelihood, y, params), two, narrow)
    assert found.var == pytest.approx(1e-7, rel=1e-5)
    large = np.array([LARGEST_COUNT + 1.0])
    assert likelihood.tilted_moments(large, np.ones(1), np.ones(1), params, **PLAIN) is None
    assert likelihood.log_predictive(large, 1.0, 1.0, params) is None


def test_both_signs_are_warned_of_only_where_the_prior_has_both():
    y, params = np.array([2.0, 0.0]), {"exposure": np.array(1.0)}
    assert "zero" in PoissonSquare().caution(y, np.zeros(2), params)
    assert PoissonSquare().caution(y, np.array([0.0, 0.1]), params) is None
