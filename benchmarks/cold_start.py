"""Seconds from the call to the first draw, with nothing compiled beforehand.

The clock starts at ``pac.sample(…)``, or before ``pac.AugmentedGibbs()`` is made for
``pm.sample(step=…)``, so it holds recognition, compilation, starting the chains and the first
tuning step; it stops at the first call of PyMC's ``callback``. The import of the packages is not
in it but is in the JSON file as ``import_seconds``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pymc as pm

import pymc_augconj as pac
from benchmarks.harness import CORES, Row, Settings, measure
from benchmarks.problems import Noise, build, load

DRAWS = 5
BARS = {False: 2.0, True: 6.0}  # seconds; kernel learned or not
SPELLINGS = ("pac.sample", "pm.sample")
NAME, NOISE = "housing", "student_t"


def measure_first_draw(
    *, data: str, name: str, noise: Noise, learned: bool, spelling: str
) -> dict[str, Any]:
    """Return the seconds to the first draw and to the return of a very short run."""
    model = build(*load(data, name), noise, learned=learned)
    arrivals: list[float] = []
    arguments = {
        "chains": CORES,
        "cores": CORES,
        "random_seed": 1,
        "progressbar": False,
        "compute_convergence_checks": False,
        "callback": lambda trace, draw: arrivals.append(time.perf_counter()),
    }
    with model:
        start = time.perf_counter()
        if spelling == "pac.sample":
            pac.sample(DRAWS, tune=DRAWS, **arguments)
        else:
            pm.sample(DRAWS, tune=DRAWS, step=pac.AugmentedGibbs(), **arguments)
        returned = time.perf_counter()
    return {"first_draw_seconds": arrivals[0] - start, "return_seconds": returned - start}


def rows(settings: Settings) -> Iterator[Row]:
    """Yield a row per kernel treatment and spelling."""
    for learned, bar in BARS.items():
        for spelling in SPELLINGS:
            result = measure(
                "benchmarks.cold_start:measure_first_draw",
                data=str(settings.data.resolve()),
                name=NAME,
                noise=NOISE,
                learned=learned,
                spelling=spelling,
            )
            kernel = "learned" if learned else "fixed"
            yield Row(
                benchmark=f"first draw, cold, kernel {kernel}, {spelling}",
                ours=result["first_draw_seconds"],
                floor=None,
                unit="s",
                bar=bar,
                bar_is="at most",
                details=result,
            )
