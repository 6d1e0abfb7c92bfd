"""Means of ω from derivatives of log φ, as the automatic ones give them."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest

from pymc_augconj.distributions.formula import Formula
from pymc_augconj.errors import NotSuperGaussianError
from pymc_augconj.likelihoods.student_t import StudentT
from pymc_augconj.likelihoods.super_gaussian import Phi, SuperGaussian
from pymc_augconj.recognition.observed.match import phi_of

Y, MEAN, VAR = np.array([0.0, 1.0, -2.0]), np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.3, 2.0])
C_SQUARED = (Y - MEAN) ** 2 + VAR
PARAMS = {"log_c": np.array(0.0)}


def likelihood_of(log_phi):
    return SuperGaussian(phi_of(Formula(log_phi, "log_phi")))


def expected_omega(likelihood):
    """E[ω] under the optimal q(ω), for a location family: λ = 2 ω."""
    with np.errstate(invalid="ignore"):  # h is 0 · ∞ where E[ω] is infinite
        return 0.5 * likelihood.expected_sites(Y, MEAN, VAR, PARAMS)[1]


def test_mean_is_that_of_the_distribution():
    mean = expected_omega(likelihood_of(lambda r: -2.0 * pt.log1p(r / 3.0)))
    np.testing.assert_allclose(mean, 2.0 / (3.0 + C_SQUARED))


def test_mean_at_zero():
    # PG(1, 0)/2 has mean 1/8; the distribution of Laplace noise has an infinite one.
    logistic = likelihood_of(lambda r: -pt.log(pt.cosh(pt.sqrt(r) / 2)))
    assert expected_omega(logistic)[0] == pytest.approx(0.125, rel=1e-10)
    assert expected_omega(likelihood_of(lambda r: -pt.sqrt(r)))[0] == np.inf


def test_tables_are_not_sent_to_other_processes():
    likelihood = likelihood_of(lambda r: 1.0 - (1.0 + r) ** 0.3)
    draws = likelihood.draw_auxiliary(np.random.default_rng(1), Y, MEAN, PARAMS)
    assert not {"_tilts_at", "_residuals_at", "_families"} & likelihood.__getstate__().keys()
    copy = SuperGaussian.__new__(SuperGaussian)
    copy.__setstate__(likelihood.__getstate__())
    again = copy.draw_auxiliary(np.random.default_rng(1), Y, MEAN, PARAMS)
    np.testing.assert_array_equal(draws, again)


def test_hyperparameters_at_which_there_is_no_augmentation():
    """The condition is checked where the model is written, and again where the sampler comes."""
    power = pt.scalar("power")
    likelihood = likelihood_of(lambda r: 1.0 - (1.0 + r) ** power)
    rng = np.random.default_rng(1)
    assert np.all(likelihood.draw_auxiliary(rng, Y, MEAN, {**PARAMS, "phi_0": np.array(0.9)}) > 0)
    with pytest.raises(NotSuperGaussianError, match=r"hyperparameters at \(1\.25\).*give them"):
        likelihood.draw_auxiliary(rng, Y, MEAN, {**PARAMS, "phi_0": np.array(1.25)})


def test_law_of_y_is_that_of_the_named_likelihood():
    # Student-t with ν and the scale among φ's hyperparameters, as scalars and one for each draw.
    def log_phi(r, values):
        nu, s = values
        return -0.5 * (nu + 1.0) * np.log1p(r / (nu * s**2))

    likelihood = SuperGaussian(Phi(("nu", "sigma"), log_phi, slope=None))
    rng = np.random.default_rng(0)
    eta, y = rng.standard_normal((3, 4)), rng.standard_normal(4)
    scales, degrees = np.array([[0.5], [1.0], [2.0]]), np.array([[3.0], [4.0], [3.0]])
    one = np.array(3.0), np.array(0.7)
    for values in (one, (degrees, scales), (degrees, np.array(2.0))):
        params = dict(zip(("nu", "sigma"), values, strict=True))
        np.testing.assert_allclose(
            likelihood.cdf(y, eta, params), StudentT().cdf(y, eta, params), atol=1e-8
        )
        for found, expected in zip(
            likelihood.moments(eta, params), StudentT().moments(eta, params), strict=True
        ):
            np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=1e-9)


def test_the_general_form_cannot_say_what_a_new_y_is():
    phi = phi_of(Formula(lambda r: -pt.sqrt(r), "log_phi"))
    assert SuperGaussian(phi).unpredictable is None
    assert "kind='f'" in SuperGaussian(phi, is_location=False).unpredictable
