"""Saved states of a chain during sampling, and a chain that resumes from one.

The next steps depend on the state alone: the point, the generator, and everything that updates and
held sites have learned. PyMC counts the steps of a chain from its start. A resumed chain therefore
returns the earlier steps again without computing them, but for the first one, which fills caches
whose rounding later steps inherit.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from pymc.stats.convergence import SamplerWarning

from pymc_augconj.point import Point

#: The statistic of a step that has the state after it, pickled.
CHECKPOINT = "checkpoint"


class Checkpoint(NamedTuple):
    """A chain after some steps, with its warnings so far."""

    steps: int
    warnings: list[SamplerWarning]
    state: dict[str, Any]


class Checkpoints:
    """Adds the state to the statistics of some steps, and resumes from earlier states."""

    def __init__(self, interval: float, saved: Mapping[int, bytes]) -> None:
        self._interval, self._saved = interval, dict(saved)
        self._chain: Checkpoint | None = None
        self._known: tuple[Point, dict[str, Any]] | None = None
        self._made, self._last = 0, 0.0
        self._warnings: list[SamplerWarning] = []

    def begin(self, rng: np.random.Generator) -> None:
        """Begin a chain."""
        # PyMC has spawned the generator of each chain by its number.
        seeds: Any = rng.bit_generator.seed_seq
        pickled = self._saved.get(int(seeds.spawn_key[-1]))
        self._chain = None if pickled is None else pickle.loads(pickled)
        self._known, self._made, self._last = None, 0, time.monotonic()
        self._warnings = [] if self._chain is None else self._chain.warnings

    def step(self, step: Any, point: Point, *, last: bool) -> tuple[Point, list[dict[str, Any]]]:
        """Return the next point and its statistics, of an :class:`.AugmentedGibbs`."""
        self._made += 1
        if self._chain is not None and self._made <= self._chain.steps:
            if self._known is None:
                _, (stats,) = step._step(point)
                self._known = step.restore(self._chain.state), {**stats, "warning": None}
                self._last = time.monotonic()
            point, stats = self._known
            return point, [stats]
        point, (stats,) = step._step(point)
        if stats["warning"] is not None:
            self._warnings.append(stats["warning"])
        if last or time.monotonic() - self._last >= self._interval:
            state = step.save(point)
            if state is not None:
                checkpoint = Checkpoint(self._made, self._warnings, state)
                stats = {**stats, CHECKPOINT: pickle.dumps(checkpoint, protocol=-1)}
                self._last = time.monotonic()
        return point, [stats]
