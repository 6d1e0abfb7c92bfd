import numpy as np
import pytest
from scipy.special import kve
from scipy.stats import gamma, geninvgauss, invgamma

from pymc_augconj.auxiliary import generalized_inverse_gaussian as gig
from pymc_augconj.auxiliary.generalized_inverse_gaussian import (
    logpdf_generalized_inverse_gaussian,
    logpdf_inverse_gaussian,
    mean_generalized_inverse_gaussian,
    random_generalized_inverse_gaussian,
)
from tests.auxiliary.references import (
    log_laplace_generalized_inverse_gaussian,
    var_generalized_inverse_gaussian,
)


@pytest.mark.parametrize("p", [-50.0, -2.5, -1.5, -0.5, 0.0, 1e-3, 0.5, 1.0, 3.7, 80.0])
@pytest.mark.parametrize("omega", [0.01, 0.5, 2.0, 30.0, 1000.0])
def test_draws_have_the_law(p, omega, disagreements, ks_rejects):
    rng = np.random.default_rng(1)
    a, b = 2.3, omega**2 / 2.3
    draws = random_generalized_inverse_gaussian(rng, p, np.full(40_000, a), b)
    scale = np.sqrt(b / a)
    x = np.sort(draws[:2000])  # SciPy's distribution function is slow
    cdf = geninvgauss.cdf(x, p, omega, scale=scale)
    assert not ks_rejects(x, lambda x: cdf)
    if omega > 0.1 or p > 0:  # else the moments are those of too heavy a tail
        distribution = (
            mean_generalized_inverse_gaussian(p, a, b),
            var_generalized_inverse_gaussian(p, a, b),
            lambda t: log_laplace_generalized_inverse_gaussian(p, a, b, t),
        )
        assert not disagreements(draws, *distribution)
        assert disagreements(1.05 * draws if p > 1 else 1.2 * draws, *distribution)


@pytest.mark.parametrize("p", [1e-2, 0.3, 1.0, 12.0])
def test_gamma_and_inverse_gamma_limits(p, ks_rejects):
    rng = np.random.default_rng(2)
    draws = random_generalized_inverse_gaussian(rng, p, np.full(50_000, 3.0), 0.0)
    assert not ks_rejects(draws, gamma(p, scale=2 / 3.0).cdf)
    draws = random_generalized_inverse_gaussian(rng, -p, 0.0, np.full(50_000, 3.0))
    assert not ks_rejects(1.0 / draws[np.isfinite(draws)], gamma(p, scale=2 / 3.0).cdf)
    draws = random_generalized_inverse_gaussian(rng, p, np.full(50_000, 3.0), 1e-300)
    assert not ks_rejects(draws[draws > 1e-200], gamma(p, scale=2 / 3.0).cdf) or p < 0.1


def test_tiny_omega_at_order_zero(ks_rejects):
    """log x is then nearly uniform over a range of hundreds."""
    draws = random_generalized_inverse_gaussian(
        np.random.default_rng(3), 0.0, np.full(50_000, 1e-150), 1e-150
    )
    log_x, step = np.linspace(-400, 400, 400001, retstep=True)
    log_density = logpdf_generalized_inverse_gaussian(np.exp(log_x), 0.0, 1e-150, 1e-150) + log_x
    cumulative = np.cumsum(np.exp(log_density)) * step
    assert cumulative[-1] == pytest.approx(1.0, abs=1e-9)
    assert not ks_rejects(np.log(draws), lambda q: np.interp(q, log_x, cumulative))


def test_extreme_parameters_stay_positive():
    rng = np.random.default_rng(4)
    for p, a, b in ((1e6, 1.0, 1.0), (-1e6, 1.0, 1.0), (0.0, 1e8, 1e8), (2.0, 1e-200, 1e-200)):
        draws = random_generalized_inverse_gaussian(rng, p, np.full(500, a), b)
        assert np.all((draws > 0) & np.isfinite(draws))
        mean = mean_generalized_inverse_gaussian(p, a, b)
        std = np.sqrt(var_generalized_inverse_gaussian(p, a, b))
        assert abs(draws.mean() - mean) < 5 * std / np.sqrt(500)


@pytest.mark.parametrize(("p", "a", "b"), [(-1.5, 2.0, 3.0), (0.0, 0.1, 0.1), (20.0, 5.0, 700.0)])
def test_density_integrates_to_the_moments_and_transform(p, a, b):
    log_x, step = np.linspace(-30, 12, 40001, retstep=True)
    x = np.exp(log_x)
    log_mass = logpdf_generalized_inverse_gaussian(x, p, a, b) + log_x + np.log(step)
    mass, mean = np.exp(log_mass), mean_generalized_inverse_gaussian(p, a, b)
    assert mass.sum() == pytest.approx(1.0, abs=1e-10)
    assert (mass * x).sum() == pytest.approx(mean, rel=1e-10)
    var = var_generalized_inverse_gaussian(p, a, b)
    assert (mass * (x - mean) ** 2).sum() == pytest.approx(var, rel=1e-9)
    for t in (0.3, 5.0, -0.2 * a):
        expected = log_laplace_generalized_inverse_gaussian(p, a, b, t)
        assert np.log(np.exp(log_mass - t * x).sum()) == pytest.approx(expected, abs=1e-9)


def test_density_special_cases():
    x = np.geomspace(0.01, 30, 60)
    density = logpdf_generalized_inverse_gaussian
    inverse_gaussian = logpdf_inverse_gaussian(x, np.sqrt(3.0 / 2.0), 3.0)
    np.testing.assert_allclose(density(x, -0.5, 2.0, 3.0), inverse_gaussian, rtol=1e-11)
    np.testing.assert_allclose(density(x, 2.5, 2.0, 0.0), gamma(2.5).logpdf(x), rtol=1e-11)
    np.testing.assert_allclose(density(x, -2.5, 0.0, 2.0), invgamma(2.5).logpdf(x), rtol=1e-11)
    np.testing.assert_array_equal(density([-1.0, 0.0, np.inf], 1.0, 1.0, 1.0), -np.inf)
    assert np.isnan(density(np.nan, 1.0, 1.0, 1.0))


def test_moments_of_the_limits():
    mean, var = mean_generalized_inverse_gaussian, var_generalized_inverse_gaussian
    assert mean(2.5, 2.0, 0.0) == pytest.approx(2.5)
    assert var(2.5, 2.0, 0.0) == pytest.approx(2.5)
    assert mean(-2.5, 0.0, 2.0) == pytest.approx(1 / 1.5)
    assert var(-2.5, 0.0, 2.0) == pytest.approx(invgamma(2.5).var())
    assert mean(-0.7, 0.0, 2.0) == np.inf
    assert var(-1.7, 0.0, 2.0) == np.inf
    laplace = log_laplace_generalized_inverse_gaussian
    assert laplace(2.5, 2.0, 0.0, 3.0) == pytest.approx(-2.5 * np.log(4.0))
    assert laplace(-2.5, 2.0, 1.0, -1.0) < np.inf
    assert laplace(2.5, 2.0, 1.0, -1.0) == np.inf
    assert laplace(-0.5, 0.0, 3.0, 2.0) == pytest.approx(-np.sqrt(12.0))


def test_log_bessel_joins_its_branches():
    p = np.array([0.0, 0.5, 3.0, 20.0, 45.0, 59.0, 70.0])
    for omega in (1.0, 40.0, 61.0, 1e3):
        expected = np.log(kve(p, omega)) - omega
        got = gig._log_bessel_k(p, np.full(p.shape, omega))
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)
    # Where K_p overflows: K_p(ω) → Γ(p)/2 (2/ω)ᵖ.
    from scipy.special import gammaln

    got = gig._log_bessel_k(np.array([50.0, 300.0]), np.array([1e-8, 1e-3]))
    expected = gammaln([50.0, 300.0]) + np.array([50.0, 300.0]) * np.log([2e8, 2e3]) - np.log(2)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_shapes_seed_and_refusals():
    def draw(p, a, b):
        return random_generalized_inverse_gaussian(np.random.default_rng(5), p, a, b)

    assert draw(1.0, 1.0, 1.0).shape == ()
    assert draw([1.0, -1.0], [[1.0], [2.0], [3.0]], 2.0).shape == (3, 2)
    np.testing.assert_array_equal(draw(0.0, np.ones(9), 2.0), draw(0.0, np.ones(9), 2.0))
    with pytest.raises(ValueError, match=r"expected a finite p, got p = nan"):
        draw(np.nan, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"expected a finite a ≥ 0, got a\[1\] = -1.0"):
        draw(1.0, [1.0, -1.0], 1.0)
    with pytest.raises(ValueError, match=r"expected a > 0 unless p < 0, got a\[1\] = 0.0"):
        draw([-1.0, 0.0], 0.0, 1.0)
    with pytest.raises(ValueError, match=r"expected b > 0 unless p > 0, got b = 0.0"):
        draw(-1.0, 1.0, 0.0)


def test_mean_and_variance_join_their_branches():
    p = np.array([-2e4, -70.0, -0.3, 0.0, 0.4, 70.0, 2e4])
    omega = np.geomspace(0.5, 1e9, 60)[:, None]
    mean = mean_generalized_inverse_gaussian(p, omega, omega)
    var = var_generalized_inverse_gaussian(p, omega, omega)
    # K_{p+2} = K_p + 2(p+1)/ω K_{p+1} ties the mean at p to the mean at p + 1.
    raised = mean_generalized_inverse_gaussian(p + 1, omega, omega)
    shift = 2 * (p + 1) / omega
    left, right = raised + np.maximum(-shift, 0), 1 / mean + np.maximum(shift, 0)
    np.testing.assert_allclose(left, right, rtol=1e-11)
    # The tilt exp(−t x) turns the mean's derivative in a into −½ the variance.
    step = 1e-3 * omega / np.sqrt(np.hypot(p, omega))
    ends = [mean_generalized_inverse_gaussian(p, omega + s * step, omega) for s in (-1, 1)]
    rounding = 1e-14 * mean / step
    assert np.all(np.abs((ends[0] - ends[1]) / step - var) <= 1e-5 * var + rounding)
    near_limit = var_generalized_inverse_gaussian(-2e4, 1e-9, 3.0)
    assert near_limit == pytest.approx(invgamma(2e4, scale=1.5).var(), rel=1e-9)
    joint = np.array([1e5 - 2.0, 1e5 + 2.0])  # where the variance changes its formula
    relative = var_generalized_inverse_gaussian(0.0, joint, joint) * joint
    assert np.ptp(relative) < 1e-8
