"""The arrays of ``pac.fit(data=…)`` in chunks of rows, each read where it is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from pymc_augconj.engines.sparse.chunks import Chunk
from pymc_augconj.errors import AugmentationError
from pymc_augconj.parallel.executor import Executor

__all__ = ["chunks_of", "is_dask_array"]

# Rows of a chunk where the arrays have none, or smaller ones: some 10 MB.
_ROWS = 100_000


def chunks_of(data: Mapping[str, Any], executor: Executor) -> list[tuple[Chunk, Sequence[Any]]]:
    """Return the chunks of some arrays, with what a task takes for the rows of each.

    Parameters
    ----------
    data : mapping from str to array
        Dask arrays, anything with ``shape`` that slices to NumPy arrays (Zarr, HDF5), memory maps
        or arrays, of the same number of rows. Their chunks are those of the first that has any.
    executor : Executor
        What will read them.

    Raises
    ------
    AugmentationError
        If the arrays do not have the same, known, number of rows.
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
    return [
        (Chunk(i, names, int(bounds[i + 1] - bounds[i])), parts)
        for i, parts in enumerate(zip(*columns, strict=True))
    ]


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
    """Rows of an array that is somewhere else than in memory."""

    array: Any
    rows: slice

    def load(self) -> np.ndarray:
        """Read them."""
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
        """Read them."""
        whole = np.memmap(self.path, self.dtype, "r", self.offset, self.shape, order=self.order)
        return np.array(whole[self.rows])


def _size_of(array: np.memmap) -> int:
    """Return the number of entries that the file itself has for the map; fewer for a view."""
    base: Any = array
    while isinstance(base.base, np.memmap):
        base = base.base
    return int(base.size)
