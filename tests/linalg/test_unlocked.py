"""Triangular products and solves in place against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.linalg.dense import (
    add_outer,
    cholesky_in_place,
    invert_lower,
    lower_solve,
    lower_times,
)

RNG = np.random.default_rng(0)


def lower(size):
    # What is above the diagonal must not matter.
    full = np.asfortranarray(RNG.normal(size=(size, size)) + size * np.eye(size))
    return full, np.tril(full)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (5, 8), (8, 5), (5, 0)])
def test_products_and_solves(shape, right, transposed):
    full, L = lower(shape[1] if right else shape[0])
    X = np.asfortranarray(RNG.normal(size=shape))
    T = L.T if transposed else L
    options = {"transposed": transposed, "right": right, "factor": -0.5}
    expected = -0.5 * (X @ T if right else T @ X)
    found = lower_times(full, X.copy(order="F"), **options)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    T = 4.0 * np.linalg.inv(T) if T.size else T
    back = lower_solve(full, found, **(options | {"factor": -2.0}))
    np.testing.assert_allclose(back, X, rtol=1e-10)


def test_rows_and_columns_of_a_larger_matrix():
    full, L = lower(4)
    whole = np.asfortranarray(RNG.normal(size=(9, 6)))
    expected = whole.copy()
    expected[3:7, 1:5] = L @ expected[3:7, 1:5]
    lower_times(full, whole[3:7, 1:5])
    np.testing.assert_allclose(whole, expected, rtol=1e-12)
    x, y = RNG.normal(size=4), RNG.normal(size=6)
    expected[3:7] += np.outer(x, y)
    np.testing.assert_allclose(add_outer(whole[3:7], x, y), expected[3:7], rtol=1e-12)
    np.testing.assert_allclose(whole, expected, rtol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 64, 65, 150])
def test_factor_and_inverse(size):
    A = RNG.normal(size=(size, size))
    A = np.asfortranarray(A @ A.T + size * np.eye(size))
    factor = A.copy(order="F")
    assert cholesky_in_place(factor) == 0
    np.testing.assert_allclose(np.tril(factor), np.linalg.cholesky(A), rtol=1e-10)
    np.testing.assert_array_equal(np.triu(factor, 1), np.triu(A, 1))
    inverse = np.tril(invert_lower(factor.copy(order="F")))
    np.testing.assert_allclose(inverse @ np.tril(factor), np.eye(size), atol=1e-12)


def test_refusals():
    full, _ = lower(4)
    with pytest.raises(ValueError, match="contiguous columns"):
        lower_times(full, RNG.normal(size=(4, 3)))
    with pytest.raises(ValueError, match="contiguous columns"):
        lower_times(full, np.ones((4, 3), dtype=np.float32, order="F"))
    with pytest.raises(ValueError, match="triangle of shape"):
        lower_solve(full, np.ones((3, 4), order="F"))
    with pytest.raises(ValueError, match="contiguous vectors"):
        add_outer(np.ones((3, 4), order="F"), np.ones(4), np.ones(3))
    with pytest.raises(ValueError, match="float64"):
        add_outer(np.ones((3, 4), order="F"), np.ones(3, dtype=int), np.ones(4))
    assert cholesky_in_place(np.asfortranarray(-np.eye(3))) == 1


def test_the_upper_factor_of_a_transpose_is_the_lower_factor():
    rng = np.random.default_rng(2)
    A = rng.standard_normal((40, 40))
    K = A @ A.T + np.eye(40)
    L = K.copy()
    assert cholesky_in_place(L.T, upper=True) == 0
    np.testing.assert_allclose(np.tril(L), np.linalg.cholesky(K), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(np.triu(L, 1), np.triu(K, 1))
    assert cholesky_in_place(-K.T, upper=True) > 0
    with pytest.raises(ValueError, match="contiguous columns"):
        cholesky_in_place(K, upper=True)
