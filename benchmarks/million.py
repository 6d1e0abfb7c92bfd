"""A million observations: recognised and fitted through inducing points, in what time and memory.

No program is compared with; the bar is that of memory. The clock covers recognition, k-means++, the
iterations and the bound on all the data at the end.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm

import pymc_augconj as pac
from benchmarks.harness import Row, Settings, measure
from benchmarks.large_logit import D, draw

N, N_TEST, INDUCING = 1_000_000, 20_000, 200
BATCH_SIZE, ITERATIONS = 1000, 2000
LARGEST_MEMORY = 4.0  # GB


def measure_svi(*, n: int, max_iter: int) -> dict[str, Any]:
    """Fit once; return seconds, test loss and the peak of the process's memory."""
    data = draw(n, N_TEST, INDUCING)
    with pm.Model() as model:
        ls, eta = pm.InverseGamma("ls", 5, 10), pm.HalfNormal("eta", 2)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(D, ls=ls))
        f = gp.prior("f", X=data.X)
        pm.Bernoulli("y", logit_p=f, observed=data.y)
    start = time.perf_counter()
    vi = pac.fit(
        method="svi",
        model=model,
        gp=gp,
        inducing=INDUCING,
        batch_size=BATCH_SIZE,
        max_iter=max_iter,
        random_seed=0,
        progressbar=False,
    )
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    found = pac.predict(vi, gp, data.X_test, "y", model=model, ynew=data.y_test).predictions
    return {
        "seconds": seconds,
        "timings": vi.timings,
        "memory_gb": peak,
        "test_loss": -float(found["y_log_density"].mean()),
        "loss_of_truth": data.nll_of_truth,
        "theta": {key: np.asarray(value).tolist() for key, value in vi.theta.items()},
        "message": vi.message,
    }


def rows(settings: Settings) -> Iterator[Row]:
    """Yield the row."""
    found = measure(
        "benchmarks.million:measure_svi",
        n=50_000 if settings.quick else N,
        max_iter=100 if settings.quick else ITERATIONS,
    )
    yield Row(
        f"svi, n = 1e6, {ITERATIONS} iterations of {BATCH_SIZE}, {found['seconds']:.3g} s, test "
        f"loss {found['test_loss']:.4f} (truth's {found['loss_of_truth']:.4f}): memory",
        found["memory_gb"],
        None,
        "GB",
        LARGEST_MEMORY,
        "at most",
        found,
    )
