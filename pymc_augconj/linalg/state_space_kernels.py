"""The Numba loops of :mod:`.state_space`, in its notation."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, Index

# Scaled gaps below which the process noise comes from integrals.
_SHORT = 1.0
# Terms of their series that are left out are below 1e-17 of the sum; fewer for the shortest gaps.
_TERMS, _SHORTEST, _FEW_TERMS = 24, 1.0 / 16.0, 10
_INVERSES = np.append(0.0, 1.0 / np.arange(1.0, 64.0))


@njit(cache=True)
def _integrals(top: int, s: float, end: float, found: Array) -> None:
    """Write ∫₀ˢ uᵏ exp(−2u) du for k = 0 … top, with ``end`` = exp(−2s); all terms are positive."""
    x, total = 2.0 * s, 1.0
    for k in range(top + 1 + (_FEW_TERMS if s < _SHORTEST else _TERMS), top + 1, -1):
        total = 1.0 + (x * _INVERSES[k]) * total
    power = end
    for k in range(1, top + 1):
        power *= s
        found[k - 1] = power
    power *= s * total * _INVERSES[top + 1]
    for k in range(top, 0, -1):
        found[k], power = power, (2.0 * power + found[k - 1]) * _INVERSES[k]
    found[0] = power


@njit(cache=True)
def _of_second_order(s: float, e: float, A: Array, Q: Array, g: int, o: int, found: Array) -> None:
    """Write those of ν = 3/2 and unit variance."""
    a00, a01, a10, a11 = e * (1.0 + s), e * s, -e * s, e * (1.0 - s)
    A[g, o, o], A[g, o, o + 1], A[g, o + 1, o], A[g, o + 1, o + 1] = a00, a01, a10, a11
    if s < _SHORT:
        _integrals(2, s, e * e, found)
        q00, q01, q11 = (
            4.0 * found[2],
            4.0 * (found[1] - found[2]),
            4.0 * (found[0] - 2.0 * found[1] + found[2]),
        )
    else:
        q00, q11 = 1.0 - a00 * a00 - a01 * a01, 1.0 - a10 * a10 - a11 * a11
        q01 = -a00 * a10 - a01 * a11
    Q[g, o, o], Q[g, o, o + 1], Q[g, o + 1, o], Q[g, o + 1, o + 1] = q00, q01, q01, q11


@njit(cache=True)
def _of_third_order(s: float, e: float, A: Array, Q: Array, g: int, o: int, found: Array) -> None:
    """Write those of ν = 5/2 and unit variance."""
    t = 0.5 * s * s
    A[g, o, o], A[g, o, o + 1], A[g, o, o + 2] = e * (1.0 + s + t), e * (s + 2.0 * t), e * t
    A[g, o + 1, o], A[g, o + 1, o + 1] = -e * t, e * (1.0 + s - 2.0 * t)
    A[g, o + 1, o + 2], A[g, o + 2, o] = e * (s - t), e * (t - s)
    A[g, o + 2, o + 1], A[g, o + 2, o + 2] = e * (2.0 * t - 3.0 * s), e * (1.0 - 2.0 * s + t)
    if s < _SHORT:
        _integrals(4, s, e * e, found)
        c, i0, i1, i2, i3, i4 = 16.0 / 3.0, found[0], found[1], found[2], found[3], found[4]
        Q[g, o, o] = c * 0.25 * i4
        Q[g, o, o + 1] = c * (0.5 * i3 - 0.25 * i4)
        Q[g, o, o + 2] = c * (0.5 * i2 - i3 + 0.25 * i4)
        Q[g, o + 1, o + 1] = c * (i2 - i3 + 0.25 * i4)
        Q[g, o + 1, o + 2] = c * (i1 - 2.5 * i2 + 1.5 * i3 - 0.25 * i4)
        Q[g, o + 2, o + 2] = c * (i0 - 4.0 * i1 + 5.0 * i2 - 2.0 * i3 + 0.25 * i4)
    else:
        third = 1.0 / 3.0
        for i in range(3):
            # P Aᵀ
            b0 = A[g, o + i, o] - third * A[g, o + i, o + 2]
            b1 = third * A[g, o + i, o + 1]
            b2 = A[g, o + i, o + 2] - third * A[g, o + i, o]
            for j in range(i + 1):
                product = A[g, o + j, o] * b0 + A[g, o + j, o + 1] * b1 + A[g, o + j, o + 2] * b2
                Q[g, o + j, o + i] = -product
        Q[g, o, o] += 1.0
        Q[g, o, o + 2] -= third
        Q[g, o + 1, o + 1] += third
        Q[g, o + 2, o + 2] += 1.0
    Q[g, o + 1, o], Q[g, o + 2, o] = Q[g, o, o + 1], Q[g, o, o + 2]
    Q[g, o + 2, o + 1] = Q[g, o + 1, o + 2]


def transitions(orders: Index, variances: Array, rates: Array, gaps: Array) -> tuple[Array, Array]:
    """Return A and the process noise of every gap, shape (gaps, d, d)."""
    # NumPy's own arrays use memory again, where Numba's are mapped anew.
    d, new = int(orders.sum()), np.empty if orders.size == 1 else np.zeros
    A, Q = new((gaps.size, d, d)), new((gaps.size, d, d))
    decays = np.exp(-np.multiply.outer(rates, gaps))
    _write_transitions(orders, variances, rates, gaps, decays, A, Q)
    return A, Q


@njit(cache=True)
def _write_transitions(
    orders: Index, variances: Array, rates: Array, gaps: Array, decays: Array, A: Array, Q: Array
) -> None:
    integrals = np.empty(5)
    for g in range(gaps.size):
        o = 0
        for c in range(orders.size):
            s, e, order = rates[c] * gaps[g], decays[c, g], orders[c]
            if order == 1:
                A[g, o, o], Q[g, o, o] = e, -math.expm1(-2.0 * s)
            elif order == 2:
                _of_second_order(s, e, A, Q, g, o, integrals)
            else:
                _of_third_order(s, e, A, Q, g, o, integrals)
            for i in range(o, o + order):
                for j in range(o, o + order):
                    Q[g, i, j] *= variances[c]
            o += order


class Passes(NamedTuple):
    """The loops for states of one dimension.

    ``filter`` writes s, s without the extra noise, and the gains. ``forward`` and ``backward``
    overwrite rows of values in order with products of L or, unless they are products, its inverse
    with D^½ = ``scale`` on its right; and of Lᵀ or its inverse with it on its left.
    """

    filter: Any
    forward: Any
    backward: Any
    variances: Any


@cache
def passes(d: int) -> Passes:
    """Return the loops for states of dimension ``d``, which LLVM unrolls."""
    return Passes(_filter(d), _forward(d), _backward(d), _variances(d))


def _filter(d: int) -> Any:
    @njit(cache=True)
    def run_filter(
        A: Array, Q: Array, P: Array, step: Index, h: Array, own: float, extra: Array,
        pivots: Array, prior: Array, gain: Array,
    ) -> None:  # fmt: skip
        n = step.size
        V, W, c = np.zeros((d, d)), np.zeros((d, d)), np.zeros(d)
        for i in range(n):
            g = step[i]
            if g < 0:
                V[:, :] = P
            else:
                a, q = A[g], Q[g]
                for j in range(d):
                    for k in range(d):
                        total = 0.0
                        for m in range(d):
                            total += a[j, m] * V[m, k]
                        W[j, k] = total
                for j in range(d):
                    for k in range(j + 1):
                        total = q[j, k]
                        for m in range(d):
                            total += W[j, m] * a[k, m]
                        V[j, k] = total
                        V[k, j] = total
            p = own
            for j in range(d):
                total = 0.0
                for k in range(d):
                    total += V[j, k] * h[k]
                c[j] = total
                p += h[j] * total
            s = p + extra[i]
            prior[i], pivots[i] = p, s
            for j in range(d):
                gain[i, j] = c[j] / s
            for j in range(d):
                for k in range(d):
                    V[j, k] -= gain[i, j] * c[k]

    return run_filter


def _forward(d: int) -> Any:
    @njit(cache=True)
    def forward(
        A: Array, step: Index, h: Array, gain: Array, scale: Array, rows: Array, is_product: bool
    ) -> None:
        state, moved = np.zeros((rows.shape[0], d)), np.zeros(d)
        for i in range(step.size):
            g = step[i]
            for r in range(rows.shape[0]):
                mean = 0.0
                for j in range(d):
                    total = 0.0
                    if g >= 0:
                        for k in range(d):
                            total += A[g, j, k] * state[r, k]
                    moved[j] = total
                    mean += h[j] * total
                e = rows[r, i]
                if is_product:
                    e *= scale[i]
                    rows[r, i] = e + mean
                else:
                    e -= mean
                    rows[r, i] = e * scale[i]
                for j in range(d):
                    state[r, j] = moved[j] + gain[i, j] * e

    return forward


def _backward(d: int) -> Any:
    @njit(cache=True)
    def backward(
        A: Array, step: Index, h: Array, gain: Array, scale: Array, rows: Array, is_product: bool
    ) -> None:
        n = step.size
        slope, moved = np.zeros((rows.shape[0], d)), np.zeros(d)
        for i in range(n - 1, -1, -1):
            g = step[i + 1] if i + 1 < n else -1
            for r in range(rows.shape[0]):
                mean = 0.0
                for j in range(d):
                    total = 0.0
                    if g >= 0:
                        for k in range(d):
                            total += A[g, k, j] * slope[r, k]
                    moved[j] = total
                    mean += gain[i, j] * total
                x = rows[r, i]
                if is_product:
                    rows[r, i] = (x + mean) * scale[i]
                else:
                    x = x * scale[i] - mean
                    rows[r, i] = x
                for j in range(d):
                    slope[r, j] = moved[j] + h[j] * x

    return backward


def _variances(d: int) -> Any:
    @njit(cache=True)
    def variances(
        A: Array, step: Index, h: Array, gain: Array, pivots: Array, prior: Array, extra: Array,
        found: Array,
    ) -> None:  # fmt: skip
        n = step.size
        N, T, W = np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d))
        b = np.zeros(d)
        for i in range(n - 1, -1, -1):
            g = step[i + 1] if i + 1 < n else -1
            T[:, :] = 0.0
            if g >= 0:
                a = A[g]
                for j in range(d):
                    for k in range(d):
                        total = 0.0
                        for m in range(d):
                            total += N[j, m] * a[m, k]
                        W[j, k] = total
                for j in range(d):
                    for k in range(d):
                        total = 0.0
                        for m in range(d):
                            total += a[m, j] * W[m, k]
                        T[j, k] = total
            # b = T k, and with it kᵀT k.
            square = 0.0
            for j in range(d):
                total = 0.0
                for k in range(d):
                    total += T[j, k] * gain[i, k]
                b[j] = total
                square += gain[i, j] * total
            own = extra[i]
            found[i] = own * (prior[i] / pivots[i]) - (own * square) * own
            for j in range(d):
                for k in range(d):
                    N[j, k] = T[j, k] - h[j] * b[k] - b[j] * h[k]
                    N[j, k] += h[j] * h[k] * (square + 1.0 / pivots[i])

    return variances
