"""Updates of hyperparameters: slices along ellipses, axes and coordinates, and what is learned.

Slices of all entries of a vector at once, given the latents, are those of :mod:`..elliptical`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pymc_augconj.engines.gibbs.elliptical import (
    ANY,
    FEW,
    MANY,
    ONE_IN,
    REVERSING,
    entry_slices,
)
from pymc_augconj.linalg.sparse_kernels import with_pivot
from pymc_augconj.python_mode.elementary import exp
from pymc_augconj.python_mode.tape_kernel import run_tape
from pymc_augconj.typing import Array, Index, Mask

from . import held
from .columns import Columns
from .compilation import inner, inner_with_arrays
from .entries import Entries
from .problem import Problem
from .work import COUNT, FAILED, VALUE, Work

# As in :mod:`pymc_augconj.api.updates` and its neighbours.
_DEGREES_OF_FREEDOM, _LARGEST_TRIALS, _WIDTH, _ALONG_AXES = 3.0, 100, 10.0, 0.25
_MAX_STEPS = 100
#: Slices along all coordinates, with stepping out, while there are no axes.
COORDINATES = 3


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
        Slices along axes: 0 none, 1 some of them, 2 all; or COORDINATES.
    tune : bool
    widths, n_tunes : ndarray
        Mean lengths of intervals along coordinates, and how many there were, one entry.
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
    widths: Array
    n_tunes: Index


@inner
def one_of(u: Learned, i: int, along: int) -> Learned:
    """Return the update of number i, of those of one scalar each."""
    return Learned(
        u.centre[i : i + 1], u.axes[i : i + 1], u.inverse[i : i + 1], u.number[i : i + 1],
        u.mean[i : i + 1], u.scatter[i : i + 1], 0, along, u.tune, u.widths[i : i + 1],
        u.n_tunes[i : i + 1],
    )  # fmt: skip


@inner
def _learn(u: Learned, x: Array, before: Array) -> None:
    u.number[0] += 1
    for i in range(x.size):
        before[i] = x[i] - u.mean[i]
        u.mean[i] += before[i] / u.number[0]
    for i in range(x.size):
        for j in range(x.size):
            u.scatter[i, j] += before[i] * (x[j] - u.mean[j])


@inner
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


def _with_step_out(density: Any) -> Any:
    """Return the compiled function that makes an interval grow."""

    @inner
    def step_out(
        rng: np.random.Generator, p: Any, w: Work, x: Array, axis: int, how: int,
        level: float, lower: float, upper: float,
    ) -> tuple[float, float, int]:  # fmt: skip
        """Return an interval that has grown along a coordinate, and the evaluations.

        These are −1 where one has no digits.
        """
        moved, width, count = w.scratch[2, : x.size], upper - lower, 0
        to_the_left = int(_MAX_STEPS * rng.random())
        for i in range(x.size):
            moved[i] = x[i]
        for step, most in ((-width, to_the_left), (width, _MAX_STEPS - 1 - to_the_left)):
            for _ in range(most):
                moved[axis] = x[axis] + (lower if step < 0.0 else upper)
                if not density(p, w, moved, how):
                    return lower, upper, -1
                count += 1
                if not w.found[VALUE] >= level:
                    break
                if step < 0.0:
                    lower += step
                else:
                    upper += step
        return lower, upper, count

    return step_out


def _with_explore(density: Any) -> Any:
    """Return the compiled function that makes a slice."""
    step_out = _with_step_out(density)

    @inner
    def explore(
        rng: np.random.Generator, p: Any, w: Work, u: Learned, x: Array, axis: int,
        how: int,
    ) -> int:  # fmt: skip
        """Move x along an axis, or along an ellipse where ``axis`` is negative.

        Returns the evaluations, −1 where one has no digits.
        """
        size, by_ellipse, count, trials, begin = x.size, axis < 0, 0, 0, 0.0
        least, most = REVERSING if size <= FEW else ANY
        z, fresh, moved, away = w.scratch[0], w.scratch[1], w.scratch[2, :size], w.scratch[3]
        shape = 0.5 * (_DEGREES_OF_FREEDOM + 1.0)
        if by_ellipse:
            total, product = 0.0, 1.0
            for i in range(size):
                z[i] = 0.0
                for j in range(size):
                    z[i] += u.inverse[i, j] * (x[j] - u.centre[j])
                total, product = with_pivot(total, product, 1.0 + z[i] ** 2 / _DEGREES_OF_FREEDOM)
                fresh[i] = math.sqrt(0.5 * (_DEGREES_OF_FREEDOM + z[i] ** 2) / _gamma(rng, shape))
            for i in range(size):
                fresh[i] *= rng.standard_normal()
            for i in range(size):
                away[i] = 0.0
                for j in range(size):
                    away[i] += u.axes[i, j] * fresh[j]
            level = w.found[VALUE] + shape * (total + math.log(product)) + math.log1p(-rng.random())
            begin = at = held.first_angle(rng.random(), least, most)
            lower, upper = at - 2.0 * math.pi, at
        else:
            level = w.found[VALUE] - rng.standard_exponential()
            width = u.widths[axis] if u.along == COORDINATES else _WIDTH
            lower = -width * rng.random()
            upper = lower + width
            if u.along == COORDINATES:
                lower, upper, count = step_out(rng, p, w, x, axis, how, level, lower, upper)
                if count < 0:
                    return -1
            at = lower + (upper - lower) * rng.random()
        while True:
            trials += 1
            is_last = by_ellipse and trials > _LARGEST_TRIALS
            is_free = not by_ellipse or trials == 1 or is_last
            if not (is_free or held.may_follow(at, begin, least, most)):
                lower, upper = (at, upper) if at < 0.0 else (lower, at)
                at = lower + (upper - lower) * rng.random()
                continue
            count += 1
            cos, sin, total, product = math.cos(at), math.sin(at), 0.0, 1.0
            for i in range(size):
                if not by_ellipse:
                    value = x[i] + at * u.axes[i, axis]
                else:
                    value = u.centre[i] + cos * (x[i] - u.centre[i]) + sin * away[i]
                    square = (cos * z[i] + sin * fresh[i]) ** 2
                    total, product = with_pivot(total, product, 1.0 + square / _DEGREES_OF_FREEDOM)
                moved[i] = x[i] if is_last else value
            if not density(p, w, moved, how):
                return -1
            value = w.found[VALUE]
            if by_ellipse:
                value += shape * (total + math.log(product))
            # Slices along axes accept their level, ellipses what is above it.
            if is_last or level < value < math.inf or (value == level and not by_ellipse):
                for i in range(size):
                    x[i] = moved[i]
                if u.along == COORDINATES and u.tune:
                    n = u.n_tunes[0]
                    u.widths[axis] = (n * u.widths[axis] + upper - lower) / (n + 1)
                return min(count, _LARGEST_TRIALS) if by_ellipse else count
            lower, upper = (at, upper) if at < 0.0 else (lower, at)
            at = lower + (upper - lower) * rng.random()

    return explore


def updates(density: Any) -> Any:
    """Return the compiled function that makes the slices of an update.

    ``density(p, w, x, how)`` is a compiled function like :func:`.evaluate`.
    """
    explore = _with_explore(density)

    @inner
    def update(rng: np.random.Generator, p: Any, w: Work, u: Learned, x: Array, how: int) -> int:
        """Make the slices of an update of x; return the evaluations, −1 where one has no digits."""
        count, n_axes = 0, x.size if u.along >= 2 else u.along
        if u.along == 1 and x.size > MANY:
            n_axes = x.size // ONE_IN
        for k in range(u.ellipses + n_axes):
            axis = k - u.ellipses
            if axis >= 0 and u.along == 1:
                if x.size <= MANY and rng.random() >= _ALONG_AXES:
                    break
                axis = int(x.size * rng.random())
            trials = explore(rng, p, w, u, x, axis, how)
            if trials < 0:
                return -1
            count += trials
            if u.tune and (axis < 0 or (u.along >= 2 and k == n_axes - 1)):
                _learn(u, x, w.scratch[0])
        u.n_tunes[0] += u.tune and u.along == COORDINATES
        return count

    return update


@inner
def _evaluate(given: tuple[Problem, Entries, Work, Array, int], x: Array, value: Array) -> None:
    """Write the log density of every entry of a vector, −∞ where it is no number.

    FAILED is written if one is not finite at first, or if the model's density is zero for a reason
    that no entry has; then all are ∞, so that slices end.
    """
    p, e, w, v, number = given
    r, first = w.registers, e.begin[number]
    for i in range(x.size):
        r[e.of_theta[first + i]] = x[i]
    _add_up(p, e, w, v, number, value)
    fails, is_first = not math.isfinite(r[p.log_prior]), w.found[COUNT] == 0.0
    for i in range(x.size):
        if not value[i] > -math.inf:
            value[i], fails = -math.inf, False
    for i in range(x.size):
        fails |= is_first and not math.isfinite(value[i])
    w.found[COUNT] += 1.0
    w.found[FAILED] = max(w.found[FAILED], 1.0 * fails)
    for i in range(x.size if w.found[FAILED] > 0.0 else 0):
        value[i] = math.inf


@inner
def _add_up(p: Problem, e: Entries, w: Work, v: Array, number: int, value: Array) -> None:
    """Write the log density of every entry of a vector, whose registers are written."""
    r, first, file = w.registers, e.begin[number], e.densities.file
    run_tape(p.density, r)
    for i in range(value.size):
        value[i] = r[e.log_prior[first + i]]
    by = e.by_latent[number]
    for k in range(by.size):
        if by[k] >= 0:
            s = r[p.std[k]]
            value[by[k]] -= math.log(s) + 0.5 * (w.s[k] * v[k] / s) ** 2
    held.read_part(e.densities, r, file, held.OF_PARAMETERS)
    held.predict(e.predicted, w, e.coefs, v.reshape(1, v.size), e.eta)
    held.run_densities(e.densities, file, e.eta[0])
    by, tables = e.by_row[number], e.densities.tables
    for i in range(tables.shape[0]):
        begin, at = tables[i, 0], tables[i, 9]
        for k in range(begin, tables[i, 1]):
            if by[k] >= 0:
                value[by[k]] += file[at + k - begin]


@inner
def begin_ridge(e: Entries | Columns, r: Array, how: int) -> None:
    """Write where a move along the ridge of number ``how`` begins."""
    number = e.ridges[how, 1]
    e.before[0] = r[e.ridges[how, 0]]
    for k in range(e.begin[number], e.begin[number + 1]):
        e.before[1 + k - e.begin[number]] = r[e.of_theta[k]]


@inner
def move_along(e: Entries | Columns, r: Array, s: float, how: int) -> float:
    """Write the hyperparameters moved by s along a ridge; return the log Jacobian."""
    h, number, sign, scales, beside = e.ridges[how]
    first, last, c = e.begin[number], e.begin[number + 1], r[beside]
    factor, shift = exp(sign * s), sign * s * exp(-c)
    r[h] = e.before[0] + s
    for k in range(first, last):
        x_k = e.before[1 + k - first]
        r[e.of_theta[k]] = c + (x_k - c) * factor if scales else x_k + shift
    return float(s * (scales * sign * (last - first)))


@inner
def _evaluate_along(given: tuple[Problem, Entries, Array], w: Work, x: Array, how: int) -> bool:
    """Evaluate the log density along the ridge of number ``how``, like :func:`.evaluate`."""
    (p, e, v), r = given, w.registers
    total, number = move_along(e, r, x[0], how), e.ridges[how, 1]
    first, last = e.begin[number], e.begin[number + 1]
    value = e.value[: last - first]
    _add_up(p, e, w, v, number, value)
    for k in range(first, last):
        total += value[k - first] - r[e.log_prior[k]]
    total += r[p.log_prior]
    w.found[VALUE] = total if math.isfinite(total) else -math.inf
    return True


_update_along = updates(_evaluate_along)


@inner
def _move_along_ridges(
    rng: np.random.Generator, p: Problem, e: Entries, w: Work, v: Array, u: Learned, along: Index
) -> int:
    """Move entries that vectors follow; return the evaluations, −1 where one has no value."""
    count = 0
    for i in range(e.ridges.shape[0]):
        begin_ridge(e, w.registers, i)
        w.moved[0] = 0.0
        _evaluate_along((p, e, v), w, w.moved[:1], i)
        if not math.isfinite(w.found[VALUE]):
            return -1
        own = one_of(u, i, along[i])
        count += 1 + _update_along(rng, (p, e, v), w, own, w.moved[:1], i)
    return count


@inner_with_arrays
def where(condition: Mask, x: Array, y: Array) -> Array:
    """Return what NumPy's function does, which broadcasts and takes long to compile."""
    chosen = np.empty(x.size)
    for i in range(x.size):
        chosen[i] = x[i] if condition[i] else y[i]
    return chosen


_update = inner_with_arrays(entry_slices(_evaluate, where))


@inner
def learn_widths(widths: Array, found: Array, n_tunes: Index, tune: bool) -> None:
    """Take account of the widths of slices of all entries, while tuning."""
    for i in range(found.size if tune else 0):
        widths[i] = (n_tunes[0] * widths[i] + found[i]) / (n_tunes[0] + 1)
    n_tunes[0] += tune


@inner_with_arrays
def update_entries(
    rng: np.random.Generator, p: Problem, e: Entries, w: Work, v: Array, widths: Array,
    n_tunes: Index, u: Learned, along: Index, is_first: bool,
) -> int:  # fmt: skip
    """Update all vectors given the latents u; return the evaluations, −1 where one has no value.

    In the first sweep moves along ridges come after them, by ``u`` and ``along``. The whitened
    latents ``v`` and their predictors follow.
    """
    r, count = w.registers, 0
    w.found[FAILED] = 0.0
    for number in range(n_tunes.size):
        own = slice(e.begin[number], e.begin[number + 1])
        w.found[COUNT] = 0.0
        _, found = _update((p, e, w, v, number), rng, r[e.of_theta[own]], widths[own])
        learn_widths(widths[own], found, n_tunes[number : number + 1], u.tune)
        count += int(w.found[COUNT])
    made = _move_along_ridges(rng, p, e, w, v, u, along) if is_first else 0
    for i in range(v.size):
        if r[p.std[i]] != w.s[i]:
            v[i] *= w.s[i] / r[p.std[i]]
            w.s[i] = r[p.std[i]]
    held.read_part(p.held, r, w.file, held.OF_PARAMETERS)
    is_finite = held.predict(p.design, w, w.coefs, v.reshape(1, v.size), w.eta)
    is_finite &= made >= 0
    return count + made if is_finite and not w.found[FAILED] > 0.0 else -1
