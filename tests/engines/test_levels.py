"""Parameters of likelihoods that move together with the level of a predictor."""

from __future__ import annotations

from dataclasses import replace

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import expit, log_expit, logit

import pymc_augconj as pac
from pymc_augconj.api.sparsify import SparseGibbs, sparsified
from pymc_augconj.engines.gibbs.moves.given_latents import Level, update_level
from pymc_augconj.engines.gibbs.state import State

X = np.linspace(0.0, 1.0, 4)[:, None]
COUNTS = np.array([4, 7, 5, 6, 3, 8, 5, 4])
# So many that the level goes nearly all the way along their ridge.
MANY = np.tile(COUNTS, 20)


def gp_prior(name, scale):
    cov = scale**2 * pm.gp.cov.ExpQuad(1, ls=0.4)
    return pm.gp.Latent(cov_func=cov).prior(name, X=X)


def bounded_precision():
    """Two parts of latents, the level of the second one moves; an amplitude learned beside it."""
    r, scale = pm.Gamma("r", 4, 1), pm.HalfNormal("scale", 1.0)
    f, g = gp_prior("f", 1.0), gp_prior("g", scale)
    y = pm.Data("y data", np.zeros(4))
    pm.Normal("y", f, tau=r * pm.math.sigmoid(g), observed=y)


def bound_of_two_factors():
    """A rate of a line, in weight space; its bound is a product of two parameters."""
    first, second = pm.Gamma("first", 4, 4), pm.Gamma("second", 4, 2)
    beta = pm.MvNormal("beta", np.zeros(2), np.array([[1.0, 0.3], [0.3, 1.0]]))
    design = np.column_stack([np.ones(4), X[:, 0]])
    y = pm.Data("y data", np.zeros(4, dtype="int64"))
    pm.Poisson("y", mu=first * second * pm.math.sigmoid(design @ beta), observed=y)


@pytest.mark.parametrize(
    "build", [bounded_precision, bound_of_two_factors], ids=lambda build: build.__name__
)
def test_the_step_keeps_the_joint_distribution(joint_distribution, build):
    joint = joint_distribution(build, seed=3)
    assert joint.step.plan.level
    z = joint.z_scores(45)
    assert not {label: value for label, value in z.items() if abs(value) > 5.0}


def through_inducing_points():
    """Two inducing points, and E log p given their values."""
    c, scale = pm.Gamma("c", 4, 2), pm.HalfNormal("scale", 1.0)
    gp = pm.gp.Latent(cov_func=scale**2 * pm.gp.cov.ExpQuad(1, ls=0.4))
    pm.Poisson("y", mu=c * pm.math.sigmoid(gp.prior("f", X=X)), observed=COUNTS[:4])
    return sparsified(pm.modelcontext(None), gp, X[:2], 0)


def rises(build):
    """Return by how much the move's density rises along its way, and PyMC's where it leads."""
    with pm.Model() as model:
        sparse = build()
    if sparse is None:
        step = pac.AugmentedGibbs(model=model)
    else:
        model = sparse.model
        step = SparseGibbs(model=model, sparsified=sparse)
    start = {k: v + 0.3 for k, v in model.initial_point(random_seed=1).items() if "data" not in k}
    sampler, log_density_of_pymc = step.make_sampler(start), model.compile_logp()
    (level, *_), size = sampler.levels, step.plan.level[0].size
    densities = []
    for rise in (0.0, -0.7, 0.4, 1.5):

        def raise_it(target, x, rng, rise=rise):
            moved = x + rise * (np.arange(x.size) < size)
            densities.append(target(moved))
            return moved

        state = State(dict(start), {"level": raise_it})
        update_level(None, sampler.chain, state, level)
        densities.append(float(log_density_of_pymc(state.point)))
    densities = np.reshape(densities, (-1, 2))
    return (densities - densities[0])[1:].T


MODELS = [bounded_precision, bound_of_two_factors, through_inducing_points]


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_the_density_along_the_way_is_pymcs_where_it_leads(build):
    own, of_pymc = rises(build)
    assert np.all(np.abs(of_pymc) > 0.01)
    np.testing.assert_allclose(own, of_pymc, rtol=1e-9)


def forget_the_prior(monkeypatch):
    """Let the prior of the latents not see the way that they go."""
    direction = Level.direction

    def wrong(self, prior):
        by_v, by_u, raised = direction(self, prior)
        return [0.0 * b for b in by_v], by_u, raised

    monkeypatch.setattr(Level, "direction", wrong)


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_a_forgotten_prior_is_found(build, monkeypatch):
    forget_the_prior(monkeypatch)
    own, of_pymc = rises(build)
    assert np.all(np.abs(own - of_pymc) > 0.01)


def test_the_direction_raises_the_predictor_by_one():
    with pm.Model() as model:
        r = pm.Gamma("r", 4, 1)
        f, g = gp_prior("f", 1.0), gp_prior("g", 100.0)
        pm.Normal("y", f, tau=r * pm.math.sigmoid(g), observed=np.zeros(4))
    step = pac.AugmentedGibbs(model=model)
    point = model.initial_point()
    sampler = step.make_sampler(point)
    (level,) = sampler.levels
    prior = level.part.priors.at(point).factorized()
    by_v, by_u, raised = level.direction(prior)
    np.testing.assert_allclose(raised, 1.0, rtol=1e-3)
    np.testing.assert_allclose(by_u[0], raised, rtol=1e-12)
    np.testing.assert_allclose(prior.blocks[0].scale(by_v[0]), by_u[0], rtol=1e-9)


@pytest.mark.parametrize("moves_level", [True, False])
def test_a_parameter_that_underflows_stays_in_the_posterior(moves_level):
    """Its logarithm is a number where its value, and so the level's logarithm, is none."""
    with pm.Model() as model:
        c = pm.Gamma("c", 0.01, 0.01, shape=2)
        # Of independent latents with held sites it moves with all of them.
        prior = pm.MvNormal.dist(np.zeros(1), np.eye(1)) if moves_level else pm.Normal.dist(shape=1)
        beta = model.register_rv(prior, "beta")
        rate = (pm.math.sigmoid if moves_level else pm.math.exp)(beta * X)
        pm.Poisson("y", mu=c * rate, observed=np.outer(COUNTS[:4], [1, 0]))
    step = pac.AugmentedGibbs(model=model, rng=1)
    assert bool(step.plan.level) == moves_level
    step.setup_chain(1, tune=0, draws=10)
    point = {**step.recognition.start, "c_log__": np.array([1.0, -800.0])}
    for _ in range(10):
        point, (stats_of_step,) = step.step(point)
        assert np.isfinite(stats_of_step["model_logp"])
        assert abs(point["c_log__"][0] - np.log(COUNTS[:4].mean())) < 5.0


def test_what_is_no_parameter_of_a_level_keeps_its_moves():
    with pm.Model() as model:
        s = pm.Gamma("s", 3, 3)
        f = pm.Normal("f", 0, 1, shape=4)
        pm.Poisson("y", mu=s * pm.math.exp(s * f), observed=np.arange(4))
    assert not pac.AugmentedGibbs(model=model).plan.level


def ridge(draws=600, level=True):
    """Return draws of a and log r, (2, chain, draw), of counts of mean r σ(a)."""
    with pm.Model():
        # So low that σ is nearly an exponential.
        rate, a = pm.Gamma("rate", 1.5, 0.002), pm.MvNormal("a", [-7.0], np.eye(1))
        pm.Poisson("y", mu=rate * pm.math.sigmoid(a[0] * np.ones(MANY.size)), observed=MANY)
        step = pac.AugmentedGibbs(sweeps=1)
        assert [h.name for h in step.plan.level] == ["rate"]
        if not level:
            step.plan = replace(step.plan, level=())
            step._sizes["level"] = 0
        posterior = pm.sample(
            draws, tune=200, chains=2, cores=1, step=step, random_seed=1, progressbar=False,
            compute_convergence_checks=False,
        ).posterior  # fmt: skip
    return np.stack([posterior["a"].values[..., 0], np.log(posterior["rate"].values)])


def exact_means():
    """Return the means of a and log r on a grid."""
    a, log_rate = np.meshgrid(
        np.linspace(-13.0, 1.0, 1500), np.linspace(1.0, 13.0, 1500), indexing="ij"
    )
    log_p = stats.norm.logpdf(a, -7.0, 1.0) + log_rate
    log_p += stats.gamma.logpdf(np.exp(log_rate), 1.5, scale=500.0)
    mean = np.exp(log_rate + log_expit(a))
    log_p += MANY.sum() * np.log(mean) - MANY.size * mean
    weights = np.exp(log_p - log_p.max())
    return [np.average(value, weights=weights) for value in (a, log_rate)]


def z_scores(draws):
    found = []
    for values, expected in zip(draws, exact_means(), strict=True):
        effective = float(az.ess(values))
        assert effective > 400.0
        found.append((values.mean() - expected) / (values.std() / np.sqrt(effective)))
    return np.abs(found)


@pytest.fixture(scope="module")
def draws():
    return ridge()


def test_the_move_has_the_posterior(draws):
    assert z_scores(draws).max() < 5.0


def test_a_move_without_its_prior_does_not(monkeypatch):
    """The negative control."""
    forget_the_prior(monkeypatch)
    assert z_scores(ridge()).max() > 5.0


def test_a_parameter_and_the_level_mix(draws):
    without = ridge(level=False)
    assert float(az.ess(draws[0])) > 5.0 * float(az.ess(without[0]))


def test_a_learned_exposure_of_large_counts_takes_the_level_with_it():
    """log q + a is known to 0.005 by 50 000 counts, q hardly: beside quadrature."""
    y, size = np.array([50_000, 2]), np.array([1e6, 10.0])
    with pm.Model():
        q, a = pm.Beta("q", 2.0, 2.0), pm.Normal("a", -2.0, 1.0)
        pm.Poisson("y", size * pm.math.stack([q, 1.0 - q]) * pm.math.exp(a), observed=y)
        posterior = pac.sample(
            2000, tune=200, chains=2, cores=1, random_seed=1, progressbar=False
        )["posterior"]  # fmt: skip
    level = np.log(0.05) + np.linspace(-0.03, 0.03, 201)
    q, level = np.meshgrid(np.linspace(1e-3, 1.0 - 1e-3, 999), level, indexing="ij")
    rate = size[:, None, None] * np.exp([level, level - np.log(q) + np.log1p(-q)])
    log_p = stats.poisson.logpmf(y[:, None, None], rate).sum(axis=0)
    log_p += stats.norm.logpdf(level - np.log(q), -2.0, 1.0) + stats.beta.logpdf(q, 2.0, 2.0)
    weights = np.exp(log_p - log_p.max())
    of_prior = stats.beta(2.0, 2.0).expect
    for power in (1, 2):
        values = posterior["q"].values ** power
        effective = float(az.ess(values))
        assert effective > 1000
        error = values.std() / np.sqrt(effective)
        assert abs(values.mean() - np.average(q**power, weights=weights)) < 4.0 * error
        assert abs(values.mean() - of_prior(lambda q, power=power: q**power)) > 5.0 * error


XS, TRIALS = np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), 500
SUCCESSES = np.array([55, 113, 187, 245, 277])
WAITS = np.array([0.101, 0.102, 0.099])


def a_probability(q, a):
    """Counts of which a share q can be successes: a curved ridge, known to 0.1 across."""
    pm.Binomial("y", TRIALS, q * pm.math.sigmoid(a + XS), observed=SUCCESSES)


def a_mean(q, a):
    """Times whose mean is known to 0.01, q hardly."""
    mean = q * pm.math.exp(a)
    pm.Gamma("y", mu=mean, sigma=0.02 * mean, observed=WAITS)


def log_successes(q, a):
    rate = q * expit(a + XS[:, None, None])
    return stats.binom.logpmf(SUCCESSES[:, None, None], TRIALS, rate).sum(axis=0)


def log_waits(q, a):
    scale = q * np.exp(a) / 2500.0
    return stats.gamma.logpdf(WAITS[:, None, None], 2500.0, scale=scale).sum(axis=0)


@pytest.mark.parametrize(
    ("observe", "log_likelihood", "shift"),
    [(a_probability, log_successes, logit), (a_mean, log_waits, np.log)],
    ids=["probability", "mean"],
)
def test_a_factor_and_an_intercept_take_each_others_place(observe, log_likelihood, shift):
    """Beside quadrature over q and a + log q or a + logit q."""
    with pm.Model():
        q, a = pm.Beta("q", 2.0, 2.0), pm.Normal("a", -2.0, 0.5)
        observe(q, a)
        posterior = pac.sample(
            1500, tune=200, chains=2, cores=1, random_seed=1, progressbar=False
        )["posterior"]  # fmt: skip
    q = np.linspace(1e-3, 1.0 - 1e-3, 599)[:, None]
    centre = np.log(0.1) if observe is a_mean else 1.0
    a = centre + np.linspace(-1.0, 1.0, 1501) * (0.05 if observe is a_mean else 3.0) - shift(q)
    log_p = log_likelihood(q, a)
    prior = stats.beta.logpdf(q, 2.0, 2.0) + stats.norm.logpdf(a, -2.0, 0.5)
    found, control = (np.exp(own - own.max()) for own in (log_p + prior, log_p))
    for power in (1, 2):
        values = posterior["q"].values ** power
        effective = float(az.ess(values))
        assert effective > 800
        error = values.std() / np.sqrt(effective)
        expected, other = (float((q**power * w).sum() / w.sum()) for w in (found, control))
        assert abs(values.mean() - expected) < 4.0 * error
        # Control: without the priors.
        assert abs(values.mean() - other) > 5.0 * error
