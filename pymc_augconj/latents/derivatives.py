"""Sums of derivatives by entry of the point, and numerical derivatives where these are cheap.

The parameters of a likelihood are few, and a sum over observations costs O(n). Central differences
of fourth order with a step of 1/500 on the unconstrained scale have an error of 1e-11 of the fifth
derivative plus 1e-13 of the sum from rounding, both far below the resolution of an optimiser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from pymc_augconj.model import Key, Point
from pymc_augconj.typing import Array

__all__ = ["STENCIL", "accumulate", "difference_slopes"]

_STEP = 2e-3
#: Steps and weights of the central difference of fourth order.
STENCIL = ((-2.0, 1.0 / 12.0), (-1.0, -2.0 / 3.0), (1.0, 2.0 / 3.0), (2.0, -1.0 / 12.0))


def accumulate(total: dict[str, Array], terms: Mapping[str, Array]) -> None:
    """Add derivatives by entry of the point to those in ``total``, in place."""
    for name, term in terms.items():
        total[name] = total[name] + term if name in total else np.asarray(term)


def difference_slopes(
    function: Callable[[Point], float], point: Point, names: Iterable[Key]
) -> dict[Any, Array]:
    """Return the derivatives of ``function`` by the float entries ``names`` of the point."""
    slopes: dict[Any, Array] = {}
    for name in names:
        if not np.issubdtype(np.asarray(point[name]).dtype, np.floating):
            continue
        centre = np.asarray(point[name], dtype=float)
        slope = np.zeros(centre.shape)
        for where in np.ndindex(centre.shape):
            for steps, weight in STENCIL:
                moved = centre.copy()
                moved[where] += steps * _STEP
                slope[where] += weight * function({**point, name: moved}) / _STEP
        slopes[name] = slope
    return slopes
