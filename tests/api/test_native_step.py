"""``pac.sample`` makes most steps in blocks: the draws are those of the Python step."""

from __future__ import annotations

import time

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.api import native_step
from pymc_augconj.auxiliary.polya_gamma import distribution
from pymc_augconj.engines.gibbs.native import column_steps, kernel

GROUP = np.repeat(np.arange(6), 4)
Y = np.random.default_rng(8).normal(0.5, 1.0, 24)
QUIET = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 5}
OPTIONS = {"draws": 400, "tune": 160, "chains": 2, **QUIET}


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 3.0), pm.HalfNormal("tau", 1.0)
        a = pm.Normal("a", mu, tau, shape=6)
        pm.Deterministic("range", a.max() - a.min())
        pm.Normal("y", a[GROUP], pm.HalfNormal("sigma", 1.0), observed=Y)
    return model


def counted(monkeypatch):
    """Return a list that gets the number of steps of every block."""
    made, run = [], native_step.NativeLoop.run

    def counting(*arguments, **options):
        block = run(*arguments, **options)
        made.append(len(block.outputs))
        return block

    monkeypatch.setattr(native_step.NativeLoop, "run", counting)
    return made


@pytest.fixture(scope="module")
def drawn():
    """A model with auxiliary variables and updates given the latents, partly not observed."""
    with pm.Model() as model:
        tau, nu = pm.HalfNormal("tau", 1.0), pm.Exponential("nu", 0.2)
        a = pm.Normal("a", 0.0, tau, shape=6)
        pm.Bernoulli("y", logit_p=a[GROUP], observed=Y > 0.0)
        y2 = np.ma.masked_array(Y, np.arange(24) % 5 == 0)
        with pytest.warns(pm.exceptions.ImputationWarning):
            pm.StudentT("y2", nu=1.0 + nu, mu=a[GROUP], sigma=0.8, observed=y2)
        w = pm.Gamma("w", mu=pm.math.exp(a[0]), sigma=tau)
        pm.Deterministic("root", pm.math.sqrt(w))
    return model


@pytest.fixture(scope="module")
def held():
    """A model with held sites, a coefficient between bounds, and a vector by entry."""
    with pm.Model() as model:
        tau, sigma = pm.HalfNormal("tau", 1.0), pm.HalfNormal("sigma", 1.0, shape=12)
        a, b = pm.Normal("a", 0.0, tau, shape=6), pm.Uniform("b", -0.5, 1.0)
        pm.Poisson("y", pm.math.exp(a[GROUP] + b), observed=np.arange(24) % 4)
        normal = pm.Normal.dist(a[GROUP], sigma[np.arange(24) // 2])
        pm.Censored("y2", normal, lower=0.0, upper=None, observed=np.maximum(Y, 0.0))
    return model


@pytest.mark.parametrize("name", ["model", "drawn", "held"])
def test_the_same_as_by_python(name, request, monkeypatch):
    model = request.getfixturevalue(name)
    # Few PG(1, c) as the loop draws them.
    monkeypatch.setattr(distribution, "MANY", 0)
    monkeypatch.setattr(native_step, "_FEWEST", 1)
    made, options = counted(monkeypatch), {**OPTIONS, "draws": 140, "discard_tuned_samples": False}
    ours = pac.sample(model=model, **options)
    # Python makes the first step, steps that are compared, and ends of windows.
    assert sum(made) > 2 * (300 - 15)
    with monkeypatch.context() as patch:
        patch.setattr(native_step, "_FEWEST", 10_000)
        theirs = pac.sample(model=model, cores=1, **options)
    for group in ("posterior", "warmup_posterior"):
        for name, values in theirs[group].data_vars.items():
            np.testing.assert_allclose(ours[group][name], values, rtol=0, atol=1e-9)
    for group in ("sample_stats", "warmup_sample_stats"):
        for name, values in theirs[group].data_vars.items():
            np.testing.assert_allclose(
                ours[group][name], values, rtol=1e-9, atol=1e-9, err_msg=name
            )


@pytest.mark.parametrize("name", ["model", "drawn"])
def test_blocks_of_any_size_give_the_same(name, request, monkeypatch):
    model = request.getfixturevalue(name)
    whole = pac.sample(model=model, **OPTIONS)
    monkeypatch.setattr(native_step, "_SECONDS", 1e-4)
    again = pac.sample(model=model, cores=2, **OPTIONS)
    for name, values in whole.posterior.data_vars.items():
        np.testing.assert_array_equal(again.posterior[name], values)


@pytest.mark.parametrize("cores", [1, 2])
def test_by_pymc_in_this_process_and_in_others(model, monkeypatch, cores):
    """Worker processes copy the point between two steps."""
    made = counted(monkeypatch)
    with model:
        theirs = pm.sample(step=pac.AugmentedGibbs(), cores=cores, **OPTIONS).posterior
    # Blocks are counted here alone.
    assert (sum(made) > 2 * (560 - 15)) == (cores == 1)
    for name, values in pac.sample(model=model, **OPTIONS).posterior.data_vars.items():
        np.testing.assert_allclose(theirs[name], values, rtol=1e-12)


def test_what_another_step_method_moves_is_not_lost(model, monkeypatch):
    step, point = pac.AugmentedGibbs(model=model), model.initial_point()
    step.setup_chain(np.random.default_rng(1), 160, 400)
    for _ in range(150):
        point, _ = step.step(point)
    assert step._loop is not None
    began, run = [], step._sampler.step
    monkeypatch.setattr(
        step._sampler, "step", lambda r, at, u, f: (began.append(at), run(r, at, u, f))[1]
    )
    assert step._sampler.chain.alternates
    moved = {**point, "sigma_log__": point["sigma_log__"] + 5.0}
    step.step(moved)
    assert step._loop is None
    assert began == [moved]
    # Given the latents, maybe, so that their innovations no longer are a chain of their own.
    assert not step._sampler.chain.alternates


def test_a_step_that_is_used_again_reads_data_that_have_changed(monkeypatch):
    made = counted(monkeypatch)
    with pm.Model() as model:
        shift = pm.Data("shift", np.zeros(24))
        pm.Normal("y", pm.Normal("a", 0.0, 3.0) + shift, pm.HalfNormal("s"), observed=Y)
        step = pac.AugmentedGibbs()
        for value in (0.0, 2.0):
            pm.set_data({"shift": np.full(24, value)})
            again = pm.sample(step=step, cores=1, **OPTIONS).posterior
            blocks = sum(made)
    assert blocks > 2 * 2 * (560 - 15)
    for name, values in pac.sample(model=model, **OPTIONS).posterior.data_vars.items():
        np.testing.assert_allclose(again[name], values, rtol=1e-12)


def test_what_is_recorded_without_a_tape(model, monkeypatch):
    with model.copy() as other:
        # Nothing else of the model depends on it.
        pm.Deterministic("root", pm.math.matrix_inverse(other["sigma"] * np.eye(2)))
    made = counted(monkeypatch)
    ours, plain = (pac.sample(model=m, **OPTIONS) for m in (other, model))
    assert sum(made) > 4 * (560 - 50)
    for name, values in plain.posterior.data_vars.items():
        np.testing.assert_allclose(ours.posterior[name], values, rtol=1e-12)
    np.testing.assert_allclose(
        ours.posterior["root"][..., 1, 1], 1.0 / plain.posterior["sigma"], rtol=1e-12
    )


def test_an_interrupt_keeps_every_draw(model):
    whole = pac.sample(model=model, **OPTIONS).posterior
    seen = []

    def stop(trace, draw):
        assert len(trace) == draw.draw_idx + 1
        seen.append((draw.point["mu"].item(), trace.samples["mu"][draw.draw_idx].item()))
        if (draw.chain, draw.draw_idx) == (1, 160 + 122):
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted after 400 draws of chain 0, 123 draws"):
        idata = pac.sample(model=model, callback=stop, **OPTIONS)
    assert len(seen) == 560 + 160 + 123
    assert all(point == recorded for point, recorded in seen)
    np.testing.assert_array_equal(idata.posterior["mu"], whole["mu"][:1])
    np.testing.assert_array_equal(idata["posterior_rest"]["mu"], whole["mu"][1, :123])


def test_blocks_end_within_half_a_second(model, monkeypatch):
    longest, run = [0.0], native_step.NativeLoop.run

    def timed(*arguments, **options):
        begin = time.perf_counter()
        block = run(*arguments, **options)
        longest.append(time.perf_counter() - begin)
        return block

    monkeypatch.setattr(native_step.NativeLoop, "run", timed)
    pac.sample(20_000, model=model, **{name: OPTIONS[name] for name in ("tune", *QUIET)}, chains=1)
    assert max(longest) < 0.5


def test_short_chains_and_other_models_are_for_python(model, monkeypatch):
    made = counted(monkeypatch)
    pac.sample(30, tune=30, model=model, chains=1, **QUIET)
    for size in (100, 50):
        assert not made
        with pm.Model() as process:
            cov = pm.HalfNormal("s") ** 2 * pm.gp.cov.Matern52(1, ls=pm.Gamma("ls", 3.0, 9.0))
            f = pm.gp.Latent(cov_func=cov).prior("f", X=np.linspace(0.0, 1.0, size)[:, None])
            pm.Normal("y", f, 1.0, observed=np.resize(Y, size))
        pac.sample(450, tune=50, model=process, chains=1, cores=1, **QUIET)
    # Of f there is no tape, which does not keep the smaller one from the loop.
    assert made


def test_warming_up_leaves_nothing_to_compile(model, monkeypatch):
    made = counted(monkeypatch)
    assert pac.warm_up() > 0.0
    assert sum(made) > 400
    # Compiled, or read from the cache: what is within it then is not.
    kernels = kernel.run_steps, kernel.read_part, column_steps.run_steps
    before = [len(one.signatures) for one in kernels]
    with pm.Model() as horseshoe:
        lam = pm.HalfCauchy("lam", 1.0, shape=20)
        X = np.random.default_rng(1).standard_normal((24, 20))
        b = pm.Normal("b", 0.0, pm.HalfCauchy("tau", 1.0) * lam, shape=20)
        pm.Bernoulli("y", logit_p=X @ b, observed=Y > 0.0)
    for each in (model, horseshoe):
        pac.sample(model=each, **OPTIONS)
    assert [len(one.signatures) for one in kernels] == before
    assert before[0] == before[-1] == 1
