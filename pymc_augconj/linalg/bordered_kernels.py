"""The Numba loops of :mod:`.bordered`, whose names they have: n₁ sparse columns, n₂ dense ones."""

import math

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, Index

__all__ = ["factorize_scaled", "solve_transpose", "transpose_product"]


@njit(cache=True, error_model="numpy")
def factorize_scaled(
    n: int,
    n_border: int,
    starts: Index,
    rows: Index,
    cols: Index,
    targets: Index,
    flat: Array,
    s: Array,
    right: Array,
) -> tuple[Array, Array, Array, Array, float]:
    """Factorise I + S M S and solve L x = b; the logarithm of its determinant may be NaN.

    Returns
    -------
    values, border, corner, half, log_det
        As attributes of :class:`~.bordered.BorderedFactor`.
    """
    n_values = rows.size
    values = np.empty(n_values)
    for e in range(n):
        values[e] = flat[e] * s[e] * s[e] + 1.0
    for e in range(n, n_values):
        values[e] = flat[e] * s[rows[e]] * s[cols[e]]
    # The last column is b.
    sides = np.empty((n, n_border + 1))
    for i in range(n):
        for j in range(n_border):
            sides[i, j] = flat[n_values + i * n_border + j] * s[i] * s[n + j]
        sides[i, n_border] = right[i]
    log_det = _eliminate(starts, rows, targets, values, sides)
    start = n_values + n * n_border
    corner = np.empty((n_border, n_border))
    for i in range(n_border):
        for j in range(n_border):
            corner[i, j] = flat[start + i * n_border + j] * s[n + i] * s[n + j]
        corner[i, i] += 1.0
    half = np.empty(n + n_border)
    half[:n] = sides[:, n_border]
    half[n:] = right[n:]
    if n_border == 0:
        return values, sides[:, :0].copy(), corner, half, log_det
    if n > 0:
        taken = sides.T @ sides
        corner -= taken[:n_border, :n_border]
        half[n:] -= taken[n_border, :n_border]
    # A pivot that is not positive has made everything NaN, for which LAPACK has no error.
    if math.isnan(log_det):
        return values, sides[:, :n_border].copy(), corner, half, log_det
    corner = np.ascontiguousarray(np.linalg.cholesky(corner))
    for i in range(n_border):
        total = half[n + i]
        for j in range(i):
            total -= corner[i, j] * half[n + j]
        half[n + i] = total / corner[i, i]
        log_det += 2.0 * math.log(corner[i, i])
    return values, sides[:, :n_border].copy(), corner, half, log_det


@njit(cache=True, error_model="numpy")
def _eliminate(starts: Index, rows: Index, targets: Index, values: Array, sides: Array) -> float:
    """Turn B into L₁ and Cᵀ, b into L₁⁻¹ Cᵀ, L₁⁻¹ b; return log|B|, NaN if it has no factor."""
    log_det, target = 0.0, 0
    for j in range(starts.size - 1):
        pivot = values[j]
        if not 0.0 < pivot < math.inf:
            return math.nan
        log_det += math.log(pivot)
        inverse = 1.0 / math.sqrt(pivot)
        values[j] = inverse
        sides[j] *= inverse
        for a in range(starts[j], starts[j + 1]):
            values[a] *= inverse
            for b in range(starts[j], a + 1):
                values[targets[target]] -= values[a] * values[b]
                target += 1
            for k in range(sides.shape[1]):
                sides[rows[a], k] -= values[a] * sides[j, k]
    return log_det


@njit(cache=True, error_model="numpy")
def solve_transpose(
    starts: Index, rows: Index, values: Array, border: Array, corner: Array, x: Array
) -> Array:
    """Return L⁻ᵀ x."""
    n, n_border = border.shape
    solved = x.copy()
    for i in range(n_border - 1, -1, -1):
        solved[n + i] /= corner[i, i]
        for j in range(i):
            solved[n + j] -= corner[i, j] * solved[n + i]
    for i in range(n - 1, -1, -1):
        total = solved[i]
        for j in range(n_border):
            total -= border[i, j] * solved[n + j]
        for a in range(starts[i], starts[i + 1]):
            total -= values[a] * solved[rows[a]]
        solved[i] = total * values[i]
    return solved


@njit(cache=True, error_model="numpy")
def transpose_product(
    starts: Index, rows: Index, values: Array, border: Array, corner: Array, x: Array
) -> Array:
    """Return Lᵀ x."""
    n, n_border = border.shape
    product = np.zeros(x.size)
    for i in range(n):
        total = x[i] / values[i]
        for j in range(n_border):
            total += border[i, j] * x[n + j]
        for a in range(starts[i], starts[i + 1]):
            total += values[a] * x[rows[a]]
        product[i] = total
    for i in range(n_border):
        for j in range(i + 1):
            product[n + j] += corner[i, j] * x[n + i]
    return product
