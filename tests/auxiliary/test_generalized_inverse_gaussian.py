import mpmath
import numpy as np
import pytest
from scipy.stats import geninvgauss, invgamma

from pymc_augconj.auxiliary.generalized_inverse_gaussian import (
    ORDERS,
    logpdf_generalized_inverse_gaussian,
    logpdf_inverse_gaussian,
    mean_generalized_inverse_gaussian,
    random_generalized_inverse_gaussian,
)
from tests.auxiliary.references import (
    log_laplace_generalized_inverse_gaussian,
    moment_generalized_inverse_gaussian,
)


@pytest.mark.parametrize("nu", ORDERS)
@pytest.mark.parametrize("omega", [0.01, 0.5, 2.0, 30.0, 1000.0])
def test_draws_have_the_law(nu, omega, disagreements, ks_rejects):
    rng = np.random.default_rng(1)
    a, b = 2.3, omega**2 / 2.3
    draws = random_generalized_inverse_gaussian(rng, nu, np.full(40_000, a), b)
    x = np.sort(draws[:2000])  # SciPy's distribution function is slow
    cdf = geninvgauss.cdf(x, -nu, omega, scale=np.sqrt(b / a))
    assert not ks_rejects(x, lambda x: cdf)
    if omega > 0.1:  # else the moments are those of too heavy a tail
        mean = mean_generalized_inverse_gaussian(nu, a, b)
        distribution = (
            mean,
            moment_generalized_inverse_gaussian(2, nu, a, b) - mean**2,
            lambda t: log_laplace_generalized_inverse_gaussian(nu, a, b, t),
        )
        assert not disagreements(draws, *distribution)
        assert disagreements(1.2 * draws, *distribution)


@pytest.mark.parametrize("nu", ORDERS)
def test_inverse_gamma_limit(nu, ks_rejects):
    rng = np.random.default_rng(2)
    for a in (0.0, 1e-300):
        draws = random_generalized_inverse_gaussian(rng, nu, a, np.full(50_000, 3.0))
        assert not ks_rejects(draws, invgamma(nu, scale=1.5).cdf)
        assert ks_rejects(draws, invgamma(nu, scale=1.6).cdf)


def test_extreme_parameters_stay_positive():
    rng = np.random.default_rng(4)
    for nu, a, b in ((0.5, 1e8, 1e8), (2.5, 1e-200, 1e-200), (1.5, 1e100, 1e-80)):
        draws = random_generalized_inverse_gaussian(rng, nu, np.full(500, a), b)
        assert np.all((draws > 0) & np.isfinite(draws))
        mean = mean_generalized_inverse_gaussian(nu, a, b)
        with mpmath.workdps(700):
            omega = mpmath.sqrt(mpmath.mpf(a) * mpmath.mpf(b))
            k = [mpmath.besselk(nu - i, omega) for i in range(3)]
            relative = float(mpmath.sqrt(k[2] * k[0] / k[1] ** 2 - 1))
        assert abs(draws.mean() - mean) < 5 * relative * mean / np.sqrt(500)


@pytest.mark.parametrize("nu", ORDERS)
@pytest.mark.parametrize(("a", "b"), [(2.0, 3.0), (0.1, 0.1), (5.0, 700.0)])
def test_density_integrates_to_the_moments_and_transform(nu, a, b):
    log_x, step = np.linspace(-30, 12, 40001, retstep=True)
    x = np.exp(log_x)
    log_mass = logpdf_generalized_inverse_gaussian(x, nu, a, b) + log_x + np.log(step)
    mass, mean = np.exp(log_mass), mean_generalized_inverse_gaussian(nu, a, b)
    assert mass.sum() == pytest.approx(1.0, abs=1e-10)
    assert (mass * x).sum() == pytest.approx(mean, rel=1e-10)
    square = moment_generalized_inverse_gaussian(2, nu, a, b)
    assert (mass * x**2).sum() == pytest.approx(square, rel=1e-9)
    for t in (0.3, 5.0, -0.2 * a):
        expected = log_laplace_generalized_inverse_gaussian(nu, a, b, t)
        assert np.log(np.exp(log_mass - t * x).sum()) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("nu", ORDERS)
def test_mean_and_density_have_all_digits(nu):
    with mpmath.workdps(40):
        for omega in (1e-9, 0.3, 40.0, 1e5, 1e160):
            ratio = mpmath.besselk(nu - 1, omega) / mpmath.besselk(nu, omega)
            got = float(mean_generalized_inverse_gaussian(nu, omega, omega))
            assert got == pytest.approx(float(ratio), rel=1e-14)
            a, b, x = mpmath.mpf(omega), mpmath.mpf(omega), mpmath.mpf(1.25)
            log_k = mpmath.log(2 * mpmath.besselk(nu, omega))
            expected = -(nu + 1) * mpmath.log(x) - (a * x + b / x) / 2 - log_k
            density = float(logpdf_generalized_inverse_gaussian(1.25, nu, omega, omega))
            assert density == pytest.approx(float(expected), rel=1e-13)


def test_density_special_cases():
    x = np.geomspace(0.01, 30, 60)
    density = logpdf_generalized_inverse_gaussian
    inverse_gaussian = logpdf_inverse_gaussian(x, np.sqrt(3.0 / 2.0), 3.0)
    np.testing.assert_allclose(density(x, 0.5, 2.0, 3.0), inverse_gaussian, rtol=1e-12)
    np.testing.assert_allclose(density(x, 2.5, 0.0, 2.0), invgamma(2.5).logpdf(x), rtol=1e-11)
    np.testing.assert_array_equal(density([-1.0, 0.0, np.inf], 1.5, 1.0, 1.0), -np.inf)
    assert np.isnan(density(np.nan, 0.5, 1.0, 1.0))


def test_means_of_the_limit():
    np.testing.assert_allclose(
        mean_generalized_inverse_gaussian(ORDERS, 0.0, 2.0), [np.inf, 2.0, 1 / 1.5], rtol=1e-15
    )


def test_shapes_seed_and_refusals():
    def draw(nu, a, b):
        return random_generalized_inverse_gaussian(np.random.default_rng(5), nu, a, b)

    assert draw(0.5, 1.0, 1.0).shape == ()
    assert draw([0.5, 2.5], [[1.0], [2.0], [3.0]], 2.0).shape == (3, 2)
    np.testing.assert_array_equal(draw(1.5, np.ones(9), 2.0), draw(1.5, np.ones(9), 2.0))
    with pytest.raises(ValueError, match=r"expected ½, 3/2 or 5/2, got nu = nan"):
        draw(np.nan, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"expected a finite a ≥ 0, got a\[1\] = -1.0"):
        draw(0.5, [1.0, -1.0], 1.0)
    with pytest.raises(ValueError, match=r"expected a finite b > 0, got b = 0.0"):
        draw(0.5, 1.0, 0.0)
