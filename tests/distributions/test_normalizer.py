"""1/∫ φ(e²) de against closed forms, at scales far apart, with its derivative."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.integrate import quad
from scipy.special import gammaln

from pymc_augconj.distributions.formula import Formula
from pymc_augconj.distributions.normalizer import log_normalizer


def student_t(nu):
    return gammaln(0.5 * (nu + 1)) - gammaln(0.5 * nu) - 0.5 * np.log(nu * np.pi)


# exp(1 − (1 + e²)^0.3), by quadrature in log e.
STRETCHED = -np.log(
    2.0 * quad(lambda t: np.exp(t + 1 - (1 + np.exp(2 * t)) ** 0.3), -40, 14, limit=500)[0]
)

# log φ as a function of r and a scale s, and log C at s = 1.
FAMILIES = {
    "Laplace": (lambda r, s: -pt.sqrt(r) / s, -np.log(2.0)),
    "Student-t 0.3": (lambda r, s: -0.65 * pt.log1p(r / (0.3 * s**2)), student_t(0.3)),
    "Cauchy": (lambda r, s: -pt.log1p(r / s**2), -np.log(np.pi)),
    "Student-t 50": (lambda r, s: -25.5 * pt.log1p(r / (50 * s**2)), student_t(50.0)),
    "normal": (lambda r, s: -0.5 * r / s**2, -0.5 * np.log(2 * np.pi)),
    "hyperbolic secant": (lambda r, s: -pt.log(pt.cosh(pt.sqrt(r) / s)), -np.log(np.pi)),
    "logistic": (lambda r, s: -2 * pt.log(pt.cosh(pt.sqrt(r) / (2 * s))), -np.log(4.0)),
    "Matérn 3/2": (
        lambda r, s: pt.log1p(pt.sqrt(3 * r) / s) - pt.sqrt(3 * r) / s,
        np.log(np.sqrt(3.0) / 4.0),
    ),
    "stretched": (lambda r, s: 1 - (1 + r / s**2) ** 0.3, STRETCHED),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_normalizer_is_the_closed_form(name):
    log_phi, log_c = FAMILIES[name]
    s = pt.dscalar("s")
    formula = Formula(lambda r: log_phi(r, s), "log_phi")
    graph = log_normalizer(formula, formula.parameters)
    function = pytensor.function([s], [graph, pytensor.grad(graph, s)])
    for scale in (1e-8, 0.3, 1.0, 7.0, 1e9):
        value, slope = function(scale)
        assert value == pytest.approx(log_c - np.log(scale), abs=1e-12)
        assert slope * scale == pytest.approx(-1.0, abs=1e-9)


def test_normalizer_of_each_of_several_hyperparameters():
    nu = pt.dvector("nu")
    formula = Formula(lambda r: -0.5 * (nu + 1) * pt.log1p(r / nu), "log_phi")
    function = pytensor.function([nu], log_normalizer(formula, formula.parameters))
    values = np.array([0.3, 1.0, 4.0, 80.0])
    np.testing.assert_allclose(function(values), student_t(values), atol=1e-12)


def test_density_that_is_not_integrable_has_no_constant():
    p = pt.dscalar("p")
    formula = Formula(lambda r: -0.5 * p * pt.log1p(r), "log_phi")
    function = pytensor.function([p], log_normalizer(formula, formula.parameters))
    assert np.isfinite(function(1.3))
    assert function(1.0) == function(0.4) == -np.inf
