"""Densities read through PyMC's logp, against formulas of SciPy's; and what is refused."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import betaln, expit, log_ndtr, ndtr

import pymc_augconj as pac
from pymc_augconj.likelihoods.contract import select_params

N = 6
RNG = np.random.default_rng(11)
X = np.linspace(0.0, 1.0, N)[:, None]
COUNTS = np.array([0, 1, 3, 0, 2, 5])
CLASSES = np.array([0, 1, 2, 2, 0, 1])
POSITIVE = np.array([0.3, 1.2, 2.0, 0.7, 0.1, 0.4])
TRIALS = COUNTS + 3
ETA = np.array([-2.0, -0.4, 0.0, 0.7, 1.6])[:, None] + 0.05 * np.arange(N)

exp, invlogit = pm.math.exp, pm.math.invlogit
ordered = pm.distributions.transforms.ordered


def cutpoints():
    return pm.Normal("c", [-1.0, 1.0], 1.0, transform=ordered, initval=[-0.8, 1.1])


def gamma(f):
    alpha = pm.HalfNormal("alpha", 2)
    pm.Gamma("y", alpha=alpha, beta=alpha * exp(-f), observed=POSITIVE)


def ordered_classes(link):
    def logpdf(y, eta, p):
        upper = np.stack([link(p["c_0"] - eta), link(p["c_1"] - eta)])
        cumulative = np.concatenate([np.zeros((1, *eta.shape)), upper, np.ones((1, *eta.shape))])
        index = np.broadcast_to(y, eta.shape).astype(int)[None]
        return np.log(np.take_along_axis(np.diff(cumulative, axis=0), index, axis=0)[0])

    return logpdf


def zero_inflated(y, eta, p):
    return np.log((1.0 - p["psi"]) * (y == 0) + p["psi"] * stats.poisson.pmf(y, np.exp(eta)))


class Case(NamedTuple):
    build: object
    name: str
    link: str
    params: set
    logpdf: object
    logcdf: object = None


CASES = {
    "gamma": Case(
        gamma,
        "Gamma",
        "its own",
        {"alpha"},
        lambda y, eta, p: stats.gamma.logpdf(y, p["alpha"], scale=np.exp(eta) / p["alpha"]),
        lambda y, eta, p: stats.gamma.logcdf(y, p["alpha"], scale=np.exp(eta) / p["alpha"]),
    ),
    "gamma of a mean and a standard deviation": Case(
        lambda f: pm.Gamma("y", mu=exp(f), sigma=0.7, observed=POSITIVE),
        "Gamma",
        "its own",
        set(),
        lambda y, eta, p: stats.gamma.logpdf(y, np.exp(2 * eta) / 0.49, scale=0.49 / np.exp(eta)),
    ),
    "gamma of a mean and a standard deviation in proportion": Case(
        lambda f: pm.Gamma(
            "y", mu=exp(f), sigma=exp(f) / pm.math.sqrt(pm.HalfCauchy("a", 1)), observed=POSITIVE
        ),
        "Gamma",
        "its own",
        {"a"},
        lambda y, eta, p: stats.gamma.logpdf(y, p["a"], scale=np.exp(eta) / p["a"]),
        lambda y, eta, p: stats.gamma.logcdf(y, p["a"], scale=np.exp(eta) / p["a"]),
    ),
    "Weibull": Case(
        lambda f: pm.Weibull(
            "y", pm.HalfNormal("a", 2), exp(f + pm.Normal("b")), observed=POSITIVE
        ),
        "Weibull",
        "log",
        {"a"},
        lambda y, eta, p: stats.weibull_min.logpdf(y, p["a"], scale=np.exp(eta)),
        lambda y, eta, p: stats.weibull_min.logcdf(y, p["a"], scale=np.exp(eta)),
    ),
    "Beta": Case(
        lambda f: pm.Beta("y", mu=invlogit(f), nu=pm.Exponential("nu", 0.1), observed=POSITIVE / 3),
        "Beta",
        "logit",
        {"nu"},
        lambda y, eta, p: stats.beta.logpdf(y, p["nu"] * expit(eta), p["nu"] * expit(-eta)),
    ),
    "ordered logistic": Case(
        lambda f: pm.OrderedLogistic("y", eta=f, cutpoints=cutpoints(), observed=CLASSES),
        "OrderedLogistic",
        "its own",
        {"c_0", "c_1"},
        ordered_classes(expit),
    ),
    "ordered probit": Case(
        lambda f: pm.OrderedProbit("y", eta=f, cutpoints=cutpoints(), observed=CLASSES),
        "OrderedProbit",
        "its own",
        {"c_0", "c_1"},
        ordered_classes(ndtr),
    ),
    "zero-inflated Poisson": Case(
        lambda f: pm.ZeroInflatedPoisson("y", psi=pm.Beta("psi", 1, 1), mu=exp(f), observed=COUNTS),
        "ZeroInflatedPoisson",
        "its own",
        {"psi"},
        zero_inflated,
    ),
    "Binomial, probit, trials of each": Case(
        lambda f: pm.Binomial("y", n=TRIALS, p=pm.math.invprobit(f), observed=COUNTS),
        "Binomial",
        "probit",
        {"parameter0"},
        lambda y, eta, p: stats.binom.logpmf(y, p["parameter0"], ndtr(eta)),
    ),
    "Binomial, a random share of an inverse logit": Case(
        lambda f: pm.Binomial("y", n=9, p=pm.Beta("s", 2, 2) * invlogit(f), observed=COUNTS),
        "Binomial",
        "logit",
        {"s"},
        lambda y, eta, p: stats.binom.logpmf(y, 9, p["s"] * expit(eta)),
    ),
    "negative binomial, softplus": Case(
        lambda f: pm.NegativeBinomial(
            "y", mu=pm.math.log1pexp(f), alpha=pm.HalfNormal("a"), observed=COUNTS
        ),
        "NegativeBinomial",
        "its own",
        {"a"},
        lambda y, eta, p: stats.nbinom.logpmf(
            y, p["a"], p["a"] / (p["a"] + np.logaddexp(0.0, eta))
        ),
    ),
    "the scale of a normal": Case(
        lambda f: pm.Normal("y", 0.3, exp(f), observed=POSITIVE),
        "Normal",
        "log",
        set(),
        lambda y, eta, p: stats.norm.logpdf(y, 0.3, np.exp(eta)),
    ),
    "mean and scale by one process": Case(
        lambda f: pm.Normal("y", f, exp(0.5 * f), observed=POSITIVE),
        "Normal",
        "identity",
        set(),
        lambda y, eta, p: stats.norm.logpdf(y, eta, np.exp(0.5 * eta)),
    ),
    "Gumbel": Case(
        lambda f: pm.Gumbel("y", mu=f, beta=pm.HalfNormal("s"), observed=POSITIVE),
        "Gumbel",
        "identity",
        {"s"},
        lambda y, eta, p: stats.gumbel_r.logpdf(y, eta, p["s"]),
        lambda y, eta, p: stats.gumbel_r.logcdf(y, eta, p["s"]),
    ),
    "a density of the user's": Case(
        lambda f: pm.CustomDist("y", f, logp=lambda v, f: -exp(v - f) + v - f, observed=POSITIVE),
        "CustomDist",
        "identity",
        set(),
        lambda y, eta, p: -np.exp(y - eta) + y - eta,
    ),
}


def process(name):
    return pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=0.3)).prior(name, X=X)


def model_of(build) -> pm.Model:
    with pm.Model() as model:
        build(process("f"))
    return model


@pytest.fixture(scope="module", params=CASES)
def reading(request):
    case = CASES[request.param]
    recognition = pac.recognize(model_of(case.build))
    (site,) = recognition.model.sites
    return case, recognition, site


def test_density_is_scipys(reading, request):
    case, recognition, site = reading
    assert (site.likelihood.name, site.likelihood.link) == (case.name, case.link)
    for point in (recognition.start, *recognition.probes):
        params = site.params(point)
        assert set(params) == case.params
        y = site.y(point)
        found = site.likelihood.log_density(y, ETA[None], params)
        # PyMC has the √2 of Φ as a number of single precision.
        rtol = 1e-6 if "probit" in request.node.name else 1e-9
        np.testing.assert_allclose(found, case.logpdf(y, ETA, params), rtol=rtol, atol=1e-10)
        if case.logcdf is not None:
            found = np.log(site.likelihood.cdf(y, ETA[None], params))
            np.testing.assert_allclose(found, case.logcdf(y, ETA, params), rtol=1e-9, atol=1e-10)


def test_density_of_some_sites_and_of_many_predictors(reading):
    _, recognition, site = reading
    y, params = site.y(recognition.start), site.params(recognition.start)
    whole = site.likelihood.log_density(y, ETA[None], params)
    some = np.array([4, 1, 1])
    chosen = select_params(params, some, N)
    part = site.likelihood.log_density(y[some], ETA[:, some][None], chosen)
    np.testing.assert_allclose(part, whole[:, some], rtol=1e-12)
    columns = {n: v[:, None] if v.ndim else v for n, v in params.items()}
    turned = site.likelihood.log_density(y[:, None], ETA.T[None], columns)
    np.testing.assert_allclose(turned.T, whole, rtol=1e-12)


def test_parameters_of_many_draws(reading):
    _, recognition, site = reading
    y = site.y(recognition.start)
    sets = [site.params(point) for point in (recognition.start, *recognition.probes)]
    drawn = {name: np.stack([np.atleast_1d(p[name]) for p in sets]) for name in sets[0]}
    eta = np.stack([ETA[0], ETA[2], ETA[4]])
    together = site.likelihood.log_density(y, eta[None], drawn)
    for row, at, params in zip(together, eta, sets, strict=True):
        np.testing.assert_allclose(
            row, site.likelihood.log_density(y, at[None], params), rtol=1e-12
        )


def test_table_says_that_sites_are_held(reading):
    _, recognition, site = reading
    assert "held sites (density alone)" in str(recognition)
    if recognition.model.hyperparameters:
        assert "slice" in str(recognition)
    assert not site.likelihood.can_augment


def test_hyperparameters_are_the_likelihoods():
    model = pac.recognize(model_of(CASES["ordered logistic"].build)).model
    assert {h.name: h.role for h in model.hyperparameters} == {"c": "likelihood"}


def test_probabilities_near_one_keep_their_digits():
    """1 − Φ(η) is zero from η = 8.3 on; Φ(−η) is not."""

    def probit(f):
        return 0.5 * (1.0 + pm.math.erf(f / np.sqrt(2.0)))

    model = model_of(lambda f: pm.Binomial("y", n=5, p=probit(f), observed=[0, 2, 5, 1, 4, 0]))
    recognition = pac.recognize(model)
    (site,) = recognition.model.sites
    y, eta = site.y(recognition.start), np.array([-20.0, -9.0, 9.0, 20.0])[:, None]
    found = site.likelihood.log_density(y, eta[None], site.params(recognition.start))
    coefficient = -np.log(6.0) - betaln(y + 1.0, 6.0 - y)
    expected = coefficient + y * log_ndtr(eta) + (5.0 - y) * log_ndtr(-eta)
    # A log probability near zero is rounded as the probability near one that it is of.
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


def test_cutpoints_of_one_of_several_items():
    """They are a row of a matrix, which is no parameter of one number or of a row each."""

    def items(f):
        matrix = pm.Normal("c", [[-0.7, 0.9]] * 3, transform=ordered, initval=[[-0.7, 0.9]] * 3)
        pm.OrderedLogistic("y", eta=f, cutpoints=matrix[1], observed=CLASSES)

    recognition = pac.recognize(model_of(items))
    (site,) = recognition.model.sites
    params = site.params(recognition.start)
    np.testing.assert_allclose([params[name] for name in sorted(params)], [-0.7, 0.9])
    found = site.likelihood.log_density(CLASSES, ETA[None], params)
    expected = ordered_classes(expit)(CLASSES, ETA, {"c_0": -0.7, "c_1": 0.9})
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_cutpoints_with_predictors_of_their_own():
    """At equal or alternating predictors classes between them are impossible."""

    def build(f, observed):
        upper = invlogit(pm.Normal("b", [-1.0, 0.0, 1.0], 0.1, shape=3) - f[:, None])
        zero, one = np.zeros((N, 1)), np.ones((N, 1))
        p = pm.math.concatenate([upper, one], 1) - pm.math.concatenate([zero, upper], 1)
        pm.Categorical("y", p=p, observed=observed)

    (site,) = pac.recognize(model_of(lambda f: build(f, CLASSES))).model.sites
    assert site.likelihood.n_predictors == 3
    with pytest.raises(pac.DataError, match="that Categorical can take, found 5 at position 2"):
        pac.recognize(model_of(lambda f: build(f, np.where(CLASSES == 2, 5, CLASSES))))


def test_one_observation():
    def build(f):
        pm.Gamma("y", alpha=pm.HalfNormal("a", 2), beta=exp(f[:1]), observed=POSITIVE[:1])

    (site,) = pac.recognize(model_of(build)).model.sites
    params = {"a": np.array(1.7)}
    found = site.likelihood.log_density(POSITIVE[:1], ETA[:, :1][None], params)
    expected = stats.gamma.logpdf(POSITIVE[:1], 1.7, scale=np.exp(-ETA[:, :1]))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


SCALARS = {
    "Weibull": lambda a, r: pm.Weibull("y", alpha=r, beta=exp(-a / r), observed=POSITIVE),
    "both parameters": lambda a, r: pm.Weibull("y", exp(a), exp(-2.0 * a), observed=POSITIVE),
    "a table": lambda a, r: pm.Weibull("y", r, exp(a), observed=np.outer(POSITIVE, [1.0, 2.0])),
    "censored": lambda a, r: pm.Censored(
        "y", pm.Weibull.dist(r, exp(a)), None, 1.0, observed=POSITIVE.clip(max=1.0)
    ),
}


@pytest.mark.parametrize("name", SCALARS)
def test_one_number_for_all_observations(name, read):
    with pm.Model() as model:
        SCALARS[name](0.3 + 0.5 * (pm.Normal("a") + pm.Normal("b")), pm.Gamma("r", 2, 2))
    reading = read(model)
    assert set(reading.kinds) == {"a", "b"}
    (site,) = reading.lgm.sites
    params = dict.fromkeys(site.params(reading.recognition.start), np.array(1.3))
    y, eta = POSITIVE[:3] / 2.0, np.array([-0.4, 0.1, 0.6])
    rows = [site.likelihood.log_density(y[[i]], eta[None, [i]], params).item() for i in range(3)]
    together = site.likelihood.log_density(y, eta[None], params)
    np.testing.assert_allclose(together, rows, rtol=1e-12)


WITH_INTERCEPT = {
    "ordered logistic": lambda eta: pm.OrderedLogistic(
        "y", eta=eta, cutpoints=cutpoints(), observed=CLASSES
    ),
    "ordered probit": lambda eta: pm.OrderedProbit(
        "y", eta=eta, cutpoints=cutpoints(), observed=CLASSES
    ),
    "Gamma": lambda eta: pm.Gamma("y", alpha=2, beta=exp(eta), observed=POSITIVE),
    "zero-inflated Poisson": lambda eta: pm.ZeroInflatedPoisson(
        "y", psi=0.6, mu=exp(eta), observed=COUNTS
    ),
}


@pytest.mark.parametrize("name", WITH_INTERCEPT)
def test_intercepts_and_coefficients_are_latents(name):
    """Whatever stands between the predictor and the density: here sums are matrices' columns."""
    model = model_of(
        lambda f: WITH_INTERCEPT[name](pm.Normal("b0", 0, 2) + X[:, 0] * pm.Normal("b1") + f)
    )
    lgm = pac.recognize(model).model
    assert {block.name for block in lgm.blocks} == {"f", "b0", "b1"}
    assert {hyper.name for hyper in lgm.hyperparameters} <= {"c"}


def test_an_augmentation_is_preferred():
    """Also one that leaves a Gaussian variable to the hyperparameters."""

    def build(f):
        pm.Normal("z", 0.0, exp(pm.Normal("b")), observed=POSITIVE)
        pm.Bernoulli("y", logit_p=f, observed=COUNTS > 1)

    recognition = pac.recognize(model_of(build))
    assert [block.name for block in recognition.model.blocks] == ["f"]
    recognition.model.require_augmentation()


REFUSED = {
    "rows that depend on each other": (
        lambda f: pm.CustomDist(
            "y", f, logp=lambda v, f: -((v - f.cumsum()) ** 2), observed=POSITIVE
        ),
        "'y': expected a density that is a product over observations",
    ),
    "multivariate": (
        lambda f: pm.KroneckerNormal(
            "y", mu=f[np.arange(4) % N], covs=[np.eye(2), np.eye(2)], observed=np.ones(4)
        ),
        "'y'.*expected one distribution for each observation, found one KroneckerNormal",
    ),
    "a step": (
        lambda f: pm.Poisson("y", mu=pm.math.switch(f > 0, 1.0, 2.0), observed=COUNTS),
        "'y'.*Poisson with a link that ends in Switch",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    build, sentence = REFUSED[case]
    model = model_of(build)
    with pytest.raises(pac.RecognitionError, match=sentence):
        pac.recognize(model)


def test_observations_out_of_the_support():
    observed = np.r_[POSITIVE[:-1], -1.0]
    model = model_of(lambda f: pm.Gamma("y", alpha=2, beta=exp(f), observed=observed))
    sentence = r"\(Gamma\): expected a value that Gamma can take, found -1 at position 5"
    with pytest.raises(pac.DataError, match=sentence):
        pac.recognize(model)
