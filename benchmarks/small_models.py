"""Small and middle-sized models beside NUTS, end to end and sampling alone.

The smallest bulk effective sample size a second over every free variable, of a whole call, and of
what further draws of one chain cost, when everything is compiled. Kernels of the compiled loop,
which are the same for all models, are compiled beforehand.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import nutpie
import pymc as pm

import pymc_augconj as pac
from benchmarks.harness import CORES, Row, Settings, compile_kernels, measure
from benchmarks.sampling import SEED, diagnose
from benchmarks.small_problems import MODELS

# Draws of short runs, and the least seconds that further ones take.
_SHORT, _SECONDS = 500, 2.0


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
    return {
        "seconds": seconds,
        "ess": ess,
        "ess_min_per_second": min(ess.values()) / seconds,
        "r_hat_max": r_hat,
    }


def measure_further(*, sampler: str, name: str, draws: int) -> dict[str, Any]:
    """Return what further draws of one chain cost and bring, compilation and tuning left out.

    It is the difference between a long run and the quicker of two short ones, in one process in
    which all is compiled; the long one has so many more draws that they take two seconds at least.
    """
    model = MODELS[name]()
    options = {"chains": 1, "cores": 1}
    compiled = nutpie.compile_pymc_model(model) if sampler == "nuts" else None

    def call(count: int) -> tuple[float, Any]:
        start = time.perf_counter()
        if compiled is not None:
            tree = nutpie.sample(compiled, draws=count, seed=SEED, progress_bar=False, **options)
        else:
            quiet = {"progressbar": False, "compute_convergence_checks": False}
            tree = pac.sample(count, model=model, random_seed=SEED, **quiet, **options)
        return time.perf_counter() - start, tree

    call(_SHORT)
    short = min(call(_SHORT)[0] for _ in range(2))
    seconds, more = 0.0, draws
    while seconds < _SECONDS:
        # The start of a call alone takes a tenth of a second more or less.
        more *= 4
        total, tree = call(_SHORT + more)
        seconds = total - short
    least = [float(az.ess(tree["posterior"].to_dataset()[v.name]).min()) for v in model.free_RVs]
    a_draw, share = seconds / more, min(least) / (_SHORT + more)
    return {"us_a_draw": 1e6 * a_draw, "ess_a_draw": share, "ess_per_second": share / a_draw}


def rows(settings: Settings) -> Iterator[Row]:
    """Yield a row for the kernels, and one per model."""
    with tempfile.TemporaryDirectory(prefix="augconj-kernels-") as folder:
        kernels = Path(folder)
        yield Row(
            benchmark="kernels of the compiled loop, once a machine",
            ours=compile_kernels(kernels),
            floor=None,
            unit="s",
            bar=20.0,
            bar_is="at most",
        )
        yield from _rows_of_models(settings, partial(measure, kernels=kernels))


def _rows_of_models(settings: Settings, measure: Callable[..., dict[str, Any]]) -> Iterator[Row]:
    draws = 100 if settings.quick else 1000
    for name, build in MODELS.items():
        runs = {
            sampler: measure("benchmarks.small_models:run", sampler=sampler, name=name, draws=draws)
            for sampler in ("gibbs", "nuts")
        }
        further = {
            sampler: measure(
                "benchmarks.small_models:measure_further",
                cores=1,
                sampler=sampler,
                name=name,
                draws=draws,
            )
            for sampler in runs
        }
        alone = further["gibbs"]["ess_per_second"] / further["nuts"]["ess_per_second"]
        size = sum(int(np.prod(v.shape.eval())) for v in build().free_RVs)
        for sampler, result in runs.items():
            print(
                f"  {name}, {sampler}: {result['seconds']:.1f} s, "
                f"{result['ess_min_per_second']:.3g} ESS/s, largest R-hat "
                f"{result['r_hat_max']:.3f}; alone {further[sampler]['us_a_draw']:.1f} µs and "
                f"{further[sampler]['ess_a_draw']:.2f} effective draws a draw",
                flush=True,
            )
        print(f"  {name}: {size} numbers; sampling alone ratio {alone:.2f}", flush=True)
        yield Row(
            benchmark=f"{name}: least ESS/s",
            ours=runs["gibbs"]["ess_min_per_second"],
            floor=runs["nuts"]["ess_min_per_second"],
            unit="ESS/s",
            bar=3.0,
            bar_is="at least",
            details={**runs, "further": further, "ratio_without_compilation": alone, "size": size},
        )
