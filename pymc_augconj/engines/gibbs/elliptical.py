"""Elliptical slice sampling of N(v; m, Σ) e^{r(v)}: no rejection, no tuning, no factorisation.

A fresh draw v* of N(m, Σ) and the present v span an ellipse around m that leaves N(m, Σ) as it is,

    v(φ) = m + (v − m) cos φ + (v* − m) sin φ,

and a point of it with r above a random level is found by shrinking an interval of φ towards φ = 0.

References
----------
Murray, Adams & MacKay (2010), Elliptical slice sampling. AISTATS.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

__all__ = ["elliptical_slice"]

# The interval shrinks by a half or so each time: by now the angle does not show in float64.
_LARGEST_TRIALS = 100


def elliptical_slice(
    rng: np.random.Generator, residual: Callable[[float, float], float], current: float
) -> tuple[float, float, float, int]:
    """Return where on the ellipse the slice sampler goes.

    Parameters
    ----------
    rng : numpy.random.Generator
    residual : callable
        r at (cos φ, sin φ); infinite or NaN outside the support.
    current : float
        r at φ = 0. Where it is −∞, any point of the support is accepted.

    Returns
    -------
    cos, sin : float
    value : float
        r there.
    trials : int
        Evaluations of r.
    """
    level = current + math.log1p(-rng.random())
    phi = 2.0 * math.pi * rng.random()
    lower, upper = phi - 2.0 * math.pi, phi
    for trials in range(1, _LARGEST_TRIALS + 1):
        cos, sin = math.cos(phi), math.sin(phi)
        value = residual(cos, sin)
        if level < value < math.inf:
            return cos, sin, value, trials
        if phi < 0.0:
            lower = phi
        else:
            upper = phi
        phi = lower + (upper - lower) * rng.random()
    return 1.0, 0.0, current, _LARGEST_TRIALS
