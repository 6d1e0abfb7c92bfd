"""Expectations of a log density over the residual of its predictor."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.engines.sparse.expected import EXTRA_VAR, ExpectedDensity
from pymc_augconj.errors import AugmentationError
from pymc_augconj.likelihoods.bernoulli_logit import BernoulliLogit
from pymc_augconj.likelihoods.poisson_log import PoissonLog
from pymc_augconj.likelihoods.several import MultiDensity, as_several
from pymc_augconj.likelihoods.student_t import StudentT
from pymc_augconj.quadrature.expectation import gaussian_expectation

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
    found = density.log_density(y, eta, {**params, EXTRA_VAR: var})

    def log_density(at, which):
        columns = {k: np.broadcast_to(v, 3)[which, None] for k, v in params.items()}
        return likelihood.log_density(y[which, None], at, columns)

    for row, own in zip(eta[0], found, strict=True):
        expected = gaussian_expectation(log_density, row, var)[0]
        np.testing.assert_allclose(own, expected, rtol=1e-9)
        alone = density.log_density(y, row[None], {**params, EXTRA_VAR: var})
        np.testing.assert_allclose(alone, own, rtol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_residuals_add_to_the_variance_of_an_approximation(name):
    likelihood, y, params = CASES[name]
    mean, var = np.array([[0.1, 0.4, 1.0]]), np.array([0.3, 0.2, 0.1])
    density = ExpectedDensity(as_several(likelihood))
    given = density.expected_log_density(y, mean, var[None, None], {**params, EXTRA_VAR: 2 * var})
    whole = density.log_density(y, mean, {**params, EXTRA_VAR: 3 * var})
    np.testing.assert_allclose(given[0], whole, rtol=1e-6)
    step = 1e-5
    moved = density.log_density(y, mean, {**params, EXTRA_VAR: 3 * var + step})
    np.testing.assert_allclose(given[2][0, 0], (moved - whole) / step, rtol=1e-3)


class Two(MultiDensity):
    name, n_predictors = "two", 2

    def log_density(self, y, eta, params):
        return -(eta[0] ** 2) - eta[1] ** 2


def test_several_predictors_are_refused():
    with pytest.raises(AugmentationError, match=r"'y' .*one predictor.*found 2"):
        ExpectedDensity(Two(), "observed variable 'y'")
