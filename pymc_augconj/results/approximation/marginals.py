"""Marginal densities of mixtures, of weighted draws, and of predictors given their observation."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtri

from pymc_augconj.point import Point
from pymc_augconj.typing import Array

# Half the width of a grid, in standard deviations of the components at its ends.
_WIDTH = 4.5
# Share of weighted draws beyond each end of a grid, and the number of bins that they are put in
# before smoothing.
_TAIL, _BINS = 2e-4, 2048
# Points that stand for each component of a mixture where a grid is made.
_STRATA = 32


def grid_of(weights: Array, means: Array, stds: Array, points: int) -> Array:
    """Return a grid for each entry of a mixture with means and deviations of shape (n, size).

    Half of the points lie at quantiles, since components may be narrower than the mixture.
    """
    used = weights > 1e-4 * weights.max()
    w, m, s = weights[used] / weights[used].sum(), means[used], stds[used]
    even = points - points // 2
    low, high = (m - _WIDTH * s).min(axis=0), (m + _WIDTH * s).max(axis=0)
    level = (np.arange(_STRATA) + 0.5) / _STRATA
    strata = (m[..., None] + s[..., None] * ndtri(level)).swapaxes(0, 1).reshape(m.shape[1], -1)
    mass = np.tile(np.repeat(w / _STRATA, _STRATA), (len(strata), 1))
    order = np.argsort(strata, axis=1)
    mass = np.cumsum(np.take_along_axis(mass, order, axis=1), axis=1)
    strata = np.take_along_axis(strata, order, axis=1)
    wanted = (np.arange(points // 2) + 0.5) / (points // 2)
    dense = [np.interp(wanted, own, x) for own, x in zip(mass, strata, strict=True)]
    return np.sort(np.hstack([np.linspace(low, high, even, axis=-1), dense]), axis=1)


def mixture_density(weights: Array, means: Array, stds: Array, x: Array) -> Array:
    """Return the density at ``x``, (size, points), of normal mixtures."""
    total = np.zeros_like(x)
    for weight, mean, std in zip(weights, means, stds, strict=True):
        u = (x - mean[:, None]) / std[:, None]
        total += weight * np.exp(-0.5 * u**2) / (np.sqrt(2.0 * np.pi) * std[:, None])
    # Some weights of scattered points are negative.
    return np.maximum(total, 0.0)


def tilted_densities(
    site: Any, point: Point, x: Array, moments: tuple[Array, Array], sites: tuple[Array, Array]
) -> Array:
    """Return p(yᵢ | η) times the cavity density, normalised over the grids ``x``, (N, points)."""
    (mean, var), (h, lam) = moments, sites
    y, params = site.y(point), site.params(point)
    columns = [site.likelihood.log_density(y, column[None], params) for column in x.T]
    log_density = np.stack(np.broadcast_arrays(*columns), axis=1)
    # The marginal divided by the site.
    away = x - mean[:, None]
    log_density = log_density - 0.5 * away**2 / var[:, None]
    log_density += 0.5 * lam[:, None] * x**2 - h[:, None] * x
    density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    return np.asarray(density / np.trapezoid(density, x, axis=1)[:, None])


def density_of_draws(
    entry: Array, value: Array, weights: Array, points: int
) -> tuple[Array, Array]:
    """Return grids and densities of weighted draws, (S, …), of a transformed variable.

    Kernels are on the unconstrained scale if that is monotone, so that nothing leaks over a bound.
    """
    used = weights > 0.0
    w, shape = weights[used], value.shape[1:]
    x, u = value[used].astype(float).reshape(len(w), -1), entry[used].reshape(len(w), -1)
    grids, densities = [], []
    for j in range(x.shape[1]):
        own = u[:, j] if u.shape == x.shape else x[:, j]
        order = np.argsort(own)
        steps = np.diff(x[order, j])
        if not ((steps >= 0.0).all() or (steps <= 0.0).all()):
            own = x[:, j]
            order = np.argsort(own)
        grid, density = _smoothed(own, w, points)
        at = np.interp(grid, own[order], x[order, j])
        with np.errstate(divide="ignore", invalid="ignore"):
            density = density / np.abs(np.gradient(at, grid))
        order = np.argsort(at)
        grids.append(at[order])
        densities.append(np.where(np.isfinite(density), density, 0.0)[order])
    return np.array(grids).reshape(*shape, points), np.array(densities).reshape(*shape, points)


def _smoothed(x: Array, weights: Array, points: int) -> tuple[Array, Array]:
    """Return a grid and the kernel density of weighted numbers there.

    The kernel is of fourth order: a normal one would widen the short tail of a skew density.
    """
    order = np.argsort(x)
    low, high = np.interp([_TAIL, 1.0 - _TAIL], np.cumsum(weights[order]), x[order])
    mean = weights @ x
    std = np.sqrt(weights @ (x - mean) ** 2)
    # Silverman's rule for the effective number of draws.
    width = 0.9 * std * np.sum(weights**2) ** 0.2
    grid = np.linspace(low, high, points)
    ends = float(low - 5.0 * width), float(high + 5.0 * width)
    counts, edges = np.histogram(x, _BINS, ends, weights=weights)
    u = (grid[:, None] - 0.5 * (edges[1:] + edges[:-1])) / width
    kernel = (1.5 - 0.5 * u**2) * np.exp(-0.5 * u**2) / (np.sqrt(2.0 * np.pi) * width)
    return grid, np.maximum(kernel @ counts, 0.0)
