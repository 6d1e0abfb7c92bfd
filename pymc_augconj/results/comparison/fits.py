"""Several fits of one model with the same variables, shapes and labels, for comparison."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from arviz_base import extract

from pymc_augconj.errors import AugmentationError

SAMPLE_DIMS = ("chain", "draw")

# Group of the draws beyond the common length of chains.
_REST = "posterior_rest"

# Draws whose range relative to their absolute values is below this are constant up to rounding.
RELATIVE_ROUNDING = 1e-12

DataTree = xr.DataTree
"""The type of every sampled result, for modules outside this folder, which do not import xarray."""

Fits = Mapping[str, Any]
"""Name → fit: a DataTree with a posterior group, or an object with ``to_datatree()``."""


def as_datatrees(fits: Fits) -> dict[str, xr.DataTree]:
    """Convert each fit to a DataTree that has draws in its posterior group."""
    if not isinstance(fits, Mapping) or not fits:
        raise AugmentationError(
            "expected a dict of one or more fits by name, "
            f"got {type(fits).__name__}{'' if fits else ' without entries'}; "
            'use {"gibbs": idata, "nuts": idata2}'
        )
    return {name: _as_datatree(name, fit) for name, fit in fits.items()}


def join_chains(trees: Sequence[xr.DataTree]) -> xr.DataTree:
    """Return the chains of all, numbered."""
    groups = {}
    for name, node in trees[0].children.items():
        groups[name] = node.to_dataset()
        if "chain" in node.dims:
            parts = [tree[name].to_dataset() for tree in trees]
            how: Any = {
                "join": "exact",
                "data_vars": "all",
                "coords": "minimal",
                "compat": "override",
            }
            groups[name] = xr.concat(parts, dim="chain", combine_attrs="override", **how)
            groups[name] = groups[name].assign_coords(chain=np.arange(len(trees)))
    tree = xr.DataTree.from_dict(groups)
    tree.attrs = dict(trees[0].attrs)
    return tree


def without(tree: xr.DataTree, names: Collection[str]) -> xr.DataTree:
    """Return draws without some variables, in all groups of draws."""
    for group in ("posterior", "warmup_posterior", _REST) if names else ():
        if group in getattr(tree, "children", ()):
            draws = tree[group].to_dataset()
            tree[group].dataset = draws[[name for name in draws if name not in names]]
    return tree


def with_rest(tree: xr.DataTree, traces: Mapping[int, Any], tune: int) -> xr.DataTree:
    """Return PyMC's result of interrupted chains, with a group of the draws that it omitted.

    PyMC keeps equal numbers of draws of some chains. ``traces`` has the ``pymc.backends.NDArray``
    of every chain by its number; each begins with ``tune`` draws of tuning.
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
        values = {}
        for variable, array in like.items():
            kept_of = [t.get_values(variable, burn=tune + first[k]) for k, t in traces.items()]
            values[variable] = ("sample", *array.dims[2:]), np.concatenate(kept_of)
        labels = {name: c for name, c in like.coords.items() if name not in ("chain", "draw")}
        labels["chain"] = "sample", np.repeat(list(numbers), list(map(len, numbers.values())))
        labels["draw"] = "sample", np.concatenate(list(numbers.values()))
        groups[_REST] = xr.Dataset(values, coords=labels)
    whole = xr.DataTree.from_dict(groups)
    whole.attrs = dict(tree.attrs)
    return whole


def _as_datatree(name: str, fit: Any) -> xr.DataTree:
    """Return ``fit`` as a DataTree with a posterior over chain and draw."""
    tree = fit.to_datatree() if hasattr(fit, "to_datatree") else fit
    if not isinstance(tree, xr.DataTree):
        raise AugmentationError(
            f"fit {name!r}: expected a DataTree as pm.sample returns it, or an object with "
            f"to_datatree(), got {type(fit).__name__}; use arviz.from_dict, or .sample(draws) "
            "of a PyMC approximation"
        )
    if "posterior" not in tree.children:
        raise AugmentationError(
            f"fit {name!r}: expected a group 'posterior', got groups {list(tree.children)}; "
            "use the DataTree of a fit"
        )
    missing = [dim for dim in SAMPLE_DIMS if dim not in tree["posterior"].dims]
    if missing:
        raise AugmentationError(
            f"fit {name!r}: expected a posterior with dimensions chain and draw, got "
            f"{list(tree['posterior'].dims)}; use shape (1, draw, …) for independent draws"
        )
    return tree


def common_posteriors(
    trees: Mapping[str, xr.DataTree],
    var_names: str | Sequence[str] | None = None,
    filter_vars: str | None = None,
    coords: Mapping[Hashable, Any] | None = None,
) -> dict[str, xr.Dataset]:
    """Return each fit's posterior, (chain, draw, …), with the same variables, order and layout."""
    posteriors = {name: tree["posterior"].to_dataset() for name, tree in trees.items()}
    names = _common_names(posteriors, var_names, filter_vars)
    first_name = next(iter(posteriors))
    first = _select(posteriors[first_name][names], coords)
    chosen = {fit: _select(ds[names], coords) for fit, ds in posteriors.items()}
    return {fit: _with_layout_of(first, ds, first_name, fit) for fit, ds in chosen.items()}


def scalar_draws(posterior: xr.Dataset) -> np.ndarray:
    """Stack every scalar entry of every variable: shape (chain, draw, entry), float64."""
    n_chain, n_draw = (posterior.sizes[dim] for dim in SAMPLE_DIMS)
    values = [variable.values.astype(float) for variable in posterior.values()]
    columns = [each.reshape(n_chain, n_draw, -1) for each in values]
    return np.concatenate(columns, axis=-1)


def is_moving(draws: np.ndarray) -> np.ndarray:
    """Return which entries of ``draws`` (chain, draw, entry) are not constant, shape (entry,)."""
    rounding = RELATIVE_ROUNDING * np.abs(draws).max(axis=(0, 1))
    return np.ptp(draws, axis=(0, 1)) > rounding


def _common_names(
    posteriors: Mapping[str, xr.Dataset],
    var_names: str | Sequence[str] | None,
    filter_vars: str | None,
) -> list[str]:
    if filter_vars not in (None, "like", "regex"):
        raise AugmentationError(
            f"filter_vars: expected None, 'like' or 'regex', got {filter_vars!r}"
        )
    wanted: Any = [var_names] if isinstance(var_names, str) else var_names and list(var_names)
    selected: dict[str, list[str]] = {}
    for fit, ds in posteriors.items():
        numeric = [str(name) for name, da in ds.data_vars.items() if da.dtype.kind in "biuf"]
        data: Any = ds[numeric]
        chosen: Any = {"var_names": wanted, "filter_vars": filter_vars}
        try:
            found = extract(data, combined=False, keep_dataset=True, **chosen)
        except KeyError as error:
            raise AugmentationError(
                f"var_names: expected variables of every fit, got {wanted}, of which {fit!r} does "
                f"not have all; use variables among {numeric}"
            ) from error
        selected[fit] = list(map(str, found))
    lists = list(selected.values())
    names = [name for name in lists[0] if all(name in other for other in lists[1:])]
    if not names:
        raise AugmentationError(
            f"var_names: expected a variable that every fit has, got {selected}"
        )
    return names


def _select(posterior: xr.Dataset, coords: Mapping[Hashable, Any] | None) -> xr.Dataset:
    unknown = [dim for dim in coords or {} if dim not in posterior.dims]
    if unknown:
        raise AugmentationError(
            f"coords: expected dimensions among {sorted(map(str, posterior.dims))}, got {unknown}"
        )
    selected = posterior.sel(coords or {}).transpose(*SAMPLE_DIMS, ...)
    return selected.assign_coords({dim: np.arange(selected.sizes[dim]) for dim in SAMPLE_DIMS})


def _with_layout_of(like: xr.Dataset, posterior: xr.Dataset, like_fit: str, fit: str) -> xr.Dataset:
    """Order ``posterior``'s dimensions as in ``like``; refuse different shapes or labels."""
    aligned = {}
    for name, da in posterior.items():
        target = like[name]
        if set(da.dims) == set(target.dims):
            da = da.transpose(*target.dims)
        difference = _difference(da, target)
        if difference:
            raise AugmentationError(
                f"variable {name!r}: expected the same entries in every fit, got a different "
                f"{difference} in {fit!r} {dict(da.sizes)} and {like_fit!r} "
                f"{dict(target.sizes)}; use var_names to leave it out, or coords to choose entries"
            )
        aligned[name] = da
    return xr.Dataset(aligned)


def _difference(da: xr.DataArray, target: xr.DataArray) -> str | None:
    if da.shape[len(SAMPLE_DIMS) :] != target.shape[len(SAMPLE_DIMS) :]:
        return "shape"
    labelled = [dim for dim in da.dims[len(SAMPLE_DIMS) :] if dim in da.indexes]
    both = [dim for dim in labelled if dim in target.indexes]
    relabelled = [dim for dim in both if not da.indexes[dim].equals(target.indexes[dim])]
    return f"labels of {relabelled}" if relabelled else None
