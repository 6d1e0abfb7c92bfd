"""Observations with one predictor as one observation."""

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.engines.gibbs import pooled
from pymc_augconj.engines.gibbs.pooled import pool

QUIET = {"progressbar": False, "compute_convergence_checks": False, "cores": 1}
STANDARD_ERRORS, CHAINS, FEWER = 5.0, 30, 15
GROUP = np.array([0, 1, 2, 0, 1, 2, 0, 1, 0, 2, 2, 1])
TRIALS = np.array([3, 1, 0, 5, 2, 2, 1, 4, 2, 3, 1, 1])
SHIFT = np.array([0.3, -0.2, 0.1])[GROUP]


def data(name):
    return pm.Data(f"{name} data", np.zeros(GROUP.size, dtype="int64"))


def effects():
    sd = pm.HalfNormal("sd", 1)
    return pm.Normal("i", 0.3, 1) + sd * pm.Normal("u", 0, 1, shape=3)


def bernoulli_and_binomial():
    """Two observed variables of the same predictors."""
    u = effects()
    pm.Bernoulli("y", logit_p=u[GROUP] + SHIFT, observed=data("y"))
    pm.Binomial("y2", n=TRIALS, logit_p=u[GROUP] + SHIFT, observed=data("y2"))


X = np.array([[0.5, -1.0], [1.0, 0.3], [-0.2, 1.1], [0.4, 0.0]] * 3)


def normal(kind=pm.Normal, w=1.0):
    """Groups with correlated slopes, effects of two of them in one row, and covariates."""
    chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(0.6, shape=2))
    b = pm.Normal("b", 0, 1, shape=(3, 2)) @ chol.T
    eta = effects()[GROUP] + b[GROUP, 0] + b[GROUP, 1] * X[:, 0] + SHIFT
    eta = eta + X @ pm.Normal("w", 0, pm.HalfNormal("sd w", 0.5), shape=2)
    sigma = pm.Gamma("noise", 6, 6) * w
    kind("y", eta, sigma, observed=pm.Data("y data", np.ones(GROUP.size)))


def log_normal():
    normal(pm.LogNormal)


W = np.geomspace(0.5, 3.0, GROUP.size)


def weighted_log_normal():
    normal(pm.LogNormal, W)


def student_t():
    pm.StudentT("y", nu=4, mu=effects()[GROUP], sigma=1, observed=np.zeros(GROUP.size))


def other_offsets():
    eta = effects()[GROUP] + np.linspace(0, 1, GROUP.size)
    pm.Bernoulli("y", logit_p=eta, observed=data("y"))


def few_in_a_cell():
    u = pm.Normal("u", 0, pm.HalfNormal("sd", 1), shape=11)
    pm.Bernoulli("y", logit_p=u[np.arange(12) % 11], observed=data("y"))


def learned_offset():
    eta = effects()[GROUP] + pm.Gamma("a", 2, 2)
    pm.Bernoulli("y", logit_p=eta, observed=data("y"))


@pytest.fixture
def always(monkeypatch):
    """Take cross products of few observations."""
    monkeypatch.setattr(pooled, "_MANY", 1)
    monkeypatch.setattr(pooled, "_LEAST", 1.0)


def read(build):
    with pm.Model() as model:
        build()
    return pac.recognize(model)


@pytest.mark.parametrize("build", [student_t, other_offsets, few_in_a_cell, learned_offset])
def test_what_is_left_as_it_is(build):
    r = read(build)
    assert pool(r.model, [r.start]) is r.model


def test_sums_have_the_density_of_all():
    r = read(bernoulli_and_binomial)
    cells = pool(r.model, [r.start, *r.probes])
    assert [site.size for site in cells.sites] == [3, 3]
    assert cells.n_rows == 6
    rng = np.random.default_rng(0)
    by_group = rng.normal(size=3)
    for whole, site in zip(r.model.sites, cells.sites, strict=True):
        expected = whole.likelihood.log_density(
            whole.y(r.start), by_group[GROUP][None], whole.params(r.start)
        )
        found = site.likelihood.log_density(site.y(r.start), by_group[None], site.params(r.start))
        sums = np.bincount(GROUP, np.ravel(expected))
        np.testing.assert_allclose(np.ravel(found), sums, rtol=1e-12)


@pytest.mark.parametrize("build", [normal, log_normal, weighted_log_normal])
def test_cross_products_have_the_density_of_all(build, always):
    with pm.Model() as model:
        build()
    model["y data"].set_value(np.random.default_rng(3).gamma(2.0, 1.0, size=GROUP.size))
    step, rng = pac.AugmentedGibbs(model=model), np.random.default_rng(0)
    for _ in range(3):
        point = {name: x + rng.normal(size=x.shape) for name, x in model.initial_point().items()}
        found = step.make_sampler(point)
        assert found.model.n_rows == 8
        expected = step.make_sampler(point, by_observation=True).chain.log_density(point)
        assert found.chain.log_density(point) == pytest.approx(expected, rel=1e-12)


SPELLINGS = {
    "σ/√w": lambda s: {"sigma": s / np.sqrt(W)},
    "precision": lambda s: {"tau": s * W},
    "precision of σ": lambda s: {"tau": W / s**2},
    "root": lambda s: {"sigma": pm.math.sqrt(s**2 * W)},
    "Deterministic": lambda s: {"sigma": pm.Deterministic("sd of y", 2.0 * s * W)},
    "Data": lambda s: {"sigma": s / pm.math.sqrt(pm.Data("w", W))},
    "by group": lambda s: {"sigma": (s * W[:3])[GROUP]},
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_one_scale_times_known_numbers_is_divided_by_these(spelling):
    rng = np.random.default_rng(2)
    with pm.Model() as model:
        eta, s = effects()[GROUP] + SHIFT, pm.HalfNormal("s", 1)
        pm.Normal("y", eta, **SPELLINGS[spelling](s), observed=rng.normal(size=GROUP.size))
    step = pac.AugmentedGibbs(model=model)
    point = {name: x + rng.normal(size=x.shape) for name, x in model.initial_point().items()}
    found = step.make_sampler(point)
    assert found.model.sites[0].params(point)["sigma"].size == 1
    expected = step.make_sampler(point, by_observation=True).chain.log_density(point)
    assert found.chain.log_density(point) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sigma", [lambda s: s * W + 0.1, lambda s: pm.math.sqrt(s**2 + W**2)])
def test_other_standard_deviations_are_left(sigma):
    with pm.Model() as model:
        pm.Normal("y", effects()[GROUP], sigma(pm.HalfNormal("s", 1)), observed=SHIFT)
    r = pac.recognize(model)
    assert pool(r.model, [r.start]) is r.model


def test_draws_are_those_of_rows_multiplied_beforehand():
    rng, found = np.random.default_rng(3), []
    x, y, w = rng.normal(size=(90, 2)), rng.normal(size=90), rng.uniform(0.5, 2.0, size=90)
    group = rng.integers(4, size=90)
    for by, known in ((1.0, w), (w, 1.0)):
        with pm.Model() as model:
            u = pm.Normal("u", 0, pm.HalfNormal("sd", 1), shape=4)
            eta = u[group] + x @ pm.Normal("b", 0, 1, shape=2)
            pm.Normal("y", eta / by, pm.HalfNormal("s", 1) * known, observed=y / by)
        found.append(pac.sample(30, tune=20, chains=1, model=model, random_seed=4, **QUIET))
    left, right = (one["posterior"].to_dataset() for one in found)
    for name in ("u", "b", "s", "sd"):
        np.testing.assert_allclose(left[name], right[name], rtol=1e-7)


def test_few_columns_are_all_that_is_left():
    """A regression has as many rows as columns; data of many cells are left as they are."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2_000, 3))
    for size, n_rows in ((1, 3), (10, 40), (1_500, 2_000)):
        with pm.Model() as model:
            u = pm.Normal("u", 0, 1, shape=size)[rng.integers(size, size=2_000)] if size > 1 else 0
            pm.Normal("y", x @ pm.Normal("w", 0, 1, shape=3) + u, 1, observed=x[:, 0])
        step = pac.AugmentedGibbs(model=model)
        assert step.make_sampler(model.initial_point()).model.n_rows == n_rows


def test_densities_of_observations_are_those_of_the_model():
    with pm.Model() as model:
        bernoulli_and_binomial()
    step, point = pac.AugmentedGibbs(model=model), model.initial_point()
    sampler = step.make_sampler(point)
    found = step.make_sampler(point, by_observation=True).log_densities(point)
    assert {name: one.shape for name, one in found.items()} == {"y": (12,), "y2": (12,)}
    sums = {name: one.sum() for name, one in found.items()}
    assert sampler.site_log_densities(point) == pytest.approx(sums)


@pytest.mark.parametrize(
    ("build", "n_rows", "chains"), [(bernoulli_and_binomial, 6, CHAINS), (normal, 8, FEWER)]
)
def test_the_step_keeps_the_joint_distribution(build, n_rows, chains, joint_distribution, always):
    found = joint_distribution(build, seed=5, sites="augmented")
    assert found.step.make_sampler(found.model.initial_point()).model.n_rows == n_rows
    z = found.z_scores(chains)
    assert max(map(abs, z.values())) < STANDARD_ERRORS, z


def test_forgotten_trials_are_found(joint_distribution, monkeypatch):
    """The negative control: one auxiliary variable in place of many."""
    sites = pooled._Cells.draw_auxiliary

    def too_few(self, rng, y, eta, params):
        return sites(self, rng, y, eta, {"n": np.sign(params["n"])})

    monkeypatch.setattr(pooled._Cells, "draw_auxiliary", too_few)
    z = joint_distribution(bernoulli_and_binomial, seed=5, sites="augmented").z_scores(FEWER)
    assert max(map(abs, z.values())) > STANDARD_ERRORS


def test_a_forgotten_rest_is_found(joint_distribution, always, monkeypatch):
    """The negative control of cross products: without the second factor σ has another density."""
    monkeypatch.setattr(pooled._LogPrior, "_total", lambda self, log_prior, sigma: log_prior)
    with pytest.raises(pac.RecognitionError, match="log density that PyMC gives at step"):
        joint_distribution(normal, seed=5).alternate(1, 1)
