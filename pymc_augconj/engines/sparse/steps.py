"""Steps of stochastic variational inference: their rates, Adam's, and when they have converged.

Bounds of different minibatches differ by their noise, which hides a slow rise. Of the same
observations, two states of the optimiser run tell the difference of their bounds far better.

References
----------
Kingma, D. P. & Ba, J. (2015). Adam: a method for stochastic optimization. ICLR.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pymc_augconj.engines.base import FitProblem
from pymc_augconj.typing import Array

from .rows import Rows, State, expected_sums

__all__ = ["Adam", "default_rate", "judge_convergence", "rate_at"]

# Robbins and Monro's (delay, forgetting): nearly the average over all minibatches so far. Measured
# on 180 000 logistic observations with M = 200, distance of the bound from the best one after 400
# iterations of 1000 observations: 50 nats, and 50 to 90 with a forgetting of 1 and delays from 1 to
# 2; 300 with a rate that stays above 0.05. Of 100 observations, 3000 iterations: 300.
RATE = (1.0, 0.9)
# Where hyperparameters are learned and the data gone through several times, minibatches of other
# hyperparameters are to be forgotten sooner. Measured after 1000 iterations of 256 or 500 of 5000
# to 20 000 observations (Student-t, Poisson, logistic in one and two dimensions), nats below the
# best bound: 54, 39, 2, 39 with the former, 11, 7, 1, 13 with this.
FORGETFUL_RATE = (10.0, 0.75)
_SEVERAL = 5.0

# Largest improvement by the last iterations that counts as converged, in nats. A factor of e
# between two hypotheses is "not worth more than a bare mention" (Kass & Raftery 1995, Bayes
# factors), and smaller steps alone give some tenths, as the noise of the weights falls with them.
_TOLERABLE = 1.0
# Fewest iterations for a check; of more, one in _FEWEST is evaluated again: as many observations
# are compared, in _GROUPS groups from which the standard error is estimated.
_FEWEST, _GROUPS = 10, 16


def rate_at(rate: float | tuple[float, float], iteration: int) -> float:
    """Return ρ_t for iteration t = 0, 1, …."""
    if not isinstance(rate, tuple):
        return rate
    delay, forgetting = rate
    return (1.0 + iteration / delay) ** -forgetting


def default_rate(passes: float, *, learned: bool) -> tuple[float, float]:
    """Return (delay, forgetting) for a number of passes over the data.

    A pass has as many observations of minibatches as there are; ``learned`` is whether
    hyperparameters or inducing inputs move.
    """
    return FORGETFUL_RATE if learned and passes >= _SEVERAL else RATE


class Adam:
    """Stochastic gradient ascent with a step size of its own for every coordinate of some arrays.

    ``rate`` is approximately the longest step of a coordinate.
    """

    def __init__(self, rate: float, decay: tuple[float, float] = (0.9, 0.999)) -> None:
        self.rate, self.decay, self._count = rate, decay, 0
        self._means: dict[str, tuple[Array | float, Array | float]] = {}

    def step(self, gradient: Mapping[str, Array]) -> dict[str, Array]:
        """Return what to add to the arrays, which are the same at every call."""
        first, second = self.decay
        self._count += 1
        steps = {}
        for name, slope in gradient.items():
            mean, square = self._means.get(name, (0.0, 0.0))
            mean = first * mean + (1.0 - first) * slope
            square = second * square + (1.0 - second) * slope**2
            self._means[name] = mean, square
            std = np.sqrt(square / (1.0 - second**self._count))
            steps[name] = self.rate * (mean / (1.0 - first**self._count)) / (std + 1e-8)
        return steps


def judge_convergence(
    data: Rows[Any],
    problem: FitProblem,
    before: tuple[int, State] | None,
    last: tuple[int, State],
    batch_size: int,
) -> tuple[bool, str]:
    """Return whether the objective has stopped rising, and a sentence about it.

    ``before`` are number of iterations and state when some iterations were left, ``last`` those
    after the last one.
    """
    count, end = last
    if before is None or count < _FEWEST:
        return False, (
            f"{count} iterations are too few to tell whether the bound still rises; "
            "increase max_iter"
        )
    earlier, start = before
    step = max(data.n_rows // (batch_size * max(count // _FEWEST, 1)), 1)
    groups = data.groups(step, _GROUPS)
    sums = [[data.total(expected_sums, at, rows) for at in (end, start)] for rows in groups]
    differences = np.array([after.value - before.value for after, before in sums])
    scale = data.n_rows / sum(after.count for after, _ in sums)
    rise = scale * differences.sum() + _of_prior(problem, end) - _of_prior(problem, start)
    if not np.isfinite(rise):
        return False, (
            "the bound is not finite: log densities are rounded to infinity where the "
            "approximation has mass; give the process a prior of smaller variance"
        )
    # All the data leave no error of sampling.
    error = scale * np.sqrt(len(groups)) * differences.std() if step > 1 else 0.0
    found = f"{rise:+.2g}" + (f" ± {error:.2g}" if error else "")
    message = f"{found} nats in the last {count - earlier} iterations"
    what = "the objective" if problem.members else "the bound"
    if rise > 3.0 * error + _TOLERABLE:
        return False, f"{what} is still rising: {message}; increase max_iter"
    within = ", within its error" if error else ""
    return True, f"{what} no longer rises by more than a nat{within}: {message}"


def _of_prior(problem: FitProblem, state: State) -> float:
    """Return what the objective has besides the expectations of log densities."""
    return problem.log_prior(state.point)[0] - state.q.divergence
