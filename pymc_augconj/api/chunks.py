"""Arrays in chunks of rows: the data of ``pac.fit(data=…)``, and new inputs of ``pac.predict``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import cloudpickle
import numpy as np

from pymc_augconj.engines.sparse.chunks import Chunk
from pymc_augconj.errors import AugmentationError
from pymc_augconj.parallel.executor import Executor, blas_limit
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.predictions import predictions_tree

# Options that may hold a number for every input, which would have to be in chunks, too.
_BY_INPUT = ("ynew", "offset")
# Rows of a chunk where the arrays have none, or smaller ones: some 10 MB.
_ROWS = 100_000


def chunks_of(data: Mapping[str, Any], executor: Executor) -> list[tuple[Chunk, Sequence[Any]]]:
    """Return the chunks of some arrays, with a task's arguments for the rows of each chunk.

    An array needs a ``shape`` and slices that are NumPy arrays. The first array that has chunks
    determines them.
    """
    sizes = {}
    for name, array in data.items():
        shape = getattr(array, "shape", ())
        if not shape or not shape[0] > 0:
            known = " of a known number of rows (call compute_chunk_sizes() on it)"
            raise AugmentationError(
                f"data[{name!r}]: expected an array{known if shape else ''}, got {array!r}"
            )
        sizes[name] = int(shape[0])
    if len(set(sizes.values())) > 1:
        raise AugmentationError(f"data: expected arrays of as many rows, got {sizes}")
    bounds = _bounds(list(data.values()), next(iter(sizes.values())))
    names = tuple(data)
    columns = [_parts(array, bounds, executor) for array in data.values()]
    sizes, each = np.diff(bounds).tolist(), zip(*columns, strict=True)
    return [(Chunk(i, names, sizes[i]), parts) for i, parts in enumerate(each)]


def is_dask_array(array: Any) -> bool:
    """Return whether an array is one of Dask's, which need not be installed."""
    return type(array).__module__.partition(".")[0] == "dask"


def _bounds(arrays: Sequence[Any], n_rows: int) -> np.ndarray:
    for array in arrays:
        if is_dask_array(array):
            return np.concatenate([[0], np.cumsum(array.chunks[0])])
    size = next((a.chunks[0] for a in arrays if getattr(a, "chunks", None)), 1)
    # Whole chunks of the file, as none should be read twice.
    step = max(_ROWS // size, 1) * size
    return np.append(np.arange(0, n_rows, step), n_rows)


def _parts(array: Any, bounds: np.ndarray, executor: Executor) -> list[Any]:
    pairs = [slice(int(first), int(last)) for first, last in pairwise(bounds)]
    if is_dask_array(array):
        rows = tuple(int(size) for size in np.diff(bounds))
        array = array.rechunk({0: rows} | dict.fromkeys(range(1, array.ndim), -1))
        return [executor.block(array.blocks[i]) for i in range(len(rows))]
    if isinstance(array, np.memmap):
        return [_MappedRows.of(array, rows) for rows in pairs]
    if isinstance(array, np.ndarray):
        # Sent to the workers once.
        return [executor.share(array[rows]) for rows in pairs]
    return [_Rows(array, rows) for rows in pairs]


@dataclass(frozen=True)
class _Rows:
    """Rows of an array that is not in memory."""

    array: Any
    rows: slice

    def load(self) -> np.ndarray:
        return np.asarray(self.array[self.rows])


@dataclass(frozen=True)
class _MappedRows:
    """Rows of a memory map, which would be pickled with all its contents."""

    path: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    order: Any
    rows: slice

    @classmethod
    def of(cls, array: np.memmap, rows: slice) -> _MappedRows | _Rows:
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        contiguous = array.flags.c_contiguous or array.flags.f_contiguous
        if not (contiguous and array.filename is not None and array.size == _size_of(array)):
            return _Rows(array, rows)
        path = str(array.filename)
        return cls(path, array.dtype, array.shape, int(array.offset), order, rows)

    def load(self) -> np.ndarray:
        whole = np.memmap(self.path, self.dtype, "r", self.offset, self.shape, order=self.order)
        return np.array(whole[self.rows])


def _size_of(array: np.memmap) -> int:
    """Return the number of entries that the file itself has for the map; fewer for a view."""
    base: Any = array
    while isinstance(base.base, np.memmap):
        base = base.base
    return int(base.size)


def predict_chunks(
    predict: Callable[..., DataTree], result: Any, gp: Any, Xnew: Any, options: Mapping[str, Any]
) -> DataTree:
    """Return predictions as Dask arrays, in the chunks of a Dask array ``Xnew``, shape (P, d)."""
    from pymc_augconj.parallel.dask_arrays import lazy_rows

    if not isinstance(result, Approximation):
        raise AugmentationError(
            "Xnew: expected an array, since draws of the process are joint over inputs, got a Dask "
            "array with draws; use an approximation, or predict a chunk at a time with joint=False"
        )
    if options["full_cov"] or options["coords"] is not None:
        raise AugmentationError(
            "Xnew: expected an array with full_cov or coords, got a Dask array; leave these out"
        )
    params = options.get("params") or {}
    several = [name for name in _BY_INPUT if np.ndim(options.get(name, 0))]
    several += [f"params[{name!r}]" for name, value in params.items() if np.ndim(value)]
    if several:
        raise AugmentationError(
            f"{several}: expected one number for all inputs of a Dask array, got arrays; predict "
            "such inputs a chunk at a time"
        )
    Xnew = Xnew.rechunk({1: -1})
    width = Xnew.shape[1]
    # Names, dims and types, at few inputs; the axis of inputs is the one that grows.
    trees = [predict(result, gp, np.zeros((size, width)), **options) for size in (2, 3)]
    few, more = (tree["predictions"].to_dataset() for tree in trees)
    arrays = {}
    for name, value in few.data_vars.items():
        growing = next(i for i, n in enumerate(value.shape) if n != more[name].shape[i])
        arrays[str(name)] = value.dtype, value.shape, growing
    # The model of the options, as the approximation is pickled without.
    pickled = cloudpickle.dumps((predict, result, gp, dict(options)))
    found = lazy_rows(_chunk, pickled, Xnew, arrays)
    data = {name: ([*map(str, few[name].dims)], values) for name, values in found.items()}
    moving = {few[name].dims[axis] for name, (_, _, axis) in arrays.items()}
    labels = {str(dim): label for dim, label in few.coords.items() if dim not in moving}
    return predictions_tree(data, labels, few.attrs)


@lru_cache(maxsize=2)
def _unpickled(pickled: bytes) -> Any:
    return cloudpickle.loads(pickled)


def _chunk(pickled: bytes, X: np.ndarray) -> dict[str, np.ndarray]:
    """Return the predictions at some inputs; on a worker."""
    predict, result, gp, options = _unpickled(pickled)
    with blas_limit(1):
        tree = predict(result, gp, X, **options)
    return {str(name): value.values for name, value in tree["predictions"].data_vars.items()}
