"""The step method for ``pm.sample``."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pymc.blocking import RaveledVars
from pymc.model import Model, modelcontext
from pymc.step_methods.compound import BlockedStep, StepMethodState
from pymc.step_methods.slicer import Slice
from pymc.step_methods.state import dataclass_state
from rich.progress import TextColumn
from rich.table import Column
from threadpoolctl import ThreadpoolController

from .engines.gibbs import GibbsSampler
from .engines.plan import Plan, make_plan
from .errors import RecognitionError
from .recognize import Recognition, recognize

__all__ = ["AugmentedGibbs"]

# Half the width of the uniform jitter of hyperparameters at the start of a chain, on the
# unconstrained scale; PyMC's NUTS uses the same.
_START_JITTER = 1.0
_START_ATTEMPTS = 20

_MOVES = ("prior_only", "joint", "likelihood", "collapsed")


@dataclass_state
class AugmentedGibbsState(StepMethodState):
    """What one chain has learned: the slice widths of each move."""

    tune: bool
    started: bool
    slice_widths: dict
    slice_tunes: dict


class AugmentedGibbs(BlockedStep):
    """Exact Gibbs sampler for Gaussian latents with augmented likelihoods.

    One step draws, in this order: hyperparameters of the likelihoods given the latents, with the
    auxiliary variables ω integrated out; ω; hyperparameters of the kernels, means and scales
    given ω, with the latents integrated out; all latents, jointly and exactly. ω is in no trace:
    the result is that of any PyMC sampler.

    Hyperparameters are updated by PyMC's own slice sampler, one coordinate at a time, on the
    unconstrained scale.

    Parameters
    ----------
    vars : sequence of variables, optional
        What to sample. By default every variable of the recognised model; those that no move
        treats (discrete ones) are left to PyMC. With ``vars=[f]`` the rest is PyMC's.
    model : pymc.Model, optional
        Taken from the context where omitted.
    rng, initial_point, blocked
        As for every PyMC step method.
    compile_kwargs : dict, optional
        Passed to :func:`~pymc_augconj.recognize`.
    blas_threads : int
        Threads of BLAS for each chain. Limited when a chain starts; the process that called
        ``pm.sample`` gets its own number back when the chain ends.

    Raises
    ------
    AugmentationError
        If the model cannot be augmented; see :func:`~pymc_augconj.recognize`.

    Notes
    -----
    Chains that start at PyMC's default initial point are dispersed in their first step: latents
    are drawn from their prior and hyperparameters jittered by up to ±1 on the unconstrained
    scale. A start given by ``initvals`` is kept.

    Examples
    --------
    >>> idata = pm.sample(step=pac.AugmentedGibbs())  # doctest: +SKIP
    """

    name = "augmented_gibbs"
    default_blocked = True
    default_tune_steps = 200
    stats_dtypes_shapes = {
        "tune": (bool, []),
        "log_evidence": (np.float64, []),
        "evaluations": (np.int64, []),
        "jitter": (np.float64, []),
        "model_logp": (np.float64, []),
    }
    _state_class = AugmentedGibbsState

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        model: Model | None = None,
        rng=None,
        initial_point: dict[str, np.ndarray] | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
        blas_threads: int = 1,
    ):
        model = modelcontext(model)
        if vars is not None and not isinstance(vars, list | tuple):
            vars = [vars]
        self.recognition = recognize(model, vars=vars, compile_kwargs=compile_kwargs)
        self.plan = _restrict(make_plan(self.recognition.model), self.recognition, vars)
        self.vars = _value_variables(model, self.recognition, self.plan, vars)
        self.blas_threads = blas_threads
        self._default_start = dict(self.recognition.start)
        self.rng = np.random.default_rng(rng)
        self._reset()
        self.tune = True

    def _reset(self) -> None:
        self._sampler: GibbsSampler | None = None
        self.started = False
        self._remaining = -1
        sizes = {move: sum(h.size for h in getattr(self.plan, move)) for move in _MOVES}
        self.slice_widths = {move: np.ones(size) for move, size in sizes.items()}
        self.slice_tunes = dict.fromkeys(_MOVES, 0.0)

    def setup_chain(self, rng, tune: int, draws: int) -> None:
        """Prepare for one chain; see :class:`pymc.step_methods.compound.BlockedStep`."""
        super().setup_chain(rng, tune, draws)
        self._reset()
        self.tune = tune > 0
        self._remaining = tune + draws
        self._limit_blas()

    def _limit_blas(self) -> None:
        self._release_blas()
        limiter = ThreadpoolController().limit(limits=self.blas_threads, user_api="blas")
        # A worker process runs one chain and ends; the caller's process gets its threads back.
        self._limiter = limiter if multiprocessing.parent_process() is None else None

    def _release_blas(self) -> None:
        limiter = self.__dict__.pop("_limiter", None)
        if limiter is not None:
            limiter.restore_original_limits()

    def __del__(self):
        self._release_blas()

    def __getstate__(self) -> dict:
        # Caches and limits belong to a running chain, not to the step that is sent to a worker.
        state = dict(self.__dict__)
        state["_sampler"] = None
        state.pop("_limiter", None)
        return state

    def step(self, point):
        """Return the next point and its statistics."""
        try:
            new, stats = self._step(point)
        except BaseException:
            self._release_blas()
            raise
        self._remaining -= 1
        if self._remaining == 0:
            self._release_blas()
        return new, stats

    def _step(self, point):
        if self._sampler is None:
            self._sampler = GibbsSampler(
                self.recognition.model, self.plan, point, self.recognition.probes
            )
        if not self.started:
            self.started = True
            point = self._disperse(point)
        updates = {move: _SliceUpdate(self, move) for move in _MOVES}
        new, info = self._sampler.step(self.rng, point, updates)
        return new, [
            {
                "tune": self.tune,
                "log_evidence": info.log_evidence,
                "evaluations": info.evaluations,
                "jitter": info.jitter,
                "model_logp": info.log_density,
            }
        ]

    def _disperse(self, point):
        """Return a random start where the chain was given PyMC's default one."""
        ours = [var.name for var in self.vars]
        if not all(np.array_equal(point[name], self._default_start[name]) for name in ours):
            return point
        moved = dict(point)
        hyper = [h for move in _MOVES for h in getattr(self.plan, move)]
        for _ in range(_START_ATTEMPTS):
            for h in hyper:
                jitter = self.rng.uniform(-_START_JITTER, _START_JITTER, h.shape)
                moved[h.value_name] = np.asarray(point[h.value_name] + jitter)
            if np.isfinite(self.recognition.model.log_prior(moved)):
                return self._sampler.draw_from_prior(self.rng, moved)
        return self._sampler.draw_from_prior(self.rng, point)

    @staticmethod
    def _progressbar_config(n_chains=1):
        columns = [
            TextColumn("{task.fields[evaluations]}", table_column=Column("Evaluations", ratio=1)),
        ]
        return columns, {"evaluations": [0] * n_chains}

    @staticmethod
    def _make_progressbar_update_functions():
        def update_stats(step_stats):
            return {"evaluations": step_stats["evaluations"]}

        return (update_stats,)


class _SliceUpdate(Slice):
    """PyMC's slice sampler on a plain function; what it learns is kept by the step method."""

    def __new__(cls, *args):
        # Slice's own constructor reads a model and compiles its log density.
        return object.__new__(cls)

    def __init__(self, step: AugmentedGibbs, move: str):
        self._step, self._move = step, move
        self.max_steps = 100

    def __call__(self, log_density, start, rng):
        self.logp, self.rng = log_density, rng
        self.tune = self._step.tune
        self.w = self._step.slice_widths[self._move]
        self.n_tunes = self._step.slice_tunes[self._move]
        moved, stats = self.astep(RaveledVars(start, ()))
        self._step.slice_tunes[self._move] = self.n_tunes
        return moved.data, stats[0]["nstep_out"] + stats[0]["nstep_in"]


def _restrict(plan: Plan, recognition: Recognition, vars: Sequence | None) -> Plan:
    if vars is None:
        return plan
    chosen = {var.name for var in vars}
    left = {h.name for h in plan.left_to_pymc if chosen.intersection((h.name, h.value_name))}
    if left:
        raise RecognitionError(
            f"AugmentedGibbs cannot sample {sorted(left)}: expected continuous variables of few "
            "components; leave them out of vars, and PyMC assigns a step method of its own"
        )

    def keep(members):
        return tuple(h for h in members if chosen.intersection((h.name, h.value_name)))

    return replace(plan, **{move: keep(getattr(plan, move)) for move in _MOVES})


def _value_variables(
    model: Model, recognition: Recognition, plan: Plan, vars: Sequence | None
) -> list:
    lgm = recognition.model
    names = [block.value_name for block in lgm.blocks]
    names += [h.value_name for move in _MOVES for h in getattr(plan, move)]
    names += [variable.value_name for variable in lgm.forward]
    if vars is not None:
        known = {n: n for n in names}
        known |= {b.name: b.value_name for b in lgm.blocks}
        known |= {model.values_to_rvs[v].name: v.name for v in model.value_vars if v.name in names}
        unknown = [var.name for var in vars if var.name not in known]
        if unknown:
            raise RecognitionError(
                f"AugmentedGibbs cannot sample {unknown}: expected variables among "
                f"{sorted(set(known))}"
            )
    by_name = {var.name: var for var in model.value_vars}
    # In the model's order, so that traces and seeds do not depend on how they were named.
    return [var for name, var in by_name.items() if name in set(names)]
