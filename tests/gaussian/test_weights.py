"""The D × D form: equal to the N × N form, and to brute force where λ is negative."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.gaussian.observations import ConditionedPredictors
from pymc_augconj.gaussian.sites import cholesky, weight_precision
from pymc_augconj.latents.by_weights import WeightSolver
from pymc_augconj.latents.joint import LatentPrior, block_prior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.linear_map import DenseMap
from pymc_augconj.point import FixedValue

D = 4


def condition(Phi, lam, m, h):
    """Return the posterior of v ~ N(0, I), η = m + Φ v."""
    size, A = Phi.shape[1], DenseMap(Phi)
    block = LatentBlock(
        name="v", value_name="v", form="", shape=(size,), size=size, copies=1, whitened=True,
        kind="standard", scale=FixedValue(np.ones(size)),
    )  # fmt: skip
    prior = LatentPrior(m, (block_prior(block, np.ones(size)),), (A,), (A,))
    groups = RowGroups.apart(m.size, None, (A,))
    return WeightSolver([block], groups).posterior(prior, groups.sites(h, lam, m))


@pytest.fixture(params=["F", "C"])
def design(request, problem):
    Phi = np.random.default_rng(5).normal(size=(problem.m.size, D))
    return np.array(Phi, order=request.param)


def test_both_forms_agree(problem, design):
    m, h, lam = problem.m, problem.h, problem.lam
    wide = ConditionedPredictors(np.asfortranarray(design @ design.T), h - lam * m, lam)
    narrow = condition(design, lam, m, h)
    scale = max(1.0, np.abs(problem.h).max())
    constant = h @ m - 0.5 * m @ (lam * m)
    assert_allclose(narrow.log_normalizer, wide.log_normalizer + constant, rtol=1e-8, atol=1e-8)
    assert_allclose(narrow.log_det, wide.log_det, rtol=1e-8, atol=1e-8)
    # With one λ of 1e8, K − K R K and h − Λμ both lose eight digits.
    assert_allclose(narrow.mean, m + wide.mean, rtol=1e-7, atol=1e-7)
    cov = narrow.predictor_cov()
    expected = wide.K - wide.explained(wide.K)
    assert_allclose(cov, expected, atol=1e-13 * max(1.0, problem.lam.max()))
    # A product Φ Cov(v) Φᵀ of terms of order one cancels.
    assert_allclose(narrow.var, np.diag(cov), rtol=1e-12, atol=1e-15)
    assert_allclose(narrow.alpha, wide.alpha, rtol=1e-6, atol=1e-13 * scale)


def test_prior_of_all_zero_precisions(ordinary):
    Phi = np.ones((ordinary.m.size, 2))
    posterior = condition(Phi, np.zeros(ordinary.m.size), ordinary.m, ordinary.h)
    assert posterior.log_det == 0.0
    assert_allclose(posterior.latent_mean, Phi.T @ ordinary.h)


def test_zero_scale_leaves_the_prior_mean(ordinary):
    Phi = np.zeros((ordinary.m.size, 2))
    posterior = condition(Phi, ordinary.lam, ordinary.m, ordinary.h)
    assert_allclose(posterior.mean, ordinary.m, rtol=0)
    assert_allclose(posterior.var, 0.0, atol=0)


def test_huge_scale_is_least_squares(ordinary):
    A = np.random.default_rng(2).normal(size=(ordinary.m.size, 3))
    scale = np.full(3, 1e6)
    posterior = condition(A * scale, ordinary.lam, ordinary.m, ordinary.h)
    coefficients = scale * posterior.latent_mean
    weighted = A.T * ordinary.lam
    expected = np.linalg.solve(weighted @ A, A.T @ (ordinary.h - ordinary.lam * ordinary.m))
    assert_allclose(coefficients, expected, rtol=1e-8)


@pytest.mark.parametrize("kind", ["deviations", "factor"])
def test_latent_moments_in_unwhitened_coordinates(ordinary, kind):
    rng = np.random.default_rng(3)
    A = rng.normal(size=(ordinary.m.size, D))
    scale = rng.uniform(0.5, 2.0, D)
    if kind == "factor":
        scale = np.tril(rng.normal(size=(D, D))) + 2.0 * np.eye(D)
    dense = np.diag(scale) if scale.ndim == 1 else scale
    precision = np.linalg.inv(dense @ dense.T) + (A.T * ordinary.lam) @ A
    r = ordinary.h - ordinary.lam * ordinary.m
    posterior = condition(A @ dense, ordinary.lam, ordinary.m, ordinary.h)
    mean = dense @ posterior.latent_mean
    assert_allclose(mean, np.linalg.solve(precision, A.T @ r), rtol=1e-9)
    expected = A @ np.linalg.inv(precision) @ A.T
    assert_allclose(posterior.predictor_cov(), expected, rtol=1e-9, atol=1e-12)


def test_gradients_match_finite_differences(ordinary, finite_difference):
    Phi = np.random.default_rng(5).normal(size=(ordinary.m.size, D))
    posterior = condition(Phi, ordinary.lam, ordinary.m, ordinary.h)

    def by_mean(m):
        return condition(Phi, ordinary.lam, m, ordinary.h).log_normalizer

    def by_precision(lam):
        return condition(Phi, lam, ordinary.m, ordinary.h).log_normalizer

    assert_allclose(posterior.alpha, finite_difference(by_mean, ordinary.m), rtol=1e-6, atol=1e-8)
    second_moment = posterior.var + posterior.mean**2
    numeric = finite_difference(by_precision, ordinary.lam)
    assert_allclose(-0.5 * second_moment, numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("negative", [slice(0, 2), slice(None)])
def test_negative_precisions_match_brute_force(ordinary, negative):
    """With Φ = chol(K) any Gaussian can be conditioned on sites of either sign."""
    ordinary.lam[negative] = -0.05
    posterior = condition(ordinary.chol_K, ordinary.lam, ordinary.m, ordinary.h)
    assert np.linalg.eigvalsh(ordinary.cov()).min() > 0.0
    assert_allclose(posterior.mean, ordinary.mean(), rtol=1e-9)
    assert_allclose(posterior.predictor_cov(), ordinary.cov(), rtol=1e-9)
    assert_allclose(posterior.log_normalizer, ordinary.log_normalizer(), rtol=1e-9)
    expected = np.linalg.solve(ordinary.K, ordinary.mean() - ordinary.m)
    assert_allclose(posterior.alpha, expected, rtol=1e-8)


def test_precision_too_negative_is_refused(ordinary):
    ordinary.lam[3] = -50.0
    with pytest.raises(NotPositiveDefiniteError, match="do not outweigh the prior"):
        condition(ordinary.chol_K, ordinary.lam, ordinary.m, ordinary.h)


def test_nan_is_refused(ordinary):
    ordinary.lam[3] = np.nan
    with pytest.raises(NotPositiveDefiniteError, match="expected a finite design"):
        condition(ordinary.chol_K, ordinary.lam, ordinary.m, ordinary.h)


def test_work_array_is_used(ordinary):
    work = np.full((9, 9), np.nan, order="F")
    chol, *_ = cholesky(weight_precision(ordinary.chol_K, ordinary.lam, work), ordinary.lam)
    assert np.shares_memory(chol, work)
    M = np.eye(9) + ordinary.chol_K.T @ (ordinary.lam[:, None] * ordinary.chol_K)
    assert_allclose(np.tril(chol), np.linalg.cholesky(M), rtol=1e-9, atol=1e-12)
