"""Parts of Dask arrays, with no cluster or any; imported only where such an array is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np

__all__ = ["ArrayPart", "lazy_rows"]


class ArrayPart:
    """A part of a Dask array, computed in the process that asks for it."""

    def __init__(self, array: Any) -> None:
        # Only what this part needs; and once, since a graph takes longer to pickle than a task.
        self._pickled = cloudpickle.dumps(dask.optimize(array)[0])

    def load(self) -> np.ndarray:
        """Compute it."""
        return np.asarray(cloudpickle.loads(self._pickled).compute(scheduler="synchronous"))


def lazy_rows(
    function: Callable[[bytes, Any], Mapping[str, Any]],
    pickled: bytes,
    rows: Any,
    arrays: Mapping[str, tuple[Any, tuple[int, ...], int]],
) -> dict[str, Any]:
    """Return what ``function(pickled, chunk)`` gives for every chunk of rows, as Dask arrays.

    Parameters
    ----------
    function : callable
    pickled : bytes
    rows : dask.array.Array, shape (P, d)
        Not divided along its second axis.
    arrays : mapping from str to (dtype, shape, int)
        Type and shape of each result, and its axis of rows, whose length does not count.
    """
    shared = dask.delayed(pickled)
    tasks = [dask.delayed(function)(shared, block) for block in rows.to_delayed().ravel()]
    found = {}
    for name, (dtype, shape, axis) in arrays.items():
        parts = [
            da.from_delayed(task[name], (*shape[:axis], size, *shape[axis + 1 :]), dtype)
            for task, size in zip(tasks, rows.chunks[0], strict=True)
        ]
        found[name] = da.concatenate(parts, axis=axis)
    return found
