"""Mixtures that are sampled by allocations, beside PyMC's density and quadrature."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import integrate, stats
from scipy.special import expit

import pymc_augconj as pac
from tests.recognition.conftest import assert_log_density_is_that_of_pymc

RNG = np.random.default_rng(20_261_125)
N = 12
T = np.linspace(-1.0, 1.0, N)
Y = np.where(RNG.random(N) < 0.5, 1.0 + T, -T) + 0.3 * RNG.normal(size=N)
COUNTS = RNG.poisson(3.0, size=N)


def coefficients(size=2, name="b"):
    return pm.Normal(name, 0.0, 2.0, shape=size)


def weights(size=2):
    return pm.Dirichlet("w", np.ones(size))


def scale(name="s", **kwargs):
    return pm.HalfNormal(name, 1.0, **kwargs)


def regressions():
    mu = coefficients() + T[:, None] * coefficients(name="c")
    pm.NormalMixture("y", weights(), mu=mu, sigma=scale(shape=2), observed=Y)


def outliers():
    f = coefficients(())
    kinds = [pm.Normal.dist(f, scale()), pm.StudentT.dist(nu=3, mu=f, sigma=4.0)]
    pm.Mixture("y", [0.9, 0.1], kinds, observed=Y)


def fixed_outliers():
    kinds = [pm.Normal.dist(coefficients(()) * T, scale()), pm.Laplace.dist(0.5, scale("b2"))]
    pm.Mixture("y", weights(), kinds, observed=Y)


def weights_of_each():
    w = pt.stack([expit(T), 1 - expit(T)], axis=-1)
    pm.NormalMixture("y", w, mu=coefficients(), sigma=0.5, observed=Y)


def counts():
    f, alpha = coefficients(), pm.Gamma("alpha", 2, 1)
    kinds = [pm.NegativeBinomial.dist(mu=pm.math.exp(f[k] + T), alpha=alpha) for k in range(2)]
    pm.Mixture("y", weights(), kinds, observed=COUNTS)


def matrix():
    mu = coefficients((N, 1)) + np.array([0.0, 1.0])
    kinds = [pm.Normal.dist(mu, 1.0), pm.Logistic.dist(mu, 2.0)]
    pm.Mixture("y", [0.3, 0.7], kinds, observed=np.stack([Y, Y + 1], axis=1))


def spike_and_slab():
    w = pm.Beta("w", 1, 1)
    b = pm.NormalMixture("b", pt.stack([w, 1 - w]), mu=0, sigma=[0.05, scale()], shape=2)
    pm.Normal("y", b[0] + b[1] * T, 1.0, observed=Y)


def prior_of_two_modes():
    kinds = [pm.Normal.dist(coefficients((), "m"), 0.5), pm.StudentT.dist(nu=4, mu=2.0, sigma=1)]
    pm.Normal("y", pm.Mixture("b", weights(), kinds, shape=N), 1.0, observed=Y)


# With the number of predictors of the mixture.
MODELS = {
    regressions: 2,
    outliers: 1,
    fixed_outliers: 1,
    weights_of_each: 2,
    counts: 2,
    matrix: 1,
    spike_and_slab: 1,
    prior_of_two_modes: 2,
}


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_log_density_is_that_of_pymc(build):
    with pm.Model() as model:
        build()
    step = pac.AugmentedGibbs(model=model, sites="augmented")
    (site,) = (s for s in step.recognition.model.sites if s.likelihood.name.startswith("mixture"))
    assert site.likelihood.n_predictors == MODELS[build]
    assert_log_density_is_that_of_pymc(step, model)


def test_weights_that_latents_move_are_read_by_their_density():
    with pm.Model() as model:
        p = pm.math.sigmoid(coefficients(()) * T)
        w = pt.stack([p, 1.0 - p], axis=-1)
        pm.NormalMixture("y", w, mu=[0.0, 1.0], sigma=1.0, observed=Y)
    (site,) = pac.recognize(model).model.sites
    assert not site.likelihood.can_augment


def test_allocations_are_not_written_into_a_model():
    with pm.Model() as model:
        outliers()
    with pytest.raises(pac.AugmentationError, match=r"found a mixture of Normal and Student-t"):
        pac.augment(model)


@pytest.mark.parametrize("method", ["cavi", "vgp", "ep"])
def test_fits_of_one_predictor(method):
    """A location with two kinds of noise, beside quadrature."""
    with pm.Model() as model:
        outliers_given_scales()
    q = pac.fit(method, model=model, progressbar=False)
    log_evidence, mean, std = posterior(0.1)
    # Mean-field allocations have a bound below that of a Gaussian alone, EP neither.
    assert q.log_evidence < log_evidence + 1e-6 or method == "ep"
    np.testing.assert_allclose(q.log_evidence, log_evidence, atol=0.05)
    np.testing.assert_allclose(q.mean["b"].item(), mean, atol=0.1 * std)


def outliers_given_scales():
    f = coefficients(())
    kinds = [pm.Normal.dist(f, 0.8), pm.StudentT.dist(nu=3, mu=f, sigma=2.0)]
    pm.Mixture("y", [0.9, 0.1], kinds, observed=Y)


def posterior(weight):
    """Return log evidence, mean and standard deviation of b."""
    grid = np.linspace(-4.0, 4.0, 4001)
    b = grid[:, None]
    density = (1 - weight) * stats.norm.pdf(Y, b, 0.8) + weight * stats.t.pdf((Y - b) / 2.0, 3) / 2
    log_p = np.log(density).sum(axis=1) + stats.norm.logpdf(grid, 0, 2)
    p = np.exp(log_p - log_p.max())
    total = integrate.simpson(p, grid)
    mean = integrate.simpson(grid * p, grid) / total
    var = integrate.simpson((grid - mean) ** 2 * p, grid) / total
    return np.log(total) + log_p.max(), mean, np.sqrt(var)


def test_draws_are_those_of_quadrature():
    with pm.Model() as model:
        outliers_given_scales()
    idata = pac.sample(
        model=model, draws=3000, tune=50, chains=1, cores=1, random_seed=1, progressbar=False,
        sites="augmented", compute_convergence_checks=False,
    )  # fmt: skip
    b, n = idata.posterior["b"].to_numpy().ravel(), pm.stats.ess(idata)["b"].item()
    assert n > 500
    _, mean, std = posterior(0.1)
    assert abs(b.mean() - mean) < 5.0 * std / np.sqrt(n)
    assert abs(b.std() / std - 1.0) < 5.0 / np.sqrt(2.0 * n)
    # Negative control: another weight has another standard deviation.
    assert abs(b.std() / posterior(0.9)[2] - 1.0) > 5.0 / np.sqrt(2.0 * n)
