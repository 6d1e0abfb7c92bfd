"""Models whose likelihood, or part of it, is a ``pm.Potential``: draws, fits, predictions."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.distributions.dist_math import normal_lccdf
from scipy.special import log_ndtr

import pymc_augconj as pac
from pymc_augconj.python_mode import python_mode

QUIET = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 5, "cores": 1}
N = 8
X = np.linspace(0.0, 1.0, N)[:, None]
TIMES = np.array([0.4, 1.3, 0.9, 1.3, -0.3, 1.3, 1.1, 1.3])
LOST = TIMES == 1.3
CLASSES = np.array([1, 0, 1, 1, 1, 0, 1, 1])
WEIGHTS = np.array([0.5, 2.0, 1.0, 3.0, 0.2, 1.5, 1.0, 0.1])


def censored(spelling="potential"):
    """A location and a scale, right-censored."""
    with pm.Model() as model:
        mu, s = pm.Normal("mu", 0, 2), pm.HalfNormal("s", 1)
        if spelling == "potential":
            pm.Normal("y", mu, s, observed=TIMES[~LOST])
            pm.Potential("c", normal_lccdf(mu, s, TIMES[LOST]))
        else:
            eta = mu + np.zeros(N)
            upper = np.where(LOST, TIMES, np.inf)
            base = pm.Normal.dist(eta, s)
            pm.Censored("y", base, lower=None, upper=upper, observed=TIMES)
    return model


def weighted():
    """No variable is observed at all."""
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1.5, shape=2)
        eta = b[0] + b[1] * (X[:, 0] - 0.5)
        pm.Potential("w", (WEIGHTS * pm.logp(pm.Bernoulli.dist(logit_p=eta), CLASSES)).sum())
    return model


def process(constrained=True):
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.InverseGamma("ls", 5, 3)))
        f = gp.prior("f", X=X)
        pm.Normal("y", f[~LOST], 0.5, observed=TIMES[~LOST])
        pm.Potential("c", normal_lccdf(f[LOST], 0.5, TIMES[LOST]))
        if constrained:
            pm.Potential("sum", -0.5 * (pt.sum(f) / 4.0) ** 2)
    return model, gp


# -- exactness -------------------------------------------------------------------------------------


def moments_of(log_density, *axes):
    """Return means and second moments on a grid, beyond which there is nothing."""
    grid = np.meshgrid(*axes, indexing="ij")
    weight = log_density(*grid)
    weight = np.exp(weight - weight.max())
    assert weight[0].max() < 1e-9
    assert weight[-1].max() < 1e-9
    weight /= weight.sum()
    return np.array([[np.sum(weight * g), np.sum(weight * g**2)] for g in grid])


def censored_moments(lost=1.0):
    def log_density(mu, s):
        seen = sum(-0.5 * ((y - mu) / s) ** 2 - np.log(s) for y in TIMES[~LOST])
        above = lost * sum(log_ndtr((mu - y) / s) for y in TIMES[LOST])
        return seen + above - mu**2 / 8.0 - 0.5 * s**2

    return moments_of(log_density, np.linspace(-9, 11, 401), np.linspace(0.01, 6.0, 400))


def weighted_moments(weights=WEIGHTS):
    def log_density(a, b):
        total = -(a**2 + b**2) / 4.5
        for x, y, w in zip(X[:, 0] - 0.5, CLASSES, weights, strict=True):
            eta = a + b * x
            total = total + w * (y * eta - np.logaddexp(0.0, eta))
        return total

    return moments_of(log_density, np.linspace(-10, 10, 301), np.linspace(-10, 10, 301))


def draws_of(model, names, steps=1200, tune=60):
    step = pac.AugmentedGibbs(model=model)
    step.setup_chain(np.random.default_rng(2), tune, steps)
    point, found = step.recognition.start, []
    for i in range(tune + steps):
        if i == tune:
            step.stop_tuning()
        point, _ = step.step(point)
        if i >= tune:
            found.append(np.concatenate([np.ravel(point[name]) for name in names]))
    return np.array(found)


def agree(draws, expected):
    for column, (mean, square) in zip(draws.T, expected, strict=True):
        for values, target in ((column, mean), (column**2, square)):
            assert az.ess(values[None]) > 300
            if abs(values.mean() - target) > 5.0 * float(az.mcse(values[None])):
                return False
    return True


def test_censored_draws_have_the_moments_of_the_posterior():
    draws = draws_of(censored(), ["mu", "s_log__"])
    draws[:, 1] = np.exp(draws[:, 1])
    assert agree(draws, censored_moments())
    # As if the censored times were left out.
    assert not agree(draws, censored_moments(lost=0.0))


def test_weighted_draws_have_the_moments_of_the_posterior():
    draws = draws_of(weighted(), ["b"])
    assert agree(draws, weighted_moments())
    assert not agree(draws, weighted_moments(np.ones(N)))


def test_a_gaussian_potential_is_the_collapsed_move():
    """Spelt as a potential, its residual does not depend on the latents, whatever the scale."""
    for distribution, exact in ((pm.Normal, True), (pm.Laplace, False)):
        with pm.Model() as model:
            mu, s = pm.Normal("mu", 0, 2), pm.HalfNormal("s", 1)
            pm.Potential("c", pm.logp(distribution.dist(mu, s), TIMES).sum())
        step = pac.AugmentedGibbs(model=model)
        step.setup_chain(np.random.default_rng(0), 0, 20)
        point, trials = step.recognition.start, []
        for _ in range(20):
            point, (stats,) = step.step(point)
            trials.append(stats["elliptical_trials"])
        assert (max(trials) == 1.0) is exact


# -- pm.sample, fits and what is made of them ------------------------------------------------------


def test_the_same_as_pymc_with_the_step():
    model = censored()
    ours = pac.sample(5, tune=3, chains=2, model=model, **QUIET)
    theirs = pm.sample(
        5, tune=3, chains=2, model=model, step=pac.AugmentedGibbs(model=model), **QUIET
    )
    for name in ("mu", "s"):
        np.testing.assert_allclose(ours.posterior[name], theirs.posterior[name], rtol=1e-12)
    assert set(ours.observed_data) == {"y"}


def test_a_fit_is_that_of_the_censored_model():
    """One factorises the predictor (y − μ)/σ, the other μ: the same approximation."""
    ours, theirs = (
        pac.fit("vgp", model=censored(spelling), progressbar=False)
        for spelling in ("potential", "censored")
    )
    assert ours.log_evidence == pytest.approx(theirs.log_evidence, abs=1e-4)
    assert float(ours.mean["mu"]) == pytest.approx(float(theirs.mean["mu"]), abs=1e-3)
    assert float(ours.theta["s"]) == pytest.approx(float(theirs.theta["s"]), abs=1e-3)


@pytest.mark.parametrize("method", ["vgp", "ep"])
def test_predictions_and_tables_of_a_fit(method, tmp_path):
    model, gp = process()
    fit = pac.fit(method, model=model, progressbar=False)
    assert set(fit.observed) == {"y"}
    tree = fit.to_datatree()
    assert set(tree["log_likelihood"].data_vars) == {"y"}
    whole = model.compile_logp(mode=python_mode())
    point = {**model.initial_point(), **fit.point}
    # log p is the whole density given θ: constraint and censoring are in it.
    drawn = tree["posterior"]["f_rotated_"].values[0, :3]
    expected = [whole({**point, "f_rotated_": v}) + 0.5 * v @ v for v in drawn]
    found = tree["sample_stats"]["log_p"].values[0, :3]
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-6, atol=1e-6)
    table = pac.compare({"fit": fit}, loo=False)
    assert "wall_time" in table
    fit.save(tmp_path / "fit")
    assert set(pac.Approximation.load(tmp_path / "fit").observed) == {"y"}
    predicted = pac.predict(fit, gp, X[:3], kind="y", model=model).predictions
    assert predicted["y_mean"].shape == (3,)
    message = r"potential 'c'.*no observations to predict; use kind='f'"
    with pytest.raises(pac.AugmentationError, match=message):
        pac.predict(fit, gp, X[:3], kind="y", observed="c", model=model)


def test_nothing_is_observed():
    fit = pac.fit("vgp", model=weighted(), progressbar=False)
    assert fit.observed == {}
    assert "log_likelihood" not in fit.to_datatree().children
    assert "elpd_loo" not in pac.compare({"fit": fit})


@pytest.mark.parametrize(
    "use",
    [
        lambda model: pac.fit("cavi", model=model, progressbar=False),
        lambda model: pac.sample(model=model, sites="augmented", **QUIET),
        lambda model: pac.augment(model),
    ],
)
def test_what_needs_an_augmentation_is_refused(use):
    message = r"potential 'w': no augmentation is known.*pac\.sample .*\"vgp\""
    with pytest.raises(pac.UnknownLikelihoodError, match=message):
        use(weighted())


def test_a_fit_through_inducing_points():
    model, gp = process(constrained=False)
    sparse = pac.fit("vgp", model=model, gp=gp, inducing=X, progressbar=False, random_seed=1)
    dense = pac.fit("vgp", model=model, progressbar=False)
    # Inducing points at all inputs.
    np.testing.assert_allclose(sparse.mean["f"], dense.mean["f"], atol=1e-2)


@pytest.mark.parametrize("width", [0.01, 1e-3])
def test_a_constraint_is_no_second_mode(width, recwarn):
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=a[np.arange(N) % 3], observed=CLASSES)
        pm.Potential("c", -0.5 * (pt.sum(a) / width) ** 2)
    fit = pac.fit("vgp", model=model, progressbar=False)
    assert not [w for w in recwarn if "bimodal" in str(w.message)]
    assert abs(float(fit.mean["a"].sum())) < width
