"""Draws in a Zarr store: a run that was killed goes on as if it had not been."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.api import sample as module
from pymc_augconj.api import stored
from pymc_augconj.results.draw_store import DrawStore

GROUP = np.repeat(np.arange(6), 4)
Y = np.random.default_rng(8).normal(0.5, 1.0, 24)
QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
OPTIONS = {**QUIET, "random_seed": 5, "chains": 2, "cores": 1}


def define(sd=3.0, y=Y, dims="group"):
    with pm.Model(coords={"group": list("abcdef")}) as model:
        mu, tau = pm.Normal("mu", 0.0, sd), pm.HalfNormal("tau", 1.0)
        a = pm.Normal("a", mu, tau, dims=dims)
        pm.Deterministic("range", a.max() - a.min())
        pm.Normal("y", a[GROUP], pm.HalfNormal("sigma", 1.0), observed=y)
    return model


@pytest.fixture(scope="module")
def model():
    return define()


def assert_equal(found, expected):
    for group in ("posterior", "sample_stats"):
        assert list(found[group].data_vars) == list(expected[group].data_vars)
        for name, values in expected[group].data_vars.items():
            assert found[group][name].dims == values.dims
            np.testing.assert_array_equal(found[group][name], values, err_msg=name)
    assert set(found.children) == set(expected.children)
    assert found["posterior"].attrs["tuning_steps"] == expected["posterior"].attrs["tuning_steps"]


def killed(model, path, options, at):
    """Sample, and end in the middle of what is written from step ``at`` of chain 1 on."""
    # The processes of chains would go on to wait for this one.
    os.setsid()
    # A state is written wherever there is one, however fast the chain is.
    stored.INTERVAL, write, reached = 0.0, DrawStore.write, []

    def kill(self, group, chain, first, arrays):
        first_of_them = dict(list(arrays.items())[:1])
        write(self, group, chain, first, first_of_them if reached else arrays)
        if reached:
            os.killpg(0, signal.SIGKILL)

    def note(trace, draw):
        if (draw.chain, draw.draw_idx) == (1, at):
            reached.append(True)

    DrawStore.write = kill
    pac.sample(model=model, zarr_store=path, callback=note, **options)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    ("draws", "tune", "cores"), [(420, 100, 1), (15, 10, 2)], ids=["loop", "processes"]
)
def test_a_run_that_is_killed_goes_on(model, tmp_path, draws, tune, cores):
    options = {**OPTIONS, "draws": draws, "tune": tune, "cores": cores, "mp_ctx": "fork"}
    path, at = tmp_path / "draws.zarr", (6 * (draws + tune)) // 10
    fork = multiprocessing.get_context("fork")
    run = fork.Process(target=killed, args=(model, path, options, at))
    run.start()
    run.join()
    assert run.exitcode == -signal.SIGKILL
    steps = {chain: steps for chain, (steps, _) in DrawStore(path).states().items()}
    assert 0 < steps[1] < draws + tune
    resumed = pac.sample(model=model, zarr_store=path, resume=True, **options)
    assert_equal(resumed, pac.sample(model=model, **options))


def test_a_complete_store_is_returned_and_takes_more_draws(model, monkeypatch):
    # A mapping is a store in memory.
    store, options = {}, {**OPTIONS, "tune": 12}
    expected = pac.sample(20, model=model, **options)
    first = pac.sample(8, model=model, zarr_store=store, resume=True, **options)
    np.testing.assert_array_equal(first.posterior["a"], expected.posterior["a"][:, :8])
    with monkeypatch.context() as patch:
        patch.setattr(stored.StoreRecorder, "record", None)
        del options["random_seed"], options["chains"]
        again = pac.sample(8, model=model, zarr_store=store, resume=True, **options)
        assert_equal(again, first)
    # As if it had been killed while place was made for more.
    DrawStore(store)._root["posterior/mu"].resize((2, 20))
    again = pac.sample(8, model=model, zarr_store=store, resume=True, **options)
    np.testing.assert_array_equal(again.posterior["mu"], first.posterior["mu"])
    # The seed and the number of chains are the store's.
    more = pac.sample(20, model=model, zarr_store=store, resume=True, **options)
    assert_equal(more, expected)


def test_a_companion_goes_on_where_it_was():
    y = np.random.default_rng(2).standard_normal((4, 5))
    with pm.Model() as model:
        f = pm.Normal("f", 0.0, 1.0, shape=(4, 2))
        w = pm.Normal("w", 0.0, pm.HalfNormal("scale", 1.0), shape=(5, 2))
        pm.Normal("y", f @ w.T, pm.Gamma("sigma", 4, 4), observed=y)
    assert pac.AugmentedGibbs(model=model).alternation.companion is not None
    store, options = {}, {**OPTIONS, "tune": 30}
    expected = pac.sample(16, model=model, **options)
    pac.sample(6, model=model, zarr_store=store, **options)
    resumed = pac.sample(16, model=model, zarr_store=store, resume=True, **options)
    assert_equal(resumed, expected)
    assert np.all(np.ptp(resumed["posterior"]["w"].values, axis=1) > 0.0)


@pytest.fixture(scope="module")
def begun(model):
    store = {}
    pac.sample(2, tune=2, model=model, zarr_store=store, **OPTIONS)
    return store


@pytest.mark.parametrize(
    ("changed", "options", "sentence"),
    [
        ({}, {"resume": False}, "expected an empty store, found 2 draws of 2 chains.*resume=True"),
        ({"sd": 2.0}, {}, r"same model.*found other log density of the model \(-"),
        ({"y": Y + 1.0}, {}, r"found other data \['y'\]; other log density"),
        ({}, {"tune": 3}, r"found other tune \(2 there, 3 here\)"),
        ({}, {"random_seed": 6}, r"found other random_seed \(5 there, 6 here\)"),
        ({}, {"draws": 1, "sites": "held"}, r"other draws \(2 there, 1 here\); other sites"),
        ({}, {"var_names": ["a"]}, r"found other recorded variables \['mu', 'range'"),
    ],
)
def test_another_run_is_refused(begun, model, changed, options, sentence):
    model = define(**changed) if changed else model
    arguments = {"draws": 2, "tune": 2, "resume": True, **OPTIONS, **options}
    with pytest.raises(pac.AugmentationError, match=sentence):
        pac.sample(model=model, zarr_store=begun, **arguments)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"zarr_store": None}, "expected zarr_store=…, the store to go on from, with resume"),
        ({"random_seed": np.random.default_rng(1)}, "expected an int with zarr_store"),
        ({"return_inferencedata": False}, "expected no 'return_inferencedata' with zarr_store"),
        ({"client": object()}, "expected no 'client' with zarr_store"),
    ],
)
def test_arguments_that_do_not_go_together(model, options, sentence):
    with pytest.raises(TypeError, match=sentence):
        pac.sample(2, **{"model": model, "zarr_store": {}, "resume": True, **OPTIONS, **options})


def test_other_data_and_other_steps_are_refused(model):
    import zarr

    store = {}
    zarr.open_group(store, mode="w", zarr_format=2).create_group("mine")
    with pytest.raises(pac.AugmentationError, match="found other data in"):
        pac.sample(2, model=model, zarr_store=store, **OPTIONS)
    with pytest.raises(pac.AugmentationError, match=r"PyMC's steps for .*leave zarr_store out"):
        pac.sample(2, tune=1, model=model, vars=["a"], zarr_store={}, **OPTIONS)


def test_an_interrupted_run_returns_what_is_there(model):
    def stop(trace, draw):
        if (draw.chain, draw.draw_idx) == (1, 9):
            raise KeyboardInterrupt

    options, store = {**OPTIONS, "tune": 3, "draws": 12, "chains": 3}, {}
    expected = pac.sample(model=model, **options).posterior["a"]
    with pytest.warns(UserWarning, match="interrupted after 12 .* they are in memory://.*resume"):
        part = pac.sample(model=model, zarr_store=store, callback=stop, **options)
    np.testing.assert_array_equal(part.posterior["a"], expected[:2, :7])
    seen = []
    options["callback"] = lambda trace, draw: seen.append((draw.chain, draw.draw_idx))
    whole = pac.sample(model=model, zarr_store=store, resume=True, **options)
    np.testing.assert_array_equal(whole.posterior["a"], expected)
    # Of chain 1 no state was written: the first ones are due after some seconds.
    assert seen == [(chain, i) for chain in (1, 2) for i in range(15)]


def test_zarr_is_not_installed(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    monkeypatch.delitem(sys.modules, "pymc_augconj.results.draw_store")
    with pytest.raises(ImportError, match=r"pip install 'pymc-augconj\[zarr\]'"):
        module.sample(2, model=model, zarr_store={})
