"""One timed run of either sampler; called by name in a fresh process, see ``harness.measure``."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any, Literal

import arviz as az
import numpy as np
import nutpie  # noqa: F401 - so that pm.sample does not import it on NUTS's clock
import pymc as pm
from xarray import DataTree

import pymc_augconj as pac
from benchmarks.harness import CORES, Row, Settings, measure
from benchmarks.problems import Noise, build, load

SEED = 1


def run(
    *,
    sampler: str,
    data: str,
    name: str,
    noise: Noise,
    learned: bool,
    draws: int,
    tune: int | None,
) -> dict[str, Any]:
    """Run :func:`timed` on one of the models of :mod:`benchmarks.problems`."""
    model = build(*load(data, name), noise, learned=learned)
    names = ["f", "ls", "eta"] if learned else ["f"]
    return timed(model, names, sampler=sampler, draws=draws, tune=tune)


def timed(
    model: pm.Model,
    names: list[str],
    *,
    sampler: str,
    draws: int,
    tune: int | None,
    sites: Literal["auto", "augmented", "held"] = "auto",
    cores: int = CORES,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Sample ``CORES`` chains and return the least bulk ESS, the seconds, and their quotient.

    ``sampler`` is ``"gibbs"`` or ``"nuts"``. The clock starts at the sampler's call, with the
    model written and everything imported, and stops when it returns.
    """
    arguments = {"chains": CORES, "cores": cores, "random_seed": SEED, "progressbar": False}
    with model:
        start = clock()
        if sampler == "gibbs":
            idata = pac.sample(draws, tune=tune, sites=sites, **arguments)
        else:
            idata = pm.sample(draws, tune=tune, nuts_sampler="nutpie", **arguments)
        seconds = clock() - start
    ess, r_hat = diagnose(idata, names)
    least = min(ess.values())
    # What PyMC and nutpie record: tuning and drawing, compilation left out.
    sampling_seconds = idata["posterior"].attrs.get("sampling_time")
    return {
        "draws": draws,
        "tune": idata["posterior"].attrs.get("tuning_steps", tune),
        "seconds": seconds,
        "sampling_seconds": sampling_seconds,
        "ess": ess,
        "ess_min": least,
        "ess_min_per_second": least / seconds,
        "ess_min_per_sampling_second": least / sampling_seconds if sampling_seconds else None,
        "r_hat_max": r_hat,
        "means": {
            name: np.asarray(idata["posterior"][name].mean(("chain", "draw"))).ravel().tolist()
            for name in ess
        },
    }


def diagnose(idata: DataTree, names: list[str]) -> tuple[dict[str, float], float]:
    """Return the least bulk ESS of each variable and the largest R-hat of all."""
    posterior = idata["posterior"].to_dataset()[names]
    ess = az.ess(posterior, method="bulk")
    r_hat = az.rhat(posterior)
    largest = max(float(r_hat[name].max()) for name in names)
    return {name: float(ess[name].min()) for name in names}, largest


def against_nuts(
    settings: Settings,
    label: str,
    bar: float,
    *,
    gibbs: dict[str, int | None],
    nuts: dict[str, int | None],
    function: str = "benchmarks.sampling:run",
    limit: float | None = None,
    **problem: Any,
) -> Row:
    """Run both samplers one after the other on one problem; the row of their quotient.

    ``gibbs`` and ``nuts`` give each one's ``draws`` and ``tune``, None for the default;
    ``function`` is called with these, ``sampler``, ``data`` and the rest of the problem. NUTS that
    has not returned after ``limit`` seconds has given no effective sample.
    """
    problem |= {"data": str(settings.data.resolve())}
    runs: dict[str, Any] = {}
    for sampler, length in {"gibbs": gibbs, "nuts": nuts}.items():
        try:
            most = limit if sampler == "nuts" else None
            result = measure(function, sampler=sampler, limit=most, **length, **problem)
        except subprocess.TimeoutExpired:
            print(f"  {label}, nuts: {length['draws']} draws a chain not finished in {limit:.0f} s")
            runs[sampler] = {"ess_min_per_second": 0.0, "limit": limit, **length}
            continue
        runs[sampler] = result
        print(
            f"  {label}, {sampler}: {result['draws']} draws a chain in {result['seconds']:.1f} s, "
            f"least ESS {result['ess_min']:.0f}, largest R-hat {result['r_hat_max']:.3f}",
            flush=True,
        )
    ours, theirs = (run.get("ess_min_per_sampling_second") for run in runs.values())
    if ours and theirs:
        runs["ratio_without_compilation"] = ours / theirs
        print(f"  {label}, without compilation in either: ratio {ours / theirs:.3g}", flush=True)
    return Row(
        benchmark=label,
        ours=runs["gibbs"]["ess_min_per_second"],
        floor=runs["nuts"]["ess_min_per_second"],
        unit="ESS/s",
        bar=bar,
        bar_is="at least",
        details=runs,
    )
