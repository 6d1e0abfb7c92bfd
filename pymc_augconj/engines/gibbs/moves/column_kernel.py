"""The compiled loop over scales of single latents, see :mod:`.given_latents`."""

from __future__ import annotations

import numpy as np
from numba import njit

from pymc_augconj.typing import Array, Index


@njit(cache=True)
def choose_in_turn(
    Q: Array, b: Array, log_prior: Array, growth: Array, noise: Array, chosen: Index
) -> float:
    """Choose a point of every entry; return the change of the log density.

    ``Q`` and ``b`` are those of all entries, and overwritten.
    """
    total, n = 0.0, b.size
    for j in range(n):
        best, gained = log_prior[0, j] + noise[0, j], 0.0
        for k in range(1, len(growth)):
            delta = growth[k, j]
            factor = 1.0 + delta * Q[j, j]
            # NaN is outside the support, too.
            if factor > 0.0:
                change = 0.5 * (delta * b[j] * b[j] / factor - np.log(factor))
                value = log_prior[k, j] + change
                if value + noise[k, j] > best:
                    best, gained = value + noise[k, j], value - log_prior[0, j]
                    chosen[j] = k
        total += gained
        c = growth[chosen[j], j]
        if c != 0.0:
            c /= 1.0 + c * Q[j, j]
            for i in range(j + 1, n):
                shift = c * Q[i, j]
                b[i] -= shift * b[j]
                for other in range(j + 1, n):
                    Q[i, other] -= shift * Q[j, other]
    return total
