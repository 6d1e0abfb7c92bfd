"""Draws of interrupted chains of different lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

__all__ = ["with_rest"]

_REST = "posterior_rest"


def with_rest(tree: xr.DataTree, traces: Mapping[int, Any], tune: int) -> xr.DataTree:
    """Return PyMC's result of interrupted chains with the draws that it left out.

    PyMC keeps equal numbers of draws of some chains, so that most draws remain. ``traces`` has the
    ``pymc.backends.NDArray`` of every chain by its number, which begins with ``tune`` draws of
    tuning. Chains keep their numbers in the result; the group ``posterior_rest`` has the other
    draws, if any, along the axis ``sample``, with their chains and draws.
    """
    found = "posterior" in tree.children
    like = tree["posterior" if found else "warmup_posterior"].to_dataset()
    kept = like.sizes["draw"] if found else 0
    traces = dict(sorted(traces.items()))
    drawn = {chain: max(len(trace) - tune, 0) for chain, trace in traces.items()}
    complete = [chain for chain, number in drawn.items() if number >= kept]
    groups = {}
    for name, node in tree.children.items():
        groups[name] = node.to_dataset()
        if found and "chain" in node.dims:
            groups[name] = groups[name].assign_coords(chain=complete)
    first = {chain: kept if chain in complete else 0 for chain in drawn}
    numbers = {chain: np.arange(first[chain], drawn[chain]) for chain in drawn}
    if any(map(len, numbers.values())):
        values = {
            name: (
                ("sample", *array.dims[2:]),
                np.concatenate(
                    [trace.get_values(name, burn=tune + first[k]) for k, trace in traces.items()]
                ),
            )
            for name, array in like.items()
        }
        labels = {name: c for name, c in like.coords.items() if name not in ("chain", "draw")}
        labels["chain"] = "sample", np.repeat(list(numbers), list(map(len, numbers.values())))
        labels["draw"] = "sample", np.concatenate(list(numbers.values()))
        groups[_REST] = xr.Dataset(values, coords=labels)
    whole = xr.DataTree.from_dict(groups)
    whole.attrs = dict(tree.attrs)
    return whole
