"""Sparse Cholesky factors against dense algebra."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.sparse import BandPattern, SparsePattern, find_pattern
from pymc_augconj.linalg.supernodes import _bounds


def random_matrix(seed, size, degree):
    """Entries anywhere, of either sign; some rows meet no other."""
    rng = np.random.default_rng(seed)
    Q = np.zeros((size, size))
    rows, cols = rng.integers(0, size, (2, degree * size // 2))
    Q[rows, cols] = rng.normal(size=rows.size)
    Q[:, 3] = Q[3] = 0.0
    Q += Q.T
    return Q + np.diag(np.abs(Q).sum(axis=0) + rng.gamma(2.0, size=size))


def grid(width, height):
    along = [np.eye(n, k=1) + np.eye(n, k=-1) for n in (width, height)]
    W = np.kron(along[0], np.eye(height)) + np.kron(np.eye(width), along[1])
    return np.diag(W.sum(0)) - 0.9 * W


def with_own_effects(Q):
    """Two fields: each value of the second meets one of the first."""
    own = np.diag(np.random.default_rng(0).gamma(1.0, size=len(Q)))
    return np.block([[Q + own, own], [own, own + np.eye(len(Q))]])


CASES = {
    "one": np.array([[4.0]]),
    "diagonal": np.diag([1.0, 2.0, 3.0, 4.0]),
    "dense": random_matrix(0, 12, 200),
    "few entries": random_matrix(1, 40, 2),
    "some entries": random_matrix(2, 50, 4),
    "many entries": random_matrix(3, 30, 9),
    "grid": grid(7, 9),
    "grid with own effects": with_own_effects(grid(5, 6)),
    "two maps": np.kron(np.eye(2), grid(4, 4)),
}


@pytest.fixture(params=CASES)
def case(request):
    Q = CASES[request.param]
    rows, cols = np.nonzero(np.tril(Q))
    pattern = SparsePattern(len(Q), rows, cols)
    flat = np.zeros(pattern.n_flat)
    flat[pattern.positions(rows, cols)] = Q[rows, cols]
    np.testing.assert_array_equal(flat[pattern.diagonal], np.diagonal(Q)[pattern.order])
    return Q[np.ix_(pattern.order, pattern.order)], Q, pattern, pattern.factorize(flat)


def test_factor(case, check_factor):
    ordered, Q, pattern, factor = case
    x = np.random.default_rng(1).normal(size=(3, len(Q)))
    np.testing.assert_array_equal(pattern.back(pattern.forward(x)), x)
    np.testing.assert_array_equal(Q[np.ix_(pattern.order, pattern.order)], ordered)
    check_factor(factor, ordered)


def test_inverse_where_the_factor_has_entries(case):
    ordered, Q, pattern, factor = case
    cov = np.linalg.inv(Q)
    rows, cols = np.nonzero(Q)
    found = factor.inverse()[pattern.positions(rows, cols)]
    np.testing.assert_allclose(found, cov[rows, cols], rtol=1e-10, atol=1e-13)
    dense = factor.dense_inverse()
    np.testing.assert_allclose(dense @ ordered, np.eye(len(Q)), atol=1e-11)
    np.testing.assert_array_equal(dense, dense.T)


def test_order_has_little_fill():
    """Own effects are eliminated without any fill, and of a grid there is less than in a band."""
    Q = grid(30, 30)
    alone, both = (find_pattern(len(M), *np.nonzero(M)) for M in (Q, with_own_effects(Q)))
    assert isinstance(alone, SparsePattern)
    assert isinstance(both, SparsePattern)
    # They do not come between columns of the grid that have the same rows below.
    merged = [p.size - p.corner - len(_bounds(*p.arrays[:2])) for p in (alone, both)]
    assert merged[0] == merged[1] > 100
    assert both.n_flat == pytest.approx(alone.n_flat + 2 * len(Q), rel=0.2)
    assert both.n_flat < 0.6 * BandPattern(len(Q), *np.nonzero(Q)).n_flat
    assert isinstance(find_pattern(40, *np.nonzero(grid(1, 40))), BandPattern)
    with pytest.raises(ValueError, match="at most 500 entries"):
        SparsePattern(len(Q), *np.nonzero(Q), limit=500)


def test_a_level_of_a_map_with_own_effects_adds_a_column():
    """It comes last, and no band is sought, which would take long."""
    areas = np.arange(900)
    rows, cols = np.nonzero(np.tril(with_own_effects(grid(30, 30)), -1))
    level = np.tile(1800, 900), areas
    rows, cols = np.append(rows, level[0]), np.append(cols, level[1])
    shuffled = np.random.default_rng(0).permutation(1801)
    band = BandPattern(1801, shuffled[rows], shuffled[cols])
    assert band.is_reversed
    both = SparsePattern(1801, shuffled[rows], shuffled[cols])
    alone = SparsePattern(1800, rows[:-900], cols[:-900])
    assert both.place[shuffled[1800]] >= 1801 - both.corner
    assert both.multiplications < 1.2 * alone.multiplications


def test_levels_of_the_larger_factor_come_first():
    """As cheap as that order, where minimum degree alone goes on to columns that meet most."""
    a, b = 400, 150
    rng = np.random.default_rng(0)
    pairs = np.unique((a + rng.integers(b, size=4000)) * (a + b) + rng.integers(a, size=4000))
    every = np.arange(a + b)
    rows, cols = np.append(every, pairs // (a + b)), np.append(every, pairs % (a + b))
    found, first = (SparsePattern(a + b, rows, cols, given=given) for given in (None, every))
    assert found.multiplications < 1.1 * first.multiplications


def laplacian(W):
    return np.diag(W.sum(axis=0)) - W


@pytest.mark.parametrize(
    "Q",
    [
        laplacian(np.diag(np.diagonal(grid(4, 5))) - grid(4, 5)),
        grid(4, 5) - np.eye(20),
        grid(4, 5) + np.diag([*np.zeros(19), np.nan]),
        grid(4, 5) + np.diag([np.inf, *np.zeros(19)]),
    ],
    ids=["singular", "indefinite", "nan", "infinite"],
)
def test_improper_matrices_are_refused(Q):
    rows, cols = np.nonzero(Q)
    pattern = SparsePattern(len(Q), rows, cols)
    flat = np.zeros(pattern.n_flat)
    flat[pattern.positions(rows, cols)] = Q[rows, cols]
    with pytest.raises(NotPositiveDefiniteError, match="precision of 'u'"):
        pattern.factorize(flat, "the precision of 'u'")


def test_patterns_of_the_last_models_are_kept():
    size = 400
    rows, cols = np.random.default_rng(5).integers(0, size, (2, 2000))
    rows, cols = np.append(rows, np.arange(size)), np.append(cols, np.arange(size))
    first = find_pattern(size, rows, cols)
    assert find_pattern(size, rows.copy(), cols) is first
    assert find_pattern(size, rows[1:], cols[1:]) is not first
