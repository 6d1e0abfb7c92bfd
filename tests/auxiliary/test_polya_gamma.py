import subprocess
import sys

import numpy as np
import pytest
from polyagamma import random_polyagamma
from scipy.stats import ks_2samp

from pymc_augconj.auxiliary.polya_gamma.distribution import (
    acceptance,
    logpdf_polya_gamma,
    mean_polya_gamma,
    random_polya_gamma,
    random_unit_polya_gamma,
)
from tests.auxiliary.references import log_laplace_polya_gamma, var_polya_gamma

SHAPES = [0.01, 0.3, 0.5, 1, 1.5, 2, 2.5, 3.7, 5, 13, 60, 170.3, 1000, 1e5, 1e10]
TILTS = [0.0, 1e-8, 0.5, 3.0, 20.0, 200.0]


def quadrature_range(h, c):
    """Where all but 1e-12 of the mass of PG(h, c) lies."""
    mean, std = float(mean_polya_gamma(h, c)), float(np.sqrt(var_polya_gamma(h, c)))
    left = mean * np.exp(-min(30.0 * std / mean, 300.0 if h < 0.1 else 20.0))
    rate = 0.5 * (np.pi**2 + c**2)  # of the exponential right tail
    return left, mean + 12.0 * std + 30.0 / rate


def check(disagreements, draws, h, c):
    return disagreements(
        draws,
        mean_polya_gamma(h, c),
        var_polya_gamma(h, c),
        lambda t: log_laplace_polya_gamma(h, c, t),
    )


@pytest.mark.parametrize("h", SHAPES)
def test_draws_have_the_moments_and_laplace_transform(h, disagreements):
    rng = np.random.default_rng(round(1000 * h))
    for c in TILTS:
        draws = random_polya_gamma(rng, h, np.full(200_000, c))
        assert not check(disagreements, draws, h, c), f"c = {c}"


@pytest.mark.parametrize("h", [0.01, 0.3, 1, 1.5, 2.5, 3.7, 13, 60, 1000])
def test_draws_have_the_distribution_function(h, cdf_from_logpdf, ks_rejects):
    rng = np.random.default_rng(7)
    for c in (0.0, 3.0, 20.0):
        cdf = cdf_from_logpdf(lambda x, c=c: logpdf_polya_gamma(x, h, c), *quadrature_range(h, c))
        assert not ks_rejects(random_polya_gamma(rng, h, np.full(200_000, c)), cdf), f"c = {c}"


def test_wrong_samplers_fail_the_same_checks(disagreements, cdf_from_logpdf, ks_rejects):
    rng = np.random.default_rng(8)
    h, c, n = 1.0, 1.0, 1_000_000
    right = random_polya_gamma(rng, h, np.full(n, c))
    mean = mean_polya_gamma(h, c)
    variance_off = mean + np.sqrt(1.02) * (right - mean)
    shape_off = random_polya_gamma(rng, 1.01 * h, np.full(n, c))
    assert not check(disagreements, right, h, c)
    assert set(check(disagreements, variance_off, h, c)) >= {"var"}
    assert set(check(disagreements, shape_off, h, c)) >= {"mean", "laplace 1.0"}
    cdf = cdf_from_logpdf(lambda x: logpdf_polya_gamma(x, h, c), *quadrature_range(h, c))
    assert not ks_rejects(right, cdf)
    assert ks_rejects(shape_off, cdf)
    assert ks_rejects(np.abs(variance_off), cdf)


def test_polyagamma_default_method_fails_at_fractional_shape(disagreements):
    """The bias which this file exists to avoid is one that its checks see."""
    draws = random_polyagamma(0.5, 0.0, size=1_000_000, random_state=np.random.default_rng(1))
    assert check(disagreements, draws, 0.5, 0.0)


@pytest.mark.parametrize("h", [1, 2, 3, 7])
@pytest.mark.parametrize("c", [0.0, 1.3, 9.0])
def test_agrees_with_polyagamma_devroye(h, c):
    rng = np.random.default_rng(11)
    theirs = random_polyagamma(h, c, size=50_000, method="devroye", random_state=rng)
    assert ks_2samp(random_polya_gamma(rng, h, np.full(50_000, c)), theirs).pvalue > 1e-4


@pytest.mark.parametrize("h", [0.01, 0.3, 1, 2.5, 10, 1000, 1e5])
@pytest.mark.parametrize("c", [0.0, 4.0, 60.0])
def test_density_integrates_to_the_moments_and_laplace_transform(h, c):
    low, high = quadrature_range(h, c)
    log_x, step = np.linspace(np.log(low), np.log(high), 4001, retstep=True)
    x = np.exp(log_x)
    log_mass = logpdf_polya_gamma(x, h, c) + log_x + np.log(step)
    mean, var = mean_polya_gamma(h, c), var_polya_gamma(h, c)
    assert np.exp(log_mass).sum() == pytest.approx(1.0, abs=1e-9)
    assert (np.exp(log_mass) * x).sum() == pytest.approx(mean, rel=1e-9)
    assert (np.exp(log_mass) * (x - mean) ** 2).sum() == pytest.approx(var, rel=1e-8)
    for t in (0.2 / mean, 5.0 / mean, -0.3 * min(1.0 / mean, 0.5 * (np.pi**2 + c**2))):
        transform = np.exp(log_mass - t * x - log_laplace_polya_gamma(h, c, t)).sum()
        assert transform == pytest.approx(1.0, abs=1e-9)


def test_density_equals_the_two_theta_series_at_shape_one():
    x = np.geomspace(0.005, 40.0, 300)  # of 4ω
    n = np.arange(80)[:, None]
    odd, sign = 2 * n + 1, (-1.0) ** n
    left = 2 / np.sqrt(2 * np.pi * x**3) * (sign * odd * np.exp(-(odd**2) / (2 * x))).sum(0)
    right = np.pi / 2 * (sign * odd * np.exp(-(odd**2) * np.pi**2 * x / 8)).sum(0)
    reference = 4 * np.where(x < 0.64, left, right)
    np.testing.assert_allclose(np.exp(logpdf_polya_gamma(x / 4, 1, 0)), reference, rtol=1e-12)


@pytest.mark.parametrize("h", [0.3, 2.5, 30])
def test_density_is_tilted_by_c(h):
    x = np.geomspace(0.01, 5.0, 50) * h
    difference = logpdf_polya_gamma(x, h, -6.0) - logpdf_polya_gamma(x, h, 0.0)
    np.testing.assert_allclose(difference, h * np.log(np.cosh(3.0)) - 18.0 * x, atol=1e-10)


def test_density_joins_its_left_tail_and_handles_the_edges():
    edge = 3.5 / 25.0 / 4.0
    inside, outside = logpdf_polya_gamma([edge * (1 - 1e-12), edge * (1 + 1e-12)], 2.5, 1.0)
    assert inside == pytest.approx(outside, abs=1e-8)
    values = logpdf_polya_gamma([-1.0, 0.0, 1e-300, np.inf, np.nan, 1e6], 2.5, 1.0)
    assert np.all(values[[0, 1, 3]] == -np.inf)
    assert values[2] == pytest.approx(-(2.5**2) / 8e-300)
    assert np.isnan(values[4])
    assert values[5] == pytest.approx(-0.5 * (np.pi**2 + 1) * 1e6, rel=1e-4)


def test_logistic_identity():
    """p(y|f) = ∫ p(y|f, ω) p(ω) dω, and p(ω|y, f) is PG(b, f)."""
    f, y, b = 1.7, 2.0, 3.0
    omega = np.geomspace(0.05, 5.0, 20)
    site = -b * np.log(2) + (y - b / 2) * f - 0.5 * omega * f * f
    joint = site + logpdf_polya_gamma(omega, b, 0.0)
    expected = y * f - b * np.log1p(np.exp(f))
    np.testing.assert_allclose(joint - logpdf_polya_gamma(omega, b, f), expected, rtol=1e-11)


def test_moments_against_the_definition_in_c():
    c = np.array([0.3, 1.0, 5.0, 30.0])
    np.testing.assert_allclose(mean_polya_gamma(2.0, c), 2.0 * np.tanh(c / 2) / (2 * c), rtol=1e-14)
    closed = 2.0 * (np.sinh(c) - c) / (4 * c**3 * np.cosh(c / 2) ** 2)
    np.testing.assert_allclose(var_polya_gamma(2.0, c), closed, rtol=1e-12)
    assert mean_polya_gamma(2.0, 0.0) == 0.5
    assert var_polya_gamma(2.0, 1e-10) == pytest.approx(2.0 / 24.0, rel=1e-14)
    assert mean_polya_gamma(2.0, 1e-9) == 0.5
    assert mean_polya_gamma(2.0, 1e300) == pytest.approx(1e-300)
    assert var_polya_gamma(2.0, 1e300) == 0.0
    assert log_laplace_polya_gamma(2.0, 1e300, 1.0) == 0.0
    assert var_polya_gamma(1.0, 1e5) == pytest.approx(0.5 * 1e-15, rel=1e-4)
    around = var_polya_gamma(1.0, [0.2 - 1e-9, 0.2 + 1e-9])  # where the series begins
    assert around[0] == pytest.approx(around[1], rel=1e-9)


@pytest.mark.parametrize("c", [0.0, 1e-8, 0.7, 40.0, 3000.0])
def test_laplace_transform_at_small_t_and_at_its_end(c):
    t = 1e-9
    mean, var = mean_polya_gamma(2.5, c), var_polya_gamma(2.5, c)
    for sign in (1.0, -1.0):
        expected = -sign * t * mean + 0.5 * t * t * var
        assert log_laplace_polya_gamma(2.5, c, sign * t) == pytest.approx(expected, rel=1e-12)
    end = -0.5 * (np.pi**2 + c * c)
    assert log_laplace_polya_gamma(1.0, c, 1.001 * end) == np.inf
    assert np.isfinite(log_laplace_polya_gamma(1.0, c, 0.999 * end))
    direct = [log_laplace_polya_gamma(1.0, 1.0, s) for s in (-3.0, 2.0)]
    root = np.sqrt(np.array([-3.0, 2.0]) / 2 + 0.25 + 0j)
    np.testing.assert_allclose(direct, np.log(np.cosh(0.5) / np.cosh(root).real), rtol=1e-13)


def test_same_seed_same_draws_and_no_global_generator():
    h = np.array([0.4, 1.0, 6.5, 300.0, 0.0])
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    one = random_polya_gamma(np.random.default_rng(3), h, 0.7)
    two = random_polya_gamma(np.random.default_rng(3), h, 0.7)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    assert np.all(one[:4] > 0)
    assert one[4] == 0.0


def test_shapes_and_kinds_of_arguments():
    rng = np.random.default_rng(0)
    assert random_polya_gamma(rng, 1, 0.0).shape == ()
    assert random_polya_gamma(rng, [1, 2], [[0], [1], [2]]).shape == (3, 2)
    assert random_polya_gamma(rng, np.ones((2, 3)).T, 1).dtype == np.float64
    assert random_polya_gamma(rng, np.ones(0), 1.0).shape == (0,)
    assert random_polya_gamma(rng, [True, False], 1.0)[1] == 0.0


def test_extreme_arguments():
    rng = np.random.default_rng(0)
    draws = random_polya_gamma(rng, 1.0, np.full(1000, 1e3))
    assert draws.mean() == pytest.approx(5e-4, rel=0.02)
    assert random_polya_gamma(rng, 1e15, 2.0) == pytest.approx(
        float(mean_polya_gamma(1e15, 2.0)), rel=1e-6
    )
    for h, c in ((1e-300, 0.0), (1.0, 1e300), (1e300, 0.0), (1e300, 1e300), (3.0, -1e-300)):
        draws = random_polya_gamma(rng, h, np.full(100, c))
        assert np.all(np.isfinite(draws) & (draws >= 0)), (h, c)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_bad_shape_is_refused(bad):
    with pytest.raises(ValueError, match=r"expected a finite shape ≥ 0, got h\[2\] = "):
        random_polya_gamma(np.random.default_rng(0), [1.0, 0.0, bad, -5.0], 0.0)


def test_bad_tilt_is_refused():
    with pytest.raises(ValueError, match=r"expected a finite tilt, got c\[1, 0\] = nan"):
        random_polya_gamma(np.random.default_rng(0), 1.0, [[0.0], [np.nan]])
    with pytest.raises(ValueError, match=r"expected a finite tilt, got c = inf"):
        mean_polya_gamma(1.0, np.inf)
    with pytest.raises(ValueError, match=r"expected a shape > 0, got h = 0.0"):
        logpdf_polya_gamma(1.0, 0.0, 0.0)


def test_bernoulli_and_moments_load_no_numba_and_few_trials_one_kernel():
    program = """
import sys
import numpy as np
from pymc_augconj.auxiliary.polya_gamma.distribution import mean_polya_gamma, random_polya_gamma
mean_polya_gamma(1.0, 0.0)
random_polya_gamma(np.random.default_rng(0), 1.0, np.zeros(3))
assert "numba" not in sys.modules
random_polya_gamma(np.random.default_rng(0), 1.0, np.zeros(1000))
random_polya_gamma(np.random.default_rng(0), 1.5, np.zeros(3))
from pymc_augconj.auxiliary.polya_gamma import kernels
from tests.auxiliary.references import log_laplace_polya_gamma, var_polya_gamma
assert len(kernels.fill_by_thinning.signatures) == 1
assert not kernels.fill_by_saddlepoint.signatures
random_polya_gamma(np.random.default_rng(0), np.int64(2), np.zeros((3, 2)).T)
assert len(kernels.fill_by_thinning.signatures) == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_both_series_of_the_acceptance_probability_agree():
    """Each with many terms, over a range in which both still have digits."""
    x = np.linspace(0.05, 4.0, 400)
    n = np.arange(60)[:, None]
    terms = (-1.0) ** n * (2 * n + 1)
    direct = (terms * np.exp(-2.0 * n * (n + 1) / x)).sum(axis=0)
    np.testing.assert_allclose(acceptance(x), direct, rtol=0.0, atol=1e-14)
    assert (np.diff(acceptance(x)) <= 1e-15).all()
    far = acceptance(np.array([1e-300, 50.0, 1e4, np.inf]))
    assert far[0] == 1.0
    assert 0.0 <= far[1] < 1e-20
    assert far[2] == 0.0
    assert not far[3] > 0.0


@pytest.mark.parametrize("c", [0.0, 0.7, 3.0, 40.0])
def test_the_two_samplers_of_shape_one_agree(c, disagreements):
    size = 200_000
    draws = random_unit_polya_gamma(np.random.default_rng(5), np.full(size, c))
    assert not check(disagreements, draws, 1.0, c)
    # Equal shapes as an array take the kernel.
    kernel = random_polya_gamma(np.random.default_rng(6), np.ones(size), c)
    assert ks_2samp(draws, kernel).pvalue > 1e-6
    assert ks_2samp(draws, 1.05 * kernel).pvalue < 1e-6


def test_unit_draws_of_mixed_and_extreme_tilts():
    c = np.array([0.0, 1e-300, 1e-8, 1.0, 50.0, 1e4, 1e8, 1e150])
    draws = random_unit_polya_gamma(np.random.default_rng(0), np.tile(c, 500)).reshape(500, -1)
    assert np.isfinite(draws).all()
    assert (draws > 0.0).all()
    mean, var = mean_polya_gamma(1.0, c), var_polya_gamma(1.0, c)
    assert (np.abs(draws.mean(axis=0) - mean) <= 5.0 * np.sqrt(var / 500) + 1e-12 * mean).all()
    assert random_unit_polya_gamma(np.random.default_rng(0), np.empty(0)).size == 0
