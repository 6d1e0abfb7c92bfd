"""Fits and chains on the two worker processes of a local cluster: the numbers of one process."""

from __future__ import annotations

import ast
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac

QUIET = {"progressbar": False}


@pytest.fixture(scope="module")
def client():
    dask = pytest.importorskip("dask")
    distributed = pytest.importorskip("distributed")
    import multiprocessing

    # Workers, and those in place of a killed one, are forked from a process that has imported all.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["pymc_augconj"])
    options = {
        "distributed.worker.multiprocessing-method": "forkserver",
        "distributed.scheduler.allowed-failures": 5,
        "distributed.admin.tick.limit": "1h",
    }
    with (
        dask.config.set(options),
        distributed.LocalCluster(
            2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def tasks_left(client):
    """Return the tasks that the scheduler knows, once those that end have ended."""
    for _ in range(200):
        left = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
        running = sum(client.run(lambda dask_worker: len(dask_worker.state.executing)).values())
        if not left and not running:
            break
        time.sleep(0.02)
    return left, running


def small_model():
    X = np.linspace(0.0, 1.0, 5)[:, None]
    with pm.Model(coords={"place": list("abcde")}) as model:
        ls = pm.InverseGamma("ls", 5, 3)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", X=X, dims="place")
        pm.Deterministic("p", pm.math.invlogit(f), dims="place")
        pm.Bernoulli("y", logit_p=f, observed=[0, 1, 1, 0, 1], dims="place")
    return model


def test_nothing_imports_dask_without_a_client():
    """That no other module imports it at all is in the tests of the packaging."""
    for path in Path(pac.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and path.name != "dask.py":
                assert "dask" not in f"{node.module}", path


def test_chains_are_those_of_one_process(client, capsys):
    model = small_model()
    options = {"tune": 5, "chains": 3, "model": model, "compute_convergence_checks": False}
    seed = np.random.default_rng(3)
    here = pac.sample(8, cores=1, random_seed=seed, discard_tuned_samples=False, **QUIET, **options)
    there = pac.sample(8, client=client, random_seed=seed, discard_tuned_samples=False, **options)
    assert "8/8 draws" in capsys.readouterr().out
    assert set(there.children) == set(here.children)
    for group in ("posterior", "warmup_posterior", "sample_stats", "observed_data"):
        ours, theirs = there[group], here[group]
        assert set(ours.data_vars) == set(theirs.data_vars)
        assert ours.sizes == theirs.sizes
        for name in theirs.data_vars:
            if theirs[name].dtype.kind in "fiub" and "time" not in name:
                np.testing.assert_array_equal(ours[name], theirs[name])
                assert ours[name].dims == theirs[name].dims
    np.testing.assert_array_equal(there.posterior["place"], list("abcde"))
    np.testing.assert_array_equal(there.posterior["chain"], [0, 1, 2])
    assert there.posterior.attrs.keys() == here.posterior.attrs.keys()
    assert tasks_left(client) == ([], 0)


def test_an_interrupt_stops_the_chains(client):
    threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pac.sample(10**7, chains=2, client=client, model=small_model(), **QUIET)
    assert tasks_left(client) == ([], 0)
    assert time.monotonic() - begin < 20


def test_what_needs_the_chains_here_is_refused(client):
    with pytest.raises(TypeError, match="expected no 'callback' with client"):
        pac.sample(client=client, model=small_model(), callback=print)
