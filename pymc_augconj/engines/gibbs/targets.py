"""Densities of a vector that the moves of the Gibbs step hand to the updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from pymc_augconj.errors import (
    AugmentationError,
    NotPositiveDefiniteError,
    UncertainEvidenceError,
)
from pymc_augconj.model import EntryDensities, Hyperparameter
from pymc_augconj.point import Point
from pymc_augconj.typing import Array

__all__ = ["EntryTarget", "Gradient", "PointTarget", "Target", "Update"]


class Target(Protocol):
    """A log density of some hyperparameters, flattened, and its gradient where it has one."""

    def __call__(self, x: Array) -> float:
        """Return the log density at ``x``, up to a constant; −∞ outside the support."""
        ...

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Return the log density at ``x`` and its gradient."""
        ...


#: The log density and its derivatives, by entry of the point.
Gradient = Callable[[Point], tuple[float, Mapping[str, Array]]]
#: ``(target, flat value, generator) -> new value``, which evaluates the flat value first.
Update = Callable[[Target, Array, np.random.Generator], Array]


class PointTarget:
    """A :class:`Target` on the flattened entries of some hyperparameters.

    A density that is no number, or infinite where a value over- or underflows, is taken as zero.
    Raises AugmentationError if it is zero at the first value, above which everything would be
    accepted.
    """

    def __init__(
        self,
        point: Point,
        members: tuple[Hyperparameter, ...],
        log_density: Callable[[Point], Any],
        gradient: Gradient | None,
    ) -> None:
        self._candidate = dict(point)
        self._members, self._log_density, self._gradient = members, log_density, gradient
        self._known: dict[bytes, float] = {}
        #: Values at which rounding leaves the density no digits.
        self.refused: list[Array] = []
        stops = accumulate(h.size for h in members)
        self._slices = [
            (h.value_name, slice(stop - h.size, stop), h.shape)
            for h, stop in zip(members, stops, strict=True)
        ]
        self.evaluations = 0

    def write(self, point: dict[str, Any], x: Array) -> None:
        """Write the flat value ``x`` into ``point``."""
        for name, part, shape in self._slices:
            point[name] = np.array(x[part].reshape(shape))

    def __call__(self, x: Array) -> float:
        # Coordinate-wise updates come back to the value they started from.
        key = x.tobytes()
        if key not in self._known:
            self._known[key] = self._evaluate(x, lambda at: (float(self._log_density(at)), {}))[0]
        return self._known[key]

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        assert self._gradient is not None
        value, slopes = self._evaluate(x, self._gradient)
        flat = [np.ravel(slopes.get(h.value_name, 0.0)) for h in self._members]
        pairs = zip(flat, self._members, strict=True)
        return value, np.concatenate([np.broadcast_to(slope, (h.size,)) for slope, h in pairs])

    def _evaluate(self, x: Array, function: Gradient) -> tuple[float, Mapping[str, Array]]:
        self.write(self._candidate, x)
        self.evaluations += 1
        cause: NotPositiveDefiniteError | None = None
        value = -math.inf
        # Where a covariance has no Cholesky factor in floating point the density is taken as
        # zero, which is what PyMC's own log density does there.
        try:
            value, slopes = function(self._candidate)
            if math.isfinite(value):
                return value, slopes
        except UncertainEvidenceError:
            self.refused.append(x.copy())
            return -math.inf, {}
        except NotPositiveDefiniteError as error:
            cause = error
        if self.evaluations == 1:
            names = ", ".join(h.name for h in self._members)
            raise AugmentationError(
                f"{names}: expected a finite log density where an update begins, found "
                f"{cause or value}; start elsewhere, initvals={{…}}, or give a prior that keeps "
                "values from over- and underflow"
            ) from cause
        return -math.inf, {}


class EntryTarget:
    """Log densities of the entries of a vector, which are independent given everything else.

    A density that is no number is taken as zero. Raises AugmentationError if one of them is not
    finite at the first value asked for.
    """

    def __init__(self, point: Point, member: Hyperparameter, densities: EntryDensities) -> None:
        self._candidate, self._member, self._densities = dict(point), member, densities
        self.evaluations = 0

    def write(self, point: dict[str, Any], x: Array) -> None:
        """Write the flat value ``x`` into ``point``."""
        point[self._member.value_name] = np.array(x.reshape(self._member.shape))

    def __call__(self, x: Array) -> Array:
        """Return the log density of each entry at ``x``, up to a constant."""
        self.write(self._candidate, x)
        self.evaluations += 1
        found = self._densities(self._candidate)
        found[np.isnan(found)] = -np.inf
        if self.evaluations == 1 and not np.isfinite(found).all():
            bad = np.flatnonzero(~np.isfinite(found))[0]
            raise AugmentationError(
                f"{self._member.name}: expected a finite log density where an update begins, found "
                f"{found[bad]} of entry {bad}; start elsewhere, initvals={{…}}, or give a prior "
                "that keeps values from over- and underflow"
            )
        return found
