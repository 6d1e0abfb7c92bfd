"""The N × N form against dense brute force, with precisions from 0 to 1e8."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.gaussian.observations import ConditionedPredictors
from pymc_augconj.latents.by_observations import ObservationSolver
from pymc_augconj.latents.joint import LatentPrior, block_prior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.linear_map import RowSelection
from pymc_augconj.point import FixedValue


class Conditioned(ConditionedPredictors):
    """The posterior of η ~ N(m, K), with its covariance and the derivative by K."""

    def __init__(self, problem, work=None):
        m, h, lam = problem.m, problem.h, problem.lam
        super().__init__(problem.K, h - lam * m, lam, work=work)
        self.mean = m + self.mean
        self.log_normalizer += h @ m - 0.5 * m @ (lam * m)

    def cov(self):
        return self.K - self.explained(self.K)

    def gradient_wrt_cov(self):
        return 0.5 * (np.outer(self.alpha, self.alpha) - self.response())


conditioned = Conditioned


def test_mean_and_normalizer_match_brute_force(problem):
    posterior = conditioned(problem)
    assert_allclose(posterior.mean, problem.mean(), rtol=1e-9, atol=1e-9)
    assert_allclose(posterior.log_normalizer, problem.log_normalizer(), rtol=1e-9, atol=1e-9)


def test_var_and_cov_match_brute_force(problem):
    posterior = conditioned(problem)
    assert_allclose(posterior.cov(), problem.cov(), rtol=1e-9, atol=1e-12)
    # The reference, two matrix inversions, is itself good to about 1e-16 K.
    assert_allclose(posterior.var(), np.diag(problem.cov()), rtol=1e-9, atol=1e-14)


def test_every_entry_beyond_one_block(large):
    posterior = conditioned(large)
    assert_allclose(posterior.mean, large.mean(), rtol=1e-8, atol=1e-8)
    assert_allclose(posterior.cov(), large.cov(), rtol=1e-8, atol=1e-11)
    assert_allclose(posterior.var(), np.diag(large.cov()), rtol=1e-8)
    R = np.linalg.inv(np.eye(300) + large.lam[:, None] * large.K) * large.lam
    expected = 0.5 * (np.outer(posterior.alpha, posterior.alpha) - R)
    assert_allclose(posterior.gradient_wrt_cov(), expected, rtol=1e-8, atol=1e-10)


def test_all_zero_precisions_leave_the_prior_covariance(ordinary):
    flat = replace(ordinary, lam=np.zeros(ordinary.m.size))
    posterior = conditioned(flat)
    assert posterior.log_det == 0.0
    assert_allclose(posterior.var(), np.diag(flat.K), rtol=1e-15)
    assert_allclose(posterior.alpha, flat.h, rtol=1e-15)


def test_alpha_is_prior_precision_times_shift(problem):
    posterior = conditioned(problem)
    expected = np.linalg.solve(problem.K, problem.mean() - problem.m)
    assert_allclose(posterior.alpha, expected, rtol=1e-8, atol=1e-8)


def test_singular_prior_covariance(ordinary):
    repeated = np.repeat(np.arange(5), 2)[:9]
    K = np.asfortranarray(ordinary.K[np.ix_(repeated, repeated)])
    assert np.linalg.matrix_rank(K) == 5
    posterior = conditioned(replace(ordinary, K=K))
    shrink = np.linalg.inv(np.eye(9) + K * ordinary.lam)
    assert_allclose(posterior.cov(), shrink @ K, atol=1e-12)
    r = ordinary.h - ordinary.lam * ordinary.m
    assert_allclose(posterior.mean, ordinary.m + shrink @ K @ r, rtol=1e-10)


@pytest.mark.parametrize("kind", ["m", "h", "lam"])
def test_vector_gradients_match_finite_differences(ordinary, finite_difference, kind):
    def log_normalizer(x):
        return conditioned(replace(ordinary, **{kind: x})).log_normalizer

    posterior = conditioned(ordinary)
    expected = {
        "m": posterior.alpha,
        "h": posterior.mean,
        "lam": -0.5 * (posterior.var() + posterior.mean**2),
    }
    numeric = finite_difference(log_normalizer, getattr(ordinary, kind))
    assert_allclose(expected[kind], numeric, rtol=1e-6, atol=1e-8)


def test_cov_gradient_matches_finite_differences(ordinary, finite_difference):
    def log_normalizer(K):
        return conditioned(replace(ordinary, K=np.asfortranarray(0.5 * (K + K.T)))).log_normalizer

    gradient = conditioned(ordinary).gradient_wrt_cov()
    numeric = finite_difference(log_normalizer, ordinary.K)
    assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-8)
    assert_allclose(gradient, gradient.T, rtol=0, atol=0)


def posterior_of(problem):
    """Return the posterior of f ~ N(m, K) as the latents, which are whitened by chol(K)."""
    size = problem.m.size
    block = LatentBlock(
        name="f", value_name="f", form="", shape=(size,), size=size, copies=1, whitened=False,
        kind="dense", scale=FixedValue(problem.K),
    )  # fmt: skip
    own = (block_prior(block, problem.K),)
    maps = (RowSelection(np.arange(size), None, size),)
    groups = RowGroups.apart(size, None, maps)
    prior = LatentPrior(problem.m, own, maps, maps)
    sites = groups.sites(problem.h, problem.lam, problem.m)
    return ObservationSolver([block], groups).posterior(prior, sites)


def affine_map_of_draw(problem, draw):
    """Return offset and matrix of a draw of η as an affine function of ν, by unit vectors."""
    size = 2 * problem.m.size
    offset = problem.m + problem.chol_K @ draw(np.zeros(size))
    columns = [problem.m + problem.chol_K @ draw(unit) - offset for unit in np.eye(size)]
    return offset, np.array(columns).T


def test_draw_has_exactly_the_posterior_moments(problem):
    posterior = posterior_of(problem)
    offset, linear = affine_map_of_draw(problem, posterior.apply)
    assert_allclose(offset, problem.mean(), rtol=1e-9, atol=1e-9)
    assert_allclose(linear @ linear.T, problem.cov(), rtol=1e-7, atol=1e-9)
    assert_allclose(offset, posterior.mean, rtol=1e-9, atol=1e-9)


def test_whitened_latent_draw_gives_the_same_predictors(problem):
    """By Matheron's rule η = η₀ + K w, w = C⁻¹(h/λ − η₀ − ε/√λ)."""
    rng = np.random.default_rng(1)
    xi, eps = rng.normal(size=(2, problem.m.size))
    eta0 = problem.m + problem.chol_K @ xi
    own = conditioned(problem)
    difference = problem.h - own.precision * eta0 - np.sqrt(own.precision) * eps
    eta = eta0 + problem.K @ own.solve(difference / own.precision)
    v = posterior_of(problem).apply(np.concatenate([xi, eps]))
    assert_allclose(problem.m + problem.chol_K @ v, eta, rtol=1e-9, atol=1e-9)


def test_draw_without_noise_is_noticed(ordinary):
    """Negative control: forgetting ε must change the covariance of the draw."""
    posterior, size = posterior_of(ordinary), ordinary.m.size

    def wrong(nu):
        return posterior.apply(np.append(nu[:size], np.zeros(size)))

    _, linear = affine_map_of_draw(ordinary, wrong)
    assert np.abs(linear @ linear.T - ordinary.cov()).max() > 1e-2


def test_memory_order_and_work_arrays_do_not_matter(large):
    expected = conditioned(large)
    work, scratch = (np.full((300, 300), np.nan, order="F") for _ in range(2))
    posterior = conditioned(replace(large, K=np.ascontiguousarray(large.K)), work)
    assert np.shares_memory(posterior.chol_C, work)
    assert_allclose(posterior.mean, expected.mean, rtol=1e-12)
    assert_allclose(posterior.var(work=scratch), expected.var(), rtol=1e-12)


def test_inputs_are_left_alone(problem):
    before = [x.copy() for x in (problem.K, problem.m, problem.h, problem.lam)]
    posterior = conditioned(problem)
    posterior.var()
    posterior.cov()
    posterior.gradient_wrt_cov()
    nu = np.ones(2 * problem.m.size)
    posterior_of(problem).apply(nu)
    for x, copy in zip((problem.K, problem.m, problem.h, problem.lam), before, strict=True):
        assert_allclose(x, copy, rtol=0, atol=0)
    assert (nu == 1.0).all()


@pytest.mark.parametrize("bad", [-np.inf, np.nan, np.inf])
def test_unusable_precision_is_refused(ordinary, bad):
    lam = ordinary.lam.copy()
    lam[2] = bad
    with pytest.raises(ValueError, match="expected finite sites"):
        ConditionedPredictors(ordinary.K, ordinary.h, lam)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [(4, 4), (5, 2)])
def test_non_finite_covariance_is_refused(ordinary, bad, index):
    K = ordinary.K.copy(order="F")
    K[index] = K[index[::-1]] = bad
    with pytest.raises(NotPositiveDefiniteError, match="expected K finite"):
        ConditionedPredictors(K, ordinary.h, ordinary.lam)


def test_indefinite_covariance_is_refused(ordinary):
    K = ordinary.K.copy(order="F")
    K[3, 3] = -50.0
    with pytest.raises(NotPositiveDefiniteError, match="positive semi-definite"):
        ConditionedPredictors(K, ordinary.h, ordinary.lam)


@pytest.mark.parametrize("work", [np.empty((9, 9)), np.empty((8, 8), order="F")])
def test_unfit_work_array_is_refused(ordinary, work):
    with pytest.raises(ValueError, match="expected a Fortran-ordered float64 work array"):
        ConditionedPredictors(ordinary.K, ordinary.h, ordinary.lam, work=work)
