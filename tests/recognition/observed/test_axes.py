"""Observations of several axes, against the same model written flat."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor import scan

import pymc_augconj as pac

N, R = 5, 3
RNG = np.random.default_rng(4)
X = np.linspace(0.0, 1.0, N)[:, None]
POSITIVE = RNG.gamma(2.0, 1.0, (N, R))
COUNTS = RNG.poisson(1.5, (N, R))
CLASSES = np.minimum(COUNTS, 2)
ROWS, COLUMNS = (index.ravel() for index in np.indices((N, R)))
MISSING = RNG.random((N, R)) < 0.3
LOWER, UPPER = 0.4, np.array([2.0, 3.0, 2.5])
CLIPPED = np.clip(POSITIVE, LOWER, UPPER)

exp, invlogit = pm.math.exp, pm.math.invlogit


def cutpoints():
    ordered = pm.distributions.transforms.ordered
    return pm.Normal("c", [-1.0, 1.0], 1.0, transform=ordered, initval=[-0.8, 1.1])


def process(**kwargs):
    cov = pm.gp.cov.ExpQuad(1, ls=pm.Gamma("ls", 4, 8))
    return pm.gp.Latent(cov_func=cov).prior("f", X=X, **kwargs)


def columns():
    return pm.HalfNormal("s", 1.0, shape=R)


def masked(y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.ma.masked_array(y, mask=MISSING)


def of_masked(f, observed, flat):
    if flat:
        seen = ~MISSING.ravel()
        return pm.Gamma(
            "y_observed", columns()[COLUMNS[seen]], exp(-f[ROWS[seen]]), observed=observed[~MISSING]
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pm.Gamma("y", columns(), exp(-f)[:, None], observed=masked(observed))


def of_masked_fractions(f, flat):
    """Both parameters of a Beta are functions of the predictor, and of one number."""
    y, missing = POSITIVE[:, 0] / 20, np.array([False, True, False, False, True])
    nu = pm.HalfNormal("nu", 9.0)
    if flat:
        return pm.Beta("y_observed", mu=invlogit(f[~missing]), nu=nu, observed=y[~missing])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pm.Beta("y", mu=invlogit(f), nu=nu, observed=np.ma.masked_array(y, mask=missing))


# By name: the model with two axes, and the flat one.
MODELS = {
    "columns of one process": (
        lambda: pm.Gamma("y", alpha=2.0, beta=exp(process()[:, None]), observed=POSITIVE),
        lambda: pm.Gamma("y", alpha=2.0, beta=exp(process()[ROWS]), observed=POSITIVE.ravel()),
    ),
    "an axis put around a function": (
        lambda: pm.Gamma("y", alpha=2.0, beta=exp(process())[:, None], observed=POSITIVE),
        lambda: pm.Gamma("y", alpha=2.0, beta=exp(process()[ROWS]), observed=POSITIVE.ravel()),
    ),
    "a parameter a column": (
        lambda: pm.Gamma("y", columns(), exp(process()[:, None]), observed=POSITIVE),
        lambda: pm.Gamma("y", columns()[COLUMNS], exp(process()[ROWS]), observed=POSITIVE.ravel()),
    ),
    "an intercept a column": (
        lambda: pm.Beta(
            "y",
            mu=invlogit(process()[:, None] + pm.Normal("b", 0, 1, shape=R)),
            nu=pm.HalfNormal("nu", 9.0),
            observed=POSITIVE / 20,
        ),
        lambda: pm.Beta(
            "y",
            mu=invlogit(process()[ROWS] + pm.Normal("b", 0, 1, shape=R)[COLUMNS]),
            nu=pm.HalfNormal("nu", 9.0),
            observed=POSITIVE.ravel() / 20,
        ),
    ),
    "a process a column": (
        lambda: pm.Gamma("y", alpha=2.0, beta=exp(process(n_outputs=R).T), observed=POSITIVE),
        lambda: pm.Gamma(
            "y", 2.0, exp(process(n_outputs=R)[COLUMNS, ROWS]), observed=POSITIVE.ravel()
        ),
    ),
    "a mixture": (
        lambda: pm.ZeroInflatedPoisson(
            "y", pm.Beta("psi", 2, 1), exp(process()[:, None]), observed=COUNTS
        ),
        lambda: pm.ZeroInflatedPoisson(
            "y", pm.Beta("psi", 2, 1), exp(process()[ROWS]), observed=COUNTS.ravel()
        ),
    ),
    "classes": (
        lambda: pm.OrderedLogistic(
            "y", eta=process()[:, None] + np.zeros((1, R)), cutpoints=cutpoints(), observed=CLASSES
        ),
        lambda: pm.OrderedLogistic(
            "y", eta=process()[ROWS], cutpoints=cutpoints(), observed=CLASSES.ravel()
        ),
    ),
    "censored": (
        lambda: pm.Censored(
            "y", pm.LogNormal.dist(process()[:, None], columns()), LOWER, UPPER, observed=CLIPPED
        ),
        lambda: pm.Censored(
            "y",
            pm.LogNormal.dist(process()[ROWS], columns()[COLUMNS]),
            LOWER,
            UPPER[COLUMNS],
            observed=CLIPPED.ravel(),
        ),
    ),
    "some missing": (
        lambda: of_masked(process(), POSITIVE, False),
        lambda: of_masked(process(), POSITIVE, True),
    ),
    "some missing on one axis": (
        lambda: of_masked_fractions(process(), False),
        lambda: of_masked_fractions(process(), True),
    ),
    "augmented": (
        lambda: pm.Bernoulli("y", logit_p=process()[:, None], observed=COUNTS > 1),
        lambda: pm.Bernoulli("y", logit_p=process()[ROWS], observed=COUNTS.ravel() > 1),
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def pair(request):
    found = []
    for build in MODELS[request.param]:
        with pm.Model() as model:
            build()
        found.append(pac.recognize(model))
    return found


def test_it_is_the_flat_model(pair):
    """The same latents, predictors and densities, observation by observation in C order."""
    ours, flat = (recognition.model for recognition in pair)
    (site,), (flat_site,) = ours.sites, flat.sites
    assert [b.name for b in ours.blocks] == [b.name for b in flat.blocks]
    assert [h.name for h in ours.hyperparameters] == [h.name for h in flat.hyperparameters]
    assert (site.size, site.name) == (flat_site.size, flat_site.name)
    rng = np.random.default_rng(3)
    for point in (pair[0].start, *pair[0].probes):
        innovations = {b.name: rng.standard_normal(b.total_size) for b in ours.blocks}
        eta = ours.predictor(point, innovations)
        np.testing.assert_allclose(eta, flat.predictor(point, innovations), rtol=1e-12)
        np.testing.assert_array_equal(site.y(point), flat_site.y(point))
        density = site.likelihood.log_density(site.y(point), eta[None], site.params(point))
        expected = flat_site.likelihood.log_density(
            flat_site.y(point), eta[None], flat_site.params(point)
        )
        np.testing.assert_allclose(density, expected, rtol=1e-10)
        # Distinct predictors, so that rows exchanged would show.
        assert np.unique(eta).size >= 3


def test_three_axes():
    scale = RNG.gamma(3.0, 1.0, (1, R, 2))
    y = RNG.gamma(2.0, 1.0, (N, R, 2))
    with pm.Model() as model:
        pm.Gamma("y", alpha=scale, beta=exp(process()[:, None, None]), observed=y)
    recognition = pac.recognize(model)
    (site,) = recognition.model.sites
    eta = np.repeat(np.linspace(-1.0, 1.0, N), 2 * R)
    found = site.likelihood.log_density(y.ravel(), eta[None], site.params(recognition.start))
    law = pm.Gamma.dist(np.broadcast_to(scale, y.shape).ravel(), np.exp(eta))
    np.testing.assert_allclose(found, pm.logp(law, y.ravel()).eval(), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_that_depend_on_each_other_are_refused(axis):
    def logp(value, f):
        return -((value - (f + 0.0 * value).cumsum(axis=axis)) ** 2)

    with pm.Model() as model:
        pm.CustomDist("y", process()[:, None], logp=logp, observed=POSITIVE)
    with pytest.raises(pac.RecognitionError, match=r"'y'"):
        pac.recognize(model)


def test_missing_entries_of_a_mixture_are_refused():
    with pytest.warns(Warning, match="missing values"), pm.Model() as model:
        pm.ZeroInflatedPoisson("y", 0.5, exp(process()[:, None]), observed=masked(COUNTS))
    with pytest.raises(pac.NotAffineError, match=r"masked.*leave the missing entries out"):
        pac.recognize(model)


def test_missing_entries_of_a_series_are_told_to_be_latent():
    y = np.ma.masked_array(np.zeros(9), np.arange(9) == 4)
    with pytest.warns(Warning, match="missing values"), pm.Model() as model:
        pm.AR("y", [pm.Normal("rho")], init_dist=pm.Normal.dist(), observed=y)
    with pytest.raises(pac.RecognitionError, match=r"let the whole series be latent"):
        pac.recognize(model)


def test_a_walk_by_scan_is_told_to_be_a_sum():
    with pm.Model() as model:
        s, e = pm.HalfNormal("s"), pm.Normal("e", shape=5)
        start = pt.constant(0.0, dtype="float64")
        path = scan(
            lambda e, at, s: at + s * e,
            sequences=[e], outputs_info=[start], non_sequences=[s], return_updates=False,
        )  # fmt: skip
        pm.Normal("y", path, 1.0, observed=np.ones(5))
    with pytest.raises(pac.NotAffineError, match=r"cumsum\(\) or pm.AR"):
        pac.recognize(model)


@pytest.mark.parametrize("number", [3, 4])
def test_as_many_rows_as_categories(number):
    """Also where dims alone tell how many."""
    with pm.Model(coords={"row": range(number), "class": range(3)}) as model:
        shares = pm.Gamma("shares", 2, 1, dims="class")
        rates = exp(pm.Normal("b", dims="row"))[:, None] * shares
        y = np.tile([1, 2, 3], (number, 1))
        pm.DirichletMultinomial("y", n=6, a=rates, observed=y)
    assert "DirichletMultinomial" in str(pac.recognize(model))


def test_factors_of_as_many_columns_as_a_walk_has_steps():
    """Broadcast with the walk, factors of unknown length depend on its shape."""
    with pm.Model(coords={"time": range(4)}) as model:
        level = pm.Gamma("level", 2, 1, dims="time")
        walk = pm.GaussianRandomWalk("w", init_dist=pm.Normal.dist(), dims="time")
        rate = pm.Deterministic("rate", level * exp(pt.outer(pt.constant([0.0, 1.0, 2.0]), walk)))
        pm.Poisson("y", np.full((3, 4), 2.0) * rate, observed=np.ones((3, 4)))
    assert "RandomWalk" in str(pac.recognize(model))


def test_factors_of_rates_that_are_joined():
    """As of hazards by group, times what groups share."""
    with pm.Model() as model:
        b, levels = pm.Normal("b", shape=2), pm.Gamma("levels", 2, 1, shape=(4, 2))
        x = pt.constant([0.0, 1.0])
        groups = [pt.outer(exp(b[k] * x), levels[:, k]) for k in (0, 1)]
        shared = pm.Gamma("shared", 2, 1, shape=4)
        pm.Poisson("y", shared[:, None] * pt.concatenate(groups), observed=np.ones((4, 4)))
    (site,) = pac.recognize(model).model.sites
    assert (site.likelihood.name, site.likelihood.link) == ("Poisson", "log")


def test_a_covariance_that_is_not_symmetric_is_refused():
    with pm.Model() as model:
        factor = pm.LKJCorr("factor", n=2, eta=2)
        u = pm.MvNormal("u", np.zeros(2), cov=factor, shape=(3, 2))
        pm.Normal("y", u, 1.0, observed=np.ones((3, 2)))
    with pytest.raises(pac.RecognitionError, match=r"'u': expected a symmetric covariance.*chol="):
        pac.recognize(model)
