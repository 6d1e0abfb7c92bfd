"""Cholesky factors of sparse matrices with a dense border, against NumPy's."""

from itertools import pairwise

import numpy as np
import pytest

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.sparse import SparsePattern


def groups(n_groups, per_group, n_dense):
    """Return the size and pairs of columns of groups that do not meet, and of some that do."""
    size = n_groups * per_group + n_dense
    pairs = [
        (g * per_group + a, g * per_group + b)
        for g in range(n_groups)
        for a in range(per_group)
        for b in range(a)
    ]
    pairs += [(size - 1 - d, i) for d in range(n_dense) for i in range(size - 1 - d)]
    return size, pairs


def chain(size):
    return size, [(i, i + 1) for i in range(size - 1)]


def crossed(n_rows, levels, seed=0):
    """Return columns of several factors, two of which meet where a row has both."""
    rng = np.random.default_rng(seed)
    starts = np.cumsum([0, *levels])
    own = [start + rng.integers(k, size=n_rows) for start, k in zip(starts, levels, strict=False)]
    pairs = [(a, b) for i, a in enumerate(own) for b in own[:i]]
    return int(starts[-1]), [(x, y) for a, b in pairs for x, y in zip(a, b, strict=True)]


def nested(n_rows, levels, seed=0):
    """Return the same of factors of which each level belongs to one of the next factor."""
    rng = np.random.default_rng(seed)
    starts = np.cumsum([0, *levels])
    own = [rng.integers(levels[0], size=n_rows)]
    for k, above in pairwise(levels):
        own.append(rng.integers(above, size=k)[own[-1]])
    own = [start + index for start, index in zip(starts, own, strict=False)]
    pairs = [(a, b) for i, a in enumerate(own) for b in own[:i]]
    return int(starts[-1]), [(x, y) for a, b in pairs for x, y in zip(a, b, strict=True)]


def pattern_of(size, pairs, dense=None):
    rows, cols = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    return SparsePattern(size, rows, cols, given=np.arange(size), dense=dense)


def dense(pattern, flat):
    """Return the matrix of flat entries."""
    values, border, corner = pattern.parts(flat)
    n = pattern.size - pattern.corner
    matrix = np.zeros((pattern.size, pattern.size))
    _, rows, cols, _ = pattern.arrays
    matrix[rows, cols] = values
    matrix[n : n + pattern.border, :n] = border.T
    matrix[n:, n:] = np.tril(corner)
    return matrix + np.tril(matrix, -1).T


CASES = {
    "groups": groups(20, 1, 2),
    "pairs": groups(15, 2, 3),
    "no border": groups(12, 2, 0),
    "chain": chain(40),
    "few columns": groups(2, 2, 1),
    "one column": (1, []),
    "crossed": crossed(300, (70, 30, 1)),
    "nested": nested(200, (60, 15, 4, 1)),
}


def problem(size, pairs, seed=0, dense_columns=None):
    """Return a pattern, a matrix in its order, its flat entries and a generator."""
    rng = np.random.default_rng(seed)
    pattern = pattern_of(size, pairs, dense_columns)
    matrix = np.zeros((size, size))
    for i, j in pairs:
        matrix[i, j] = matrix[j, i] = rng.normal()
    matrix += np.diag(np.abs(matrix).sum(axis=1) + rng.uniform(0.5, 1.5, size))
    flat = np.zeros(pattern.n_flat)
    rows, cols = np.nonzero(matrix)
    flat[pattern.positions(rows, cols)] = matrix[rows, cols]
    return pattern, matrix[np.ix_(pattern.order, pattern.order)], flat, rng


@pytest.fixture(params=CASES, ids=str)
def case(request):
    return problem(*CASES[request.param])


def test_the_pattern_holds_every_entry(case):
    pattern, ordered, flat, _ = case
    np.testing.assert_array_equal(dense(pattern, flat), ordered)


def test_factor_and_solves(case):
    check(*case)


@pytest.mark.parametrize("design", [crossed, nested], ids=lambda design: design.__name__)
def test_random_designs(design):
    rng = np.random.default_rng(1)
    shapes = set()
    for seed in range(200):
        levels = sorted(rng.integers(1, 40, size=rng.integers(1, 5)).tolist(), reverse=True)
        size, pairs = design(int(rng.integers(1, 150)), levels, seed)
        forced = np.flatnonzero(rng.random(size) < 0.1) if seed % 3 == 0 else None
        found = problem(size, pairs, seed, forced)
        check(*found)
        pattern = found[0]
        n = pattern.size - pattern.corner
        shapes.add((n > 0, pattern.border > 0, pattern.n_sparse > n))
    # With and without sparse columns, entries below them, and a border.
    assert len(shapes) >= 4


def check(pattern, ordered, flat, rng):
    right, x = rng.standard_normal((2, ordered.shape[0]))
    s = rng.uniform(0.1, 2.0, x.size)
    factor, half = pattern.factorize_scaled(flat, s, right)
    M = s[:, None] * ordered * s + np.eye(x.size)
    L = np.linalg.cholesky(M)
    np.testing.assert_array_equal(flat[pattern.diagonal], np.diagonal(ordered))
    assert factor.log_det == pytest.approx(np.linalg.slogdet(M)[1], rel=1e-12)
    np.testing.assert_allclose(half, np.linalg.solve(L, right), atol=1e-12)
    np.testing.assert_allclose(factor.transpose_solve(x), np.linalg.solve(L.T, x), atol=1e-12)
    np.testing.assert_allclose(factor.transpose_product(x), L.T @ x, atol=1e-12)


def n_entries(pattern):
    return pattern.n_sparse + (pattern.size - pattern.corner) * pattern.border


def test_groups_are_eliminated_together():
    assert pattern_of(*CASES["groups"]).corner == 2
    assert pattern_of(*CASES["pairs"]).corner <= 3


def test_the_larger_of_two_crossed_factors_is_sparse():
    pattern = pattern_of(*crossed(4000, (400, 150, 1)))
    assert (pattern.size, pattern.corner, pattern.border) == (551, 151, 1)
    assert set(pattern.order[:400]) == set(range(400))


def test_a_given_order_comes_first():
    size, pairs = crossed(4000, (150, 400, 1))
    rows, cols = np.array(pairs).T
    given = np.concatenate([np.arange(150, 550), np.arange(150), [550]])
    pattern = SparsePattern(size, rows, cols, given=given)
    np.testing.assert_array_equal(pattern.order[:400], given[:400])
    assert pattern.corner == 151


def test_few_neighbours_are_eliminated_by_degree():
    """A path in any order has no fill."""
    place = np.random.default_rng(0).permutation(500)
    pattern = pattern_of(500, np.column_stack([place[:-1], place[1:]]))
    assert n_entries(pattern) <= 3 * 500
    assert pattern.corner < 30


def test_nested_factors_do_not_fill():
    pattern = pattern_of(*nested(4000, (800, 100, 20, 1)))
    # Levels of the three other factors above each level of the first, and so on.
    assert n_entries(pattern) <= 4 * (800 + 100 + 20)
    assert pattern.corner < 30


@pytest.mark.parametrize("entry", [-3.0, np.nan, np.inf])
@pytest.mark.parametrize("at", [0, -1])
def test_a_matrix_without_a_factor_is_refused(entry, at):
    pattern = pattern_of(*CASES["groups"])
    flat = np.zeros(pattern.n_flat)
    flat[at] = entry
    ones = np.ones(pattern.order.size)
    with (
        np.errstate(all="ignore"),
        pytest.raises(NotPositiveDefiniteError, match="Cholesky factor"),
    ):
        pattern.factorize_scaled(flat, ones, ones)
