"""Parts of Dask arrays, with or without a cluster; imported only for such arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np


class ArrayPart:
    """A part of a Dask array, computed in the process that asks for it."""

    def __init__(self, array: Any) -> None:
        # The graph of this part only; pickled once, since that takes longer than pickling a task.
        self._pickled = cloudpickle.dumps(dask.optimize(array)[0])

    def load(self) -> np.ndarray:
        """Compute the part."""
        return np.asarray(cloudpickle.loads(self._pickled).compute(scheduler="synchronous"))


def lazy_rows(
    function: Callable[[bytes, Any], Mapping[str, Any]],
    pickled: bytes,
    rows: Any,
    arrays: Mapping[str, tuple[Any, tuple[int, ...], int]],
) -> dict[str, Any]:
    """Return the results of ``function(pickled, chunk)`` for all chunks of rows, as Dask arrays.

    ``rows`` must not have chunks along its second axis. ``arrays`` has type, shape and axis of rows
    of each result; the length of that axis is ignored.
    """
    shared = dask.delayed(pickled)
    tasks = [dask.delayed(function)(shared, block) for block in rows.to_delayed().ravel()]
    results = {}
    for name, (dtype, shape, axis) in arrays.items():
        shapes = [(*shape[:axis], size, *shape[axis + 1 :]) for size in rows.chunks[0]]
        pairs = zip(tasks, shapes, strict=True)
        parts = [da.from_delayed(task[name], own, dtype) for task, own in pairs]
        results[name] = da.concatenate(parts, axis=axis)
    return results
