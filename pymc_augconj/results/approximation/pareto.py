"""k̂, the shape of the generalised Pareto distribution of the largest importance ratios.

References
----------
Vehtari, A., Simpson, D., Gelman, A., Yao, Y. & Gabry, J. (2024). Pareto smoothed importance
sampling. JMLR 25.
"""

from __future__ import annotations

import numpy as np
from arviz_stats.base import array_stats

from pymc_augconj.typing import Array

__all__ = ["pareto_k"]


def pareto_k(log_ratios: Array) -> float:
    """Return k̂; −∞ where the largest are equal, and ∞ where one is NaN or all ratios are zero."""
    if np.isnan(log_ratios).any() or not np.isfinite(log_ratios.max(initial=-np.inf)):
        return np.inf
    if np.ptp(log_ratios) < 1e-12:
        return -np.inf
    lowest = log_ratios[np.isfinite(log_ratios)].min()
    try:
        # ArviZ takes log likelihoods that are left out, minus the log ratios.
        return float(array_stats.psislw(-np.maximum(log_ratios, lowest))[1])
    except ValueError:
        # Its refusal of a tail of equal values: the ratios are bounded.
        return -np.inf
