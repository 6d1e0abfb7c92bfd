"""Small and middle-sized models beside NUTS, end to end and without compilation.

The smallest bulk effective sample size a second over every free variable; and the time of a step on
one core.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import nutpie  # noqa: F401 - so that pm.sample does not import it on NUTS's clock
import pymc as pm

import pymc_augconj as pac
from benchmarks.harness import CORES, Row, Settings, measure
from benchmarks.inside import Watch
from benchmarks.sampling import SEED, diagnose
from benchmarks.small_problems import HIERARCHICAL, MODELS

_STEPS = 500
_TUNING = 200
_EIGHT_SCHOOLS = ("eight schools, centred", "eight schools, non-centred")


def run(*, sampler: str, name: str, draws: int) -> dict[str, Any]:
    """Sample ``CORES`` chains; the clock starts at the call, the model written."""
    model = MODELS[name]()
    arguments = {"chains": CORES, "cores": CORES, "random_seed": SEED, "progressbar": False}
    with model:
        start = time.perf_counter()
        if sampler == "gibbs":
            idata = pac.sample(draws, **arguments)
        else:
            idata = pm.sample(draws, nuts_sampler="nutpie", **arguments)
        seconds = time.perf_counter() - start
    ess, r_hat = diagnose(idata, [variable.name for variable in model.free_RVs])
    sampling = idata["posterior"].attrs.get("sampling_time")
    return {
        "seconds": seconds,
        "sampling_seconds": sampling,
        "ess": ess,
        "ess_min_per_second": min(ess.values()) / seconds,
        "ess_min_per_sampling_second": min(ess.values()) / sampling if sampling else None,
        "r_hat_max": r_hat,
    }


def measure_step(*, name: str) -> dict[str, Any]:
    """Return the milliseconds of a step after tuning, and of these those that are overhead.

    Overhead is what is left without LAPACK, compiled kernels and the draws of auxiliary variables.
    """
    with MODELS[name]() as model:
        step = pac.AugmentedGibbs()
        point = model.initial_point(random_seed=SEED)
    step.setup_chain(np.random.default_rng(SEED), _TUNING, 2 * _STEPS)
    seconds, outside, evaluations = np.empty(_STEPS), np.empty(_STEPS), 0
    for _ in range(_TUNING):
        point, _ = step.step(point)
    step.stop_tuning()
    for i in range(_STEPS):
        start = time.perf_counter()
        point, (stats,) = step.step(point)
        seconds[i] = time.perf_counter() - start
        evaluations += stats["evaluations"]
    watch = Watch()
    watch.install()
    for i in range(_STEPS):
        start, inside = time.perf_counter(), watch.seconds
        point, _ = step.step(point)
        outside[i] = time.perf_counter() - start - (watch.seconds - inside)
    return {
        "step_ms": 1e3 * float(np.median(seconds)),
        "overhead_ms": 1e3 * float(np.median(outside)),
        "evaluations": evaluations / _STEPS,
    }


def rows(settings: Settings) -> Iterator[Row]:
    """Yield a row per model, and one for the step of those that have a bar."""
    draws = 100 if settings.quick else 1000
    for name, build in MODELS.items():
        runs = {
            sampler: measure("benchmarks.small_models:run", sampler=sampler, name=name, draws=draws)
            for sampler in ("gibbs", "nuts")
        }
        ours, theirs = (runs[s]["ess_min_per_sampling_second"] for s in ("gibbs", "nuts"))
        without = ours / theirs if ours and theirs else None
        size = sum(int(np.prod(v.shape.eval())) for v in build().free_RVs)
        for sampler, result in runs.items():
            print(
                f"  {name}, {sampler}: {result['seconds']:.1f} s, of these sampling "
                f"{result['sampling_seconds'] or np.nan:.1f}; {result['ess_min_per_second']:.3g} "
                f"ESS/s, largest R-hat {result['r_hat_max']:.3f}",
                flush=True,
            )
        print(f"  {name}: {size} numbers; without compilation ratio {without:.2f}", flush=True)
        yield Row(
            benchmark=f"{name}: least ESS/s",
            ours=runs["gibbs"]["ess_min_per_second"],
            floor=runs["nuts"]["ess_min_per_second"],
            unit="ESS/s",
            bar=3.0,
            bar_is="at least",
            details={**runs, "ratio_without_compilation": without, "size": size},
        )
        if name in (*_EIGHT_SCHOOLS, *HIERARCHICAL):
            step = measure("benchmarks.small_models:measure_step", cores=1, name=name)
            for what, key in {"a step": "step_ms", "overhead in it": "overhead_ms"}.items():
                yield Row(
                    benchmark=f"{name}: {what}",
                    ours=step[key],
                    floor=None,
                    unit="ms",
                    bar=0.3 if name in _EIGHT_SCHOOLS else 1.0,
                    bar_is="at most",
                    details=step,
                )
