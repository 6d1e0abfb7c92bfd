"""Derivatives of a few scalars by entries of the point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np
from pytensor.gradient import grad
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import explicit_graph_inputs

from .compile import PointFunction

__all__ = ["Slopes"]


class Slopes:
    """Derivatives of several scalars by entries of the point, compiled at the first call.

    Parameters
    ----------
    scalars : sequence of Variable
    inputs : mapping from str to Variable
        Entries of the point; derivatives are taken by the float ones that a scalar depends on.
    """

    def __init__(self, scalars: Sequence[Variable], inputs: Mapping[str, Variable]):
        leaves = set(explicit_graph_inputs(list(scalars)))
        self._scalars, self._inputs = list(scalars), inputs
        self._wrt = {
            name: var
            for name, var in inputs.items()
            if var in leaves and var.dtype.startswith("float")
        }
        self._function: PointFunction | None = None

    def __call__(self, point: Mapping[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
        """Return by entry the derivatives of the scalars, in their order."""
        if not self._wrt:
            return {}
        found = self._build()(point)
        count = len(self._scalars)
        return {name: found[i * count : (i + 1) * count] for i, name in enumerate(self._wrt)}

    def _build(self) -> PointFunction:
        if self._function is None:
            options = {"disconnected_inputs": "ignore", "return_disconnected": "zero"}
            graphs = [
                grad(scalar, var, **options)
                for var in self._wrt.values()
                for scalar in self._scalars
            ]
            self._function = PointFunction(graphs, self._inputs)
        return self._function

    def copies(self, count: int) -> list[Slopes]:
        """Return this and further ones, each for a thread of its own."""
        if not self._wrt:
            return [self] * count
        found = [self]
        for function in self._build().copies(count)[1:]:
            other = copy(self)
            other._function = function
            found.append(other)
        return found
