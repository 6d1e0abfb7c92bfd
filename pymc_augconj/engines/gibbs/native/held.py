"""Held sites in the native loop: r, the vectors ν_k and elliptical slices of :mod:`..tilted`."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from pymc_augconj.linalg.sparse_kernels import multiply, solve
from pymc_augconj.python_mode.tape_kernel import run_rows
from pymc_augconj.typing import Array

from .problem import Problem
from .work import Work

__all__ = [
    *("begin_ensemble", "choose", "draw_by_slices", "log_density", "log_sum", "predict"),
    *("read_known", "read_parameters", "residual", "square_of"),
]

# As in :mod:`..elliptical`.
_LARGEST_TRIALS = 100


@njit(cache=True, error_model="numpy")
def _read(p: Problem, w: Work, part: int) -> None:
    for e in range(p.given.size):
        w.file[p.given[e]] = w.registers[p.given_by[e]]
    _run(p, w, part)


@njit(cache=True, error_model="numpy")
def _run(p: Problem, w: Work, part: int) -> None:
    for i in range(p.tables.shape[0]):
        t = p.tables[i]
        n = t[1] - t[0]
        r = w.file[t[2] : t[2] + t[3] * n].reshape(t[3], n)
        run_rows(p.row_code, t[4 + part], t[5 + part], r)


@njit(cache=True, error_model="numpy")
def read_known(p: Problem, w: Work) -> None:
    """Compute what depends on nothing that changes."""
    _read(p, w, 0)


@njit(cache=True, error_model="numpy")
def read_parameters(p: Problem, w: Work) -> None:
    """Compute what depends on the parameters in the registers."""
    if p.tables.shape[0]:
        _read(p, w, 1)


@njit(cache=True, error_model="numpy")
def log_density(p: Problem, w: Work, eta: Array) -> float:
    """Return Σ log p(y | η) of what has held sites."""
    total = 0.0
    for i in range(p.tables.shape[0]):
        t = p.tables[i]
        for k in range(t[0], t[1]):
            w.file[t[8] + k - t[0]] = eta[k]
    _run(p, w, 2)
    for i in range(p.tables.shape[0]):
        t = p.tables[i]
        for k in range(t[1] - t[0]):
            total += w.file[t[9] + k]
    return total


@njit(cache=True, error_model="numpy")
def residual(p: Problem, w: Work, eta: Array) -> float:
    """Return r at the predictors of what has held sites; −∞ outside the support."""
    total, count, first = log_density(p, w, eta), eta.size, p.number.size
    for k in range(count):
        lam, h = w.omega[first + k], w.omega[p.offsets.size + first + k]
        total -= eta[k] * (h - 0.5 * lam * eta[k])
    return total if math.isfinite(total) else -math.inf


@njit(cache=True, error_model="numpy")
def predict(p: Problem, w: Work, v: Array, eta: Array) -> bool:
    """Write the last predictors, as many as there is room for; return whether all are finite.

    Those of held sites are the last ones.
    """
    r, is_finite, first = w.registers, True, p.offsets.size - eta.size
    for k in range(first, p.offsets.size):
        total = r[p.offsets[k]]
        for e in range(p.entries[k], p.entries[k + 1]):
            i = p.columns[e]
            total += p.numbers[e] * r[p.multiples[e]] * w.s[i] * v[i]
        eta[k - first] = total
        is_finite &= math.isfinite(total)
    return is_finite


@njit(cache=True, error_model="numpy")
def _solved(p: Problem, w: Work, v: Array) -> Array:
    """Return ν of the latents v."""
    x = multiply(p.starts, p.rows, w.values, w.border, w.corner, v.copy().reshape(1, v.size), True)
    return x[0] - w.half


@njit(cache=True, error_model="numpy")
def square_of(p: Problem, w: Work, v: Array) -> float:
    """Return |ν|² of the latents v."""
    nu, total = _solved(p, w, v), 0.0
    for i in range(v.size):
        total += nu[i] * nu[i]
    return total


@njit(cache=True, error_model="numpy")
def _applied(p: Problem, w: Work, nu: Array) -> Array:
    """Return the latents of each row of ν."""
    x = np.empty(nu.shape)
    for k in range(nu.shape[0]):
        for i in range(nu.shape[1]):
            x[k, i] = w.half[i] + nu[k, i]
    solve(p.starts, p.rows, w.values, w.border, w.corner, x, True)
    return x


@njit(cache=True, error_model="numpy")
def begin_ensemble(rng: np.random.Generator, p: Problem, w: Work, v: Array) -> None:
    """Draw all ν_k, given the present latents."""
    w.nu[0] = _solved(p, w, v)
    for k in range(1, w.nu.shape[0]):
        for i in range(v.size):
            w.nu[k, i] = rng.standard_normal()


@njit(cache=True, error_model="numpy")
def log_sum(p: Problem, w: Work) -> float:
    """Return log Σ_k exp r(f(θ, ν_k)), and write its terms."""
    x, eta = _applied(p, w, w.nu), np.empty(p.offsets.size - p.number.size)
    largest, total = -math.inf, 0.0
    for k in range(w.ratios.size):
        predict(p, w, x[k], eta)
        w.ratios[k] = residual(p, w, eta)
        largest = max(largest, w.ratios[k])
    if largest == -math.inf:
        return largest
    for k in range(w.ratios.size):
        total += math.exp(w.ratios[k] - largest)
    return largest + math.log(total)


@njit(cache=True, error_model="numpy")
def choose(rng: np.random.Generator, p: Problem, w: Work, v: Array) -> None:
    """Draw κ; overwrite v with its latents."""
    best, at = -math.inf, 0
    for k in range(w.ratios.size):
        # NumPy's draw of a Gumbel variable.
        u = 1.0 - rng.random()
        while u == 1.0:
            u = 1.0 - rng.random()
        value = w.ratios[k] - math.log(-math.log(u))
        if value > best:
            best, at = value, k
    v[:] = _applied(p, w, w.nu[at : at + 1])[0]


@njit(cache=True, error_model="numpy")
def draw_by_slices(
    rng: np.random.Generator, p: Problem, w: Work, v: Array, slices: int
) -> tuple[float, int]:
    """Overwrite v with the next latents, given the sites; return r there, and the evaluations."""
    size, count, trials = v.size, p.offsets.size - p.number.size, 0
    nu = np.zeros((slices + 1, size))
    for k in range(1, slices + 1):
        for i in range(size):
            nu[k, i] = rng.standard_normal()
    # The first is the mean.
    x, centre, here = _applied(p, w, nu), np.empty(count), np.empty(count)
    there, eta = np.empty(count), np.empty(count)
    predict(p, w, v, here)
    value = residual(p, w, here)
    predict(p, w, x[0], centre)
    for i in range(count):
        here[i] -= centre[i]
    for i in range(size):
        v[i] -= x[0, i]
    for k in range(1, slices + 1):
        predict(p, w, x[k], there)
        level = value + math.log1p(-rng.random())
        phi = 2.0 * math.pi * rng.random()
        lower, upper = phi - 2.0 * math.pi, phi
        done, cos, sin = 0, 1.0, 0.0
        while done < _LARGEST_TRIALS:
            done += 1
            cos, sin = math.cos(phi), math.sin(phi)
            for i in range(count):
                eta[i] = centre[i] + cos * here[i] + sin * (there[i] - centre[i])
            found = residual(p, w, eta)
            if level < found < math.inf:
                value = found
                break
            if phi < 0.0:
                lower = phi
            else:
                upper = phi
            phi = lower + (upper - lower) * rng.random()
            cos, sin = 1.0, 0.0
        trials += done
        for i in range(size):
            v[i] = cos * v[i] + sin * (x[k, i] - x[0, i])
        for i in range(count):
            here[i] = cos * here[i] + sin * (there[i] - centre[i])
    for i in range(size):
        v[i] += x[0, i]
    return value, trials
