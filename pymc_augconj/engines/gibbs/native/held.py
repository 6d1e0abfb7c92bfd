"""Held sites in the native loop: r, the vectors ν_k and elliptical slices of :mod:`..tilted`.

Steps of :mod:`.fixed` are of these alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pymc_augconj.engines.gibbs import elliptical
from pymc_augconj.engines.gibbs.elliptical import ANY
from pymc_augconj.engines.gibbs.followed import (
    FARTHEST,
    LARGEST_CHANGE,
    LARGEST_RATIO,
    LEAST_RATIO,
    LEAST_SHARE,
)
from pymc_augconj.linalg.sparse_kernels import multiply, solve
from pymc_augconj.python_mode.tape_kernel import run_rows
from pymc_augconj.typing import Array

from .compilation import inner, inner_in_any_order, inner_with_arrays, outer, outer_with_arrays
from .entries import Design
from .problem import Problem
from .row_tapes import RowTapes
from .work import OF_CURVES, YES, Work

# Terms of a sum up to which it is not worth a look whether their indices are consecutive.
_FEW = 8
#: Parts of the instructions of densities: what depends on nothing that changes, parameters, and η.
OF_DATA, OF_PARAMETERS, _OF_PREDICTORS = np.arange(3)


@inner
def _run(tapes: RowTapes, file: Array, part: int) -> None:
    for i in range(tapes.tables.shape[0]):
        t = tapes.tables[i]
        n = (t[1] - t[0]) // t[10]
        r = file[t[2] : t[2] + t[3] * n].reshape(t[3], n)
        run_rows(tapes.row_code, t[4 + part], t[5 + part], r)


@outer
def read_part(tapes: RowTapes, registers: Array, file: Array, part: int) -> None:
    """Compute one of the first two parts."""
    for e in range(tapes.given.size):
        file[tapes.given[e]] = registers[tapes.given_by[e]]
    _run(tapes, file, part)


@inner
def run_densities(tapes: RowTapes, file: Array, eta: Array) -> None:
    """Compute the log densities of all rows at predictors."""
    for i in range(tapes.tables.shape[0]):
        t = tapes.tables[i]
        to, own = file[t[8] : t[8] + t[1] - t[0]], eta[t[0] : t[1]]
        for k in range(own.size):
            to[k] = own[k]
    _run(tapes, file, _OF_PREDICTORS)


@inner_in_any_order
def log_density(tapes: RowTapes, file: Array, eta: Array) -> float:
    """Return Σ log p(y | η) of what has held sites."""
    total = 0.0
    run_densities(tapes, file, eta)
    for i in range(tapes.tables.shape[0]):
        t = tapes.tables[i]
        values = file[t[9] : t[9] + (t[1] - t[0]) // t[10]]
        for k in range(values.size):
            total += values[k]
    return total


@inner_in_any_order
def log_held(tapes: RowTapes, h: Array, lam: Array, eta: Array) -> float:
    """Return Σ hη − ½ ηᵀΛη of the observations with held sites."""
    total, at = 0.0, eta.size
    for k in range(eta.size):
        total += eta[k] * (h[k] - 0.5 * lam[k] * eta[k])
    for i in range(tapes.tables.shape[0] if lam.size > at else 0):
        first, last = tapes.tables[i, 0], tapes.tables[i, 1]
        n = (last - first) // tapes.tables[i, 10]
        for a in range(first, last, n):
            for b in range(a + n, last, n):
                for k in range(n):
                    total -= lam[at + k] * eta[a + k] * eta[b + k]
                at += n
    return total


@inner
def residual(tapes: RowTapes, file: Array, h: Array, lam: Array, eta: Array) -> float:
    """Return r at the predictors of what has held sites; −∞ outside the support."""
    total = log_density(tapes, file, eta) - log_held(tapes, h, lam, eta)
    return total if math.isfinite(total) else -math.inf


@inner_with_arrays
def _follow(p: Problem, w: Work) -> None:
    """Write the held sites at the present parameters as :class:`.Held` does."""
    h, lam, before, step, slope, curvature = w.record[:OF_CURVES]
    eta, found, tables = np.empty(w.h.size), np.empty((3, w.h.size)), p.held.tables
    mean, n = before.copy(), (w.record.shape[0] - OF_CURVES) // 4
    for e in range(n):
        theta, curves = w.registers[p.theta[e]], w.record[OF_CURVES + e :: n]
        for k in range(mean.size):
            away = min(max((theta - curves[0, k]) / curves[1, k], -FARTHEST), FARTHEST)
            mean[k] += away * (curves[2, k] + away * curves[3, k])
    for j in range(3):
        for k in range(eta.size):
            eta[k] = mean[k] + (j - 1) * step[k]
        run_densities(p.held, w.file, eta)
        for i in range(tables.shape[0]):
            first, at = tables[i, 0], tables[i, 9]
            for k in range(first, tables[i, 1] if tables[i, 10] == 1 else first):
                found[j, k] = w.file[at + k - first]
    for k in range(lam.size):
        w.lam[k] = lam[k]
    for k in range(w.h.size):
        w.h[k] = h[k]
    for i in range(tables.shape[0]):
        first, last = tables[i, 0], tables[i, 1] if tables[i, 10] == 1 else tables[i, 0]
        now = then = positive_now = positive_then = 0.0
        for k in range(first, last):
            found[1, k] = 2.0 * found[1, k] - found[2, k] - found[0, k]
            bend, bent = found[1, k] / step[k] ** 2, curvature[k] / step[k] ** 2
            if math.isfinite(bend):
                now += bend
                positive_now += max(bend, 0.0)
            if math.isfinite(bent):
                then += bent
                positive_then += max(bent, 0.0)
        share = _share(now, positive_now) / _share(then, positive_then)
        for k in range(first, last):
            ratio = found[1, k] / curvature[k]
            change = 0.5 * (found[2, k] - found[0, k] - slope[k]) / step[k]
            if math.isfinite(ratio) and math.isfinite(change):
                most = LARGEST_CHANGE / step[k]
                w.lam[k] *= min(max(ratio, LEAST_RATIO), LARGEST_RATIO) * share
                w.h[k] += min(max(change, -most), most) + w.lam[k] * mean[k] - lam[k] * before[k]


@inner
def _share(total: float, positive: float) -> float:
    return max(total / positive, LEAST_SHARE) if positive > 0.0 else 1.0


@inner_in_any_order
def add_up(p: Problem, w: Work) -> None:
    """Add up what depends on ω and held sites."""
    for e in range(w.value.size):
        total, first, last = p.sums.fixed[e], p.sums.weights[e], p.sums.weights[e + 1]
        if last - first > _FEW and p.sums.of[last - 1] - p.sums.of[first] == last - first - 1:
            # One after the other, as they are sorted: no index is read.
            by, omega = p.sums.by[first:last], w.omega[p.sums.of[first] : p.sums.of[last - 1] + 1]
            for k in range(by.size):
                total += by[k] * omega[k]
        else:
            for k in range(np.uint64(first), np.uint64(last)):
                total += p.sums.by[k] * w.omega[np.uint64(p.sums.of[k])]
        w.value[e] = total


@inner
def hold(p: Problem, w: Work) -> None:
    """Take the held sites of the present parameters; add up what depends on them."""
    if w.h.size:
        _follow(p, w)
    add_up(p, w)


@inner
def predict(design: Design, w: Work, all_coefs: Array, x: Array, etas: Array) -> bool:
    """Write the last predictors of each row of x; return whether those of a single one are finite.

    There are as many as there is room for; those of held sites are the last ones. ``all_coefs`` is
    overwritten.
    """
    r, n_slots, finite = w.registers, all_coefs.shape[0], 1
    n_rows = etas.shape[1]
    first = design.offsets.size - n_rows
    for q in range(n_slots):
        numbers, multiples = design.numbers[q, first:], design.multiples[q, first:]
        coefs = all_coefs[q]
        for k in range(n_rows if design.shared[q, 1] == 0 else 0):
            coefs[k] = numbers[k] * r[np.uint64(multiples[k])]
    offsets, base = design.offsets[first:], etas[0]
    for k in range(n_rows):
        base[k] = r[np.uint64(offsets[k])]
    for j in range(x.shape[0] - 1, -1, -1):
        eta, u = etas[j], w.u
        for i in range(u.size):
            u[i] = w.s[i] * x[j, i]
        for k in range(n_rows if j > 0 else 0):
            eta[k] = base[k]
        for q in range(n_slots):
            columns, factor, coefs = design.columns[q, first:], 1.0, all_coefs[q]
            if design.shared[q, 1]:
                factor, coefs = r[design.multiples[q, 0]], design.numbers[q, first:]
            if design.shared[q, 0]:
                factor *= u[columns[0]]
                for k in range(n_rows):
                    eta[k] += factor * coefs[k]
            else:
                for k in range(n_rows):
                    eta[k] += factor * coefs[k] * u[np.uint64(columns[k])]
    for k in range(n_rows if x.shape[0] == 1 else 0):
        finite &= abs(base[k]) < math.inf
    return finite == 1


@inner_with_arrays
def present(p: Problem, w: Work, v: Array) -> float:
    """Write ν of the latents v as the first of all; return |ν|²."""
    x = v.reshape(1, v.size)
    x, total = multiply(p.starts, p.rows, w.values, w.border, w.corner, x, YES), 0.0
    for i in range(v.size):
        nu = x[0, i] - w.half[i]
        w.nu[0, i] = nu
        total += nu * nu
    return total


@inner_with_arrays
def _applied(p: Problem, w: Work, nu: Array) -> Array:
    """Return the latents of each row of ν."""
    x = np.empty(nu.shape)
    for k in range(nu.shape[0]):
        for i in range(nu.shape[1]):
            x[k, i] = w.half[i] + nu[k, i]
    solve(p.starts, p.rows, w.values, w.border, w.corner, x, YES)
    return x


@inner_with_arrays
def begin_ensemble(rng: np.random.Generator, p: Problem, w: Work, v: Array) -> None:
    """Draw all ν_k, given the present latents."""
    present(p, w, v)
    for k in range(1, w.nu.shape[0]):
        for i in range(v.size):
            w.nu[k, i] = rng.standard_normal()


@inner_with_arrays
def log_sum(p: Problem, w: Work) -> float:
    """Return log Σ_k exp r(f(θ, ν_k)), and write its terms."""
    etas = np.empty((w.ratios.size, w.h.size))
    predict(p.design, w, w.coefs, _applied(p, w, w.nu), etas)
    largest, total = -math.inf, 0.0
    for k in range(w.ratios.size):
        w.ratios[k] = residual(p.held, w.file, w.h, w.lam, etas[k])
        largest = max(largest, w.ratios[k])
    if largest == -math.inf:
        return largest
    for k in range(w.ratios.size):
        total += math.exp(w.ratios[k] - largest)
    return largest + math.log(total)


@inner
def gumbel(rng: np.random.Generator) -> float:
    """Return NumPy's draw of a Gumbel variable."""
    u = 1.0 - rng.random()
    while u == 1.0:
        u = 1.0 - rng.random()
    return -math.log(-math.log(u))


@inner_with_arrays
def choose(rng: np.random.Generator, p: Problem, w: Work, v: Array) -> None:
    """Draw κ; overwrite v with its latents."""
    best, at = -math.inf, 0
    for k in range(w.ratios.size):
        value = w.ratios[k] + gumbel(rng)
        if value > best:
            best, at = value, k
    x = _applied(p, w, w.nu[at : at + 1])
    for i in range(v.size):
        v[i] = x[0, i]


@inner
def _on_ellipse(
    given: tuple[RowTapes, Array, Array, Array, tuple[Array, ...]], cos: float, sin: float
) -> float:
    """Return r at a point of an ellipse, whose predictors are written into ``eta``.

    ``here`` and ``there`` are the present and the fresh predictors less its ``centre``.
    """
    tapes, file, h, lam, (centre, here, there, eta) = given
    for i in range(eta.size):
        eta[i] = centre[i] + cos * here[i] + sin * there[i]
    return residual(tapes, file, h, lam, eta)


first_angle, may_follow = map(inner, (elliptical.first_angle, elliptical.may_follow))
_slice_ellipse = inner(elliptical.ellipse_slices(_on_ellipse, first_angle, may_follow))


@inner_with_arrays
def draw_by_slices(
    rng: np.random.Generator, p: Problem, w: Work, v: Array, slices: int
) -> tuple[float, int]:
    """Overwrite v with the next latents, given the sites; return r there, and the evaluations."""
    size, count, trials = v.size, w.h.size, 0
    # The first is the mean; the present latents are the last.
    x, etas = np.zeros((slices + 2, size)), np.empty((slices + 2, count))
    eta = np.empty(count)
    for k in range(1, slices + 1):
        for i in range(size):
            x[k, i] = rng.standard_normal()
    x = _applied(p, w, x)
    for i in range(size):
        x[slices + 1, i] = v[i]
    predict(p.design, w, w.coefs, x, etas)
    centre, here = etas[0], etas[slices + 1]
    value = residual(p.held, w.file, w.h, w.lam, here)
    for i in range(count):
        here[i] -= centre[i]
    for i in range(size):
        v[i] -= x[0, i]
    for k in range(1, slices + 1):
        there = etas[k]
        for i in range(count):
            there[i] -= centre[i]
        given = p.held, w.file, w.h, w.lam, (centre, here, there, eta)
        cos, sin, value, made = _slice_ellipse(rng, given, value, ANY)
        trials += made
        for i in range(size):
            v[i] = cos * v[i] + sin * (x[k, i] - x[0, i])
        for i in range(count):
            here[i] = cos * here[i] + sin * there[i]
    for i in range(size):
        v[i] += x[0, i]
    return value, trials


class Given(NamedTuple):
    """Densities, held sites and the Gaussian distribution given these, constant over steps.

    Attributes
    ----------
    tapes : RowTapes
    h, lam : ndarray, shape (n,)
    mean, centre : ndarray
        m and c.
    root, of_predictors, design : ndarray
        Bᵀ and Rᵀ, a row for every z; and a row for every latent of what it adds to the predictors.
    is_normal : ndarray, shape (D,)
        Zero for flat latents, one for the others.
    base : float
        The log density less r, Σ h η − ½ λ η² and −½ |v|².
    """

    tapes: RowTapes
    h: Array
    lam: Array
    mean: Array
    centre: Array
    root: Array
    of_predictors: Array
    design: Array
    is_normal: Array
    base: float


@outer_with_arrays
def run_steps(
    rng: np.random.Generator,
    g: Given,
    v: Array,
    proposals: int,
    slices: int,
    outputs: Array,
    stats: Array,
) -> None:
    """Make steps, overwriting the whitened latents v.

    So many fresh vectors are ``proposals``, and span ellipses (``slices``). Written are the
    whitened latents of each step, ``outputs`` of shape (count, D); and log densities, elliptical
    slices, evaluations that these took and r, ``stats`` of shape (4, count).
    """
    size, n, count = v.size, g.centre.size, proposals + slices
    z, shares, eta = np.empty((count, size)), np.empty((1, count)), np.empty(n)
    away = np.empty((1, size))
    for step in range(outputs.shape[0]):
        for k in range(count):
            for i in range(size):
                z[k, i] = rng.standard_normal()
        there = np.dot(z, g.of_predictors)
        for i in range(size):
            away[0, i] = v[i] - g.mean[i]
        here = np.dot(away, g.design)[0]
        for i in range(n):
            eta[i] = g.centre[i] + here[i]
        value = residual(g.tapes, g.tapes.file, g.h, g.lam, eta)
        kept, trials = 1.0, 0
        for k in range(count):
            cos, sin = 1.0, 0.0
            if k < proposals:
                for i in range(n):
                    eta[i] = g.centre[i] + there[k, i]
                found = residual(g.tapes, g.tapes.file, g.h, g.lam, eta)
                # NaN and infinity are refused, as on an ellipse.
                if found < math.inf and rng.random() < math.exp(min(found - value, 0.0)):
                    cos, sin, value = 0.0, 1.0, found
            else:
                given = g.tapes, g.tapes.file, g.h, g.lam, (g.centre, here, there[k], eta)
                cos, sin, value, made = _slice_ellipse(rng, given, value, ANY)
                trials += made
            kept *= cos
            for j in range(k):
                shares[0, j] *= cos
            shares[0, k] = sin
            for i in range(n):
                here[i] = cos * here[i] + sin * there[k, i]
        fresh = np.dot(np.dot(shares, z), g.root)
        total = g.base
        for i in range(size):
            v[i] = g.mean[i] + kept * away[0, i] + fresh[0, i]
            outputs[step, i] = v[i]
            total -= 0.5 * g.is_normal[i] * v[i] * v[i]
        for i in range(n):
            eta[i] = g.centre[i] + here[i]
        total += log_held(g.tapes, g.h, g.lam, eta)
        stats[0, step], stats[3, step] = total + value, value
        stats[1, step], stats[2, step] = slices, trials
