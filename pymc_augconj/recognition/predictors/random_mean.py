"""Prior means that depend on Gaussian latents of the model: constant + Σ matrix @ value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.point import Point
from pymc_augconj.recognition.graph.functions import PointFunction


def affine_in_latents(
    mean: PointFunction, theta: Point, shapes: Mapping[Any, tuple[int, ...]]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return a mean as constant + Σ matrix @ value, over the latents that it depends on.

    ``mean`` is a function of constrained values by the names of free variables, ``shapes`` has the
    shapes of the latents. Raises AugmentationError if the mean depends on a whitened process.
    """
    hidden = [name for name in mean.names if name not in theta and name not in shapes]
    if hidden:
        raise AugmentationError(
            "gp: expected a prior mean that depends on no whitened process, found "
            f"{hidden} in it; write these with gp.prior(…, reparameterize=False)"
        )
    latents = [name for name in mean.names if name in shapes]
    return affine_parts(
        lambda values: mean({**theta, **values}), {name: shapes[name] for name in latents}
    )


def affine_parts(
    function: Callable[[Point], np.ndarray], shapes: Mapping[Any, tuple[int, ...]]
) -> tuple[np.ndarray, dict[Any, np.ndarray]]:
    """Return constant and matrices of a function that is affine in named values of given shapes."""
    zeros = {name: np.zeros(shape) for name, shape in shapes.items()}
    constant = np.array(function(zeros), dtype=float).ravel()
    matrices = {}
    for name, shape in shapes.items():
        units = np.eye(int(np.prod(shape))).reshape(-1, *shape)
        columns = [np.ravel(function({**zeros, name: unit})) - constant for unit in units]
        matrices[name] = np.stack(columns, axis=1)
    return constant, matrices
