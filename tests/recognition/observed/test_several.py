"""Observed variables of several affine predictors: what is read, against PyMC's own log density."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import expit, gammaln, log_expit

import pymc_augconj as pac
from pymc_augconj.likelihoods.generic import GenericLikelihood
from pymc_augconj.python_mode import python_mode

N, K = 5, 3
RNG = np.random.default_rng(4)
COV = 0.4 * np.eye(N) + 0.6
REAL = np.array([0.3, -0.4, 2.0, 0.2, -0.1])
POSITIVE = np.array([0.3, 1.2, 2.0, 0.7, 0.4])
COUNTS = np.array([0, 1, 3, 0, 5])
CLASSES = np.array([0, 2, 1, 1, 0])
BACK = np.array([4, 3, 2, 1, 0])
GROUPS = np.array([0, 0, 0, 1, 1])
X = RNG.standard_normal((N, N))
TABLE = np.array([[1, 0, 2], [0, 3, 1], [2, 2, 2], [0, 0, 1], [1, 4, 0]])

exp, sigmoid, softmax = pm.math.exp, pm.math.sigmoid, pm.math.softmax


def latent(name):
    """A latent whose value is its innovation."""
    return pm.MvNormal(name, np.zeros(N), COV)


def processes(count=K):
    return pm.MvNormal("F", np.zeros(N), COV, shape=(count, N))


def fg():
    return latent("f"), latent("g")


def normal(**kwargs):
    f, g = fg()
    pm.Normal("y", f, observed=REAL, **{name: link(g) for name, link in kwargs.items()})


def logistic_precision(spelling):
    lam = pm.HalfNormal("lam", 1.0)
    normal(**spelling(lam))


def categorical(**kwargs):
    pm.Categorical("y", observed=CLASSES, **kwargs)


def of_two(build):
    return lambda: build(*fg())


HETEROSCEDASTIC = {
    "σ = exp": lambda: normal(sigma=exp),
    "τ = exp": lambda: normal(tau=exp),
    "σ = √exp": lambda: normal(sigma=lambda g: pt.sqrt(2.0 * exp(g))),
    "σ = 1/exp": lambda: normal(sigma=lambda g: 3.0 / exp(-0.5 * g)),
}
LOGISTIC = {
    "τ = λ sigmoid": lambda lam: {"tau": lambda g: lam * sigmoid(g)},
    "σ = 1/√": lambda lam: {"sigma": lambda g: 1.0 / pt.sqrt(lam * sigmoid(g))},
    "a power": lambda lam: {"sigma": lambda g: (lam / (1.0 + exp(-g))) ** -0.5},
    "τ of a quotient": lambda lam: {"tau": lambda g: sigmoid(-g) / lam},
    "√(1 + exp)": lambda lam: {"sigma": lambda g: pt.sqrt(1.0 + exp(-g)) / lam},
}
GENERIC = {
    "softplus": (2, lambda: normal(sigma=pm.math.log1pexp)),
    "Student-t": (2, of_two(lambda f, g: pm.StudentT("y", 4, f, sigma=exp(g), observed=REAL))),
    "zero-inflated": (
        2,
        of_two(
            lambda f, g: pm.ZeroInflatedPoisson("y", psi=sigmoid(g), mu=exp(f), observed=COUNTS)
        ),
    ),
    "hurdle": (
        2,
        of_two(
            lambda f, g: pm.HurdleGamma(
                "y", psi=sigmoid(g), alpha=2.0, beta=exp(f), observed=np.r_[0.0, POSITIVE[1:]]
            )
        ),
    ),
    "negative binomial": (
        2,
        of_two(lambda f, g: pm.NegativeBinomial("y", mu=exp(f), alpha=exp(g), observed=COUNTS)),
    ),
    "exposures": (
        2,
        of_two(
            lambda f, g: pm.NegativeBinomial(
                "y", mu=POSITIVE * exp(X @ f), alpha=exp(X @ f / 2 + g[GROUPS]), observed=COUNTS
            )
        ),
    ),
    "beta": (
        2,
        of_two(lambda f, g: pm.Beta("y", mu=sigmoid(f), nu=exp(g), observed=POSITIVE / 3.0)),
    ),
    "gamma": (
        2,
        of_two(lambda f, g: pm.Gamma("y", mu=exp(f), sigma=exp(g), observed=POSITIVE)),
    ),
    "censored": (
        2,
        of_two(
            lambda f, g: pm.Censored(
                "y", pm.Normal.dist(f, exp(g)), 0.4, None, observed=POSITIVE.clip(0.4)
            )
        ),
    ),
    "Dirichlet-multinomial": (
        3,
        lambda: pm.DirichletMultinomial(
            "y", TABLE.sum(axis=1), a=exp(processes().T), observed=TABLE
        ),
    ),
    "Dirichlet": (
        3,
        lambda: pm.Dirichlet(
            "y", exp(processes().T), observed=(TABLE + 1) / (TABLE + 1).sum(axis=1, keepdims=True)
        ),
    ),
    "three parameters": (
        3,
        lambda: pm.StudentT(
            "y", 2.0 + exp(latent("h")), latent("f"), sigma=exp(latent("g")), observed=REAL
        ),
    ),
    "one latent in both": (
        2,
        lambda: pm.Normal(
            "y", (f := latent("f")), pm.math.log1pexp(0.5 * f + latent("g")), observed=REAL
        ),
    ),
    "a latent and its neighbour": (
        2,
        lambda: pm.Normal("y", (f := latent("f")), exp(f[::-1]) + 0.1, observed=REAL),
    ),
    "columns of a sum": (
        2,
        lambda: pm.Bernoulli(
            "y",
            sigmoid((F := latent("f")[:, None] + pm.MvNormal("b", np.zeros(2), np.eye(2)))[:, :1])
            * sigmoid(F[:, 1:])
            * np.ones(2),
            observed=TABLE[:, :2] > 0,
        ),
    ),
    "probabilities one by one": (
        2,
        of_two(
            lambda f, g: categorical(
                p=pt.stack([exp(f), exp(g), pt.ones(N)], -1) / (1.0 + exp(f) + exp(g))[:, None]
            )
        ),
    ),
    "two classes that are constant": (
        2,
        of_two(
            lambda f, g: categorical(logit_p=pt.stack([f, pt.zeros(N), g, 0.5 * pt.ones(N)], -1))
        ),
    ),
    "classes by another link": (
        3,
        lambda: categorical(p=(e := pm.math.log1pexp(processes())).T / e.sum(axis=0)[:, None]),
    ),
}
SOFTMAX = {
    "logit_p": (3, lambda: categorical(logit_p=processes().T)),
    "classes first": (3, lambda: categorical(p=softmax(processes(), axis=0).T)),
    "some rows": (3, lambda: categorical(p=softmax(processes().T[::-1], axis=-1)[BACK])),
    "classes last": (3, lambda: categorical(p=softmax(processes().T, axis=-1))),
    "a reference": (
        2,
        lambda: categorical(logit_p=pt.concatenate([pt.zeros((N, 1)), processes(2).T], axis=1)),
    ),
    "a reference in the middle": (
        2,
        of_two(lambda f, g: categorical(logit_p=pt.stack([f, 0.3 + pt.zeros(N), g], axis=1))),
    ),
    "intercepts": (3, lambda: categorical(logit_p=processes().T + pm.Normal("b", shape=K))),
    "one latent in all": (
        3,
        lambda: categorical(
            logit_p=pt.stack([(f := latent("f")), -f, 0.5 * f + latent("g")], axis=-1)
        ),
    ),
    "counts": (
        3,
        lambda: pm.Multinomial(
            "y", n=TABLE.sum(axis=1), p=softmax(processes().T, axis=-1), observed=TABLE
        ),
    ),
    "counts with a reference": (
        2,
        lambda: pm.Multinomial(
            "y", n=TABLE.sum(axis=1), observed=TABLE,
            p=softmax(pt.concatenate([processes(2), pt.zeros((1, N))]), axis=0).T,
        ),
    ),
}  # fmt: skip


class Found(NamedTuple):
    model: pm.Model
    recognition: pac.api.report.RecognitionReport

    @property
    def lgm(self):
        return self.recognition.model

    @property
    def site(self):
        return self.lgm.sites[0]


def read(build):
    with pm.Model() as model:
        build()
    return Found(model, pac.recognize(model))


def differences(found, change=1.0):
    """Return by how much log densities differ, relative to 1 + their size, near and far."""
    theirs = found.model.compile_logp(vars=[found.model["y"]], mode=python_mode(), jacobian=False)
    start, lgm, site = found.recognition.start, found.lgm, found.site
    result = []
    for scale in (0.3, 1.0, 3.0, 10.0):
        latents = {b.name: scale * RNG.standard_normal(b.total_size) for b in lgm.blocks}
        point = {**start, **{b.value_name: latents[b.name].reshape(b.shape) for b in lgm.blocks}}
        eta = np.array(lgm.offset(point))
        for A, u in zip(lgm.maps, latents.values(), strict=True):
            eta += A(point).apply(change * u)
        ours = site.likelihood.log_density(
            site.y(point), site.select(eta), site.params(point)
        ).sum()
        expected = float(theirs(point))
        result.append(abs(ours - expected) / (1.0 + abs(expected)))
    return np.array(result)


def agrees(found, n_predictors, tolerance=1e-9):
    assert found.site.likelihood.n_predictors == n_predictors
    # PyMC's probabilities round where they are close to one.
    assert differences(found).max() < tolerance
    return found.site


@pytest.mark.parametrize("case", HETEROSCEDASTIC)
def test_log_standard_deviation(case):
    site = agrees(read(HETEROSCEDASTIC[case]), 2)
    assert site.likelihood.link == "identity, log of the standard deviation"


@pytest.mark.parametrize("case", LOGISTIC)
def test_logistic_precision(case):
    found = read(lambda: logistic_precision(LOGISTIC[case]))
    assert agrees(found, 2).likelihood.can_augment
    assert [h.role for h in found.lgm.hyperparameters] == ["likelihood"]


@pytest.mark.parametrize("case", SOFTMAX)
def test_softmax(case):
    n_predictors, build = SOFTMAX[case]
    assert agrees(read(build), n_predictors).likelihood.link == "softmax"


@cache
def generic(case):
    return read(GENERIC[case][1])


@pytest.mark.parametrize("case", GENERIC)
def test_by_the_density(case):
    site = agrees(generic(case), GENERIC[case][0], TOLERANCES.get(case, 1e-9))
    assert isinstance(site.likelihood, GenericLikelihood)
    assert site.refusal is not None


def test_a_wrong_predictor_shows():
    """Negative control of the comparison above."""
    assert differences(generic("softplus"), change=1.001).max() > 1e-5


FORMULAS = {
    "zero-inflated": lambda y, eta: np.logaddexp(
        np.where(y == 0, log_expit(-eta[0]), -np.inf),
        log_expit(eta[0]) + y * eta[1] - np.exp(eta[1]) - gammaln(y + 1.0),
    ),
    "beta": lambda y, eta: stats.beta.logpdf(
        y, expit(eta[0]) * np.exp(eta[1]), expit(-eta[0]) * np.exp(eta[1])
    ),
    "Student-t": lambda y, eta: stats.t.logpdf(y, 4, eta[0], np.exp(eta[1])),
    "truncated": lambda y, eta: (
        stats.norm.logpdf(y, eta[0], np.exp(eta[1])) - stats.norm.logsf(0.0, eta[0], np.exp(eta[1]))
    ),
}
# PyMC has √½ in single precision in a normal distribution function.
TOLERANCES = {"truncated": 1e-5}
GENERIC["truncated"] = (
    2,
    of_two(lambda f, g: pm.Truncated("y", pm.Normal.dist(f, exp(g)), lower=0.0, observed=POSITIVE)),
)


@pytest.mark.parametrize("case", FORMULAS)
def test_against_formulas_for_any_number_of_rows(case):
    """In each predictor as far as the other is not."""
    found = generic(case)
    site, values = found.site, np.array([-8.0, -1.0, 0.0, 0.7, 8.0])
    eta = np.array([[one, 0.3] for one in values] + [[-0.2, other] for other in values]).T
    y = np.resize(site.y(found.recognition.start), eta.shape[1])
    ours = site.likelihood.log_density(y, eta, site.params(found.recognition.start))
    np.testing.assert_allclose(ours, FORMULAS[case](y, eta), rtol=TOLERANCES.get(case, 1e-9))
    wide = site.likelihood.log_density(y[:, None], np.repeat(eta[..., None], 3, axis=-1), {})
    np.testing.assert_allclose(wide, np.repeat(ours[:, None], 3, axis=-1), rtol=1e-12)


def test_a_table_of_predictors():
    table = str(read(HETEROSCEDASTIC["τ = exp"]).recognition)
    for fragment in ("mu: f", "log sigma: g", "held sites"):
        assert fragment in table
    table = str(generic("zero-inflated").recognition)
    assert "logit: g" in table
    assert "log: f" in table


# -- which reading --------------------------------------------------------------------------------


def test_one_predictor_is_preferred():
    """The same in both parameters, or a multiple of it; and a number for all observations."""

    def proportional():
        f = latent("f")
        pm.Gamma("y", mu=exp(f), sigma=exp(2.0 * f + 1.0), observed=POSITIVE)

    assert read(proportional).site.likelihood.n_predictors == 1

    def two_classes():
        logits = pt.stack([pt.zeros(N), latent("f")], axis=1)
        pm.Categorical("y", logit_p=logits, observed=COUNTS > 0)

    assert read(two_classes).site.likelihood.n_predictors == 1

    def number():
        pm.Normal("y", latent("f"), exp(pm.Normal("s")), observed=REAL)

    found = read(number)
    assert found.site.likelihood.n_predictors == 1
    assert [h.name for h in found.lgm.hyperparameters] == ["s"]
    assert found.site.likelihood.can_augment


@pytest.mark.parametrize(("length", "n_predictors"), [(3, 1), (11, 2)])
def test_coefficients_of_a_scale(length, n_predictors):
    """Short vectors beside an exact likelihood are hyperparameters, with the latents integrated
    out; long ones are latents of a second predictor.
    """
    X = RNG.standard_normal((N, length))

    def build():
        pm.Normal("y", latent("f"), exp(X @ pm.Normal("c", 0, 0.3, shape=length)), observed=REAL)

    assert read(build).site.likelihood.n_predictors == n_predictors


def test_coefficients_without_an_exact_likelihood_are_latents():
    X = RNG.standard_normal((N, 2))

    def build():
        f, c = latent("f"), pm.Normal("c", 0, 0.3, shape=2)
        pm.Weibull("y", alpha=exp(X @ c), beta=exp(f), observed=POSITIVE)

    found = read(build)
    assert {block.name for block in found.lgm.blocks} == {"f", "c"}
    assert found.site.likelihood.n_predictors == 2


def tied_intercept():
    f, g, b = latent("f"), latent("g"), pm.Normal("b")
    tau = pm.HalfNormal("lam") * sigmoid(g + b)
    pm.Normal("y", f + b, tau=tau, observed=REAL)


def test_a_latent_in_two_groups_has_held_sites():
    found = read(tied_intercept)
    assert found.site.likelihood.can_augment
    assert "held sites" in str(found.recognition)
    assert pac.AugmentedGibbs(model=found.model).held == ("y",)
    with pytest.raises(pac.AugmentationError, match=r"'y'.*one group of its predictors.*held"):
        pac.AugmentedGibbs(model=found.model, sites="augmented").setup_chain(
            np.random.default_rng(0), 1, 1
        )


REFUSED = {
    "a product": (
        of_two(lambda f, g: pm.StudentT("y", 4, mu=f * g, sigma=1.0, observed=REAL)),
        "'y'.*not in 'f' and 'g'.*by turns.*found a product of predictors",
    ),
    "a product under a link": (
        of_two(lambda f, g: pm.Poisson("y", exp(f * g), observed=COUNTS)),
        "'y': expected parameters.*found a product of predictors.*by turns",
    ),
    "a step": (
        of_two(lambda f, g: pm.Normal("y", f, pt.switch(g > 0, 1.0, 2.0), observed=REAL)),
        "'y'.*found a function of a predictor that is constant piece by piece",
    ),
    "one latent for all": (
        lambda: pm.Normal("y", latent("f"), exp(latent("g")[0]), observed=REAL),
        "'y'.*'sigma' of Normal.*found a predictor with one entry for all observations",
    ),
    "a sum of functions": (
        lambda: pm.Normal("y", exp(processes(40)).sum(0), 1.0, observed=REAL),
        "'y'.*found 40 predictors",
    ),
    "a mixed scale": (
        of_two(lambda f, g: pm.Normal("y", f, exp(g).sum(), observed=REAL)),
        "'y': expected a density that is a product over observations",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    build, sentence = REFUSED[case]
    with pytest.raises(pac.RecognitionError, match=sentence):
        read(build)


def test_impossible_observations():
    observed = np.r_[-1, COUNTS[1:]]
    with pytest.raises(pac.DataError, match=r"a value that NegativeBinomial can take, found -1"):
        read(
            of_two(
                lambda f, g: pm.NegativeBinomial("y", mu=exp(f), alpha=exp(g), observed=observed)
            )
        )


def test_a_single_observation_of_reshaped_predictors():
    """Graphs for one observation may have no form for any number of rows."""
    with pm.Model() as model:
        p, c = pm.Normal("p", 0, 1, shape=2), pm.Normal("c", 0, 1, shape=1)
        f, h = pm.Normal("f", 0, 1, shape=2), pm.Exponential("h", 1)
        mean = pm.gp.mean.Constant(h)
        gp = pm.gp.Latent(mean_func=mean, cov_func=pm.gp.cov.ExpQuad(1, ls=1.4))
        g = gp.prior("g", X=pm.Data("X", np.array([[0.94]])))
        eta = pt.repeat(p, 1)[:1] - pt.tile(c, 2)[:1]
        nu = (f[:, None] * np.linspace(0.1, 1.0, 1) + g).flatten()[:1]
        nu = nu + pt.tanh(pm.Laplace("l", 0, 1)) * 0.6
        pm.Beta("y", mu=pm.math.sigmoid(eta), nu=pt.exp(nu), observed=np.array([0.88]))
    assert {block.name for block in pac.recognize(model).model.blocks} >= {"p", "f"}


def test_tables_with_other_numbers_of_columns_are_no_classes():
    """A coefficient inside the columns of a design is tried as a latent, and is none."""
    with pm.Model() as model:
        rate = pm.TruncatedNormal("rate", mu=1.0, sigma=0.5, lower=0.0)
        design = pt.stack([REAL, exp(-rate * REAL)], axis=1)
        first = design @ pm.Normal("effect", 0, 1, shape=2) + pm.Normal("b", 0, 1, shape=N)
        logits = pt.stack([first, pm.Normal("a", 0, 1) * REAL, latent("f")], axis=-1)
        categorical(logit_p=logits)
    found = pac.recognize(model).model
    assert {block.name for block in found.blocks} == {"effect", "b", "a", "f"}
    assert [h.name for h in found.hyperparameters] == ["rate"]


def test_a_parameter_of_the_density_is_no_term_of_a_predictor(read):
    """The density is of log α − f, and sites of that would have to follow α."""
    with pm.Model() as model:
        f, g = fg()
        alpha = pm.Exponential("alpha", 1.0)
        pm.HurdleNegativeBinomial("y", psi=sigmoid(g), mu=exp(f), alpha=alpha, observed=COUNTS)
    assert not read(model).lgm.offset.names


def test_parameters_of_groups_stay_in_predictors(read):
    """They cannot be separated by observation, as parameters that all share can."""
    with pm.Model() as model:
        f, g = fg()
        alpha = pm.Exponential("alpha", 1.0, shape=2)[GROUPS]
        pm.HurdleNegativeBinomial("y", psi=sigmoid(g), mu=exp(f), alpha=alpha, observed=COUNTS)
    assert read(model).lgm.offset.names


@pytest.mark.parametrize(
    ("distribution", "y"),
    [
        (lambda a, y: pm.DirichletMultinomial("y", 4, a, observed=y), [[1, 3], [2, 2]]),
        (lambda a, y: pm.Dirichlet("y", a, observed=y), [[0.2, 0.8], [0.5, 0.5]]),
    ],
)
def test_a_fit_keeps_the_entries_of_vectors(distribution, y):
    with pm.Model():
        distribution(exp(pm.Normal("b", shape=2) + np.zeros((2, 1))), np.array(y))
        fit = pac.fit("vgp", progressbar=False)
    np.testing.assert_array_equal(fit.to_datatree().observed_data["y"], y)


@pytest.mark.parametrize(("y", "at"), [([[0.2, 0.3, 0.5], [0.5, 0.5, 0.0]], 1), (np.eye(3)[:2], 0)])
def test_shares_of_zero_are_refused(y, at):
    with pm.Model():
        pm.Dirichlet("y", exp(pm.Normal("b", shape=3) + np.zeros((2, 1))), observed=np.array(y))
        with pytest.raises(pac.DataError, match=f"entries inside its support.* position {at}"):
            pac.recognize()
