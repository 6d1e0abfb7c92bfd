"""Axes of a model's variables whose lengths are not those that the model states for their dims.

PyMC notices when it labels the draws, and all are lost.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from pymc.backends.arviz import find_constants, find_observations
from pymc.model import Model

__all__ = ["with_fitting_dims"]


def with_fitting_dims(
    model: Model, shapes: Mapping[str, Sequence[int | None]], options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return ``idata_kwargs`` in which axes that do not fit their dims have names of their own.

    Parameters
    ----------
    model : pymc.Model
    shapes : mapping
        The shapes of the variables to record, by name, as far as they are known.
    options : mapping, optional
        The ``idata_kwargs`` of ``pm.sample``.
    """
    options = dict(options or {})
    coords = {**model.coords, **options.get("coords", {})}
    lengths = {dim: len(labels) for dim, labels in coords.items() if labels is not None}
    data = {**find_observations(model), **find_constants(model)}
    shapes = {**shapes, **{name: value.shape for name, value in data.items()}}
    found = {**model.named_vars_to_dims, **options.get("dims", {})}
    for name, dims in found.items():
        fitting = list(dims)
        for axis, (dim, length) in enumerate(zip(dims, shapes.get(name, ()), strict=False)):
            if dim is None or length is None:
                continue
            # That of a dim without labels is the first that there is.
            if length != lengths.setdefault(dim, length):
                fitting[axis] = f"{name}_dim_{axis}"
                warnings.warn(
                    f"variable {name!r}: expected {lengths[dim]} entries along its dim {dim!r}, "
                    f"as its coordinate has, found the shape {tuple(shapes[name])}; it is kept "
                    f"without the coordinate, along {fitting[axis]!r}",
                    UserWarning,
                    stacklevel=4,
                )
        if fitting != list(dims):
            options["dims"] = {**options.get("dims", {}), name: fitting}
    return options
