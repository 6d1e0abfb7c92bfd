"""Products that read one triangle, in both memory orders."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg.lapack import dtrtri

from pymc_augconj.linalg.dense import (
    lower_column_norms,
    lower_inverse,
    lower_product,
    lower_transpose_product,
    mirror_lower,
    symmetric_product,
)

# Below, at and beyond the columns of one block.
SIZES = [1, 128, 300]


@pytest.fixture(params=["F", "C"])
def order(request):
    return request.param


@pytest.mark.parametrize("size", SIZES)
def test_products_match_numpy(size, order):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(size, size))
    x = rng.normal(size=size)
    K = np.array(A + A.T, order=order)
    garbage_above = np.array(A, order=order)
    L = np.tril(A)
    assert_allclose(symmetric_product(K, x), K @ x, atol=1e-11)
    assert_allclose(lower_product(garbage_above, x), L @ x, atol=1e-11)
    assert_allclose(lower_transpose_product(garbage_above, x), L.T @ x, atol=1e-11)


@pytest.mark.parametrize("size", SIZES)
def test_triangle_helpers_match_numpy(size, order):
    A = np.array(np.random.default_rng(0).normal(size=(size, size)), order=order)
    L = np.tril(A)
    assert_allclose(lower_column_norms(A), (L**2).sum(axis=0), rtol=1e-12)
    assert_allclose(mirror_lower(A), L + np.tril(L, -1).T, rtol=0)


@pytest.mark.parametrize("size", [1, 96, 97, 300])
def test_inverse_of_a_triangle(size, order):
    rng = np.random.default_rng(0)
    A = np.array(rng.normal(size=(size, size)) + size * np.eye(size), order=order)
    L = np.tril(A)
    for work in (None, np.full((size, size), np.nan, order="F")):
        found = lower_inverse(A, work)
        assert work is None or np.shares_memory(found, work)
        assert_allclose(np.tril(found) @ L, np.eye(size), atol=1e-13)


def test_inverse_of_a_triangle_is_lapacks():
    rng = np.random.default_rng(0)
    L = np.tril(rng.normal(size=(120, 120))) + 120.0 * np.eye(120)
    assert_allclose(np.tril(lower_inverse(L)), dtrtri(L, lower=1)[0], atol=1e-15)
