"""Inducing inputs by k-means, and rates of natural-gradient steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2

__all__ = ["default_rate", "inducing_inputs", "rate_at"]

Array = NDArray[np.float64]

# Robbins and Monro's (delay, forgetting): nearly the average over all minibatches so far. Measured
# on 180 000 logistic observations with M = 200, distance of the bound from the best one after 400
# iterations of 1000 observations: 50 nats, and 50 to 90 with a forgetting of 1 and delays from 1 to
# 2; 300 with a rate that stays above 0.05. Of 100 observations, 3000 iterations: 300.
RATE = (1.0, 0.9)
# Where hyperparameters are learned and the data gone through several times, minibatches of other
# hyperparameters are to be forgotten sooner. Measured after 1000 iterations of 256 or 500 of 5000
# to 20 000 observations (Student-t, Poisson, logistic in one and two dimensions), nats below the
# best bound: 54, 39, 2, 39 with the former, 11, 7, 1, 13 with this.
FORGETFUL_RATE = (10.0, 0.75)
_SEVERAL = 5.0

# Inputs that k-means looks at: enough for its centres, and a second of time at most.
_LARGEST_SAMPLE = 20_000


def rate_at(rate: float | tuple[float, float], iteration: int) -> float:
    """Return ρ_t for iteration t = 0, 1, …."""
    if not isinstance(rate, tuple):
        return rate
    delay, forgetting = rate
    return (1.0 + iteration / delay) ** -forgetting


def default_rate(passes: float, *, learned: bool) -> tuple[float, float]:
    """Return (delay, forgetting) for a number of passes over the data.

    Parameters
    ----------
    passes : float
        Observations of all minibatches over those that there are.
    learned : bool
        Whether hyperparameters or inducing inputs move.
    """
    return FORGETFUL_RATE if learned and passes >= _SEVERAL else RATE


def inducing_inputs(rng: np.random.Generator, X: Array, size: int) -> Array:
    """Choose inducing inputs among and between the rows of X by k-means++.

    Parameters
    ----------
    rng : Generator
    X : ndarray, shape (n, d)
        A memory map is read in part.
    size : int
        M; all of X if it has no more distinct rows.

    Returns
    -------
    ndarray, shape (M, d)

    References
    ----------
    Arthur, D. & Vassilvitskii, S. (2007). k-means++: the advantages of careful seeding. SODA.
    """
    n = len(X)
    rows = np.arange(n)
    if n > _LARGEST_SAMPLE:
        rows = np.sort(rng.choice(n, size=max(_LARGEST_SAMPLE, 2 * size), replace=False))
    sample = np.unique(np.asarray(X[rows], dtype=float), axis=0)
    if len(sample) <= size:
        return sample
    # Distances in units of each input's spread, as a kernel with a length scale apiece has them.
    spread = sample.std(axis=0)
    spread[spread == 0.0] = 1.0
    centres, _ = kmeans2(sample / spread, size, minit="++", iter=10, rng=rng, missing="warn")
    return centres * spread
