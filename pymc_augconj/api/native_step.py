"""The step method for ``pm.sample``, mostly a compiled loop, and a recorder of draws."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
from pymc.backends.ndarray import NDArray as PyMCTrace
from pymc.model import Model
from pymc.stats.convergence import SamplerWarning

from pymc_augconj.engines.gibbs.moves.latents import draw_forward
from pymc_augconj.engines.gibbs.native.factors import FactorLoop
from pymc_augconj.engines.gibbs.native.fixed import FixedLoop
from pymc_augconj.engines.gibbs.native.loop import Block, Drawn, DrawnPoint, NativeLoop
from pymc_augconj.engines.gibbs.state import GibbsInfo, State
from pymc_augconj.point import Point
from pymc_augconj.python_mode.tape import NoTapeError, OnTape, TapeBuilder
from pymc_augconj.recognition.graph.functions import PointFunction, SharedData
from pymc_augconj.typing import Array, Index

from .step import PythonGibbs
from .updates import EntrywiseSliceUpdate, GradientUpdate

# Steps of a chain from which loading the loop takes less time than it saves.
_FEWEST = 500
# Steps of the first block; seconds that later ones take, as interrupts wait for their end; and
# the numbers that they record at most.
_FIRST, _SECONDS, _LARGEST = 8, 0.05, 4_000_000


# Seconds after which a first block is said to be compiled.
_PATIENCE = 4.0
_announcing = threading.Lock()


@contextmanager
def _announced() -> Iterator[None]:
    """Say once in PyMC's log, of all chains, that kernels are compiled if that takes long."""
    is_first = _announcing.acquire(blocking=False)
    message = (
        "Compiling the kernels of pymc_augconj, which takes about a minute, once on this machine "
        "(python -m pymc_augconj does so beforehand)"
    )
    timer = threading.Timer(_PATIENCE, logging.getLogger("pymc").info, [message])
    if is_first:
        timer.start()
    try:
        yield
    finally:
        if is_first:
            timer.cancel()
            _announcing.release()


class AugmentedGibbs(PythonGibbs):
    """Exact Gibbs sampler for Gaussian latents under any likelihoods.

    One step draws, in this order: hyperparameters of the likelihoods given the latents, with the
    auxiliary variables ω integrated out; ω; hyperparameters of the kernels, means and scales
    given ω, with the latents integrated out; all latents, jointly and exactly. Traces do not
    contain ω: the result has the form of any PyMC sampler's.

    A likelihood without an augmentation has *held* Gaussian sites instead of ω: fixed site
    approximations from a variational fit, chosen during tuning and constant afterwards. Elliptical
    slice sampling with the ratio of likelihood to sites corrects the Gaussian approximation
    exactly. If slices hardly move and the density has a gradient, a Hamiltonian trajectory follows
    each.

    Parameters
    ----------
    vars : sequence of variables or of their names, optional
        Variables to sample, by default all of the recognised model that a move can update. PyMC
        assigns step methods to the others, such as discrete variables.
    model : pymc.Model, optional
        By default the model of the context.
    rng, initial_point, blocked
        As for every PyMC step method.
    compile_kwargs : dict, optional
        Passed to :func:`~pymc_augconj.recognize`.
    blas_threads : int
        Threads of BLAS for each chain, while it runs.
    hyper_sampler : {"auto", "slice", "elliptical", "nuts"}
        Update of the hyperparameters of kernels, means and scales given ω, on the unconstrained
        scale: slice sampling along the principal axes, or elliptical slices around the mean, both
        learned during tuning; or NUTS on the gradient of the log evidence. ``"auto"`` chooses
        elliptical slices for models with held sites, unless all latents are independent or it
        updates several hyperparameters of structured priors; else NUTS for six scalars or more, if
        the gradient exists and the solver factorises covariances; else two elliptical slices,
        followed in a quarter of the steps by a slice along an axis.
    sweeps : int, optional
        Draws of (ω, latents) in each step, with updates of the likelihoods' parameters before each.
        By default 4 if there is an ω and updates of the hyperparameters factorise covariances,
        which cost more than the draws, and 2 where latents are independent; 1 otherwise, and for
        many observations of independent latents. With held sites, elliptical slices in each step;
        by default 4 to 16, four times the evaluations of a slice during tuning, and 1 with
        trajectories.
    sites : {"auto", "augmented", "held"}
        ``"augmented"``: auxiliary variables for all, or an error; ``"held"``: held sites for all.
        ``"auto"``: auxiliary variables for every likelihood with an augmentation; but held sites
        for several classes, for counts and classes with few hyperparameters, and for probits,
        logistic and Matérn noise, see :mod:`pymc_augconj.engines.gibbs.choice`.

    Raises
    ------
    AugmentationError
        If the model cannot be augmented; see :func:`~pymc_augconj.recognize`.

    Notes
    -----
    The first step disperses chains that start at PyMC's default initial point: it draws latents
    from their prior and jitters hyperparameters by up to ±1 on the unconstrained scale. It keeps a
    start given by ``initvals``. The default is 200 tuning steps.

    The group ``sample_stats`` has, for each draw: ``log_evidence``, log p(y | θ, ω) with the
    latents integrated out (NaN if they are drawn one factor after another, see
    :mod:`pymc_augconj.engines.gibbs.factors`); ``evaluations``, the number of densities that the
    updates of hyperparameters computed; ``jitter``, the addition to a covariance's diagonal;
    ``refusals``, the number of updates that refused a value of hyperparameters because rounding
    leaves its log evidence no digits; and ``lp``, PyMC's log density. With held sites,
    ``elliptical_trials`` is the number of evaluations of an elliptical slice (1 for perfect
    sites), and ``residual_std`` the standard deviation, over 50 steps, of the log ratio of
    likelihood to sites.

    A compiled loop takes microseconds a step for models of normal latents that are independent,
    have a sparse precision (walks, autoregressions), a covariance of 80 values or fewer, or
    differences of neighbours with a known scale (``ICAR`` of up to some 125 areas), and for models
    without latents, such as ``gp.Marginal``; if the step samples every variable, each observation
    has one predictor and a density that the loop can evaluate, and chains have 500 steps or more.
    It is compiled once on a machine, see :func:`~pymc_augconj.warm_up`. Python computes steps that
    are compared with PyMC or another factorisation, and those within which an update learns its
    axes.

    Examples
    --------
    >>> idata = pm.sample(step=pac.AugmentedGibbs())  # doctest: +SKIP
    """

    _loop: NativeLoop | None = None
    _is_prepared = False

    def _read(self, model: Model, *how: Any) -> Any:
        self._shared = SharedData.of([*model.basic_RVs, *model.potentials])
        return super()._read(model, *how)

    def prepare(self, recorded: OnTape | None, steps: int) -> bool:
        """Make the loop for chains of so many steps, if it pays; return whether there is one.

        Without a companion no moves along ridges follow, which take longer than some more steps.
        """
        self._is_prepared, self._loop = True, None
        self._data = SharedData(self._shared)
        both = self._both
        learn = (not isinstance(u, GradientUpdate) for own in both for u in own._updates.values())
        if steps >= _FEWEST and all(learn):
            start = self._default_start
            sampler, *others = (own.make_sampler(start) for own in both)
            kinds: list[Any] = [FixedLoop, FactorLoop, NativeLoop]
            if others:
                kinds = [partial(NativeLoop, beside=others, ridges=self.alternation.ridges)]
            for kind in kinds:
                with suppress(NoTapeError):
                    self._loop = self._loop or kind(sampler, start, recorded)
                    self.alternation.ridges = self.alternation.ridges if others else ()
        return self._loop is not None

    @property
    def _both(self) -> list[PythonGibbs]:
        """The step, and its companion where it has one."""
        companion = self.alternation.companion
        return [self] if companion is None else [self, companion]

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Prepare for one chain."""
        # The tape has the values that data had.
        if self.is_alone and (not self._is_prepared or self._data.changed()):
            self.prepare(None, tune + draws)
        super().setup_chain(rng, tune, draws)
        self._n_tune, self._size = tune, _FIRST
        self._queue: Iterator[tuple[Point, list[Any]]] = iter(())
        self._last: Point | None = None
        # The log evidence at the point, where Python has made it.
        self._evidence: float | None = None

    def save(self, point: Point) -> dict[str, Any] | None:
        """Return the state on which the next steps depend; None within a block."""
        if isinstance(point, Drawn) and point.row + 1 < point.block.steps:
            return None
        saved = super().save(point)
        assert saved is not None
        v = None if self._loop is None else self._loop.whitened(point)
        return saved | {"v": v, "evidence": self._evidence}

    def restore(self, saved: Mapping[str, Any]) -> Point:
        """Return the point to resume from, after a first step, which fills caches."""
        point = super().restore(saved)
        self._evidence, v = saved["evidence"], saved["v"]
        self._last = point if self._loop is None or v is None else self._loop.restored(point, v)
        return self._last

    def __getstate__(self) -> dict[str, Any]:
        own = {
            "_loop": None,
            "_is_prepared": False,
            "_data": None,
            "_queue": iter(()),
            "_last": None,
        }
        return super().__getstate__() | own

    def step(self, point: Point) -> tuple[Point, list[dict[str, Any]]]:
        """Return the next point and its statistics."""
        # A short way, as small models take little longer for a step than this.
        if point is not self._last or self.checkpoints is not None:
            return super().step(point)
        found = next(self._queue, None)
        if found is None:
            return super().step(point)
        self._last = found[0]
        self._remaining -= 1
        if not self._remaining:
            self._release_blas()
        return found

    def _step(self, point: Point) -> tuple[Point, list[dict[str, Any]]]:
        last, sampler = self._last, self._sampler
        if last is not None and sampler is not None and point is not last:
            # PyMC's worker processes copy points.
            if all(np.array_equal(point[name], value) for name, value in last.items()):
                point = last
            else:
                # Another step method moves the same variables, maybe given the latents.
                self._loop, sampler.chain.alternates = None, False
        self._last, stats = self._next(point)
        return self._last, stats

    def _next(self, point: Point) -> tuple[Point, list[dict[str, Any]]]:
        found = next(self._queue, None) if self._loop is not None else None
        if found is None and self._loop is not None and (steps := self._steps_ahead()) > 0:
            self._queue = self._made(self._loop, point, steps)
            with _announced() if self._size == _FIRST else nullcontext():
                found = next(self._queue, None)
        if found is not None:
            return found
        new, stats = super()._step(point)
        self._evidence = stats[0]["log_evidence"]
        return new, stats

    def _steps_ahead(self) -> int:
        """Return the number of steps before the next one that is for Python, or of a block."""
        limits = [number - self._taken for number in self._checked if number >= self._taken]
        limits += [self._n_tune - self._taken] if self.tune else []
        for own in self._both:
            sampler, sites = own._sampler, own._sites
            if not own.started or sampler is None or not sampler.is_settled:
                return 0
            limits += [sites.steps_ahead] if self.tune and sites is not None else []
            moves = [move for move, members in own.plan.moves.items() if members]
            along_ridges = (*own.plan.ridges, *own.alternation.names)
            for move in (*moves, *along_ridges) if self.tune else ():
                update = own._updates[move]
                if isinstance(update, EntrywiseSliceUpdate):
                    continue
                (ellipses, along), state = update.schedule, update.state
                several = {"level": len(sampler.levels), "collapsed": 1, "prior_only": 1}
                times = several.get(move, 1 if move in along_ridges else sampler.sweeps)
                if state["axes"] is None:
                    # One sweep along all coordinates.
                    ellipses, along = 0, 2
                of_step = times * (ellipses + (along == 2))
                # A slice along one axis, after these, would be along a new one.
                left = state["window"] - (along == 1) - state["count"]
                limits.append(left // of_step)
        return min(self._remaining, self._size, *limits)

    def _made(
        self, loop: NativeLoop, point: Point, steps: int
    ) -> Iterator[tuple[Point, list[Any]]]:
        """Make a block, and return its points and statistics."""
        sampler, updates, begin = self._sampler, self._updates, time.perf_counter()
        assert sampler is not None  # after the first step
        expected, self._evidence = self._evidence, None
        others = [(own.rng, own._sampler, own._updates) for own in self._both[1:]]
        if expected is not None and not others:
            loop.check_evidence(sampler, point, updates, expected)
        block = loop.run(self.rng, sampler, point, updates, steps, tune=self.tune, beside=others)
        made, of_forward = block.steps, self._draw_forward(block)
        seconds = max(time.perf_counter() - begin, 1e-6)
        most = _LARGEST // max(block.outputs.shape[1], 1)
        self._size = max(1, min(int(max(made, 1) * _SECONDS / seconds), most))
        if expected is not None and made:
            loop.check_density(
                sampler, Drawn(block, block.entries, made - 1), block.log_density[-1]
            )
        warnings: list[SamplerWarning | None] = [None] * made
        if made and not self.tune:
            is_last = made == self._remaining
            warnings[0] = self._refusals.count(GibbsInfo(), last=is_last, steps=made)
        block.statistics.update(
            {
                "tune": [self.tune] * made,
                "log_evidence": block.log_evidence,
                "evaluations": block.evaluations.astype(int),
                "jitter": np.zeros(made),
                "model_logp": block.log_density + of_forward,
                "refusals": np.zeros(made, int),
                "warning": warnings,
            }
        )
        trials = block.trials / np.maximum(block.slices, 1.0)
        for own, of_own in zip(self._both, (trials, *block.trials_beside), strict=True):
            if self.tune and own._sites is not None:
                for new, each in zip(block.points(), of_own.tolist(), strict=True):
                    own._sites.learn(new, each)
        if self._sites is not None:
            block.statistics["elliptical_trials"] = trials
            block.statistics["residual_std"] = sampler.residual_std(block.residual)
            if made and warnings[0] is None:
                warnings[0] = self._warn(self._sites.trials)
        for own in self._both:
            own._taken += made
        # One at a time: many at once would keep Python's collector of garbage at work.
        entries, statistics = block.entries, block.statistics
        for row in range(made):
            yield DrawnPoint(block, entries, row), [Drawn(block, statistics, row)]

    def _draw_forward(self, block: Block) -> Array:
        """Draw the variables that nothing observed depends on; return their log densities."""
        found = np.zeros(block.steps)
        assert self._sampler is not None  # after the first step
        chain = self._sampler.chain
        for row, point in enumerate(block.points() if chain.model.forward else ()):
            state = State(dict(point), {})
            draw_forward(self.forward_rng, chain, state)
            found[row] = state.info.log_density
            for variable in chain.model.forward:
                block.entries[variable.value_name][row] = state.point[variable.value_name]
        return found


class Recorder(PyMCTrace):
    """A trace with an array for every variable, like PyMC's; :meth:`of` makes one.

    PyMC's trace rewrites and interprets the graph of the recorded values for each chain, which
    takes as long as a step of a small model.
    """

    #: All of one call of ``pm.sample``, by the number of the chain.
    begun: dict[int, Recorder] | None = None

    @classmethod
    def of(cls, model: Model, var_names: Collection[str] | None, start: Point) -> Recorder:
        """Return one for ``pm.sample(trace=…)`` of some variables, by default all."""
        if var_names is None:
            variables = model.unobserved_value_vars
        else:
            chosen = [var for var in model.unobserved_RVs if var.name in var_names]
            variables = model.replace_rvs_by_values(chosen)
        values = _Values(variables, model)
        found = values(*(start[name] for name in values.names))
        shapes = {var.name: value.shape for var, value in zip(variables, found, strict=True)}
        dtypes = {var.name: value.dtype for var, value in zip(variables, found, strict=True)}
        return cls(model=model, vars=variables, fn=values, var_shapes=shapes, var_dtypes=dtypes)

    def setup(self, draws: int, chain: int, sampler_vars: Any = None) -> None:
        """Make the arrays of one chain."""
        # PyMC makes a shallow copy for each chain.
        self.samples: dict[str, np.ndarray] = {}
        self._stats: list[Mapping[str, np.ndarray]] | None = None
        super().setup(draws, chain, sampler_vars)
        if self.begun is not None:
            self.begun[chain] = self

    def record(self, point: Any, sampler_stats: Any = None, *, in_warmup: bool) -> None:
        """Record a step; with the first step of a block, record the whole block."""
        block = point.block if type(point) is DrawnPoint else None
        if block is None or block.recorded is None:
            super().record(point, sampler_stats, in_warmup=in_warmup)
            return
        if point.row == 0:
            own = slice(self.draw_idx, self.draw_idx + block.steps)
            for name, values in zip(self.varnames, block.recorded, strict=False):
                self.samples[name][own] = values
            for arrays in self._stats or ():
                for key, values in block.statistics.items():
                    arrays[key][own] = values
        self.draw_idx += 1

    def get_sampler_stats(
        self, stat_name: str, sampler_idx: int | None = None, burn: int = 0, thin: int = 1
    ) -> np.ndarray:
        """Return a statistic of all steps."""
        if sampler_idx is None and len(self.sampler_vars) == 1 and stat_name == "warning":
            # PyMC stacks objects one by one, which takes as long as a step of a small model.
            return self._get_sampler_stats(stat_name, 0, burn, thin)[:, None]
        return super().get_sampler_stats(stat_name, sampler_idx, burn, thin)


class _Values:
    """The recorded values as a function of a point's entries, in PyMC's order."""

    def __init__(self, variables: Sequence[Any], model: Model) -> None:
        inputs = {var.name: var for var in model.value_vars}
        self.names = tuple(inputs)
        self._function = PointFunction(variables, inputs).compile()

    def on_tape(self, tape: TapeBuilder, entries: Mapping[Any, Index]) -> list[Index]:
        """Return the registers of the recorded values; see :class:`.OnTape`."""
        found: list[Index] = self._function.on_tape(tape, entries)
        return found

    def __call__(self, *entries: np.ndarray) -> Sequence[np.ndarray]:
        return self._function(dict(zip(self.names, entries, strict=True)))
