"""Mean and variance of y from its distribution function, if its density cannot be integrated.

A censored y has atoms; a truncated y has a density with edges, which PyMC evaluates as 0/0 far from
η. With a = Q(p), b = Q(1 − p) for a small p, and c between them,

    E[y − c] = b − c − ∫ₐᵇ F dy,     E[(y − c)²] = (b − c)² − 2 ∫ₐᵇ (y − c) F dy,

where the probability beyond a and b is moved to a and b. Atoms and edges are usually there, so that
F is smooth between; the result is NaN if two quadrature rules disagree.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.quadrature.nodes import NODES, WEIGHTS
from pymc_augconj.typing import Array

from .mixtures import GroupedMixture, Mixture, quantiles

__all__ = ["moments_of_y"]


# p, far above the accuracy of distribution functions, and the largest relative change of the
# variance by moving this probability, which heavy tails exceed.
_TAIL, _TAIL_SHARE = 1e-8, 1e-5
# Intervals of 16 nodes, and the tolerated difference from half as many, in standard deviations.
_PANELS, _ACCURACY = 8, 1e-4


def moments_of_y(mixture: Mixture | GroupedMixture, size: int) -> tuple[Array, Array]:
    """Return mean and variance of y at each of ``size`` inputs; NaN where there are none.

    The distribution function is used if the density of a continuous y does not give them.
    """
    if isinstance(mixture, GroupedMixture):
        mean, var = np.empty(size), np.empty(size)
        for which, part in mixture.parts:
            mean[which], var[which] = moments_of_y(part, which.size)
        return mean, var
    mean, var = mixture.moments()
    unknown = np.flatnonzero(np.isnan(var))
    likelihood = mixture.likelihood
    if unknown.size and not (likelihood.discrete or likelihood.has_moments):
        mean, var = np.array(mean), np.array(var)
        # The distribution function may be missing, too.
        with suppress(AugmentationError):
            mean[unknown], var[unknown] = _by_distribution(mixture.at(unknown, {}), unknown.size)
    return mean, var


def _by_distribution(mixture: Mixture, size: int) -> tuple[Array, Array]:
    a, b = quantiles(mixture, np.array([_TAIL, 1.0 - _TAIL]), size)
    coarse = _integrals(mixture, a, b, _PANELS // 2)
    mean, var = _integrals(mixture, a, b, _PANELS)
    std, half = np.sqrt(np.maximum(var, 0.0)), 0.5 * (b - a)
    stands = np.abs(mean - coarse[0]) <= _ACCURACY * std
    stands &= np.abs(var - coarse[1]) <= _ACCURACY * var
    stands &= half**2 * _TAIL <= _TAIL_SHARE * var
    return np.where(stands, mean, np.nan), np.where(stands, var, np.nan)


def _integrals(mixture: Mixture, a: Array, b: Array, panels: int) -> tuple[Array, Array]:
    centre, half = 0.5 * (a + b), 0.5 * (b - a)
    starts = -1.0 + 2.0 * np.arange(panels) / panels
    first = second = np.zeros(a.size)
    for t, weight in zip(
        (starts[:, None] + (1.0 + NODES) / panels).ravel(), np.tile(WEIGHTS / panels, panels),
        strict=True,
    ):  # fmt: skip
        F = mixture.cdf(centre + half * t)
        first, second = first + weight * F, second + weight * t * F
    shift = half * (1.0 - first)
    return centre + shift, half**2 * (1.0 - 2.0 * second) - shift**2
