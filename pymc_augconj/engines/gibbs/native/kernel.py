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
from pymc_augconj.linalg.bordered_kernels import (
    eliminate_scaled,
    solve_transpose,
    transpose_product,
)
from pymc_augconj.linalg.rounding import EPS, LARGEST_ERROR, SMALL_BOUND, SMALL_ERROR
from pymc_augconj.python_mode.tape_kernel import run_tape
from pymc_augconj.typing import Array, Index

from .problem import LARGEST_CORNER, N_CONSTANTS, Problem

__all__ = ["N_STATS", "Learned", "Work", "log_evidence", "make_work", "run_steps"]

#: Log density, log evidence and evaluations of a step.
N_STATS = 3

# As in :mod:`pymc_augconj.api.updates` and its neighbours.
_DEGREES_OF_FREEDOM, _LARGEST_TRIALS, _WIDTH, _ALONG_AXES = 3.0, 100, 10.0, 0.25

_LOG_2PI = math.log(2.0 * math.pi)
# Entries of Work.found: the log density and its terms.
_VALUE, _EVIDENCE, _FIT, _REST = range(4)


class Work(NamedTuple):
    """Arrays that are overwritten.

    An evaluation overwrites registers, sums, and the factor of M with L⁻¹ S g; a draw of ω the
    coefficients ``value`` of the sums; a draw of the latents the predictors of what has an ω.
    """

    eta: Array
    omega: Array
    value: Array
    registers: Array
    sums: Array
    s: Array
    half: Array
    values: Array
    border: Array
    corner: Array
    found: Array


def make_work(problem: Problem) -> Work:
    """Return new arrays."""
    size, n = problem.std.size, problem.std.size - problem.corner
    n_flat = problem.rows.size + n * problem.border + problem.corner**2
    return Work(
        np.empty(problem.trials.size),
        np.empty(problem.trials.size),
        problem.fixed.copy(),
        problem.start.copy(),
        np.empty(n_flat + size + N_CONSTANTS),
        np.empty(size),
        np.empty(size),
        np.empty(problem.rows.size),
        np.empty((n, problem.border)),
        np.empty((problem.corner, problem.corner)),
        np.empty(4),
    )


def log_evidence(work: Work) -> float:
    """Return the log evidence at what was evaluated last."""
    return float(work.found[_EVIDENCE] + work.found[_REST])


@njit(cache=True, error_model="numpy")
def _evaluate(p: Problem, w: Work, x: Array) -> bool:
    """Evaluate the log density of θ, −∞ outside its support; return whether it has digits."""
    r, sums, s, half = w.registers, w.sums, w.s, w.half
    w.found[_VALUE] = -math.inf
    for i in range(x.size):
        r[p.theta[i]] = x[i]
    run_tape(p.density, r)
    log_prior = r[p.log_prior]
    if not math.isfinite(log_prior):
        return True
    for i in range(p.scales.size):
        if not r[p.scales[i]] >= 0.0:
            return True
    for e in range(sums.size):
        sums[e] = 0.0
    for k in range(p.factors.shape[0]):
        weight = r[p.factors[k, 0]] * r[p.factors[k, 1]] * r[p.factors[k, 2]]
        for e in range(p.begin[k], p.begin[k + 1]):
            sums[p.place[e]] += weight * w.value[e]
    size = s.size
    n_flat = sums.size - size - N_CONSTANTS
    linear, square, base = sums[n_flat + size], sums[n_flat + size + 1], sums[n_flat + size + 2]
    if not p.digits * (abs(base) + abs(linear) + abs(square)) <= LARGEST_ERROR:
        return False
    for i in range(size):
        s[i] = r[p.std[i]]
        half[i] = s[i] * sums[n_flat + i]
    log_det = eliminate_scaled(
        p.starts, p.rows, p.cols, p.targets, sums[:n_flat], s, w.values, w.border, w.corner, half,
        LARGEST_CORNER,
    )  # fmt: skip
    if not math.isfinite(log_det):
        return False
    fit = 0.0
    for i in range(size):
        fit += half[i] * half[i]
    if not _error(p, w, fit, log_det) <= SMALL_ERROR:
        return False
    w.found[_EVIDENCE] = 0.5 * (fit - log_det)
    w.found[_FIT] = fit
    w.found[_REST] = linear - square
    value = log_prior + base + linear - square + w.found[_EVIDENCE]
    if math.isfinite(value):
        w.found[_VALUE] = value
    return True


@njit(cache=True, error_model="numpy")
def _error(p: Problem, w: Work, fit: float, log_det: float) -> float:
    """Return the estimated rounding error of the log evidence, see :mod:`.linalg.rounding`."""
    size = w.s.size
    rough = EPS * size**2 * math.exp(min(log_det, 100.0))
    if 0.5 * rough * (1.0 + fit) + EPS * fit <= SMALL_ERROR:
        return 0.5 * rough * (1.0 + fit) + EPS * fit
    diagonal, total = np.empty(size), 0.0
    for i in range(size):
        diagonal[i] = 1.0 + w.sums[p.diagonal[i]] * w.s[i] ** 2
        total += diagonal[i]
    rough = EPS * size * total
    if 0.5 * rough * (1.0 + fit) + EPS * fit <= SMALL_ERROR:
        return 0.5 * rough * (1.0 + fit) + EPS * fit
    trace, right = 0.0, np.empty((p.signs.shape[0] + 1, size))
    for k in range(right.shape[0]):
        for i in range(size):
            right[k, i] = p.signs[k, i] if k < p.signs.shape[0] else w.half[i]
        solved = solve_transpose(p.starts, p.rows, w.values, w.border, w.corner, right[k])
        total = 0.0
        for i in range(size):
            total += diagonal[i] * solved[i] ** 2
        if k < p.signs.shape[0]:
            trace += total / p.signs.shape[0]
    of_log_det = EPS * size * trace
    of_square = of_log_det * fit
    if not of_square <= SMALL_BOUND:
        of_square = EPS * math.sqrt(size) * total
    return 0.5 * (of_log_det + of_square) + EPS * fit


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
def _explore(rng: np.random.Generator, p: Problem, w: Work, u: Learned, x: Array, axis: int) -> int:
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
        level = w.found[_VALUE] + shape * math.log1p(square / _DEGREES_OF_FREEDOM)
        level += math.log1p(-rng.random())
        at = 2.0 * math.pi * rng.random()
        lower, upper = at - 2.0 * math.pi, at
    else:
        level = w.found[_VALUE] - rng.standard_exponential()
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
        if not _evaluate(p, w, moved):
            return -1
        value = w.found[_VALUE]
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
    for k in range(p.trials.size):
        total = r[p.offsets[k]]
        for e in range(p.entries[k], p.entries[k + 1]):
            i = p.columns[e]
            total += p.numbers[e] * r[p.multiples[e]] * w.s[i] * v[i]
        w.eta[k] = total
        is_finite &= math.isfinite(total)
    return is_finite


@njit(cache=True, error_model="numpy")
def _draw_omega(rng: np.random.Generator, p: Problem, w: Work) -> None:
    """Draw ω ~ PG(b, η) in the order of :func:`.random_polya_gamma`; add up what depends on it."""
    size = p.trials.size
    which, b, c, drawn = np.empty(size, np.intp), np.empty(size), np.empty(size), np.empty(size)
    for site in range(p.sites.size - 1):
        first, last, largest = p.sites[site], p.sites[site + 1], 0.0
        for k in range(first, last):
            largest = max(largest, p.trials[k])
        are_few = largest * LOG_2 <= MAX_JUMPS_BY_THINNING
        for by_saddlepoint in (False, True):
            count = 0
            for k in range(first, last):
                jumps = p.trials[k] * math.log1p(math.exp(-abs(w.eta[k])))
                large = not are_few and jumps > MAX_JUMPS_BY_THINNING
                if large == by_saddlepoint:
                    which[count], b[count], c[count] = k, p.trials[k], w.eta[k]
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
def _log_ratio(p: Problem, w: Work) -> float:
    """Return Σ log p(y | η) − (h η − ½ ω η²) of observations that have an ω."""
    total = p.log_constant
    for k in range(p.trials.size):
        eta, b = w.eta[k], p.trials[k]
        log_power = b * (max(eta, 0.0) + math.log1p(math.exp(-abs(eta))))
        total += 0.5 * b * eta - log_power + 0.5 * w.omega[k] * eta * eta
    return total


@njit(cache=True, error_model="numpy")
def _update(rng: np.random.Generator, p: Problem, w: Work, u: Learned, x: Array) -> int:
    """Update θ; return the evaluations, −1 where one has no digits."""
    count, n_axes = 0, x.size if u.along == 2 else u.along
    for k in range(u.ellipses + n_axes):
        axis = k - u.ellipses
        if axis >= 0 and u.along == 1:
            if rng.random() >= _ALONG_AXES:
                break
            axis = int(rng.integers(0, x.size))
        trials = _explore(rng, p, w, u, x, axis)
        if trials < 0:
            return -1
        count += trials
        if u.tune and (axis < 0 or (u.along == 2 and axis == x.size - 1)):
            _learn(u, x)
    return count


@njit(cache=True, error_model="numpy", nogil=True)
def run_steps(
    rng: np.random.Generator,
    p: Problem,
    w: Work,
    u: Learned,
    x: Array,
    v: Array,
    sweeps: int,
    overrelaxation: float,
    outputs: Array,
    stats: Array,
) -> int:
    """Make steps.

    Parameters
    ----------
    rng : numpy.random.Generator
    p, w, u
    x, v : ndarray
        θ, and the whitened latents in the order of elimination; overwritten.
    sweeps : int
        Draws of ω and the latents in a step.
    overrelaxation : float
        a, see :func:`.draw_gaussian`, of draws that follow one at the same θ.
    outputs : ndarray, shape (count, n)
        Written, for each step what is recorded.
    stats : ndarray, shape (N_STATS, count)
        Written.

    Returns
    -------
    int
        The steps that were made.
    """
    size, is_drawn = v.size, p.trials.size > 0
    share = math.sqrt(1.0 - overrelaxation**2)
    for e in range(w.value.size):
        w.value[e] = p.fixed[e]
    is_fine = _evaluate(p, w, x) and w.found[_VALUE] > -math.inf
    if not (is_fine and _predict(p, w, v)):
        return 0
    r, right = w.registers, np.empty(size)
    for step in range(stats.shape[1]):
        count, square = 0, 0.0
        for sweep in range(sweeps):
            if is_drawn:
                _draw_omega(rng, p, w)
                if not _evaluate(p, w, x) or w.found[_VALUE] == -math.inf:
                    return step
            if sweep == 0 and x.size > 0:
                trials = _update(rng, p, w, u, x)
                if trials < 0:
                    return step
                # Without ω what an update begins at is known.
                count = trials + is_drawn
            relax = 0.0
            if sweep > 0 or x.size == 0:
                relax = overrelaxation
                right[:] = transpose_product(p.starts, p.rows, w.values, w.border, w.corner, v)
            square = 0.0
            for i in range(size):
                nu = rng.standard_normal()
                if relax > 0.0:
                    nu = share * nu - relax * (right[i] - w.half[i])
                square += nu * nu
                right[i] = w.half[i] + nu
            v[:] = solve_transpose(p.starts, p.rows, w.values, w.border, w.corner, right)
            if not _predict(p, w, v):
                return step
        for i in range(size):
            r[p.latents[i]] = w.s[i] * v[i]
        run_tape(p.values, r)
        for j in range(p.outputs.size):
            outputs[step, j] = r[p.outputs[j]]
        # log p(v | sites) is the density of ν, and half the log determinant cancels.
        log_joint = w.found[_VALUE] - w.found[_EVIDENCE] + 0.5 * (w.found[_FIT] - square)
        log_joint += _log_ratio(p, w)
        stats[0, step] = log_joint - 0.5 * size * _LOG_2PI - r[p.log_det]
        stats[1, step] = w.found[_EVIDENCE] + w.found[_REST]
        stats[2, step] = count
    return stats.shape[1]
