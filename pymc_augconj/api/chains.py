"""The chains of ``pac.sample`` as tasks of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import cloudpickle
import numpy as np
from pymc.model import Model
from pymc.stats.convergence import log_warnings, run_convergence_checks
from pymc.util import get_random_generator
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pymc_augconj.parallel.client import executor_of
from pymc_augconj.results.comparison.fits import DataTree, join_chains

__all__ = ["sample_chains"]

_CHAINS = 4
# Seconds between two looks at whether a chain is still wanted, and between two reports of it.
_INTERVAL = 0.25
_REFUSED = ("callback", "trace", "return_inferencedata", "mp_ctx")


def sample_chains(
    client: Any, run: Callable[..., DataTree], model: Model, draws: int, options: dict[str, Any]
) -> DataTree:
    """Return the draws of ``run``, each chain of which is sampled by a task of its own.

    Parameters
    ----------
    client
        As for :func:`~pymc_augconj.parallel.client.executor_of`.
    run : callable
        ``run(draws, **options)``, as ``pymc.sample``; it is pickled.
    model : pymc.Model
    draws : int
    options : dict
        Of ``pymc.sample``.

    Raises
    ------
    TypeError
        If an option needs the chains in this process.
    """
    for name in _REFUSED:
        if options.get(name) is not None:
            raise TypeError(f"pac.sample: expected no {name!r} with client=…; leave it out")
    options = dict(options)
    chains = options.pop("chains", None) or _CHAINS
    check = options.pop("compute_convergence_checks", True)
    initvals, show = options.pop("initvals", None), options.pop("progressbar", True)
    rng = get_random_generator(options.pop("random_seed", None))
    options |= {"chains": 1, "cores": 1, "progressbar": False, "quiet": True}
    pickled = cloudpickle.dumps((run, draws, options | {"compute_convergence_checks": False}))
    begin = time.time()
    with ExitStack() as stack:
        executor = stack.enter_context(executor_of(client))
        topic = uuid4().hex if show else None
        if topic is not None:
            bar = _Bar(chains, draws)
            stack.enter_context(bar.progress)
            stack.enter_context(executor.listening(topic, bar.update))
        shared = executor.share(pickled)
        tasks = [
            executor.submit(
                _chain, shared, k, _generator(rng, k),
                initvals[k] if isinstance(initvals, list | tuple) else initvals,
                executor.is_cancelled, topic, executor.tell,
            )
            for k in range(chains)
        ]  # fmt: skip
        found = join_chains(executor.gather(tasks))
    found["posterior"].attrs["sampling_time"] = time.time() - begin
    if check:
        log_warnings(run_convergence_checks(found, model))
    return found


def _generator(rng: np.random.Generator, number: int) -> np.random.Generator:
    """Return the generator whose first child is child ``number`` of ``rng``, as PyMC spawns it."""
    seeds: Any = rng.bit_generator.seed_seq
    own = np.random.SeedSequence(
        seeds.entropy,
        spawn_key=seeds.spawn_key,
        pool_size=seeds.pool_size,
        n_children_spawned=seeds.n_children_spawned + number,
    )
    return np.random.Generator(type(rng.bit_generator)(own))


def _chain(
    pickled: bytes,
    number: int,
    rng: np.random.Generator,
    initvals: Any,
    is_cancelled: Callable[[], bool],
    topic: str | None,
    tell: Callable[[str, Any], None],
) -> DataTree:
    """Return the draws of one chain; on a worker."""
    run, draws, options = cloudpickle.loads(pickled)
    looked, done = time.monotonic(), 0

    def look(trace: Any, draw: Any) -> None:
        nonlocal looked, done
        done += not draw.tuning
        if (now := time.monotonic()) - looked < _INTERVAL:
            return
        looked = now
        if is_cancelled():
            raise CancelledError(f"chain {number} is no longer wanted")
        if topic is not None:
            tell(topic, [number, done])

    found = run(draws, random_seed=rng, initvals=initvals, callback=look, **options)
    if topic is not None:
        tell(topic, [number, done])
    return found


class _Bar:
    """A line for each chain."""

    def __init__(self, chains: int, draws: int) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        self.progress = Progress(*columns, TextColumn("draws"), TimeElapsedColumn())
        self._lines = [self.progress.add_task(f"chain {k}", total=draws) for k in range(chains)]

    def update(self, found: Any) -> None:
        """Show the draws of a chain after tuning."""
        number, count = found
        self.progress.update(self._lines[number], completed=count)
