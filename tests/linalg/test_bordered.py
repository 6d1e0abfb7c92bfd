"""Cholesky factors of sparse matrices with a dense border, against NumPy's."""

import numpy as np
import pytest

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.bordered import BorderedPattern


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


def dense(pattern, flat):
    """Return the matrix of flat entries."""
    values, border, corner = pattern.parts(flat)
    n = pattern.size
    matrix = np.zeros((pattern.order.size,) * 2)
    matrix[pattern.rows, pattern.cols] = values
    matrix[n:, :n] = border.T
    matrix[n:, n:] = np.tril(corner)
    return matrix + np.tril(matrix, -1).T


CASES = {
    "groups": groups(20, 1, 2),
    "pairs": groups(15, 2, 3),
    "no border": groups(12, 2, 0),
    "chain": chain(40),
    "few columns": groups(2, 2, 1),
    "one column": (1, []),
}


@pytest.fixture(params=CASES, ids=str)
def case(request):
    size, pairs = CASES[request.param]
    rng = np.random.default_rng(0)
    pattern = BorderedPattern(size, pairs)
    matrix = np.zeros((size, size))
    for i, j in pairs:
        matrix[i, j] = matrix[j, i] = rng.normal()
    matrix += np.diag(np.abs(matrix).sum(axis=1) + rng.uniform(0.5, 1.5, size))
    ordered = matrix[np.ix_(pattern.order, pattern.order)]
    flat = np.zeros(pattern.n_entries)
    n = pattern.size
    values, border, corner = pattern.parts(flat)
    values[:] = ordered[pattern.rows, pattern.cols]
    border[:] = ordered[:n, n:]
    corner[:] = ordered[n:, n:]
    return pattern, ordered, flat, rng


def test_the_pattern_holds_every_entry(case):
    pattern, ordered, flat, _ = case
    np.testing.assert_array_equal(dense(pattern, flat), ordered)


def test_factor_and_solves(case):
    pattern, ordered, flat, rng = case
    right, x = rng.standard_normal((2, ordered.shape[0]))
    s = rng.uniform(0.1, 2.0, x.size)
    factor = pattern.factorize(flat, s, right)
    M = s[:, None] * ordered * s + np.eye(x.size)
    L = np.linalg.cholesky(M)
    assert factor.log_det == pytest.approx(np.linalg.slogdet(M)[1], rel=1e-12)
    np.testing.assert_allclose(factor.half, np.linalg.solve(L, right), atol=1e-12)
    np.testing.assert_allclose(factor.solve_transpose(x), np.linalg.solve(L.T, x), atol=1e-12)
    np.testing.assert_allclose(factor.transpose_product(x), L.T @ x, atol=1e-12)


def test_groups_are_eliminated_together():
    assert BorderedPattern(*CASES["groups"]).border == 2
    assert BorderedPattern(*CASES["pairs"]).border == 3
    assert BorderedPattern(*CASES["few columns"]).size == 0


@pytest.mark.parametrize("entry", [-3.0, np.nan, np.inf])
@pytest.mark.parametrize("at", [0, -1])
def test_a_matrix_without_a_factor_is_refused(entry, at):
    pattern = BorderedPattern(*CASES["groups"])
    flat = np.zeros(pattern.n_entries)
    flat[at] = entry
    ones = np.ones(pattern.order.size)
    with (
        np.errstate(all="ignore"),
        pytest.raises(NotPositiveDefiniteError, match="Cholesky factor"),
    ):
        pattern.factorize(flat, ones, ones)
