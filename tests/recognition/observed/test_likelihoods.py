"""Every spelling of every likelihood is recognised, and its log density is PyMC's."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_augconj as pac

N = 8
RNG = np.random.default_rng(1)
COV = np.exp(-np.abs(np.subtract.outer(np.arange(N), np.arange(N))) / 3)
BINARY = RNG.integers(0, 2, N)
COUNTS = RNG.poisson(3, N)
REAL = RNG.standard_normal(N)
EXPOSURE = np.linspace(1.0, 3.0, N)
REVERSED = np.arange(N)[::-1]

exp, invlogit = pm.math.exp, pm.math.invlogit


def model_of(likelihood):
    """A correlated latent with an intercept, under the given likelihood."""
    with pm.Model() as model:
        f = pm.MvNormal("f", mu=np.zeros(N), cov=COV)
        likelihood(f + pm.Normal("b", 0, 1))
    return model


def bernoulli(p):
    return pm.Bernoulli("y", p=p, observed=BINARY)


LOGIT = {
    "logit_p": lambda f: pm.Bernoulli("y", logit_p=f, observed=BINARY),
    "invlogit": lambda f: bernoulli(invlogit(f)),
    "math.sigmoid": lambda f: bernoulli(pm.math.sigmoid(f)),
    "pt.sigmoid": lambda f: bernoulli(pt.sigmoid(f)),
    "1 / (1 + exp(-f))": lambda f: bernoulli(1 / (1 + exp(-f))),
    "1 / (1 + exp(f))": lambda f: bernoulli(1 / (1 + exp(f))),
    "exp(f) / (1 + exp(f))": lambda f: bernoulli(exp(f) / (1 + exp(f))),
    "exp(f) / (exp(f) + 1)": lambda f: bernoulli(exp(f) / (exp(f) + 1)),
    "1 - p": lambda f: bernoulli(1 - invlogit(f)),
    "-p + 1": lambda f: bernoulli(-invlogit(f) + 1),
    "tanh": lambda f: bernoulli(0.5 * (1 + pm.math.tanh(f / 2))),
    "exp(-softplus(-f))": lambda f: bernoulli(exp(-pt.softplus(-f))),
    "stable switch": lambda f: bernoulli(
        pm.math.switch(f >= 0, 1 / (1 + exp(-f)), exp(f) / (1 + exp(f)))
    ),
    "Deterministic": lambda f: bernoulli(pm.Deterministic("p", invlogit(f))),
    "indexed after the link": lambda f: bernoulli(invlogit(f)[REVERSED]),
}

PROBIT = {
    "invprobit": lambda f: bernoulli(pm.math.invprobit(f)),
    "1 - invprobit": lambda f: bernoulli(1 - pm.math.invprobit(f)),
    "½ (1 + erf)": lambda f: bernoulli(0.5 * (1 + pm.math.erf(f / np.sqrt(2)))),
    "(1 + erf) / 2": lambda f: bernoulli((1 + pm.math.erf(f / np.sqrt(2))) / 2),
    "½ erf + ½": lambda f: bernoulli(0.5 * pm.math.erf(f / np.sqrt(2)) + 0.5),
    "½ (1 - erf)": lambda f: bernoulli(0.5 * (1 - pm.math.erf(f / np.sqrt(2)))),
    "½ erfc": lambda f: bernoulli(0.5 * pm.math.erfc(-f / np.sqrt(2))),
    "exp(logcdf)": lambda f: bernoulli(exp(pm.logcdf(pm.Normal.dist(0, 1), f))),
}


@pytest.mark.parametrize("spelling", LOGIT)
def test_bernoulli_with_logit_link(spelling, read):
    assert read(model_of(LOGIT[spelling])).likelihoods == {"y": "Bernoulli, logit"}


@pytest.mark.parametrize("spelling", PROBIT)
def test_bernoulli_with_probit_link(spelling, read):
    assert read(model_of(PROBIT[spelling])).likelihoods == {"y": "Bernoulli, probit"}


BINOMIAL = {
    "logit_p": lambda f: pm.Binomial("y", n=10, logit_p=f, observed=COUNTS),
    "vector n": lambda f: pm.Binomial("y", n=12 + np.arange(N), p=invlogit(f), observed=COUNTS),
    "n as data": lambda f: pm.Binomial(
        "y", n=pm.Data("n", np.full(N, 12)), p=invlogit(f), observed=COUNTS
    ),
}


@pytest.mark.parametrize("spelling", BINOMIAL)
def test_binomial(spelling, read):
    assert read(model_of(BINOMIAL[spelling])).likelihoods == {"y": "Binomial, logit"}


def negative_binomial(**kwargs):
    return pm.NegativeBinomial("y", observed=COUNTS, **kwargs)


def alpha(**kwargs):
    return pm.Gamma("alpha", 2, 1, **kwargs)


NEGATIVE_BINOMIAL = {
    "mu and alpha": (lambda f: negative_binomial(mu=exp(f), alpha=alpha()), "likelihood"),
    "alpha a number": (lambda f: negative_binomial(mu=exp(f), alpha=2.5), None),
    "alpha a vector": (lambda f: negative_binomial(mu=exp(f), alpha=alpha(shape=N)), "likelihood"),
    "exposure": (lambda f: negative_binomial(mu=EXPOSURE * exp(f), alpha=alpha()), "likelihood"),
    "exposure as data": (
        lambda f: negative_binomial(mu=pm.Data("e", EXPOSURE) * exp(f), alpha=alpha()),
        "likelihood",
    ),
    "log exposure": (
        lambda f: negative_binomial(mu=exp(f + np.log(EXPOSURE)), alpha=alpha()),
        "likelihood",
    ),
    "random factor": (
        lambda f: negative_binomial(mu=pm.HalfNormal("c", 1) * exp(f), alpha=alpha()),
        "likelihood",
    ),
    "divided": (lambda f: negative_binomial(mu=exp(f) / 2, alpha=2.0), None),
    "divisor": (lambda f: negative_binomial(mu=1 / exp(f), alpha=2.0), None),
    "indexed after the link": (
        lambda f: negative_binomial(mu=exp(f)[REVERSED] * 2, alpha=2.0),
        None,
    ),
    "n and p": (lambda f: negative_binomial(n=alpha(), p=invlogit(f)), "likelihood"),
    "n and 1 - p": (lambda f: negative_binomial(n=3, p=1 - invlogit(f)), None),
}


@pytest.mark.parametrize("spelling", NEGATIVE_BINOMIAL)
def test_negative_binomial(spelling, read):
    likelihood, role = NEGATIVE_BINOMIAL[spelling]
    reading = read(model_of(likelihood))
    assert reading.likelihoods == {"y": "Negative binomial, logit"}
    assert reading.roles.get("alpha") == role
    assert reading.roles.get("c", "prior") == "prior"


def rate():
    return pm.Gamma("rate", 2, 1)


POISSON = {
    "constant": lambda f: 5.0 * invlogit(f),
    "one": lambda f: invlogit(f),
    "random": lambda f: rate() * invlogit(f),
    "from the right": lambda f: invlogit(f) * rate(),
    "rate / (1 + exp(-f))": lambda f: rate() / (1 + exp(-f)),
    "rate exp(f) / (1 + exp(f))": lambda f: rate() * exp(f) / (1 + exp(f)),
    "rate (1 - p)": lambda f: rate() * (1 - invlogit(f)),
    "exposure": lambda f: EXPOSURE * rate() * invlogit(f),
    "exposure as data": lambda f: pm.Data("e", EXPOSURE) * (rate() * invlogit(f)),
    "divided": lambda f: rate() * invlogit(f) / 3,
    "indexed after the link": lambda f: (EXPOSURE * rate() * invlogit(f))[REVERSED],
}


@pytest.mark.parametrize("spelling", POISSON)
def test_poisson_of_bounded_rate(spelling, read):
    mu = POISSON[spelling]
    reading = read(model_of(lambda f: pm.Poisson("y", mu=mu(f), observed=COUNTS)))
    assert reading.likelihoods == {"y": "Poisson, scaled logit"}
    assert reading.roles.get("rate", "likelihood") == "likelihood"


def scale(**kwargs):
    return pm.HalfNormal("s", 1, **kwargs)


REAL_VALUED = {
    "Normal": {
        "sigma": lambda f: pm.Normal("y", f, sigma=scale(), observed=REAL),
        "number": lambda f: pm.Normal("y", f, 0.7, observed=REAL),
        "vector": lambda f: pm.Normal("y", f, EXPOSURE, observed=REAL),
        "random vector": lambda f: pm.Normal("y", f, scale(shape=N), observed=REAL),
        "tau": lambda f: pm.Normal("y", f, tau=scale(), observed=REAL),
        "groups": lambda f: pm.Normal("y", f, scale(shape=2)[BINARY], observed=REAL),
    },
    "Student-t": {
        "sigma": lambda f: pm.StudentT("y", nu=3, mu=f, sigma=scale(), observed=REAL),
        "lam": lambda f: pm.StudentT("y", nu=3, mu=f, lam=scale(), observed=REAL),
        "nu": lambda f: pm.StudentT("y", nu=scale() + 2, mu=f, sigma=1.0, observed=REAL),
        # PyMC keeps 30.0 as a float32.
        "nu = 30": lambda f: pm.StudentT("y", nu=30.0, mu=f, sigma=EXPOSURE, observed=REAL),
    },
    "Cauchy": {"beta": lambda f: pm.Cauchy("y", alpha=f, beta=scale(), observed=REAL)},
    "Laplace": {"b": lambda f: pm.Laplace("y", mu=f, b=scale(), observed=REAL)},
    "Logistic": {"s": lambda f: pm.Logistic("y", mu=f, s=scale(), observed=REAL)},
    "Asymmetric Laplace": {
        "q": lambda f: pm.AsymmetricLaplace("y", mu=f, q=0.9, b=scale(), observed=REAL),
        "random q": lambda f: pm.AsymmetricLaplace(
            "y", mu=f, q=pm.Beta("s", 2, 2), b=1, observed=REAL
        ),
        "kappa": lambda f: pm.AsymmetricLaplace("y", mu=f, kappa=2.0, b=scale(), observed=REAL),
    },
}


@pytest.mark.parametrize(
    ("name", "spelling"), [(name, s) for name, group in REAL_VALUED.items() for s in group]
)
def test_real_valued(name, spelling, read):
    reading = read(model_of(REAL_VALUED[name][spelling]))
    assert reading.likelihoods == {"y": f"{name}, identity"}
    # The normal likelihood needs no ω: its scale is sampled with the latents integrated out.
    role = "prior" if name == "Normal" else "likelihood"
    assert reading.roles.get("s", role) == role


@pytest.mark.parametrize("nu", [10**6, 1e6, 1e8])
def test_student_t_that_is_nearly_normal(nu):
    """PyMC keeps 1e6 as a float32, of which SciPy's log Γ is wrong by 0.06."""
    model = model_of(lambda f: pm.StudentT("y", nu=nu, mu=f, sigma=0.5, observed=REAL))
    recognition = pac.recognize(model)
    (site,) = recognition.model.sites
    eta = np.linspace(-1.0, 1.0, N)
    params = site.params(recognition.start)
    found = site.likelihood.log_density(REAL, eta[None], params)
    np.testing.assert_allclose(found, stats.t.logpdf(REAL, nu, eta, 0.5), rtol=1e-8)


@pytest.mark.parametrize("nu", [1e12, 1e30, np.inf])
def test_student_t_without_digits_is_refused(nu):
    model = model_of(lambda f: pm.StudentT("y", nu=nu, mu=f, sigma=0.5, observed=REAL))
    with pytest.raises(pac.DataError, match=r"'y' \(Student-t\): expected nu up to .*pm.Normal"):
        pac.recognize(model)


TRANSFORMED = {
    "-f": (lambda f: -f, "selection"),
    "2 f": (lambda f: 2 * f, "selection"),
    "f + 1": (lambda f: f + 1, "identity"),
    "f / sd": (lambda f: f / scale(), "selection, scaled by hyperparameters"),
}


@pytest.mark.parametrize("spelling", TRANSFORMED)
def test_multiples_of_the_latent(spelling, read):
    transform, kind = TRANSFORMED[spelling]
    reading = read(model_of(lambda f: pm.Bernoulli("y", logit_p=transform(f), observed=BINARY)))
    assert reading.kinds["f"] == kind
    assert reading.roles.get("s", "prior") == "prior"
