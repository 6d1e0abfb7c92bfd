"""Draws of chains in a Zarr store, written during sampling; imported only for such a store.

A store has the groups of a DataTree, with arrays for all draws from the beginning. Each chain has a
group of ``sampler_state``, whose one attribute has a number of steps up to which the draws are
valid, and the sampler's state after these. It is replaced as a whole, after the earlier draws were
written. A killed process leaves half-written draws only beyond that step; a later run overwrites
them.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from pymc_augconj.errors import AugmentationError
from pymc_augconj.typing import Array

_MARK, _STATES = "pymc_augconj", "sampler_state"
# Numbers in a chunk of the largest array, and draws at most.
_CHUNK, _MOST_DRAWS = 1 << 19, 5000
_SAMPLE = ("chain", "draw")


class DrawStore:
    """Draws of one run."""

    def __init__(self, where: Any) -> None:
        # Nodes are declared as arrays or groups.
        self._root: Any = zarr.open_group(where, mode="a", zarr_format=2)
        self._where = where if isinstance(where, str | Path) else self._root.store
        self._arrays: dict[tuple[str, str], Any] = {}
        mark: Any = self._root.attrs.get(_MARK)
        if mark is None and any(True for _ in self._root.members()):
            raise AugmentationError(
                f"zarr_store: expected an empty store, or one that pac.sample has begun, found "
                f"other data in {self._where}; use another path"
            )
        # A store whose creation was not finished is begun again.
        self.described: dict[str, Any] | None = mark or None

    def __str__(self) -> str:
        return str(self._where)

    @property
    def rows(self) -> int:
        """Draws in a chunk of every array."""
        assert self.described is not None
        return int(self.described["rows"])

    def create(self, template: xr.DataTree, described: dict[str, Any]) -> None:
        """Make the groups and arrays of a run."""
        self._root.attrs[_MARK] = {}
        largest = max(values.size for values in template["posterior"].data_vars.values())
        rows = min(max(_CHUNK // max(largest, 1), 1), _MOST_DRAWS)
        for name, node in template.children.items():
            dataset = node.to_dataset()
            if "draw" not in dataset.sizes:
                dataset.to_zarr(self._root.store, group=name, mode="w", **_FORMAT)
                continue
            self._make_group(name, dataset, (described["chains"], described["draws"]), rows)
        for chain in range(described["chains"]):
            self._root.create_group(f"{_STATES}/{chain}", overwrite=True)
        names = {k: list(map(str, node.data_vars)) for k, node in template.children.items()}
        self._describe(described | {"rows": rows, "variables": names})

    def extend(self, draws: int) -> None:
        """Make place for more draws, also after an interrupted attempt."""
        assert self.described is not None
        for _, group in self._root.groups():
            if "draw" not in group:
                continue
            for _, array in group.arrays():
                dims = tuple(array.attrs["_ARRAY_DIMENSIONS"])
                if dims[:2] == _SAMPLE and array.shape[1] != draws:
                    array.resize((array.shape[0], draws, *array.shape[2:]))
            if group["draw"].shape != (draws,):
                group["draw"].resize((draws,))
            group["draw"][:] = np.arange(draws)
        self._describe(self.described | {"draws": draws})

    def write(self, group: str, chain: int, first: int, arrays: Mapping[str, Array]) -> None:
        """Write values of a chain from draw ``first`` on, except of unknown variables."""
        for name, values in arrays.items():
            key = group, name
            if key not in self._arrays:
                self._arrays[key] = self._root.get(f"{group}/{name}")
            if (array := self._arrays[key]) is not None:
                array[chain, first : first + len(values)] = values

    def commit(self, chain: int, steps: int, state: bytes) -> None:
        """Write the state of a chain after so many steps; all earlier draws must be written."""
        group = self._root[f"{_STATES}/{chain}"]
        group.attrs.put({"checkpoint": [steps, b64encode(state).decode()]})

    def states(self) -> dict[int, tuple[int, bytes]]:
        """Return the number of steps and the state of each committed chain."""
        found = {}
        for name, group in self._root[_STATES].groups():
            if (checkpoint := group.attrs.get("checkpoint")) is not None:
                found[int(name)] = checkpoint[0], b64decode(checkpoint[1])
        return dict(sorted(found.items()))

    def tree(self, chains: Sequence[int], draws: int, seconds: float | None = None) -> xr.DataTree:
        """Return chains with so many draws, which are read on demand."""
        assert self.described is not None
        groups = {}
        variables: dict[str, list[str]] = self.described["variables"]
        for name, own in variables.items():
            group = xr.open_dataset(
                self._root.store, engine="zarr", group=name, consolidated=False, cache=False,
                mask_and_scale=False,
            )  # fmt: skip
            if "chain" in group.dims:
                group = group.isel(chain=list(chains), draw=slice(draws))
                group.attrs |= {} if seconds is None else {"sampling_time": seconds}
            groups[name] = group[own]
        return xr.DataTree.from_dict(groups)

    def _make_group(
        self, name: str, template: xr.Dataset, sizes: tuple[int, int], rows: int
    ) -> None:
        coords = template.coords.to_dataset().drop_vars(_SAMPLE)
        coords = coords.assign_coords(dict(zip(_SAMPLE, map(np.arange, sizes), strict=True)))
        coords.attrs = {k: v for k, v in template.attrs.items() if k != "sampling_time"}
        coords.to_zarr(self._root.store, group=name, mode="w", **_FORMAT)
        for variable, values in template.data_vars.items():
            shape = values.shape[2:]
            self._root[name].create_array(
                str(variable),
                shape=(*sizes, *shape),
                chunks=(1, rows, *(max(n, 1) for n in shape)),
                dtype=values.dtype,
                fill_value=np.nan if values.dtype.kind == "f" else 0,
                attributes={"_ARRAY_DIMENSIONS": list(values.dims), **values.attrs},
            )

    def _describe(self, described: dict[str, Any]) -> None:
        self._root.attrs[_MARK] = self.described = described


_FORMAT: dict[str, Any] = {"consolidated": False, "zarr_format": 2}
