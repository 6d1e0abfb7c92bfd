"""The Numba loops of :mod:`.state_space`, in its notation."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, Index

from .state_space_of_two import filter_two, load_input, pass_of_two, simulate_two

# Scaled gaps s below which the process noise of the first entry of ν = 3/2 and 5/2 comes from
#
#     ∫₀ˢ uᵏ exp(−2u) du = exp(−2s) sᵏ⁺¹/(k+1) Σⱼ (2s)ʲ (k+1)!/(k+1+j)!,        k = 2, 4,
#
# where the terms that are left out are below 1e-17 of the sum; and its coefficients.
_SHORT, _TERMS = 1.0, 24
_SERIES = np.array(
    [[1.0 / math.prod(range(k + 2, k + 2 + j)) for j in range(_TERMS, -1, -1)] for k in (2, 4)]
)


def transitions(orders: Index, rates: Array, gaps: Array) -> tuple[Array, Array]:
    """Return A and the process noise of every gap, shape (gaps, d, d), for unit variances."""
    # NumPy's own arrays use memory again, where Numba's are mapped anew; two as one, as the memory
    # of a second large one is given back.
    d, new, o = int(orders.sum()), np.empty if orders.size == 1 else np.zeros, 0
    A, Q = new((2, gaps.size, d, d))
    for order, rate in zip(orders, rates, strict=True):
        scaled, series = rate * gaps, np.empty(gaps.size)
        if order > 1:
            _sum_series(scaled, _SERIES[order - 2], series)
        _WRITERS[order - 1](scaled, np.exp(-scaled), series, A, Q, o)
        o += order
    return A, Q


@njit(cache=True)
def _sum_series(gaps: Array, coefs: Array, found: Array) -> None:
    # Alone, so that it runs in vectors of the processor.
    for g in range(gaps.size):
        x, total = 2.0 * gaps[g], 0.0
        for j in range(_TERMS + 1):
            total = total * x + coefs[j]
        found[g] = total


@njit(cache=True)
def _write_first_order(
    gaps: Array, decays: Array, series: Array, A: Array, Q: Array, o: int
) -> None:
    for g in range(gaps.size):
        A[g, o, o], Q[g, o, o] = decays[g], -math.expm1(-2.0 * gaps[g])


@njit(cache=True)
def _write_second_order(
    gaps: Array, decays: Array, series: Array, A: Array, Q: Array, o: int
) -> None:
    for g in range(gaps.size):
        s, e = gaps[g], decays[g]
        end = e * e
        first = (4.0 / 3.0) * end * s**3 * series[g]
        if s >= _SHORT:
            first = 1.0 - end * (1.0 + 2.0 * s * (1.0 + s))
        A[g, o, o], A[g, o, o + 1] = e * (1.0 + s), e * s
        A[g, o + 1, o], A[g, o + 1, o + 1] = -e * s, e * (1.0 - s)
        # The others follow by parts.
        Q[g, o, o], Q[g, o + 1, o + 1] = first, first + 4.0 * s * end
        Q[g, o, o + 1] = Q[g, o + 1, o] = 2.0 * s * s * end


@njit(cache=True)
def _write_third_order(
    gaps: Array, decays: Array, series: Array, A: Array, Q: Array, o: int
) -> None:
    for g in range(gaps.size):
        s, e = gaps[g], decays[g]
        end, t = e * e, 0.5 * s * s
        first, c = (4.0 / 15.0) * end * s**5 * series[g], (16.0 / 3.0) * s * end
        if s >= _SHORT:
            first = 1.0 - end * (1.0 + 2.0 * s * (1.0 + s * (1.0 + s * (2.0 + s) / 3.0)))
        A[g, o, o], A[g, o, o + 1], A[g, o, o + 2] = e * (1.0 + s + t), e * (s + 2.0 * t), e * t
        A[g, o + 1, o], A[g, o + 1, o + 1] = -e * t, e * (1.0 + s - 2.0 * t)
        A[g, o + 1, o + 2], A[g, o + 2, o] = e * (s - t), e * (t - s)
        A[g, o + 2, o + 1], A[g, o + 2, o + 2] = e * (2.0 * t - 3.0 * s), e * (1.0 - 2.0 * s + t)
        Q[g, o, o], Q[g, o + 2, o + 2] = first, first + c * (1.0 - s + s * s)
        Q[g, o, o + 1] = Q[g, o + 1, o] = 0.125 * c * s**3
        Q[g, o, o + 2] = Q[g, o + 2, o] = c * s * s * (1.0 - s) / 6.0 - first / 3.0
        Q[g, o + 1, o + 1] = first / 3.0 + c * s * s * (4.0 - s) / 12.0
        Q[g, o + 1, o + 2] = Q[g, o + 2, o + 1] = 0.5 * c * s * (1.0 - 0.5 * s) ** 2


_WRITERS = _write_first_order, _write_second_order, _write_third_order


class Passes(NamedTuple):
    """The loops for states of one dimension, or of any.

    ``filter`` writes s, s without the extra noise, and the gains, and overwrites rows x with
    s⁻¹ L⁻¹ x: two chains of operations take no longer than one. ``forward`` and ``backward``
    overwrite rows of values in order with products of L or, unless they are products, its inverse
    with D^½ = ``scale`` on its right; and of Lᵀ or its inverse with it on its left. ``simulate``
    multiplies rows x by a factor, and overwrites others with s⁻¹ L⁻¹ of their sum, whose largest
    entry it returns.

    ``loaded`` are the loadings of every input, (n, B), or of all, (1, B), and for each process a
    group of the state: its first entry o, its order m, the first entry q of its block in A, Q and
    P, the number L of its copies, and its first loading. The entries of a group are m times L, and
    the first L have the loadings.
    """

    filter: Any
    forward: Any
    backward: Any
    variances: Any
    simulate: Any


@cache
def passes(size: int) -> Passes:
    """Return the loops for one copy of each process and ``size`` entries, which LLVM unrolls.

    Zero is any size, with loadings of every input.
    """
    if size == 2:
        backward = pass_of_two(False)
        return Passes(filter_two, pass_of_two(True), backward, _variances(2), simulate_two)
    forward, by_size = _pass(size, True), _filter(size)

    def filter_first(*given: Any) -> None:
        (A, _, _, step, loaded, *_, pivots, _, gain), rows = given[:-1], given[-1]
        by_size(*given[:-1])
        if len(rows):
            forward(A, step, loaded, gain, 1.0 / pivots, rows, False)

    return Passes(filter_first, forward, _pass(size, False), _variances(size), _simulate(size))


@njit(cache=True, inline="always")
def _move(
    a: Array, groups: Index, x: Array, width: int, is_transpose: bool, size: int, found: Array
) -> None:
    """Write the product of the blocks of A, or their transposes, with rows of ``width`` in x.

    With ``size`` its transpose.
    """
    if size > 0:
        for j in range(size):
            for c in range(width):
                total = 0.0
                for k in range(size):
                    total += (a[k, j] if is_transpose else a[j, k]) * x[k * width + c]
                found[c * size + j] = total
    else:
        for o, m, q, L, _ in groups:
            for j in range(m):
                to = found[(o + j * L) * width : (o + j * L + L) * width]
                to[:] = 0.0
                for k in range(m):
                    factor = a[q + k, q + j] if is_transpose else a[q + j, q + k]
                    start = x[(o + k * L) * width : (o + k * L + L) * width]
                    for c in range(to.size):
                        to[c] += factor * start[c]


@njit(cache=True, inline="always")
def _congruence(
    a: Array, groups: Index, V: Array, flat: tuple[Array, Array], is_transpose: bool, size: int
) -> None:
    """Overwrite a symmetric V with B V Bᵀ for B of the blocks of A, or of their transposes.

    ``flat`` are V and a matrix of its size for the product B V, as vectors.
    """
    if size > 0:
        _move(a, groups, flat[0], size, is_transpose, size, flat[1])
        _move(a, groups, flat[1], size, is_transpose, size, flat[0])
    else:
        for _ in range(2):
            _move(a, groups, flat[0], len(V), is_transpose, size, flat[1])
            for j in range(len(V)):
                for k in range(len(V)):
                    V[j, k] = flat[1][k * len(V) + j]


@njit(cache=True, inline="always")
def _product(V: Array, x: Array, size: int, found: Array) -> float:
    """Write V x for a symmetric V, and return xᵀV x."""
    found[:] = 0.0
    for j in range(size):
        factor, row = x[j], V[j]
        for k in range(size):
            found[k] += factor * row[k]
    square = 0.0
    for j in range(size):
        square += found[j] * x[j]
    return square


def _filter(size: int) -> Any:
    @njit(cache=True, error_model="numpy")
    def run_filter(
        A: Array, Q: Array, P: Array, step: Index, loaded: tuple[Array, Index], own: float,
        extra: Array, pivots: Array, prior: Array, gain: Array,
    ) -> None:  # fmt: skip
        h, groups = loaded
        d = size if size > 0 else gain.shape[1]
        V, c, load = np.zeros((d, d)), np.zeros(d), np.zeros(d)
        flat = V.ravel(), np.zeros(d * d)
        load_input(h, groups, 0, load)
        for i in range(step.size):
            g = step[i]
            if g < 0:
                V[:, :] = 0.0
            else:
                _congruence(A[g], groups, V, flat, False, size)
            new = P if g < 0 else Q[g]
            if size > 0:
                for j in range(d):
                    for k in range(d):
                        V[j, k] += new[j, k]
            else:
                for o, m, q, L, _ in groups:
                    for j in range(m):
                        for k in range(m):
                            for b in range(L):
                                V[o + j * L + b, o + k * L + b] += new[q + j, q + k]
            if size == 0:
                load_input(h, groups, i, load)
            p = own + _product(V, load, d, c)
            s = p + extra[i]
            prior[i], pivots[i] = p, s
            for j in range(d):
                factor = c[j] / s
                gain[i, j] = factor
                for k in range(d):
                    V[j, k] -= factor * c[k]

    return run_filter


def _pass(size: int, is_forward: bool) -> Any:
    @njit(cache=True)
    def run(
        A: Array, step: Index, loaded: tuple[Array, Index], gain: Array, scale: Array,
        rows: Array, is_product: bool,
    ) -> None:  # fmt: skip
        h, groups = loaded
        n, d = step.size, size if size > 0 else gain.shape[1]
        state, moved, load = np.zeros((rows.shape[0], d)), np.zeros(d), np.zeros(d)
        load_input(h, groups, 0, load)
        for at in range(n):
            i = at if is_forward else n - 1 - at
            g = step[i] if is_forward else (step[i + 1] if at > 0 else -1)
            if size == 0:
                load_input(h, groups, i, load)
            # What the state is read by, and what a value moves it by.
            first, second = (load, gain[i]) if is_forward else (gain[i], load)
            for r in range(rows.shape[0]):
                if g >= 0:
                    _move(A[g], groups, state[r], 1, not is_forward, size, moved)
                else:
                    moved[:] = 0.0
                mean, x = 0.0, rows[r, i]
                for j in range(d):
                    mean += first[j] * moved[j]
                if is_forward:
                    e = x * scale[i] if is_product else x - mean
                    rows[r, i] = e + mean if is_product else e * scale[i]
                else:
                    e = x if is_product else x * scale[i] - mean
                    rows[r, i] = (e + mean) * scale[i] if is_product else e
                for j in range(d):
                    state[r, j] = moved[j] + second[j] * e

    return run


def _simulate(size: int) -> Any:
    @njit(cache=True)
    def simulate(
        A: Array, step: Index, loaded: tuple[Array, Index], of_x: Array, scale: Array, gain: Array,
        pivots: Array, x: Array, away: Array,
    ) -> float:  # fmt: skip
        h, groups = loaded
        d = size if size > 0 else gain.shape[1]
        state, moved, load = np.zeros((2, len(x), d)), np.zeros((2, d)), np.zeros(d)
        largest = 0.0
        load_input(h, groups, 0, load)
        for i in range(step.size):
            g, inverse = step[i], 1.0 / pivots[i]
            if size == 0:
                load_input(h, groups, i, load)
            for r in range(len(x)):
                for k in range(2):
                    if g >= 0:
                        _move(A[g], groups, state[k, r], 1, False, size, moved[k])
                    else:
                        moved[k] = 0.0
                mean, known = 0.0, 0.0
                for j in range(d):
                    mean += load[j] * moved[0, j]
                    known += load[j] * moved[1, j]
                e = x[r, i] * scale[i]
                x[r, i] = e + mean
                w = away[r, i] + x[r, i]
                largest = max(largest, abs(w))
                new = w - known
                away[r, i] = new * inverse
                for j in range(d):
                    state[0, r, j] = moved[0, j] + of_x[i, j] * e
                    state[1, r, j] = moved[1, j] + gain[i, j] * new
        return largest

    return simulate


def _variances(size: int) -> Any:
    @njit(cache=True)
    def variances(
        A: Array, step: Index, loaded: tuple[Array, Index], gain: Array, pivots: Array,
        prior: Array, extra: Array, found: Array,
    ) -> None:  # fmt: skip
        h, groups = loaded
        n, d = step.size, size if size > 0 else gain.shape[1]
        N, b, load = np.zeros((d, d)), np.zeros(d), np.zeros(d)
        flat = N.ravel(), np.zeros(d * d)
        load_input(h, groups, 0, load)
        for i in range(n - 1, -1, -1):
            g = step[i + 1] if i + 1 < n else -1
            if g >= 0:
                _congruence(A[g], groups, N, flat, True, size)
            else:
                N[:, :] = 0.0
            if size == 0:
                load_input(h, groups, i, load)
            # b = N k, and with it kᵀN k.
            square = _product(N, gain[i], d, b)
            own = extra[i]
            found[i] = own * (prior[i] / pivots[i]) - (own * square) * own
            for j in range(d):
                for k in range(d):
                    N[j, k] -= load[j] * b[k] + b[j] * load[k]
                    N[j, k] += load[j] * load[k] * (square + 1.0 / pivots[i])

    return variances
