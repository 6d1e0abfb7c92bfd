"""Any covariance function of a process, evaluated and differentiated through its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Variable

from ..model import Point
from .compile import Gradient, PointFunction

__all__ = ["GraphCovariance"]

Array = NDArray[np.float64]

_X, _Z = "process:inputs", "process:inducing"
_WEIGHTS = ("process:weights zz", "process:weights xz", "process:weights diagonal")


class GraphCovariance:
    """The covariance of a process, as a function of θ.

    Parameters
    ----------
    graphs : sequence of Variable
        K(Z, Z), K(X, Z) and the diagonal of K(X, X).
    values : mapping from str to Variable
        Entries of the point.
    X, Z : Variable
    gradient_of_inducing : bool
        Whether :meth:`pullback` returns derivatives by Z.
    """

    def __init__(
        self,
        graphs: Sequence[Variable],
        values: Mapping[str, Variable],
        X: Variable,
        Z: Variable,
        *,
        gradient_of_inducing: bool = False,
    ):
        inputs = {**values, _X: X, _Z: Z}
        self._cov = PointFunction(graphs[0], inputs)
        self._cross = PointFunction(graphs[1:], inputs)
        weights = [graph.type.clone(name=None)() for graph in graphs]
        cost = sum(
            ((w * graph).sum() for w, graph in zip(weights, graphs, strict=True)),
            start=pt.constant(0.0),
        )
        given = {_X: X, **dict(zip(_WEIGHTS, weights, strict=True))}
        if gradient_of_inducing:
            self._gradient = Gradient(cost, {**values, _Z: Z}, given)
        else:
            self._gradient = Gradient(cost, values, {**given, _Z: Z})

    def lanes(self, count: int) -> list[GraphCovariance]:
        """Return up to ``count`` of these, each for a thread of its own."""
        crosses, gradients = self._cross.copies(count), self._gradient.copies(count)
        found = [self]
        for cross, gradient in list(zip(crosses, gradients, strict=False))[1:]:
            other = copy(self)
            other._cross, other._gradient = cross, gradient
            found.append(other)
        return found

    def cov(self, point: Point, Z: Array) -> Array:
        """Return K(Z, Z)."""
        return np.asarray(self._cov({**point, _Z: Z}))

    def cross(self, point: Point, X: Array, Z: Array) -> tuple[Array, Array]:
        """Return K(X, Z) and the diagonal of K(X, X)."""
        xz, diagonal = self._cross({**point, _X: X, _Z: Z})
        return np.asarray(xz), np.asarray(diagonal)

    def pullback(self, point: Point, X: Array, Z: Array, weights: tuple[Array, Array, Array]):
        """Return the derivatives of K(Z, Z), K(X, Z) and diag K(X, X), weighted and summed."""
        found = self._gradient({**point, _X: X, _Z: Z, **dict(zip(_WEIGHTS, weights, strict=True))})
        by_inducing = found.pop(_Z, None)
        return found, by_inducing
