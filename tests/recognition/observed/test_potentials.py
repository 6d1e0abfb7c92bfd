"""Potentials read as densities: which are, what of, and which are refused."""

from __future__ import annotations

import re

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.dist_math import normal_lccdf, normal_lcdf

import pymc_augconj as pac
from pymc_augconj.python_mode import python_mode
from pymc_augconj.recognition.observed import potentials
from pymc_augconj.recognition.observed.rows import RowFunction, is_separate

N = 7
RNG = np.random.default_rng(4)
X = RNG.standard_normal((N, 2))
TIMES = RNG.exponential(size=N)
REAL = RNG.standard_normal(N)
WEIGHTS = RNG.uniform(0.2, 3.0, N)
SEEN = np.array([True, False, True, True, False, True, False])
LOST = ~SEEN

exp, log = pm.math.exp, pm.math.log


def linear():
    return pm.math.dot(X, pm.Normal("b", 0, 2, shape=2))


def scale():
    return pm.HalfNormal("s", 1)


def process(name="f"):
    cov = pm.gp.cov.ExpQuad(1, ls=pm.InverseGamma("ls", 5, 3))
    return pm.gp.Latent(cov_func=cov).prior(name, X=X[:, :1])


def site_of(reading, name="c"):
    (site,) = (site for site in reading.lgm.sites if site.name == name)
    assert not site.likelihood.has_observations
    return site


# -- spellings -------------------------------------------------------------------------------------


def weibull(eta):
    s = scale()
    pm.Weibull("y", alpha=s, beta=exp(eta[SEEN]), observed=TIMES[SEEN])
    return -((TIMES[LOST] / exp(eta[LOST])) ** s)


def gumbel(eta):
    s = scale()
    pm.Gumbel("y", eta[SEEN], s, observed=REAL[SEEN])
    return log(1.0 - exp(-exp(-(REAL[LOST] - eta[LOST]) / s)))


def bernoulli(eta):
    return pm.logp(pm.Bernoulli.dist(logit_p=eta), SEEN.astype(int))


def switched(eta):
    s = scale()
    above, density = normal_lccdf(eta, s, REAL), pm.logp(pm.Normal.dist(eta, s), REAL)
    return pt.switch(LOST, above, density)


def by_hand(eta):
    """The normalising constant is a term of its own, of hyperparameters alone."""
    s = scale()
    return -N * log(s) - 0.5 * pt.sum((REAL - eta) ** 2) / s**2


def two_terms(eta):
    s = scale()
    below = pm.logcdf(pm.Normal.dist(eta[LOST], s), REAL[LOST])
    return pm.logp(pm.Normal.dist(eta[SEEN], s), REAL[SEEN]).sum() + below.sum()


def two_predictors(eta):
    """In one array, of which a function of hyperparameters is a part and numbers repeat."""
    b = pm.Normal("mean", 0, 1)
    return pt.sum(TIMES * (eta - exp(eta) - scale()) - (exp(b) - b) / 2.0 + WEIGHTS)


def mixture(eta):
    """An axis of components, summed over."""
    w = pm.Beta("w", 2, 2)
    parts = pt.stack([eta - 1.0, eta + 1.0], axis=1) - REAL[:, None]
    return pt.log(pt.sum(pt.stack([w, 1.0 - w]) * exp(-0.5 * parts**2), axis=1))


def matrix(eta):
    b = pm.Normal("mean", 0, 1, shape=2)
    return pm.logp(pm.Poisson.dist(exp(eta[:, None] + b)), np.arange(2 * N).reshape(N, 2))


# By name: the potential of η, and the number of its entries.
SPELLINGS = {
    "Weibull survival": (weibull, LOST.sum()),
    "Gumbel survival": (gumbel, LOST.sum()),
    "PyMC's distribution function": (
        lambda eta: pm.logcdf(pm.Normal.dist(eta, scale()), REAL),
        N,
    ),
    "summed": (lambda eta: bernoulli(eta).sum(), N),
    "mean": (lambda eta: 3.0 * bernoulli(eta).mean(), N),
    "weights": (lambda eta: WEIGHTS * bernoulli(eta), N),
    "weights, summed": (lambda eta: -((-WEIGHTS * bernoulli(eta)).sum()) / 2.0, N),
    "weights, product": (lambda eta: pt.dot(WEIGHTS, bernoulli(eta)), N),
    "switch": (switched, N),
    "by hand": (by_hand, N),
    "two terms": (two_terms, N),
    "sufficient statistic": (lambda eta: pt.dot(REAL, eta) - exp(eta).sum(), 2 * N),
    "two predictors": (two_predictors, 2 * N),
    "components": (mixture, N),
    "deterministic": (lambda eta: bernoulli(pm.Deterministic("eta", eta)), N),
    "matrix": (lambda eta: matrix(eta), 2 * N),
    "constraint": (lambda eta: -0.5 * (pt.sum(eta) / 0.01) ** 2, 1),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_potential_is_read(name, read):
    """``read`` compares with PyMC's log density of the whole model."""
    potential, size = SPELLINGS[name]
    with pm.Model() as model:
        pm.Potential("c", potential(linear()))
    reading = read(model)
    assert site_of(reading).size == size
    assert reading.recognition.factors == ()
    assert "b" in reading.kinds


def test_an_intercept_alone_may_be_the_predictor(read):
    """Times the number of observations that were lost, as in the gallery."""
    with pm.Model() as model:
        mu, s = pm.Normal("mu", 0, 2), scale()
        pm.Normal("y", mu, s, observed=REAL)
        pm.Potential("c", 3 * normal_lcdf(mu, s, -1.0))
        pm.Potential("d", normal_lccdf(mu, s, REAL + 1.0))
        pm.Potential("e", -exp(mu) * TIMES)
    reading = read(model)
    assert [site_of(reading, name).size for name in "cde"] == [1, N, N]


def test_the_same_as_censored(read):
    with pm.Model() as by_potential:
        eta, s = linear(), scale()
        pm.Normal("y", eta[SEEN], s, observed=REAL[SEEN])
        pm.Potential("c", normal_lccdf(eta[LOST], s, REAL[LOST]))
    with pm.Model() as by_censored:
        base = pm.Normal.dist(linear(), scale())
        upper = np.where(SEEN, np.inf, REAL)
        pm.Censored("y", base, lower=None, upper=upper, observed=REAL)
    ours, theirs = read(by_potential), read(by_censored)
    for point in ours.points():
        # PyMC keeps √2 in single precision.
        assert ours.log_density(point) == pytest.approx(theirs.log_density(point), rel=1e-7)


def test_several_potentials_and_likelihoods(read):
    with pm.Model() as model:
        f, b = process(), pm.Normal("mean", 0, 1)
        pm.Bernoulli("y", logit_p=f + b, observed=SEEN.astype(int))
        pm.Potential("c", normal_lccdf(f[LOST] + b, scale(), REAL[LOST]))
        pm.Potential("sum", pm.logp(pm.Normal.dist(0.0, 0.1), pt.sum(f)))
        pm.Potential("prior", -(model["s"] ** 2))
    reading = read(model)
    assert set(reading.kinds) == {"f", "mean"}
    assert reading.recognition.factors == ("prior",)
    table = str(reading.recognition)
    for row in (r"│ c +│ +3 │ potential .*held sites", r"│ sum +│ +1 │ potential .*held sites"):
        assert re.search(row, table)
    assert "prior: depends on hyperparameters alone" in table


def test_a_vector_known_by_its_density_is_kept_as_a_latent(read):
    """As a hyperparameter of that many entries it could not be sampled well."""
    with pm.Model() as model:
        z = pm.GaussianRandomWalk("z", sigma=scale(), init_dist=pm.Normal.dist(0, 1), shape=N)
        pm.Normal("y", z + pm.Normal("b", 0, 1), 1.0, observed=REAL)
        pm.Potential("c", -0.5 * (pt.sum(z) / 0.01) ** 2)
    assert set(read(model).kinds) == {"z", "b"}


def test_a_product_of_latents_is_read_with_one_as_a_hyperparameter(read):
    with pm.Model() as model:
        f, b = process(), pm.Normal("b", 0, 1)
        pm.Potential("c", bernoulli(b * f))
    reading = read(model)
    assert set(reading.kinds) == {"f"}
    assert "b" in reading.roles


# -- whether entries are separate ------------------------------------------------------------------

SEPARATE = {
    "elementwise": (lambda x: exp(x) * REAL, True),
    "components": (lambda x: pt.logsumexp(x[:, None] * np.arange(3.0), axis=1), True),
    "condition on each row": (lambda x: pm.logp(pm.Normal.dist(0.0, exp(x)), REAL), True),
    "part of an axis of its own": (lambda x: (x[:, None] * np.arange(3.0))[:, 1], True),
    "cumulative": (lambda x: pt.cumsum(exp(x)), False),
    "reversed": (lambda x: exp(x)[::-1], False),
    "shuffled": (lambda x: exp(x)[np.arange(N)[::-1]], False),
    "less the largest": (lambda x: x - pt.max(x), False),
    "scaled by all": (lambda x: x / pt.sqrt(pt.sum(x**2)), False),
    "outer": (lambda x: (x[:, None] * x[None, :]).sum(axis=1), False),
    "along the other axis": (lambda x: (x[:, None] * np.ones((N, N))).sum(axis=0), False),
    "softmax": (lambda x: pt.log(pt.special.softmax(x)), False),
    "matrix": (lambda x: pt.dot(np.ones((N, N)), x), False),
}


@pytest.mark.parametrize("name", SEPARATE)
def test_entries_are_separate(name):
    write, expected = SEPARATE[name]
    x = pt.vector("x", shape=(N,))
    graph = write(x)
    assert is_separate(graph, [x], 1) is expected
    # What the answer says, by differences.
    start, others = RNG.standard_normal(N), ~np.eye(N, dtype=bool)
    function = pytensor.function([x], graph, mode=python_mode())
    changes = [function(row) != function(start) for row in start + 3.0 * np.eye(N)]
    assert bool(np.any(np.array(changes) & others)) is not expected


# -- refusals --------------------------------------------------------------------------------------

REFUSED = {
    "cumulative": (lambda eta: -pt.cumsum(exp(eta)), "an entry depends on several entries"),
    "square of a sum": (lambda eta: -(exp(eta).sum() ** 2), r"shape \(\) that depends on several"),
    "two predictors": (lambda eta: -(eta[0] ** 2) * eta[1] ** 2, "depends on several"),
    "step": (lambda eta: pt.switch(eta > 0, 0.0, -np.inf), "not smoothly on one"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    potential, found = REFUSED[name]
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=(f := process()), observed=SEEN.astype(int))
        pm.Potential("c", potential(f))
    sentence = rf"'f' \(GP.*potential 'c' depends on it.*expected a sum of terms.*{found}.*NUTS"
    with pytest.raises(pac.NotAffineError, match=sentence):
        pac.recognize(model)


def test_terms_at_one_row_and_several_predictors(read):
    """Quadrature asks for those rows alone that it has not finished."""
    with pm.Model() as model:
        mu = linear()
        of_lost = pm.logp(pm.Logistic.dist(mu[LOST], scale()), REAL[LOST])
        pm.Potential("y", pm.logp(pm.Normal.dist(mu[SEEN], 1.0), REAL[SEEN]).sum() + of_lost.sum())
    reading = read(model)
    (site,), point = reading.lgm.sites, reading.recognition.start
    y, params = site.y(point), site.params(point)
    eta = np.linspace(-1.0, 1.0, 3 * N).reshape(1, N, 3)
    each = {k: v if np.size(v) == 1 else np.broadcast_to(v, N)[:, None] for k, v in params.items()}
    together = site.likelihood.log_density(y[:, None], eta, each)
    for i in range(N):
        own = {k: np.broadcast_to(v, N)[[i], None] for k, v in params.items()}
        alone = site.likelihood.log_density(y[[i], None], eta[:, [i]], own)
        np.testing.assert_allclose(alone, together[[i]])


def test_a_potential_of_no_entries_is_refused():
    with pm.Model() as model:
        eta = linear()
        pm.Normal("y", eta, 1.0, observed=REAL)
        pm.Potential("c", normal_lccdf(eta[:0], 1.0, REAL[:0]))
    with pytest.raises(pac.DataError, match=r"potential 'c'.*while there are none"):
        pac.recognize(model)


def test_an_entry_that_is_impossible_is_refused():
    with pm.Model() as model:
        pm.Potential("c", pt.switch(np.arange(N) == 2, -np.inf, -exp(linear())))
    with pytest.raises(pac.DataError, match=r"potential 'c'.*found none at position 2"):
        pac.recognize(model)


def test_minibatches_are_refused():
    x, y = pm.Minibatch(X[:, :1], REAL, batch_size=3)
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=x)
        pm.Normal("y", f, 1.0, observed=y, total_size=N)
        pm.Potential("c", -exp(f))
    with pytest.raises(pac.RecognitionError, match=r"potential 'c'.*Minibatch.*batch_size="):
        pac.fit("svi", model=model, progressbar=False)


# -- the check against PyMC ------------------------------------------------------------------------


def test_a_density_read_otherwise_is_noticed(monkeypatch):
    whole = RowFunction.__call__
    monkeypatch.setattr(RowFunction, "__call__", lambda *args: 1.000001 * whole(*args))
    with pm.Model() as model:
        pm.Potential("c", bernoulli(linear()))
    with pytest.raises(pac.RecognitionError, match=r"potential 'c'.*differs from PyMC's"):
        pac.recognize(model)


def test_a_sum_read_otherwise_is_noticed(monkeypatch):
    """Entries are compared with the terms that were found; these with the potential itself."""
    summands = potentials._summands
    monkeypatch.setattr(potentials, "_summands", lambda *args: [2.0 * t for t in summands(*args)])
    with pm.Model() as model:
        pm.Potential("c", bernoulli(linear()).sum())
    with pytest.raises(pac.RecognitionError, match=r"potential 'c'.*differs from PyMC's"):
        pac.recognize(model)


# -- data ------------------------------------------------------------------------------------------


def test_data_that_change(read):
    with pm.Model() as model:
        bound = pm.Data("bound", REAL)
        pm.Potential("c", normal_lccdf(linear(), scale(), bound))
    reading = read(model)
    with model:
        pm.set_data({"bound": REAL + 1.0})
    reading.verify()
    site, start = site_of(reading), reading.recognition.start
    with model:
        pm.set_data({"bound": np.where(SEEN, REAL, np.nan)})
    with pytest.raises(pac.DataError, match=r"potential 'c' \('bound'\) has the value nan"):
        site.y(start)
    with model:
        pm.set_data({"bound": REAL[:3]})
    with pytest.raises(pac.DataError, match=r"'bound': expected shape \(7,\)"):
        site.y(start)
