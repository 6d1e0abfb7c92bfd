"""Fits of data in chunks: seconds and bytes of an iteration, and memory, beside one process.

``pac.fit("cavi", data=…)`` with hyperparameters held, on a file that is written chunk by chunk and
never in memory as a whole: a fresh process for all chunks one after the other, then a client with
two workers, each held to BLAS on one thread. With ``--quick`` n is 2·10⁵ instead of 10⁷.
"""

from __future__ import annotations

import os
import pickle
import resource
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

import pymc_augconj as pac
from benchmarks.harness import CORES, Row, Settings, measure
from benchmarks.large_logit import D, truth

N, N_SMALL, INDUCING, SAMPLE = 10_000_000, 100_000, 200, 1000
ROWS, ITERATIONS = 100_000, 4
# An iteration of one process of 2·10⁵ rows or more is to be halved by two workers, nearly.
LARGEST_SHARE, LARGEST_MEMORY = 0.65, 1.5  # of the time; GB


def write(folder: Path, n: int) -> None:
    """Write inputs and observations, a chunk at a time."""
    X = np.lib.format.open_memmap(folder / "X.npy", "w+", "float64", (n, D))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", "int8", (n,))
    for number, start in enumerate(range(0, n, ROWS)):
        rng, rows = np.random.default_rng((0, number)), slice(start, min(start + ROWS, n))
        X[rows] = rng.standard_normal((rows.stop - rows.start, D))
        y[rows] = rng.random(rows.stop - rows.start) < 1.0 / (1.0 + np.exp(-truth(X[rows])))


def fit(folder: Path, client: Any) -> tuple[Any, float]:
    """Return a fit of a few iterations, and the median of their seconds."""
    X, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "Xy")
    with pm.Model() as model:
        inputs, seen = pm.Data("X", np.array(X[:SAMPLE])), pm.Data("y", np.array(y[:SAMPLE]))
        gp = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.ExpQuad(D, ls=2.5))
        pm.Bernoulli("seen", logit_p=gp.prior("f", X=inputs), observed=seen)
    ends = [time.perf_counter()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # too few iterations
        found = pac.fit(
            "cavi",
            model=model,
            gp=gp,
            inducing=np.array(X[:INDUCING]),
            hyper="fixed",
            data={"X": X, "y": y},
            client=client,
            max_iter=ITERATIONS,
            callback=lambda state: ends.append(time.perf_counter()),
            progressbar=False,
        )
    # The first has the recognition and the start besides.
    return found, float(np.median(np.diff(ends)[1:]))


def peak() -> float:
    """Return the peak of this process's memory, GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def moved(dask_worker: Any) -> int:
    """Return the bytes that a worker has sent to others and to the client."""
    return int(dask_worker.transfer_outgoing_bytes_total)


def measure_chunks(*, folder: str, workers: int) -> dict[str, Any]:
    """Fit once, in this process (no workers) or on a local cluster."""
    if not workers:
        found, seconds = fit(Path(folder), None)
        return {"seconds": seconds, "bound": found.log_evidence, "client_gb": peak()}
    from distributed import Client, LocalCluster

    with (
        LocalCluster(workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        found, seconds = fit(Path(folder), client)
        sent = sum(client.run(moved).values()) / (len(found.history) + 1)
        # What every worker is told at an iteration: q(w).
        told = workers * len(pickle.dumps(found.natural_weights()))
        return {
            "seconds": seconds,
            "bound": found.log_evidence,
            "client_gb": peak(),
            "worker_gb": max(client.run(peak).values()),
            "bytes_per_iteration": sent + told,
            "pid": os.getpid(),
        }


def rows(settings: Settings) -> Iterator[Row]:
    """Yield the rows."""
    for n in (N_SMALL, 200_000 if settings.quick else N):
        with tempfile.TemporaryDirectory(prefix="augconj-chunks-") as folder:
            write(Path(folder), n)
            one, two = (
                measure("benchmarks.chunks:measure_chunks", folder=folder, workers=workers)
                for workers in (0, CORES)
            )
        details = {"one process": one, "workers": two, "n": n}
        told = f"cavi in chunks, n = {n:.0e}, M = {INDUCING}"
        yield Row(
            f"{told}: an iteration on {CORES} workers against one process, bounds "
            f"{abs(one['bound'] - two['bound']):.0e} apart, "
            f"{two['bytes_per_iteration'] / 1e6:.3g} MB moved",
            two["seconds"], one["seconds"], "s",
            # One chunk: nothing to divide, so this is the overhead.
            1.25 if n == N_SMALL else LARGEST_SHARE,
            "at most", details,
        )  # fmt: skip
        yield Row(
            f"{told}: memory of a worker (client {two['client_gb']:.2f} GB)",
            two["worker_gb"], None, "GB", LARGEST_MEMORY, "at most", details,
        )  # fmt: skip
