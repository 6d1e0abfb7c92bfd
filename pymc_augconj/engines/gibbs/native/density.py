"""The log density of θ, at what the loop has drawn."""

from __future__ import annotations

import math

import numpy as np

from pymc_augconj.latents.dense import FLAT_STD
from pymc_augconj.linalg.dense import EPS, LARGEST_ERROR, SCREEN, SMALL_BOUND, SMALL_ERROR
from pymc_augconj.linalg.sparse_kernels import eliminate, solve
from pymc_augconj.python_mode.elementary import exp, log1p, softplus
from pymc_augconj.python_mode.tape_kernel import run_tape
from pymc_augconj.typing import Array

from .compilation import inner, inner_in_any_order, inner_with_arrays
from .held import OF_PARAMETERS, hold, log_density, log_sum, predict, read_part
from .problem import LARGEST_CORNER, N_CONSTANTS, Problem
from .rows import LOGISTIC, MIXTURE, TILTED_LAPLACE
from .work import BASE, EVIDENCE, FIT, NO, REST, START, VALUE, YES, Work

#: Log densities of θ: of its prior alone; with the latents integrated out, given ν where sites are
#: held, or given them; and, with the number of a level added, while that moves against the
#: hyperparameters; or less the number of a ridge along it.
BY_PRIOR, BY_EVIDENCE, BY_ENSEMBLE, BY_LIKELIHOOD, BY_LEVEL = np.arange(5)
ALONG_RIDGE = np.int64(-1)
# Precision in units of FLAT_STD⁻², beside which that of the flat density is rounding.
_FLAT = 1e12


def log_evidence(work: Work) -> float:
    """Return the log evidence at what was evaluated last."""
    return float(work.found[EVIDENCE] + work.found[REST])


@inner
def read_components(p: Problem, w: Work, first: int, last: int) -> int:
    """Write log densities of the components of mixtures, with their weights; return the rows."""
    r, etas, terms = w.registers, w.eta[0, first:last], w.terms[first:last]
    d = p.drawn
    number, precision, log_peak = d.number[first:last], d.first[first:last], d.log_peak[first:last]
    for k in range(terms.size):
        error = number[k] - etas[k]
        terms[k] = r[np.uint64(log_peak[k])] - 0.5 * r[np.uint64(precision[k])] * error * error
    return int((last - first) // d.second[first])


@inner_in_any_order
def _log_mixtures(p: Problem, w: Work, first: int, last: int) -> float:
    """Return the log density of the mixtures of a variable."""
    size, log_density = read_components(p, w, first, last), 0.0
    total = w.terms[first : first + size]
    for start in range(first + size, last, size):
        terms = w.terms[start : start + size]
        for i in range(size):
            top = total[i] if total[i] > terms[i] else terms[i]
            above = log1p(exp(-abs(total[i] - terms[i])))
            total[i] = top + above if top > -math.inf else top
    for i in range(size):
        log_density += total[i]
    return log_density


@inner_in_any_order
def log_likelihood(p: Problem, w: Work) -> float:
    """Return Σ log p(y | η) of observations that have an ω."""
    r, d, etas, total = w.registers, p.drawn, w.eta[0], 0.0
    for site in range(p.sites.size - 1):
        kind = d.kind[p.sites[site]]
        if kind == MIXTURE:
            total += _log_mixtures(p, w, p.sites[site], p.sites[site + 1])
            continue
        for k in range(p.sites[site], p.sites[site + 1]):
            total += r[np.uint64(d.log_peak[k])]
        if kind == LOGISTIC:
            for k in range(p.sites[site], p.sites[site + 1]):
                total += d.number[k] * etas[k] - r[np.uint64(d.first[k])] * softplus(etas[k])
        elif kind == TILTED_LAPLACE:
            for k in range(p.sites[site], p.sites[site + 1]):
                e = d.number[k] - etas[k]
                total -= r[d.first[k]] * abs(e) + r[d.second[k]] * e
        else:
            for k in range(p.sites[site], p.sites[site + 1]):
                ratio = 0.5 * (d.number[k] - etas[k]) ** 2 / r[np.uint64(d.second[k])]
                total -= (r[np.uint64(d.first[k])] + 0.5) * log1p(ratio)
    return total


@inner
def read_row(p: Problem, w: Work, row: Array) -> None:
    """Write registers of what all blocks draw, and run the tape."""
    values = p.shared.values
    for k in range(values.shape[0]):
        w.registers[values[k, 0]] = row[values[k, 1]]
    run_tape(p.density, w.registers)


@inner
def read_latents(p: Problem, w: Work, row: Array, v: Array) -> None:
    """Overwrite v with the whitened latents of what all blocks draw, at the registers."""
    r, latents, roots = w.registers, p.shared.latents, p.shared.roots
    for i in range(latents.shape[0]):
        v[i] = row[latents[i, 1]] - r[latents[i, 0]]
    for k in range(roots.shape[0]):
        i, j = roots[k, 0], roots[k, 1]
        if i == j:
            v[i] /= r[roots[k, 2]]
        else:
            v[i] -= r[roots[k, 2]] * v[j]


@inner
def _evaluate_along(p: Problem, w: Work, s: float, number: int) -> None:
    """Write the values of ``w.row`` moved by s along a ridge, and their log density."""
    row, moved, ends, u = w.row, w.moved[1:], p.shared.ends, w.u
    value = p.shared.ridges[number, 1] * s
    for j in range(row.size):
        moved[j] = row[j]
    for k in range(p.shared.ridges[number, 0], p.shared.ridges[number + 1, 0]):
        at, source, by = ends[k, 0], ends[k, 1], ends[k, 2] * s
        if source >= 0:
            moved[at] += by * (exp(row[source]) if ends[k, 4] else row[source])
        elif ends[k, 3]:
            moved[at] += by
        else:
            moved[at] *= exp(by)
    read_row(p, w, moved)
    value += w.registers[p.log_prior]
    read_latents(p, w, moved, u)
    for i in range(u.size):
        value -= 0.5 * u[i] ** 2
    w.found[VALUE] = value if math.isfinite(value) else -math.inf


@inner
def _whiten(p: Problem, w: Work, G: Array, g: Array) -> None:
    """Overwrite the lower triangle of G and g with those of whitened latents, LᵀGL and Lᵀg."""
    at = 0
    for k in range(p.roots.first.shape[0]):
        a, n = p.roots.first[k]
        L, product, own = w.root[0], w.root[1], G[a : a + n, a : a + n]
        for i in range(n):
            for j in range(i + 1):
                L[i, j] = w.registers[np.uint64(p.roots.registers[at + j])]
                product[i, j] = 0.0
            at += n
        for i in range(n):
            for m in range(n):
                value = own[i, m] if m < i else own[m, i]
                if value != 0.0:
                    for j in range(min(i, m) + 1):
                        product[i, j] += value * L[m, j]
        for i in range(n):
            for j in range(i + 1):
                own[i, j] = 0.0
            # Row i of the products is added to all rows that it is part of.
            for m in range(i + 1):
                for j in range(m + 1):
                    own[m, j] += L[i, m] * product[i, j]
            before, number = G[a + i], g[a + i]
            for m in range(i):
                g[a + m] += L[i, m] * number
                for j in range(a):
                    G[a + m, j] += L[i, m] * before[j]
            g[a + i] *= L[i, i]
            for j in range(a):
                before[j] *= L[i, i]
        for row in range(a + n, g.size):
            after = G[row, a : a + n]
            for i in range(n):
                for j in range(i):
                    after[j] += after[i] * L[i, j]
                after[i] *= L[i, i]


@inner
def evaluate(p: Problem, w: Work, x: Array, how: int) -> bool:
    """Evaluate the log density of some of θ, −∞ outside its support; return whether it has digits.

    It is with the latents integrated out given ω, times Σ_k exp r(f(θ, ν_k)) where ``how`` is
    BY_ENSEMBLE; or given the latents with ω integrated out, where ``how`` is BY_LIKELIHOOD or more.
    These are ``w.v``, which a level moves. BY_PRIOR has neither. Along a ridge x is s, see
    :class:`.Ridge`.
    """
    if how <= ALONG_RIDGE:
        _evaluate_along(p, w, x[0], ALONG_RIDGE - how)
        return True
    r, sums, s, half = w.registers, w.sums, w.s, w.half
    theta = p.theta if how > BY_PRIOR else p.prior_only
    if how >= BY_LIKELIHOOD:
        theta = p.likelihood if how == BY_LIKELIHOOD else p.level
    w.found[VALUE] = -math.inf
    for i in range(x.size):
        r[theta[i]] = x[i]
    run_tape(p.of_likelihood if how >= BY_LIKELIHOOD else p.density, r)
    log_prior = r[p.log_prior]
    if not math.isfinite(log_prior):
        return True
    if how == BY_PRIOR:
        w.found[VALUE] = log_prior
        return True
    if how >= BY_LIKELIHOOD:
        if w.h.size:
            read_part(p.held, r, w.file, OF_PARAMETERS)
        of_latents = 0.0
        if how >= BY_LEVEL:
            t = r[p.levels[how - BY_LEVEL, 0]] - w.found[START]
            for i in range(w.v.size):
                w.v[i] = w.level[0, i] - t * w.level[1, i]
                of_latents -= 0.5 * w.v[i] ** 2
        if how >= BY_LEVEL or p.moves_predictors:
            predict(p.design, w, w.coefs, w.v.reshape(1, w.v.size), w.eta)
        value = log_prior + of_latents + log_likelihood(p, w)
        if w.h.size:
            value += log_density(p.held, w.file, w.eta[0, p.drawn.number.size :])
        if math.isfinite(value):
            w.found[VALUE] = value
        return True
    for i in range(p.scales.size):
        if not r[p.scales[i]] >= 0.0:
            return True
    if p.moves_sites and how == BY_ENSEMBLE:
        read_part(p.held, r, w.file, OF_PARAMETERS)
        hold(p, w)
    for e in range(sums.size):
        sums[e] = 0.0
    factors, begin = p.sums.factors, p.sums.begin
    for k in range(factors.shape[0]):
        weight = r[factors[k, 0]] * r[factors[k, 1]] * r[factors[k, 2]]
        place, value = p.sums.place[begin[k] : begin[k + 1]], w.value[begin[k] : begin[k + 1]]
        if place[-1] - place[0] == place.size - 1:
            own = sums[place[0] : place[-1] + 1]
            for e in range(own.size):
                own[e] += weight * value[e]
        else:
            for e in range(place.size):
                sums[place[e]] += weight * value[e]
    size = s.size
    n_flat = sums.size - size - N_CONSTANTS
    if p.roots.first.size:
        _whiten(p, w, sums[:n_flat].reshape(size, size), sums[n_flat : n_flat + size])
    linear, square, base = sums[n_flat + size], sums[n_flat + size + 1], sums[n_flat + size + 2]
    largest = max(abs(base), sums[n_flat + size + 3])
    if not p.digits * (largest + abs(linear) + abs(square)) <= LARGEST_ERROR:
        return False
    for i in range(size):
        s[i] = r[p.std[i]]
        half[i] = s[i] * sums[n_flat + i]
        # The density of latents that have their precision in G is flat for these alone.
        if s[i] == FLAT_STD and not sums[p.diagonal[i]] * s[i] ** 2 > _FLAT:
            return False
    log_det = eliminate(
        p.starts, p.rows, p.cols, p.runs, sums[:n_flat], s, w.values, w.border, w.corner, half,
        LARGEST_CORNER,
    )  # fmt: skip
    if not math.isfinite(log_det):
        return False
    fit = 0.0
    for i in range(size):
        fit += half[i] * half[i]
    if not _error(p, w, fit) <= SMALL_ERROR:
        return False
    w.found[EVIDENCE] = 0.5 * (fit - log_det)
    w.found[FIT] = fit
    w.found[REST] = linear - square + p.log_flat
    w.found[BASE] = log_prior + base + linear - square
    value = w.found[BASE] + w.found[EVIDENCE]
    if how == BY_ENSEMBLE and math.isfinite(value):
        value += log_sum(p, w)
    if math.isfinite(value):
        w.found[VALUE] = value
    return True


@inner
def _error(p: Problem, w: Work, fit: float) -> float:
    """Return the estimated rounding error of the log evidence, see :mod:`.linalg.dense`."""
    size, n, trace, total = w.s.size, w.s.size - w.corner.shape[0], 0.0, 0.0
    # M is at least I, so that the trace of H⁻¹, Σ Mᵢᵢ (M⁻¹)ᵢᵢ, is at most that of M.
    for i in range(size):
        trace += 1.0 + w.sums[p.diagonal[i]] * w.s[i] ** 2
    bound = 0.5 * EPS * size * trace * (1.0 + fit) + EPS * fit
    if bound <= SMALL_ERROR:
        return bound
    for i in range(size):
        inverse = w.values[i] if i < n else 1.0 / w.corner[i - n, i - n]
        total += (1.0 + w.sums[p.diagonal[i]] * w.s[i] ** 2) * inverse**2
    screened = EPS * size * total * (1.0 + fit)
    return screened if screened <= SCREEN else _close_error(p, w, fit)


@inner_with_arrays
def _close_error(p: Problem, w: Work, fit: float) -> float:
    size = w.s.size
    diagonal = np.empty(size)
    for i in range(size):
        diagonal[i] = 1.0 + w.sums[p.diagonal[i]] * w.s[i] ** 2
    count = p.signs.shape[0]
    half, mean = np.empty((count, size)), w.half.copy().reshape(1, size)
    for k in range(count):
        for i in range(size):
            half[k, i] = math.sqrt(diagonal[i]) * p.signs[k, i]
    solve(p.starts, p.rows, w.values, w.border, w.corner, half, NO)
    solve(p.starts, p.rows, w.values, w.border, w.corner, mean, YES)
    trace, total = 0.0, 0.0
    for i in range(size):
        total += diagonal[i] * mean[0, i] ** 2
        for k in range(count):
            trace += half[k, i] ** 2 / count
    of_log_det = EPS * size * trace
    of_square = of_log_det * fit
    if not of_square <= SMALL_BOUND:
        of_square = EPS * math.sqrt(size) * total
    return 0.5 * (of_log_det + of_square) + EPS * fit
