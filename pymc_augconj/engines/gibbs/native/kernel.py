"""The native loop: updates of hyperparameters with the latents integrated out, and draws.

Random numbers are those of the Python step in the same order, and so are the draws, up to
rounding. Where rounding may leave a log evidence no digits, or something else happens that a
step is to tell about, the loop ends before that step, which is for Python.
"""

from __future__ import annotations

import math

import numpy as np

from pymc_augconj.auxiliary.polya_gamma.kernels import (
    LOG_2,
    MAX_JUMPS_BY_THINNING,
    fill_by_both,
    fill_by_thinning,
)
from pymc_augconj.engines.gibbs.moves.ridges import MOST
from pymc_augconj.linalg.sparse_kernels import solve
from pymc_augconj.python_mode.elementary import exp
from pymc_augconj.python_mode.tape_kernel import run_tape
from pymc_augconj.typing import Array, Index

from .compilation import inner, inner_with_arrays, outer
from .density import (
    ALONG_RIDGE,
    BY_ENSEMBLE,
    BY_EVIDENCE,
    BY_LEVEL,
    BY_LIKELIHOOD,
    BY_PRIOR,
    evaluate,
    log_likelihood,
    read_components,
    read_latents,
    read_row,
)
from .entries import Entries
from .held import (
    OF_PARAMETERS,
    add_up,
    begin_ensemble,
    choose,
    draw_by_slices,
    hold,
    log_sum,
    predict,
    present,
    read_part,
    residual,
)
from .problem import Problem
from .rows import LOGISTIC, MIXTURE, TILTED_LAPLACE
from .slices import Learned, one_of, update_entries, updates
from .work import BASE, EVIDENCE, FIT, NO, REST, START, VALUE, YES, Work

_update = updates(evaluate)


@inner
def _find_direction(p: Problem, w: Work, theta: Array, number: int) -> bool:
    """Write the direction of a level, see :class:`.Level`; return whether it has digits."""
    first, last = p.levels[number, 1], p.levels[number, 2]
    for k in range(w.omega.size):
        w.kept[k] = w.omega[k]
        w.omega[k] = 0.5 if first <= k < last else 0.0
    add_up(p, w)
    found = evaluate(p, w, theta, BY_EVIDENCE)
    for k in range(w.omega.size):
        w.omega[k] = w.kept[k]
    add_up(p, w)
    if not found:
        return False
    b = w.level[1]
    for i in range(b.size):
        b[i] = 0.0
    for q in range(p.design.numbers.shape[0]):
        for k in range(first, last):
            coef = p.design.numbers[q, k] * w.registers[p.design.multiples[q, k]]
            b[p.design.columns[q, k]] += 0.5 * coef
    for i in range(b.size):
        b[i] *= w.s[i]
    solve(p.starts, p.rows, w.values, w.border, w.corner, w.level[1:2], NO)
    solve(p.starts, p.rows, w.values, w.border, w.corner, w.level[1:2], YES)
    return True


@inner
def _move_levels(
    rng: np.random.Generator, p: Problem, w: Work, u: Learned, x: Array, theta: Array, v: Array
) -> int:
    """Update parameters x while levels, in v, move against them.

    Returns the evaluations, −1 where one has no digits or no update begins.
    """
    count = 0
    for number in range(p.levels.shape[0]):
        if not _find_direction(p, w, theta, number):
            return -1
        w.found[START] = w.registers[p.levels[number, 0]]
        for i in range(v.size):
            w.level[0, i] = v[i]
        for i in range(x.size):
            x[i] = w.registers[p.level[i]]
        evaluate(p, w, x, BY_LEVEL + number)
        if not math.isfinite(w.found[VALUE]):
            return -1
        made = _update(rng, p, w, u, x, BY_LEVEL + number)
        if made < 0:
            return -1
        count += 1 + made
        for i in range(v.size):
            v[i] = w.v[i]
    return count


@inner_with_arrays
def _draw_polya_gamma(rng: np.random.Generator, p: Problem, w: Work, first: int, last: int) -> None:
    """Draw ω of logistic observations as :func:`.random_polya_gamma` does."""
    b, own, largest = np.empty(last - first), p.drawn.first[first:last], 0.0
    for k in range(b.size):
        b[k] = w.registers[np.uint64(own[k])]
        largest = max(largest, b[k])
    if largest * LOG_2 <= MAX_JUMPS_BY_THINNING:
        fill_by_thinning(rng, b, w.eta[0, first:last], w.omega[first:last])
    else:
        fill_by_both(rng, b, w.eta[0, first:last], w.omega[first:last])


@inner
def _draw_inverse_gaussian(
    rng: np.random.Generator, p: Problem, w: Work, first: int, last: int
) -> None:
    """Draw ω of noise that is a tilted Laplace one as :func:`.random_inverse_gaussian` does."""
    r, d = w.registers, p.drawn
    for k in range(first, last):
        w.omega[k] = rng.standard_normal()
    for k in range(first, last):
        a = r[d.first[k]]
        inverse = abs(d.number[k] - w.eta[0, k]) / a
        half = w.omega[k] ** 2 / (2.0 * a**2)
        x = 1.0 / (inverse + half + math.sqrt(half) * math.sqrt(2.0 * inverse + half))
        ratio = inverse * x
        is_larger = rng.random() * (1.0 + ratio) > 1.0
        w.omega[k] = 1.0 / (inverse * ratio) if is_larger else x


@inner
def _draw_allocations(rng: np.random.Generator, p: Problem, w: Work, first: int, last: int) -> None:
    """Draw the components of mixtures; ω is the precision of each one drawn, elsewhere zero."""
    size, omega = read_components(p, w, first, last), w.omega[first:last]
    terms, precision = w.terms[first:last], p.drawn.first[first:last]
    # They become sums of relative probabilities.
    top, before = omega[:size], terms[:size]
    for i in range(size):
        top[i] = terms[i]
    for k in range(size, terms.size, size):
        own = terms[k : k + size]
        for i in range(size):
            top[i] = own[i] if own[i] > top[i] else top[i]
    for k in range(0, terms.size, size):
        own = terms[k : k + size]
        for i in range(size):
            own[i] = exp(own[i] - top[i]) + (before[i] if k else 0.0)
        before = own
    for i in range(size):
        at, drawn = rng.random() * before[i], i
        for k in range(i, terms.size - size, size):
            omega[k] = 0.0
            drawn += size if terms[k] <= at else 0
        omega[terms.size - size + i] = 0.0
        omega[drawn] = w.registers[precision[drawn]]


@inner
def draw_omega(rng: np.random.Generator, p: Problem, w: Work) -> None:
    """Draw ω as NumPy does, with h; add up what depends on it."""
    r, d, first_h = w.registers, p.drawn, w.omega.size - p.design.offsets.size
    for site in range(p.sites.size - 1):
        first, last, kind = p.sites[site], p.sites[site + 1], d.kind[p.sites[site]]
        if kind == LOGISTIC:
            _draw_polya_gamma(rng, p, w, first, last)
        elif kind == TILTED_LAPLACE:
            _draw_inverse_gaussian(rng, p, w, first, last)
        elif kind == MIXTURE:
            _draw_allocations(rng, p, w, first, last)
        else:
            for k in range(first, last):
                rate = r[d.second[k]] + 0.5 * (d.number[k] - w.eta[0, k]) ** 2
                w.omega[k] = rng.standard_gamma(r[d.first[k]] + 0.5) / rate
        for k in range(first, last):
            h = w.omega[k] * d.number[k]
            if kind == LOGISTIC:
                h = d.number[k] - 0.5 * r[d.first[k]]
            elif kind == TILTED_LAPLACE:
                h += r[d.second[k]]
            w.omega[first_h + k] = h
    add_up(p, w)


@inner
def _log_sites(p: Problem, w: Work) -> float:
    """Return Σ h η − ½ ω η² of observations that have an ω."""
    total, h = 0.0, w.omega[w.omega.size - p.design.offsets.size :]
    for k in range(p.drawn.number.size):
        eta = w.eta[0, k]
        total += eta * (h[k] - 0.5 * w.omega[k] * eta)
    return total


@inner
def _draw_latents(rng: np.random.Generator, p: Problem, w: Work, v: Array, a: float) -> float:
    """Overwrite v with a draw given the sites, over-relaxed by a; return the square of its ν.

    With a = 0 the last ν in ``w.nu`` need not be one.
    """
    size, square, share = v.size, 0.0, math.sqrt(1.0 - a**2)
    x = v.reshape(1, size)
    for i in range(size):
        nu = rng.standard_normal()
        if a > 0.0:
            nu = share * nu - a * w.nu[0, i]
        w.nu[0, i] = nu
        square += nu * nu
        v[i] = w.half[i] + nu
    solve(p.starts, p.rows, w.values, w.border, w.corner, x, YES)
    return square


@inner
def _write(p: Problem, w: Work, v: Array, square: float, output: Array, stats: Array) -> None:
    """Write what is recorded of a step, its log density and its log evidence."""
    r = w.registers
    for i in range(v.size):
        r[p.latents[i]] = w.s[i] * v[i]
    run_tape(p.values, r)
    for j in range(p.outputs.size):
        output[j] = r[p.outputs[j]]
    # log p(v | sites) is the density of ν, and half the log determinant cancels.
    log_joint = w.found[BASE] + 0.5 * (w.found[FIT] - square)
    log_joint += log_likelihood(p, w) - _log_sites(p, w)
    if w.h.size:
        log_joint += residual(p.held, w.file, w.h, w.lam, w.eta[0, p.drawn.number.size :])
    stats[0] = log_joint - r[p.log_det]
    stats[1] = w.found[EVIDENCE] + w.found[REST]


@inner
def _read_theta(p: Problem, w: Work, x: Array, x_likelihood: Array, x_prior: Array) -> None:
    """Overwrite all parts of θ with what the registers have."""
    for part, own in ((p.theta, x), (p.likelihood, x_likelihood), (p.prior_only, x_prior)):
        for i in range(own.size):
            own[i] = w.registers[part[i]]


@inner
def _begin(p: Problem, w: Work, x: Array, x_likelihood: Array, x_prior: Array, v: Array) -> bool:
    """Evaluate what the first step reads, of ``w.row`` if there is one; return if η is finite."""
    r = w.registers
    for part, own in ((p.theta, x), (p.likelihood, x_likelihood), (p.prior_only, x_prior)):
        for i in range(own.size):
            r[part[i]] = own[i]
    read_row(p, w, w.row)
    _read_theta(p, w, x, x_likelihood, x_prior)
    for i in range(v.size):
        w.s[i] = r[p.std[i]]
    read_latents(p, w, w.row, v)
    read_part(p.held, r, w.file, OF_PARAMETERS)
    hold(p, w)
    return predict(p.design, w, w.coefs, v.reshape(1, v.size), w.eta)


@inner
def _move_along_ridges(
    rng: np.random.Generator, p: Problem, w: Work, u: Learned, along: Index, begin: int
) -> int:
    """Move values of ``w.row`` along ridges; return the evaluations, −1 where one has no value.

    Their updates are those from the number ``begin``.
    """
    n, count = along.size - begin, 0
    first = int(n * rng.random()) if n > MOST else 0
    for k in range(min(n, MOST)):
        i = (first + k) % n
        own = one_of(u, begin + i, along[begin + i])
        w.moved[0] = 0.0
        evaluate(p, w, w.moved[:1], ALONG_RIDGE - i)
        if not math.isfinite(w.found[VALUE]):
            return -1
        count += 1 + _update(rng, p, w, own, w.moved[:1], ALONG_RIDGE - i)
        for j in range(w.row.size):
            w.row[j] = w.moved[1 + j]
    return count


@outer
def run_steps(
    rng: np.random.Generator, p: Problem, e: Entries, w: Work, u: Learned, x: Array,
    u_likelihood: Learned, x_likelihood: Array, u_level: Learned, x_level: Array,
    u_prior: Learned, x_prior: Array, u_ridges: Learned, along: Index, widths: Array,
    n_tunes: Index, v: Array, sweeps: int, slices: int, overrelaxation: float, alternates: bool,
    outputs: Array, stats: Array,
) -> int:  # fmt: skip
    """Make steps; return how many were made, or, of none, if the log evidence there has digits.

    Parameters
    ----------
    rng, p, e, w
    u, x, u_likelihood, x_likelihood, u_level, x_level, u_prior, x_prior
        Both parts of θ, that of the second that levels move against, and that of the prior alone;
        they are overwritten; and their updates.
    u_ridges, along
        The updates along all ridges, one after the other, and their slices along axes: first those
        of vectors by entry.
    widths, n_tunes
        What updates by entry have learned, of vectors whose registers are written; overwritten.
    v : ndarray
        The whitened latents in the order of elimination; overwritten.
    sweeps : int
        Draws of ω and the latents in a step.
    slices : int
        Elliptical slices of each draw of the latents; 0 where no site is held.
    overrelaxation : float
        a, see :func:`.draw_gaussian`, of draws that follow one at the same θ.
    alternates : bool
        Whether the others are over-relaxed too, see :attr:`.Chain.alternates`; ν is in ``w.nu``.
    outputs : ndarray, shape (count, n)
        Written, for each step what is recorded; of one step in ``w.row``, if there is one.
    stats : ndarray, shape (N_STATS, count)
        Written.
    """
    is_drawn, is_known, is_held = p.drawn.number.size > 0, False, slices > 0
    by_entry, n_ridges = widths.size > 0, e.ridges.shape[0]
    if not _begin(p, w, x, x_likelihood, x_prior, v):
        return 0
    if not stats.shape[1]:
        return 1 * evaluate(p, w, x, BY_EVIDENCE)
    for step in range(stats.shape[1]):
        count, square, ratio, trials = 0, 0.0, 0.0, 0
        if x_prior.size:
            evaluate(p, w, x_prior, BY_PRIOR)
            if not math.isfinite(w.found[VALUE]):
                return step
            made = _update(rng, p, w, u_prior, x_prior, BY_PRIOR)
            if made < 0:
                return step
            count, is_known = 1 + made, False
        # Before each sweep comes the move given the latents.
        for turn in range(2 * sweeps):
            is_given, sweep = turn % 2 == 0, turn // 2
            if by_entry and is_given:
                first = sweep == 0
                made = update_entries(rng, p, e, w, v, widths, n_tunes, u_ridges, along, first)
                if made < 0:
                    return step
                count, is_known = count + made, False
                _read_theta(p, w, x, x_likelihood, x_prior)
            how, theta, learned = BY_LIKELIHOOD, x_likelihood, u_likelihood
            if not is_given:
                how, theta, learned = BY_ENSEMBLE if is_held else BY_EVIDENCE, x, u
                if is_held and (by_entry or x_likelihood.size > 0):
                    hold(p, w)
                if is_drawn:
                    draw_omega(rng, p, w)
            elif not theta.size:
                continue
            for i in range(v.size):
                w.v[i] = v[i]
            if is_given or is_drawn or not is_known:
                if not evaluate(p, w, theta, how if is_given else BY_EVIDENCE):
                    return step
                is_known = not is_given and not is_drawn
            moves = theta.size > 0 and (is_given or sweep == 0)
            if moves and how == BY_ENSEMBLE:
                begin_ensemble(rng, p, w, v)
                w.found[VALUE] = w.found[BASE] + w.found[EVIDENCE] + log_sum(p, w)
            if not math.isfinite(w.found[VALUE]):
                return step
            # With that where the update begins.
            count += moves
            made = _update(rng, p, w, learned, theta, how) if moves else 0
            if made < 0:
                return step
            count += made
            if is_given:
                made = _move_levels(rng, p, w, u_level, x_level, x, v) if sweep == 0 else 0
                if made < 0:
                    return step
                count += made
                for i in range(theta.size if made else 0):
                    theta[i] = w.registers[p.likelihood[i]]
                continue
            if moves and is_held:
                choose(rng, p, w, v)
            if is_held:
                ratio, made = draw_by_slices(rng, p, w, v, slices)
                trials += made
            else:
                a = overrelaxation if alternates or sweep > 0 or not x.size else 0.0
                if a > 0.0 and not alternates:
                    present(p, w, v)
                square = _draw_latents(rng, p, w, v, a)
            if not predict(p.design, w, w.coefs, v.reshape(1, v.size), w.eta):
                return step
        if is_held:
            square = present(p, w, v)
        _write(p, w, v, square, outputs[step], stats[:, step])
        if along.size > n_ridges:
            made = _move_along_ridges(rng, p, w, u_ridges, along, n_ridges)
            if made < 0:
                return step
            count += made
        stats[2, step], stats[3, step], stats[4, step] = count, slices * sweeps, trials
        stats[5, step] = ratio
    return stats.shape[1]
