"""What tests of factors share."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def check_factor():
    """Compare a Cholesky factor with that of a dense matrix, in the order of elimination."""
    return _check_factor


def _check_factor(factor, ordered):
    L = np.linalg.cholesky(ordered)
    x = np.random.default_rng(1).normal(size=(3, len(L)))
    for found, expected in (
        (factor.half_solve(x), np.linalg.solve(L, x.T).T),
        (factor.transpose_solve(x), np.linalg.solve(L.T, x.T).T),
        (factor.solve(x), np.linalg.solve(ordered, x.T).T),
        (factor.product(x), x @ L.T),
        (factor.transpose_product(x), x @ L),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)
    for method in ("half_solve", "transpose_solve", "solve", "product", "transpose_product"):
        several = getattr(factor, method)(x)
        np.testing.assert_allclose(getattr(factor, method)(x[1]), several[1], rtol=1e-13)
    assert factor.log_det == pytest.approx(np.linalg.slogdet(ordered)[1], rel=1e-12, abs=1e-12)
