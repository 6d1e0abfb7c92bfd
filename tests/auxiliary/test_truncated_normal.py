import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import expon, norm, truncnorm

from pymc_augconj.auxiliary.truncated_normal import (
    logpdf_truncated_normal,
    mean_truncated_normal,
    random_truncated_normal,
)
from tests.auxiliary.references import log_laplace_truncated_normal, var_truncated_normal

MEANS = [-1e8, -1e4, -200.0, -30.5, -29.5, -8.0, -4.1, -3.9, -1.0, 0.0, 0.7, 3.0, 8.5, 1e4]


def excess_cdf(mu):
    """CDF of |z| for N(mu, 1) cut to the positive side."""
    if mu < -1e3:  # exponential, to 1/mu²
        return expon(scale=-1.0 / mu).cdf
    if mu < -100.0:  # SciPy's loses its digits; the moments must do
        return None
    return truncnorm(-mu, np.inf, loc=mu).cdf if mu < 30.0 else norm(mu).cdf


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("positive", [True, False])
def test_draws_have_the_law(mean, positive, disagreements, ks_rejects):
    draws = random_truncated_normal(np.random.default_rng(1), np.full(200_000, mean), positive)
    assert np.all(draws > 0) if positive else np.all(draws <= 0)
    sign = 1.0 if positive else -1.0
    distribution = (
        sign * mean_truncated_normal(mean, positive),
        var_truncated_normal(mean, positive),
        lambda t: log_laplace_truncated_normal(mean, positive, sign * t),
    )
    assert not disagreements(sign * draws, *distribution)
    cdf = excess_cdf(sign * mean)
    assert cdf is None or not ks_rejects(sign * draws, cdf)


def test_a_wrong_cut_fails_the_same_check(disagreements):
    mean = 0.3
    draws = random_truncated_normal(np.random.default_rng(2), np.full(200_000, mean + 0.02), True)
    assert disagreements(
        draws,
        mean_truncated_normal(mean, True),
        var_truncated_normal(mean, True),
        lambda t: log_laplace_truncated_normal(mean, True, t),
    )


@pytest.mark.parametrize("mean", [-40.0, -6.0, -4.01, -3.99, -0.5, 0.0, 2.0, 7.0])
def test_density_moments_and_transform_agree_by_quadrature(mean):
    mode, width = max(mean, 0.0), min(1.0, 1.0 / max(-mean, 1e-9))
    low, high = max(mode - 12.0, 0.0), mode + 40.0 * width

    def integral(g):
        integrand = lambda z: g(z) * np.exp(logpdf_truncated_normal(z, mean, True))  # noqa: E731
        return quad(integrand, low, high, points=[mode + width], epsabs=0, epsrel=1e-12)[0]

    assert integral(lambda z: 1.0) == pytest.approx(1.0, rel=1e-11)
    expected = mean_truncated_normal(mean, True)
    assert integral(lambda z: z) == pytest.approx(expected, rel=1e-10)
    var = var_truncated_normal(mean, True)
    assert integral(lambda z: (z - expected) ** 2) == pytest.approx(var, rel=1e-10)
    for t in (-0.8, 0.3, 3.0):
        log_laplace = log_laplace_truncated_normal(mean, True, t)
        assert integral(lambda z, t=t: np.exp(-t * z)) == pytest.approx(np.exp(log_laplace))
        assert log_laplace_truncated_normal(-mean, False, -t) == pytest.approx(log_laplace)


def test_tails_of_the_moments():
    mean = np.array([-1e8, -1e5])
    np.testing.assert_allclose(mean_truncated_normal(mean, True), -1 / mean, rtol=1e-9)
    np.testing.assert_allclose(var_truncated_normal(mean, True), 1 / mean**2, rtol=1e-9)
    np.testing.assert_allclose(mean_truncated_normal(-mean, False), 1 / mean, rtol=1e-9)
    near = np.array([-4.0 - 1e-10, -4.0 + 1e-10])  # where the continued fraction begins
    assert np.ptp(mean_truncated_normal(near, True)) < 1e-10
    assert np.ptp(var_truncated_normal(near, True)) < 1e-10
    np.testing.assert_allclose(mean_truncated_normal([50.0, 1e8], True), [50.0, 1e8])
    np.testing.assert_allclose(var_truncated_normal([50.0, 1e8], True), 1.0)


def test_density_at_the_edges():
    values = logpdf_truncated_normal([-1.0, 0.0, 1.0, np.nan], 0.5, True)
    assert np.all(values[:2] == -np.inf)
    assert np.isfinite(values[2])
    assert np.isnan(values[3])
    assert np.isfinite(logpdf_truncated_normal(0.0, 0.5, False))
    z = np.linspace(-9.0, -0.1, 30)
    expected = truncnorm(-np.inf, -1.2, loc=1.2).logpdf(z)
    np.testing.assert_allclose(logpdf_truncated_normal(z, 1.2, False), expected, rtol=1e-11)
    # Exponential far out, where the naive form is 0/0.
    assert logpdf_truncated_normal(1e-8, -1e8, True) == pytest.approx(np.log(1e8) - 1.0, abs=1e-7)


def test_shapes_seed_and_refusals():
    def draw(mean, positive):
        return random_truncated_normal(np.random.default_rng(5), mean, positive)

    assert draw(1.0, True).shape == ()
    assert draw([1.0, 2.0], [[True], [False], [True]]).shape == (3, 2)
    assert draw(np.ones(0), True).shape == (0,)
    means = np.array([-100.0, 0.0, 100.0])
    np.testing.assert_array_equal(draw(means, [1, 0, 0]), draw(means, [True, False, False]))
    extreme = draw([1e300, -1e300, 1e300], [True, True, False])
    assert extreme[0] == 1e300
    assert np.all(np.abs(extreme[1:]) < 1e-297)
    with pytest.raises(ValueError, match=r"expected a finite mean, got mean\[1\] = nan"):
        draw([0.0, np.nan], True)
