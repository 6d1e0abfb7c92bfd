"""Whether the parts of an approximation that was read from a file belong together."""

from __future__ import annotations

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap

from .approximation import Approximation

__all__ = ["check_consistent"]


def check_consistent(fit: Approximation) -> None:
    """Refuse shapes that do not fit together, indices out of range, and numbers that are none.

    Raises
    ------
    AugmentationError
        Names the part.
    """
    n_rows, n_merged = len(fit.prior.offset), fit.groups.size
    _check_numbers("offset", fit.prior.offset, (n_rows,))
    for name, sites in (("h", fit.h), ("lam", fit.lam)):
        _check_numbers(name, sites, (n_rows,))
    _check_index("first", fit.groups.first, n_merged, n_rows)
    if fit.groups.inverse is not None:
        _check_index("inverse", fit.groups.inverse, n_rows, n_merged)
    sizes = {b.block.name: b.block.total_size for b in fit.blocks}
    for block, full, merged, mean in zip(
        fit.blocks, fit.prior.full_maps, fit.prior.maps, fit.means, strict=True
    ):
        name, size = block.block.name, block.block.total_size
        if size != np.prod(block.block.shape, dtype=int):
            raise AugmentationError(f"shape of {name!r}: expected {size} entries")
        if block.std is None:
            _check_numbers(f"covariance of {name!r}", block.cov, (block.block.size,) * 2)
        else:
            _check_numbers(f"standard deviations of {name!r}", block.std, (size,))
        _check_map(f"design of {name!r}", full, n_rows, size)
        _check_map(f"design of {name!r}", merged, n_merged, size)
        _check_numbers(f"mean of {name!r}", mean.constant, (size,))
        for other, matrix in mean.matrices.items():
            _check_numbers(f"mean of {name!r}", matrix, (size, sizes[other]))
    for name, value in {**fit.theta, **fit.point}.items():
        _check_numbers(name, value, np.shape(value))


def _check_map(name: str, A: LinearMap, n_rows: int, size: int) -> None:
    if isinstance(A, DenseMap):
        _check_numbers(name, A.matrix, (n_rows, size))
        if A.columns is not None:
            _check_numbers(name, A.columns, (size,))
        return
    _check_index(name, A.index, n_rows, A.size)
    if A.size != size:
        raise AugmentationError(f"{name}: expected {size} columns, found {A.size}")
    if A.coef is not None:
        _check_numbers(name, A.coef, (n_rows,))


def _check_numbers(name: str, value: np.ndarray, shape: tuple[int, ...]) -> None:
    if np.shape(value) != shape or value.dtype.kind not in "biuf":
        raise AugmentationError(
            f"{name}: expected numbers of shape {shape}, found {value.dtype} of shape {value.shape}"
        )
    if not np.isfinite(value).all():
        raise AugmentationError(f"{name}: expected finite numbers, found others")


def _check_index(name: str, index: np.ndarray, length: int, bound: int) -> None:
    if index.shape != (length,) or index.dtype.kind not in "iu":
        raise AugmentationError(
            f"{name}: expected {length} indices, found {index.dtype} of shape {index.shape}"
        )
    if length and not (index.min() >= 0 and index.max() < bound):
        raise AugmentationError(f"{name}: expected indices below {bound}")
