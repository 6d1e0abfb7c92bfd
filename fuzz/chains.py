"""One model: sample it by the step method, and look for states where no exact chain comes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymc.model import Model

import pymc_augconj as pac

from .comparison import Outcome, check_step, sentence
from .reference import Reference

__all__ = ["low_states", "relaxed", "sample_chain"]

Array = NDArray[np.float64]

# A stationary log density has a standard deviation of some √(d/2), 3 for twenty dimensions.
_FAR_BELOW = 50.0

# Of slice sampling from a low state, and how many widths a slice may be stepped out by.
_SWEEPS, _WIDTHS = 5, 8
_MOST_SCALARS = 60


def sample_chain(model: Model, seed: int = 0, steps: int = 300) -> Outcome:
    """Sample a model for some steps, half of them tuning, and look at every state.

    Returns
    -------
    Outcome
        ``"sampled"``; ``"warned"`` (sampled, with a warning); ``"stopped"`` (an error of the
        package, with its sentence); ``"unsettled"`` (the chain still climbs after tuning);
        ``"low"`` (it comes to low states that are probable: a standard deviation of many latents
        that grows lowers every density). And of failures: ``"not finite"`` (a value, or a log
        density), ``"fallen"`` (it comes to a low state that a few sweeps of slice sampling by
        PyMC's density leave at once), ``"misread"`` (a right model that is stopped as misread).

    Raises
    ------
    MismatchError
        If the log density of the last state, or of the lowest, is not PyMC's.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        try:
            step = pac.AugmentedGibbs(model=model)
        except pac.AugmentationError as error:
            return _ended("refused", error)
        step.setup_chain(np.random.default_rng(seed), steps // 2, steps - steps // 2)
        point = dict(step.recognition.start)
        points, found = [], []
        for i in range(steps):
            if i == steps // 2:
                step.stop_tuning()
            try:
                point, (stats,) = step.step(point)
            except pac.AugmentationError as error:
                return _ended("stopped", error)
            points.append(point)
            found.append(stats)
            wrong = _not_finite(point, stats)
            if wrong:
                return Outcome("not finite", f"step {i}: {wrong}")
    return _judge(points, found, steps // 2, Reference(model, seed)) or _warned(found, caught)


def low_states(log_densities: Array, tune: int) -> NDArray[np.intp]:
    """Return the states after tuning that lie far below the level that the chain has had.

    The level is the larger of the median after tuning and the highest median of a stretch of
    tuning: a chain that falls early and never returns is low too. A chain that has never been at
    its level before is not low but on its way there.

    Parameters
    ----------
    log_densities : ndarray, shape (steps,)
    tune : int
        Number of steps that are tuning.
    """
    stretch = max(tune // 6, 1)
    levels = [np.median(log_densities[i : i + stretch]) for i in range(0, tune, stretch)]
    level = max(*levels, np.median(log_densities[tune:])) - _FAR_BELOW
    reached = np.maximum.accumulate(log_densities) >= level
    low = (log_densities <= level) & reached
    return tune + np.flatnonzero(low[tune:])


def _judge(
    points: list[dict[str, Array]], found: list[dict[str, Any]], tune: int, reference: Reference
) -> Outcome | None:
    """Return what is wrong with a chain, if anything is."""
    log_densities = np.array([stats["model_logp"] for stats in found])
    last = len(points) - 1
    check_step(last, points[last], log_densities[last], reference)
    after = log_densities[tune:]
    low = low_states(log_densities, tune)
    if low.size:
        lowest = int(low[np.argmin(log_densities[low])])
        check_step(lowest, points[lowest], log_densities[lowest], reference)
        # Where a state is probable, exact updates stay at its level. PyMC's density as written is
        # no number at some impossible ones.
        after_sweeps = relaxed(points[lowest], points, reference, np.random.default_rng(0))
        has_fallen = not abs(after_sweeps - log_densities[lowest]) <= 0.5 * _FAR_BELOW
        values = {name: np.asarray(x).tolist() for name, x in points[lowest].items()}
        return Outcome(
            "fallen" if has_fallen else "low",
            f"{low.size} of {after.size} states, from step {low[0]} on; step {lowest} is at "
            f"{log_densities[lowest]:.6g}, and at {after_sweeps:.6g} after slice sampling; "
            f"quartiles of the log density after tuning {np.quantile(after, (0.25, 0.5, 0.75))}, "
            f"in tuning {np.quantile(log_densities[:tune], (0.25, 0.5, 0.75))}\n"
            f"  point = {values}",
        )
    below = np.median(after) - after
    if below.max() >= _FAR_BELOW:
        return Outcome("unsettled", f"{below.max():.4g} below the median; {_said(found)}")
    return None


def relaxed(
    point: dict[str, Array],
    points: list[dict[str, Array]],
    reference: Reference,
    rng: np.random.Generator,
) -> float:
    """Return PyMC's log density after a few sweeps of slice sampling, a scalar at a time.

    Parameters
    ----------
    point : dict
        The first state.
    points : list of dict
        A chain, for widths of the slices.
    reference : Reference
    rng : Generator
    """
    point = {name: np.array(value) for name, value in point.items()}
    scalars = [
        (name, i, float(np.std([np.ravel(p[name])[i] for p in points])))
        for name, value in point.items()
        if value.dtype.kind == "f"
        for i in range(value.size)
    ]
    here = reference.log_density(point)
    for _ in range(_SWEEPS):
        for k in rng.permutation(len(scalars))[:_MOST_SCALARS]:
            name, i, width = scalars[k]
            here = _slice(point[name].reshape(-1), i, width, here, point, reference, rng)
    return here


def _slice(
    x: Array,
    i: int,
    width: float,
    here: float,
    point: dict[str, Array],
    reference: Reference,
    rng: np.random.Generator,
) -> float:
    """Update entry ``i`` of ``x``, a view into ``point``; return the new log density."""

    def at(value: float) -> float:
        x[i] = value
        return reference.log_density(point)

    level, start = here - rng.exponential(), float(x[i])
    low = start - width * rng.random()
    high = low + width
    room = int(rng.integers(_WIDTHS))
    for _ in range(room):
        if at(low) <= level:
            break
        low -= width
    for _ in range(_WIDTHS - 1 - room):
        if at(high) <= level:
            break
        high += width
    while low < high:
        value = float(rng.uniform(low, high))
        density = at(value)
        if density > level or value == start:
            return density
        low, high = (value, high) if value < start else (low, value)
    return at(start)


def _not_finite(point: dict[str, Array], stats: dict[str, Any]) -> str:
    names = [name for name, value in point.items() if not np.isfinite(value).all()]
    if not np.isfinite(stats["model_logp"]):
        names.append(f"log density {stats['model_logp']}")
    return ", ".join(names)


def _ended(kind: str, error: Exception) -> Outcome:
    return Outcome("misread" if "misread" in str(error) else kind, sentence(error))


def _warned(found: list[dict[str, Any]], caught: list[warnings.WarningMessage]) -> Outcome:
    said = _said(found, [str(warning.message) for warning in caught if _is_ours(warning)])
    return Outcome("warned", said) if said else Outcome("sampled")


def _said(found: list[dict[str, Any]], others: Sequence[str] = ()) -> str:
    """Return the sentences of a chain's warnings."""
    said = [stats["warning"].message for stats in found if stats.get("warning") is not None]
    return "; ".join(sorted({sentence(text) for text in (*others, *said)}))


def _is_ours(warning: warnings.WarningMessage) -> bool:
    return "pymc_augconj" in warning.filename or "pymc_augconj" in str(warning.message)
