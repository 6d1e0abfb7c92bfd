"""Banded Cholesky factors against dense algebra."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.sparse import BandPattern


def walk(size, start=1.0):
    D = np.eye(size) - np.eye(size, k=-1)
    D[0] /= start
    return D.T @ D


def grid(width, height):
    """A conditional autoregression on a grid, its areas in random order."""
    along = [np.eye(n, k=1) + np.eye(n, k=-1) for n in (width, height)]
    W = np.kron(along[0], np.eye(height)) + np.kron(np.eye(width), along[1])
    order = np.random.default_rng(0).permutation(len(W))
    return (np.diag(W.sum(0)) - 0.9 * W)[np.ix_(order, order)]


def autoregression(size, *rho):
    B = np.eye(size) - sum(r * np.eye(size, k=-k - 1) for k, r in enumerate(rho))
    return B.T @ B


ENDS = np.eye(12)[0] - np.eye(12)[-1]
# The matrix, and the largest bandwidth that is expected of it.
CASES = {
    "one": (np.array([[4.0]]), 0),
    "diagonal": (np.diag([1.0, 2.0, 3.0]), 0),
    "walk": (walk(30), 1),
    "autoregression": (autoregression(20, 0.5, -0.2, 0.1), 3),
    "ring": (
        walk(12) + np.outer(np.eye(12)[0] - np.eye(12)[-1], np.eye(12)[0] - np.eye(12)[-1]),
        2,
    ),
    "grid": (grid(5, 8), 7),
    "dense": (walk(6) + 0.1, 5),
}


@pytest.fixture(params=CASES)
def case(request):
    Q, width = CASES[request.param]
    rows, cols = np.nonzero(np.tril(Q))
    pattern = BandPattern(len(Q), rows, cols)
    assert pattern.width <= width
    flat = np.zeros(pattern.n_flat)
    flat[pattern.positions(rows, cols)] = Q[rows, cols]
    return Q[np.ix_(pattern.order, pattern.order)], Q, pattern, pattern.factorize(flat)


def test_factor(case, check_factor):
    ordered, _, _, factor = case
    check_factor(factor, ordered)


def test_inverse_within_the_band(case):
    _, Q, pattern, factor = case
    cov = np.linalg.inv(Q)
    place = pattern.place
    rows, cols = np.nonzero(np.abs(place[:, None] - place) <= pattern.width)
    found = factor.inverse()[pattern.positions(rows, cols)]
    np.testing.assert_allclose(found, cov[rows, cols], rtol=1e-11, atol=1e-13)


def test_dense_inverse(case):
    ordered, _, _, factor = case
    found = factor.dense_inverse()
    np.testing.assert_allclose(found @ ordered, np.eye(len(ordered)), atol=1e-11)
    np.testing.assert_array_equal(found, found.T)
    assert found.flags.f_contiguous


def test_factor_of_the_reversed_order_is_that_of_the_covariance():
    Q = walk(9, start=3.0)
    rows, cols = np.nonzero(Q)
    pattern = BandPattern(9, rows, cols)
    flat = np.zeros(pattern.n_flat)
    flat[pattern.positions(rows, cols)] = Q[rows, cols]
    factor = pattern.factorize(flat)
    S = factor.transpose_solve(np.eye(9)[:, pattern.order])[:, pattern.place].T
    np.testing.assert_allclose(S, np.linalg.cholesky(np.linalg.inv(Q)), atol=1e-13)


@pytest.mark.parametrize(
    "Q", [walk(50, start=np.inf), -np.eye(3), np.diag([1.0, np.nan]), np.diag([1.0, np.inf])]
)
def test_improper_matrices_are_refused(Q):
    rows, cols = np.nonzero(Q)
    pattern = BandPattern(len(Q), rows, cols)
    flat = np.zeros(pattern.n_flat)
    flat[pattern.positions(rows, cols)] = Q[rows, cols]
    with pytest.raises(NotPositiveDefiniteError, match="precision of 'u'"):
        pattern.factorize(flat, "the precision of 'u'")
