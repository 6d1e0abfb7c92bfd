"""Names of variables, axes and labels in results."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr

from pymc_augconj.typing import Array


@dataclass(frozen=True)
class Labels:
    """Dims and coords of the user's model."""

    dims: dict[str, list[str]] = field(default_factory=dict)
    coords: dict[str, Array] = field(default_factory=dict)

    @classmethod
    def of_model(cls, model: Any) -> Labels:
        """Return the labels of a PyMC model."""
        return cls(
            {
                name: [f"{name}_dim_{i}" if d is None else str(d) for i, d in enumerate(dims)]
                for name, dims in model.named_vars_to_dims.items()
            },
            {
                # One label per entry, also where labels are tuples.
                str(d): pd.Index(c, tupleize_cols=False).to_numpy()
                for d, c in model.coords.items()
                if c is not None
            },
        )

    def of(self, name: str, ndim: int) -> list[str]:
        """Return the dims of a variable, with ArviZ's defaults where the model names none."""
        found = self.dims.get(name)
        return list(found) if found is not None else [f"{name}_dim_{i}" for i in range(ndim)]

    def array(self, name: str, values: Array) -> xr.DataArray:
        """Return ``values`` as a labelled array."""
        dims = self.of(name, np.ndim(values))
        coords = {
            dim: self.coords.get(dim, np.arange(size))
            for dim, size in zip(dims, np.shape(values), strict=True)
        }
        return xr.DataArray(values, dims=dims, coords=coords, name=name)

    def dataset(self, values: Mapping[str, Array]) -> xr.Dataset:
        """Return labelled arrays of variables."""
        return xr.Dataset({name: self.array(name, value) for name, value in values.items()})

    def tree(
        self,
        groups: Mapping[str, Mapping[str, Array]],
        observed: Mapping[str, Array],
        attrs: Mapping[str, Any],
    ) -> xr.DataTree:
        """Return groups of draws, of shape (chain, draw, …), and the observations."""
        shapes = {name: value.shape[2:] for name, value in groups["posterior"].items()}
        shapes |= {name: np.shape(value) for name, value in observed.items()}
        dims = fitting_dims(self.dims, self.coords, shapes)
        used = {dim for own in dims.values() for dim in own}
        coords = {dim: c for dim, c in self.coords.items() if dim in used}
        every = {**groups, "observed_data": observed} if observed else dict(groups)
        tree = az.from_dict(every, coords=coords, dims=dims)
        tree["posterior"].attrs.update({"inference_library": "pymc_augconj", **attrs})
        return tree


def fitting_dims(
    dims: Mapping[str, Sequence[str | None]],
    coords: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int | None]],
) -> dict[str, list[str | None]]:
    """Return dims with new names, and a warning, for axes of another length than a coordinate's."""
    lengths = {dim: len(labels) for dim, labels in coords.items() if labels is not None}
    fitting: dict[str, list[str | None]] = {}
    for name in filter(shapes.__contains__, dims):
        fitting[name] = list(dims[name])
        for axis, (dim, length) in enumerate(zip(dims[name], shapes[name], strict=False)):
            if dim is None or length is None:
                continue
            # A dim without labels has the first length that occurs.
            if length != lengths.setdefault(dim, length):
                fitting[name][axis] = own = f"{name}_dim_{axis}"
                warnings.warn(
                    f"variable {name!r}: expected {lengths[dim]} entries along its dim {dim!r}, "
                    f"as its coordinate has, found the shape {tuple(shapes[name])}; it is kept "
                    f"without the coordinate, along {own!r}",
                    UserWarning,
                    stacklevel=4,
                )
    return fitting


def inducing_name(name: str) -> str:
    """Return the name of a process's values at its inducing inputs."""
    return f"{name}_u"


def inducing_inputs_name(name: str) -> str:
    """Return the name of the inducing inputs of a process, in the data of draws."""
    return f"{inducing_name(name)}_inputs"
