"""The stacked predictors η = offset(θ) + Σ_b A_b(θ) u_b as functions of the point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.point import Argument, Point
from pymc_augconj.recognition.graph.affine import (
    affine_by_its_ops,
    at_zero,
    depends_on,
    descendants,
    pullback,
    pushforward,
)
from pymc_augconj.recognition.graph.dependence import ValueSpace
from pymc_augconj.recognition.graph.functions import PointFunction, Pullback
from pymc_augconj.recognition.graph.interpreter import op_name
from pymc_augconj.recognition.latents.innovations import GaussianVariable, Latents
from pymc_augconj.recognition.observed.observed_graph import ObservedGraph

from .coefficients import COEFFICIENTS, DIRECTION, Parts, Product, find_coefficients
from .designs import BlockMap

# Elementwise ops with a kink, whose structure at a few values of θ may differ elsewhere.
_KINKED = frozenset({"Abs", "Clip", "IntDiv", "Maximum", "Minimum", "Mod"})


# Correlated effects of a group that are looked for one by one.
_LARGEST_GROUP = 8


def innovation_key(name: str) -> Argument:
    """Return the key under which a function takes the innovation of the latent ``name``."""
    return Argument("innovation", name)


class _Simplified(NamedTuple):
    """The graphs of η at u = 0, of w, and for every block of v, A v and Aᵀ w."""

    offset: TensorVariable
    weights: TensorVariable
    products: list[tuple[TensorVariable, TensorVariable, TensorVariable]]


class Predictors:
    """η of every observed variable, one after the other.

    ``graph`` is η as a function of value variables and innovations, shape (N,), and ``innovations``
    has the inputs of these by their keys.
    """

    def __init__(
        self, matched: Sequence[ObservedGraph], latents: Latents, space: ValueSpace
    ) -> None:
        stacked = [eta for observed in matched for eta in observed.predictors]
        stacked = space.model.in_values(stacked)
        # Where a model has integrated its process out nothing has a predictor.
        stacked = stacked or [pt.constant(np.zeros(0))]
        self.graph = stacked[0] if len(stacked) == 1 else pt.concatenate(stacked)
        self.innovations = {innovation_key(latent.name): latent.input for latent in latents}
        self._latents, self._space = latents, space

    @cached_property
    def offset(self) -> PointFunction:
        """η at u = 0, as a function of the point."""
        return self._space.function(self._simplified.offset)

    def maps(self, points: Sequence[Point], drawn: Sequence[Point]) -> tuple[BlockMap, ...]:
        """Return A of every block, with the structure at ``points``.

        It is compared at points far from these, and at points that are ``drawn`` from the prior.
        """
        # PyMC's initial point last: hyperparameters that are zero there hide coefficients.
        wide = [*self._space.wide_points(points[0]), *drawn]
        points = [*points[1:], points[0]]
        return tuple(
            self._map(latent, graphs, points, wide)
            for latent, graphs in zip(self._latents, self._simplified.products, strict=True)
        )

    @cached_property
    def _simplified(self) -> _Simplified:
        # All at once: simplifying takes a fifth of the time of reading a model.
        latents = list(self.innovations.values())
        weights, transposed = pullback(self.graph, latents)
        pushed = [pushforward(weights, At, u) for At, u in zip(transposed, latents, strict=True)]
        offset, *zeroed = at_zero([self.graph, *(new for _, new in pushed)], [weights, *latents])
        maps = zip((direction for direction, _ in pushed), zeroed, transposed, strict=True)
        return _Simplified(offset, weights, list(maps))

    def _map(
        self,
        latent: GaussianVariable,
        graphs: tuple[TensorVariable, TensorVariable, TensorVariable],
        points: Sequence[Point],
        wide: Sequence[Point],
    ) -> BlockMap:
        latents, weights = list(self.innovations.values()), self._simplified.weights
        direction, product, transposed = graphs

        def products_with_transpose() -> Product:
            (graph,) = at_zero([transposed], latents)
            function = self._space.function(graph, {DIRECTION: weights})
            return Product(function, weights.type.shape[0])

        return BlockMap(
            Product(self._space.function(product, {DIRECTION: direction}), latent.total_size),
            products_with_transpose,
            points,
            wide,
            latent.name,
            self._dependence(product),
            self._parts(product, direction),
            latent.size if latent.copies > 1 and latent.size <= _LARGEST_GROUP else 1,
        )

    def _parts(self, product: TensorVariable, direction: TensorVariable) -> Parts | None:
        found = find_coefficients(product, direction, list(self._space.inputs.values()))
        if found is None:
            return None
        graph, coefs, without = found
        summed = self._space.function(without, {DIRECTION: direction, COEFFICIENTS: coefs})
        return Parts(self._space.function(graph), summed, coefs.type.shape[0])

    def _dependence(self, graph: Variable) -> str:
        """Return the kind of dependence on the hyperparameters; see :class:`BlockMap`."""
        used = [var for var in self._space.inputs.values() if depends_on(graph, var)]
        between = [*used, *descendants(graph, used)]
        if not all(var.dtype.startswith("float") for var in between):
            return "discrete"
        if {op_name(v) for v in between} & _KINKED:
            return "kinked"
        exps = [v for v in between if op_name(v) == "Exp" and v.owner.inputs[0] in used]
        return "affine" if affine_by_its_ops(graph, [*used, *exps]) else "smooth"

    @cached_property
    def _function(self) -> PointFunction:
        return self._space.function(self.graph, self.innovations)

    def __call__(self, point: Point, latents: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return η, computed from PyMC's graph, to check the linear maps against."""
        return np.array(self._function.uncompiled({**point, **_keyed(latents)}))

    def rounding(self, point: Point, latents: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return bounds on the rounding of η; zeros if they are unknown."""
        found = self._function.with_rounding({**point, **_keyed(latents)})
        return np.zeros(self.graph.type.shape) if found is None else found[1]

    @cached_property
    def _pullback(self) -> Pullback:
        return self._space.pullback(self.graph, self.innovations)

    def pullback(
        self, point: Point, latents: Mapping[str, np.ndarray], weights: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the derivatives of ⟨w, η(θ, u)⟩ by θ at fixed u."""
        return self._pullback({**point, **_keyed(latents)}, weights)


def _keyed(latents: Mapping[str, np.ndarray]) -> dict[Argument, np.ndarray]:
    return {innovation_key(name): u for name, u in latents.items()}
