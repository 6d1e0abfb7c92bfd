"""The mean absolute value of a normal variable, which two likelihoods with a kink share.

Not a likelihood. For e ~ N(m, v), with Φ and φ the standard normal's,

    E|e| = 2√v φ(m/√v) + m (2 Φ(m/√v) − 1),    ∂E|e|/∂m = 2 Φ(m/√v) − 1,
    ∂E|e|/∂v = φ(m/√v)/√v.
"""

from __future__ import annotations

import numpy as np
from scipy.special import erf

from pymc_augconj.typing import Array

__all__ = ["folded_normal"]

_SQRT_2 = np.sqrt(2.0)
_LOG_2PI = np.log(2.0 * np.pi)


def folded_normal(mean: Array, var: Array) -> tuple[Array, ...]:
    """Return E|e| for e ~ N(mean, var), and its derivatives by mean and by var; var > 0."""
    std = np.sqrt(var)
    density = np.exp(-0.5 * (mean / std) ** 2 - 0.5 * _LOG_2PI) / std
    slope = erf(mean / (std * _SQRT_2))
    return 2.0 * var * density + mean * slope, slope, density
