"""Coefficients whose priors are not normal, against quadrature and PyMC's own density."""

from __future__ import annotations

import itertools
from functools import partial

import arviz as az
import mpmath
import numpy as np
import pymc as pm
import pytest
from pymc.distributions import transforms
from scipy.special import ndtri

import pymc_augconj as pac

N = 12
RNG = np.random.default_rng(4)
X = RNG.normal(size=(N, 2))
BINARY = (RNG.random(N) < 1.0 / (1.0 + np.exp(-X @ [2.0, -0.5]))).astype(int)
COUNTS = np.random.default_rng(5).poisson(np.exp(X @ [0.5, -0.5]))
QUIET = {"progressbar": False, "compute_convergence_checks": False, "cores": 1}
ENOUGH = 300


# Distribution, its parameters, and bounds of the support that quadrature needs.
PRIORS = {
    "Uniform": (pm.Uniform, {"lower": -0.4, "upper": 0.8}, (-0.4, 0.8)),
    "TruncatedNormal": (pm.TruncatedNormal, {"mu": 0.3, "sigma": 1.0, "lower": 0.0}, (0.0, 8.0)),
    "Normal within bounds": (
        pm.Normal,
        {"mu": 0.3, "transform": transforms.Interval(None, 0.8), "initval": [0.0, 0.0]},
        (-6.0, 0.8),
    ),
    "ordered Normal": (
        pm.Normal,
        {"mu": 0.3, "transform": transforms.ordered, "initval": [0.0, 0.5]},
        (-6.0, 6.0),
    ),
    "NormalMixture": (
        pm.NormalMixture,
        {"w": [0.5, 0.5], "mu": [0.0, 0.0], "sigma": [0.2, 1.0]},
        (-6.0, 8.0),
    ),
    "NormalMixture with two means": (
        pm.NormalMixture,
        {"w": [0.3, 0.7], "mu": [0.0, 0.5], "sigma": [0.1, 1.0]},
        (-6.0, 8.0),
    ),
    "AsymmetricLaplace": (
        pm.AsymmetricLaplace, {"b": 1.5, "kappa": 1.5, "mu": 0.1}, (-14.0, 6.0)
    ),
}  # fmt: skip


def model_of(name, *, counts=False):
    distribution, parameters, _ = PRIORS[name]
    with pm.Model() as model:
        eta = pm.math.dot(X, distribution("b", **parameters, shape=2))
        if counts:
            pm.Poisson("y", pm.math.exp(eta), observed=COUNTS)
        else:
            pm.Bernoulli("y", logit_p=eta, observed=BINARY)
    return model


def moments_by_quadrature(name, count=600, *, counts=False):
    """Mean and standard deviation of both coefficients by the midpoint rule."""
    distribution, parameters, (low, high) = PRIORS[name]
    parameters = {k: x for k, x in parameters.items() if k not in ("transform", "initval")}
    at = low + (high - low) * (np.arange(count) + 0.5) / count
    log_prior = pm.logp(distribution.dist(**parameters), at).eval()
    first, second = at[:, None, None] * X[:, 0], at[:, None] * X[:, 1]
    eta = first + second
    log_p = COUNTS * eta - np.exp(eta) if counts else BINARY * eta - np.logaddexp(0.0, eta)
    log_p = log_p.sum(axis=-1)
    log_p += np.add.outer(log_prior, log_prior)
    if name.startswith("ordered"):
        log_p[at[:, None] > at] = -np.inf
    weights = np.exp(log_p - log_p.max())
    weights /= weights.sum()
    marginals = weights.sum(axis=1), weights.sum(axis=0)
    mean = np.array([own @ at for own in marginals])
    return mean, np.sqrt([own @ (at - m) ** 2 for own, m in zip(marginals, mean, strict=True)])


def draws_of(model, count):
    with model:
        return pac.sample(count, tune=150, chains=1, random_seed=1, **QUIET).posterior


def z_scores(draws, mean):
    """Return deviations of means of draws, (1, draws, 2), in Monte Carlo standard errors."""
    sizes = np.array([float(az.ess(draws[..., k].values)) for k in range(2)])
    assert (sizes > ENOUGH).all()
    return (draws.mean(("chain", "draw")) - mean) / (draws.std(("chain", "draw")) / sizes**0.5)


@pytest.mark.parametrize(("mu", "bounds"), [(-9.0, (0, None)), (9.0, (None, 0)), (0.1, (-0.5, 1))])
def test_a_truncated_prior_of_learned_mean_has_its_density_in_a_tail(mu, bounds):
    lower, upper = bounds
    with pm.Model() as model:
        mean, sd = pm.Normal("mean", 0, 5), pm.HalfNormal("sd", 1)
        b = pm.TruncatedNormal("b", mean, sd, lower=lower, upper=upper, shape=2)
        pm.Bernoulli("y", logit_p=pm.math.dot(X, b), observed=BINARY)
    found = pac.recognize(model)
    (site,) = (site for site in found.model.sites if site.name == "b")
    point = {**found.start, "mean": np.array(mu), "sd_log__": np.array(np.log(0.7))}
    x = np.array([[0.1, 0.4]]) if upper != 0 else np.array([[-0.1, -0.4]])
    params, name = site.params(point), "lower" if lower is not None else "upper"
    # The predictor is x relative to a mean and a spread.
    scale = (mu - bounds[name == "upper"]) / (params["mu"] - params[name])
    ours = site.likelihood.log_density(site.y(point), (x - mu) / scale + params["mu"], params)
    with mpmath.workdps(80):
        low, high = -mpmath.inf if lower is None else lower, mpmath.inf if upper is None else upper
        mass = mpmath.log(mpmath.ncdf(high, mu, 0.7) - mpmath.ncdf(low, mu, 0.7))
        expected = [float(mpmath.log(mpmath.npdf(float(at), mu, 0.7)) - mass) for at in x[0]]
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("distribution", "scale", "shape"),
    [(pm.SkewNormal, "sigma", {"alpha": 3.0}), (pm.Logistic, "s", {})],
)
def test_held_sites_of_a_prior_follow_its_scale(distribution, scale, shape):
    """Sites of a fixed scale would keep the sampler from much smaller scales."""
    with pm.Model() as model:
        mu, s = pm.Normal("mu"), pm.HalfNormal("s")
        b = distribution("b", mu=mu, **{scale: s}, **shape, shape=2)
        pm.Bernoulli("y", logit_p=pm.math.dot(X, b), observed=BINARY)
    found = pac.recognize(model)
    (site,) = (site for site in found.model.sites if site.name == "b")
    point = {**found.start, "mu": np.array(0.3), "s_log__": np.array(np.log(0.01))}
    z = np.array([[0.4, -1.3]])
    ours = site.likelihood.log_density(site.y(point), z, site.params(point))
    theirs = distribution.dist(mu=0.3, **{scale: 0.01}, **shape)
    np.testing.assert_allclose(ours, pm.logp(theirs, 0.3 + 0.01 * z[0]).eval(), rtol=1e-9)


@pytest.mark.parametrize(
    "prior",
    [
        partial(pm.TruncatedNormal, mu=0.0, lower=0.0),
        partial(pm.ExGaussian, mu=0.0, nu=1.0),
        partial(pm.Normal, mu=0.0, transform=transforms.ordered, initval=np.arange(4.0)),
    ],
    ids=["TruncatedNormal", "ExGaussian", "ordered Normal"],
)
def test_without_data_a_scale_has_its_prior(prior):
    with pm.Model() as model:
        b = prior("b", sigma=pm.LogNormal("s", 0.0, 2.0), shape=4)
        pm.Normal("y", b, 1e6, observed=np.zeros(4))
    log_s = np.log(draws_of(model, 6000)["s"].values)
    for p, truth in itertools.product((0.05, 0.5, 0.95), (2.0, 3.0)):
        below = (log_s < truth * ndtri(p)).astype(float)
        size = float(az.ess(below))
        assert size > ENOUGH
        z = (below.mean() - p) / np.sqrt(p * (1.0 - p) / size)
        # A prior half as wide again is told apart, but not by its median.
        assert (abs(z) < 5.0) == (truth == 2.0 or p == 0.5)


@pytest.mark.parametrize("of_latents", [False, True])
def test_bounds_follow_a_scale_unless_the_mean_has_latents(of_latents):
    """About a mean m ~ N(0, 1), x has a spread of one as σ goes to zero."""
    with pm.Model() as model:
        mean = pm.Normal("m") if of_latents else 0.0
        within = {"transform": transforms.Interval(-1.0, None), "initval": [0.0, 0.0]}
        b = pm.Normal("b", mean, pm.HalfNormal("s"), shape=2, **within)
        pm.Bernoulli("y", logit_p=pm.math.dot(X, b), observed=BINARY)
    (site,) = (s for s in pac.recognize(model).model.sites if s.is_prior)
    assert ("s_log__" in site.params.names) == (not of_latents)


@pytest.mark.parametrize(
    ("name", "count", "counts"),
    [
        ("Uniform", 600, False),
        ("Normal within bounds", 1500, True),
        ("ordered Normal", 1500, False),
        ("AsymmetricLaplace", 1500, False),
        ("NormalMixture", 600, True),
        ("NormalMixture with two means", 1000, True),
    ],
)
def test_draws_agree_with_quadrature(name, count, counts):
    """Also where neither the likelihood has an augmentation nor a latent a normal prior."""
    mean, _ = moments_by_quadrature(name, counts=counts)
    draws = draws_of(model_of(name, counts=counts), count)
    assert np.abs(z_scores(draws["b"], mean)).max() < 5.0


@pytest.mark.parametrize("name", [name for name in PRIORS if "two means" not in name])
def test_expectation_propagation_is_close_to_quadrature(name):
    mean, std = moments_by_quadrature(name)
    fit = pac.fit("ep", model=model_of(name), progressbar=False)
    assert np.abs(fit.mean["b"] - mean).max() < 0.15 * std.max()
    np.testing.assert_allclose(fit.std["b"], std, rtol=0.15)


def test_draws_that_ignore_bounds_do_not():
    mean, _ = moments_by_quadrature("Uniform")
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.math.dot(X, pm.Flat("b", shape=2)), observed=BINARY)
    assert np.abs(z_scores(draws_of(model, 1500)["b"], mean)).max() > 5.0


def test_entries_and_densities_are_those_of_pymc():
    with pm.Model() as model:
        b = pm.Uniform("b", -1.0, 2.0, shape=2)
        c = pm.StudentT("c", nu=4, mu=pm.Normal("m"), sigma=pm.HalfNormal("s"), shape=3)
        d = pm.Normal(
            "d", c[:2], 2.0, transform=transforms.Ordered(ascending=False), initval=[1, 0]
        )
        eta = pm.math.dot(X, b) + c[np.arange(N) % 3] + d[np.arange(N) % 2]
        pm.Bernoulli("y", logit_p=eta, observed=BINARY)
        step = pac.AugmentedGibbs()
        found = pm.sample(20, tune=20, step=step, chains=1, random_seed=2, **QUIET)
    assert [block.name for block in step.recognition.model.blocks] == ["b", "c", "d", "m"]
    last = {name: found.posterior[name].values[0, -1] for name in ("b", "c", "d", "m", "s")}
    point = {"c": last["c"], "m": last["m"], "s_log__": np.log(last["s"])}
    point["b_interval__"] = np.log(last["b"] + 1.0) - np.log(2.0 - last["b"])
    point["d_ordered__"] = np.array([last["d"][1], np.log(last["d"][0] - last["d"][1])])
    lp = found.sample_stats["lp"].values[0, -1]
    np.testing.assert_allclose(lp, model.compile_logp()(point), rtol=1e-8)


def test_ordered_means_of_a_mixture_agree_with_quadrature():
    y, w, sd = X[:, 0] + np.where(BINARY, 1.5, -0.5), np.array([0.4, 0.6]), 0.7
    with pm.Model() as model:
        given = {"transform": transforms.ordered, "initval": [0.0, 1.0], "shape": 2}
        pm.NormalMixture("y", w, pm.Normal("b", 0.0, 2.0, **given), sd, observed=y)
    at = np.linspace(-9.0, 9.0, 600)
    parts = np.log(w)[:, None, None] - 0.5 * ((y - at[:, None]) / sd) ** 2
    log_p = np.logaddexp(parts[0][:, None], parts[1]).sum(axis=-1)
    log_p -= 0.5 * np.add.outer(at**2, at**2) / 4.0
    weights = np.exp(log_p - log_p.max())
    # Without the order the means would be others.
    means = [own.sum(axis=1) @ at / own.sum() for own in (np.triu(weights), weights)]
    last = np.triu(weights).sum(axis=0) @ at / np.triu(weights).sum()
    draws = draws_of(model, 3000)["b"]
    assert np.abs(z_scores(draws, np.array([means[0], last]))).max() < 5.0
    assert np.abs(z_scores(draws, np.array([means[1], last]))).max() > 5.0


def test_expectation_propagation_takes_one_predictor_for_each_observation():
    with pytest.raises(pac.AugmentationError, match=r"\['b'\]: expected .* of one predictor"):
        pac.fit("ep", model=model_of("NormalMixture with two means"), progressbar=False)


def test_variational_engines_refuse_bounds():
    with pytest.raises(pac.AugmentationError, match="a density that is positive everywhere"):
        pac.fit("vgp", model=model_of("Uniform"), progressbar=False)


def test_a_single_number_beside_latents_and_scales_stay_hyperparameters():
    with pm.Model() as model:
        a, s = pm.StudentT("a", nu=3, sigma=2), pm.Uniform("s", 0, 3)
        group = pm.Normal("group", 0, 1, shape=3)
        pm.Normal("y", a + group[np.arange(N) % 3], s, observed=X[:, 0])
    found = pac.recognize(model).model
    assert [block.name for block in found.blocks] == ["group"]
    assert {h.name for h in found.hyperparameters} == {"a", "s"}


def test_bounds_that_move_are_left_alone():
    with pm.Model() as model:
        high = pm.HalfNormal("high")
        b = pm.Uniform("b", 0.0, high, shape=2)
        pm.Bernoulli("y", logit_p=pm.Normal("a") + pm.math.dot(X, b), observed=BINARY)
    assert [block.name for block in pac.recognize(model).model.blocks] == ["a"]


def test_bounded_levels_of_classes_are_hyperparameters():
    """Data do not determine what is common to all classes, and no Gaussian site knows bounds."""
    with pm.Model() as model:
        c = pm.Uniform("c", -1.0, 1.0, shape=3)
        logits = pm.math.dot(X, pm.Normal("W", 0, 1, shape=(2, 3))) + c
        pm.Categorical("y", logit_p=logits, observed=np.arange(N) % 3)
    assert [block.name for block in pac.recognize(model).model.blocks] == ["W"]


def test_the_table_names_priors():
    text = str(pac.recognize(model_of("Uniform")))
    assert "prior of b" in text.replace("'", "")


def test_coefficients_do_not_start_where_their_scale_has_a_spike():
    # At zero the density of many of them grows without bound as their scale falls.
    rng = np.random.default_rng(2)
    design = rng.standard_normal((60, 30))
    with pm.Model() as model:
        b = pm.Laplace("b", 0.0, pm.HalfCauchy("s", 1.0), shape=30)
        y = design[:, 0] + rng.standard_normal(60)
        pm.Normal("y", pm.math.dot(design, b), pm.HalfNormal("sigma", 2.0), observed=y)
    found = pac.sample(50, tune=50, model=model, chains=2, random_seed=1, quiet=True, **QUIET)
    assert found.posterior["s"].values.min() > 1e-3
