"""The scalar entries of several fits for a figure, each as a separate variable."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from pymc_augconj.errors import AugmentationError

from .fits import SAMPLE_DIMS, is_moving, scalar_draws


def drawable_entries(
    posteriors: Mapping[str, xr.Dataset], max_entries: int
) -> dict[str, xr.Dataset]:
    """Return posteriors with a scalar variable, named like ``f[3]``, for each entry to be drawn.

    These are at most ``max_entries`` entries of each variable that are finite in all fits and
    constant in none, evenly spaced from the first to the last.
    """
    labels = _entry_labels(next(iter(posteriors.values())))
    draws = {fit: scalar_draws(posterior) for fit, posterior in posteriors.items()}
    drawable = np.logical_and.reduce(
        [np.isfinite(values).all(axis=(0, 1)) & is_moving(values) for values in draws.values()]
    )
    chosen, start = [], 0
    for names in labels:
        candidates = start + np.flatnonzero(drawable[start : start + len(names)])
        spaced = np.linspace(0, len(candidates) - 1, min(max_entries, len(candidates)))
        chosen.extend(candidates[spaced.round().astype(int)])
        start += len(names)
    if not chosen:
        raise AugmentationError(
            "var_names: expected an entry that is finite and not constant in every fit, got none "
            f"in {list(next(iter(posteriors.values())))}; use other var_names"
        )
    flat = [name for names in labels for name in names]
    return {
        fit: xr.Dataset(
            {flat[k]: (SAMPLE_DIMS, values[:, :, k]) for k in chosen},
            coords={dim: np.arange(n) for dim, n in zip(SAMPLE_DIMS, values.shape, strict=False)},
        )
        for fit, values in draws.items()
    }


def _entry_labels(posterior: xr.Dataset) -> list[list[str]]:
    """Return names of the entries of each variable, in the order of :func:`scalar_draws`."""
    labels = []
    for name, da in posterior.items():
        dims = da.dims[len(SAMPLE_DIMS) :]
        axes = [da[dim].values for dim in dims]
        positions = np.ndindex(*(len(axis) for axis in axes))
        labels.append(
            [_entry_name(name, [axes[j][i] for j, i in enumerate(index)]) for index in positions]
        )
    return labels


def _entry_name(name: Hashable, labels: list[Any]) -> str:
    return f"{name}[{node_name(', '.join(map(str, labels)))}]" if labels else str(name)


def node_name(text: str) -> str:
    """Return ``text`` as a name in a DataTree, where a slash would open a sub-group."""
    return text.replace("/", "∕")


def with_divergences(posterior: xr.Dataset, tree: xr.DataTree) -> xr.DataTree:
    """Return the entries, and the divergences that ``plot_trace`` marks, labelled alike."""
    groups = {"posterior": posterior}
    stats = tree.children.get("sample_stats")
    if stats is not None and "diverging" in stats.data_vars:
        diverging = stats["diverging"].transpose(*SAMPLE_DIMS).values
        groups["sample_stats"] = xr.Dataset(
            {"diverging": (SAMPLE_DIMS, diverging)}, coords=posterior.coords
        )
    return xr.DataTree.from_dict(groups)
