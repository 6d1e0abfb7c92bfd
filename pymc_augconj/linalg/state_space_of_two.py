"""The loops of :mod:`.state_space_kernels` for states of two entries, which stay in registers.

These take a quarter to two thirds of the time. An operation waits for few others: of a solution
e = z − aᵀM x, with the state x, the next one is M x + b e = (I − b aᵀ)M x + b z, whose matrix does
not depend on x; and pivots are found from the covariance V of the state before it moves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, Index


@njit(cache=True)
def load_input(h: Array, groups: Index, i: int, found: Array) -> None:
    """Write the loadings of input i at their entries of the state."""
    for o, _, _, L, first in groups:
        for j in range(L):
            found[o + j] = h[i, first + j]


# Pivots of zero are found later.
@njit(cache=True, error_model="numpy", fastmath={"contract"})
def filter_two(
    A: Array, Q: Array, P: Array, step: Index, loaded: tuple[Array, Index], own: float,
    extra: Array, pivots: Array, prior: Array, gain: Array, rows: Array,
) -> None:  # fmt: skip
    """See :attr:`.Passes.filter`; v, c and w are the entries of V."""
    load, v, c, w, moved = np.zeros(2), 0.0, 0.0, 0.0, np.zeros((rows.shape[0], 2))
    load_input(*loaded, 0, load)
    h, k = load
    for i in range(step.size):
        g = step[i]
        if g < 0:
            v, c, w = P[0, 0], P[0, 1], P[1, 1]
            before = own + h * (h * v + k * c) + k * (h * c + k * w)
            moved[:] = 0.0
        else:
            a, b, q = A[g, 0], A[g, 1], Q[g]
            for r in range(rows.shape[0]):
                x, y = moved[r]
                moved[r, 0], moved[r, 1] = a[0] * x + a[1] * y, b[0] * x + b[1] * y
            # From V before it moves, as a division waits for it: with (x, y) = hᵀA.
            x, y = h * a[0] + k * b[0], h * a[1] + k * b[1]
            before = own + h * (h * q[0, 0] + k * q[0, 1]) + k * (h * q[0, 1] + k * q[1, 1])
            before += x * x * v + 2.0 * x * y * c + y * y * w
            v, c, w = (
                a[0] * a[0] * v + 2.0 * a[0] * a[1] * c + a[1] * a[1] * w + q[0, 0],
                a[0] * b[0] * v + (a[0] * b[1] + a[1] * b[0]) * c + a[1] * b[1] * w + q[0, 1],
                b[0] * b[0] * v + 2.0 * b[0] * b[1] * c + b[1] * b[1] * w + q[1, 1],
            )
        prior[i], pivots[i] = before, before + extra[i]
        inverse = 1.0 / pivots[i]
        first, second = h * v + k * c, h * c + k * w
        third, fourth = first * inverse, second * inverse
        gain[i, 0], gain[i, 1] = third, fourth
        for r in range(rows.shape[0]):
            e = rows[r, i] - (h * moved[r, 0] + k * moved[r, 1])
            rows[r, i] = e * inverse
            moved[r, 0] += third * e
            moved[r, 1] += fourth * e
        v, c = v - first * first * inverse, c - first * second * inverse
        w -= second * second * inverse


def pass_of_two(is_forward: bool) -> Any:
    """Return :attr:`.Passes.forward` or :attr:`.Passes.backward`."""

    @njit(cache=True, fastmath={"contract"})
    def run(
        A: Array, step: Index, loaded: tuple[Array, Index], gain: Array, scale: Array,
        rows: Array, is_product: bool,
    ) -> None:  # fmt: skip
        load, n = np.zeros(2), step.size
        load_input(*loaded, 0, load)
        for r in range(rows.shape[0]):
            x = y = 0.0
            for at in range(n):
                i = at if is_forward else n - 1 - at
                g = step[i] if is_forward else (step[i + 1] if at > 0 else -1)
                (a, b), (c, d) = (load, gain[i]) if is_forward else (gain[i], load)
                p = q = s = t = 0.0
                if g >= 0:
                    p, q, s, t = A[g, 0, 0], A[g, 0, 1], A[g, 1, 0], A[g, 1, 1]
                    if not is_forward:
                        q, s = s, q
                # The state is read by these.
                first, second = a * p + b * s, a * q + b * t
                mean = first * x + second * y
                z = rows[r, i] * scale[i] if is_product == is_forward else rows[r, i]
                e = z + mean if is_product else z - mean
                rows[r, i] = e if is_product == is_forward else e * scale[i]
                if not is_product:
                    p, q, s, t = p - c * first, q - c * second, s - d * first, t - d * second
                x, y = p * x + q * y + c * z, s * x + t * y + d * z

    return run


@njit(cache=True, fastmath={"contract"})
def simulate_two(
    A: Array, step: Index, loaded: tuple[Array, Index], of_x: Array, scale: Array, gain: Array,
    pivots: Array, x: Array, away: Array,
) -> float:  # fmt: skip
    """See :attr:`.Passes.simulate`."""
    load, largest = np.zeros(2), 0.0
    load_input(*loaded, 0, load)
    h, k = load
    for r in range(len(x)):
        u = v = y = z = 0.0
        for i in range(step.size):
            g, p, q, s, t = step[i], 0.0, 0.0, 0.0, 0.0
            if g >= 0:
                p, q, s, t = A[g, 0, 0], A[g, 0, 1], A[g, 1, 0], A[g, 1, 1]
            first, second = h * p + k * s, h * q + k * t
            e = x[r, i] * scale[i]
            x[r, i] = e + (first * u + second * v)
            u, v = p * u + q * v + of_x[i, 0] * e, s * u + t * v + of_x[i, 1] * e
            w = away[r, i] + x[r, i]
            largest = max(largest, abs(w))
            away[r, i] = (w - (first * y + second * z)) / pivots[i]
            c, d = gain[i]
            p, q, s, t = p - c * first, q - c * second, s - d * first, t - d * second
            y, z = p * y + q * z + c * w, s * y + t * z + d * w
    return largest
