"""Gauss–Hermite expectations against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import ndtr

from pymc_augconj.quadrature.gauss_hermite import gauss_hermite_expectation, gauss_hermite_rule

MEAN = np.array([-1.3, 0.0, 0.4, 2.0])
VAR = np.array([0.3, 0.0, 1.0, 2.5])


def test_weights_sum_to_one_and_moments_are_those_of_a_standard_normal():
    nodes, weights = gauss_hermite_rule(20)
    for power, moment in enumerate([1, 0, 1, 0, 3, 0, 15]):
        assert_allclose(weights @ nodes**power, moment, atol=1e-12)


@pytest.mark.parametrize(
    ("func", "expected"),
    [
        (np.exp, np.exp(MEAN + 0.5 * VAR)),
        (np.cos, np.cos(MEAN) * np.exp(-0.5 * VAR)),
        (lambda x: x**4, MEAN**4 + 6 * MEAN**2 * VAR + 3 * VAR**2),
        (ndtr, ndtr(MEAN / np.sqrt(1.0 + VAR))),
    ],
)
def test_closed_forms(func, expected):
    assert_allclose(gauss_hermite_expectation(func, MEAN, VAR, order=60), expected, rtol=1e-8)


def test_too_few_nodes_are_noticed():
    """Negative control: two nodes cannot integrate a fourth power."""
    value = gauss_hermite_expectation(lambda x: x**4, 0.0, 1.0, order=2)
    assert abs(value - 3.0) > 1.0


def test_data_of_the_sites_broadcasts_in_func():
    y = np.array([1.0, -1.0, 2.0, 0.5])
    value = gauss_hermite_expectation(lambda x: y * x**2, MEAN, VAR)
    assert_allclose(value, y * (MEAN**2 + VAR), rtol=1e-12)


def test_scalars_and_grids_keep_their_shape():
    assert gauss_hermite_expectation(np.exp, 0.0, 1.0).shape == ()
    grid = gauss_hermite_expectation(np.exp, MEAN[:, None], VAR[None, :])
    assert_allclose(grid, np.exp(MEAN[:, None] + 0.5 * VAR), rtol=1e-10)


def test_negative_variance_is_refused():
    with pytest.raises(ValueError, match="expected variances ≥ 0"):
        gauss_hermite_expectation(np.exp, 0.0, -1.0)
