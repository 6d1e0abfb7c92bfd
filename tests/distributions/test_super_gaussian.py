"""SuperGaussian as a PyMC distribution: densities, draws, model features, refusals."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_augconj as pac

LOG_PHI = {
    "Laplace": lambda r, s: -pt.sqrt(r) / s,
    "Student-t": lambda r, s: -2.5 * pt.log1p(r / (4 * s**2)),
    "Matérn": lambda r, s: pt.log1p(pt.sqrt(3 * r) / s) - pt.sqrt(3 * r) / s,
}
PYMC = {
    "Laplace": lambda mu, s: pm.Laplace.dist(mu, s),
    # An array, because PyTensor makes a float32 of π times the integer 4.
    "Student-t": lambda mu, s: pm.StudentT.dist(nu=np.array(4.0), mu=mu, sigma=s),
    "Matérn": lambda mu, s: pac.MaternNoise.dist(1.5, mu, s),
}
LARGEST_DISTANCE = 2.7  # √N times Kolmogorov–Smirnov's: exceeded once in 1e6


def log_cosh(r):
    return -pt.log(pt.cosh(pt.sqrt(r) / 2))


def location_model(log_phi, observed, **kwargs):
    with pm.Model() as model:
        mu, s = pm.Normal("mu", shape=7), pm.HalfNormal("s", initval=0.8)
        pac.SuperGaussian("y", mu, log_phi=lambda r: log_phi(r, s), observed=observed, **kwargs)
    return model


@pytest.mark.parametrize("name", LOG_PHI)
def test_density_and_gradient_are_pymcs(name, y):
    mine = location_model(LOG_PHI[name], y)
    with pm.Model() as theirs:
        mu, s = pm.Normal("mu", shape=7), pm.HalfNormal("s")
        pm.CustomDist("y", mu, s, logp=lambda v, m, s: pm.logp(PYMC[name](m, s), v), observed=y)
    point = {"mu": np.linspace(-1, 2, 7), "s_log__": np.array(0.3)}
    expected = float(theirs.compile_logp()(point))
    assert mine.compile_logp()(point) == pytest.approx(expected, abs=1e-10)
    np.testing.assert_allclose(
        mine.compile_dlogp()(point), theirs.compile_dlogp()(point), atol=1e-9
    )


def test_given_constant_is_used(y):
    computed = location_model(LOG_PHI["Laplace"], y)
    with pm.Model() as given:
        mu, s = pm.Normal("mu", shape=7), pm.HalfNormal("s", initval=0.8)
        pac.SuperGaussian(
            "y", mu, log_phi=lambda r: -pt.sqrt(r) / s, log_c=-pt.log(2 * s), observed=y
        )
    point = computed.initial_point()
    difference = computed.compile_logp()(point) - given.compile_logp()(point)
    assert abs(difference) < 1e-10


@pytest.mark.parametrize("spelling", ["callables", "arrays"])
def test_general_form_is_the_logit(spelling, y):
    signs = np.where(y > 0, 1, -1)
    with pm.Model() as theirs:
        pm.Bernoulli("y", logit_p=pm.Normal("f", shape=7), observed=y > 0)
    with pm.Model() as mine:
        f = pm.Normal("f", shape=7)
        g = (lambda y: y / 2) if spelling == "callables" else signs / 2
        pac.SuperGaussian("y", f, log_phi=log_cosh, g=g, log_c=-np.log(2), observed=signs)
    point = {"f": np.linspace(-5, 6, 7)}
    assert mine.compile_logp()(point) == pytest.approx(float(theirs.compile_logp()(point)))


def test_general_form_is_the_support_vector_machine(y):
    signs = np.where(y > 0, 1, -1)
    with pm.Model() as theirs:
        pac.BayesianSVM("y", pm.Normal("f", shape=7), observed=signs)
    with pm.Model() as mine:
        pac.SuperGaussian(
            "y",
            pm.Normal("f", shape=7),
            log_phi=lambda r: -pt.sqrt(r),
            g=signs,
            alpha=1,
            beta=2 * signs,
            log_c=-1.0,
            observed=signs,
        )
    point = {"f": np.linspace(-5, 6, 7)}
    assert mine.compile_logp()(point) == pytest.approx(float(theirs.compile_logp()(point)))


def test_c_squared_that_can_be_negative_has_no_density():
    rv = pac.SuperGaussian.dist(
        0.3, log_phi=lambda r: -r, alpha=0.0, beta=1.0, gamma=1.0, log_c=0.0
    )
    assert np.isnan(pm.logp(rv, 1.0).eval())


# -- draws ----------------------------------------------------------------------


def distance(draws, cdf):
    return np.sqrt(draws.size) * stats.kstest(draws, cdf).statistic


SCIPY = {
    "Laplace": stats.laplace(1.0, 0.7).cdf,
    "Student-t": stats.t(4, 1.0, 0.7).cdf,
}


@pytest.mark.parametrize("name", SCIPY)
def test_draws_follow_the_density(name, rng):
    rv = pac.SuperGaussian.dist(1.0, log_phi=lambda r: LOG_PHI[name](r, 0.7), shape=100_000)
    draws = pm.draw(rv, random_seed=rng)
    assert distance(draws, SCIPY[name]) < LARGEST_DISTANCE
    assert distance(1.0 + 1.05 * (draws - 1.0), SCIPY[name]) > LARGEST_DISTANCE


def test_prior_and_posterior_predictive_follow_their_hyperparameters(y):
    model = location_model(LOG_PHI["Laplace"], y)
    with model:
        prior = pm.sample_prior_predictive(1000, random_seed=1)
    residuals = (prior["prior_predictive"]["y"].values - prior["prior"]["mu"].values) / prior[
        "prior"
    ]["s"].values[..., None]
    assert distance(residuals.ravel(), stats.laplace.cdf) < LARGEST_DISTANCE
    with model:
        again = pm.sample_posterior_predictive(prior["prior"], progressbar=False, random_seed=2)
    residuals = (again["posterior_predictive"]["y"].values - prior["prior"]["mu"].values) / prior[
        "prior"
    ]["s"].values[..., None]
    assert distance(residuals.ravel(), stats.laplace.cdf) < LARGEST_DISTANCE


def test_discrete_draws_have_the_probabilities():
    rv = pac.SuperGaussian.dist(
        0.8,
        log_phi=log_cosh,
        g=lambda y: y / 2,
        log_c=-np.log(2),
        support=(-1, 1),
        shape=100_000,
    )
    draws = pm.draw(rv, random_seed=3)
    assert draws.dtype == np.int64
    p = 1.0 / (1.0 + np.exp(-0.8))
    assert abs(np.mean(draws == 1) - p) < 5.0 * np.sqrt(p * (1 - p) / draws.size)


def test_general_form_without_support_cannot_be_drawn():
    rv = pac.SuperGaussian.dist(0.8, log_phi=log_cosh, g=0.5, log_c=-np.log(2))
    with pytest.raises(pac.AugmentationError, match="cannot be simulated: expected support="):
        pm.draw(rv)


# -- features of PyMC ------------------------------------------------------------------------------


def test_every_part_of_a_model_may_vary(y):
    with pm.Model(coords={"site": range(7)}) as model:
        data, s = pm.Data("data", y, dims="site"), pm.HalfNormal("s", shape=2)
        mu = pm.Normal("mu", dims="site")
        scale = s[np.array([0, 1, 0, 1, 0, 1, 0])]
        pac.SuperGaussian(
            "y", mu, log_phi=lambda r: -pt.sqrt(r) / scale, observed=data, dims="site"
        )
    point = {"mu": np.zeros(7), "s_log__": np.log([0.5, 2.0])}
    scales = np.array([0.5, 2.0, 0.5, 2.0, 0.5, 2.0, 0.5])
    logp = model.compile_logp(vars=model.observed_RVs)
    assert logp(point) == pytest.approx(stats.laplace.logpdf(y, 0, scales).sum())
    pm.set_data({"data": y + 1}, model=model)
    assert logp(point) == pytest.approx(stats.laplace.logpdf(y + 1, 0, scales).sum())
    with model:
        drawn = pm.sample_prior_predictive(3, random_seed=1)
    assert drawn["prior_predictive"]["y"].dims == ("chain", "draw", "site")


def test_missing_observations_are_imputed(y):
    masked = np.ma.masked_array(y, mask=[0, 1, 0, 0, 0, 0, 1])
    with pytest.warns(UserWarning, match="imputed"):
        model = location_model(LOG_PHI["Laplace"], masked)
    point = model.initial_point()
    assert point["y_unobserved"].shape == (2,)
    assert np.isfinite(model.compile_logp()(point))


def test_nuts_samples_it():
    with pm.Model():
        f = pm.Normal("f", 0, 10)
        s = pm.HalfNormal("s")
        y = stats.laplace(2.0, 0.5).rvs(60, random_state=1)
        pac.SuperGaussian("y", f, log_phi=lambda r: -pt.sqrt(r) / s, observed=y)
        step = pm.NUTS(compile_kwargs={"mode": "FAST_COMPILE"})
        idata = pm.sample(
            100,
            tune=150,
            chains=1,
            step=step,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    assert abs(float(idata["posterior"]["f"].mean()) - np.median(y)) < 0.2
    assert not idata["sample_stats"]["diverging"].values.any()


# -- refusals ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log_phi", "sentence"),
    [
        (lambda r: -(r**2), r"variable 'y': .*derivative of order 2.* at r = "),
        (lambda r: -pt.log1p(r**2), r"variable 'y': .*derivative of order 2.* at r = "),
        (lambda r: pt.sqrt(r), r"variable 'y': .* at r = "),
        (lambda r: 1.0 - pt.sqrt(r), r"variable 'y': expected log_phi\(0\) = 0.*found 1"),
        (lambda r: -0.1 * pt.log1p(r), r"variable 'y': .*integrable.*\|e\|\^-0.2"),
        (lambda r: pt.log(0.3 + 0.7 * pt.exp(-r)), r"variable 'y': .*integrable.*\|e\|\^-0"),
    ],
)
def test_a_phi_that_is_none_is_refused(log_phi, sentence):
    with pm.Model(), pytest.raises(pac.NotSuperGaussianError, match=sentence):
        pac.SuperGaussian("y", 0.0, log_phi=log_phi, observed=[1.0])


def test_refusal_names_the_hyperparameters():
    with pm.Model():
        power = pm.HalfNormal("power", initval=2.0)
        with pytest.raises(pac.NotSuperGaussianError, match="power = 2"):
            pac.SuperGaussian("y", 0.0, log_phi=lambda r: -(r**power), observed=[1.0])


def test_general_form_needs_its_constant():
    with pm.Model(), pytest.raises(pac.AugmentationError, match="variable 'y': expected log_c"):
        pac.SuperGaussian("y", 0.0, log_phi=log_cosh, g=0.5, observed=[1])


def test_log_phi_must_be_a_function():
    with pm.Model(), pytest.raises(pac.AugmentationError, match="to be a function of r"):
        pac.SuperGaussian("y", 0.0, log_phi=-1.0, observed=[1])
