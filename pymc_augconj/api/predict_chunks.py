"""Predictions at the inputs of a Dask array: lazy, a chunk at a time, where the chunk is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import cloudpickle
import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.parallel.settings import blas_limit
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.predictions import predictions_tree

__all__ = ["predict_chunks"]

# Options that may hold a number for every input, which would have to be in chunks, too.
_BY_INPUT = ("ynew", "offset")


def predict_chunks(
    predict: Callable[..., DataTree], result: Any, gp: Any, Xnew: Any, options: Mapping[str, Any]
) -> DataTree:
    """Return the predictions as Dask arrays, in the chunks of ``Xnew``.

    Parameters
    ----------
    predict : callable
        ``predict(result, gp, Xnew, **options)`` for an array.
    result : Approximation
    gp : pm.gp.Latent
    Xnew : dask.array.Array, shape (P, d)
    options : mapping

    Raises
    ------
    AugmentationError
        If chunks cannot be predicted one without the other.
    """
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
    params = options["params"] or {}
    several = [name for name in _BY_INPUT if np.ndim(options[name])]
    several += [f"params[{name!r}]" for name, value in params.items() if np.ndim(value)]
    if several:
        raise AugmentationError(
            f"{several}: expected one number for all inputs of a Dask array, got arrays; predict "
            "such inputs a chunk at a time"
        )
    Xnew = Xnew.rechunk({1: -1})
    width = Xnew.shape[1]
    # Names, dims and types, at few inputs; the axis of inputs is the one that grows.
    few, more = (
        predict(result, gp, np.zeros((size, width)), **options)["predictions"].to_dataset()
        for size in (2, 3)
    )
    arrays = {
        str(name): (
            value.dtype,
            value.shape,
            next(i for i, n in enumerate(value.shape) if n != more[name].shape[i]),
        )
        for name, value in few.data_vars.items()
    }
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
