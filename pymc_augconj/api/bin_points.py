"""``pac.bin_points``: events in time or space as counts on a grid, for Cox processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_augconj.errors import DataError
from pymc_augconj.typing import Array, Mask

_DIMENSIONS = (1, 2)


@dataclass(frozen=True, repr=False)
class BinnedPoints:
    """Counts of points in the cells of a grid that lie in a window.

    Attributes
    ----------
    counts : ndarray of int, shape (C,)
        Points in each cell.
    exposure : ndarray, shape (C,)
        Length or area of the part of each cell that lies in the window.
    centres : ndarray, shape (C, d)
        Inputs for the process.
    inside : ndarray of bool, shape (B,) or (B₁, B₂)
        The cells of the grid that are among the C.
    edges : tuple of ndarray
        Edges of the cells along each axis.
    points : ndarray, shape (K, d)
    """

    counts: np.ndarray
    exposure: Array
    centres: Array
    inside: Mask
    edges: tuple[Array, ...]
    points: Array

    def __repr__(self) -> str:
        grid = " × ".join(str(edges.size - 1) for edges in self.edges)
        return (
            f"BinnedPoints({self.counts.sum()} points in {self.counts.size} cells of {grid}, "
            f"exposure {self.exposure.sum():g})"
        )

    def on_grid(self, values: Any) -> Array:
        """Return one value a cell as an array of the grid's shape, NaN outside the window."""
        values = np.asarray(values, dtype=float)
        if values.shape != self.counts.shape:
            raise DataError(
                f"values: expected one for each of {self.counts.size} cells, got shape "
                f"{values.shape}"
            )
        grid = np.full(self.inside.shape, np.nan)
        grid[self.inside] = values
        return grid

    def plot(self, intensity: Any = None, ax: Any = None) -> Any:
        """Draw the intensity, one value a cell, with the points; return matplotlib's axes.

        By default the intensity is counts over exposure.
        """
        import matplotlib.pyplot as plt

        ax = plt.gca() if ax is None else ax
        grid = self.on_grid(self.counts / self.exposure if intensity is None else intensity)
        if len(self.edges) == 1:
            ax.stairs(grid, self.edges[0])
            ax.plot(self.points[:, 0], np.zeros(len(self.points)), "|", color="black")
            ax.set_ylabel("intensity")
        else:
            drawn = ax.pcolormesh(*self.edges, grid.T)
            ax.plot(*self.points.T, ".", color="black", markersize=3)
            ax.set_aspect("equal")
            ax.figure.colorbar(drawn, ax=ax, label="intensity")
        return ax


def bin_points(
    points: Any,
    bins: int | Sequence[int] | Sequence[Any],
    *,
    bounds: Sequence[Any] | None = None,
    window: Callable[[Array], Any] | Any = None,
) -> BinnedPoints:
    """Count events in the cells of a regular grid, in one or two dimensions.

    Parameters
    ----------
    points : array_like, shape (K,) or (K, d)
        Coordinates of the events, d = 1 or 2.
    bins : int, or sequence
        The number of cells along every axis or along each; or the edges along each axis (in one
        dimension the edges themselves).
    bounds : (low, high), or such a pair for each axis, optional
        The range of the grid; by default the range of the points, which overestimates the
        intensity near its ends. A point outside is an error.
    window : callable or array_like of the grid's shape, optional
        The observed part of each cell, in [0, 1] or boolean; a callable takes the centres of all
        cells, shape (B, d). Cells with no observed part are left out.

    Returns
    -------
    BinnedPoints

    Raises
    ------
    DataError
        If a point is not finite, or outside the grid or the window, or a shape is wrong.

    Examples
    --------
    >>> cells = pac.bin_points(events, 100, bounds=(1851, 1963))  # doctest: +SKIP
    >>> with pm.Model():  # doctest: +SKIP
    ...     f = gp.prior("f", X=cells.centres)
    ...     pm.Poisson("y", mu=cells.exposure * pm.math.exp(f), observed=cells.counts)
    """
    points = np.asarray(points, dtype=float)
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or points.shape[1] not in _DIMENSIONS:
        raise DataError(f"points: expected shape (K,), (K, 1) or (K, 2), got {points.shape}")
    if not np.isfinite(points).all():
        raise DataError("points: expected finite numbers, found a NaN or an infinity")
    edges = _edges(points, bins, bounds)
    shape = tuple(axis.size - 1 for axis in edges)
    for i, axis in enumerate(edges):
        outside = (points[:, i] < axis[0]) | (points[:, i] > axis[-1])
        if outside.any():
            raise DataError(
                f"points: expected coordinate {i} from {axis[0]:g} to {axis[-1]:g}, found "
                f"{points[outside, i][0]:g}; widen bounds, or drop the points outside"
            )
    counts = np.histogramdd(points, bins=edges)[0].astype(int)
    middles = np.meshgrid(*[0.5 * (axis[1:] + axis[:-1]) for axis in edges], indexing="ij")
    centres = np.stack([middle.ravel() for middle in middles], axis=1)
    sizes = np.meshgrid(*[np.diff(axis) for axis in edges], indexing="ij")
    observed = _observed(window, centres, shape)
    inside = observed > 0.0
    if counts[~inside].any():
        raise DataError(
            f"points: expected none where the window is empty, found {counts[~inside].sum()}; drop "
            "them, or widen the window"
        )
    exposure = np.prod(sizes, axis=0) * observed
    return BinnedPoints(
        counts[inside], exposure[inside], centres[inside.ravel()], inside, tuple(edges), points
    )


def _edges(points: Array, bins: Any, bounds: Any) -> list[Array]:
    d = points.shape[1]
    given = list(bins) if np.ndim(bins) == 1 or isinstance(bins, list | tuple) else [bins] * d
    if d == 1 and len(given) > 1:
        given = [given]
    if len(given) != d:
        raise DataError(f"bins: expected one entry for each of {d} axes, got {len(given)}")
    if bounds is not None and np.shape(bounds) not in ((d, 2), (2,)):
        raise DataError(f"bounds: expected (low, high) for each of {d} axes, got {bounds!r}")
    if bounds is None:
        if len(points) == 0:
            raise DataError("bounds: expected the range of the grid where there are no points")
        bounds = np.stack([points.min(axis=0), points.max(axis=0)], axis=1)
    limits = np.broadcast_to(np.asarray(bounds, dtype=float), (d, 2))
    edges = []
    for one, (low, high) in zip(given, limits, strict=True):
        if np.ndim(one) == 0:
            if int(one) != one or one < 1 or not low < high:
                raise DataError(
                    f"bins: expected a positive number of cells between different bounds, got "
                    f"{one!r} between {low:g} and {high:g}"
                )
            one = np.linspace(low, high, int(one) + 1)
        axis = np.asarray(one, dtype=float)
        if axis.ndim != 1 or axis.size < 2 or not (np.diff(axis) > 0.0).all():
            raise DataError(f"bins: expected increasing edges, got {one!r}")
        edges.append(axis)
    return edges


def _observed(window: Any, centres: Array, shape: tuple[int, ...]) -> Array:
    """Return the observed part of each cell, of the grid's shape."""
    if window is None:
        return np.ones(shape)
    found = np.asarray(window(centres) if callable(window) else window, dtype=float)
    if found.size != np.prod(shape) or (found.shape != shape and found.ndim != 1):
        raise DataError(
            f"window: expected an array of the grid's shape {shape}, or a callable that returns "
            f"one number for each of {len(centres)} cells, got shape {found.shape}"
        )
    if not ((found >= 0.0) & (found <= 1.0)).all():
        raise DataError("window: expected parts of a cell between 0 and 1")
    return found.reshape(shape)
