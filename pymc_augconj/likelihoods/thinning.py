"""Formulas of likelihoods that are augmented by thinning, σ(η) = 1 − σ(−η), and Pólya–Gamma.

Not a likelihood. Under q(η) = N(m, v) the number of thinned points has a Poisson distribution of a
mean in proportion to

    σ̃ = exp(−m/2) / (2 cosh(c/2)),        c² = m² + v,

which is σ(−m) where v = 0, and less elsewhere.
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.typing import Array

__all__ = ["log_shrunk"]


def log_shrunk(mean: Array, var: Array) -> tuple[Array, Array]:
    """Return c and log σ̃; no digit of 1 − σ̃ = −expm1(log σ̃) is lost where it is small."""
    c = np.sqrt(mean**2 + var)
    # m + c, without cancellation where m < 0
    negative = mean < 0.0
    total = np.where(negative, var / np.where(negative, c - mean, 1.0), mean + c)
    return c, -0.5 * total - np.log1p(np.exp(-c))
