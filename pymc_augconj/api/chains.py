"""The chains of ``pac.sample``: an interrupt loses no draw; chains as tasks of a cluster.

PyMC samples chains one after the other in one process. An interrupt ends the current chain, and
PyMC continues with the next one; in the end it omits the chains that are too short.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import cloudpickle
import numpy as np
import pymc as pm
from pymc.backends.ndarray import NDArray
from pymc.model import Model
from pymc.stats.convergence import SamplerWarning, WarningType, log_warnings, run_convergence_checks
from pymc.util import get_random_generator
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pymc_augconj.errors import AugmentationError
from pymc_augconj.likelihoods.symmetric_noise import SymmetricNoise
from pymc_augconj.parallel.client import executor_of
from pymc_augconj.recognition.roles.structure import improper_variables
from pymc_augconj.results.comparison.fits import DataTree, join_chains, with_rest

from .native_step import Recorder
from .step import PythonGibbs

_CHAINS = 4
# Seconds between two looks at whether a chain is still wanted, and between two reports of it.
_INTERVAL = 0.25
# PyMC's message if no chain has a draw.
_NO_DRAW = "Not enough samples"
# Variables of fewer effective draws are named, where PyMC has checked as many draws of as many
# chains, unless a variable has more entries.
_FEW, _FEWEST_CHECKED, _FEWEST_CHAINS, _MOST_CHECKED = 50, 100, 2, 1000
# Ratio of the 95 % to the 5 % quantile of |x| that no posterior with an integral is likely to have.
_WIDEST = 1e8
# Root mean square of a process of which PyMC's jitter, a variance of 1e-6, is a tenth or more.
_SMALL_PROCESS = 10.0**-2.5
_REFUSED = ("callback", "trace", "return_inferencedata", "mp_ctx")


class Chains:
    """The chains of one call: it calls the user's callback, and keeps traces until the end.

    It is PyMC's callback where there is a user's, or the trace is not the package's own. Otherwise
    PyMC has none: a call for each draw takes a good part of a step of a small model.
    """

    def __init__(self, callback: Callable[..., None] | None) -> None:
        self._callback = callback
        self._traces: dict[int, Any] = {}
        # Steps of the chains that began in this process, and those of which it was called.
        self._expected = self._noted = 0

    @property
    def _steps_left(self) -> int:
        return self._expected - (self._noted or sum(map(len, self._traces.values())))

    def begin(self, steps: int) -> None:
        """Begin a chain in this process, unless the one before was interrupted."""
        if self._steps_left > 0:
            raise KeyboardInterrupt
        self._expected += steps

    def __call__(self, trace: Any, draw: Any) -> None:
        """Take note of a recorded step."""
        self._traces[draw.chain] = trace
        if self._callback is not None and not getattr(trace, "repeats", False):
            self._callback(trace=trace, draw=draw)
        self._noted += 1

    def run(self, sample: Callable[..., Any], draws: int, **options: Any) -> Any:
        """Return the result of ``pm.sample``, with every draw of interrupted chains."""
        trace = options.get("trace")
        options["callback"] = self
        if self._callback is None and type(trace) is Recorder:
            trace.begun = self._traces
            options["callback"] = None
        try:
            return self._whole(sample(draws, **options), draws, options)
        except ValueError as error:
            # That of an interrupt, not of a chain.
            if not str(error).startswith(_NO_DRAW) or not self._interrupted(options):
                raise
            raise KeyboardInterrupt("interrupted before the first draw after tuning") from None
        finally:
            # Traces that know each other are freed late.
            self._traces.clear()

    def _whole(self, found: Any, draws: int, options: Mapping[str, Any]) -> Any:
        traces = {k: trace for k, trace in sorted(self._traces.items()) if len(trace)}
        ours = all(isinstance(trace, NDArray) for trace in traces.values())
        if not (ours and self._interrupted(options)):
            return found
        tune = max(trace.draws for trace in traces.values()) - draws
        numbers = {k: max(len(trace) - tune, 0) for k, trace in traces.items()}
        made = ", ".join(f"{number} draws of chain {k}" for k, number in numbers.items())
        if isinstance(found, DataTree):
            found = with_rest(found, traces, tune)
            rest = " and 'posterior_rest'" if "posterior_rest" in found.children else ""
            kept = f"they are in the group 'posterior'{rest}"
        elif where := getattr(next(iter(traces.values())), "where", None):
            kept = f"they are in {where}, from which resume=True goes on"
        else:
            kept = f"the {type(found).__name__} has {len(found)} draws of chains {found.chains}"
        warnings.warn(f"interrupted after {made}; {kept}", UserWarning, stacklevel=5)
        return found

    def _interrupted(self, options: Mapping[str, Any]) -> bool:
        short = any(len(t) < t.draws for t in self._traces.values() if isinstance(t, NDArray))
        few = len(self._traces) < (options.get("chains") or 1)
        return short or few or self._steps_left > 0


def sample_chains(
    client: Any, run: Callable[..., DataTree], model: Model, draws: int, options: dict[str, Any]
) -> DataTree:
    """Return the draws of ``run``, a function like ``pymc.sample``, with a task for each chain."""
    if isinstance(client, ThreadPoolExecutor):
        raise AugmentationError(
            "client: expected processes for chains, a distributed.Client or a "
            f"ProcessPoolExecutor, got {client!r}"
        )
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
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
            bar = Progress(*columns, TextColumn("draws"), TimeElapsedColumn())
            lines = [bar.add_task(f"chain {k}", total=draws) for k in range(chains)]
            stack.enter_context(bar)
            stack.enter_context(
                executor.listening(topic, lambda of: bar.update(lines[of[0]], completed=of[1]))
            )
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
    how = {"spawn_key": seeds.spawn_key, "pool_size": seeds.pool_size}
    spawned = seeds.n_children_spawned + number
    own = np.random.SeedSequence(seeds.entropy, n_children_spawned=spawned, **how)
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


def warn_of_signs(tree: Any, step: PythonGibbs, model: Model) -> None:
    """Write into PyMC's log what draws show to be wrong, if there are any."""
    if not isinstance(tree, DataTree) or "posterior" not in tree.children:
        return
    signs = [*_signs_of_few_draws(tree, step), *signs_of_impropriety(tree, model)]
    signs += _signs_of_jitter(tree)
    log_warnings([SamplerWarning(WarningType.CONVERGENCE, each, "warn") for each in signs])


def _signs_of_few_draws(tree: DataTree, step: PythonGibbs) -> list[str]:
    """Return a sentence about variables with few effective draws, if draws suffice to tell."""
    posterior, model = tree["posterior"], step.recognition.model
    if posterior.sizes["draw"] < _FEWEST_CHECKED or posterior.sizes["chain"] < _FEWEST_CHAINS:
        return []
    names = [h.name for h in model.hyperparameters]
    names += [block.name for block in model.blocks]
    few: dict[str, float] = {}
    for name in names:
        if name in posterior and posterior[name].isel(chain=0, draw=0).size <= _MOST_CHECKED:
            least = float(pm.stats.ess(tree, var_names=[name])[name].min())
            few |= {name: least} if least < _FEW else {}
    if not few:
        return []
    listed = ", ".join(f"{name!r} ({least:.0f})" for name, least in few.items())
    augmented = [s for s in model.sites if s.likelihood.has_auxiliary]
    other = "augmented" if step.held else "held"
    tries = ["draw more"] + ([f'try sites="{other}"'] if augmented else [])
    # Given latents that have priors of their own, scales of these hardly move.
    of_few = {h.value_name for h in model.hyperparameters if h.name in few}
    of_priors = [s for s in augmented if s.is_prior and of_few.intersection(s.params.names)]
    tries += [
        f"write {site.name!r} as its location plus its scale times one of location 0 and scale 1"
        for site in of_priors
        if isinstance(getattr(site.likelihood, "formulas", None), SymmetricNoise)
    ]
    left = [repr(h.name) for h in step.plan.left_to_pymc if h.name in few]
    if left:
        tries.append(f"sample with NUTS alone, which updates {' and '.join(left)} already")
    elif model.hyperparameters:
        tries.append("compare with NUTS alone (nutpie) if hyperparameters depend on each other")
    return [f"The effective sample size is below {_FEW} for {listed}: {', or '.join(tries)}"]


def signs_of_impropriety(tree: DataTree, model: Model) -> list[str]:
    """Return a sentence for each variable with an improper prior and draws without a scale."""
    found: list[str] = []
    for name in set(improper_variables(model)).intersection(tree["posterior"].data_vars):
        low, high = np.quantile(np.abs(tree["posterior"][name]), (0.05, 0.95), axis=(0, 1))
        if np.any(high > _WIDEST * low):
            found.append(
                f"{name!r}: expected draws on one scale, found 90 % of them between "
                f"{np.min(low):.1e} and {np.max(high):.1e}: the posterior is probably improper, as "
                "the prior is, and these draws mean nothing; give it a proper prior, such as "
                "pm.HalfNormal for a standard deviation"
            )
    return found


def _signs_of_jitter(tree: DataTree) -> list[str]:
    """Return a sentence for each process as small as what PyMC adds to its variance.

    A ``pm.gp.Latent`` is one with a variable for its whitened values, and a variance of 1e-6 more.
    """
    found: list[str] = []
    draws = tree["posterior"].data_vars
    for name in draws:
        whitened = f"{name}_rotated_" in draws
        size = float(np.sqrt(np.mean(draws[name] ** 2))) if whitened else np.inf
        if size < _SMALL_PROCESS:
            found.append(
                f"process {name!r}: expected values well above 0.001, the standard deviation of "
                f"the noise that PyMC adds to every value of a pm.gp.Latent, found {size:.1g} on "
                "average, so that much of it is that noise; give data in larger units, or multiply "
                "a process of an amplitude near 1 by its scale"
            )
    return found


def leave_out_whitened(
    step: PythonGibbs, model: Model, user: Model, kwargs: dict[str, Any]
) -> list[str]:
    """Record no whitened values that are not those of PyMC's definition.

    They are those of processes in linear time whose inputs are not sorted, and of processes on
    grids. PyMC defines them by the Cholesky factor in the order of the data, a dense matrix. Return
    the variables that are recorded for PyMC's log likelihood alone, which takes all that are
    sampled.
    """
    own = [rv.name for rv in model.free_RVs if rv.name not in user.named_vars]
    lost = [rv.name for rv in user.free_RVs if rv.name not in model.named_vars]
    unordered = [b.value_name for b in step.recognition.model.blocks if b.is_unordered]
    every = [var.name for var in model.unobserved_RVs]
    wanted = [getattr(name, "name", name) for name in kwargs.get("var_names") or [*every, *lost]]
    named = {
        "expected few inputs, found a grid of many": (lost, ""),
        "expected sorted inputs, found inputs in no order": (
            unordered,
            "sort the rows of the data by the input, or ",
        ),
    }
    for found, (names, remedy) in named.items():
        if absent := [name for name in names if name in wanted]:
            processes = ", ".join(repr(name.removesuffix("_rotated_")) for name in absent)
            warnings.warn(
                f"{', '.join(map(repr, absent))}: {found}, for which draws of the whitened values "
                "take a dense factorisation; the result lacks them, so that "
                "pm.compute_log_likelihood fails, and pm.sample_posterior_predictive would draw "
                f"the process from its prior: {remedy}give both a model=… with pm.Flat in place "
                f"of {processes}",
                UserWarning,
                stacklevel=3,
            )
    wanted = [name for name in wanted if name not in {*own, *lost, *unordered}]
    log_likelihood = (kwargs.get("idata_kwargs") or {}).get("log_likelihood")
    sampled = [rv.name for rv in model.free_RVs] if log_likelihood else []
    passing = [name for name in sampled if name not in wanted]
    if passing or {*wanted} != {*every}:
        kwargs["var_names"] = [*wanted, *passing]
    return passing


class BackgroundRun:
    """Chains that are being sampled; ``pac.sample(…, blocking=False)`` returns it.

    Parameters
    ----------
    sample : callable
        Samples and returns the draws.
    arguments : dict
        Keywords of ``sample``. Defaults are no progress bar, and processes that are not forked,
        since a fork while other threads run may deadlock.
    """

    def __init__(self, sample: Callable[..., DataTree], arguments: dict[str, Any]) -> None:
        if arguments.get("client") is not None:
            raise TypeError("pac.sample: expected no 'client' with blocking=False; leave it out")
        self._callback = arguments.get("callback")
        defaults: dict[str, Any] = {"progressbar": False}
        if "forkserver" in multiprocessing.get_all_start_methods():
            defaults["mp_ctx"] = "forkserver"
        self._sample, self._arguments = sample, {**defaults, **arguments, "callback": self._look}
        self._progress: dict[int, float] = {}
        self._aborted = threading.Event()
        self._tree: DataTree | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pac.sample", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        parts = [f"chain {chain} {part:.0%}" for chain, part in sorted(self._progress.items())]
        state = "running" if self._thread.is_alive() else "ended"
        return f"<pac.sample, {state}: {', '.join(parts) or 'no step'}>"

    def progress(self) -> dict[int, float]:
        """Return the completed share of each chain's steps, tuning included, by chain number.

        Chains without a step are left out.
        """
        return dict(self._progress)

    def abort(self) -> None:
        """Stop all chains after their current steps, as an interrupt does; see :meth:`result`."""
        self._aborted.set()

    def result(self, timeout: float | None = None) -> DataTree:
        """Wait for the end, and return the result of ``pac.sample`` or raise its exception.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most.

        Raises
        ------
        TimeoutError
            If sampling has not ended by then; sampling continues.
        RuntimeError
            If the run was aborted before the first draw.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"expected draws within {timeout} s, found {self!r}; wait longer")
        if isinstance(self._error, KeyboardInterrupt):
            raise RuntimeError("aborted before the first draw after tuning") from self._error
        if self._error is not None:
            raise self._error
        assert self._tree is not None  # without an error
        return self._tree

    def _run(self) -> None:
        try:
            self._tree = self._sample(**self._arguments)
        except BaseException as error:
            self._error = error

    def _look(self, trace: Any, draw: Any) -> None:
        # Traces of PyMC that are no arrays have no number of steps.
        steps = getattr(trace, "draws", None)
        self._progress[draw.chain] = (draw.draw_idx + 1) / steps if steps else 0.0
        if self._callback is not None:
            self._callback(trace=trace, draw=draw)
        if self._aborted.is_set():
            raise KeyboardInterrupt
