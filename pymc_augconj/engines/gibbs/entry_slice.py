"""Slice sampling of all entries of a vector at once, which are independent (Neal 2003).

Python's step calls the function, and the native loop compiles it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_augconj.typing import Array, Generator

# Of stepping out.
_MAX_STEPS = 100


def entry_slices(
    evaluate: Callable[[Any, Array, Array], None], where: Callable[..., Array] = np.where
) -> Callable[..., Any]:
    """Return a function of ``(given, rng, start, widths)`` that updates all entries.

    ``evaluate(given, x, value)`` writes their log densities at x. Intervals of length ``widths``
    grow by stepping out and shrink; with the next value it returns their lengths then.
    """

    def update(given: Any, rng: Generator, start: Array, widths: Array) -> tuple[Array, Array]:
        value = np.empty(start.size)
        evaluate(given, start, value)
        level = value - rng.standard_exponential(start.size)
        lower = start - widths * rng.random(start.size)
        upper = lower + widths
        to_the_left = np.floor(_MAX_STEPS * rng.random(start.size))
        for step in (-1.0, 1.0):
            end = lower if step < 0.0 else upper
            most = to_the_left if step < 0.0 else _MAX_STEPS - 1.0 - to_the_left
            grows, count = most > 0.0, 0
            while grows.any():
                # What does not grow any more is evaluated where it is.
                evaluate(given, end, value)
                grows &= value >= level
                end += step * widths * grows
                count += 1
                grows &= count < most
        x, searched = start, np.ones(start.size, np.bool_)
        while searched.any():
            at = where(searched, lower + (upper - lower) * rng.random(start.size), x)
            evaluate(given, at, value)
            # The start is in its own slice, whatever rounding says.
            searched &= ~((value >= level) | (at == start))
            x = where(searched, x, at)
            lower = where(searched & (at < start), at, lower)
            upper = where(searched & (at >= start), at, upper)
        return x, upper - lower

    return update
