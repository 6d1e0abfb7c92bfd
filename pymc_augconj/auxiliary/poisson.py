"""Poisson counts of any mean, for the points that thinning removes."""

from __future__ import annotations

import numpy as np

from pymc_augconj.typing import Array, Generator

# NumPy refuses means above 9e18. Above this mean float64 cannot represent single counts, and the
# normal distribution is within 1e-8 of the Poisson distribution in total variation.
_MANY = 1e16


def random_poisson(rng: Generator, mean: Array) -> Array:
    """Draw independent n ~ Poisson(mean), as float64; exactly up to a mean of 1e16."""
    many = mean > _MANY
    if not np.any(many):
        return rng.poisson(mean).astype(float)
    counts = rng.poisson(np.where(many, 0.0, mean)).astype(float)
    return np.where(many, mean + np.sqrt(mean) * rng.standard_normal(mean.shape), counts)
