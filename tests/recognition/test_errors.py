"""Every way a model can fail to fit has its own sentence: which variable, why, what to do."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.pytensorf import collect_default_updates

from pymc_augconj.api.recognize import recognize
from pymc_augconj.errors import DataError, NotAffineError, RecognitionError, UnknownLikelihoodError
from pymc_augconj.recognition.observed.errors import about_prior
from pymc_augconj.recognition.predictors import designs
from pymc_augconj.recognition.recognizer import read_model

N = 8
RNG = np.random.default_rng(8)
X = RNG.standard_normal((N, 2))
BINARY = RNG.integers(0, 2, N)
COUNTS = RNG.poisson(3, N)
REAL = RNG.standard_normal(N)

exp, invlogit = pm.math.exp, pm.math.invlogit
log, Interval = pm.distributions.transforms.log, pm.distributions.transforms.Interval


def process(name="f", inputs=X):
    return pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0)).prior(name, X=inputs)


def bernoulli(eta, observed=BINARY):
    return pm.Bernoulli("y", logit_p=eta, observed=observed)


def bernoulli_p(p):
    return pm.Bernoulli("y", p=p, observed=BINARY)


def scanned(name, rho, **kwargs):
    """Return an autoregression by a scan."""

    def step(x, rho):
        drawn = pm.Normal.dist(rho * x, 1.0)
        return drawn, collect_default_updates([drawn])

    def dist(rho, size):
        start = pt.constant(0.0, dtype="float64")
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            return pytensor.scan(step, outputs_info=[start], non_sequences=[rho], n_steps=N)[0]

    return pm.CustomDist(name, rho, dist=dist, shape=(N,), **kwargs)


def refused(build, error, sentence):
    with pm.Model() as model:
        build()
    with pytest.raises(error, match=sentence) as caught:
        # Where a density is all that there is, the engines that need more say why.
        recognize(model).model.require_augmentation()
    # One sentence; NUTS, or something else to do, is named unless the data are at fault.
    assert "\n" not in str(caught.value)


# -- predictors --------------------------------------------------------------------------------

NOT_AFFINE = {
    "f²": (lambda: bernoulli(process() ** 2), "'y'.*not in 'f'.*operation Sqr"),
    "exp(f)": (lambda: bernoulli(exp(process())), "'y'.*not in 'f'.*operation Exp"),
    "f g": (lambda: bernoulli(process() * process("g")), "not in 'f' and 'g'.*operation Mul"),
    "softplus": (lambda: bernoulli(pm.math.log1pexp(process())), "'f'.*operation Softplus"),
    "softplus link": (
        lambda: pm.NegativeBinomial(
            "y", mu=pm.math.log1pexp(process()), alpha=1.0, observed=COUNTS
        ),
        "'y'.*not in 'f'.*operation Softplus",
    ),
    "abs": (lambda: bernoulli(pm.math.abs(process())), "'f'.*operation Abs"),
    # Densities that are no product over observations: nothing to fall back on.
    "less the largest": (
        lambda: bernoulli((f := pm.Normal("f", 0, 1, shape=N)) - pt.max(f)),
        "'f'.*operation Max",
    ),
    "standardised": (
        lambda: bernoulli((f := process()) / pt.sqrt((f**2).sum())),
        "'f'.*operation Sqr",
    ),
    # Derivatives that are constant where they exist.
    "maximum": (lambda: bernoulli(pm.math.maximum(process(), 0)), "'f'.*operation Maximum"),
    "round": (lambda: bernoulli(pt.round(process())), "'f'.*operation RoundHalfToEven"),
    "floor": (lambda: bernoulli(pt.floor(process())), "'f'.*operation Floor"),
    "mod": (lambda: bernoulli(pt.mod(process(), 2.0)), "'f'.*operation Mod"),
    "step": (lambda: bernoulli(pm.math.switch(process() > 0, 1.0, -1.0)), "'f'.*operation GT"),
    "small constant": (
        lambda: pm.NegativeBinomial("y", mu=exp(process()) + 1e-9, alpha=2.0, observed=COUNTS),
        "'f'.*operation Exp",
    ),
    "one of two": (lambda: bernoulli(process() + process("g") ** 2), "not in 'g'.*operation Sqr"),
}


@pytest.mark.parametrize("case", NOT_AFFINE)
def test_predictor_is_not_affine(case):
    build, sentence = NOT_AFFINE[case]
    refused(build, NotAffineError, f"{sentence}.*write .*NUTS")


ELSEWHERE = {
    "potential": (
        lambda f: (bernoulli(f), pm.Potential("p", -((f[0] * f[1]) ** 2))),
        r"'f' \(GP \(whitened\)\).*the potential 'p' depends on it.*found a term of shape \(\) "
        r"that depends on several, (?!.*Censored)",
    ),
    "scale of another": (
        lambda f: bernoulli(pm.Normal("e", 0, exp(f))),
        "'f'.*the covariance of 'e' depends on it",
    ),
    "prior of another": (
        lambda f: bernoulli(f * pm.HalfNormal("s", exp(f[0]))),
        "'f'.*the prior of 's' depends on it",
    ),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_process_enters_elsewhere(case):
    build, sentence = ELSEWHERE[case]
    refused(lambda: build(process()), NotAffineError, f"{sentence}.*NUTS")


# -- likelihoods and links -----------------------------------------------------------------------

UNKNOWN = {
    "Poisson, log": (
        lambda: pm.Poisson("y", mu=exp(process()), observed=COUNTS),
        "'y'.*Poisson with log link.*no conjugate augmentation: use "
        r".*pm\.Poisson\(mu=rate.*pm\.NegativeBinomial.*pac\.sample",
    ),
    "Poisson, log, exposure": (
        lambda: pm.Poisson("y", mu=(1 + COUNTS) * exp(process() + 1), observed=COUNTS),
        "Poisson with log link.*no conjugate augmentation",
    ),
    "Poisson, softplus": (
        lambda: pm.Poisson("y", mu=pm.math.log1pexp(process()), observed=COUNTS),
        "'y'.*Poisson with a link that ends in Softplus; expected the link scaled logit.*pac.s",
    ),
    "Binomial, probit": (
        lambda: pm.Binomial("y", n=10, p=pm.math.invprobit(process()), observed=COUNTS),
        "'y'.*Binomial with probit link; expected the link logit.*pac.sample",
    ),
    "Bernoulli, cloglog": (
        lambda: pm.Bernoulli("y", p=1 - exp(-exp(process())), observed=BINARY),
        "'y'.*Bernoulli with a link that ends in .*expected the link logit, probit",
    ),
    "Gamma": (
        lambda: pm.Gamma("y", mu=exp(process()), sigma=1, observed=np.abs(REAL)),
        "'y'.*distribution Gamma; expected one of .*Bernoulli.*StudentT.*pac.sample",
    ),
    "Categorical": (
        lambda: pm.Categorical("y", logit_p=process()[:, None] * np.eye(2)[0], observed=BINARY),
        r"Categorical with these parameters; expected p = softmax\(…\) of affine predictors.*pac.s",
    ),
    "Multinomial": (
        lambda: pm.Multinomial(
            "y", n=9, p=pt.stack([p := invlogit(pm.Normal("b")), 1 - p]).T, observed=[4, 5]
        ),
        r"Multinomial with these parameters; expected p = softmax\(…\)",
    ),
    "Censored": (
        lambda: pm.Censored("y", pm.Normal.dist(process(), 1), -1, 1, observed=REAL.clip(-1, 1)),
        "no augmentation is known for censored observations, here of Normal.*pac.sample",
    ),
    "clipped logit": (
        # Where it is not clipped it is a logit.
        lambda: bernoulli_p(pm.math.clip(invlogit(process()), 0.05, 0.95)),
        "'y'.*Bernoulli with a link that ends in Clip.*Remove pm.math.clip if",
    ),
    "clipped probit": (
        lambda: bernoulli_p(pm.math.clip(pm.math.invprobit(process()), 1e-9, 1.0)),
        "'y'.*Bernoulli with a link that ends in Clip",
    ),
    "bounded logit": (
        lambda: bernoulli_p(pm.math.maximum(invlogit(process()), 0.02)),
        "'y'.*Bernoulli with a link that ends in Maximum",
    ),
    "guarded logit": (
        # Where no prior draw would show it, but an outlier does.
        lambda: bernoulli_p(pt.maximum(pt.minimum(invlogit(process()), 1 - 1e-7), 1e-7)),
        "'y'.*ends in Maximum.*Remove pm.math.maximum and pm.math.minimum if",
    ),
    "guard by a switch": (
        lambda: bernoulli_p(pm.math.switch((p := invlogit(process())) < 1e-7, 1e-7, p)),
        "'y'.*ends in Switch.*Remove pm.math.switch if",
    ),
    "guarded probit": (
        lambda: bernoulli_p(pt.maximum(pm.math.invprobit(process()), 1e-100)),
        "'y'.*ends in Maximum",
    ),
    "small lapse": (
        lambda: bernoulli_p(1e-13 + (1 - 2e-13) * invlogit(process())),
        "'y'.*ends in Add",
    ),
    "no latent after all": (
        lambda: (bernoulli(f := process()), pm.Normal("w", f - f, 1, observed=REAL)),
        r"'w'.*in which the latent variables cancel \(as in f - f\).*NUTS",
    ),
    "MvNormal": (
        lambda: pm.MvNormal(
            "y",
            process()[np.arange(34).reshape(2, 17) % N],
            np.stack([np.eye(17)] * 2),
            observed=np.ones((2, 17)),
        ),
        r"found one MvNormal of all; write what they share as .* f = pm\.MvNormal",
    ),
    "a scan": (
        lambda: scanned("y", pm.Normal("rho", 0, 1), observed=REAL),
        "'y'.*distribution CustomDist; expected one of .*pm.AR, as scan is not read",
    ),
    "latent scale": (
        lambda: pm.Normal("y", process(), exp(process("g")), observed=REAL),
        "'y'.*only the predictor.*parameter 'sigma' of Normal; give .* a separate prior.*NUTS",
    ),
    "latent scale alone": (
        lambda: pm.Normal("y", 0, exp(process()), observed=REAL),
        "'y'.*only the predictor.*parameter 'sigma' of Normal",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_likelihood_is_unknown(case):
    build, sentence = UNKNOWN[case]
    refused(build, UnknownLikelihoodError, sentence)


# -- latents -------------------------------------------------------------------------------------

NO_LATENT = {
    "nothing observed": (process, "no observed variable: expected a likelihood with observed="),
    "no free variable": (
        lambda: pm.Normal("y", 0, 1, observed=REAL),
        "'y': expected a distribution that depends on.*found one that depends on no free variable",
    ),
    "one of two depends on nothing": (
        lambda: (bernoulli(process()), pm.Exponential("z", 1.0, observed=[1.0])),
        "'z': expected a distribution that depends on.*no free variable at all; remove",
    ),
    "hyperparameters alone": (
        lambda: pm.Normal("y", 0, pm.HalfNormal("s", 1), observed=REAL),
        r"no Gaussian latent variable: expected a pm\.gp\.Latent.*found 's' \(Half.*pm\.sample",
    ),
    "one real coefficient of a density": (
        lambda: pm.Poisson("y", pm.math.exp(pm.Laplace("b", 0, 1)), observed=[1, 2]),
        r"have no augmentation, two other real coefficients.*found 'b' \(Laplace\).*pm\.sample",
    ),
    "latent that is not observed": (
        lambda: (
            pm.Normal("y", 0, pm.HalfNormal("s", 1), observed=REAL),
            pm.Potential("p", pt.switch(pm.Normal("b", 0, 1) > 0, 0.0, -np.inf)),
        ),
        r"'b' is Gaussian, but the potential 'p' depends on it(?!.*(Censored|no other)).*NUTS",
    ),
    "two that are none": (
        lambda: (
            pm.Normal("y", 0, pm.HalfNormal("s", 1), observed=REAL),
            pm.Potential("p", pt.switch(pm.Normal("b", 0, 1) > pm.Normal("c", 0, 1), 0.0, -np.inf)),
        ),
        "variable 'c' is Gaussian, but .*; variable 'b' is Gaussian, but .*NUTS",
    ),
    "transform": (
        lambda: bernoulli(
            pm.Normal("b", 0, 1, transform=log, shape=N, initval=np.arange(1, N + 1))
        ),
        "'b' is Gaussian but has a transform.*remove the transform= argument.*NUTS",
    ),
    "outcomes beyond a limit": (
        lambda: (
            pm.Normal("y", mu := pm.Normal("mu", 0, 1), 1, observed=REAL),
            pm.Normal("z", mu, 1, transform=Interval(2.0, None), initval=3.0),
        ),
        r"'mu'.*the prior of 'z' depends on it, a normal within bounds .*pm\.Censored\(",
    ),
    "a joint normal density as a potential": (
        lambda: pm.Potential(
            "p",
            pm.logp(
                pm.MvNormal.dist(pm.Normal("mu", shape=2), chol=[[1.0, 0.0], [0.6, 0.8]]),
                np.ones((3, 2)),
            ),
        ),
        r"'mu'.*the potential 'p' depends on it.*joint normal density .*pm\.MvNormal\('y', ",
    ),
    "positive": (
        lambda: bernoulli(pm.HalfNormal("b", 1, shape=N)),
        r"no Gaussian latent variable.*found 'b' \(HalfNormal\)",
    ),
    "marginal process of a fixed covariance": (
        lambda: pm.gp.Marginal(
            mean_func=pm.gp.mean.Constant(pm.HalfNormal("c", 1)),
            cov_func=pm.gp.cov.ExpQuad(2, ls=1),
        ).marginal_likelihood("y", X=X, y=REAL, sigma=1.0),
        r"no Gaussian latent variable.*found 'c' \(HalfNormal\)",
    ),
}


@pytest.mark.parametrize("case", NO_LATENT)
def test_there_is_no_latent(case):
    build, sentence = NO_LATENT[case]
    refused(build, RecognitionError, sentence)


def test_advice_on_a_scan_of_latents():
    with pm.Model():
        z = scanned("z", pm.Normal("rho", 0, 1))
    assert re.search(r"\(write it as .*pm\.AR, as scan is not read\)", about_prior(z, None))


def test_observations_that_count_more_than_once():
    refused(
        lambda: pm.Bernoulli("y", logit_p=process(), observed=BINARY, total_size=100 * N),
        RecognitionError,
        "'y': expected each observation to count once, found total_size.*without total_size",
    )


def test_no_initial_value():
    def build():
        pm.LKJCholeskyCov("chol", n=1, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=1))
        bernoulli(process())

    refused(build, RecognitionError, "'chol': expected an initial value.*IndexError.*replace it")


@pytest.mark.parametrize("n", [(), N])
def test_an_intercept_alone_behind_a_density(n):
    """It is read whether or not the predictor has an entry for each observation."""
    with pm.Model() as model:
        pm.Gamma("y", alpha=2.0, beta=pt.exp(pm.Normal("b") + np.zeros(n)), observed=REAL**2)
    reading = read_model(model).model
    assert reading.sites[0].likelihood.name == "Gamma"
    assert reading.n_rows == N


def test_single_precision():
    with pytensor.config.change_flags(floatX="float32"):
        refused(
            lambda: bernoulli(process()),
            RecognitionError,
            "'f_rotated_': expected double precision, found float32; set pytensor.config",
        )


def test_a_name_is_no_variable():
    with pm.Model() as model:
        bernoulli(process())
    with pytest.raises(TypeError, match=r"found 'f'; write vars=\[f\]"):
        recognize(model, vars=["f"])


def test_random_variable_without_a_name():
    refused(
        lambda: bernoulli(process() + pm.Normal.dist(0, 1)),
        RecognitionError,
        r"expected every random variable to be a variable of the model",
    )


def test_gaussian_of_the_wrong_place_among_others():
    """Where there is another latent, an observed variable may have none of its own."""
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", 0, exp(b), observed=REAL)
        bernoulli_b = pm.Normal("c", 0, 1)
        pm.Bernoulli("z", logit_p=bernoulli_b, observed=BINARY)
    recognition = recognize(model)
    assert [block.name for block in recognition.model.blocks] == ["c"]
    assert recognition.factors == ("y",)


# -- data ----------------------------------------------------------------------------------------

OUT_OF_RANGE = {
    "Bernoulli, logit": (lambda: bernoulli(process(), 2 * BINARY), "0 or 1, found 2"),
    "Bernoulli, probit": (
        lambda: pm.Bernoulli("y", p=pm.math.invprobit(process()), observed=BINARY - 1),
        "0 or 1, found -1",
    ),
    "Binomial above": (
        lambda: pm.Binomial("y", n=3, logit_p=process(), observed=np.arange(N)),
        "an integer from 0 to n = 3, found 4 at position 4",
    ),
    "Binomial below": (
        lambda: pm.Binomial("y", n=3, logit_p=process(), observed=np.arange(N) - 1),
        "an integer from 0 to n, found -1 at position 0",
    ),
    "Negative binomial": (
        lambda: pm.NegativeBinomial("y", mu=exp(process()), alpha=1, observed=COUNTS - 9),
        "a non-negative integer, found -",
    ),
    "Poisson": (
        lambda: pm.Poisson("y", mu=5 * invlogit(process()), observed=COUNTS - 9),
        "a non-negative integer, found -",
    ),
}


@pytest.mark.parametrize("case", OUT_OF_RANGE)
def test_observations_are_out_of_range(case):
    build, sentence = OUT_OF_RANGE[case]
    name = case.split(", ")[0].removesuffix(" above").removesuffix(" below")
    refused(build, DataError, rf"'y' \({name}\): expected {sentence}.*correct the data")


REAL_VALUED = {
    "Normal": lambda f, y: pm.Normal("y", f, 1, observed=y),
    "StudentT": lambda f, y: pm.StudentT("y", nu=3, mu=f, sigma=1, observed=y),
    "Cauchy": lambda f, y: pm.Cauchy("y", alpha=f, beta=1, observed=y),
    "Laplace": lambda f, y: pm.Laplace("y", mu=f, b=1, observed=y),
    "AsymmetricLaplace": lambda f, y: pm.AsymmetricLaplace("y", mu=f, q=0.3, b=1, observed=y),
    "Logistic": lambda f, y: pm.Logistic("y", mu=f, s=1, observed=y),
}


@pytest.mark.parametrize("name", REAL_VALUED)
def test_infinite_observations(name):
    y = np.where(np.arange(N) == 2, np.inf, REAL)
    sentence = r"'y' has the value inf at position 2: expected finite numbers; pass a masked array"
    refused(lambda: REAL_VALUED[name](process(), y), DataError, sentence)


def nan_at(row):
    return np.where(np.arange(N)[:, None] == row, np.nan, X)


NOT_FINITE = {
    "kernel input": (
        lambda: bernoulli(process(inputs=nan_at(3))),
        r"covariance of 'f' has the value nan at position \(3, 0\)",
    ),
    "kernel input of the other form": (
        lambda: bernoulli(
            pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0)).prior(
                "f", X=nan_at(3), reparameterize=False
            )
        ),
        r"covariance of 'f' has the value nan at position \(3, 0\)",
    ),
    "design": (
        lambda: bernoulli(nan_at(2) @ pm.Normal("b", 0, 1, shape=2)),
        r"distribution of 'y' has the value nan at position \(2, 0\)",
    ),
    "offset": (
        lambda: bernoulli(process() + np.where(BINARY > 0, np.inf, 0.0)),
        "distribution of 'y' has the value inf",
    ),
    "parameter": (
        lambda: pm.Normal("y", process(), np.where(BINARY > 0, np.nan, 1.0), observed=REAL),
        "distribution of 'y' has the value nan",
    ),
}


@pytest.mark.parametrize("case", NOT_FINITE)
def test_inputs_are_not_finite(case):
    build, sentence = NOT_FINITE[case]
    refused(build, DataError, f"{sentence}.*expected finite numbers; drop or impute")


SHAPES = {
    "predictor": (
        lambda: bernoulli(process(inputs=X[:3])),
        r"'y': expected a predictor of the observations' shape \(8,\), found shape \(3,\); index",
    ),
    "predictor of data": (
        lambda: bernoulli(pm.Data("X", X[:3]) @ pm.Normal("b", 0, 1, shape=2)),
        r"'y': expected a predictor of the observations' shape \(8,\), found shape \(3,\); index",
    ),
    "parameter": (
        lambda: pm.Normal("y", process(), pm.HalfNormal("s", 1, shape=3), observed=REAL),
        r"'y': expected a parameter 'sigma' of the observations' shape \(8,\), found shape \(3,\)",
    ),
}


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_do_not_fit(case):
    build, sentence = SHAPES[case]
    refused(build, RecognitionError, sentence)


USELESS = {
    "no variance": (
        lambda: bernoulli(pm.Normal("a", 0, [1.0, 0.0])[np.arange(N) % 2]),
        RecognitionError,
        "'a': expected standard deviations above zero and finite, found 0; write a number",
    ),
    "no prior": (
        lambda: bernoulli(pm.Normal("a", 0, np.inf) + pm.Normal("b", 0, 1) * X[:, 0]),
        RecognitionError,
        "'a': expected standard deviations.*found inf; .*pm.Flat",
    ),
    "no mean": (
        lambda: bernoulli(pm.Normal("a", np.nan, 1) + pm.Normal("b", 0, 1) * X[:, 0]),
        RecognitionError,
        "'y': expected a finite log density.*that prior means and inputs are not NaN",
    ),
    "no density": (
        lambda: pm.Simulator(
            "y", lambda rng, a, size: rng.normal(a, size=size), pm.Normal("a", 0, 1), observed=REAL
        ),
        UnknownLikelihoodError,
        "'y': expected a distribution with a density, found a pm.Simulator.*sample_smc",
    ),
}


@pytest.mark.filterwarnings("ignore:.*RandomVariable:DeprecationWarning")
@pytest.mark.parametrize("case", USELESS)
def test_distributions_that_are_none(case):
    refused(*USELESS[case])


def test_index_out_of_bounds():
    sentence = r"'y': expected a log density that PyMC can compute, found the error 'index 3 is out"
    refused(lambda: bernoulli(process(inputs=X[:3])[np.arange(N) % 4]), DataError, sentence)


def test_dense_design_is_too_large(monkeypatch):
    monkeypatch.setattr(designs, "LARGEST_DENSE_DESIGN", 2 * N - 1)
    sentence = r"'b' enters 8 predictors through a dense design matrix of 2 columns.*f\[idx\]"
    refused(lambda: bernoulli(X @ pm.Normal("b", 0, 1, shape=2)), RecognitionError, sentence)


def test_start_outside_the_support():
    interval = pm.distributions.transforms.Interval(0.0, 5.0)
    for options in ({}, {"default_transform": None}):
        with pm.Model() as model:
            # PyMC applies the given transform after the distribution's own.
            pm.Uniform("c", 0, 10, transform=interval, initval=1.0, **options)
            pm.Bernoulli("y", logit_p=pm.Normal("b", 0, 1) * np.ones(2), observed=[0, 1])
        if options:
            recognize(model)
            continue
        with pytest.raises(RecognitionError, match=r"'c'.*initial value.*nan.*default_transform"):
            recognize(model)
