"""What is particular to single likelihoods: zero residuals, empty counts, refusals, far tails."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import expit

from pymc_augconj.likelihoods.bernoulli_logit import BernoulliLogit
from pymc_augconj.likelihoods.bernoulli_probit import BernoulliProbit
from pymc_augconj.likelihoods.laplace import AsymmetricLaplace, Laplace
from pymc_augconj.likelihoods.logistic import Logistic
from pymc_augconj.likelihoods.normal import Normal
from pymc_augconj.likelihoods.poisson_sigmoid import PoissonSigmoid
from pymc_augconj.likelihoods.powers_of_sigmoid import BinomialLogit, NegativeBinomial
from pymc_augconj.likelihoods.student_t import Cauchy, StudentT
from tests.modes import AS_WRITTEN

SIZE = 20_000
SMALLEST_P_VALUE = 1e-6  # of a seeded test


@pytest.mark.parametrize(
    ("likelihood", "params", "y", "sentence"),
    [
        (BernoulliLogit, {}, [0, 1, 2], "expected 0 or 1, found 2 at position 2"),
        (BernoulliProbit, {}, [0, -1], "expected 0 or 1, found -1 at position 1"),
        (
            BinomialLogit,
            {"n": 3},
            [3, 0.5],
            "expected an integer from 0 to n, found 0.5 at position 1",
        ),
        (BinomialLogit, {"n": 3}, [-1], "expected an integer from 0 to n, found -1 at position 0"),
        (
            BinomialLogit,
            {"n": np.array([3.0, 5.0, 0.0])},
            [3, 6, 1],
            "expected an integer from 0 to n = 5, found 6 at position 1",
        ),
        (
            NegativeBinomial,
            {"alpha": 1},
            [0, 2, -1],
            "expected a non-negative integer, found -1 at position 2",
        ),
        (
            PoissonSigmoid,
            {"rate": 1},
            [1234567.5],
            "expected a non-negative integer, found 1234567.5 at position 0",
        ),
        (Normal, {"sigma": 1}, [0, np.inf], "expected a finite number, found inf at position 1"),
    ],
)
def test_check_says_what_where_and_why(likelihood, params, y, sentence):
    assert likelihood().check(np.array(y, dtype=float), params) == sentence


# Where η hits y exactly: the laws of ω in closed form.
@pytest.mark.parametrize(
    ("likelihood", "params", "law"),
    [
        (Laplace, {"b": 0.4}, stats.invgamma(0.5, scale=0.5 / 0.4**2)),
        (AsymmetricLaplace, {"b": 2.0, "kappa": 0.5}, stats.invgamma(0.5, scale=0.5 * 2.5**2)),
        (StudentT, {"nu": 4.0, "sigma": 0.7}, stats.gamma(2.5, scale=2.0 / (4.0 * 0.7**2))),
        (Cauchy, {"beta": 0.7}, stats.expon(scale=2.0 / 0.7**2)),
    ],
)
def test_zero_residual(likelihood, params, law):
    y = np.full(SIZE, 1.3)
    omega = likelihood().draw_auxiliary(np.random.default_rng(7), y, y, params)
    assert (omega > 0.0).all()
    assert stats.kstest(omega, law.cdf).pvalue > SMALLEST_P_VALUE
    assert stats.kstest(1.1 * omega, law.cdf).pvalue < SMALLEST_P_VALUE
    log_conditional = likelihood().log_conditional(omega, y, y, params)
    np.testing.assert_allclose(log_conditional, law.logpdf(omega), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("likelihood", [Laplace, AsymmetricLaplace])
def test_residual_too_small_to_invert(likelihood):
    params = {"b": 0.4, "kappa": 1.0} if likelihood is AsymmetricLaplace else {"b": 0.4}
    y, eta = np.full(100, 5e-324), np.zeros(100)
    omega = likelihood().draw_auxiliary(np.random.default_rng(8), y, eta, params)
    assert (np.isfinite(omega) & (omega > 0.0)).all()


def test_symmetric_asymmetric_laplace_is_laplace():
    rng = np.random.default_rng(9)
    y, eta = rng.normal(size=(2, 50))
    one, other = {"b": np.array(0.5), "kappa": np.array(1.0)}, {"b": np.array(2.0)}
    np.testing.assert_allclose(
        AsymmetricLaplace().log_density(y, eta, one), Laplace().log_density(y, eta, other)
    )
    np.testing.assert_allclose(
        AsymmetricLaplace().expected_sites(y, eta, eta**2, one),
        Laplace().expected_sites(y, eta, eta**2, other),
    )


@pytest.mark.parametrize("kappa", [1e-12, 1e-4, 3.0, 1e5, 1e12])
def test_asymmetric_laplace_far_from_symmetric(kappa):
    """Of slopes bκ above η and b/κ below it neither may be lost beside the other."""
    b, distance = 1e6, np.array([kappa, 1.0 / kappa])
    density = AsymmetricLaplace().log_density
    norm = np.log(b / (kappa + 1.0 / kappa))
    at = {"b": b, "kappa": kappa}
    above, below = density(distance, 0.0, at), density(-distance, 0.0, at)
    np.testing.assert_allclose(above, norm - b * kappa * distance, rtol=1e-14)
    np.testing.assert_allclose(below, norm - b / kappa * distance, rtol=1e-14)


def test_asymmetric_laplace_has_its_quantile_at_eta():
    # η is the quantile at level κ²/(1 + κ²), by quadrature of the density below it.
    kappa, e = 0.6, -np.arange(5e-4, 60.0, 1e-3)
    params = {"b": np.array(1.5), "kappa": np.array(kappa)}
    below = np.exp(AsymmetricLaplace().log_density(e, np.zeros_like(e), params)).sum() * 1e-3
    assert below == pytest.approx(kappa**2 / (1.0 + kappa**2), abs=1e-6)


def test_student_t_of_one_degree_of_freedom_is_cauchy():
    rng = np.random.default_rng(10)
    y, eta = rng.normal(size=(2, 50)) * 10.0
    omega = rng.gamma(1.0, size=50)
    t, t_params = StudentT(), {"nu": np.array(1.0), "sigma": np.array(0.7)}
    cauchy, cauchy_params = Cauchy(), {"beta": np.array(0.7)}
    for one, other in [
        (t.log_density(y, eta, t_params), cauchy.log_density(y, eta, cauchy_params)),
        (t.log_base(y, omega, t_params), cauchy.log_base(y, omega, cauchy_params)),
        (
            t.log_conditional(omega, y, eta, t_params),
            cauchy.log_conditional(omega, y, eta, cauchy_params),
        ),
        (
            t.expected_sites(y, eta, eta**2, t_params),
            cauchy.expected_sites(y, eta, eta**2, cauchy_params),
        ),
    ]:
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("nu", [1e6, 1e9, 1e15])
def test_student_t_of_many_degrees_of_freedom_is_normal(nu):
    y, eta = np.array([-2.0, 0.3, 3.0]), np.zeros(3)
    actual = StudentT().log_density(y, eta, {"nu": nu, "sigma": 1.3})
    expected = Normal().log_density(y, eta, {"sigma": 1.3})
    # They differ by O(1/ν).
    np.testing.assert_allclose(actual, expected, atol=10.0 / nu + 1e-12)


def test_binomial_without_trials_says_nothing():
    likelihood, params = BinomialLogit(), {"n": np.array([0.0, 3.0])}
    y, eta = np.array([0.0, 2.0]), np.array([1.7, 1.7])
    omega = likelihood.draw_auxiliary(np.random.default_rng(11), y, eta, params)
    h, lam = likelihood.sites(y, omega, params)
    assert h[0] == lam[0] == 0.0
    assert lam[1] > 0.0
    expected_h, expected_lam = likelihood.expected_sites(y, eta, eta**2, params)
    assert expected_h[0] == expected_lam[0] == 0.0
    assert likelihood.log_density(y, eta, params)[0] == 0.0
    ratio = h * eta - 0.5 * lam * eta**2 + likelihood.log_base(y, omega, params)
    ratio -= likelihood.log_conditional(omega, y, eta, params)
    np.testing.assert_allclose(ratio, likelihood.log_density(y, eta, params), atol=1e-9)


@pytest.mark.parametrize("eta", [-600.0, -2.0, 3.0])
def test_negative_binomial_of_tiny_alpha_without_events(eta):
    likelihood, y = NegativeBinomial(), np.zeros(SIZE)
    many = np.full(SIZE, eta)
    alpha = 1e-2
    omega = likelihood.draw_auxiliary(np.random.default_rng(12), y, many, {"alpha": alpha})
    assert (omega >= 0.0).all()
    _, expected = likelihood.expected_sites(y[:1], many[:1], np.zeros(1), {"alpha": alpha})
    assert abs(omega.mean() - expected[0]) < 5.0 * omega.std() / np.sqrt(SIZE)

    params = {"alpha": 1e-300}
    omega = likelihood.draw_auxiliary(np.random.default_rng(12), y, many, params)
    assert (np.isfinite(omega) & (omega >= 0.0)).all()
    np.testing.assert_allclose(likelihood.log_density(y, many, params), 0.0, atol=1e-12)
    np.testing.assert_array_equal(likelihood.sites(y, omega, params)[0], -5e-301)


def test_negative_binomial_of_large_alpha_is_poisson():
    y, mu = np.array([0.0, 3.0, 100.0]), 4.0
    actual = NegativeBinomial().log_density(y, np.log(mu / 1e12), {"alpha": 1e12})
    np.testing.assert_allclose(actual, stats.poisson(mu).logpmf(y), rtol=1e-7)


def test_negative_binomial_in_pymcs_success_probability():
    # The pattern of both parametrisations is (α, σ(−η)).
    y, eta, alpha = np.array([0, 2, 9]), np.array([-1.1, 0.3, 2.0]), 1.7
    rv = pm.NegativeBinomial.dist(n=alpha, p=expit(-eta))
    (pattern,) = NegativeBinomial.patterns
    n, p = (part.eval(mode=AS_WRITTEN) for part in rv.owner.op.dist_params(rv.owner))
    assert type(rv.owner.op).__name__ == pattern.rv
    assert n == pytest.approx(alpha, rel=1e-6)
    np.testing.assert_allclose(p, expit(-eta))
    expected = pm.logp(rv, y).eval(mode=AS_WRITTEN)
    actual = NegativeBinomial().log_density(y.astype(float), eta, {"alpha": alpha})
    np.testing.assert_allclose(actual, expected, rtol=1e-8)


def test_poisson_without_rate_says_nothing():
    likelihood, params = PoissonSigmoid(), {"rate": np.array(0.0)}
    y, eta = np.zeros(3), np.array([-2.0, 0.0, 2.0])
    omega = likelihood.draw_auxiliary(np.random.default_rng(13), y, eta, params)
    for part in (*omega, *likelihood.sites(y, omega, params)):
        np.testing.assert_array_equal(part, 0.0)
    np.testing.assert_array_equal(likelihood.log_density(y, eta, params), 0.0)
    np.testing.assert_array_equal(likelihood.log_base(y, omega, params), 0.0)
    np.testing.assert_array_equal(likelihood.log_conditional(omega, y, eta, params), 0.0)


def test_poisson_of_high_rate_far_below():
    # σ(−η) = 1 to rounding: n ~ Poisson(rate), without underflow of the complement.
    likelihood, rate = PoissonSigmoid(), 1e5
    y, eta = np.zeros(SIZE), np.full(SIZE, -1e3)
    n, omega = likelihood.draw_auxiliary(np.random.default_rng(14), y, eta, {"rate": rate})
    assert abs(n.mean() - rate) < 5.0 * np.sqrt(rate / SIZE)
    assert abs(omega.mean() - rate / 2e3) < 5.0 * omega.std() / np.sqrt(SIZE)
    # And on the other side nothing is thinned, yet the log density of a thinned count is finite.
    assert (
        likelihood.draw_auxiliary(np.random.default_rng(14), y, -eta, {"rate": rate})[0].max() == 0
    )
    thinned = (np.ones(1), np.ones(1) / 4e3)
    assert np.isfinite(
        likelihood.log_conditional(thinned, np.zeros(1), np.full(1, 1e3), {"rate": rate})
    )


@pytest.mark.parametrize(
    ("likelihood", "params", "y", "eta", "expected"),
    [
        (BernoulliLogit, {}, 1.0, -1e3, -1e3),
        (BernoulliLogit, {}, 0.0, -40.0, -np.exp(-40.0)),
        (BernoulliProbit, {}, 0.0, 1e3, -500007.826694812185),
        (BernoulliProbit, {}, 1.0, 8.0, -6.2209605742717405e-16),
        (BinomialLogit, {"n": 5.0}, 5.0, -1e3, -5e3),
        (NegativeBinomial, {"alpha": 1.0}, 7.0, -1e3, -7e3),
        (NegativeBinomial, {"alpha": 2.5}, 0.0, 1e3, -2.5e3),
        (PoissonSigmoid, {"rate": 1.0}, 1.0, -1e3, -1e3),
        (Logistic, {"s": 2.0}, 1e6, 0.0, -5e5 - np.log(2.0)),
        (Cauchy, {"beta": 1.0}, 1e100, 0.0, -np.log(np.pi) - 200.0 * np.log(10.0)),
        (StudentT, {"nu": 1.0, "sigma": 1.0}, 1e100, 0.0, -np.log(np.pi) - 200.0 * np.log(10.0)),
    ],
)
def test_far_tails_of_the_density(likelihood, params, y, eta, expected):
    actual = likelihood().log_density(np.array([y]), np.array([eta]), params)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_many_counts_have_the_densities_of_few():
    likelihood, params = NegativeBinomial(), {"alpha": np.array(1.7)}
    y = np.random.default_rng(0).negative_binomial(2, 0.2, 1000).astype(float)
    eta = np.linspace(-2.0, 3.0, y.size)
    few = [likelihood.log_density(y[k : k + 1], eta[k : k + 1], params) for k in range(y.size)]
    np.testing.assert_array_equal(likelihood.log_density(y, eta, params), np.concatenate(few))
