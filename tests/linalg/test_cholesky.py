"""The ladder of jitters, and what its errors say."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.dense import RELATIVE_JITTERS, cholesky_with_jitter


def test_well_conditioned_covariance_gets_no_jitter(large):
    L, jitter = cholesky_with_jitter(large.K)
    assert jitter == 0.0
    assert L.flags.f_contiguous
    assert_allclose(L, np.linalg.cholesky(large.K), rtol=1e-10, atol=1e-12)


def test_only_the_lower_triangle_is_read(large):
    K = np.tril(large.K) + np.triu(np.full((300, 300), 7.0), 1)
    L, _ = cholesky_with_jitter(K)
    assert_allclose(L @ L.T, large.K, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_singular_covariance_gets_the_smallest_jitter_that_works(scale):
    x = np.linspace(0.0, 1.0, 60)
    K = scale * np.exp(-0.5 * (x[:, None] - x) ** 2 / 0.5**2)
    L, jitter = cholesky_with_jitter(K)
    assert any(jitter == pytest.approx(step * scale) for step in RELATIVE_JITTERS[1:])
    assert_allclose(L @ L.T, K + jitter * np.eye(60), atol=1e-13 * scale)
    smaller = [step for step in RELATIVE_JITTERS if step * scale < 0.99 * jitter]
    with pytest.raises(NotPositiveDefiniteError):
        cholesky_with_jitter(K, relative_jitters=tuple(smaller))


def test_jitter_climbs_the_ladder(ordinary):
    values, vectors = np.linalg.eigh(ordinary.K)
    scale = np.mean(np.diag(ordinary.K))
    values[0] = -3e-7 * scale
    K = (vectors * values) @ vectors.T
    _, jitter = cholesky_with_jitter(K)
    assert jitter == pytest.approx(1e-6 * np.mean(np.diag(K)))


def test_error_reports_jitters_eigenvalue_and_remedy(ordinary):
    K = ordinary.K - 0.5 * np.eye(9)
    smallest = np.linalg.eigvalsh(K)[0]
    with pytest.raises(NotPositiveDefiniteError) as caught:
        cholesky_with_jitter(K, name="the covariance of 'f'")
    message = str(caught.value)
    assert "the covariance of 'f'" in message
    assert f"{smallest:.2e}" in message
    assert f"{1e-4 * np.mean(np.diag(K)):.1e}" in message
    assert "white-noise term" in message


def test_error_points_out_asymmetry(ordinary):
    K = ordinary.K.copy()
    K[5, 1] = 40.0
    with pytest.raises(NotPositiveDefiniteError, match="not symmetric"):
        cholesky_with_jitter(K)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [(0, 0), (4, 4), (8, 3)])
def test_non_finite_covariance_is_refused(ordinary, bad, index):
    K = ordinary.K.copy()
    K[index] = bad
    with pytest.raises(NotPositiveDefiniteError, match="NaN or infinite, the first at"):
        cholesky_with_jitter(K)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e300])
def test_what_is_above_the_diagonal_is_not_read(ordinary, garbage):
    K = ordinary.K.copy()
    K[np.triu_indices(len(K), 1)] = garbage
    assert_array_equal(cholesky_with_jitter(K)[0], cholesky_with_jitter(ordinary.K)[0])
    # Nor where the first attempt fails, after which the matrix is looked at.
    singular = np.ones((3, 3))
    singular[0, 2] = garbage
    found, jitter = cholesky_with_jitter(singular)
    assert jitter > 0.0
    assert_array_equal(found, cholesky_with_jitter(np.ones((3, 3)))[0])


def test_non_square_covariance_is_refused():
    with pytest.raises(ValueError, match="square matrix"):
        cholesky_with_jitter(np.ones((3, 2)))


def test_work_array_holds_the_factor(large):
    work = np.full((300, 300), np.nan, order="F")
    L, _ = cholesky_with_jitter(large.K, work=work)
    assert np.shares_memory(L, work)
    assert_allclose(L @ L.T, large.K, atol=1e-12)
