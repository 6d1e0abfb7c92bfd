"""How an approximation's numbers become the user's variables: prior means, and names of axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import xarray as xr
from numpy.typing import NDArray

__all__ = ["AffineMean", "Labels", "LazyMeans", "in_order"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class AffineMean:
    """What a latent's value is besides its innovation: constant + Σ_c T_c value_c.

    Attributes
    ----------
    constant : ndarray, shape (total_size,)
    matrices : dict
        T_c by the name of the other latent c, shape (total_size, total_size_c).
    """

    constant: Array
    matrices: dict[str, Array] = field(default_factory=dict)


class LazyMeans(Sequence[AffineMean]):
    """Prior means that are read when first asked for: that takes longer than a small fit."""

    def __init__(self, read: Callable[[], Sequence[AffineMean]]):
        self._read = read

    @cached_property
    def _known(self) -> tuple[AffineMean, ...]:
        return tuple(self._read())

    def __getitem__(self, index):
        return self._known[index]

    def __len__(self) -> int:
        return len(self._known)

    def __reduce__(self):
        return tuple, (self._known,)


@dataclass(frozen=True)
class Labels:
    """The names of axes and of their entries, as the user's model has them."""

    dims: dict[str, list[str]] = field(default_factory=dict)
    coords: dict[str, Array] = field(default_factory=dict)

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


def in_order(names: Sequence[str], means: Sequence[AffineMean]) -> list[int]:
    """Return the latents in an order in which every mean comes after what it depends on."""
    order: list[int] = []
    waiting = list(range(len(means)))
    while waiting:
        placed = {names[i] for i in order}
        ready = next(i for i in waiting if placed.issuperset(means[i].matrices))
        order.append(ready)
        waiting.remove(ready)
    return order
