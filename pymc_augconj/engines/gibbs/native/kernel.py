"""The native loop: updates of hyperparameters with the latents integrated out, and draws.

Random numbers are those of the Python step in the same order, and so are the draws, up to
rounding. Where rounding may leave a log evidence no digits, or something else happens that a
step is to tell about, the loop ends before that step, which is for Python.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from pymc_augconj.auxiliary.polya_gamma.kernels import (
    LOG_2,
    MAX_JUMPS_BY_THINNING,
    fill_by_saddlepoint,
    fill_by_thinning,
)
from pymc_augconj.linalg.sparse_kernels import multiply, solve
from pymc_augconj.python_mode.tape_kernel import run_tape
from pymc_augconj.typing import Array, Index

from .density import EVIDENCE, FIT, REST, VALUE, Work, evaluate, log_likelihood
from .problem import Problem

__all__ = ["N_STATS", "Learned", "run_steps"]

#: Log density, log evidence and evaluations of a step.
N_STATS = 3

# As in :mod:`pymc_augconj.api.updates` and its neighbours.
_DEGREES_OF_FREEDOM, _LARGEST_TRIALS, _WIDTH, _ALONG_AXES = 3.0, 100, 10.0, 0.25


class Learned(NamedTuple):
    """An update of θ, and the running moments of its next window, which tuning changes.

    Attributes
    ----------
    centre, axes, inverse : ndarray
        Mean and principal axes, as columns, of the last window.
    number, mean, scatter : ndarray
        Of the present one; ``number`` is the one entry of an array.
    ellipses : int
        Elliptical slices a step.
    along : int
        Slices along axes: 0 none, 1 one of them in a part of the steps, 2 all.
    tune : bool
    """

    centre: Array
    axes: Array
    inverse: Array
    number: Index
    mean: Array
    scatter: Array
    ellipses: int
    along: int
    tune: bool


@njit(cache=True, error_model="numpy")
def _learn(u: Learned, x: Array) -> None:
    u.number[0] += 1
    before = np.empty(x.size)
    for i in range(x.size):
        before[i] = x[i] - u.mean[i]
        u.mean[i] += before[i] / u.number[0]
    for i in range(x.size):
        for j in range(x.size):
            u.scatter[i, j] += before[i] * (x[j] - u.mean[j])


@njit(cache=True, error_model="numpy")
def _gamma(rng: np.random.Generator, shape: float) -> float:
    """Return NumPy's draw of a gamma variable with a shape above one.

    Marsaglia & Tsang (2000), A simple method for generating gamma variables.
    """
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = rng.standard_normal()
        v = 1.0 + c * x
        if v <= 0.0:
            continue
        v = v * v * v
        u = rng.random()
        if u < 1.0 - 0.0331 * (x * x) * (x * x):
            return d * v
        if math.log(u) < 0.5 * x * x + d * (1.0 - v + math.log(v)):
            return d * v


@njit(cache=True, error_model="numpy")
def _explore(
    rng: np.random.Generator,
    p: Problem,
    w: Work,
    u: Learned,
    x: Array,
    axis: int,
    by_likelihood: bool,
) -> int:
    """Move x along an axis, or along an ellipse where ``axis`` is negative.

    Returns the evaluations, −1 where one has no digits.
    """
    size, by_ellipse = x.size, axis < 0
    z, fresh, moved = np.empty(size), np.empty(size), np.empty(size)
    shape, square = 0.5 * (_DEGREES_OF_FREEDOM + size), 0.0
    if by_ellipse:
        for i in range(size):
            z[i] = 0.0
            for j in range(size):
                z[i] += u.inverse[i, j] * (x[j] - u.centre[j])
            square += z[i] * z[i]
        scale = math.sqrt(0.5 * (_DEGREES_OF_FREEDOM + square) / _gamma(rng, shape))
        for i in range(size):
            fresh[i] = scale * rng.standard_normal()
        level = w.found[VALUE] + shape * math.log1p(square / _DEGREES_OF_FREEDOM)
        level += math.log1p(-rng.random())
        at = 2.0 * math.pi * rng.random()
        lower, upper = at - 2.0 * math.pi, at
    else:
        level = w.found[VALUE] - rng.standard_exponential()
        lower = -_WIDTH * rng.random()
        upper = lower + _WIDTH
        at = lower + (upper - lower) * rng.random()
    count = 0
    while True:
        count += 1
        is_last = by_ellipse and count > _LARGEST_TRIALS
        cos, sin, square = math.cos(at), math.sin(at), 0.0
        for i in range(size):
            total = u.centre[i] if by_ellipse else x[i] + at * u.axes[i, axis]
            if by_ellipse:
                for j in range(size):
                    total += u.axes[i, j] * (cos * z[j] + sin * fresh[j])
                square += (cos * z[i] + sin * fresh[i]) ** 2
            moved[i] = x[i] if is_last else total
        if not evaluate(p, w, moved, by_likelihood):
            return -1
        value = w.found[VALUE]
        if by_ellipse:
            value += shape * math.log1p(square / _DEGREES_OF_FREEDOM)
        # Slices along axes accept their level, ellipses what is above it.
        if is_last or level < value < math.inf or (value == level and not by_ellipse):
            for i in range(size):
                x[i] = moved[i]
            return min(count, _LARGEST_TRIALS)
        if at < 0.0:
            lower = at
        else:
            upper = at
        at = lower + (upper - lower) * rng.random()


@njit(cache=True, error_model="numpy")
def _predict(p: Problem, w: Work, v: Array) -> bool:
    """Write the predictors of observations that have an ω; return whether all are finite."""
    r, is_finite = w.registers, True
    for k in range(p.number.size):
        total = r[p.offsets[k]]
        for e in range(p.entries[k], p.entries[k + 1]):
            i = p.columns[e]
            total += p.numbers[e] * r[p.multiples[e]] * w.s[i] * v[i]
        w.eta[k] = total
        is_finite &= math.isfinite(total)
    return is_finite


@njit(cache=True, error_model="numpy")
def _draw_omega(rng: np.random.Generator, p: Problem, w: Work) -> None:
    """Draw ω as :func:`.random_polya_gamma` and NumPy do; add up what depends on it."""
    size, r = p.number.size, w.registers
    which, b, c, drawn = np.empty(size, np.intp), np.empty(size), np.empty(size), np.empty(size)
    for site in range(p.sites.size - 1):
        first, last, largest = p.sites[site], p.sites[site + 1], 0.0
        for k in range(first, last):
            if math.isnan(p.weight[k]):
                rate = r[p.rate[k]] + 0.5 * (p.number[k] - w.eta[k]) ** 2
                w.omega[k] = rng.standard_gamma(r[p.shape[k]] + 0.5) / rate
            else:
                largest = max(largest, p.weight[k])
        are_few = largest * LOG_2 <= MAX_JUMPS_BY_THINNING
        for by_saddlepoint in (False, True):
            count = 0
            for k in range(first, last):
                jumps = p.weight[k] * math.log1p(math.exp(-abs(w.eta[k])))
                large = not are_few and jumps > MAX_JUMPS_BY_THINNING
                if large == by_saddlepoint and not math.isnan(p.weight[k]):
                    which[count], b[count], c[count] = k, p.weight[k], w.eta[k]
                    count += 1
            if by_saddlepoint:
                fill_by_saddlepoint(rng, b[:count], c[:count], drawn[:count])
            else:
                fill_by_thinning(rng, b[:count], c[:count], drawn[:count])
            for i in range(count):
                w.omega[which[i]] = drawn[i]
    for e in range(w.value.size):
        total = p.fixed[e]
        for k in range(p.weights[e], p.weights[e + 1]):
            total += p.by[k] * w.omega[p.of[k]]
        w.value[e] = total


@njit(cache=True, error_model="numpy")
def _log_sites(p: Problem, w: Work) -> float:
    """Return Σ h η − ½ ω η² of observations that have an ω."""
    total = 0.0
    for k in range(p.number.size):
        eta, omega = w.eta[k], w.omega[k]
        h = p.number[k] - 0.5 * p.weight[k]
        if math.isnan(h):
            h = omega * p.number[k]
        total += h * eta - 0.5 * omega * eta * eta
    return total


@njit(cache=True, error_model="numpy")
def _draw_latents(rng: np.random.Generator, p: Problem, w: Work, v: Array, a: float) -> float:
    """Overwrite v with a draw given the sites, over-relaxed by a; return the square of its ν."""
    size, square, share = v.size, 0.0, math.sqrt(1.0 - a**2)
    right = x = v.reshape(1, size)
    if a > 0.0:
        right = multiply(p.starts, p.rows, w.values, w.border, w.corner, x, True)
    for i in range(size):
        nu = rng.standard_normal()
        if a > 0.0:
            nu = share * nu - a * (right[0, i] - w.half[i])
        square += nu * nu
        v[i] = w.half[i] + nu
    solve(p.starts, p.rows, w.values, w.border, w.corner, x, True)
    return square


@njit(cache=True, error_model="numpy")
def _write(p: Problem, w: Work, v: Array, square: float, output: Array, stats: Array) -> None:
    """Write what is recorded of a step, its log density and its log evidence."""
    r = w.registers
    for i in range(v.size):
        r[p.latents[i]] = w.s[i] * v[i]
    run_tape(p.values, r)
    for j in range(p.outputs.size):
        output[j] = r[p.outputs[j]]
    # log p(v | sites) is the density of ν, and half the log determinant cancels.
    log_joint = w.found[VALUE] - w.found[EVIDENCE] + 0.5 * (w.found[FIT] - square)
    log_joint += log_likelihood(p, w) - _log_sites(p, w)
    stats[0] = log_joint - r[p.log_det]
    stats[1] = w.found[EVIDENCE] + w.found[REST]


@njit(cache=True, error_model="numpy")
def _begin(p: Problem, w: Work, x: Array, x_likelihood: Array, v: Array) -> bool:
    """Evaluate all that the first step reads; return whether the predictors are finite."""
    r = w.registers
    for part, values in ((p.theta, x), (p.likelihood, x_likelihood)):
        for i in range(values.size):
            r[part[i]] = values[i]
    run_tape(p.density, r)
    for i in range(v.size):
        w.s[i] = r[p.std[i]]
    for e in range(w.value.size):
        w.value[e] = p.fixed[e]
    return _predict(p, w, v)


@njit(cache=True, error_model="numpy", nogil=True)
def run_steps(
    rng: np.random.Generator,
    p: Problem,
    w: Work,
    u: Learned,
    x: Array,
    u_likelihood: Learned,
    x_likelihood: Array,
    v: Array,
    sweeps: int,
    overrelaxation: float,
    outputs: Array,
    stats: Array,
) -> int:
    """Make steps; return how many were made.

    Parameters
    ----------
    rng, p, w
    u, x, u_likelihood, x_likelihood
        Both parts of θ, which are overwritten, and their updates.
    v : ndarray
        The whitened latents in the order of elimination; overwritten.
    sweeps : int
        Draws of ω and the latents in a step.
    overrelaxation : float
        a, see :func:`.draw_gaussian`, of draws that follow one at the same θ.
    outputs : ndarray, shape (count, n)
        Written, for each step what is recorded.
    stats : ndarray, shape (N_STATS, count)
        Written.
    """
    is_drawn, is_known = p.number.size > 0, False
    if not _begin(p, w, x, x_likelihood, v):
        return 0
    for step in range(stats.shape[1]):
        count, square = 0, 0.0
        for sweep in range(-1, sweeps):
            # First comes the move given the latents.
            by_likelihood = sweep < 0
            theta, learned = (x_likelihood, u_likelihood) if by_likelihood else (x, u)
            if by_likelihood and not theta.size:
                continue
            if is_drawn and not by_likelihood:
                _draw_omega(rng, p, w)
            if is_drawn or not is_known:
                if not evaluate(p, w, theta, by_likelihood) or w.found[VALUE] == -math.inf:
                    return step
                is_known = not is_drawn
            # With that where the update begins.
            count += theta.size > 0 and sweep <= 0
            n_axes = theta.size if learned.along == 2 else learned.along
            for k in range(learned.ellipses + n_axes if sweep <= 0 else 0):
                axis = k - learned.ellipses
                if axis >= 0 and learned.along == 1:
                    if rng.random() >= _ALONG_AXES:
                        break
                    axis = int(rng.integers(0, theta.size))
                trials = _explore(rng, p, w, learned, theta, axis, by_likelihood)
                if trials < 0:
                    return step
                count += trials
                if learned.tune and (axis < 0 or (learned.along == 2 and k == n_axes - 1)):
                    _learn(learned, theta)
            if by_likelihood:
                continue
            a = overrelaxation if sweep > 0 or not theta.size else 0.0
            square = _draw_latents(rng, p, w, v, a)
            if not _predict(p, w, v):
                return step
        _write(p, w, v, square, outputs[step], stats[:, step])
        stats[2, step] = count
    return stats.shape[1]
