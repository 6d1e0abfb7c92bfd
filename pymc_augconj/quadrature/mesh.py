"""Modes of tilted distributions, and panels that cover their mass.

For site i with cavity N(m, v), in u = (f − m)/√v, the log tilted density up to a constant is

    t(u) = η log p(y | m + √v u) − ½ u².

The search uses only values of t, for all sites at once, so that it works for any log density, also
with kinks and steps:

1. t is scanned on a geometric grid about the cavity's mean and about each landmark;
2. about every local maximum of the scan the bracket is divided until its ends lie within
   `RESOLVED` of the top, which gives a mode and its width s at any scale;
3. from each mode steps of s·2.5·3ᵏ go out until t + 4 log(1 + distance/s), the largest term of a
   fourth moment, has dropped by `DROP` below the highest mode.

The steps are the panels' ends: geometric, so that a tail of any power law is analytic enough on
each of them for 16 nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pymc_augconj.typing import Array, Index, Mask

LogTilted = Callable[[Array, Index], Array]


def _both_ways(first: int, last: int) -> Array:
    steps = 4.0 ** np.arange(first, last + 1)
    return np.concatenate([-steps[::-1], [0.0], steps])[:, None]


# Distances of the scan, in standard deviations of the cavity: about its mean, to 1000 deviations;
# to 1e18 where no maximum lies within these; and close to a landmark.
SCAN, WIDE_SCAN, LANDMARK_SCAN = _both_ways(-2, 5), _both_ways(-2, 30), _both_ways(-2, 2)
SMALLEST_STEP = 4.0**-2

# A mode is resolved when t drops by less than this to either end of its bracket.
RESOLVED = 2.0
# Divisions of half a bracket in one pass, and passes: 8⁻¹⁶ is the resolution of float64.
_DIVISIONS = np.arange(1, 8)[:, None] / 8.0
MAX_PASSES = 16
# e⁻⁴⁰ is 4e-18: lower densities do not change eight digits of a moment.
DROP = 40.0
_STEPS = 2.5 * 3.0 ** np.arange(4)[:, None]
# A cavity's own curvature is 1, so that a width above this comes from a flat or convex bracket.
LARGEST_WIDTH = 2.0
# From one width to 3⁴⁸ = 8e22 widths.
MAX_STRIDES = 12
# Inner panel ends this close to the outermost, as a ratio of distances, are left out.
_CLOSE = 1.6


@dataclass(frozen=True)
class Mesh:
    """Panels in x = u − centre[site], ordered by site and position.

    ``centre`` is the highest mode in u and ``top`` t there, (N,); ``site``, ``start`` and ``stop``
    are of shape (P,).
    """

    centre: Array
    top: Array
    site: Index
    start: Array
    stop: Array


def make_mesh(log_tilted: LogTilted, landmarks: Array) -> Mesh:
    """Return panels that cover the tilted distribution of every site.

    ``log_tilted`` is ``(u, sites) -> t`` with u of shape (G, M) and sites of shape (M,); landmarks,
    (L, N), are in u. Raises FloatingPointError if a site's tilted density has no maximum, or does
    not decay.
    """
    n_sites = landmarks.shape[1]
    everyone = np.arange(n_sites)
    site, mode, width, value = _find_modes(log_tilted, everyone, landmarks, SCAN)
    missing = np.setdiff1d(everyone, site)
    if missing.size:
        modes = _find_modes(log_tilted, missing, landmarks[:, missing], WIDE_SCAN)
        pairs = zip((site, mode, width, value), modes, strict=True)
        site, mode, width, value = (np.concatenate(pair) for pair in pairs)
    top = np.full(n_sites, -np.inf)
    np.maximum.at(top, site, value)
    # Heights of 1e17 and more have rounding errors above ``DROP``.
    bad = np.flatnonzero(~(top - DROP < top))
    if bad.size:
        raise FloatingPointError(
            f"site {bad[0]}: found no maximum of log p(y | f) plus its log cavity, expected a "
            "density that is finite and has one; check y and the likelihood's parameters"
        )
    kept = value > top[site] - DROP
    site, mode, width, value = site[kept], mode[kept], width[kept], value[kept]
    centre = np.empty(n_sites)
    highest = value == top[site]
    centre[site[highest]] = mode[highest]

    owner, end = _step_out(log_tilted, site, mode, width, top)
    # Relative to the centre in this order, so that the highest mode's own ends keep their digits.
    ends_site, ends = site[owner], (mode - centre[site])[owner] + end
    if len(landmarks):
        lowest, highest_end = np.full(n_sites, np.inf), np.full(n_sites, -np.inf)
        np.minimum.at(lowest, ends_site, ends)
        np.maximum.at(highest_end, ends_site, ends)
        marks = landmarks - centre
        inside = (marks > lowest) & (marks < highest_end)
        ends_site = np.concatenate([ends_site, np.nonzero(inside)[1]])
        ends = np.concatenate([ends, marks[inside]])
    order = np.lexsort((ends, ends_site))
    ends_site, ends = ends_site[order], ends[order]
    panel = (ends_site[1:] == ends_site[:-1]) & (ends[1:] > ends[:-1])
    return Mesh(centre, top, ends_site[1:][panel], ends[:-1][panel], ends[1:][panel])


def _find_modes(
    log_tilted: LogTilted, sites: Index, landmarks: Array, scan: Array
) -> tuple[Index, Array, Array, Array]:
    """Return site, position, width and height of every mode of the scan of some sites."""
    grid = [np.broadcast_to(scan, (scan.size, sites.size))]
    grid += [mark + LANDMARK_SCAN for mark in landmarks]
    u = np.sort(np.concatenate(grid), axis=0)
    t = log_tilted(u, sites)
    inner = t[1:-1]
    row, column = np.nonzero((inner >= t[:-2]) & (inner > t[2:]))
    site = sites[column]
    left, mode, right = u[row, column], u[row + 1, column], u[row + 2, column]
    t_left, t_mode, t_right = t[row, column], t[row + 1, column], t[row + 2, column]

    for _ in range(MAX_PASSES):
        drop = t_mode - np.minimum(t_left, t_right)
        coarse = np.flatnonzero(drop > RESOLVED)
        if coarse.size == 0:
            break
        before = left[coarse] + (mode - left)[coarse] * _DIVISIONS
        after = mode[coarse] + (right - mode)[coarse] * _DIVISIONS
        t_new = log_tilted(np.concatenate([before, after]), site[coarse])
        u_all = np.vstack([left[coarse], before, mode[coarse], after, right[coarse]])
        t_all = np.vstack([t_left[coarse], t_new[:7], t_mode[coarse], t_new[7:], t_right[coarse]])
        best, column = np.argmax(t_all[1:-1], axis=0) + 1, np.arange(coarse.size)
        left[coarse], t_left[coarse] = u_all[best - 1, column], t_all[best - 1, column]
        mode[coarse], t_mode[coarse] = u_all[best, column], t_all[best, column]
        right[coarse], t_right[coarse] = u_all[best + 1, column], t_all[best + 1, column]
    return site, mode, _width(left, mode, right, t_left, t_mode, t_right), t_mode


def _width(
    left: Array, mode: Array, right: Array, t_left: Array, t_mode: Array, t_right: Array
) -> Array:
    """Return 1/√(curvature) of the parabola through three points, or a guess from the bracket."""
    slopes = (t_mode - t_left) / (mode - left) + (t_mode - t_right) / (right - mode)
    curvature = 2.0 * slopes / (right - left)
    width = 1.0 / np.sqrt(np.maximum(curvature, LARGEST_WIDTH**-2))
    # Beside a singularity or a step, or where scans coincide, the parabola is meaningless.
    width = np.where(np.isfinite(curvature), width, 0.25 * (right - left))
    return np.where(width > 0.0, width, SMALLEST_STEP)


def _step_out(
    log_tilted: LogTilted, site: Index, mode: Array, width: Array, top: Array
) -> tuple[Index, Array]:
    """Return panel ends as (index of the mode, signed distance from it)."""
    # Both directions are rays of their own.
    ray_mode = np.repeat(np.arange(mode.size), 2)
    unit = np.where(np.arange(ray_mode.size) % 2 == 0, -1.0, 1.0) * width[ray_mode]

    def is_low(rays: Index, distance: Array) -> Mask:
        owner = ray_mode[rays]
        t = log_tilted(mode[owner] + distance, site[owner])
        return t + 4.0 * np.log1p(distance / unit[rays]) < top[site[owner]] - DROP

    owners, ends = [], []
    open_, scale = np.arange(ray_mode.size), 1.0
    edge, inner = np.zeros(ray_mode.size), np.zeros(ray_mode.size)
    for _ in range(MAX_STRIDES):
        if open_.size == 0:
            break
        distance = scale * _STEPS * unit[open_]
        low = is_low(open_, distance)
        first = np.where(low.any(axis=0), np.argmax(low, axis=0), len(_STEPS))
        taken = np.arange(len(_STEPS))[:, None] < first
        rays = np.broadcast_to(open_, taken.shape)[taken]
        owners.append(rays)
        ends.append(distance[taken])
        done = first < len(_STEPS)
        column = np.flatnonzero(done)
        edge[open_[done]] = distance[first[done], column]
        has_inner = first > 0
        column = np.flatnonzero(has_inner)
        inner[open_[has_inner]] = distance[first[has_inner] - 1, column]
        open_, scale = open_[~done], scale * 3.0 ** len(_STEPS)
    else:
        raise FloatingPointError(
            f"site {site[ray_mode[open_[0]]]}: the tilted density does not fall off, expected one "
            "that does; check the likelihood's parameters"
        )

    # The edge lies in the last step, which can be two thirds of the way: divide it.
    between = inner + (edge - inner) * _DIVISIONS
    low = is_low(np.arange(edge.size), between)
    first = np.argmax(low, axis=0)
    some = low.any(axis=0)
    edge[some] = between[first[some], np.flatnonzero(some)]
    ray, end = np.concatenate(owners), np.concatenate(ends)
    kept = np.abs(edge[ray]) > _CLOSE * np.abs(end)
    ray = np.concatenate([ray[kept], np.arange(edge.size)])
    return ray_mode[ray], np.concatenate([end[kept], edge])
