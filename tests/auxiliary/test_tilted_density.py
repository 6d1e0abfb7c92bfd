import numpy as np
import pytest
from scipy.integrate import simpson
from scipy.stats import gamma

from pymc_augconj.auxiliary.generalized_inverse_gaussian import (
    logpdf_generalized_inverse_gaussian,
    logpdf_inverse_gaussian,
)
from pymc_augconj.auxiliary.laplace_transform.inversion import logpdf_tilted
from pymc_augconj.auxiliary.polya_gamma.distribution import (
    logpdf_polya_gamma,
    mean_polya_gamma,
)


def log_phi_matern(s):
    return np.log1p(np.sqrt(3 * s)) - np.sqrt(3 * s)


def log_phi_logit(s):
    root = np.sqrt(s)
    return np.log(2.0) - 0.5 * root - np.log1p(np.exp(-root))


@pytest.mark.parametrize("r", [1e-4, 1.0, 1e2, 1e4, 1e8])
def test_density(r):
    x = np.geomspace(1e-2, 30.0, 80) * mean_polya_gamma(1.0, np.sqrt(r)) / 2
    mean, shape = 1.0 / (1.4 * np.sqrt(r)), 1.0 / (2 * 0.7**2)
    for log_phi, expected in (
        (log_phi_logit, logpdf_polya_gamma(2 * x, 1, np.sqrt(r)) + np.log(2)),
        (log_phi_matern, logpdf_generalized_inverse_gaussian(x, 1.5, 2 * r, 1.5)),
        (lambda s: -np.sqrt(s) / 0.7, logpdf_inverse_gaussian(x, mean, shape)),
        (lambda s: -2.5 * np.log1p(s / 6.76), gamma.logpdf(x, 2.5, scale=1 / (6.76 + r))),
    ):
        value = logpdf_tilted(x, log_phi, r)
        # In the bulk, and to the left of it down to any depth.
        trusted = (x < 3.0 * mean_polya_gamma(1.0, 0.0) / 2) | (expected > expected.max() - 5.0)
        np.testing.assert_allclose(value[trusted], expected[trusted], rtol=1e-12, atol=1e-7)
    np.testing.assert_array_equal(logpdf_tilted([-1.0, 0.0, np.inf], log_phi_logit, r), -np.inf)


def test_density_without_a_closed_form_integrates_to_one():
    for r in (0.0, 0.3, 50.0):
        log_x = np.linspace(-16.0, 8.0, 2001)
        density = np.exp(logpdf_tilted(np.exp(log_x), lambda s: 1 - (1 + s) ** 0.3, r) + log_x)
        assert simpson(density, x=log_x) == pytest.approx(1.0, abs=1e-7)


def test_atom_and_end_of_the_support():
    x = np.array([0.5, 1.0, 3.0, 5.0])
    value = logpdf_tilted(x, lambda s: np.log(0.3 + 0.7 / (1 + s)), 0.0)
    np.testing.assert_allclose(value, np.log(0.7) - x, atol=1e-7)
    value = logpdf_tilted(x, lambda s: -s - 2 * np.log1p(s), 1.0)
    np.testing.assert_allclose(value, gamma.logpdf(x - 1.0, 2.0, scale=0.5), atol=1e-7)
    np.testing.assert_array_equal(logpdf_tilted(x, lambda s: -2 * s, 1.0), -np.inf)
