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
    # Workers, and those in place of a killed one, are forked from a process that has imported all.
    options = {
        "distributed.worker.multiprocessing-method": "forkserver",
        "distributed.scheduler.allowed-failures": 5,
        "distributed.admin.tick.limit": "1h",
    }
    with (
        dask.config.set(options),
        distributed.LocalCluster(
            2, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit=0
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
            if isinstance(node, ast.ImportFrom) and not path.name.startswith("dask"):
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
    def interrupt():
        while not client.run_on_scheduler(lambda dask_scheduler: running_tasks(dask_scheduler)):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    def running_tasks(scheduler):
        return sum(len(worker.processing) for worker in scheduler.workers.values())

    # Processes of pytest-xdist ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            pac.sample(10**7, chains=2, client=client, model=small_model(), **QUIET)
    finally:
        signal.signal(signal.SIGINT, before)
    assert tasks_left(client) == ([], 0)


N, ROWS = 400, 40
Z = np.linspace(-3, 3, 8)[:, None]


@pytest.fixture(scope="module")
def fits(client):
    """A model on a sample, and what fits it to all the data in one process or on the cluster."""
    da = pytest.importorskip("dask.array")
    rng = np.random.default_rng(1)
    X = rng.uniform(-3.0, 3.0, (N, 1))
    y = (rng.random(N) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(1.5 * X[:, 0])))).astype(int)

    def write(rows):
        with pm.Model() as model:
            data = pm.Data("X", X[rows]), pm.Data("y_data", y[rows])
            gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=pm.InverseGamma("ls", 5, 5)))
            pm.Bernoulli("y", logit_p=gp.prior("f", X=data[0]), observed=data[1])
        return model, gp

    model, gp = write(slice(ROWS))

    def fit(method, change=lambda X: None, **options):
        values = X.copy()
        change(values)
        arrays = {"X": da.from_array(values, (ROWS, 1)), "y_data": da.from_array(y, (100,))}
        given = {"inducing": Z, "data": arrays, "model": model, "gp": gp} | QUIET
        return pac.fit(method, **(given | options))

    fit.gp, fit.write = gp, write
    return fit


@pytest.fixture(scope="module")
def whole(fits):
    return fits("cavi")


def assert_same(one, other):
    np.testing.assert_array_equal(one.h, other.h)
    np.testing.assert_array_equal(one.lam, other.lam)
    assert one.theta == other.theta
    assert one.log_evidence == other.log_evidence


def test_a_fit_is_that_of_one_process_though_a_worker_is_lost(client, fits, whole):
    folders = client.run(lambda dask_worker: sorted(os.listdir(dask_worker.local_directory)))
    pids = client.run(os.getpid)
    lost = min(pids, key=pids.get)

    def kill(state):
        if state.count == 5:
            os.kill(pids[lost], signal.SIGKILL)

    assert_same(fits("cavi", client=client, callback=kill), whole)
    assert pids[lost] not in client.run(os.getpid).values()
    assert tasks_left(client) == ([], 0)
    found = client.run(lambda dask_worker: sorted(os.listdir(dask_worker.local_directory)))
    assert all(files == folders.get(worker, files) for worker, files in found.items())


def test_a_fit_is_that_of_a_model_of_all_the_data(fits, whole):
    model, gp = fits.write(slice(None))
    plain = pac.fit("cavi", model=model, gp=gp, inducing=Z, **QUIET)
    # L-BFGS ends where derivatives are 1e-4: some 1e-4 from the optimum, and 1e-8 below it.
    assert whole.objective == pytest.approx(plain.objective, abs=1e-6)
    np.testing.assert_allclose(whole.theta["ls"], plain.theta["ls"], rtol=1e-3)
    np.testing.assert_allclose(whole.mean["f_u"], plain.mean["f_u"], atol=1e-2)


def test_a_fit_goes_on_where_it_was_saved(fits, whole, tmp_path):
    with pytest.warns(RuntimeWarning, match="increase max_iter"):
        early = fits("cavi", max_iter=2)
    early.save(tmp_path / "early.npz")
    later = fits("cavi", start=pac.Approximation.load(tmp_path / "early.npz"))
    assert early.objective < whole.objective - 1e-3
    assert later.objective == pytest.approx(whole.objective, abs=1e-6)
    assert len(later.history) < len(whole.history)
    # From where it ended there is nothing to do.
    fixed = fits("cavi", start=whole, hyper="fixed")
    assert len(fixed.history) == 1
    assert fixed.log_evidence == pytest.approx(whole.log_evidence, abs=1e-9)


def test_a_row_that_is_no_number_is_named(client, fits):
    def spoil(X):
        X[7 * ROWS + 3] = np.nan

    with pytest.raises(pac.DataError, match=r"'X'.*found nan in chunk 7, row 3, column 0"):
        fits("cavi", spoil, client=client)
    with pytest.raises(pac.DataError, match=r"found nan in chunk 7, row 3, column 0"):
        fits("svi", spoil, batch_size=80)
    assert tasks_left(client) == ([], 0)


@pytest.mark.filterwarnings("ignore:.*increase max_iter:RuntimeWarning")
def test_minibatches_are_those_of_one_process(client, fits, whole):
    options = {"batch_size": 80, "max_iter": 8, "random_seed": 3, "optimize_inducing": True}
    assert_same(fits("svi", client=client, **options), fits("svi", **options))
    # All rows at rate one are coordinate ascent.
    fixed = {"hyper": "fixed", "start": whole, "max_iter": 1, "batch_size": N, "rate": 1.0}
    assert fits("svi", **fixed).log_evidence == pytest.approx(whole.log_evidence, abs=1e-8)
    assert tasks_left(client) == ([], 0)


def test_predictions_are_lazy_and_the_same(client, fits, whole):
    da = pytest.importorskip("dask.array")
    new = np.linspace(-3, 3, 11)[:, None]
    options = {"kind": "y", "ynew": 1, "quantile": [0.1, 0.9]}
    here = pac.predict(whole, fits.gp, new, **options).predictions
    there = pac.predict(whole, fits.gp, da.from_array(new, (4, 1)), **options).predictions
    assert set(there.data_vars) == set(here.data_vars)
    for name, value in here.data_vars.items():
        assert there[name].dims == value.dims
        assert type(there[name].data) is da.Array
        np.testing.assert_allclose(there[name].values, value.values, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(there["quantile"], [0.1, 0.9])
    with pytest.raises(pac.AugmentationError, match="full_cov"):
        pac.predict(whole, fits.gp, da.from_array(new, (4, 1)), full_cov=True)


def test_what_needs_the_chains_here_is_refused(client):
    with pytest.raises(TypeError, match="expected no 'callback' with client"):
        pac.sample(client=client, model=small_model(), callback=print)
