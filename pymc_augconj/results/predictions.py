"""Predictions as a DataTree: group ``predictions``, with the labels of the user's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

__all__ = ["posterior_draws", "predictions_tree"]


def posterior_draws(tree: xr.DataTree, names: Sequence[str]) -> tuple[dict[str, np.ndarray], tuple]:
    """Return variables with chains and draws on one axis, and the coordinates of the two.

    Raises
    ------
    KeyError
        If a variable is missing; its name is the error's argument.
    """
    posterior = tree["posterior"].to_dataset()
    found = {}
    for name in names:
        if name not in posterior:
            raise KeyError(name)
        values = posterior[name].transpose("chain", "draw", ...).values
        found[name] = values.reshape(-1, *values.shape[2:])
    return found, (posterior["chain"].values, posterior["draw"].values)


def predictions_tree(
    variables: Mapping[str, tuple[Sequence[str], np.ndarray]],
    coords: Mapping[str, Any],
    attrs: Mapping[str, Any],
    sampled: tuple | None = None,
) -> xr.DataTree:
    """Return the group ``predictions``.

    Parameters
    ----------
    variables : mapping
        Dims and values of each variable. A dim ``"sample"`` stands for chains and draws together.
    coords : mapping
        Labels of dims.
    attrs : mapping
    sampled : tuple of ndarray, optional
        Coordinates of chain and draw.
    """
    data, coords = {}, dict(coords)
    for name, (dims, values) in variables.items():
        if "sample" in dims:
            chains, draws = sampled
            values = values.reshape(len(chains), len(draws), *values.shape[1:])
            dims = ("chain", "draw", *dims[1:])
            coords |= {"chain": chains, "draw": draws}
        data[name] = (tuple(dims), values)
    used = {dim for dims, _ in data.values() for dim in dims}
    dataset = xr.Dataset(data, coords={dim: c for dim, c in coords.items() if dim in used})
    dataset.attrs.update(attrs)
    return xr.DataTree.from_dict({"predictions": dataset})
