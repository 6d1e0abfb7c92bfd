"""The step method without the compiled loop."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import cloudpickle
import numpy as np
from pymc.model import Model, modelcontext
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.compound import BlockedStep, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import (
    RandomGeneratorState,
    get_state_from_generator,
    random_generator_from_state,
)
from rich.progress import TextColumn
from rich.table import Column

from pymc_augconj.engines.gibbs.choice import choose_held
from pymc_augconj.engines.gibbs.factors import choose_factors
from pymc_augconj.engines.gibbs.held_sites import HeldSites
from pymc_augconj.engines.gibbs.pooled import pool
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError, RecognitionError
from pymc_augconj.latents.by_gram import can_sum_out
from pymc_augconj.latents.choice import cheapest_solver, choose_solver
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.parallel.executor import blas_limit
from pymc_augconj.plan import make_plan
from pymc_augconj.point import Point
from pymc_augconj.recognition.checks.checks import WholeDensity
from pymc_augconj.recognition.recognizer import Recognition

from .checkpoints import Checkpoints
from .report import report_of
from .step_choices import (
    Alternation,
    Refusals,
    choose_sweeps,
    choose_updates,
    choose_variables,
    companion_of,
    prepare,
)
from .updates import SliceUpdate

# Half the width of the uniform jitter of hyperparameters at the start of a chain, on the
# unconstrained scale, as in PyMC's NUTS.
_START_JITTER = 1.0
# Tolerance for comparing starts.
_ROUNDING = 1e-12
_START_ATTEMPTS = 20

# Evaluations per elliptical slice that cause a warning.
_MANY_TRIALS = 8

# Types and shapes of statistics, as PyMC's step methods state them.
_Stats = dict[str, tuple[type, list[int] | None]]

_HELD_STATS: _Stats = {"elliptical_trials": (np.float64, []), "residual_std": (np.float64, [])}

# Steps of a chain at which its log density is compared with PyMC's, usually during tuning.
_COMPARED = frozenset({1, 3, 10, 30, 100})

# Steps before those of tuning at which log evidences are compared with those of another
# factorisation: the same ones, as Python makes these.
_VERIFIED = frozenset({2, 9, 29, 99})

# Key of the held sites in the learned state of a chain.
_HELD = "held sites"


@dataclass_state
class GibbsState(StepMethodState):
    """The state that a chain learns during tuning, such as scales of each move's update."""

    tune: bool
    started: bool
    learned: dict[str, Any]
    forward_rng: RandomGeneratorState


class PythonGibbs(BlockedStep):
    """Steps computed in Python, see :class:`.AugmentedGibbs`."""

    name = "augmented_gibbs"
    default_blocked = True
    default_tune_steps = 200
    # Not a ClassVar: held sites add to it.
    stats_dtypes_shapes: _Stats = {  # noqa: RUF012
        "tune": (bool, []),
        "log_evidence": (np.float64, []),
        "evaluations": (np.int64, []),
        "jitter": (np.float64, []),
        "model_logp": (np.float64, []),
        "refusals": (np.int64, []),
        "warning": (SamplerWarning, None),
    }
    _state_class = GibbsState

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        model: Model | None = None,
        rng: Any = None,
        initial_point: dict[str, np.ndarray] | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
        blas_threads: int = 1,
        hyper_sampler: Literal["auto", "slice", "elliptical", "nuts"] = "auto",
        sweeps: int | None = None,
        sites: Literal["auto", "augmented", "held"] = "auto",
    ) -> None:
        model = modelcontext(model)
        if vars is not None:
            vars = [vars] if isinstance(vars, str) or not isinstance(vars, list | tuple) else vars
            unknown = [v for v in vars if isinstance(v, str) and v not in model.named_vars]
            if unknown:
                raise RecognitionError(
                    f"expected vars to name variables of the model, found {unknown}; free "
                    f"variables are {[rv.name for rv in model.free_RVs]}"
                )
            vars = [model[var] if isinstance(var, str) else var for var in vars]
        self.recognition, self.held, self._pymc = self._read(model, vars, sites, compile_kwargs)
        if self.held:
            self.stats_dtypes_shapes = {**self.stats_dtypes_shapes, **_HELD_STATS}
            self.stats_dtypes = [{name: t for name, (t, _) in self.stats_dtypes_shapes.items()}]
        lgm, start = self.recognition.model, self.recognition.start
        groups = LatentPriors(lgm, (start, *self.recognition.probes)).groups
        factors = choose_factors(lgm, self.held, start, groups)
        maps = [read(start) for read in lgm.maps]
        is_sparse = (not self.held or factors is not None) and can_sum_out(lgm.blocks, maps)
        # Refuses matrices that are too large, before any of them is evaluated.
        choose = cheapest_solver if is_sparse else choose_solver
        self._solver = choose(lgm.blocks, groups)
        plan = make_plan(lgm, self.held, factors)
        companion, others = companion_of(
            partial(PythonGibbs, model=model, compile_kwargs=compile_kwargs, sites=sites,
                    blas_threads=blas_threads), self.recognition, plan, model)  # fmt: skip
        self.plan, self.vars = choose_variables(plan, vars, others, model, lgm)
        #: Whether it samples every variable of the model.
        self.is_alone = set(self.vars) == set(model.value_vars)
        self.blas_threads = blas_threads
        #: Called with the number of steps where a chain begins in this process.
        self.on_chain: Callable[[int], None] | None = None
        #: Writes the state of chains down, and goes on from it.
        self.checkpoints: Checkpoints | None = None
        self._sizes = {m: sum(h.size for h in own) for m, own in self.plan.moves.items()}
        self._kinds = choose_updates(hyper_sampler, lgm, self.plan, self.held, self._solver)
        few = 1 if is_sparse else self._solver.sweeps
        self.sweeps = choose_sweeps(sweeps, lgm, self.plan, self.held, of_solver=few)
        self._default_start = dict(self.recognition.start)
        prepare(self.recognition, self.held)
        self.rng = np.random.default_rng(rng)
        self._reset()
        for part in self.make_sampler(self._default_start).parts:
            if part.iterations:
                names = " and ".join(block.name for block in part.priors.model.blocks)
                logging.getLogger("pymc").info(
                    f"Joint draws of {names} by conjugate gradients, of some {part.iterations} "
                    f"iterations, in {part.joint_share:.0%} of the steps"
                )
            for own in part.factors or [part]:
                own.solver.preferred.compile()
        self.alternation = Alternation(self, self._default_start, companion)
        for name in (*self.plan.ridges, *self.alternation.names):
            self._sizes[name], self._kinds[name] = 1, SliceUpdate
        self.tune, self.forward_rng = True, np.random.default_rng(0)

    def _read(
        self, model: Model, vars: Sequence[Any] | None, sites: str, compile_kwargs: Any
    ) -> tuple[Recognition, tuple[str, ...], WholeDensity | None]:
        """Return the model, the observed variables with held sites, and PyMC's log density.

        The step compares its log density with the last; None compares nothing.
        """
        found = report_of(model, vars=vars, compile_kwargs=compile_kwargs)
        held = choose_held(found.model, found.start, sites, found.probes)
        return found, held, WholeDensity(model)

    def _reset(self) -> None:
        self._sampler: GibbsSampler | None = None
        self.started = False
        self._remaining, self._taken = -1, 0
        self._updates = {move: self._kinds[move](size) for move, size in self._sizes.items()}
        lgm, probes, plan = self.recognition.model, self.recognition.probes, self.plan
        moved = (*plan.likelihood, *plan.followed)
        names, moving = ([h.value_name for h in own] for own in (plan.updated, moved))
        over_grid = self._solver.augments and any(b.grid for b in lgm.blocks)
        how = {"by_moments": plan.factors is not None, "over_grid": over_grid}
        own = {h.value_name: h in plan.followed for h in plan.collapsed if plan.followed}
        sites = partial(
            HeldSites, lgm, self.held, names, probes, moving=moving, collapsed=own, **how
        )
        self._sites = sites() if self.held else None
        self._warned = False
        self._refusals = Refusals({h.value_name: h.name for h in self.plan.updated}, lgm.blocks)

    @property
    def learned(self) -> dict[str, Any]:
        """The states that the updates have learned during tuning, and the held sites."""
        learned = {move: update.state for move, update in self._updates.items()}
        return learned if self._sites is None else {**learned, _HELD: self._sites.state}

    @learned.setter
    def learned(self, learned: dict[str, Any]) -> None:
        for move, state in learned.items():
            if move != _HELD:
                self._updates[move].state = state
            elif self._sites is not None:
                self._sites.state = state

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Prepare for one chain; see :class:`pymc.step_methods.compound.BlockedStep`."""
        if self.on_chain is not None:
            self.on_chain(tune + draws)
        super().setup_chain(rng, tune, draws)
        self._reset()
        self.tune = tune > 0
        self._remaining = tune + draws
        self.alternation.begin(self.rng, tune, draws)
        # Of its own, so that steps may be made before those of earlier ones are drawn.
        has_forward = bool(self.recognition.model.forward)
        self.forward_rng = np.random.default_rng(self.rng.integers(2**32, size=4 * has_forward))
        if self.checkpoints is not None:
            self.checkpoints.begin(self.rng)
        self._limit_blas()

    def save(self, point: Point) -> dict[str, Any] | None:
        """Return the state on which the next steps depend; None if this step does not have it."""
        assert self._sampler is not None  # after a step
        return {
            "point": dict(point),
            "rng": get_state_from_generator(self.rng),
            "forward": get_state_from_generator(self.forward_rng),
            "taken": self._taken,
            "warned": self._warned,
            "refusals": self._refusals.total,
            "learned": self.learned,
            "sampler": self._sampler.state,
            "companion": self.alternation.save(point),
        }

    def restore(self, saved: Mapping[str, Any]) -> Point:
        """Return the point to resume from, after a first step, which fills caches."""
        assert self._sampler is not None  # after a step
        self.rng = random_generator_from_state(saved["rng"])
        self.forward_rng = random_generator_from_state(saved["forward"])
        self._taken, self._warned = saved["taken"], saved["warned"]
        self._refusals.total = saved["refusals"]
        self.learned, self._sampler.state = saved["learned"], saved["sampler"]
        self.alternation.restore(saved["companion"])
        point: Point = saved["point"]
        return point

    def _limit_blas(self) -> None:
        self._release_blas()
        release = blas_limit.acquire(self.blas_threads)
        # A worker process runs one chain and ends; the caller's process gets its threads back.
        self._limiter = release if multiprocessing.parent_process() is None else None

    def _release_blas(self) -> None:
        release = self.__dict__.pop("_limiter", None)
        if release is not None:
            release()

    def __del__(self) -> None:
        self._release_blas()

    def __getstate__(self) -> dict[str, Any]:
        # Caches and limits belong to a running chain, not to the step that is sent to a worker.
        state = dict(self.__dict__)
        state["_sampler"] = state["on_chain"] = None
        state.pop("_limiter", None)
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        # Graphs of the model go by cloudpickle, as in PyMC's own worker processes.
        return _unpickled, (type(self), cloudpickle.dumps(self.__getstate__()))

    def step(self, point: Point) -> tuple[Point, list[dict[str, Any]]]:
        """Return the next point and its statistics."""
        make = self._step
        if self.checkpoints is not None:
            make = partial(self.checkpoints.step, self, last=self._remaining == 1)
        try:
            new, stats = make(point)
        except BaseException:
            self._release_blas()
            raise
        self._remaining -= 1
        if self._remaining == 0:
            self._release_blas()
        return new, stats

    def _step(self, point: Point) -> tuple[Point, list[dict[str, Any]]]:
        if self._sampler is None:
            bad = [name for name, value in point.items() if not np.isfinite(value).all()]
            if bad:
                raise AugmentationError(
                    f"initvals: expected values that the priors allow, found {point[bad[0]]} for "
                    f"{bad[0]!r}, on the unconstrained scale; give the variable an initval= that "
                    "its prior and its transform allow"
                )
            self._sampler = self.make_sampler(point)
        sampler = self._sampler
        updates = {move: partial(update, tune=self.tune) for move, update in self._updates.items()}
        sampler.chain.verifies = self.tune and self._taken in _VERIFIED
        if self.started:
            new, info = sampler.step(self.rng, point, updates, self.forward_rng)
        else:
            self.started = True
            for _ in range(_START_ATTEMPTS):
                start = self._disperse(sampler, point)
                new, info = sampler.step(self.rng, start, updates, self.forward_rng)
                if not info.stays or start is point:
                    break
            self._refusals.check_start(info)
        new = self.alternation.after(self, sampler, new, info)
        warning = None if self.tune else self._refusals.count(info, last=self._remaining == 1)
        stats: dict[str, Any] = {
            "tune": self.tune,
            "log_evidence": info.log_evidence,
            "evaluations": info.evaluations,
            "jitter": info.jitter,
            "model_logp": info.log_density,
            "refusals": info.refusals,
            "warning": warning,
        }
        if self._sites is not None:
            # None where the latents stay, since nothing can be computed at these values.
            trials = info.trials / max(info.slices, 1)
            if self.tune and info.slices:
                accepted = (info.acceptance / info.trajectories,) if info.trajectories else ()
                self._sites.learn(new, trials, *accepted)
            stats["elliptical_trials"] = trials
            stats["residual_std"] = info.residual_std
            stats["warning"] = warning or self._warn(self._sites.trials)
        self._taken += 1
        # PyMC's density has no jitter, and may not be finite.
        if self._pymc is not None and self._taken in _COMPARED and info.jitter == 0.0:
            where = f"at step {self._taken} of this chain"
            self._pymc.check(new, info.log_density, sampler, where)
        return new, [stats]

    def _warn(self, trials: float) -> SamplerWarning | None:
        """Return, once per chain and after tuning, a warning about poor sites."""
        if self.tune or self._warned:
            return None
        self._warned = True
        assert self._sampler is not None  # in a step
        if trials < _MANY_TRIALS or self._sampler.follows:
            return None
        listed = ", ".join(repr(name) for name in self.held)
        return SamplerWarning(
            WarningType.BAD_ACCEPTANCE,
            f"The held sites of {listed} fit the posterior badly: an elliptical slice took "
            f"{trials:.0f} evaluations during tuning (expected fewer than "
            f"{_MANY_TRIALS}), so that draws are exact but correlated. Try more tuning steps "
            "(tune=1000), more slices a step (sweeps=50), tighter priors, sites='augmented' where "
            "there is an augmentation, or NUTS.",
            "warn",
        )

    @property
    def _checked(self) -> set[int]:
        """Numbers of steps before each comparison."""
        return {number - 1 for number in _COMPARED}.union(_VERIFIED if self.tune else ())

    def make_sampler(self, point: Point, *, by_observation: bool = False) -> GibbsSampler:
        """Return one chain's sampler; it sums observations of one predictor unless told not to."""
        model, probes = self.recognition.model, self.recognition.probes
        if self._sites is None and not by_observation:
            model = pool(model, [point, *probes])
        return GibbsSampler(model, self.plan, point, probes, self.sweeps, self._sites)

    def _disperse(self, sampler: GibbsSampler, point: Point) -> Point:
        """Return a random start of the variables that start at PyMC's default."""
        names = [var.name for var in self.vars]
        # PyMC's own start is of compiled code, which rounds differently.
        start, near = self._default_start, partial(np.allclose, rtol=_ROUNDING, atol=_ROUNDING)
        ours = {name for name in names if near(point[name], start[name])}
        given = {name: point[name] for name in names if name not in ours}
        if not ours:
            return point
        # Those of a companion too: where they equal their mean, their scale would go to zero.
        hypers = [h for h in self.recognition.model.hyperparameters if h.value_name in ours]
        latents = ours.difference(h.value_name for h in hypers)
        moved = dict(point)
        for attempt in range(_START_ATTEMPTS):
            share = 0.7**attempt  # of the way from the default, which is possible
            for h in hypers:
                jitter = self.rng.uniform(-_START_JITTER, _START_JITTER, h.shape)
                moved[h.value_name] = np.asarray(point[h.value_name] + share * jitter)
            if np.isfinite(self.recognition.model.log_prior(moved)):
                # The latents have no prior where a standard deviation is negative, say.
                with suppress(NotPositiveDefiniteError):
                    drawn = sampler.dispersed(self.rng, moved)
                    if attempt:
                        drawn |= {v: point[v] + share * (drawn[v] - point[v]) for v in latents}
                    drawn |= given
                    if np.isfinite(list(sampler.site_log_densities(drawn).values())).all():
                        return drawn
        return point

    @staticmethod
    def _progressbar_config(n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[int]]]:
        columns = [
            TextColumn("{task.fields[evaluations]}", table_column=Column("Evaluations", ratio=1))
        ]
        return columns, {"evaluations": [0] * n_chains}

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[Callable[[Any], dict[str, int]]]:
        return (lambda stats: {"evaluations": stats["evaluations"]},)


def _unpickled(kind: type[PythonGibbs], state: bytes) -> PythonGibbs:
    # The constructor would recognise the model again.
    step = object.__new__(kind)
    step.__dict__.update(cloudpickle.loads(state))
    return step
