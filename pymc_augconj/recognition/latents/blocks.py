"""Latent blocks as the model record holds them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_augconj.model import Argument, LatentBlock, Point
from pymc_augconj.recognition.graph.functions import Gradient
from pymc_augconj.recognition.graph.space import ValueSpace

from .normal import GaussianVariable, in_innovations

__all__ = ["read_block"]

_DIRECTION = Argument("direction")


def read_block(
    latent: GaussianVariable, latents: Sequence[GaussianVariable], space: ValueSpace
) -> LatentBlock:
    """Return one of the ``latents`` with its covariance and mean as functions of the point."""
    (scale,) = space.in_values([latent.scale.astype("float64")])
    mean = None
    if latent.mean is not None:
        others = [other for other in latents if other is not latent]
        graph = latent.mean.ravel().astype("float64")
        (graph,) = space.in_values(in_innovations(space.model, [graph], others, of_values=True))
        mean = space.function(graph, {Argument("value", o.name): o.value_input for o in others})
    return LatentBlock(
        name=latent.name,
        value_name=latent.value.name,
        form=latent.form,
        shape=latent.shape,
        size=latent.size,
        copies=latent.copies,
        whitened=latent.whitened,
        kind=latent.kind,
        scale=space.function(scale),
        scale_pullback=_ScalePullback(scale, space),
        mean=mean,
    )


class _ScalePullback:
    """``(point, G) -> {name: derivative}`` of ⟨G, scale(θ)⟩."""

    def __init__(self, scale: Variable, space: ValueSpace):
        self._scale, self._space = scale, space

    @cached_property
    def _gradient(self) -> Gradient:
        direction = pt.tensor("direction", dtype="float64", shape=(None,) * self._scale.ndim)
        return self._space.gradient((direction * self._scale).sum(), {_DIRECTION: direction})

    def __call__(self, point: Point, direction):
        return self._gradient({**point, _DIRECTION: direction})
