"""One Gibbs step at fixed kernel against one Cholesky factorisation, its floor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
from scipy.linalg.lapack import dpotrf

import pymc_augconj as pac
from benchmarks.harness import Row, Settings, measure
from benchmarks.problems import Noise, build, load

# Data set, its size, the bar on the ratio of the medians.
SIZES = (("housing", 506, 2.0), ("simulated-1000", 1000, 1.6), ("simulated-2000", 2000, 1.4))
NOISES: tuple[Noise, ...] = ("student_t", "logit")
WARM_UP_STEPS = 5


def measure_step(*, data: str, name: str, noise: Noise, repetitions: int) -> dict[str, Any]:
    """Time steps and factorisations in turn, so that whatever disturbs the machine hits both."""
    X, y = load(data, name)
    model = build(X, y, noise, learned=False)
    with model:
        step = pac.AugmentedGibbs()
        point = model.initial_point(random_seed=1)
    step.setup_chain(np.random.default_rng(1), 0, WARM_UP_STEPS + repetitions)
    for _ in range(WARM_UP_STEPS):
        point, _ = step.step(point)

    cov = pm.gp.cov.ExpQuad(X.shape[1], ls=float(np.sqrt(X.shape[1])))(X).eval()
    matrix = np.asfortranarray(cov + np.eye(len(X)))
    work = np.empty_like(matrix)
    steps, floors = np.empty(repetitions), np.empty(repetitions)
    for i in range(repetitions):
        np.copyto(work, matrix)
        start = time.perf_counter()
        _, info = dpotrf(work, lower=1, clean=0, overwrite_a=1)
        floors[i] = time.perf_counter() - start
        assert info == 0
        start = time.perf_counter()
        point, _ = step.step(point)
        steps[i] = time.perf_counter() - start
    return {
        "n": len(X),
        "repetitions": repetitions,
        "step_ms": 1e3 * float(np.median(steps)),
        "floor_ms": 1e3 * float(np.median(floors)),
        "step_ms_quartiles": (1e3 * np.quantile(steps, [0.25, 0.75])).tolist(),
        "floor_ms_quartiles": (1e3 * np.quantile(floors, [0.25, 0.75])).tolist(),
    }


def rows(settings: Settings) -> Iterator[Row]:
    """Yield a row per size and likelihood."""
    for name, n, bar in SIZES:
        for noise in NOISES:
            result = measure(
                "benchmarks.step_time:measure_step",
                cores=1,
                data=str(settings.data.resolve()),
                name=name,
                noise=noise,
                repetitions=20 if settings.quick else max(50, 200_000 // n),
            )
            yield Row(
                benchmark=f"one step over one dpotrf, n = {n}, {noise}",
                ours=result["step_ms"],
                floor=result["floor_ms"],
                unit="ms",
                bar=bar,
                bar_is="at most",
                details=result,
            )
