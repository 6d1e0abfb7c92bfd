"""Chains whose draws are in a Zarr store, and that resume from it after an interrupt."""

from __future__ import annotations

import hashlib
import pickle
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
from pymc.backends.arviz import find_constants, find_observations
from pymc.backends.base import MultiTrace
from pymc.model import Model
from pymc.stats.convergence import log_warnings, run_convergence_checks
from pymc.util import drop_warning_stat

from pymc_augconj.engines.gibbs.native.loop import Drawn
from pymc_augconj.errors import AugmentationError
from pymc_augconj.results.comparison.fits import DataTree

from .checkpoints import CHECKPOINT, Checkpoints
from .native_step import Recorder
from .step import PythonGibbs

if TYPE_CHECKING:
    from pymc_augconj.results.draw_store import DrawStore

# Seconds between two states of a chain that are written.
INTERVAL = 5.0
_CHAINS = 4
# Relative difference of log densities by rounding on another machine.
_ROUNDING = 1e-8
# Deviation from the start at which log densities of models are compared.
_AWAY = 0.1
# PyMC's names of statistics in a DataTree.
_NAMES = {"model_logp": "lp"}
# Arguments of pm.sample that must have these values.
_REFUSED = {
    "trace": None,
    "discard_tuned_samples": True,
    "keep_warning_stat": False,
    "return_inferencedata": True,
}


class StoredRun:
    """One call of ``pac.sample`` with ``zarr_store``."""

    def __init__(
        self, where: Any, resume: bool, options: Mapping[str, Any], kwargs: Mapping[str, Any]
    ) -> None:
        for name, value in _REFUSED.items():
            if kwargs.get(name, value) != value:
                raise TypeError(f"pac.sample: expected no {name!r} with zarr_store=…; leave it out")
        if (kwargs.get("idata_kwargs") or {}).get("log_likelihood"):
            raise AugmentationError(
                "idata_kwargs['log_likelihood']: expected none with zarr_store=…; use "
                "pm.compute_log_likelihood(idata) afterwards"
            )
        self._store, self._options = _open(where), options
        known = self._store.described
        if known is not None and not resume:
            raise AugmentationError(
                f"zarr_store: expected an empty store, found {known['draws']} draws of "
                f"{known['chains']} chains, or a part of them, in {self._store}; use resume=True "
                "to go on with these, or another path"
            )
        chains = kwargs.get("chains") or (known["chains"] if known else _CHAINS)
        self.arguments = {"chains": chains, "random_seed": _seed(kwargs.get("random_seed"), known)}
        self._traces: dict[int, StoreRecorder] = {}

    def sample(
        self,
        run: Callable[..., Any],
        step: PythonGibbs,
        model: Model,
        recorder: Recorder | None,
        draws: int,
        kwargs: dict[str, Any],
    ) -> DataTree:
        """Return the draws; ``run(**kwargs)`` makes missing ones."""
        others = {var.name for var in model.value_vars} - {var.name for var in step.vars}
        if others or recorder is None:
            found = f"PyMC's steps for {sorted(others)}" if others else "random Deterministics"
            raise AugmentationError(
                f"zarr_store: expected draws by the Gibbs step alone, found {found}; leave "
                "zarr_store out, or leave out vars and discrete variables"
            )
        begin, seconds, idata_kwargs = time.time(), None, kwargs.pop("idata_kwargs")
        tune = kwargs.get("tune")
        tune = step.default_tune_steps if tune is None else tune
        described = {
            **self.arguments,
            "tune": tune,
            "draws": draws,
            **{name: repr(value) for name, value in self._options.items()},
            "initvals": _digest(kwargs.get("initvals")),
            **_described(step, model, recorder),
        }
        store, chains = self._store, self.arguments["chains"]
        if store.described is None:
            template = _template(step, model, recorder, tune, idata_kwargs)
            store.create(template, described)
        else:
            _compare(str(store), store.described, described)
            store.extend(draws)
        states = store.states()
        step.checkpoints = Checkpoints(INTERVAL, {k: state for k, (_, state) in states.items()})
        for _, pickled in states.values():
            log_warnings(pickle.loads(pickled).warnings)
        made = {chain: steps for chain, (steps, _) in states.items()}
        check = kwargs.pop("compute_convergence_checks", True)
        if len(made) < chains or min(made.values()) < tune + draws:
            trace = StoreRecorder(recorder, store, self._traces, made, tune)
            with warnings.catch_warnings():
                # A DataTree of PyMC would have all draws in memory.
                warnings.filterwarnings("ignore", "`return_inferencedata=False`", FutureWarning)
                run(
                    **kwargs | {"trace": trace, "tune": tune, "return_inferencedata": False},
                    compute_convergence_checks=False,
                )
            seconds = time.time() - begin
        written = {chain: trace.written for chain, trace in self._traces.items()}
        chosen, count = _most({k: steps - tune for k, steps in made.items()} | written)
        tree = store.tree(chosen, count, seconds)
        if check:
            found = run_convergence_checks(tree, model)
            log_warnings([] if kwargs.get("quiet") else found)
        return tree


class StoreRecorder(Recorder):
    """Records the draws of one chain, with part of a chunk in memory at a time."""

    draw_idx: int

    def __init__(
        self,
        recorder: Recorder,
        store: DrawStore,
        traces: dict[int, StoreRecorder],
        made: Mapping[int, int],
        tune: int,
    ) -> None:
        self.__dict__.update(vars(recorder))
        self._store, self._all, self._made, self._tune = store, traces, made, tune
        self._steps = self.written = 0

    def setup(self, draws: int, chain: int, sampler_vars: Any = None) -> None:
        """Make the arrays of a chunk."""
        self._rows = self._store.rows
        super().setup(min(self._rows, draws), chain, sampler_vars)
        self.draws, self._all[chain] = draws, self
        self._skipped = self._made.get(chain, 0)
        self.written = max(self._skipped - self._tune, 0)

    @property
    def where(self) -> str:
        """The name of the store."""
        return str(self._store)

    @property
    def repeats(self) -> bool:
        """Whether the store already had the last step."""
        return self._steps <= self._skipped

    def record(self, point: Any, sampler_stats: Any = None, *, in_warmup: bool) -> None:
        """Record a step, unless it is in the store; write at a checkpoint."""
        self._steps += 1
        if self.repeats:
            return
        stats = dict(sampler_stats[0])
        state = stats.pop(CHECKPOINT, None)
        if not in_warmup:
            recorded = point.block.recorded if isinstance(point, Drawn) else None
            values: Any = (
                self.fn(*point.values()) if recorded is None else [v[point.row] for v in recorded]
            )
            for name, value in zip(self.varnames, values, strict=True):
                self.samples[name][self.draw_idx] = value
            arrays = self._stats[0] if self._stats else {}
            for key, value in stats.items():
                arrays[key][self.draw_idx] = value
            self.draw_idx += 1
        if state is not None or (self.written + self.draw_idx) % self._rows == 0:
            self.close()
        if state is not None:
            self._store.commit(self.chain, self._steps, state)

    def close(self) -> None:
        """Write the draws in memory."""
        if not (n := self.draw_idx):
            return
        stats = self._stats[0] if self._stats else {}
        groups = {
            "posterior": self.samples,
            "sample_stats": {_NAMES.get(key, key): values for key, values in stats.items()},
        }
        for group, arrays in groups.items():
            rows = {name: values[:n] for name, values in arrays.items()}
            self._store.write(group, self.chain, self.written, rows)
        self.written, self.draw_idx = self.written + n, 0

    def __len__(self) -> int:
        return self._steps

    def _slice(self, idx: slice) -> StoreRecorder:
        # Draws are not in memory.
        return self


def _open(where: Any) -> DrawStore:
    try:
        from pymc_augconj.results.draw_store import DrawStore
    except ImportError as error:
        raise ImportError(
            f"zarr_store: expected the package zarr 3.1.3 or later ({error}); "
            "pip install 'pymc-augconj[zarr]'"
        ) from error
    return DrawStore(where)


def _seed(seed: Any, known: Mapping[str, Any] | None) -> int:
    """Return the seed of the store, the user's, or a new one."""
    if seed is None:
        entropy: Any = np.random.SeedSequence().entropy
        return int(known["random_seed"] if known else entropy)
    if isinstance(seed, int | np.integer):
        return int(seed)
    raise TypeError(
        "random_seed: expected an int with zarr_store=…, which is written down, found "
        f"{type(seed).__name__}"
    )


def _digest(value: Any) -> str:
    return "none" if value is None else hashlib.sha256(pickle.dumps(value)).hexdigest()[:16]


def _described(step: PythonGibbs, model: Model, recorder: Recorder) -> dict[str, Any]:
    """Return numbers that distinguish models: shapes, data, and log densities at two points."""
    start, rng = step.recognition.start, np.random.default_rng(0)
    away = {
        name: value + _AWAY * rng.standard_normal(value.shape) if value.dtype.kind == "f" else value
        for name, value in start.items()
    }
    densities = []
    for point in (start, away):
        density = np.nan
        with suppress(AugmentationError, FloatingPointError):
            density = step.make_sampler(start).chain.log_density(point)
        densities.append(repr(float(density)))
    data = {**find_observations(model), **find_constants(model)}
    arrays = {name: np.ascontiguousarray(value) for name, value in data.items()}
    return {
        "version of pymc-augconj": version("pymc-augconj"),
        "recorded variables": {name: list(shape) for name, shape in recorder.var_shapes.items()},
        "data": {name: f"{list(a.shape)} {_digest(a.tobytes())}" for name, a in arrays.items()},
        "log density of the model": densities,
    }


def _compare(where: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise AugmentationError if a store is of another run."""
    differences = []
    for name, now in given.items():
        before = known[name]
        if isinstance(before, dict) and isinstance(now, dict):
            names = sorted(k for k in {*before, *now} if before.get(k) != now.get(k))
            differences += [f"{name} {names}"] * bool(names)
        elif name == "log density of the model":
            pair = np.array(before, dtype=float), np.array(now, dtype=float)
            if not np.allclose(*pair, rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True):
                differences.append(f"{name} ({before[1]} there, {now[1]} here)")
        elif name == "draws" and now >= before:
            continue
        elif before != now:
            differences.append(f"{name} ({before} there, {now} here)")
    if differences:
        raise AugmentationError(
            f"zarr_store: expected draws of the same model with the same options in {where}, found "
            f"other {'; other '.join(differences)}; use another path, or the same arguments"
        )


def _template(
    step: PythonGibbs, model: Model, recorder: Recorder, tune: int, idata_kwargs: Mapping[str, Any]
) -> DataTree:
    """Return a result with one draw of one chain, as PyMC makes it."""
    trace = copy(recorder)
    trace.setup(1, 0, step.stats_dtypes)
    start = step.recognition.start
    trace.record({var.name: start[var.name] for var in model.value_vars}, [{}], in_warmup=False)
    draws = MultiTrace([trace])
    draws.report._n_tune, draws.report._n_draws, draws.report._t_sampling = 0, 1, 0.0
    tree = pm.to_inference_data(draws, model=model, save_warmup=False, **idata_kwargs)
    for group in ("posterior", "sample_stats"):
        tree[group].attrs["tuning_steps"] = tune
    return drop_warning_stat(tree)


def _most(drawn: Mapping[int, int]) -> tuple[list[int], int]:
    """Return the chains with the most draws in common, and their common number of draws."""
    counts = set(drawn.values())
    if not any(count > 0 for count in counts):
        raise KeyboardInterrupt("interrupted before the first draw after tuning")
    chosen = {n: sorted(k for k, own in drawn.items() if own >= n) for n in counts}
    count = max(counts, key=lambda n: (n * len(chosen[n]), n))
    return chosen[count], count
