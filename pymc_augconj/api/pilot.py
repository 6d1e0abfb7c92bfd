"""The expected time of sampling a model, from short runs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from pymc.model import Model

from .sample import sample
from .step import AugmentedGibbs

# Draws of the first runs, and of one that is long enough for the compiled loop; the most that are
# added to it.
_PILOT, _SHORT, _MOST = 25, 300, 5_000
# Tuning steps and draws of a whole run, and its chains.
TUNE, WHOLE, CHAINS = AugmentedGibbs.default_tune_steps, 1000, 4


def expected_time(model: Model, seconds: float, seed: int | None = None) -> tuple[float, float]:
    """Return the seconds of a step, and of a run of four chains one after the other.

    Longer runs follow if each takes at most about ``seconds``.
    """
    options: dict[str, Any] = {"chains": 1, "quiet": True, "compute_convergence_checks": False}
    options |= {"progressbar": False, "random_seed": seed, "model": model}

    def timed(draws: int, tune: int) -> float:
        """Return the seconds of the steps alone."""
        return float(sample(draws, tune=tune, **options)["posterior"].attrs["sampling_time"])

    start = time.perf_counter()
    a_step = timed(_PILOT, _PILOT) / (2 * _PILOT)
    begin = time.perf_counter() - start
    if a_step * (TUNE + _SHORT) > seconds:
        return a_step, begin + CHAINS * (TUNE + WHOLE) * a_step
    timed(_SHORT, TUNE)  # what is compiled is loaded
    short = timed(_SHORT, TUNE)
    further = int(np.clip(seconds * (TUNE + _SHORT) / short, _SHORT, _MOST))
    a_draw = max(timed(_SHORT + further, TUNE) - short, 0.0) / further
    return a_draw, begin + CHAINS * (short + (WHOLE - _SHORT) * a_draw)
