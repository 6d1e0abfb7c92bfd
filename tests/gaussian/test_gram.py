"""Gram form against weight space."""

import numpy as np
import pytest

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.gaussian import gram, weight_space


@pytest.fixture
def problem():
    rng = np.random.default_rng(3)
    A = rng.standard_normal((30, 4))
    return A, rng.uniform(0.1, 2, 4), rng.standard_normal(30), rng.exponential(size=30)


@pytest.mark.parametrize("order", ["C", "F"])
def test_equals_weight_space(problem, order):
    A, scale, h, lam = problem
    A = np.array(A, order=order)
    lam[3] = 0.0
    expected = weight_space.factorize(A * scale, lam)
    factor = gram.factorize(gram.weighted_gram(A, lam), scale)
    assert factor.log_det == pytest.approx(expected.log_det, rel=1e-12)
    posterior = weight_space.condition(expected, np.zeros(30), h)
    assert gram.log_normalizer(factor, A.T @ h) == pytest.approx(
        posterior.log_normalizer, rel=1e-12
    )
    # What draws take: both factors are of the same matrix.
    found, known = (np.tril(one.chol_M) for one in (factor, expected))
    np.testing.assert_allclose(found @ found.T, known @ known.T, rtol=1e-10)


def test_refuses_a_scale_that_is_not_finite(problem):
    A, scale, _, lam = problem
    scale[1] = np.nan
    with pytest.raises(NotPositiveDefiniteError, match="finite scales"):
        gram.factorize(gram.weighted_gram(A, lam), scale)
