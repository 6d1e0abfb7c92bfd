"""Bilinear predictors: latents and their coefficients in turn, and moves along ridges."""

from __future__ import annotations

from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_augconj as pac
from pymc_augconj.engines.gibbs.moves import ridges
from pymc_augconj.engines.gibbs.moves.given_latents import update_along_ridges
from pymc_augconj.engines.gibbs.moves.ridges import Ridge
from pymc_augconj.engines.gibbs.native.loop import Drawn
from pymc_augconj.engines.gibbs.state import State
from pymc_augconj.model import EntryRidge

N, P, K = 3, 4, 2


def factor_analysis():
    f = pm.Normal("f", 0.3, 1.0, shape=(N, K))
    w = pm.Normal("w", 0.0, pm.HalfNormal("scale", 1.0), shape=(P, K))
    y = pm.Data("y data", np.zeros((N, P)))
    pm.Normal("y", f @ w.T, pm.Gamma("sigma", 4, 4), observed=y)


def triangular_loadings():
    """Loadings below a positive diagonal."""
    f = pm.Normal("f", 0.0, 1.0, shape=(N, K))
    rows, cols = np.tril_indices(P, -1, K)
    z, d = pm.Normal("z", 0.5, 1.0, shape=rows.size), pm.HalfNormal("d", 1.0, shape=K)
    w = pt.set_subtensor(pt.zeros((P, K))[rows, cols], z)
    w = pt.set_subtensor(w[np.arange(K), np.arange(K)], d)
    y = pm.Data("y data", np.zeros((N, P)))
    pm.Normal("y", f @ w.T, 0.7, observed=y)


def item_response():
    """Positive slopes by entry, of ten items."""
    theta, b = pm.Normal("theta", 0.0, 1.0, shape=2), pm.Normal("b", 0.5, 1.0, shape=10)
    a = pm.LogNormal("a", 0.0, 0.5, shape=10)
    y = pm.Data("y data", np.zeros((2, 10), dtype="int64"))
    pm.Bernoulli("y", logit_p=a * (theta[:, None] - b), observed=y)


def matrix_factorisation():
    """Counts: held sites of both factors."""
    u, v = pm.Normal("u", 0.0, 0.7, shape=(K, N)), pm.Normal("v", 0.2, 0.7, shape=(P, K))
    i, j = np.nonzero(np.ones((N, P)))
    y = pm.Data("y data", np.zeros(N * P, dtype="int64"))
    pm.Poisson("y", pm.math.exp((u[:, i] * v[j].T).sum(axis=0)), observed=y)


# Numbers of scalings and of shears.
MODELS = [
    (factor_analysis, K, K * (K - 1)),
    # One way alone leaves the loadings triangular.
    (triangular_loadings, K, 1),
    (item_response, 1, 0),
    (matrix_factorisation, K, K * (K - 1)),
]


@pytest.mark.parametrize(("build", "scalings", "shears"), MODELS)
def test_the_density_along_a_ridge_is_pymcs_with_the_jacobian(build, scalings, shears):
    with pm.Model() as model:
        build()
    step = pac.AugmentedGibbs(model=model)
    found = step.alternation.ridges
    assert sum(ridge.ends[0].other is None for ridge in found) == scalings
    assert sum(ridge.ends[0].other is not None for ridge in found) == shears
    rng = np.random.default_rng(0)
    start = {k: v + 0.3 * rng.standard_normal(v.shape) for k, v in model.initial_point().items()}
    chain, log_density = step.make_sampler(start).chain, model.compile_logp()
    for ridge in found:
        seen = []
        of_priors = partial(ridges.log_prior, chain, chain.priors.at(start).factorized().blocks)

        def update(target, x, rng, seen=seen):
            seen += [target(x), target(x + 0.4)]
            return x + 0.4

        moved, _ = ridges.move_along(rng, of_priors, start, ridge, update)
        expected = log_density(moved) - log_density(start) + 0.4 * ridge.log_jacobian
        assert abs(expected) > 0.01
        np.testing.assert_allclose(seen[1] - seen[0], expected, rtol=1e-8)
        np.testing.assert_allclose(chain.predictor(moved), chain.predictor(start), atol=1e-9)
        np.testing.assert_allclose(log_det(ridge, start), 0.4 * ridge.log_jacobian, atol=1e-5)


def log_det(ridge, start):
    """Return the log Jacobian of a move by 0.4, by differences of all that moves."""
    moved = ridge.moved(start, 0.4)
    names = sorted(n for n, value in moved.items() if not np.array_equal(value, start[n]))
    flat = np.concatenate([start[n].ravel() for n in names])
    columns = []
    for x in flat + 1e-6 * np.eye(flat.size):
        parts = np.split(x, np.cumsum([start[n].size for n in names])[:-1])
        point = start | {n: p.reshape(start[n].shape) for n, p in zip(names, parts, strict=True)}
        there = ridge.moved(point, 0.4)
        columns.append(np.concatenate([(there[n] - moved[n]).ravel() for n in names]) / 1e-6)
    return np.linalg.slogdet(np.array(columns))[1]


def noise_of_groups():
    """Effects on log σ about a location, and standardised ones, with a level."""
    c, tau = pm.Normal("c", 0.0, 0.5, shape=2), pm.LogNormal("tau", -1.0, 0.4, shape=2)
    z, v = pm.Normal("z", 0.0, 1.0, shape=10), pm.Normal("v", c[1], tau[1], shape=10)
    u, group = pm.Normal("u", 0.0, 1.0, shape=10), np.arange(20) % 10
    log_sigma = c[0] + tau[0] * z[group] + v[np.arange(20) // 2]
    y = pm.Data("y data", np.zeros(20))
    pm.Normal("y", u[group], pm.math.exp(log_sigma), observed=y)


SHIFTS = {("c", 1, "v", 1, False, None), ("c", 0, "v", -1, False, None)}
SCALES = {
    ("tau_log__", 0, "z", -1, True, None),
    ("c", 0, "z", -1, False, ("tau_log__", 0)),
    ("tau_log__", 1, "v", 1, True, ("c", 1)),
}


@pytest.mark.parametrize("others", [False, True])
def test_vectors_follow_what_shifts_and_scales_them(others):
    with pm.Model() as model:
        noise_of_groups()
        if others:
            # What another term depends on takes no part.
            pm.Potential("of scales", -(pt.sum(model["tau"]) ** 2))
    step = pac.AugmentedGibbs(model=model)
    found = {(*r.h, r.vector, r.sign, r.scales, r.beside) for r in step.plan.ridges.values()}
    assert found == (SHIFTS if others else SHIFTS | SCALES)
    rng = np.random.default_rng(0)
    start = {k: v + 0.3 * rng.standard_normal(v.shape) for k, v in model.initial_point().items()}
    chain, log_density = step.make_sampler(start).chain, model.compile_logp()
    for ridge in step.plan.ridges.values():
        moved = ridge.moved(start, 0.4)
        own = chain.log_density if ridge.sign > 0 else chain.model.log_prior
        expected = log_density(moved) - log_density(start)
        assert abs(expected) > 0.01
        np.testing.assert_allclose(own(moved) - own(start), expected, rtol=1e-8)
        np.testing.assert_allclose(log_det(ridge, start), 0.4 * ridge.log_jacobian, atol=1e-5)


def test_a_predictor_that_changes_is_no_ridge():
    with pm.Model() as model:
        f, w = pm.Normal("f", shape=(5, 2)), pm.Normal("w", shape=(6, 2))
        pm.Normal("y", f @ (1.0 + w).T, 1.0, observed=np.zeros((5, 6)))
    step = pac.AugmentedGibbs(model=model)
    assert not step.alternation.ridges
    assert step.alternation.companion is not None


def test_a_normal_scale_is_not_drawn_in_turn_with_latents():
    """It multiplies none, and moves with these integrated out."""
    with pm.Model() as model:
        f, w = pm.Normal("f", shape=(5, 2)), pm.Normal("w", shape=(6, 2))
        scale = pm.HalfNormal("t", shape=6) * pm.Normal("scale", 0.5, 0.1)
        pm.Normal("y", f @ w.T, scale, observed=np.zeros((5, 6)))
    step = pac.AugmentedGibbs(model=model)
    assert len(step.alternation.companion.vars) == 1
    assert "scale" in {h.name for h in step.plan.updated}


@pytest.mark.parametrize("build", [row[0] for row in MODELS], ids=lambda build: build.__name__)
def test_the_step_keeps_the_joint_distribution(joint_distribution, build):
    joint = joint_distribution(build, seed=5)
    assert joint.step.alternation.ridges
    z = joint.z_scores(45)
    assert not {label: value for label, value in z.items() if abs(value) > 5.0}


@pytest.mark.parametrize(
    ("kind", "build", "chains"), [(Ridge, item_response, 45), (EntryRidge, noise_of_groups, 12)]
)
def test_a_wrong_jacobian_is_seen(joint_distribution, monkeypatch, kind, build, chains):
    monkeypatch.setattr(kind, "log_jacobian", 0)
    z = joint_distribution(build, seed=5).z_scores(chains)
    assert max(map(abs, z.values())) > 5.0


def hierarchy():
    """Scores about a latent mean, for which some of many ridges are chosen at random."""
    f = pm.Normal("f", 1.0 + 0.5 * pm.Normal("mu", 0.0, 1.0), 1.0, shape=(10, 4))
    w = pm.Normal("w", 0.0, pm.HalfNormal("scale", 0.5), shape=(11, 4))
    y = pm.Data("y data", np.zeros((10, 11)))
    pm.StudentT("y", nu=4.0, mu=f @ w.T, sigma=pm.Gamma("sigma", 4, 4), observed=y)


def correlated_factors():
    """Rows with a learned mean and covariance, each factor with indicators of its own."""
    scale = pm.Exponential.dist(1.0, shape=2)
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=scale)
    f = pm.MvNormal("f", pm.Normal("mean", 0.0, 1.0, shape=2), chol=chol, shape=(10, 2))
    w = pm.Normal("w", 1.0, pm.HalfNormal("scale", 0.5), shape=6)
    y = pm.Data("y data", np.zeros((10, 6)))
    mu = f[:, [0, 0, 0, 0, 1, 1]] * w
    pm.StudentT("y", nu=4.0, mu=mu, sigma=pm.Gamma("sigma", 4, 4), observed=y)


def process_of_loadings():
    """Values whose whitened ones are in the point."""
    cov = pm.gp.cov.ExpQuad(1, ls=pm.Gamma("ls", 3.0, 3.0))
    f = pm.gp.Latent(cov_func=cov).prior("f", X=np.arange(8.0)[:, None])
    w = pm.Normal("w", 1.0, pm.HalfNormal("scale", 0.5), shape=5)
    y = pm.Data("y data", np.zeros((8, 5)))
    pm.Normal("y", f[:, None] * w, pm.Gamma("sigma", 4, 4), observed=y)


@pytest.mark.parametrize(
    "build",
    [
        *(factor_analysis, triangular_loadings, matrix_factorisation, hierarchy),
        *(correlated_factors, process_of_loadings),
    ],
)
def test_the_loop_makes_the_draws_of_python(build):
    with pm.Model() as model:
        build()
        y, rng = model["y data"], np.random.default_rng(2)
        pm.set_data({"y data": rng.poisson(1.0, y.get_value().shape).astype(y.dtype)})
    step, found = pac.AugmentedGibbs(model=model), []
    for native in (True, False):
        assert step.prepare(None, 1_000)
        step._loop = step._loop if native else None
        step.setup_chain(np.random.default_rng(1), 60, 40)
        point, rows, by_loop = model.initial_point(), [], 0
        for i in range(100):
            step.tune = i < 60
            point, (stats,) = step.step(point)
            rows.append([*(np.copy(x) for _, x in sorted(point.items())), stats["model_logp"]])
            rows[-1].append(stats["evaluations"])
            by_loop += isinstance(point, Drawn)
        assert (by_loop > 80) == native
        found.append([*rows, [step.learned["along ridge 0"][x] for x in ("axes", "mean", "count")]])
    for ours, theirs in zip(*found, strict=True):
        for value, expected in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-8, atol=1e-8)


def test_both_factors_are_recorded():
    with pm.Model() as model:
        factor_analysis()
        pm.set_data({"y data": np.random.default_rng(2).standard_normal((N, P))})
    step = pac.AugmentedGibbs(model=model)
    assert len(step.vars) == len(model.free_RVs)
    with model:
        first, second = (
            pac.sample(
                20, tune=10, chains=2, cores=1, random_seed=1, progressbar=False,
                compute_convergence_checks=False,
            ).posterior
            for _ in range(2)
        )  # fmt: skip
    for name in ("f", "w", "sigma", "scale"):
        assert np.all(np.ptp(first[name].values, axis=1) > 0.0)
        np.testing.assert_array_equal(first[name], second[name])


def test_a_companion_that_is_refused_is_said():
    with pm.Model() as model:
        f, w = pm.Normal("f", shape=(5, 2)), pm.Normal("w", shape=(6, 2))
        # Affine in f, and in w alone it is not.
        pm.Normal("y", f @ w.T + (w**2).sum(axis=1), 1.0, observed=np.zeros((5, 6)))
    report = pac.recognize(model)
    in_turn, refused = "in turn with the latents that it multiplies", "'w': expected to be drawn"
    assert in_turn not in str(report)
    assert refused in str(report)
    assert "affine" in report.refusal
    with pytest.warns(UserWarning, match=f"{refused} jointly.*mixes slowly: .*affine"):
        step = pac.AugmentedGibbs(model=model)
    assert step.alternation.companion is None
    assert {var.name for var in step.vars} == {"f", "w"}
    with pm.Model() as model:
        factor_analysis()
    report = pac.recognize(model)
    assert in_turn in str(report)
    assert not report.refusal


def test_scales_of_both_factors_start_away_from_zero():
    """PyMC's start has both at their means, where the density has no bound as a scale goes to 0."""
    t, shifts = np.linspace(-2.0, 2.0, 8), np.array([[-0.2], [0.1], [0.3]])
    with pm.Model():
        top = pm.Normal("top", 5.0, pm.HalfNormal("sd_top", 1.0), shape=(8, 1))
        middle = pm.Normal("middle", pm.Normal("m"), pm.HalfNormal("sd", 0.5), shape=(8, 1))
        y = 5.0 / (1.0 + np.exp(np.resize(shifts, (8, 1)) - 2.0 * t))
        pm.Normal("y", top * pm.math.sigmoid(2.0 * (t - middle)), 0.2, observed=y)
        idata = pac.sample(5, tune=15, chains=4, cores=1, random_seed=1, progressbar=False,
                           compute_convergence_checks=False)  # fmt: skip
    assert float(idata.posterior["sd"].min()) > 1e-6


def test_moves_of_vectors_have_the_density_of_the_model():
    """Also where terms that seemed to stay the same do not: beyond all points of the search."""
    with pm.Model() as model:
        level, z = pm.Gumbel("level", 0.0, 1.0), pm.Gumbel("z", 0.0, 1.0, shape=10)
        scale = pt.exp(0.3 * (pt.minimum(level, 5.0) + z))
        y = np.random.default_rng(1).normal(size=(5, 10))
        pm.StudentT("y", nu=4.0, mu=pm.Normal("b", 0.0, 1.0), sigma=scale, observed=y)
        step = pac.AugmentedGibbs()
    point = step._default_start | {"level": np.array(5.5)}
    ((name, ridge),), found = step.plan.ridges.items(), []

    def update(target, start, rng):
        found.append(target(np.array([0.7])) - target(start))
        return start

    state, rng = State(dict(point), {name: update}), np.random.default_rng(1)
    sampler, logp = step.make_sampler(step._default_start), model.compile_logp()
    update_along_ridges(rng, sampler.chain, state)
    moved = ridge.moved(point, 0.7)
    np.testing.assert_allclose(found, logp(moved) - logp(point) + 0.7 * ridge.log_jacobian)
    log_prior = sampler.model.log_prior
    assert abs(found[0] - float(log_prior(moved) - log_prior(point))) > 0.1
    # From where there is no density, all points would be accepted.
    nowhere = State(point | {"level": np.array(np.inf)}, {name: update})
    update_along_ridges(rng, sampler.chain, nowhere)
    assert len(found) == 1
