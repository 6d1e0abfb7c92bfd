"""Convergence check for SVI: the improvement of the bound over the last iterations.

Bounds of different minibatches differ by their noise, which hides a slow rise. Of the same
observations, two states of the ascent tell the difference of their bounds far better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.engines.base import FitProblem
from pymc_augconj.model import Point

from .batch import DividedModel, Posterior
from .chunked_batch import ChunkedModel

__all__ = ["AscentState", "judge_ascent"]

Array = NDArray[np.float64]

# Largest improvement by the last iterations that counts as converged, in nats. A factor of e
# between two hypotheses is "not worth more than a bare mention" (Kass & Raftery 1995, Bayes
# factors), and smaller steps alone give some tenths, as the noise of the weights falls with them.
_TOLERABLE = 1.0
# Fewest iterations for a check; of more, one in _FEWEST is evaluated again: as many observations
# are compared, in _GROUPS groups from which the standard error is estimated.
_FEWEST, _GROUPS = 10, 16


@dataclass(frozen=True)
class AscentState:
    """Where an ascent is after ``count`` iterations."""

    count: int
    q: Posterior
    point: Point
    inducing: list[Array]


def judge_ascent(
    divided: DividedModel | ChunkedModel,
    problem: FitProblem,
    before: AscentState | None,
    last: AscentState,
    batch_size: int,
) -> tuple[bool, str]:
    """Return whether the objective has stopped rising, and a sentence about it.

    Parameters
    ----------
    divided : DividedModel or ChunkedModel
    problem : FitProblem
    before : AscentState, optional
        From when there was still a share of the iterations to come.
    last : AscentState
        After them.
    batch_size : int
    """
    if before is None or last.count < _FEWEST:
        return False, (
            f"{last.count} iterations are too few to tell whether the bound still rises; "
            "increase max_iter"
        )
    n = divided.n_rows
    step = max(n // (batch_size * max(last.count // _FEWEST, 1)), 1)
    rows = divided.groups(step, _GROUPS)
    pairs = [(_expected(divided, last, own), _expected(divided, before, own)) for own in rows]
    differences = np.array([after[0] - earlier[0] for after, earlier in pairs])
    scale = n / sum(after[1] for after, _ in pairs)
    rise = scale * differences.sum() + _of_prior(problem, last) - _of_prior(problem, before)
    if not np.isfinite(rise):
        return False, (
            "the bound is not finite: log densities are rounded to infinity where the "
            "approximation has mass; give the process a prior of smaller variance"
        )
    # All the data leave no error of sampling.
    error = scale * np.sqrt(len(rows)) * differences.std() if step > 1 else 0.0
    found = f"{rise:+.2g}" + (f" ± {error:.2g}" if error else "")
    message = f"{found} nats in the last {last.count - before.count} iterations"
    what = "the objective" if problem.members else "the bound"
    if rise > 3.0 * error + _TOLERABLE:
        return False, f"{what} is still rising: {message}; increase max_iter"
    within = ", within its error" if error else ""
    return True, f"{what} no longer rises by more than a nat{within}: {message}"


def _expected(divided: Any, state: AscentState, rows: Any) -> tuple[float, int]:
    state.q.prepare()
    return divided.expected(state.point, state.inducing, rows, state.q)


def _of_prior(problem: FitProblem, state: AscentState) -> float:
    """Return what the objective has besides the expectations of log densities."""
    return problem.log_prior(state.point)[0] - state.q.divergence
