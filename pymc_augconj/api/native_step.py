"""The step of ``pac.sample``: that of ``pm.sample``, most of which a compiled loop makes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pymc_augconj.engines.gibbs.native.loop import NativeLoop
from pymc_augconj.engines.gibbs.state import GibbsInfo
from pymc_augconj.model import Point
from pymc_augconj.python_mode.tape import NoTapeError, OnTape

from .step import AugmentedGibbs
from .updates import SliceUpdate

__all__ = ["NativeGibbs"]

# Steps of a chain from which loading the loop takes less time than it saves.
_FEWEST = 500
# Steps of the first block; seconds that later ones take, as interrupts wait for their end; and
# the numbers that they record at most.
_FIRST, _SECONDS, _LARGEST = 8, 0.05, 4_000_000


class NativeGibbs(AugmentedGibbs):
    """Makes blocks of steps by a :class:`.NativeLoop`, and hands them out one by one.

    Python makes those that are compared with PyMC or another factorisation, those at which the
    updates learn their axes, and those that the loop leaves to it. The draws do not depend on how
    many steps a block has. Nothing else may change the point between steps.
    """

    _loop: NativeLoop | None = None

    def prepare(self, recorded: OnTape | None, steps: int) -> bool:
        """Make the loop for chains of so many steps; return whether there is one.

        ``recorded`` is a function of the point whose values are recorded.
        """
        learn = (isinstance(update, SliceUpdate) for update in self._updates.values())
        if steps >= _FEWEST and all(learn):
            start = self._default_start
            with suppress(NoTapeError):
                self._loop = NativeLoop(self.make_sampler(start), start, recorded)
        return self._loop is not None

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Prepare for one chain."""
        super().setup_chain(rng, tune, draws)
        self._n_tune, self._size = tune, _FIRST
        self._queue: Iterator[tuple[Point, list[dict[str, Any]]]] = iter(())
        # The log evidence at the point, where Python has made it.
        self._evidence: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_loop": None, "_queue": iter(())}

    def _step(self, point: Point) -> tuple[Point, list[dict[str, Any]]]:
        found = next(self._queue, None) if self._loop is not None else None
        if found is None and self._loop is not None and (steps := self._steps_ahead()) > 0:
            self._queue = self._made(self._loop, point, steps)
            found = next(self._queue, None)
        if found is not None:
            self._taken += 1
            return found
        new, stats = super()._step(point)
        self._evidence = stats[0]["log_evidence"]
        return new, stats

    def _steps_ahead(self) -> int:
        """Return the number of steps before the next one that is for Python, or of a block."""
        updates = [self._updates[move] for move, own in self.plan.moves.items() if own]
        if not self.started or any(update.state["axes"] is None for update in updates):
            return 0
        limits = [number - self._taken for number in self._checked if number >= self._taken]
        if self.tune:
            limits.append(self._n_tune - self._taken)
            for update in updates:
                (ellipses, along), state = update.schedule, update.state
                limits.append((state["window"] - 1 - state["count"]) // (ellipses + (along == 2)))
        return min(self._remaining, self._size, *limits)

    def _made(
        self, loop: NativeLoop, point: Point, steps: int
    ) -> Iterator[tuple[Point, list[dict[str, Any]]]]:
        """Make a block, and return its points and statistics."""
        sampler, updates, begin = self._sampler, self._updates, time.perf_counter()
        assert sampler is not None  # after the first step
        expected, self._evidence = self._evidence, None
        if expected is not None:
            loop.check_evidence(point, expected)
        block = loop.run(self.rng, sampler, point, updates, steps, tune=self.tune)
        made = len(block.outputs)
        seconds = max(time.perf_counter() - begin, 1e-6)
        most = _LARGEST // max(block.outputs.shape[1], 1)
        self._size = max(1, min(int(max(made, 1) * _SECONDS / seconds), most))
        points = list(block.points(point))
        if expected is not None and points:
            loop.check_density(sampler, points[-1], block.log_density[-1])
        warning = None
        if made and not self.tune:
            last = made == self._remaining
            warning = self._refusals.count(GibbsInfo(), last=last, steps=made)
        rows = zip(
            points,
            block.log_evidence.tolist(),
            block.evaluations.astype(int).tolist(),
            block.log_density.tolist(),
            [*[None] * (made - 1), warning][:made],
            strict=True,
        )
        same = {"tune": self.tune, "jitter": 0.0, "refusals": 0}
        for new, log_evidence, evaluations, log_density, told in rows:
            stats = {
                "log_evidence": log_evidence,
                "evaluations": evaluations,
                "model_logp": log_density,
                "warning": told,
            }
            yield new, [same | stats]
