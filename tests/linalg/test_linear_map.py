"""Maps whose matrix is not formed, against their matrix."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.linalg.linear_map import CopiesMap, DenseMap, RowSelection, SelectionSum

RNG = np.random.default_rng(0)
BASE = RNG.normal(size=(4, 3))
# Two copies at all rows of the base in turn; and a third, at some of them, scaled and repeated.
MAPS = {
    "in order": CopiesMap(BASE, np.tile(np.arange(4), 2), np.repeat([0, 1], 4), None, 2),
    "any": CopiesMap(
        BASE, np.array([3, 0, 0, 2, 3]), np.array([2, 0, 2, 1, 2]), RNG.normal(size=5), 3
    ),
    "empty": CopiesMap(BASE, np.array([], int), np.array([], int), None, 2),
}


@pytest.mark.parametrize("name", MAPS)
def test_rows_of_copies(name):
    A, close = MAPS[name], np.testing.assert_allclose
    coef = np.ones(A.copy.size) if A.coef is None else A.coef
    dense = np.zeros((A.copy.size, A.size))
    for r, (i, k) in enumerate(zip(A.position, A.copy, strict=True)):
        dense[r, 3 * k : 3 * k + 3] = coef[r] * BASE[i]
    close(A.dense(), dense)
    as_dense = DenseMap(np.asfortranarray(dense))
    u, w = RNG.normal(size=(2, A.size)), RNG.normal(size=(2, len(dense)))
    for row in u:
        close(A.apply(row), as_dense.apply(row), atol=1e-12)
        close(A.magnitude(row), as_dense.magnitude(row), atol=1e-12)
    for row in w:
        close(A.apply_transpose(row), as_dense.apply_transpose(row), atol=1e-12)
    close(A.apply(u), as_dense.apply(u), atol=1e-12)
    close(A.apply_transpose(w), as_dense.apply_transpose(w), atol=1e-12)
    square = RNG.normal(size=(len(dense), len(dense)))
    close(A.congruence(square), as_dense.congruence(square), atol=1e-12)
    for which in (slice(1, 3), np.arange(len(dense))[::-2]):
        assert isinstance(A.rows(which), CopiesMap)
        close(A.rows(which).dense(), dense[which])
    columns = np.array([1, 4, 5])
    close(A.select(columns).dense(), dense[:, columns])
    if len(dense):
        close(A.largest_entries(), as_dense.largest_entries())
    assert not A.is_identity


def test_sums_of_selections_form_no_matrix():
    index = RNG.integers(6, size=(2, 9))
    parts = [RowSelection(own, RNG.normal(size=9), 6) for own in index]
    A = SelectionSum(np.array([0.7, -1.3]), parts)
    u, w = RNG.normal(size=(2, 6)), RNG.normal(size=(2, 9))
    products = A.apply(u), A.apply_transpose(w), A.apply(u[0]), A.apply_transpose(w[0])
    assert "matrix" not in vars(A)
    matrix = 0.7 * parts[0].dense() - 1.3 * parts[1].dense()
    expected = u @ matrix.T, w @ matrix, matrix @ u[0], matrix.T @ w[0]
    for found, product in zip(products, expected, strict=True):
        np.testing.assert_allclose(found, product, atol=1e-12)
