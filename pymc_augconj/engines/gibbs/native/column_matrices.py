"""Matrices of the loop over scales of single latents, see :mod:`.column_steps`."""

from __future__ import annotations

import math

import numpy as np

from pymc_augconj.linalg.dense import EPS, SMALL_ERROR
from pymc_augconj.typing import Array

from .columns import Columns
from .compilation import inner, inner_with_arrays
from .density import log_likelihood
from .problem import Problem
from .work import BASE, EVIDENCE, REST, Work


@inner
def solve_triangle(L: Array, x: Array, transposed: bool) -> None:
    """Overwrite x with L⁻¹x or L⁻ᵀx."""
    for k in range(x.size):
        i = x.size - 1 - k if transposed else k
        row = L[i]
        if transposed:
            x[i] /= row[i]
            for j in range(i):
                x[j] -= row[j] * x[i]
        else:
            value = x[i]
            for j in range(i):
                value -= row[j] * x[j]
            x[i] = value / row[i]


@inner
def find_gain(p: Problem, c: Columns, w: Work, j: int) -> float:
    """Return the gain of a column; NaN where a standard deviation is negative."""
    r = w.registers
    return r[c.gains[j]] if r[p.std[j]] >= 0.0 else math.nan


@inner_with_arrays
def predict_rows(p: Problem, c: Columns, w: Work, v: Array) -> bool:
    """Write the predictors of whitened latents at the registers; return whether all are finite."""
    u, finite = np.empty(v.size), True
    for j in range(v.size):
        u[j] = w.registers[c.gains[j]] * v[j]
    found = np.dot(c.X, u)
    for k in range(found.size):
        c.eta[k] = found[k] + w.registers[c.offset[k]]
        finite &= math.isfinite(c.eta[k])
    for k in range(c.not_exact.size):
        w.eta[0, k] = c.eta[c.not_exact[k]]
    return finite


@inner
def _log_base(c: Columns, w: Work) -> float:
    total = 0.0
    for k in range(c.base.size):
        total += w.registers[c.base_by[k]] * c.base[k]
    return total


@inner
def log_likelihood_of_rows(p: Problem, c: Columns, w: Work) -> float:
    """Return log p(y | η) at the predictors that were written last."""
    total = _log_base(c, w) + log_likelihood(p, w)
    for k in range(c.h.size):
        if c.of[k] < 0:
            by, eta = w.registers[c.factor[k]], c.eta[k]
            total += by * eta * (c.h[k] - 0.5 * c.lam[k] * eta)
    return total


@inner
def _read_sites(c: Columns, w: Work) -> tuple[float, float]:
    """Write h and λ about the offset; return Σ h o and ½ Σ λ o²."""
    linear, square = 0.0, 0.0
    for k in range(c.h.size):
        by, o = w.registers[c.factor[k]], w.registers[c.offset[k]]
        lam = by * c.lam[k] * (w.omega[c.of[k]] if c.of[k] >= 0 else 1.0)
        h = by * c.h[k] * (w.omega[c.h_of[k]] if c.h_of[k] >= 0 else 1.0)
        linear += h * o
        square += 0.5 * lam * o * o
        c.sites[0, k], c.sites[1, k] = h - lam * o, lam
    return linear, square


@inner_with_arrays
def factorize(matrix: Array, L: Array) -> float:
    """Write the Cholesky factor of a matrix; return Σ log Lᵢᵢ, NaN where there is none."""
    total, n = 0.0, matrix.shape[0]
    for i in range(n):
        if not (math.isfinite(matrix[i, i]) and matrix[i, i] > 0.0):
            return math.nan
    L[:] = np.linalg.cholesky(matrix)
    for i in range(n):
        total += math.log(L[i, i])
    return total


@inner_with_arrays
def condition(p: Problem, c: Columns, w: Work) -> bool:
    """Write the factor at the registers, and the log evidence; return whether it has digits."""
    R, D = c.X.shape
    linear, square = _read_sites(c, w)
    h, lam, n, finite = c.sites[0], c.sites[1], c.L.shape[0], True
    gain = np.empty(D)
    for j in range(D):
        gain[j] = find_gain(p, c, w, j)
        finite &= math.isfinite(gain[j])
    for k in range(R):
        finite &= math.isfinite(h[k]) and 0.0 < lam[k] < math.inf
    if not finite:
        return False
    for k in range(R):
        for j in range(D):
            c.Phi[k, j] = c.X[k, j] * gain[j]
    total, size = 0.0, c.border.size
    if c.inside.size == 0:
        weighted = np.empty((R, D))
        for k in range(R):
            for j in range(D):
                weighted[k, j] = lam[k] * c.Phi[k, j]
        matrix = np.dot(c.Phi.T, weighted)
        for j in range(D):
            total += matrix[j, j]
            matrix[j, j] += 1.0
        fit = np.dot(h, c.Phi)
        for j in range(D):
            c.z[0, j] = fit[j]
    else:
        own = c.Phi if size == 0 else np.ascontiguousarray(c.Phi[:, c.inside])
        matrix = np.dot(own, own.T)
        for k in range(R):
            total += lam[k] * matrix[k, k]
            matrix[k, k] += 1.0 / lam[k]
            c.z[0, k] = h[k] / lam[k]
            for i in range(size):
                c.z[1 + i, k] = c.Phi[k, c.border[i]]
    # Where C is far from diagonal, or any number is large, the step is Python's.
    if not EPS * n * total <= SMALL_ERROR:
        return False
    evidence, known = -factorize(matrix, c.L), 0.0
    for i in range(size + 1):
        solve_triangle(c.L, c.z[i], False)
    fitted = np.dot(c.z[0], c.z[0])
    if c.inside.size == 0:
        evidence += 0.5 * fitted
    else:
        for k in range(R):
            evidence -= 0.5 * math.log(lam[k])
            known += h[k] * h[k] / lam[k]
        if size:
            of_border = np.dot(c.z[1:], c.z[1:].T)
            for i in range(size):
                of_border[i, i] += 1.0
                c.beta[i] = np.dot(c.z[1 + i], c.z[0])
            evidence -= factorize(of_border, c.M)
            solve_triangle(c.M, c.beta, False)
            fitted -= np.dot(c.beta, c.beta)
            solve_triangle(c.M, c.beta, True)
        evidence += 0.5 * (known - fitted)
    w.found[EVIDENCE], w.found[REST] = evidence, linear - square
    w.found[BASE] = w.registers[p.log_prior] + _log_base(c, w) + linear - square
    return EPS * n * total * (1.0 + fitted) <= SMALL_ERROR and math.isfinite(evidence)
