"""A covariance and its factor from the entries of a precision matrix."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.precision import covariance_of_precision


def walk(size, step=1.0, start=1.0):
    """The precision matrix of a random walk from N(0, start²)."""
    D = (np.eye(size) - np.eye(size, k=-1)) / step
    D[0] *= step / start
    return D.T @ D


def dense(size):
    root = np.random.default_rng(0).normal(size=(size, size))
    return root @ root.T + np.eye(size)


def arrow(size):
    Q = 9.0 * np.eye(size)
    Q[0, 1:] = Q[1:, 0] = 0.5
    Q[0, 0] = size
    return Q


CASES = {
    "one": np.array([[4.0]]),
    "diagonal": np.diag([1.0, 2.0, 3.0]),
    "band": walk(60),
    "narrow": walk(4),
    "dense": dense(20),
    "arrow": arrow(40),
}


@pytest.mark.parametrize("name", CASES)
def test_covariance_and_factor(name):
    Q = CASES[name]
    order = np.random.default_rng(1).permutation(np.count_nonzero(Q))
    rows, cols = (x[order] for x in np.nonzero(Q))
    cov, chol = covariance_of_precision(len(Q), rows, cols, Q[rows, cols])
    np.testing.assert_allclose(cov @ Q, np.eye(len(Q)), atol=1e-11)
    np.testing.assert_allclose(cov, cov.T, atol=0.0)
    np.testing.assert_allclose(chol, np.linalg.cholesky(np.linalg.inv(Q)), rtol=1e-7, atol=1e-12)
    assert cov.flags.f_contiguous
    assert chol.flags.f_contiguous


def test_small_steps_of_a_walk_keep_their_digits():
    """K = 1 + 1e-12 min(i, j): its own factor would have lost half of the steps' digits."""
    size, step = 100, 1e-6
    Q = walk(size, step)
    rows, cols = np.nonzero(Q)
    chol = covariance_of_precision(size, rows, cols, Q[rows, cols]).chol
    # The start is known from Q to 1e-16 of 1/step², so to four digits; the steps are not hurt.
    np.testing.assert_allclose(
        np.diff(chol, axis=0)[:, 1:], step * np.eye(size)[1:, 1:], atol=1e-15
    )


@pytest.mark.parametrize(
    "Q",
    [
        walk(50, start=np.inf),
        walk(5, start=np.inf),
        -np.eye(3),
        np.diag([1.0, np.nan]),
        np.diag([1.0, np.inf]),
    ],
)
def test_improper_matrices_are_refused(Q):
    rows, cols = np.nonzero(Q)
    with pytest.raises(NotPositiveDefiniteError, match="precision of 'u'"):
        covariance_of_precision(len(Q), rows, cols, Q[rows, cols], name="the precision of 'u'")
