"""One small model: sample it, and compare the moments with importance sampling."""

from __future__ import annotations

import arviz as az
import numpy as np
from numpy.typing import NDArray
from pymc.model import Model

from pymc_augconj.api.native_step import AugmentedGibbs

from .comparison import MismatchError, Outcome, check_step
from .importance import Weighted, importance_sample
from .reference import Reference

__all__ = ["compare_moments"]

Array = NDArray[np.float64]

_TUNE = 200
_DRAWS = 800
_EVERY = 150  # a step whose log density is compared
_FEWEST_EFFECTIVE = 200
_STANDARD_ERRORS = 5.0


def compare_moments(model: Model, seed: int = 0) -> Outcome:
    """Compare the sampler's moments with importance sampling's, in compiled blocks of steps where
    the model allows.

    Of each scalar x on the unconstrained scale, t = tanh of the standardised x and t²: their
    moments exist whatever the posterior's tails are. What differs by more than five standard
    errors, or cannot be compared, is sampled again, four times as long: a difference that remains
    is a mismatch.
    """
    step, reference = AugmentedGibbs(model=model), Reference(model, seed)
    if len(step.vars) < len(model.value_vars):
        return Outcome("unverified", "variables are left to PyMC")
    kind = "read" if step.prepare(None, _TUNE + _DRAWS) else "read in Python"
    for attempt, longer in enumerate((1, 4)):
        rng = np.random.default_rng([seed, attempt])
        draws = _sample(step, rng, longer * _DRAWS, reference)
        weighted = importance_sample(model, draws, rng)
        found = _compare(draws, weighted)
        if found.kind == "read":
            return Outcome(kind)
    if found.kind == "mismatch":
        raise MismatchError(f"moments of {[v.name for v in model.value_vars]}: {found.detail}")
    return found


def _compare(draws: Array, weighted: Weighted) -> Outcome:
    if weighted.effective < _FEWEST_EFFECTIVE:
        return Outcome("unverified", "too few effective draws by importance sampling")
    low, centre, high = weighted.quantiles((0.16, 0.5, 0.84))
    scale = np.where(high > low, 0.5 * (high - low), 1.0)
    ours, theirs = (_functions((x - centre) / scale) for x in (draws, weighted.draws))
    effective = np.array([float(az.ess(x[None], method="mean")) for x in ours.T])
    if not np.all(effective > _FEWEST_EFFECTIVE):  # also where a scalar never moves
        return Outcome("unverified", "too few effective draws by the sampler")
    expected, error = weighted.mean(theirs)
    mean, spread = ours.mean(axis=0), ours.std(axis=0) / np.sqrt(effective)
    z = (mean - expected) / np.hypot(error, spread)
    if np.all(np.abs(z) < _STANDARD_ERRORS):
        return Outcome("read")
    numbers = f"{mean.round(4).tolist()} by the sampler, {expected.round(4).tolist()} expected"
    return Outcome("mismatch", f"E t, E t² are {numbers}: {z.round(1).tolist()} standard errors")


def _functions(x: Array) -> Array:
    t = np.tanh(x)
    return np.concatenate([t, t**2], axis=1)


def _sample(
    step: AugmentedGibbs, rng: np.random.Generator, count: int, reference: Reference
) -> Array:
    """Return a chain's draws, flattened, shape (count, d)."""
    step.setup_chain(rng, _TUNE, count)
    point = dict(step.recognition.start)
    rows = []
    for i in range(_TUNE + count):
        if i == _TUNE:
            step.stop_tuning()
        point, (stats,) = step.step(point)
        if i % _EVERY == 0:
            check_step(i, point, stats["model_logp"], reference)
        if i >= _TUNE:
            rows.append(np.concatenate([np.ravel(value) for value in point.values()]))
    return np.array(rows)
