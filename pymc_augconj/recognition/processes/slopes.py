"""Derivatives of a few scalars by entries of the point."""

from __future__ import annotations

from collections.abc import Sequence

from pytensor.gradient import grad
from pytensor.graph.basic import Variable

from pymc_augconj.point import Point
from pymc_augconj.recognition.graph.functions import UNCONNECTED, Gradient, Inputs
from pymc_augconj.typing import Array

__all__ = ["Slopes"]


class Slopes(Gradient):
    """Derivatives of several scalars by entries of the point, compiled at the first call."""

    def __init__(self, scalars: Sequence[Variable], inputs: Inputs) -> None:
        super().__init__(sum(scalars), inputs)
        self._scalars = list(scalars)

    def of_each(self, point: Point) -> dict[str, list[Array]]:
        """Return by entry the derivatives of the scalars, in their order."""
        if not self._wrt:
            return {}
        found = iter(self._build()(point))
        return {name: [next(found) for _ in self._scalars] for name in self._wrt}

    def _graphs(self) -> list[Variable]:
        wrt = self._wrt.values()
        return [grad(scalar, var, **UNCONNECTED) for var in wrt for scalar in self._scalars]
