"""Order, neighbours and precision of Vecchia's approximation beside brute force."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg import elimination, sparse
from pymc_augconj.linalg.factors import SupernodalFactor
from pymc_augconj.linalg.vecchia import Neighbours, max_min_order, nearest


def squares(a, b):
    return ((a[:, None] - b[None]) ** 2).sum(axis=-1)


def covariances(X, near=None):
    """Return exp(−r/0.3) for all pairs of inputs, or those that meet."""
    a, b = (X[:, None], X) if near is None else (X[near.lower[0]], X[near.lower[1]])
    return np.exp(-np.sqrt(((a - b) ** 2).sum(axis=-1)) / 0.3)


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_order_and_neighbours(dim):
    X = np.random.default_rng(dim).uniform(size=(200, dim))
    order, distance = max_min_order(X), np.full(200, np.inf)
    for k, point in enumerate(order[:-1]):
        distance = np.minimum(distance, squares(X[[point]], X)[0])
        distance[order[: k + 1]] = -1.0
        assert distance[order[k + 1]] == distance.max()
    X = X[order]
    found, all_squares = nearest(X, 7), squares(X, X)
    for i, near in enumerate(found):
        expected = np.sort(np.argsort(all_squares[i, :i], kind="stable")[:7])
        np.testing.assert_array_equal(np.sort(near[near >= 0]), expected)


def test_all_neighbours_give_the_inverse():
    X = np.random.default_rng(1).uniform(size=(20, 2))
    near = Neighbours(X, 50)
    found = near.precision(covariances(X, near))
    Q = np.zeros((20, 20))
    Q[tuple(near.entries)] = found[:-20]
    expected = np.linalg.inv(covariances(X))
    np.testing.assert_allclose(Q, expected, atol=1e-10 * np.abs(expected).max())
    assert np.log(found[-20:]).sum() == pytest.approx(np.linalg.slogdet(expected)[1], abs=1e-10)


def test_few_neighbours_give_the_product_of_conditionals():
    """At a draw; with one neighbour fewer it is another density."""
    rng = np.random.default_rng(2)
    X, f = rng.uniform(size=(60, 2)), rng.standard_normal(60)
    order = max_min_order(X)
    K = covariances(X[order])
    density = {}
    for count in (4, 5):
        total = 0.0
        for i, near in enumerate(nearest(X[order], count)):
            c = near[near >= 0]
            weights = np.linalg.solve(K[np.ix_(c, c)], K[c, i])
            var = K[i, i] - weights @ K[c, i]
            total += (f[order[i]] - weights @ f[order[c]]) ** 2 / var + np.log(var)
        density[count] = total
    near = Neighbours(X, 5)
    found = near.precision(covariances(X, near))
    rows, cols = near.entries
    ours = found[:-60] @ (f[rows] * f[cols]) - np.log(found[-60:]).sum()
    assert ours == pytest.approx(density[5], rel=1e-10)
    assert ours != pytest.approx(density[4], rel=1e-3)


def test_derivative():
    rng = np.random.default_rng(3)
    X = rng.uniform(size=(30, 2))
    near = Neighbours(X, 5)
    k = covariances(X, near)
    change = rng.normal(size=k.size)
    slopes, h = rng.normal(size=near.precision(k).size), 1e-6
    ends = [slopes @ near.precision(k + step * change) for step in (-h, h)]
    pulled = near.pull_precision(k, slopes) @ change
    # Differences have an error of h² and of rounding over h.
    assert pulled == pytest.approx((ends[1] - ends[0]) / (2.0 * h), rel=1e-5)


def test_coinciding_inputs_have_no_precision():
    near = Neighbours(np.zeros((4, 2)), 2)
    assert np.isnan(near.precision(np.ones(near.lower.shape[1]))).all()


def test_elimination_by_supernodes(monkeypatch):
    """With a corner, whose columns are dense, and without one."""
    X = np.random.default_rng(5).uniform(size=(300, 2))
    near = Neighbours(X, 6)
    rows, cols = near.entries
    entries = near.precision(covariances(X, near))[:-300]
    Q = np.zeros((300, 300))
    Q[rows, cols] = entries
    inverse, lower = np.linalg.inv(Q), rows >= cols
    monkeypatch.setattr(elimination, "_SUPERNODAL", 0.0)
    corners = []
    for cost in (1.0, 1e3):
        monkeypatch.setattr(elimination, "_PER_COLUMN", cost)
        pattern = sparse.SparsePattern(300, rows, cols)
        corners.append(pattern.corner)
        flat = np.zeros(pattern.n_flat)
        flat[pattern.positions(rows[lower], cols[lower])] = entries[lower]
        factor = pattern.factorize(flat.copy())
        assert isinstance(factor, SupernodalFactor)
        assert factor.log_det == pytest.approx(np.linalg.slogdet(Q)[1], rel=1e-12)
        found = factor.inverse()[pattern.positions(rows, cols)]
        np.testing.assert_allclose(found, inverse[rows, cols], atol=1e-10)
        np.testing.assert_allclose(
            pattern.back(factor.solve(pattern.forward(np.eye(300)))), inverse, atol=1e-10
        )
        flat[pattern.diagonal[150]] = -1.0
        with pytest.raises(NotPositiveDefiniteError):
            pattern.factorize(flat.copy())
        flat[pattern.positions(rows[lower], cols[lower])] = entries[lower]
        s, right = np.linspace(0.5, 2.0, 300), np.linspace(-1.0, 1.0, 300)
        scaled, half = pattern.factorize_scaled(flat.copy(), s, right)
        place = np.ix_(pattern.order, pattern.order)
        M = np.eye(300) + s * Q[place] * s[:, None]
        np.testing.assert_allclose(half, np.linalg.solve(np.linalg.cholesky(M), right), atol=1e-10)
        several = pattern.back(factor.solve(pattern.forward(np.stack([right] * 5))))
        np.testing.assert_allclose(several, np.tile(inverse @ right, (5, 1)), atol=1e-10)
        assert scaled.log_det == pytest.approx(np.linalg.slogdet(M)[1], rel=1e-12)
    assert corners[0] < corners[1]
