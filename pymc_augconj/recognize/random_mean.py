"""The mean of a Gaussian process where it depends on Gaussian latents of the model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import AugmentationError
from .compile import PointFunction

__all__ = ["affine_in_latents"]


def affine_in_latents(
    mean: PointFunction, theta: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return a mean as constant + Σ matrix @ value, over the latents that it depends on.

    Parameters
    ----------
    mean : PointFunction
        Of constrained values by the names of free variables, shape (P,).
    theta : mapping
        The hyperparameters among them.
    shapes : mapping
        Shapes of the latents, by name.

    Raises
    ------
    AugmentationError
        If it depends on a whitened process.
    """
    hidden = [name for name in mean.names if name not in theta and name not in shapes]
    if hidden:
        raise AugmentationError(
            f"expected a prior mean of the process that depends on no whitened process, but it "
            f"depends on {hidden}; write these with gp.prior(…, reparameterize=False)"
        )
    latents = [name for name in mean.names if name in shapes]
    zeros = {name: np.zeros(shapes[name]) for name in latents}
    constant = np.array(mean({**theta, **zeros}), dtype=float)
    matrices = {}
    for name in latents:
        size = int(np.prod(shapes[name]))
        columns = [
            mean({**theta, **zeros, name: unit}) - constant
            for unit in np.eye(size).reshape(-1, *shapes[name])
        ]
        matrices[name] = np.stack(columns, axis=1)
    return constant, matrices
