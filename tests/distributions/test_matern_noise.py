"""Matérn noise: normalised, drawn right, and the Laplace distribution at ν = ½."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.interpolate import PchipInterpolator

import pymc_augconj as pac

LARGEST_DISTANCE = 2.7  # √N times Kolmogorov–Smirnov's: exceeded once in 1e6


def density(nu, rho):
    value = pm.Laplace.dist().type("value")
    logp = pm.logp(pac.MaternNoise.dist(nu, 0.0, rho), value)
    return lambda x: np.exp([logp.eval({value: np.array(v)}) for v in np.atleast_1d(x)])


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_density_is_normalised_and_drawn_from(nu):
    rho, x = 0.7, np.linspace(-8.0, 8.0, 801)
    value = pm.Normal.dist(shape=801).type("value")
    p = np.exp(pm.logp(pac.MaternNoise.dist(nu, 0.0, rho, shape=801), value).eval({value: x}))
    cdf = np.concatenate([[0.0], np.cumsum(0.5 * (p[1:] + p[:-1]) * np.diff(x))])
    assert cdf[-1] == pytest.approx(1.0, abs=1e-3)
    draws = pm.draw(pac.MaternNoise.dist(nu, 0.0, rho, shape=100_000), random_seed=1)
    smooth = PchipInterpolator(x, cdf / cdf[-1])
    draws = np.clip(draws, -8.0, 8.0)
    assert np.sqrt(draws.size) * stats.kstest(draws, smooth).statistic < LARGEST_DISTANCE
    wrong = np.clip(1.05 * draws, -8.0, 8.0)
    assert np.sqrt(draws.size) * stats.kstest(wrong, smooth).statistic > LARGEST_DISTANCE


def test_smoothness_one_half_is_laplace():
    value = np.linspace(-3, 3, 7)
    found = pm.logp(pac.MaternNoise.dist(0.5, 0.4, 0.7), value).eval()
    np.testing.assert_allclose(found, stats.laplace.logpdf(value, 0.4, 0.7))


def test_published_normaliser():
    # AUGMENTATIONS.md: √3/(4ρ)·(1 + √3|e|/ρ)·exp(−√3|e|/ρ)
    rho = 1.3
    total, _ = quad(
        lambda e: (
            np.sqrt(3) / (4 * rho) * (1 + np.sqrt(3) * e / rho) * np.exp(-np.sqrt(3) * e / rho)
        ),
        0,
        np.inf,
    )
    assert 2 * total == pytest.approx(1.0)
    at_zero = pm.logp(pac.MaternNoise.dist(1.5, 0.0, rho), 0.0).eval()
    assert at_zero == pytest.approx(np.log(np.sqrt(3) / (4 * rho)))


def test_other_smoothness_is_refused():
    with pytest.raises(pac.AugmentationError, match=r"one of \(0.5, 1.5, 2.5\), found 2"):
        pac.MaternNoise.dist(2)


def test_negative_scale_has_no_density():
    assert pm.logp(pac.MaternNoise.dist(1.5, 0.0, -1.0), 0.3).eval() == -np.inf


def test_support_vector_machine_is_no_sampling_model():
    with pm.Model():
        f = pm.Normal("f", shape=2)
        pac.BayesianSVM("y", f, observed=[-1, 1])
        with pytest.raises(pac.AugmentationError, match="pseudo-likelihood"):
            pm.sample_prior_predictive(2)


def test_support_vector_machine_takes_signs():
    found = pm.logp(pac.BayesianSVM.dist(np.array([0.3, -2.0, 0.3])), np.array([1, 1, 0])).eval()
    np.testing.assert_allclose(found, [-1.4, -6.0, -np.inf])
