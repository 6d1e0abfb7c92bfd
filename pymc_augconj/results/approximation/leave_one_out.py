"""Marginal densities of mixtures and weighted draws; leave-one-out cross-validation by cavities.

Importance weights are over hyperparameters alone.

Given θ, p(yᵢ | y₋ᵢ, θ) is the integral of p(yᵢ | ηᵢ) under the cavity, the Gaussian that the sites
of the other observations leave. As p(θ | y₋ᵢ) ∝ p(θ | y) / p(yᵢ | y₋ᵢ, θ),

    1 / p(yᵢ | y₋ᵢ) = E[ 1 / p(yᵢ | y₋ᵢ, θ) | y ],

over the continuous density of θ, between whose points log p(yᵢ | y₋ᵢ, θ) is interpolated. Blocks
are left out in the same way. As L(B) = log p(y_B | y₋B) is log p(y) − log p(y₋B), the next h steps
of a series have log p(y_B | y before B) = L(B and all after it) − L(all after B).

References
----------
Vehtari, A., Mononen, T., Tolvanen, V., Sivula, T. & Winther, O. (2016). Bayesian leave-one-out
cross-validation approximations for Gaussian latent variable models. JMLR 17.
Vehtari, A., Simpson, D., Gelman, A., Yao, Y. & Gabry, J. (2024). Pareto smoothed importance
sampling. JMLR 25.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from arviz_stats.base import array_stats
from arviz_stats.utils import ELPDDataLOO
from scipy.special import logsumexp, ndtri

from pymc_augconj.engines.nested.importance import NestedPosterior
from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.model import Site
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Index

from .fitted_model import Labels

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


# Largest k̂ by which ArviZ calls a value good, and observations that are done at once.
_GOOD_K, _AT_ONCE = 0.7, 500
_DRAWS = 4000


def leave_one_out(
    nested: NestedPosterior,
    site: Site,
    labels: Labels,
    shape: tuple[int, ...],
    groups: Array | None = None,
    ahead: int | None = None,
) -> ELPDDataLOO:
    """Return ArviZ's result for the observations of a site, of shape ``shape``, or for blocks."""
    blocks, names = _blocks(site.size, groups, ahead)
    left_out, fitted, kept = [], [], []
    for k in range(len(nested.x)):
        try:
            given = nested.given(nested.x[k], nested.h[k], nested.lam[k])
            if blocks is None:
                outside, inside = nested.log_predictive(given, site)
            else:
                outside = inside = nested.log_predictive_of_blocks(given, site, blocks)
        except (NotPositiveDefiniteError, FloatingPointError):
            # Of a point far out, which counts little.
            continue
        kept.append(k)
        left_out.append(outside)
        fitted.append(inside)
    density = nested.density
    assert density is not None  # without hyperparameters there is no mixture
    weights = density.site_weights(density.sample)[:, kept]
    total = weights.sum(axis=1)
    used = (density.sample_weights > 0.0) & (total != 0.0)
    log_weights = np.log(density.sample_weights[used] / density.sample_weights[used].sum())
    weights = weights[used] / total[used, None]
    elpd, lpd, k_hat = np.empty((3, len(left_out[0])))
    # Draws of θ given all observations, whose ratios k̂ is of.
    edges = (np.arange(_DRAWS) + 0.5) / _DRAWS
    draws = np.searchsorted(np.cumsum(np.exp(log_weights)), edges).clip(max=used.sum() - 1)
    for start in range(0, elpd.size, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        outside = _interpolated(weights, np.array(left_out)[:, part])
        elpd[part] = -logsumexp(log_weights[:, None] - outside, axis=0)
        inside = _interpolated(weights, np.array(fitted)[:, part])
        lpd[part] = logsumexp(log_weights[:, None] + inside, axis=0)
        k_hat[part] = [pareto_k(-column) for column in outside[draws].T]
    if ahead is not None:
        elpd = elpd - np.append(elpd[1:], 0.0)
    pointwise = (
        labels.array(site.name, values.reshape(shape))
        if names is None
        else xr.DataArray(values, {"block": names}, ["block"], site.name)
        for values in (elpd, k_hat)
    )
    return ELPDDataLOO(
        elpd=float(elpd.sum()),
        se=float(np.sqrt(elpd.size * np.var(elpd))),
        # The density of a block given all observations is not computed.
        p=float(np.sum(lpd - elpd)) if blocks is None else np.nan,
        n_samples=int(np.count_nonzero(used)),
        n_data_points=elpd.size,
        scale="log",
        warning=bool((k_hat > _GOOD_K).any()),
        good_k=_GOOD_K,
        elpd_i=next(pointwise),
        pareto_k=next(pointwise),
        approx_posterior=True,
    )


def _blocks(
    size: int, groups: Array | None, ahead: int | None
) -> tuple[list[Index] | None, Array | Index | None]:
    """Return blocks of observations that are left out together, and their names."""
    if groups is not None and ahead is not None:
        raise AugmentationError("groups, ahead: expected one of them, found both; leave one out")
    if groups is not None:
        groups = np.ravel(groups)
        if groups.size != size:
            raise AugmentationError(
                f"groups: expected the label of a group for each of {size} observations, found "
                f"{groups.size} labels"
            )
        names, which = np.unique(groups, return_inverse=True)
        return [np.flatnonzero(which == k) for k in range(names.size)], names
    if ahead is not None:
        if not 1 <= ahead <= size // 2:
            raise AugmentationError(
                f"ahead: expected a number of steps from 1 to {size // 2}, half of the "
                f"observations, found {ahead}"
            )
        starts = np.arange(size - size // (2 * ahead) * ahead, size, ahead)
        return [np.arange(start, size) for start in starts], starts
    return None, None


def _interpolated(weights: Array, values: Array) -> Array:
    """Return values at the points, (n, N), interpolated within their range, (S, N)."""
    return np.clip(weights @ values, values.min(axis=0), values.max(axis=0))


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
