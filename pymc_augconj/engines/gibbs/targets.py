"""What one move of the Gibbs step hands to the update that explores it: a density of a vector."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.model import Hyperparameter

__all__ = ["PointTarget", "Target", "Update"]

Array = NDArray[np.float64]


class Target(Protocol):
    """A log density of some hyperparameters, flattened, and its gradient where it has one."""

    def __call__(self, x: Array) -> float:
        """Return the log density at ``x``, up to a constant; −∞ outside the support."""
        ...

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Return the log density at ``x`` and its gradient."""
        ...


#: ``(target, flat value, generator) -> new value``
Update = Callable[[Target, Array, np.random.Generator], Array]


class PointTarget:
    """A :class:`Target` on the flattened entries of some hyperparameters."""

    def __init__(self, point, members: tuple[Hyperparameter, ...], log_density, gradient):
        self._candidate = dict(point)
        self._members, self._log_density, self._gradient = members, log_density, gradient
        self._known: dict[bytes, float] = {}
        stops = accumulate(h.size for h in members)
        self._slices = [
            (h.value_name, slice(stop - h.size, stop), h.shape)
            for h, stop in zip(members, stops, strict=True)
        ]
        self.evaluations = 0

    def write(self, point: dict, x: Array) -> None:
        """Write the flat value ``x`` into ``point``."""
        for name, part, shape in self._slices:
            point[name] = np.array(x[part].reshape(shape))

    def __call__(self, x: Array) -> float:
        # Coordinate-wise updates come back to the value they started from.
        key = x.tobytes()
        if key not in self._known:
            self._known[key] = self._evaluate(x)
        return self._known[key]

    def _evaluate(self, x: Array) -> float:
        self.evaluations += 1
        self.write(self._candidate, x)
        # Where a covariance has no Cholesky factor in floating point the density is taken as
        # zero, which is what PyMC's own log density does there.
        try:
            value = self._log_density(self._candidate)
        except NotPositiveDefiniteError:
            return -np.inf
        return value if not np.isnan(value) else -np.inf

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        self.evaluations += 1
        self.write(self._candidate, x)
        try:
            value, slopes = self._gradient(self._candidate)
        except NotPositiveDefiniteError:
            return -np.inf, np.zeros_like(x)
        zero = np.zeros(1)
        parts = [
            np.broadcast_to(np.ravel(slopes.get(h.value_name, zero)), (h.size,))
            for h in self._members
        ]
        return value, np.concatenate(parts)
