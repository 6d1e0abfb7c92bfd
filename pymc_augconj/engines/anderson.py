"""Anderson acceleration of a fixed-point iteration over sites.

References
----------
Walker & Ni (2011), Anderson acceleration for fixed-point iterations. SIAM J. Numerical Analysis 49.
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.typing import Array

from .base import Evaluation

DEPTH = 6


class Anderson:
    """Extrapolates x ← g(x) from the last few pairs of x and g(x) − x, least squares weighted."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget every pair."""
        self._x: list[Array] = []
        self._step: list[Array] = []

    def propose(self, x: Array, step: Array, weights: Array) -> Array | None:
        """Return the extrapolated x, or None with too few pairs; remembers (x, step)."""
        self._x = [*self._x[-DEPTH:], x]
        self._step = [*self._step[-DEPTH:], step]
        if len(self._x) < 2:
            return None
        dx = np.diff(np.stack(self._x, axis=1), axis=1)
        d_step = np.diff(np.stack(self._step, axis=1), axis=1)
        scaled = weights[:, None] * d_step
        coefficients = np.linalg.lstsq(scaled, weights * step, rcond=1e-10)[0]
        return x + step - (dx + d_step) @ coefficients


def extrapolate(anderson: Anderson, current: Evaluation) -> tuple[Array, Array] | None:
    """Return extrapolated sites, or None."""
    # In units of q: the effect of changing one site on its marginal.
    std = np.sqrt(current.var)
    weights = np.concatenate([std, current.precision_units])
    x = np.concatenate([current.h, current.lam])
    step = np.concatenate([current.target_h, current.target_lam]) - x
    proposal = anderson.propose(x, step, weights)
    if proposal is None or not np.isfinite(proposal).all():
        return None
    n_rows = current.h.size
    h, lam = proposal[:n_rows], proposal[n_rows:]
    # A precision stays nonnegative if the sites and their targets have it nonnegative.
    diagonal = lam[:n_rows]
    least = 0.5 * np.minimum(current.lam, current.target_lam)[:n_rows]
    lam[:n_rows] = np.where(least >= 0.0, np.maximum(diagonal, least), diagonal)
    return h, lam
