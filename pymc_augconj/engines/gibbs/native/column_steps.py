"""The native loop of models with scales of single latents, see :mod:`.given_latents`.

Random numbers are those of the Python step in the same order, and so are the draws, up to rounding.
With Φ = X diag(gains), h and λ about the offset, it factorises M = I + ΦᵀΛΦ of the weights, or of
more latents than rows C = ΦΦᵀ + Λ⁻¹ without the border H, and I + HᵀC⁻¹H, see
:mod:`pymc_augconj.gaussian.observations` and :mod:`pymc_augconj.latents.by_observations`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pymc_augconj.engines.gibbs.elliptical import entry_slices
from pymc_augconj.engines.gibbs.moves.column_kernel import choose_in_turn
from pymc_augconj.engines.gibbs.moves.given_latents import BLOCK, POINTS, SPREAD
from pymc_augconj.linalg.dense import EPS
from pymc_augconj.python_mode.tape_kernel import run_tape
from pymc_augconj.typing import Array, Index

from .column_matrices import (
    condition,
    factorize,
    find_gain,
    log_likelihood_of_rows,
    predict_rows,
    solve_triangle,
)
from .columns import Columns
from .compilation import inner, inner_with_arrays, outer_with_arrays
from .held import gumbel
from .kernel import draw_omega
from .problem import Problem
from .slices import Learned, begin_ridge, learn_widths, move_along, one_of, updates, where
from .work import BASE, COUNT, EVIDENCE, FAILED, REST, VALUE, Work

# Log densities of the prior alone, given the whitened latents, or with these integrated out; and
# with the number of a ridge added, given the whitened latents along it.
_OF_PRIOR, _JOINT, _OF_LIKELIHOOD, _COLLAPSED, _ALONG = np.arange(5)
_LOG_SPREAD = math.log(SPREAD[0]), math.log(SPREAD[1]) - math.log(SPREAD[0])


@inner
def _evaluate(given: tuple[Problem, Columns], w: Work, x: Array, how: int) -> bool:
    """Evaluate a log density, −∞ outside its support; return whether it has digits.

    The whitened latents are ``w.v``. Along a ridge x is s.
    """
    p, c = given
    r, log_jacobian = w.registers, 0.0
    w.found[VALUE] = -math.inf
    if how >= _ALONG:
        log_jacobian = move_along(c, r, x[0], how - _ALONG)
    for i in range(x.size if how < _ALONG else 0):
        r[c.theta[c.first[how] + i]] = x[i]
    run_tape(p.density, r)
    value = r[p.log_prior] + log_jacobian
    if not math.isfinite(value):
        return True
    if how == _COLLAPSED:
        for j in range(p.std.size):
            if not r[p.std[j]] >= 0.0:
                return True
        if not condition(p, c, w):
            return False
        value = w.found[BASE] + w.found[EVIDENCE]
    elif how != _OF_PRIOR:
        predict_rows(p, c, w, w.v)
        value += log_likelihood_of_rows(p, c, w)
    if math.isfinite(value):
        w.found[VALUE] = value
    return True


_update = updates(_evaluate)
# The arrays that it returns are counted.
_one_of = inner_with_arrays(one_of.py_func)


@inner
def _move(
    rng: np.random.Generator, p: Problem, c: Columns, w: Work, u: Learned, x: Array, how: int
) -> int:
    """Make an update; return the evaluations, −1 where one has no digits or none begins.

    The tape has run at the next value.
    """
    for i in range(x.size if how < _ALONG else 0):
        x[i] = w.registers[c.theta[c.first[how] + i]]
    if not _evaluate((p, c), w, x, how) or not math.isfinite(w.found[VALUE]):
        return -1
    made = _update(rng, (p, c), w, u, x, how)
    return made if made < 0 else 1 + made


@inner
def _densities(given: Any, x: Array, value: Array) -> None:
    """Write the log density of every entry of a vector given the latents times their gains.

    FAILED is written if one is not finite at first; then all are ∞, so that slices end.
    """
    p, c, w, coefs, first = given
    r = w.registers
    for i in range(x.size):
        r[c.of_theta[first + i]] = x[i]
    run_tape(p.density, r)
    is_first = w.found[COUNT] == 0.0
    w.found[COUNT] += 1.0
    for i in range(x.size):
        gain = abs(find_gain(p, c, w, c.latents[first + i]))
        value[i] = r[c.log_prior[first + i]] - math.log(gain) - 0.5 * (coefs[i] / gain) ** 2
        if math.isnan(value[i]):
            value[i] = -math.inf
        if is_first and not math.isfinite(value[i]):
            w.found[FAILED] = 1.0
    for i in range(x.size if w.found[FAILED] > 0.0 else 0):
        value[i] = math.inf


_update_entries = inner_with_arrays(entry_slices(_densities, where))


@inner_with_arrays
def _update_given_coefficients(
    rng: np.random.Generator, p: Problem, c: Columns, w: Work, v: Array, widths: Array,
    n_tunes: Index, tune: bool,
) -> int:  # fmt: skip
    """Update all vectors, and v, given the latents times their gains; return the evaluations."""
    r, count = w.registers, 0
    for number in range(n_tunes.size):
        own = slice(c.begin[number], c.begin[number + 1])
        at, w.found[COUNT], w.found[FAILED] = c.latents[own], 0.0, 0.0
        run_tape(p.density, r)
        coefs = np.empty(at.size)
        for i in range(at.size):
            coefs[i] = find_gain(p, c, w, at[i]) * v[at[i]]
            if not abs(find_gain(p, c, w, at[i])) > 0.0:
                return -1
        start = r[c.of_theta[own]]
        x, found = _update_entries((p, c, w, coefs, own.start), rng, start, widths[own])
        if w.found[FAILED] > 0.0:
            return -1
        for i in range(at.size):
            r[c.of_theta[own.start + i]] = x[i]
        learn_widths(widths[own], found, n_tunes[number : number + 1], tune)
        run_tape(p.density, r)
        for i in range(at.size):
            v[at[i]] = coefs[i] / r[c.gains[at[i]]]
        count += int(w.found[COUNT])
    return count


@inner_with_arrays
def _update_columns(rng: np.random.Generator, p: Problem, c: Columns, w: Work, number: int) -> bool:
    """Update the entries of a vector in turn, given ω; return whether all has digits."""
    first, r = c.begin[number], w.registers
    size = c.begin[number + 1] - first
    spread, centre, x = np.empty(size), np.empty(size), np.empty((POINTS, size))
    for i in range(size):
        spread[i] = math.exp(_LOG_SPREAD[0] + _LOG_SPREAD[1] * rng.random())
    for i in range(size):
        x[0, i] = r[c.of_theta[first + i]]
        centre[i] = x[0, i] + spread[i] * rng.standard_normal()
    for k in range(1, POINTS):
        for i in range(size):
            x[k, i] = centre[i] + spread[i] * rng.standard_normal()
    log_prior, growth, noise = np.empty((3, POINTS, size))
    at, gain = c.latents[first : first + size], np.empty(size)
    # The present point is the last, so that registers are those of it.
    for k in range(POINTS, -1, -1):
        for i in range(size):
            r[c.of_theta[first + i]] = x[k % POINTS, i]
        run_tape(p.density, r)
        for i in range(size):
            if k == POINTS:
                gain[i] = find_gain(p, c, w, at[i])
            else:
                log_prior[k, i] = r[c.log_prior[first + i]]
                growth[k, i] = (find_gain(p, c, w, at[i]) / gain[i]) ** 2 - 1.0
    for i in range(size):
        growth[0, i] = 0.0
    for k in range(POINTS):
        for i in range(size):
            noise[k, i] = gumbel(rng)
    if not condition(p, c, w):
        return False
    chosen = np.zeros(size, np.intp)
    if c.inside.size == 0:
        M = np.dot(c.L, c.L.T)
        inverse = np.linalg.inv(M)
        mean = np.dot(inverse, np.dot(c.sites[0], c.Phi))
        Q = -inverse[at][:, at]
        for i in range(size):
            Q[i, i] += 1.0
        choose_in_turn(Q, mean[at], log_prior, growth, noise, chosen)
    elif not _choose_by_rows(c, at, log_prior, growth, noise, chosen):
        return False
    for i in range(size):
        r[c.of_theta[first + i]] = x[chosen[i], i]
    run_tape(p.density, r)
    return True


@inner_with_arrays
def _choose_by_rows(
    c: Columns, at: Index, log_prior: Array, growth: Array, noise: Array, chosen: Index
) -> bool:
    """Choose points as :func:`.choose` does, some columns at a time; return if all has digits."""
    C = np.dot(c.Phi, c.Phi.T)
    z = np.empty(C.shape[0])
    for k in range(z.size):
        C[k, k] += 1.0 / c.sites[1, k]
    for start in range(0, at.size, BLOCK):
        own = slice(start, min(start + BLOCK, at.size))
        phi, picked = np.ascontiguousarray(c.Phi[:, at[own]]), np.zeros(own.stop - start, np.intp)
        trace = 0.0
        for k in range(z.size):
            trace += c.sites[1, k] * C[k, k]
        if not EPS * z.size * trace < 1.0:
            return False
        if not math.isfinite(factorize(C, c.L)):
            return False
        # By the factor, as the inverse has no digits of columns that are known well.
        t = phi.copy()
        for k in range(z.size):
            z[k] = c.sites[0, k] / c.sites[1, k]
            for i in range(k):
                for j in range(picked.size):
                    t[k, j] -= c.L[k, i] * t[i, j]
            for j in range(picked.size):
                t[k, j] /= c.L[k, k]
        solve_triangle(c.L, z, False)
        choose_in_turn(
            np.dot(t.T, t), np.dot(t.T, z), log_prior[:, own].copy(), growth[:, own].copy(),
            noise[:, own].copy(), picked,
        )  # fmt: skip
        moved = phi.copy()
        for j in range(picked.size):
            chosen[start + j] = picked[j]
            for k in range(z.size):
                moved[k, j] *= growth[picked[j], start + j]
        C += np.dot(moved, phi.T)
    return True


@inner_with_arrays
def _draw_latents(rng: np.random.Generator, c: Columns, v: Array) -> None:
    """Overwrite v with a draw given the sites, by the factor that was written last."""
    R, D = c.X.shape
    if c.inside.size == 0:
        for j in range(D):
            v[j] = c.z[0, j] + rng.standard_normal()
        solve_triangle(c.L, v, True)
        return
    for j in range(D):
        v[j] = rng.standard_normal()
    own = v[c.border]
    solve_triangle(c.M, own, True)
    for i in range(own.size):
        v[c.border[i]] = own[i]
    rest = np.dot(c.Phi, v)
    for k in range(R):
        h, lam = c.sites[0, k], c.sites[1, k]
        rest[k] = h / lam - rest[k] - rng.standard_normal() / math.sqrt(lam)
        for i in range(own.size):
            rest[k] -= c.Phi[k, c.border[i]] * c.beta[i]
    solve_triangle(c.L, rest, False)
    solve_triangle(c.L, rest, True)
    raised = np.dot(rest, c.Phi)
    for j in range(D):
        v[j] += raised[j]
    for i in range(own.size):
        v[c.border[i]] = own[i] + c.beta[i]


@inner
def _write(p: Problem, c: Columns, w: Work, v: Array, output: Array, stats: Array) -> None:
    """Write what is recorded of a step, its log density and its log evidence."""
    r, square = w.registers, 0.0
    for i in range(v.size):
        r[p.latents[i]] = r[p.std[i]] * v[i]
        square += v[i] * v[i]
    run_tape(p.values, r)
    for j in range(p.outputs.size):
        output[j] = r[p.outputs[j]]
    stats[0] = r[p.log_prior] - 0.5 * square + log_likelihood_of_rows(p, c, w) - r[p.log_det]
    stats[1] = w.found[EVIDENCE] + w.found[REST]


@outer_with_arrays
def run_steps(
    rng: np.random.Generator, p: Problem, c: Columns, w: Work, u_prior: Learned, x_prior: Array,
    u_joint: Learned, x_joint: Array, u_likelihood: Learned, x_likelihood: Array, u: Learned,
    x: Array, u_ridges: Learned, along: Index, widths: Array,
    n_tunes: Index, v: Array, sweeps: int, slices: int, overrelaxation: float, alternates: bool,
    outputs: Array, stats: Array,
) -> int:  # fmt: skip
    """Make steps; return how many were made, or, of none, if the log evidence there has digits.

    Parameters are as for :func:`.kernel.run_steps`, with ``u_joint`` what is updated given the
    whitened latents; the last three of those before ``outputs`` are not read.
    """
    r = w.registers
    for move, own in enumerate((x_prior, x_joint, x_likelihood, x)):
        for i in range(own.size):
            r[c.theta[c.first[move] + i]] = own[i]
    run_tape(p.density, r)
    if not stats.shape[1]:
        return 1 * condition(p, c, w)
    if not predict_rows(p, c, w, v):
        return 0
    moves, xs = (u_prior, u_joint, u_likelihood, u), (x_prior, x_joint, x_likelihood, x)
    for step in range(stats.shape[1]):
        count = 0
        for turn in range(sweeps * (4 + along.size)):
            # The prior alone, ridges, given the latents, with these integrated out; by one call,
            # within which the density is compiled once.
            sweep, which = turn // (4 + along.size), turn % (4 + along.size)
            number, how = which - 1, which - along.size
            if which <= along.size:
                how = int(_ALONG) + number if which > 0 else int(_OF_PRIOR)
            if which == 1:
                made = _update_given_coefficients(rng, p, c, w, v, widths, n_tunes, u.tune)
                if made < 0:
                    return step
                count += made
            if how == _JOINT or how >= _ALONG:
                for i in range(v.size):
                    w.v[i] = v[i]
            if how == _COLLAPSED:
                if not predict_rows(p, c, w, v):
                    return step
                if p.drawn.number.size:
                    draw_omega(rng, p, w)
                for k in range(n_tunes.size):
                    if not _update_columns(rng, p, c, w, k):
                        return step
                    count += POINTS
            of_move, at = moves[how % 4], xs[how % 4]
            if how >= _ALONG:
                begin_ridge(c, r, number)
                at, of_move = w.moved[:1], _one_of(u_ridges, number, along[number])
                at[0] = 0.0
            is_made = at.size > 0 and (sweep == 0 or how in (_JOINT, _OF_LIKELIHOOD))
            made = _move(rng, p, c, w, of_move, at, how) if is_made else 0
            if made < 0:
                return step
            count += made
            if how == _COLLAPSED:
                if not is_made and not condition(p, c, w):
                    return step
                _draw_latents(rng, c, v)
                if not predict_rows(p, c, w, v):
                    return step
        _write(p, c, w, v, outputs[step], stats[:, step])
        stats[2, step] = count
        for i in range(3, stats.shape[0]):
            stats[i, step] = 0.0
    return stats.shape[1]
