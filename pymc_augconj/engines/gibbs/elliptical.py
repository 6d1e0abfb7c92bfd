"""Moves that leave a Gaussian density times exp r as it is: elliptical slices, and trajectories.

A fresh draw v* of N(m, Σ) and the present v span an ellipse around m that leaves N(m, Σ) as it is,

    v(φ) = m + (v − m) cos φ + (v* − m) sin φ,

and a point of it with r above a random level is found by shrinking an interval of φ towards φ = 0,
without tuning or a factorisation. The first φ is uniform on the ellipse, or on a part g of it that
is symmetric, |φ| from 0.4 π to 0.9 π, so that v − m is reversed rather than forgotten and averages
converge faster than those of independent draws. Given the level and the first point, which has the
density g about the present one, the present one has it about that point: either they change places,
or, if the first is below the level, the next is one of the others above it, drawn from g about the
first by the same interval. Where r is steep, so that ellipses hardly move, trajectories of
the Hamiltonian ½|ν|² + ½|p|² − r(ν), p ~ N(0, I), follow its gradient: a step of angle δ is

    p += ½ δ ∇r(ν),        (ν, p) turned by δ,        p += ½ δ ∇r(ν).

It is reversible and keeps volume, and where r = 0 it is exact. Of a trajectory of L steps a number
drawn uniformly from 0, …, L goes back in time: from each of its L + 1 points the same trajectory
would have been made with the same probability. With W the sum of w = e^{−H} over that half of them
with the present state, and W′ over the other, the next state is one of the other half with
probability min(1, W′/W), and else one of the same half, in proportion to w. So the flow from one
state to another one is w w′ min(1/W, 1/W′), or the same both ways within a half. If r = 0 and the
trajectory turns by π, then a normal number has no correlation with the next one, and its square
0.3; 0.4 and 0.5 if the next state is one of all points.

Slices of all entries of a vector at once, which are independent, are of intervals instead (Neal
2003). Python's step calls the functions that make these and slices along ellipses, and the native
loop compiles them.

References
----------
Murray, Adams & MacKay (2010), Elliptical slice sampling. AISTATS.
Shahbaba, Lan, Johnson & Neal (2014), Split Hamiltonian Monte Carlo. Statistics and Computing 24.
Betancourt (2017), A conceptual introduction to Hamiltonian Monte Carlo. arXiv:1701.02434, A.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_augconj.typing import Array, Generator, Index

# The interval shrinks by a half or so each time: by now the angle does not show in float64.
_LARGEST_TRIALS = 100

#: |φ| of a first point that reverses, and of any; and the dimensions up to which the former is
#: better: where the first point is often below the level, the others above it are near.
REVERSING, ANY, FEW = (0.4 * math.pi, 0.9 * math.pi), (0.0, math.pi), 3
#: Dimensions beyond which slices along one axis in three follow ellipses, which hardly move them
#: all. Effective samples an evaluation, over those of one such slice in four steps: 1.6 with two
#: covariances of order 3, 0.75 and 0.87 with twelve independent scales.
MANY, ONE_IN = 10, 3


def first_angle(share: float, least: float, most: float) -> float:
    """Return the first φ, from 0 to 2π, at a share of the range of |φ| on both sides."""
    phi = 2.0 * math.pi * share
    away = least + (most - least) / math.pi * min(phi, 2.0 * math.pi - phi)
    return away if phi < math.pi else 2.0 * math.pi - away


def may_follow(phi: float, first: float, least: float, most: float) -> bool:
    """Return whether the first φ might have been drawn about this one."""
    away = first - phi
    return least <= min(away, 2.0 * math.pi - away) <= most


def ellipse_slices(
    evaluate: Callable[[Any, float, float], float],
    first_angle: Callable[..., float] = first_angle,
    may_follow: Callable[..., bool] = may_follow,
) -> Callable[..., tuple[float, float, float, int]]:
    """Return a function of ``(rng, given, current, first)`` that moves along an ellipse.

    ``evaluate(given, cos φ, sin φ)`` is r there, infinite or NaN outside the support, and
    ``current`` r at φ = 0: where it is −∞, any point of the support is accepted. ``first`` is the
    range of the first |φ|. Results are cos φ and sin φ of the next point, r there, and the trials.
    """

    def update(
        rng: Generator, given: Any, current: float, first: tuple[float, float] = ANY
    ) -> tuple[float, float, float, int]:
        least, most = first
        level = current + math.log1p(-rng.random())
        begin = phi = first_angle(rng.random(), least, most)
        lower, upper = phi - 2.0 * math.pi, phi
        for trials in range(1, _LARGEST_TRIALS + 1):
            if trials == 1 or may_follow(phi, begin, least, most):
                cos, sin = math.cos(phi), math.sin(phi)
                value = evaluate(given, cos, sin)
                if level < value < math.inf:
                    return cos, sin, value, trials
            if phi < 0.0:
                lower = phi
            else:
                upper = phi
            phi = lower + (upper - lower) * rng.random()
        return 1.0, 0.0, current, _LARGEST_TRIALS

    return update


#: Moves along an ellipse, given r as a function of (cos φ, sin φ).
elliptical_slice = ellipse_slices(lambda residual, cos, sin: residual(cos, sin))


def elliptical_slices(
    rng: Generator, residual: Callable[[Array, Array, Index], Array], current: Array
) -> tuple[Array, Array, Array, float]:
    """Return the same for vectors that are independent, each with an r and an angle of its own.

    ``residual`` is given the numbers of the vectors too; evaluations are those of each, on average.
    """
    level = current + np.log1p(-rng.random(current.size))
    phi = 2.0 * math.pi * rng.random(current.size)
    lower, upper = phi - 2.0 * math.pi, phi.copy()
    values, left, count = current.copy(), np.arange(current.size), 0
    for _ in range(_LARGEST_TRIALS):
        found, count = residual(np.cos(phi[left]), np.sin(phi[left]), left), count + left.size
        accepted = (level[left] < found) & (found < math.inf)
        values[left[accepted]] = found[accepted]
        left = left[~accepted]
        if not left.size:
            break
        tried = phi[left]
        lower[left] = np.where(tried < 0.0, tried, lower[left])
        upper[left] = np.where(tried < 0.0, upper[left], tried)
        phi[left] = lower[left] + (upper[left] - lower[left]) * rng.random(left.size)
    phi[left] = 0.0
    return np.cos(phi), np.sin(phi), values, count / max(current.size, 1)


def trajectory(
    rng: Generator,
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
    back, accepted = int(rng.integers(steps + 1)), 0.0
    # Of each half of the trajectory: a point, r there, and log W.
    own = int(2 * back > steps)
    halves = [(nu, value, -math.inf), (nu, value, -math.inf)]
    halves[own] = nu, value, 0.0
    for sign, count in ((-1.0, back), (1.0, steps - back)):
        # Back in time is forward with the opposite momentum.
        at, momentum, force = nu, sign * p, slope
        for number in range(1, count + 1):
            half = momentum + (0.5 * angle) * force
            at, momentum = cos * at + sin * half, cos * half - sin * at
            there, force = residual(at)
            momentum = momentum + (0.5 * angle) * force
            log_weight = start + there - 0.5 * float(at @ at + momentum @ momentum)
            if not math.isfinite(log_weight):
                # Nor is anything beyond, from wherever a trajectory comes.
                break
            accepted += math.exp(min(log_weight, 0.0))
            which = int(2 * (back + int(sign) * number) > steps)
            log_total = float(np.logaddexp(halves[which][2], log_weight))
            if rng.random() < math.exp(log_weight - log_total):
                halves[which] = at, there, log_total
            else:
                halves[which] = *halves[which][:2], log_total
    crosses = math.log1p(-rng.random()) < halves[1 - own][2] - halves[own][2]
    chosen, value, _ = halves[1 - own] if crosses else halves[own]
    return chosen, value, accepted / steps


# Of stepping out.
_MAX_STEPS = 100


def entry_slices(
    evaluate: Callable[[Any, Array, Array], None], where: Callable[..., Array] = np.where
) -> Callable[..., Any]:
    """Return a function of ``(given, rng, start, widths)`` that updates all entries.

    ``evaluate(given, x, value)`` writes their log densities at x. Intervals of length ``widths``
    grow by stepping out and shrink; with the next value it returns their lengths then.
    """

    def update(given: Any, rng: Generator, start: Array, widths: Array) -> tuple[Array, Array]:
        value = np.empty(start.size)
        evaluate(given, start, value)
        level = value - rng.standard_exponential(start.size)
        lower = start - widths * rng.random(start.size)
        upper = lower + widths
        to_the_left = np.floor(_MAX_STEPS * rng.random(start.size))
        for step in (-1.0, 1.0):
            end = lower if step < 0.0 else upper
            most = to_the_left if step < 0.0 else _MAX_STEPS - 1.0 - to_the_left
            grows, count = most > 0.0, 0
            while grows.any():
                # What does not grow any more is evaluated where it is.
                evaluate(given, end, value)
                grows &= value >= level
                end += step * widths * grows
                count += 1
                grows &= count < most
        x, searched = start, np.ones(start.size, np.bool_)
        while searched.any():
            at = where(searched, lower + (upper - lower) * rng.random(start.size), x)
            evaluate(given, at, value)
            # The start is in its own slice, whatever rounding says.
            searched &= ~((value >= level) | (at == start))
            x = where(searched, x, at)
            lower = where(searched & (at < start), at, lower)
            upper = where(searched & (at >= start), at, upper)
        return x, upper - lower

    return update
