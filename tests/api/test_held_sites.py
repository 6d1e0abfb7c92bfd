"""Held sites: what is chosen, what is told, and that the step keeps PyMC's contract."""

from __future__ import annotations

import logging

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_augconj as pac
from pymc_augconj.errors import UncertainEvidenceError
from pymc_augconj.python_mode import python_mode

X = np.linspace(0.0, 1.0, 6)[:, None]
COUNTS, BINARY = np.array([3, 0, 2, 7, 1, 4]), np.array([1, 0, 1, 1, 0, 1])
REAL = np.array([0.3, -0.4, 6.0, 0.2, -0.1, 0.5])
QUIET = {"progressbar": False, "compute_convergence_checks": False}


def process(eta=1.0):
    ls = pm.InverseGamma("ls", 5, 3)
    return pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", X=X)


def mixed():
    """A density alone, an augmented one and a normal one, in one model."""
    with pm.Model() as model:
        f = process()
        pm.Poisson("counts", pm.math.exp(f), observed=COUNTS)
        pm.Bernoulli("classes", logit_p=f, observed=BINARY)
        pm.Normal("reals", f, pm.HalfNormal("s", 1), observed=REAL)
    return model


def counts():
    with pm.Model() as model:
        eta, alpha = pm.HalfNormal("eta", 1), pm.HalfNormal("alpha", 1)
        mu, psi = pm.math.exp(process(eta)), pm.Beta("psi", 2, 1)
        pm.ZeroInflatedNegativeBinomial("y", psi=psi, mu=mu, alpha=alpha, observed=COUNTS)
    return model


def chain(step, steps, seed=0, tune=15):
    step.setup_chain(np.random.default_rng(seed), tune, steps)
    point, points = step.recognition.start, []
    for i in range(steps):
        if i == tune:
            step.stop_tuning()
        for value in point.values():
            value.flags.writeable = False
        point, (stats,) = step.step(point)
        points.append(point)
    return points, stats


def mcse(draws):
    return np.array([float(az.mcse(column[None])) for column in draws.T])


def equal(first, second):
    return all(
        all(np.array_equal(p[name], q[name]) for name in p)
        for p, q in zip(first, second, strict=True)
    )


# -- choosing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sites", "held"),
    [("auto", ("counts",)), ("held", ("counts", "classes"))],
)
def test_which_sites_are_held(sites, held):
    """The normal likelihood is a Gaussian site, whatever is asked for."""
    assert pac.AugmentedGibbs(model=mixed(), sites=sites).held == held


def test_which_sites_are_refused():
    with pytest.raises(pac.UnknownLikelihoodError, match=r"'counts'.*pac\.sample .* exactly"):
        pac.sample(model=mixed(), sites="augmented", **QUIET)
    with pytest.raises(ValueError, match=r"'auto', 'augmented' or 'held', got 'all'"):
        pac.AugmentedGibbs(model=mixed(), sites="all")


def test_the_table_says_which():
    table = str(pac.recognize(mixed()))
    for fragment in ("held sites (density alone)", "augmented: Pólya–Gamma", "none needed"):
        assert fragment in table
    assert "elliptical slices given the standardised latents" in table


# -- the contract of a step -----------------------------------------------------------------------


def test_log_density_is_pymcs_and_statistics_are_told():
    model = mixed()
    step = pac.AugmentedGibbs(model=model)
    points, stats = chain(step, 20)
    expected = model.compile_logp(mode=python_mode())(points[-1])
    assert stats["model_logp"] == pytest.approx(float(expected), abs=1e-8)
    assert stats["elliptical_trials"] >= 1.0
    assert 0.0 < stats["residual_std"] < 3.0
    assert list(points[-1]) == [value.name for value in model.value_vars]


def test_seeds_copies_and_states_continue_a_chain():
    step = pac.AugmentedGibbs(model=counts())
    points, _ = chain(step, 30)
    assert equal(points, chain(cloudpickle.loads(cloudpickle.dumps(step)), 30)[0])
    assert not equal(points, chain(step, 30, seed=1)[0])
    step.setup_chain(np.random.default_rng(0), 15, 30)
    assert equal(points[:1], [step.step(step.recognition.start)[0]])
    last, _ = chain(step, 30)
    state, other = step.sampling_state, pac.AugmentedGibbs(model=counts())
    other.setup_chain(np.random.default_rng(7), 15, 30)
    other.sampling_state = state
    assert equal([step.step(last[-1])[0]], [other.step(last[-1])[0]])


def test_contexts_give_the_same_draws():
    model = counts()
    options = {"tune": 10, "chains": 2, "random_seed": 3, "model": model, **QUIET}
    serial = pac.sample(5, cores=1, **options)
    parallel = pac.sample(5, cores=2, mp_ctx="forkserver", **options)
    for name in serial.posterior.data_vars:
        np.testing.assert_array_equal(serial.posterior[name], parallel.posterior[name])
    assert {"elliptical_trials", "residual_std"} <= set(serial.sample_stats.data_vars)
    starts = serial.posterior["ls"].values
    assert not np.array_equal(starts[0], starts[1])


def test_the_number_of_slices_can_be_given():
    step = pac.AugmentedGibbs(model=counts(), sweeps=7)
    chain(step, 3)
    seen = []
    (part,) = step._sampler.parts
    part.tilted.residual = lambda eta, whole=part.tilted.residual: seen.append(eta) or whole(eta)
    _, (stats,) = step.step(step.recognition.start)
    # Where the first slice starts is known from the hyperparameters' move.
    assert len(seen) == round(7 * stats["elliptical_trials"])


@pytest.mark.parametrize("tune", [True, False])
def test_latents_that_stay_take_no_slices(tune, monkeypatch):
    step = pac.AugmentedGibbs(model=counts())
    (before,), _ = chain(step, 1)

    def uncertain(*args, **how):
        raise UncertainEvidenceError("no digits")

    (part,) = step._sampler.parts
    monkeypatch.setattr(part.solver, "posterior", uncertain)
    step.tune = tune
    point, (stats,) = step.step(before)
    np.testing.assert_array_equal(point["f_rotated_"], before["f_rotated_"])
    assert stats["elliptical_trials"] == 0.0


@pytest.mark.parametrize(("width", "warned"), [(0.01, True), (30.0, False)])
def test_badly_fitting_sites_are_warned_of(caplog, width, warned):
    """Many narrow modes have no curvature: the ellipses are the prior's."""
    with pm.Model() as model:
        f = pm.Normal("f", 0, 3, shape=30)
        pm.Potential("y", 5.0 * pm.math.cos(f / width))
    with caplog.at_level(logging.WARNING):
        pac.sample(2, tune=40, chains=1, model=model, random_seed=1, **QUIET)
    assert ("held sites of 'y'" in caplog.text) == warned
    assert ("sweeps=50" in caplog.text) == warned


# -- the posterior --------------------------------------------------------------------------------


def test_a_student_t_has_the_same_posterior_with_held_sites():
    found = {}
    for sites in ("augmented", "held"):
        with pm.Model():
            f, sigma = process(), pm.HalfNormal("sigma", 1)
            pm.StudentT("y", nu=4, mu=f, sigma=sigma, observed=REAL)
            drawn = pac.sample(1000, chains=1, sites=sites, random_seed=4, **QUIET).posterior
        columns = [drawn[name].values.reshape(1000, -1) for name in ("ls", "sigma", "f")]
        found[sites] = np.hstack(columns)
    for function in (np.abs, np.square):
        first, second = (function(draws) for draws in found.values())
        error = np.hypot(mcse(first), mcse(second))
        assert np.all(np.abs(first.mean(axis=0) - second.mean(axis=0)) < 5.0 * error)


def test_a_shift_moves_with_the_level_of_what_it_shifts():
    """Given the level a shift hardly moves: 700 effective draws."""
    y, noise = 0.5 + np.exp(0.5 * stats.norm.ppf(np.linspace(0.01, 0.99, 60))), 0.5
    with pm.Model() as model:
        shift, level = pm.Uniform("shift", 0.0, y.min()), pm.Normal("level", 0.0, 1.0)
        density = pm.LogNormal.dist(level, noise)
        pm.Potential("y", pm.logp(density, y - shift))
    drawn = pac.sample(2000, model=model, chains=2, random_seed=1, **QUIET)["posterior"]["shift"]
    assert float(az.ess(drawn)) > 2000.0
    grid, error = np.linspace(0.0, y.min(), 4001)[:-1], float(az.mcse(drawn))
    logs = np.log(y[:, None] - grid)
    mean = logs.sum(axis=0) / (noise**2 + y.size)
    # At its mean given the shift the level's density is the same for all shifts.
    fit = -0.5 * (((logs - mean) / noise) ** 2).sum(axis=0) - 0.5 * mean**2
    for jacobian in (1.0, 0.0):
        log_mass = fit - jacobian * logs.sum(axis=0)
        mass = np.exp(log_mass - log_mass.max())
        expected = float(grid @ mass / mass.sum())
        assert (abs(float(drawn.mean()) - expected) < 5.0 * error) == bool(jacobian)
