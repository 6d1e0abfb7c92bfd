"""Hamiltonian trajectories for N(ν; 0, I) e^{r(ν)}, where ellipses hardly move: r is steep.

With a momentum p ~ N(0, I) the Hamiltonian is ½|ν|² + ½|p|² − r(ν). Its first two terms alone turn
(ν, p) by an angle, as an ellipse does; r alone changes p by its gradient. A step of angle δ is

    p += ½ δ ∇r(ν),        (ν, p) turned by δ,        p += ½ δ ∇r(ν).

It is reversible and keeps volume, and where r = 0 it is exact. Of a trajectory of L steps a number
drawn uniformly from 0, …, L goes back in time. The next state is one of its L + 1 points with
probabilities in proportion to e^{−H}: from each of them the same trajectory would have been made
with the same probability, so that the density stays as it is.

References
----------
Shahbaba, Lan, Johnson & Neal (2014), Split Hamiltonian Monte Carlo. Statistics and Computing 24.
Betancourt (2017), A conceptual introduction to Hamiltonian Monte Carlo. arXiv:1701.02434, A.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pymc_augconj.typing import Array

__all__ = ["trajectory"]


def trajectory(
    rng: np.random.Generator,
    residual: Callable[[Array], tuple[float, Array]],
    nu: Array,
    angle: float,
    steps: int,
) -> tuple[Array, float, float]:
    """Return the next ν, r there, and the mean acceptance probability of the other points.

    ``residual`` gives r and its gradient at ν, −∞ or NaN outside the support; ``angle`` is δ,
    ``steps`` L.
    """
    cos, sin = math.cos(angle), math.sin(angle)
    value, slope = residual(nu)
    p = rng.standard_normal(nu.size)
    start = 0.5 * float(nu @ nu + p @ p) - value
    chosen, chosen_value, log_total, accepted = nu, value, 0.0, 0.0
    back = int(rng.integers(steps + 1))
    for sign, count in ((-1.0, back), (1.0, steps - back)):
        # Back in time is forward with the opposite momentum.
        at, momentum, force = nu, sign * p, slope
        for _ in range(count):
            half = momentum + (0.5 * angle) * force
            at, momentum = cos * at + sin * half, cos * half - sin * at
            there, force = residual(at)
            momentum = momentum + (0.5 * angle) * force
            log_weight = start + there - 0.5 * float(at @ at + momentum @ momentum)
            if not math.isfinite(log_weight):
                # Nor is anything beyond, from wherever a trajectory comes.
                break
            accepted += math.exp(min(log_weight, 0.0))
            log_total = float(np.logaddexp(log_total, log_weight))
            if rng.random() < math.exp(log_weight - log_total):
                chosen, chosen_value = at, there
    return chosen, chosen_value, accepted / steps
