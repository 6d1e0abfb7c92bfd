"""Formulas are taken out of the model, and evaluated at other arguments, complex ones too."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_augconj.distributions.formula import Formula
from pymc_augconj.errors import AugmentationError

R = np.array([0.0, 0.5, 4.0])
Z = R + 1j * np.array([0.3, -2.0, 5.0])


def test_parameters_are_what_does_not_depend_on_the_argument():
    b, s = pm.HalfNormal.dist(), pm.HalfNormal.dist()
    formula = Formula(lambda r: -pt.sqrt(r) / (b * pt.exp(s)) + 0.0 * r, "log_phi")
    assert len(formula.parameters) == 1
    np.testing.assert_allclose(formula.evaluate(R, [2.0]), -np.sqrt(R) / 2.0)


@pytest.mark.parametrize(
    ("graph", "numpy"),
    [
        (lambda r: -pt.sqrt(r), lambda r: -np.sqrt(r)),
        (lambda r: 1 - (1 + r) ** 0.3, lambda r: 1 - (1 + r) ** 0.3),
        (lambda r: -2 * pt.log1p(r / 3), lambda r: -2 * np.log(1 + r / 3)),
        (lambda r: -pt.log(pt.cosh(pt.sqrt(r) / 2)), lambda r: -np.log(np.cosh(np.sqrt(r) / 2))),
        (lambda r: pt.log(pt.sigmoid(-r)) + np.log(2), lambda r: np.log(2 / (1 + np.exp(r)))),
        (lambda r: -pt.softplus(r) + np.log(2), lambda r: np.log(2 / (1 + np.exp(r)))),
        (lambda r: -pt.abs(pt.sqrt(r)), lambda r: -np.sqrt(r)),
        (
            lambda r: pt.logsumexp(-r[..., None] * np.array([1.0, 2.0]), axis=-1) - np.log(2),
            lambda r: np.log(0.5 * np.exp(-r) + 0.5 * np.exp(-2 * r)),
        ),
    ],
)
def test_values_at_real_and_complex_arguments(graph, numpy):
    formula = Formula(graph, "log_phi")
    np.testing.assert_allclose(formula.evaluate(R, []), numpy(R), atol=1e-14)
    found = formula.evaluate(Z.reshape(1, 3), [])
    np.testing.assert_allclose(np.exp(found[0]), np.exp(numpy(Z)), atol=1e-13)
    assert formula.evaluate(R[:0], []).shape == (0,)


def test_logarithm_of_cosh_does_not_overflow():
    formula = Formula(lambda r: -pt.log(pt.cosh(pt.sqrt(r))), "log_phi")
    for r in (np.array([1e12]), np.array([1e12 + 1j])):
        np.testing.assert_allclose(formula.evaluate(r, []), np.log(2.0) - 1e6)


def test_derivatives_are_those_of_the_formula():
    b = pt.dscalar("b")
    formula = Formula(lambda r: -pt.sqrt(r) / b, "log_phi")
    r = np.array([0.25, 4.0])
    np.testing.assert_allclose(formula.evaluate(r, [2.0], 1), -0.25 / np.sqrt(r))
    np.testing.assert_allclose(formula.evaluate(r, [2.0], 2), 0.125 / r**1.5)


def test_array_parameters_go_with_the_entries_of_the_argument():
    b = np.array([1.0, 2.0, 4.0])
    for parameter in (b, pt.as_tensor(b), pt.dvector("b")):
        formula = Formula(lambda r, p=parameter: -pt.sqrt(r) / p, "log_phi")
        np.testing.assert_allclose(formula.evaluate(R, [b]), -np.sqrt(R) / b)
        np.testing.assert_allclose(formula.evaluate(R, [2.0]), -np.sqrt(R) / 2.0)


def test_what_is_not_elementwise_is_refused_where_a_parameter_is_an_array():
    w = pt.dvector("w")
    with pytest.raises(AugmentationError, match=r"elementwise .* found the operation"):
        Formula(lambda r: pt.logsumexp(-r[..., None] * w, axis=-1), "log_phi")


def test_what_is_not_analytic_is_refused():
    formula = Formula(lambda r: -pt.maximum(r, 1.0), "log_phi")
    with pytest.raises(AugmentationError, match="expected a formula"):
        formula.evaluate(Z, [])
