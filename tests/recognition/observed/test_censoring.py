"""Censored observations, read through PyMC's ``Censored``, against SciPy's laws."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy import integrate, stats
from scipy.special import expit, log_ndtr

import pymc_augconj as pac
from pymc_augconj.prediction.moments import response_moments
from pymc_augconj.quadrature.expectation import gaussian_cubature
from pymc_augconj.recognition.observed.rows import RowFunction

N = 5
X = np.linspace(0.0, 1.0, N)[:, None]
# Where a predictor under a log link, or a location, may be at ten standard deviations.
ETA = np.array([-12.0, -7.0, -3.0, -0.4, 0.0, 0.7, 3.0, 7.0, 12.0])[:, None]
LOWER, UPPER = 0.2, 1.5
TIMES = np.array([0.2, 0.5, 1.0, 1.5, 1.5])

# PyMC keeps numbers of its formulas (√2, the logarithm of a constant) in single precision.
SINGLE = {"rtol": 1e-6, "atol": 1e-8}

exp = pm.math.exp


def process():
    return pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=0.3)).prior("f", X=X)


def model_of(base, lower=LOWER, upper=UPPER, observed=TIMES) -> pm.Model:
    with pm.Model() as model:
        pm.Censored("y", base(process()), lower=lower, upper=upper, observed=observed)
    return model


def read(model):
    recognition = pac.recognize(model)
    (site,) = recognition.model.sites
    return site, site.y(recognition.start), site.params(recognition.start)


# By name: PyMC's law, SciPy's, and the link.
LAWS = {
    "Normal": (
        lambda f: pm.Normal.dist(f, 0.4),
        lambda eta: stats.norm(eta, 0.4),
        "identity",
    ),
    "Weibull": (
        lambda f: pm.Weibull.dist(1.7, exp(f)),
        lambda eta: stats.weibull_min(1.7, scale=np.exp(eta)),
        "log",
    ),
    "Exponential": (
        lambda f: pm.Exponential.dist(exp(-f)),
        lambda eta: stats.expon(scale=np.exp(eta)),
        "log",
    ),
    "LogNormal": (
        lambda f: pm.LogNormal.dist(f, 0.6),
        lambda eta: stats.lognorm(0.6, scale=np.exp(eta)),
        "identity",
    ),
    "Logistic": (
        lambda f: pm.Logistic.dist(f, 0.3),
        lambda eta: stats.logistic(eta, 0.3),
        "identity",
    ),
    "Laplace": (
        lambda f: pm.Laplace.dist(f, 0.3),
        lambda eta: stats.laplace(eta, 0.3),
        "identity",
    ),
    "StudentT": (
        lambda f: pm.StudentT.dist(nu=4.0, mu=f, sigma=0.3),
        lambda eta: stats.t(4.0, eta, 0.3),
        "identity",
    ),
}


@pytest.fixture(scope="module", params=LAWS)
def reading(request):
    base, law, link = LAWS[request.param]
    site, y, params = read(model_of(base))
    assert (site.likelihood.name, site.likelihood.link) == (f"Censored {request.param}", link)
    assert set(params) == {"lower", "upper"}
    return site.likelihood, y, params, law


def test_density_is_that_of_values_below_between_and_above(reading):
    likelihood, y, params, law = reading
    found = likelihood.log_density(y, (ETA + 0.0 * y)[None], params)
    law = law(ETA)
    expected = np.where(y == UPPER, law.logsf(y), law.logpdf(y))
    expected = np.where(y == LOWER, law.logcdf(y), expected)
    # SciPy's own formulas lose the digits of some tails.
    known = expected > -600.0
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[known], expected[known], **SINGLE)


def test_cdf(reading):
    likelihood, _, params, law = reading
    y = np.array([LOWER - 0.1, LOWER, 0.6, UPPER, UPPER + 0.1])
    found = likelihood.cdf(y, (ETA + 0.0 * y)[None], params)
    expected = np.where(y < LOWER, 0.0, np.where(y >= UPPER, 1.0, law(ETA).cdf(y)))
    np.testing.assert_allclose(found, expected, **SINGLE)


@pytest.mark.parametrize("kept", [("lower", "upper"), ("lower",), ("upper",)])
def test_mean_and_variance_of_y(reading, kept):
    likelihood, _, _, law = reading
    bounds = {"lower": LOWER, "upper": UPPER}
    none = {"lower": -np.inf, "upper": np.inf}
    params = {name: np.array(bounds[name] if name in kept else none[name]) for name in bounds}
    eta = np.array([-1.5, 0.1, 1.2])
    found = response_moments(likelihood, eta[None], params)
    for at, mean, var in zip(eta, *found, strict=True):
        lower, upper = (float(params[name]) for name in bounds)
        # E[y] from the distribution function alone, by parts.
        below = integrate.quad(law(at).cdf, max(lower, -200.0), 0.7, epsabs=1e-12, limit=200)[0]
        above = integrate.quad(law(at).sf, 0.7, min(upper, 200.0), epsabs=1e-12, limit=200)[0]
        squares = [
            integrate.quad(lambda y, s=s, p=p: 2.0 * (y - 0.7) * s * p(y), *r, limit=200)[0]
            for s, p, r in (
                (-1.0, law(at).cdf, (max(lower, -200.0), 0.7)),
                (1.0, law(at).sf, (0.7, min(upper, 200.0))),
            )
        ]
        shift = above - below
        # Beyond 200 Student's t with four degrees of freedom has 4e-9 of the mean, 2e-6 of E[y²].
        assert mean == pytest.approx(0.7 + shift, abs=1e-7)
        assert var == pytest.approx(sum(squares) - shift**2, rel=1e-6, abs=5e-6)


@pytest.mark.parametrize("mean", [-8.0, 0.5, 8.0])
def test_expectations_and_their_derivatives_are_finite_far_out(reading, mean):
    """E[log p] of each observation, by mean and by variance, against differences."""
    likelihood, y, params, _ = reading
    step = 1e-3

    def expect(shift=0.0, more=0.0):
        def log_density(eta, which):
            return likelihood.log_density(y[which, None], eta, params)

        at = np.full((1, N), mean + shift), np.full((1, 1, N), 0.16 + more)
        return [np.squeeze(found) for found in gaussian_cubature(log_density, *at, rtol=1e-12)]

    value, by_mean, by_var = expect()
    assert np.isfinite(value).all()
    # Differences of fourth order: their error is of the step's fourth power, and of rounding.
    weights = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))
    differences = sum(w * expect(shift=k * step)[0] for k, w in weights) / step
    np.testing.assert_allclose(by_mean, differences, rtol=1e-5, atol=1e-7)
    differences = sum(w * expect(more=k * step)[0] for k, w in weights) / step
    np.testing.assert_allclose(by_var, differences, rtol=1e-5, atol=1e-6)


def test_gamma_above_its_upper_bound_where_probabilities_underflow():
    site, _, params = read(model_of(lambda f: pm.Gamma.dist(2.0, exp(-f)), None))
    x = np.array([0.5, 30.0, 590.0, 610.0, 700.0, 1e4])
    found = site.likelihood.log_density(np.full(x.size, UPPER), np.log(UPPER / x)[None], params)
    # Γ(2, x)/Γ(2) = (1 + x) exp(−x)
    np.testing.assert_allclose(found, np.log1p(x) - x, rtol=1e-12)


@pytest.mark.parametrize("law", ["NegativeBinomial", "Binomial"])
def test_counts_above_zero_where_zero_is_improbable(law):
    y, eta = np.arange(1.0, 6.0), np.linspace(-30.0, 8.0, N)[:, None]
    n = {"NegativeBinomial": 0.4, "Binomial": 5}[law]
    with pm.Model() as model:
        base = getattr(pm, law).dist(n=n, p=pm.math.sigmoid(process()))
        pm.Truncated("y", base, lower=1, observed=y.astype(int))
    site, _, params = read(model)
    known = {"NegativeBinomial": stats.nbinom, "Binomial": stats.binom}[law](n, expit(eta))
    found = site.likelihood.log_density(y, eta[None], params)
    zero = known.logpmf(0)
    np.testing.assert_allclose(found, known.logpmf(y) - np.log(-np.expm1(zero)), rtol=1e-8)


def test_counts():
    counts = np.array([0, 1, 2, 4, 4])
    site, y, params = read(model_of(lambda f: pm.Poisson.dist(exp(f)), None, 4, observed=counts))
    assert (site.likelihood.name, site.likelihood.link) == ("Censored Poisson", "log")
    assert site.likelihood.discrete
    found = site.likelihood.log_density(y, (ETA[1:-1] + 0.0 * y)[None], params)
    law = stats.poisson(np.exp(ETA[1:-1]))
    np.testing.assert_allclose(found, np.where(y == 4, law.logsf(3), law.logpmf(y)), **SINGLE)
    mass = law.pmf(np.arange(4))
    rest = 1.0 - mass.sum(axis=1)
    expected = mass @ np.arange(4) + 4 * rest
    found, _ = response_moments(site.likelihood, ETA[1:-1, 0][None], params)
    np.testing.assert_allclose(found, expected, rtol=1e-7)


# -- spellings ---------------------------------------------------------------------------------


def test_right_censored_times_each_with_its_own_bound():
    """As survival data come: a bound where the event was not seen, none where it was."""
    seen = np.array([True, False, True, True, False])
    upper = np.where(seen, np.inf, TIMES)
    site, y, params = read(model_of(lambda f: pm.Weibull.dist(2.0, exp(f)), None, upper))
    assert set(params) == {"upper"}
    found = site.likelihood.log_density(y, (ETA + 0.0 * y)[None], params)
    law = stats.weibull_min(2.0, scale=np.exp(ETA))
    expected = np.where(seen, law.logpdf(y), law.logsf(y))
    np.testing.assert_allclose(found, expected, **SINGLE)


def test_bounds_that_are_data():
    with pm.Model() as model:
        upper = pm.Data("c", np.array([np.inf, 0.5, np.inf, np.inf, 1.5]))
        sigma = pm.HalfNormal("s", 1.0)
        base = pm.Normal.dist(pm.Normal("b") + process(), sigma)
        pm.Censored("y", base, lower=None, upper=upper, observed=TIMES)
    recognition = pac.recognize(model)
    assert {block.name for block in recognition.model.blocks} == {"f", "b"}
    assert {hyper.name for hyper in recognition.model.hyperparameters} == {"s"}
    (site,) = recognition.model.sites
    for point in (recognition.start, *recognition.probes):
        params, y = site.params(point), site.y(point)
        z = (y - ETA) / params["s"]
        density = -0.5 * z**2 - np.log(params["s"]) - 0.5 * np.log(2.0 * np.pi)
        expected = np.where(np.isinf(params["upper"]), density, log_ndtr(-z))
        found = site.likelihood.log_density(y, (ETA + 0.0 * y)[None], params)
        np.testing.assert_allclose(found, expected, **SINGLE)
    # Without bounds, as predictions of the times themselves, with a deviation for each draw.
    unbounded = {"s": np.array([[0.4], [0.9]]), "upper": np.array(np.inf)}
    eta = np.array([[-0.5, 0.1], [0.2, 0.3]])
    mean, var = response_moments(site.likelihood, eta[None], unbounded)
    np.testing.assert_allclose(mean, eta, atol=1e-6)
    np.testing.assert_allclose(var, 0.0 * eta + unbounded["s"] ** 2, rtol=1e-6)


def test_no_bound_at_all_is_no_censoring():
    site, y, params = read(model_of(lambda f: pm.Normal.dist(f, 0.4), None, None))
    found = site.likelihood.log_density(y, (ETA + 0.0 * y)[None], params)
    np.testing.assert_allclose(found, stats.norm.logpdf(y, ETA, 0.4), rtol=1e-12)


# -- refusals ----------------------------------------------------------------------------------


def test_an_observation_beyond_a_bound_is_refused():
    model = model_of(lambda f: pm.Normal.dist(f, 0.4), observed=np.r_[TIMES[:-1], 1.6])
    sentence = r"\(Censored Normal\): expected a value that Censored Normal can take, found 1.6"
    with pytest.raises(pac.DataError, match=sentence):
        pac.recognize(model)


def test_a_bound_that_is_not_a_number_is_refused():
    upper = np.array([np.inf, np.nan, 1.0, 2.0, 2.0])
    with pytest.raises(pac.DataError, match=r"has the value nan"):
        pac.recognize(model_of(lambda f: pm.Normal.dist(f, 0.4), None, upper))


ENGINES = {
    "cavi": lambda model: pac.fit("cavi", model=model),
    "sample": lambda model: pac.sample(model=model, sites="augmented"),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_that_need_an_augmentation_refuse(engine):
    """Also of a law that has one without the censoring."""
    sentence = (
        r"'y': no augmentation is known for censored observations, here of StudentT.*"
        r'pac\.fit with method "vgp", "ep", "qp" or "svi" approximates it'
    )
    model = model_of(LAWS["StudentT"][0])
    with pytest.raises(pac.UnknownLikelihoodError, match=sentence):
        ENGINES[engine](model)


def test_a_law_without_a_distribution_function_is_refused():
    model = model_of(lambda f: pm.SkewNormal.dist(mu=f, sigma=1.0, alpha=2.0))
    with pytest.raises(pac.UnknownLikelihoodError, match="censored observations, here of Skew"):
        pac.recognize(model)


def test_a_log_density_read_otherwise_is_noticed(monkeypatch):
    """The check against PyMC's own: here the value at a bound is taken for a density."""
    whole = RowFunction.__call__

    def without_bounds(self, y, eta, params):
        return whole(self, np.where(y == UPPER, UPPER - 1e-9, y), eta, params)

    monkeypatch.setattr(RowFunction, "__call__", without_bounds)
    with pytest.raises(pac.RecognitionError, match="differs from PyMC's"):
        pac.recognize(model_of(LAWS["Normal"][0]))
