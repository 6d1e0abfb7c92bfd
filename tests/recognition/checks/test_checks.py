"""The check against PyMC is not fooled by a wrong reading, and does not refuse a right one."""

from __future__ import annotations

import sys

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.special import log_expit, log_ndtr

from pymc_augconj.api.recognize import recognize
from pymc_augconj.api.sample import sample
from pymc_augconj.errors import RecognitionError
from pymc_augconj.likelihoods.base import Pattern
from pymc_augconj.likelihoods.bernoulli_logit import BernoulliLogit
from pymc_augconj.likelihoods.bernoulli_probit import BernoulliProbit
from pymc_augconj.likelihoods.normal import Normal
from pymc_augconj.likelihoods.poisson_sigmoid import PoissonSigmoid
from pymc_augconj.likelihoods.powers_of_sigmoid import NegativeBinomial
from pymc_augconj.likelihoods.student_t import StudentT
from pymc_augconj.linalg.linear_map import DenseMap, RowSelection
from pymc_augconj.recognition.graph.functions import PointFunction

N = 8
RNG = np.random.default_rng(9)
X = RNG.standard_normal((N, 2))
BINARY = RNG.integers(0, 2, N)
COUNTS = RNG.poisson(3, N)
REAL = RNG.standard_normal(N)

invlogit = pm.math.invlogit


def process():
    return pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=X)


def bernoulli(scale=1.0):
    return pm.Bernoulli("wrong", logit_p=scale * process(), observed=BINARY)


def student_t():
    sigma = pm.HalfNormal("s", 2)
    return pm.StudentT("wrong", nu=4, mu=process(), sigma=sigma, observed=REAL)


def patterns(cls, *args, **kwargs):
    return lambda patch: patch.setattr(cls, "patterns", (Pattern(*args, **kwargs),))


def density(cls, change):
    """Replace log p(y | η) by a change of the right one."""
    right = cls.log_density
    return lambda patch: patch.setattr(
        cls, "log_density", lambda self, y, eta, params: change(right, self, y, eta, params)
    )


WRONG = {
    "sign of the predictor": (
        bernoulli,
        patterns(BernoulliLogit, "BernoulliRV", ("p",), "p", "logit", negate=True),
    ),
    "sign of a tiny predictor": (
        lambda: bernoulli(1e-9),
        patterns(BernoulliLogit, "BernoulliRV", ("p",), "p", "logit", negate=True),
    ),
    "sign lost": (
        lambda: pm.NegativeBinomial("wrong", mu=pm.math.exp(process()), alpha=2, observed=COUNTS),
        patterns(
            NegativeBinomial, "NegBinomialRV", ("n", "p"), "p", "logit", rename=(("n", "alpha"),)
        ),
    ),
    "link": (
        lambda: pm.Bernoulli("wrong", p=pm.math.invprobit(process()), observed=BINARY),
        density(BernoulliProbit, lambda f, self, y, eta, params: f(self, y, 1.7 * eta, params)),
    ),
    "order of parameters": (
        student_t,
        patterns(StudentT, "StudentTRV", ("sigma", "mu", "nu"), "mu"),
    ),
    "scale": (
        student_t,
        density(
            StudentT, lambda f, self, y, eta, p: f(self, y, eta, {**p, "sigma": p["sigma"] ** 2})
        ),
    ),
    "constant": (
        student_t,
        density(StudentT, lambda f, self, y, eta, params: f(self, y, eta, params) + 1e-3),
    ),
    "one observation": (
        student_t,
        density(
            StudentT,
            lambda f, self, y, eta, params: (
                f(self, y, eta, params) + 1e-3 * (np.arange(y.size) == 5)
            ),
        ),
    ),
    "rate": (
        lambda: pm.Poisson("wrong", mu=pm.Gamma("r", 9, 1) * invlogit(process()), observed=COUNTS),
        density(
            PoissonSigmoid, lambda f, self, y, eta, p: f(self, y, eta, {"rate": 2 * p["rate"]})
        ),
    ),
    "floor of a probability": (
        bernoulli,
        density(
            BernoulliLogit,
            lambda f, self, y, eta, params: np.maximum(f(self, y, eta, params), np.log(1e-7)),
        ),
    ),
    "far from zero": (
        student_t,
        density(
            StudentT,
            lambda f, self, y, eta, params: (
                f(self, y, eta, params) * np.where(np.abs(eta) > 30.0, 1.01, 1.0)
            ),
        ),
    ),
    "one observation among large ones": (
        lambda: pm.Normal("wrong", process(), 10.0 ** (2.0 * np.arange(N) - 8.0), observed=REAL),
        density(
            Normal,
            lambda f, self, y, eta, params: f(self, y, eta, params) + 1e-9 * (np.arange(N) == 7),
        ),
    ),
    "not a number": (
        student_t,
        density(StudentT, lambda f, self, y, eta, params: f(self, y, eta, params) * np.nan),
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_likelihood_is_refused(mistake, monkeypatch):
    build, break_it = WRONG[mistake]
    with pm.Model() as model:
        build()
        pm.Normal("right", model["f"], 1, observed=REAL)
    recognize(model)
    break_it(monkeypatch)
    with pytest.raises(RecognitionError, match=r"'wrong': read as .*log density differs"):
        recognize(model)


def test_wrong_map_is_refused(monkeypatch):
    right = RowSelection.apply
    monkeypatch.setattr(RowSelection, "apply", lambda self, u: right(self, u) * (1 + 1e-4))
    with pm.Model() as model:
        bernoulli()
    with pytest.raises(RecognitionError, match=r"'wrong': expected a predictor that is affine"):
        recognize(model)


def test_a_column_of_small_unit_that_is_lost_is_refused(monkeypatch):
    """Its coefficients are as large as it is small; the others bring 1e9 of its own unit."""
    right = DenseMap.apply
    monkeypatch.setattr(
        DenseMap, "apply", lambda self, u: right(self, np.where(np.arange(u.size) == 1, 0.0, u))
    )
    for unit in (1e-9, 1e-15, 1.0, 1e9):
        with pm.Model() as model:
            beta = pm.Normal("b", 0, [1.0, 1.0 / unit], shape=2)
            pm.Bernoulli("wrong", logit_p=(X * [1.0, unit]) @ beta, observed=BINARY)
        with pytest.raises(RecognitionError, match=r"'wrong': expected a predictor that"):
            recognize(model)


def test_random_numbers_are_not_left_in_a_graph():
    """A random variable left in a graph would make its value a fresh draw at every call."""
    compile_module = sys.modules["pymc_augconj.recognition.graph.functions"]
    with pm.Model():
        s = pm.HalfNormal("s", 1)
    with pytest.raises(RecognitionError, match="expected every random variable to be a variable"):
        compile_module.PointFunction(2 * s, {})


# -- right readings that must pass -----------------------------------------------------------------

FAR = {
    "Normal": lambda: pm.Normal(
        "y", pm.Normal("b", 0, 1000), pm.HalfNormal("s", 1), observed=REAL + 200
    ),
    "Student-t": lambda: pm.StudentT("y", nu=3, mu=100 * process(), sigma=1, observed=1e5 * REAL),
    "Poisson": lambda: pm.Poisson("y", mu=1e4 * invlogit(process()), observed=COUNTS),
    "Binomial": lambda: pm.Binomial("y", n=10**6, logit_p=process(), observed=COUNTS),
    "probit": lambda: pm.Bernoulli(
        "y", p=pm.math.invprobit(process() + 40), observed=np.ones(N, dtype=int)
    ),
    "complement": lambda: pm.Bernoulli(
        "y", p=1 - pm.math.sigmoid(process() + 30), observed=np.ones(N, dtype=int)
    ),
    "tiny design": lambda: pm.Bernoulli(
        "y", logit_p=(1e-6 * X) @ pm.Normal("b", 0, 1e6, shape=2), observed=BINARY
    ),
    "exposure": lambda: pm.NegativeBinomial(
        "y", mu=1e6 * pm.math.exp(process()), alpha=1e-3, observed=COUNTS
    ),
}


@pytest.mark.parametrize("case", FAR)
def test_data_far_from_the_prior(case, read):
    with pm.Model() as model:
        FAR[case]()
    read(model)


class Density:
    """PyMC's log density as it is written, with its rounding, and in its stable form."""

    def __init__(self, written, rounding, stable):
        self.as_written, self.stable = lambda point: written, stable
        self.with_rounding = lambda point: (written, np.full(N, rounding))

    def __call__(self, point):
        return self.stable


def test_digits_lost_by_a_formula_are_no_difference_and_a_difference_is_one(read):
    """Here log(1 − σ(η)) as it is written has lost what it is compared by."""
    with pm.Model() as model:
        bernoulli()
    (site,) = read(model).lgm.sites
    checks = sys.modules["pymc_augconj.recognition.checks.checks"]

    def compare(ours, *theirs):
        return checks._compare_densities(site, ours, checks._Theirs(Density(*theirs), {}))

    right, wrong = np.full(N, -2.0), np.full(N, -2.1)
    assert compare(right, right, 0.0, None) == N
    assert compare(right, wrong, 0.2, None) == 0
    assert compare(right, wrong, 0.0, right) == N
    assert compare(right, right + 1e-9, 1e-8, None) == N
    # An entry of which the graph as written keeps no digit: the stable form rounds, too.
    lost = np.where(np.arange(N) == 0, np.inf, 0.0)
    assert compare(right, wrong, lost, right + 1e-14) == N
    with pytest.raises(RecognitionError, match="differs from PyMC's"):
        compare(right, wrong, lost, right + 1e-9 * (lost > 0))
    for off in (wrong, right + 1e-12, np.full(N, np.nan), np.full(N, -np.inf)):
        with pytest.raises(RecognitionError, match="differs from PyMC's"):
            compare(off, right, 0.0, right)
    mixed = np.where(np.arange(N) == 0, -np.inf, right)
    with pytest.raises(RecognitionError, match="differs from PyMC's"):
        compare(right, mixed, 0.0, mixed)
    # A formula that keeps no digit tells nothing, unless its stable form is another.
    assert compare(right, mixed, lost, mixed) == N - 1
    assert compare(right, right + 1e-9 * (lost > 0), lost, right + 1e-9 * (lost > 0)) == N - 1


IMPOSSIBLE = {
    "Exponential": (lambda f: pm.Exponential.dist(pm.math.exp(f)), -1.0),
    "Weibull": (lambda f: pm.Weibull.dist(2.0, pm.math.exp(f)), -1.0),
    "LogNormal": (lambda f: pm.LogNormal.dist(f, 2.0), 0.0),
    "Gamma": (lambda f: pm.Gamma.dist(mu=pm.math.exp(f), sigma=1.0), -1.0),
    "Uniform": (lambda f: pm.Uniform.dist(-1.0 - f**2, 1.0 + f**2), -90.0),
    "truncated": (lambda f: pm.Truncated.dist(pm.Normal.dist(f, 1.0), lower=0.0), -1.0),
    "Beta": (lambda f: pm.Beta.dist(mu=pm.math.invlogit(f), nu=3.0), 1.5),
    "Binomial": (lambda f: pm.Binomial.dist(4, logit_p=f), 5),
    "Binomial with p": (lambda f: pm.Binomial.dist(4, p=pm.math.invlogit(f)), 5),
    "NegativeBinomial": (lambda f: pm.NegativeBinomial.dist(pm.math.exp(f), 2.0), -1),
    "Poisson": (lambda f: pm.Poisson.dist(pm.math.exp(f)), -1),
    "zero-inflated": (lambda f: pm.ZeroInflatedPoisson.dist(0.3, pm.math.exp(f)), -1),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_data_are_no_rounding(name, read):
    """No rounding moves data out of a distribution's support: a finite density is misread."""
    distribution, y = IMPOSSIBLE[name]
    with pm.Model() as model:
        bernoulli()
    (site,) = read(model).lgm.sites
    f = pt.vector("f", shape=(N,))
    y = np.where(np.arange(N) == 0, y, 1 if isinstance(y, int) else 0.5)
    density = PointFunction(pm.logp(distribution(f), y).astype("float64"), {"f": f})
    checks = sys.modules["pymc_augconj.recognition.checks.checks"]
    for scale in (1.0, 8.0):
        theirs = checks._Theirs(density, {"f": scale * REAL})
        assert np.isneginf(theirs.values[0])
        ours = np.where(np.arange(N) == 0, -1.5, theirs.values)
        with pytest.raises(RecognitionError, match="differs from PyMC's by inf"):
            checks._compare_densities(site, ours, theirs)


def test_rounding_is_told_within_a_mixture(read):
    """PyMC computes log(1 − p) of p next to one, within log Σ exp of the components."""
    x = np.array([0.6, 0.25, -0.3, 0.45, -1.0, 0.3])
    with pm.Model() as model:
        p = pm.math.sigmoid(pm.Normal("b") * x)
        pm.ZeroInflatedBinomial("y", psi=0.16, n=12, p=p, observed=[1, 4, 2, 6, 3, 3])
    assert read(model).lgm.sites[0].likelihood.name == "ZeroInflatedBinomial"


def test_rounding_is_told_entry_by_entry():
    """Of a difference of large numbers, of one of small ones, and of single precision."""
    x = pt.vector("x", shape=(3,))
    function = PointFunction((x + 1e9) - 1e9, {"x": x})
    value, bound = function.with_rounding({"x": np.array([1.0, 1e-9, 1e9])})
    assert np.all(np.abs(value - [1.0, 1e-9, 1e9]) <= bound)
    assert np.all(bound <= 1e-3)
    value, bound = PointFunction(x * 3.7, {"x": x}).with_rounding({"x": np.array([1e-9, 1, 1e9])})
    assert np.all(bound <= 1e-13 * value)
    in_single = x * pt.log(pt.constant(np.int8(5)))
    value, bound = PointFunction(in_single, {"x": x}).with_rounding({"x": np.ones(3)})
    assert np.all(np.abs(value - np.log(5.0)) <= bound)
    assert np.all(bound < 1e-6)
    root = pt.constant(np.float32(np.sqrt(2.0)))
    value, bound = PointFunction(x * root, {"x": x}).with_rounding({"x": np.ones(3)})
    assert np.all(np.abs(value - np.sqrt(2.0)) <= bound)
    assert np.all(bound < 1e-6)


def test_rounding_of_subnormal_numbers_is_told():
    """As log(x exp η) loses it, which a predictor behind an exposure is."""
    x = pt.vector("x", shape=(2,))
    function = PointFunction(pt.log(8.7 * pt.exp(x)), {"x": x})
    at = np.array([-740.0, -30.0])
    value, bound = function.with_rounding({"x": at})
    off = np.abs(value - (at + np.log(8.7)))
    assert off[0] > 1e-4
    assert np.all(off <= bound)
    assert bound[1] < 1e-12


COMPLEMENTS = {
    "probit": (lambda x: 0.5 * pt.erfc(-x / np.sqrt(2.0)), log_ndtr),
    "of an error function": (lambda x: 0.5 * (1.0 + pt.erf(x / np.sqrt(2.0))), log_ndtr),
    "sigmoid": (pt.sigmoid, log_expit),
    "quotient": (lambda x: 1.0 / (1.0 + pt.exp(-x)), log_expit),
}


@pytest.mark.parametrize("link", COMPLEMENTS)
def test_digits_that_a_complement_loses_are_told(link):
    """No entry of log(1 − p) is off by more than its bound, of at most 64 units of p."""
    formula, log_p = COMPLEMENTS[link]
    at = np.linspace(-40.0, 40.0, 4001)
    x = pt.vector("x", shape=at.shape)
    function = PointFunction(pt.log(1 - formula(x)), {"x": x})
    value, bound = function.with_rounding({"x": at})
    right = log_p(-at)
    seen = np.isfinite(value)
    assert np.all(np.abs(value - right)[seen] <= bound[seen])
    far = right < -30.0
    assert far[seen].any()
    units = 64.0 * np.finfo(float).eps / np.exp(np.maximum(right, -36.0))
    near = units < 0.2
    assert np.all(bound[near] <= units[near] + 1e-14 * np.abs(right[near]))


def test_rounding_of_running_products_is_told():
    """What sticks leave is 1 − p for each of them, of which all digits are lost for some."""
    at = np.tile([[40.0, 1.0], [20.0, -3.0]], (4000, 1))
    x = pt.matrix("x", shape=at.shape)
    function = PointFunction(pt.log(pt.cumprod(1 - pt.sigmoid(x), axis=1)), {"x": x})
    value, bound = function.with_rounding({"x": at})
    assert np.all(bound[0::2] == np.inf)
    off = np.abs(value - np.cumsum(log_expit(-at), axis=1))[1::2]
    assert np.all((off > 1e-9) & (off <= bound[1::2]))
    assert np.all(bound[1::2] < 1e-6)


def test_rounding_behind_a_factor_is_told():
    """No formula bounds the error of a Cholesky factor, whose results are moved instead."""
    x = pt.vector("x", shape=(2,))
    K = pt.stack([pt.stack([x[0], x[1]]), pt.stack([x[1], x[0]])])
    function = PointFunction(pt.log(pt.linalg.cholesky(K)[1, 1]), {"x": x})
    value, bound = function.with_rounding({"x": np.array([1.0, 1.0 - 1e-9])})
    right = 0.5 * np.log((1.0 - (1.0 - 1e-9)) * (2.0 - 1e-9))
    assert 1e-12 < abs(value - right) <= bound < 1e-3


def test_nothing_can_be_compared():
    with pm.Model() as model:
        eta = process() - 1e4
        pm.Bernoulli("y", p=pm.math.invprobit(eta), observed=np.ones(N, dtype=int))
    with pytest.raises(RecognitionError, match=r"'y': expected a finite log density.*rescale"):
        recognize(model)


def test_data_that_no_parameter_allows():
    """A count where exposure is zero: sampler and PyMC agree, the message names the variable."""
    exposure, y = np.array([1.0, 0.0, 2.0]), np.array([1, 1, 3])
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Poisson("y", exposure * pm.math.exp(b), observed=y)
    with pytest.raises(RecognitionError, match=r"^'y': expected a finite log density at step 1"):
        sample(draws=5, tune=5, model=model, chains=1, progressbar=False)


# -- parameters out of range -------------------------------------------------------------------


def test_parameters_out_of_range_have_no_density(read):
    """The package's densities do not look at parameters; PyMC's conditions stand in the prior."""
    with pm.Model() as model:
        a = pm.Normal("a", 2, 1)
        pm.NegativeBinomial("y", mu=pm.math.exp(process()), alpha=a, observed=COUNTS)
    reading = read(model)
    start = reading.recognition.start
    assert np.isfinite(reading.lgm.log_prior(start))
    outside = {**start, "a": np.asarray(-0.3)}
    assert reading.lgm.log_prior(outside) == -np.inf
    assert model.compile_logp(mode="FAST_COMPILE")(outside) == -np.inf


def test_underflow_has_no_density_and_raises_nothing(read):
    with pm.Model() as model:
        pm.Normal("y", process(), pm.HalfNormal("s", 1), observed=REAL)
    reading = read(model)
    for value in (-800.0, 800.0):
        outside = {**reading.recognition.start, "s_log__": np.asarray(value)}
        assert reading.lgm.log_prior(outside) == -np.inf


def test_a_predictor_that_pymc_loses_by_underflow_is_read(read):
    """log(exp(η)) is −∞ from η = −745 on, and a density of a count of zero is one there."""
    with pm.Model() as model:
        b, s = pm.Laplace("b", 0.0, 3e-8, shape=2), pm.StudentT("s", nu=5, mu=0.0, sigma=1e8)
        mu = np.array([9.0, 5.0, 2.0, 6.0]) * pm.math.exp(s * b[[1, 0, 0, 1]])
        alpha = np.array([1.0, 2.0, 0.5, 1.0])
        pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=np.array([2, 0, 0, 2]))
    assert read(model).lgm.sites[0].likelihood.link == "logit"
