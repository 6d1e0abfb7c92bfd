"""Any covariance function of a process, evaluated and differentiated through its graph."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable

from pymc_augconj.point import Argument, Key, Point
from pymc_augconj.recognition.graph.functions import Gradient, Inputs, PointFunction
from pymc_augconj.typing import Array

# Weighted sums of derivatives: by θ, and by Z where these are requested.
Pulled = tuple[dict[str, Array], Array | None]

#: The keys under which functions of a covariance take the inputs X and the inducing inputs Z.
INPUTS, INDUCING = Argument("inputs"), Argument("inducing inputs")

_WEIGHTS = tuple(Argument("weights", of) for of in ("zz", "xz", "diagonal"))


class GraphCovariance:
    """The covariance of a process, as a function of θ.

    ``graphs`` are K(Z, Z), K(X, Z) and the diagonal of K(X, X), ``values`` the entries of the
    point.
    """

    def __init__(
        self,
        graphs: Sequence[Variable],
        values: Inputs,
        X: Variable,
        Z: Variable,
        *,
        gradient_of_inducing: bool = False,
    ) -> None:
        self._moves = gradient_of_inducing
        inputs: Inputs = {**values, INPUTS: X, INDUCING: Z}
        self._cov = PointFunction(graphs[0], inputs)
        self._cross = PointFunction(graphs[1:], inputs)
        weights = [graph.type.clone(name=None)() for graph in graphs]
        zz, xz, diagonal = ((w * graph).sum() for w, graph in zip(weights, graphs, strict=True))
        given = {INPUTS: X, **dict(zip(_WEIGHTS, weights, strict=True))}
        wrt: dict[Key, Variable] = {**values}
        if gradient_of_inducing:
            wrt[INDUCING] = Z
        else:
            given[INDUCING] = Z
        self._pull_cov = Gradient(zz, wrt, given)
        self._pull_cross = Gradient(xz + diagonal, wrt, given)

    def thread_copies(self, count: int) -> list[GraphCovariance]:
        """Return this object and up to ``count`` − 1 copies, one for each thread."""
        found = [self]
        functions = (self._cross, self._pull_cov, self._pull_cross)
        copies = zip(*(function.copies(count) for function in functions), strict=False)
        for cross, pull_cov, pull_cross in list(copies)[1:]:
            other = copy(self)
            other._cross, other._pull_cov, other._pull_cross = cross, pull_cov, pull_cross
            found.append(other)
        return found

    def cov(self, point: Point, Z: Array) -> Array:
        """Return K(Z, Z)."""
        return np.asarray(self._cov({**point, INDUCING: Z}))

    def cross(self, point: Point, X: Array, Z: Array) -> tuple[Array, Array]:
        """Return K(X, Z) and the diagonal of K(X, X)."""
        xz, diagonal = self._cross({**point, INPUTS: X, INDUCING: Z})
        return np.asarray(xz), np.asarray(diagonal)

    def pull_cov(self, point: Point, Z: Array, weights: Array) -> Pulled:
        """Return the derivatives of K(Z, Z), weighted and summed: by θ, and by Z."""
        found = self._pull_cov({**point, INDUCING: Z, _WEIGHTS[0]: weights})
        return found, self._by_inducing(found, Z)

    def pull_cross(self, point: Point, X: Array, Z: Array, weights: tuple[Array, Array]) -> Pulled:
        """Return the derivatives of K(X, Z) and the diagonal of K(X, X), as those of K(Z, Z)."""
        given = dict(zip(_WEIGHTS[1:], weights, strict=True))
        found = self._pull_cross({**point, INPUTS: X, INDUCING: Z, **given})
        return found, self._by_inducing(found, Z)

    def _by_inducing(self, found: dict[Any, Array], Z: Array) -> Array | None:
        if not self._moves:
            return None
        return found.pop(INDUCING, np.zeros(Z.shape))
