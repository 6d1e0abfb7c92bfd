"""``pac.sample``: what it passes on, what it refuses, and what it leaves as it was."""

from __future__ import annotations

import multiprocessing
import os
import signal

import numpy as np
import pymc as pm
import pytensor
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import pymc_augconj as pac
from pymc_augconj.api.native_step import Recorder

QUIET = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 5, "cores": 1}
X = np.linspace(0.0, 1.0, 5)[:, None]


@pytest.fixture
def model():
    with pm.Model(coords={"place": list("abcde")}) as model:
        ls = pm.InverseGamma("ls", 5, 3)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", X=X, dims="place")
        pm.Deterministic("p", pm.math.invlogit(f), dims="place")
        pm.Bernoulli("y", logit_p=f, observed=[0, 1, 1, 0, 1], dims="place")
    return model


@pytest.fixture
def small():
    with pm.Model(coords={"place": list("abc")}) as model:
        pm.Bernoulli("y", logit_p=pm.Normal("b", dims="place"), observed=[0, 1, 1])
    return model


@pytest.mark.parametrize(("unit", "amplitude"), [(1e-4, 1e-4), (1e-4, 1.0), (1.0, 1.0)])
def test_processes_as_small_as_pymcs_jitter_are_named(caplog, unit, amplitude):
    with pm.Model() as model:
        cov = amplitude**2 * pm.gp.cov.ExpQuad(1, ls=0.5)
        f = pm.gp.Latent(cov_func=cov).prior("f", X=X)
        pm.Normal("y", f * unit / amplitude, unit, observed=unit * np.arange(5.0))
    pac.sample(100, chains=2, model=model, **{**QUIET, "compute_convergence_checks": True})
    assert ("process 'f': expected values well above 0.001" in caplog.text) == (amplitude < 1.0)


def test_the_result_is_pymcs(model):
    idata = pac.sample(6, tune=3, chains=2, model=model, **QUIET)
    posterior = idata.posterior
    assert {"ls", "f", "f_rotated_", "p"} == set(posterior.data_vars)
    assert posterior["f"].dims == ("chain", "draw", "place")
    assert posterior.sizes["chain"] == 2
    assert posterior.sizes["draw"] == 6
    np.testing.assert_allclose(posterior["p"], 1.0 / (1.0 + np.exp(-posterior["f"])))
    assert {"observed_data", "sample_stats"} <= set(idata.children)


def test_the_model_in_the_context_is_taken(model):
    with model:
        inside = pac.sample(4, tune=2, chains=1, **QUIET)
    given = pac.sample(4, tune=2, chains=1, model=model, **QUIET)
    np.testing.assert_array_equal(inside.posterior["f"], given.posterior["f"])


def test_the_same_as_pymc_with_the_step(model):
    ours = pac.sample(5, tune=3, chains=2, model=model, **QUIET)
    theirs = pm.sample(
        5, tune=3, chains=2, model=model, step=pac.AugmentedGibbs(model=model), **QUIET
    )
    # The draws are the same; f and p are computed from them.
    np.testing.assert_array_equal(ours.posterior["f_rotated_"], theirs.posterior["f_rotated_"])
    np.testing.assert_allclose(ours.posterior["f"], theirs.posterior["f"], rtol=1e-9, atol=1e-12)


def test_chosen_variables_are_recorded(model):
    options = {"tune": 2, "chains": 2, "model": model, **QUIET}
    chosen, every = pac.sample(4, var_names=["p"], **options), pac.sample(4, **options)
    assert set(chosen.posterior.data_vars) == {"p"}
    # Computed from the same draws, by another graph.
    np.testing.assert_allclose(chosen.posterior["p"], every.posterior["p"], rtol=1e-9)
    assert np.abs(np.diff(every.posterior["p"], axis=0)).min() > 0  # two chains


def test_keywords_reach_pymc(model):
    start = model.initial_point()
    seen = []
    pac.sample(
        3,
        tune=0,
        chains=1,
        model=model,
        initvals={"ls": 0.7, "f_rotated_": start["f_rotated_"]},
        callback=lambda trace, draw: seen.append(draw.point),
        **QUIET,
    )
    assert len(seen) == 3


@pytest.mark.parametrize(("name", "value"), [("step", None), ("nuts_sampler", "nutpie")])
def test_a_step_of_ones_own_is_refused(model, name, value):
    with pytest.raises(TypeError, match=f"expected no '{name}'; use pm.sample"):
        pac.sample(model=model, **{name: value})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"trace": []}, "trace: expected what draws are recorded in.*got list; .*initvals"),
        ({"trace": "x"}, "trace: expected what draws are recorded in.*got str"),
        ({"seed": 1}, "of pm.sample, got 'seed'; did you mean 'random_seed'"),
        ({"sweep": 2}, "of pm.sample, got 'sweep'; did you mean 'sweeps'"),
        ({"thin": 2}, "of pm.sample, got 'thin'; leave it out"),
        ({"target_accept": 0.9}, "no options of PyMC's own steps.*got 'target_accept'"),
        ({"nuts": {}}, "no options of PyMC's own steps.*got 'nuts'"),
    ],
)
def test_arguments_that_are_of_no_use(small, options, sentence):
    with pytest.raises(TypeError, match=sentence):
        pac.sample(2, model=small, **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"draws": 10.5}, "draws: expected an integer of at least 1, got 10.5"),
        ({"tune": -3}, "tune: expected an integer of at least 0, got -3"),
        ({"chains": 0}, "chains: expected an integer of at least 1, got 0"),
        ({"vars": ["zz"]}, "vars: expected names of variables, found 'zz'"),
        ({"vars": []}, "vars: expected names of variables, got none; leave it out"),
        ({"initvals": {"zz": 1}}, "initvals: expected names of variables, found 'zz'"),
        ({"initvals": [{"b": 0.0}]}, r"initvals: expected 'b' of shape \(3,\), found \(\)"),
        ({"var_names": ["zz"]}, "var_names: expected names of variables, found 'zz'"),
        ({"var_names": []}, "var_names: expected names of variables, got none; leave it out"),
    ],
)
def test_values_of_no_use(small, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        pac.sample(**{"draws": 2, "tune": 1, **options}, model=small, **QUIET)


def test_variables_are_not_named_by_their_transforms():
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("b", 0, pm.HalfNormal("s"))), observed=3)
    with pytest.raises(ValueError, match=r"^vars: expected names .* found 's_log__'"):
        pac.sample(2, vars=["b", "s_log__"], model=model, **QUIET)


def test_a_start_outside_the_support_is_refused(model):
    with pytest.raises(pac.AugmentationError, match=r"initvals: .*allow, found nan for 'ls_log__'"):
        pac.sample(2, tune=1, model=model, initvals={"ls": -1.0}, chains=1, **QUIET)
    # As PyMC, by the name of the transformed value too.
    pac.sample(2, tune=1, model=model, initvals={"ls_log__": 0.1}, chains=1, **QUIET)


def test_options_of_other_steps_and_a_recorder_are_handed_on(small):
    with small:
        pm.Normal("z", pm.Poisson("n", 2.0), 1.0, observed=[1.0])
    options = {"trace": pm.backends.NDArray(model=small), "metropolis": {}, **QUIET}
    options["compile_kwargs"] = {"mode": "FAST_COMPILE"}
    assert "n" in pac.sample(3, tune=1, chains=1, model=small, **options).posterior


def test_log_likelihood_has_no_data_of_potentials():
    asked = {"idata_kwargs": {"log_likelihood": True}, "tune": 1, "chains": 1, **QUIET}
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Potential("lost", pm.logcdf(pm.Normal.dist(b), np.zeros(3)))
    with pytest.raises(pac.AugmentationError, match=r"found the potentials \['lost'\] and no obs"):
        pac.sample(2, model=model, **asked)
    with model:
        pm.Normal("y", b, 1.0, observed=[1.0])
    # Before the first draw.
    with (
        pytest.raises(ZeroDivisionError),
        pytest.warns(UserWarning, match=r"found the potentials \['lost'\] too"),
    ):
        pac.sample(2, model=model, callback=lambda trace, draw: 1 / 0, **asked)
    # PyMC's function cannot copy a model with a start: told before the draws, too.
    with pm.Model() as started:
        pm.Normal("y", pm.Normal("b", initval=0.3), 1.0, observed=[1.0])
    with pytest.raises(pac.AugmentationError, match=r"expected no initval=.* found one of \['b'\]"):
        pac.sample(2, model=started, **asked)


@pytest.mark.parametrize("options", [{"hyper_sampler": "nuts"}, {"sweeps": 2}])
def test_options_of_the_step_change_the_draws(model, options):
    def draws(**given):
        return pac.sample(4, tune=2, chains=1, model=model, **given, **QUIET)

    plain, ours, again = draws(), draws(**options), draws(**options)
    for name in ("ls", "f"):
        np.testing.assert_array_equal(ours.posterior[name], again.posterior[name])
    assert not np.array_equal(plain.posterior["f"], ours.posterior["f"])
    with pytest.raises(pac.RecognitionError, match="y"):
        draws(vars=["y"])


def test_no_model():
    with pytest.raises(TypeError, match="model"):
        pac.sample(5)


@pytest.mark.parametrize("options", [{}, {"vars": ["b"]}, {"var_names": ["b"]}])
def test_dims_that_do_not_fit_are_left_out_before_sampling(small, options):
    with small:
        small.add_coord("other", length=2)
        pm.Deterministic("first", small["b"][:2], dims="place")
        pm.Deterministic("right", pm.math.stack([small["b"]] * 2), dims=("other", "place"))
        pm.Data("given", np.zeros(4), dims="place")
    warned = []

    def note(trace, draw):
        warned.append(len(found))

    with pytest.warns(UserWarning, match="expected 3 entries along its dim 'place'") as found:
        idata = pac.sample(4, tune=1, chains=1, model=small, callback=note, **options, **QUIET)
    names = ["given"] if "var_names" in options else ["first", "given"]
    assert [str(one.message).split("'")[1] for one in found] == names
    assert warned[0] == len(names)
    assert idata.posterior["b"].dims == ("chain", "draw", "place")
    assert idata["constant_data"]["given"].dims == ("given_dim_0",)
    if "var_names" not in options:
        assert idata.posterior["first"].dims == ("chain", "draw", "first_dim_0")
        assert idata.posterior["right"].dims == ("chain", "draw", "other", "place")
        np.testing.assert_array_equal(idata.posterior["first"], idata.posterior["b"][..., :2])


def interrupt(trace, draw):
    raise KeyboardInterrupt


# Where the interrupt comes, chains and draws of the posterior, and (chain, draw) of the rest.
INTERRUPTS = [
    ((0, 5), (1, 4), []),
    ((1, 3), (1, 6), [(1, 0), (1, 1)]),  # fewer draws than the first chain alone
    ((1, 6), (2, 5), [(0, 5)]),
]


def test_an_interrupt_stops_all_chains_and_keeps_every_draw(small):
    options = {"tune": 2, "chains": 3, "model": small, **QUIET}
    whole = pac.sample(6, **options).posterior["b"]
    for at, (chains, draws), rest in INTERRUPTS:
        last = None

        def stop(trace, draw, at=at):
            nonlocal last
            last = draw.chain, draw.draw_idx
            if last == at:
                raise KeyboardInterrupt

        with pytest.warns(UserWarning, match="interrupted after . draws of chain 0.* in the group"):
            idata = pac.sample(6, callback=stop, **options)
        assert last == at
        np.testing.assert_array_equal(idata.posterior["b"], whole[:chains, :draws])
        assert ("posterior_rest" in idata.children) == bool(rest)
        if rest:
            left = idata["posterior_rest"]
            assert list(zip(left["chain"].values, left["draw"].values, strict=True)) == rest
            np.testing.assert_array_equal(left["b"], [whole[c, d] for c, d in rest])
            assert left["b"].dims == ("sample", "place")


@pytest.mark.parametrize(("at", "chains"), [((0, 6), [6]), ((1, 0), [8]), ((1, 1), [8, 1])])
def test_an_interrupt_without_a_callback(small, monkeypatch, at, chains):
    """Steps of chains that PyMC reports to no callback are those that are recorded."""
    record, begun = Recorder.record, set()

    def interrupted(self, *arguments, **options):
        begun.add(self.chain)
        if (self.chain, self.draw_idx) == at:
            raise KeyboardInterrupt
        record(self, *arguments, **options)

    options = {"tune": 2, "chains": 3, "model": small, **QUIET}
    whole = pac.sample(6, **options).posterior["b"]
    monkeypatch.setattr(Recorder, "record", interrupted)
    made = ", ".join(f"{max(n - 2, 0)} draws of chain {k}" for k, n in enumerate(chains))
    with pytest.warns(UserWarning, match=f"interrupted after {made}; they"):
        idata = pac.sample(6, **options)
    assert begun == set(range(at[0] + 1))
    np.testing.assert_array_equal(idata.posterior["b"][0], whole[0, : chains[0] - 2])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_an_interrupt_of_chains_in_processes_keeps_every_draw(small):
    options = {**QUIET, "cores": 2, "chains": 3, "mp_ctx": "fork", "model": small, "tune": 1}
    seen: dict[int, int] = {}

    def stop(trace, draw):
        seen[draw.chain] = draw.draw_idx
        if draw.chain == 1 and draw.draw_idx == 4:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted"):
        idata = pac.sample(6, callback=stop, **options)
    rest = idata["posterior_rest"].sizes["sample"] if "posterior_rest" in idata.children else 0
    posterior = idata.posterior
    assert posterior.sizes["chain"] * posterior.sizes["draw"] + rest == sum(seen.values())


def test_an_interrupt_before_the_first_draw(small):
    with pytest.raises(KeyboardInterrupt, match="before the first draw after tuning"):
        pac.sample(4, tune=3, chains=2, model=small, callback=interrupt, **QUIET)


def test_everything_is_left_as_it_was(model):
    mode = pytensor.config.mode
    with threadpool_limits(2, user_api="blas"):
        before = threadpool_info()
        pac.sample(4, tune=2, chains=1, model=model, **QUIET)
        assert threadpool_info() == before
        with pytest.raises(ZeroDivisionError):
            pac.sample(
                4, tune=0, chains=1, model=model, callback=lambda trace, draw: 1 / 0, **QUIET
            )
        assert threadpool_info() == before
        with pytest.warns(UserWarning, match="interrupted after 1 draws"):
            pac.sample(4, tune=0, chains=1, model=model, callback=interrupt, **QUIET)
        assert threadpool_info() == before
    assert pytensor.config.mode == mode


def test_compile_options_are_used_throughout(model):
    idata = pac.sample(
        3, tune=2, chains=1, model=model, compile_kwargs={"mode": "FAST_COMPILE"}, **QUIET
    )
    assert np.isfinite(idata.posterior["f"]).all()


def test_observations_are_read_when_sampling_starts():
    with pm.Model() as model:
        y = pm.Data("data", np.zeros(5, dtype=int))
        f = pm.Normal("f", 0, 1, shape=5)
        pm.Bernoulli("y", logit_p=f, observed=y)
    first = pac.sample(400, tune=0, chains=1, model=model, **QUIET)
    y.set_value(np.ones(5, dtype=y.dtype))
    second = pac.sample(400, tune=0, chains=1, model=model, **QUIET)
    difference = second.posterior["f"].mean() - first.posterior["f"].mean()
    assert float(difference) > 0.5


def test_a_killed_process_is_named(model):
    """The first chain's process is killed from the callback, which runs in this one."""
    before = threadpool_info()

    def kill(trace, draw):
        for worker in multiprocessing.active_children()[:1]:
            os.kill(worker.pid, signal.SIGKILL)

    with pytest.raises(RuntimeError, match=r"process of a chain ended .* cores=…"):
        pac.sample(
            200,
            tune=2,
            chains=2,
            model=model,
            callback=kill,
            mp_ctx="fork",
            **{**QUIET, "cores": 2},
        )
    assert threadpool_info() == before


@pytest.mark.parametrize("is_learned", [True, False])
def test_scales_of_priors_that_mix_slowly_are_written_outside(caplog, is_learned):
    with pm.Model():
        s = pm.HalfCauchy("s", 5) if is_learned else pm.HalfNormal("s", 5) * 0.0 + 9.0
        effects = pm.Laplace("effects", pm.Normal("m", 0, 5), s, shape=8)
        pm.Normal("y", effects, 15.0, observed=np.linspace(-3.0, 28.0, 8))
        pac.sample(150, tune=50, chains=2, random_seed=1, progressbar=False)
    assert ("write 'effects' as its location plus its scale" in caplog.text) == is_learned
