"""Flat coefficients against closed forms, quadrature, 50 digits and ever wider normal ones."""

from __future__ import annotations

import arviz as az
import mpmath
import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.integrate import quad

import pymc_augconj as pac

N = 40
RNG = np.random.default_rng(1)
X = np.sort(RNG.uniform(0.0, 5.0, N))
DESIGN = np.column_stack([np.ones(N), X])
GROUP = np.arange(N) % 5
Y = 1.0 + 0.5 * X + RNG.normal(size=N)
BINARY = (RNG.random(N) < 0.3).astype(int)
COUNTS = RNG.poisson(np.exp(1.0 + np.sin(X)))
WHERE = np.array([[0.3], [2.2], [6.0]])
# Effective draws without which a comparison says nothing.
ENOUGH = 300


def draws_of(model, count=1000, **options):
    with model:
        found = pac.sample(
            count, tune=200, chains=2, cores=1, random_seed=1, progressbar=False,
            compute_convergence_checks=False, **options,
        )  # fmt: skip
    return found.posterior


def assert_mean(draws, expected):
    """Compare the mean of draws, (chain, draw), within five Monte Carlo standard errors."""
    size = float(az.ess(draws, method="mean"))
    assert size > ENOUGH
    assert abs(draws.mean() - expected) < 5.0 * draws.std() / np.sqrt(size)


def linear_regression(sigma):
    with pm.Model() as model:
        pm.Normal("y", pm.Flat("a") + pm.Flat("b") * X, sigma(), observed=Y)
    return model


@pytest.mark.parametrize("method", ["cavi", "vgp", "ep"])
def test_fit_of_a_linear_regression(method):
    with linear_regression(lambda: 0.8):
        fit = pac.fit(method, progressbar=False)
    cov = 0.64 * np.linalg.inv(DESIGN.T @ DESIGN)
    mean = cov @ DESIGN.T @ Y / 0.64
    for name, expected, var in zip("ab", mean, np.diag(cov), strict=True):
        np.testing.assert_allclose(fit.mean[name], expected, rtol=1e-10)
        np.testing.assert_allclose(fit.std[name], np.sqrt(var), rtol=1e-10)
    # p(y | b) has its peak at the mean, and there is no prior.
    evidence = (
        stats.norm.logpdf(Y, DESIGN @ mean, 0.8).sum()
        + 0.5 * np.linalg.slogdet(2.0 * np.pi * cov)[1]
    )
    np.testing.assert_allclose(fit.log_evidence, evidence, rtol=1e-12)


def test_draws_of_a_linear_regression_with_a_flat_scale():
    """p(b | y) is Student-t; the scale, pm.HalfFlat, stays a hyperparameter."""
    model = linear_regression(lambda: pm.HalfFlat("sigma", initval=1.0))
    reading = pac.recognize(model).model
    assert [block.name for block in reading.blocks] == ["a", "b"]
    assert [h.name for h in reading.hyperparameters] == ["sigma"]
    posterior = draws_of(model)
    mean, (squares,) = np.linalg.lstsq(DESIGN, Y)[:2]
    # p(sigma | y) ∝ sigma^−(N − 2) exp(−squares/2 sigma²)
    degrees = N - 3
    scale = np.sqrt(squares / degrees * np.diag(np.linalg.inv(DESIGN.T @ DESIGN)))
    for name, own, expected in zip("ab", scale, mean, strict=True):
        z = (posterior[name].values - expected) / own
        assert_mean(z, 0.0)
        assert_mean(z**2, degrees / (degrees - 2.0))
    # The negative control: with standard normal priors.
    shrunk = np.linalg.solve(DESIGN.T @ DESIGN + np.eye(2), DESIGN.T @ Y)
    with pytest.raises(AssertionError):
        assert_mean(z, (shrunk[1] - mean[1]) / scale[1])


@pytest.mark.parametrize("sites", ["augmented", "held"])
def test_draws_of_a_logistic_intercept(sites):
    ones = int(BINARY.sum())
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.Flat("a"), observed=BINARY)
    posterior = draws_of(model, sites=sites)
    # Of the logistic transform of a Beta(ones, zeros) variable.
    mean, var = (
        f(ones) + sign * f(N - ones)
        for f, sign in ((lambda k: float(mpmath.digamma(k)), -1.0),
                        (lambda k: float(mpmath.polygamma(1, k)), 1.0))
    )  # fmt: skip
    assert_mean(posterior["a"].values, mean)
    assert_mean((posterior["a"].values - mean) ** 2, var)


def test_the_mean_of_normal_effects():
    """Draws beside a quadrature over the effects' scale, with all else integrated out."""
    with pm.Model() as model:
        spread = pm.HalfNormal("spread", 1.0)
        effects = pm.Normal("effects", pm.Flat("m"), spread, shape=5)
        pm.Normal("y", effects[GROUP], 1.0, observed=Y)
    posterior = draws_of(model)
    means = np.array([Y[g == GROUP].mean() for g in range(5)])

    def density(t, power):
        var = t**2 + 5.0 / N
        centre = means.mean()
        log = stats.halfnorm.logpdf(t) - 2.0 * np.log(var) - ((means - centre) ** 2).sum() / 2 / var
        return np.exp(log) * (centre**2 + var / 5.0 if power == 2 else centre**power)

    moments = [quad(density, 0.0, 10.0, args=(power,))[0] for power in (0, 1, 2)]
    assert_mean(posterior["m"].values, moments[1] / moments[0])
    assert_mean(posterior["m"].values ** 2, moments[2] / moments[0])


def with_process(prior):
    with pm.Model() as model:
        a = prior("a")
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        f = gp.prior("f", X=X[:, None])
        pm.Normal("y", a + f, 0.5, observed=Y)
    return model, gp


def wide(std):
    return lambda name: pm.Normal(name, 0.0, std)


def matern(left, right):
    root = [[mpmath.sqrt(5) * abs(mpmath.mpf(a) - mpmath.mpf(b)) for b in right] for a in left]
    return mpmath.matrix([[(1 + r + r**2 / 3) * mpmath.exp(-r) for r in row] for row in root])


def exact_moments(precision):
    """Return mean and variance of the coefficient and of f + coefficient at new inputs."""
    with mpmath.workdps(50):
        new = WHERE[:, 0].tolist()
        # The process has PyMC's jitter, as its values and as a covariance of new with old ones.
        C = matern(X.tolist(), X.tolist())
        C += (mpmath.mpf(0.25) + mpmath.mpf(1e-6)) * mpmath.eye(N)
        H, y = mpmath.matrix([1] * N), mpmath.matrix(Y.tolist())
        inverse = C**-1
        A = precision + (H.T * inverse * H)[0]
        mean = (H.T * inverse * y)[0] / A
        cross = matern(new, X.tolist())
        weights = cross * inverse
        at = weights * (y - H * mean)
        slope = mpmath.matrix([1] * len(new)) - weights * H
        sums = [at[i] + mean for i in range(len(new))]
        var = [1 - (weights[i, :] * cross[i, :].T)[0] + slope[i] ** 2 / A for i in range(len(new))]
        return (float(mean), float(1 / A)), np.array(sums, float), np.array(var, float)


@pytest.mark.parametrize("std", [1e12, np.inf])
@pytest.mark.parametrize("method", ["vgp", "ep"])
def test_predictions_beside_a_process(method, std):
    model, gp = with_process(pm.Flat if std == np.inf else wide(std))
    (mean, var), at, var_at = exact_moments(
        mpmath.mpf(0) if std == np.inf else mpmath.mpf(std) ** -2
    )
    with model:
        fit = pac.fit(method, progressbar=False)
        found = pac.predict(fit, gp, WHERE, kind="y")["predictions"]
    close = {"rtol": 1e-10, "atol": 0.0}
    np.testing.assert_allclose(fit.mean["a"], mean, **close)
    np.testing.assert_allclose(fit.std["a"] ** 2, var, **close)
    np.testing.assert_allclose(found["y_mean"], at, **close)
    np.testing.assert_allclose(found["y_std"] ** 2, var_at + 0.25, **close)


def walk():
    return pm.GaussianRandomWalk("w", 0.0, 0.3, init_dist=pm.Normal.dist(0, 0.1), shape=N)


def map_of_groups():
    W = np.eye(5, k=1) + np.eye(5, k=-1)
    return pm.CAR("m", np.zeros(5), W, alpha=0.7, tau=2.0)[GROUP]


def effects():
    return pm.Normal("u", 0.0, 0.5, shape=5)[GROUP]


def hilbert_space_process():
    gp = pm.gp.HSGP(m=[6], c=1.5, cov_func=pm.gp.cov.Matern52(1, ls=1.0))
    return gp.prior("f", X=X[:, None])


LATENTS = (walk, map_of_groups, effects, hilbert_space_process)


def counts_model(prior, latents):
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(prior("a") + latents()), observed=COUNTS)
    return model


def assert_limit(flat, normal):
    # Both ends are within the tolerance of the fit, squared, of one bound.
    np.testing.assert_allclose(flat.mean["a"], normal.mean["a"], atol=1e-5)
    np.testing.assert_allclose(flat.std["a"], normal.std["a"], atol=1e-5)
    peak = stats.norm.logpdf(0.0, scale=1e8)
    np.testing.assert_allclose(flat.log_evidence + peak, normal.log_evidence, atol=1e-6)


@pytest.mark.parametrize("latents", LATENTS)
def test_a_flat_coefficient_is_the_limit_of_wide_ones(latents):
    fits = []
    for prior in (pm.Flat, wide(1e8)):
        with counts_model(prior, latents):
            fits.append(pac.fit("vgp", progressbar=False))
    assert_limit(*fits)


@pytest.mark.parametrize("method", ["vgp", "svi"])
def test_a_flat_coefficient_beside_inducing_points(method):
    fits = []
    for prior in (pm.Flat, wide(1e8)):
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        with counts_model(prior, lambda gp=gp: gp.prior("f", X=X[:, None])):
            # The rate of one is of a step onto the target sites.
            options = {"rate": 1.0} if method == "svi" else {}
            fits.append(
                pac.fit(method, gp=gp, inducing=WHERE, progressbar=False, random_seed=1, **options)
            )
    assert_limit(*fits)


def test_a_saved_fit_stays_flat(tmp_path):
    model, _ = with_process(pm.Flat)
    with model:
        fit = pac.fit("vgp", progressbar=False)
    fit.save(tmp_path / "fit")
    known = type(fit).load(tmp_path / "fit")
    assert known._latents.blocks[1].block.is_flat
    assert known.log_evidence == fit.log_evidence
    np.testing.assert_array_equal(known.std["a"], fit.std["a"])


def test_chains_start_at_the_initial_value():
    """A flat latent is not drawn from its prior."""
    model, _ = with_process(pm.Flat)
    step = pac.AugmentedGibbs(model=model)
    step.setup_chain(np.random.default_rng(1), 0, 1)
    point = model.initial_point()
    assert step._disperse(step.make_sampler(point), point)["a"] == point["a"] == 0.0
