"""Latent blocks as the model record holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable

from pymc_augconj.block import LatentBlock
from pymc_augconj.point import Argument, Point, PointMap
from pymc_augconj.python_mode.tape import TapeBuilder
from pymc_augconj.recognition.graph.rewrite import substitute
from pymc_augconj.recognition.graph.space import ValueSpace
from pymc_augconj.typing import Array, Index

from .innovations import GaussianVariable, in_innovations
from .precision import PrecisionEntries, PrecisionPullback

_DIRECTION = Argument("direction")

# A block's scale as a function of the point, and its pullback.
Scale = tuple[PointMap[Array], Callable[[Point, Array], dict[str, Array]]]


def read_block(
    latent: GaussianVariable, latents: Sequence[GaussianVariable], space: ValueSpace
) -> LatentBlock:
    """Return one of the ``latents`` with its covariance and mean as functions of the point."""
    mean = log_peak = None
    others = [other for other in latents if other is not latent]
    if latent.log_peak is not None:
        # It does not depend on the other latents, though its graph may.
        (graph,) = in_innovations(space.model, [latent.log_peak], others, of_values=True)
        zeros = {o.value_input: pt.zeros(o.value_input.type.shape) for o in others}
        log_peak = space.function(*substitute([graph], zeros))
    if latent.mean is not None:
        graph = latent.mean.ravel().astype("float64")
        (graph,) = in_innovations(space.model, [graph], others, of_values=True)
        mean = space.function(graph, {Argument("value", o.name): o.value_input for o in others})
    graph, entries = latent.precision, latent.entries
    scale, pullback = _scale(latent, space)
    return LatentBlock(
        name=latent.name,
        value_name=latent.value.name,
        form=latent.form,
        shape=latent.shape,
        size=latent.size,
        copies=latent.copies,
        whitened=latent.whitened,
        kind=latent.kind,
        scale=scale,
        scale_pullback=pullback,
        mean=mean,
        entries=entries if graph is None else np.stack([graph.rows, graph.cols]),
        order=latent.order,
        inputs=latent.inputs,
        grid=latent.grid,
        log_factor=_log_factor(latent, space),
        log_peak=log_peak,
        is_flat=latent.is_flat,
        transform=None if latent.entry_transform is None else _EntryTransform(latent, space),
    )


def _scale(latent: GaussianVariable, space: ValueSpace) -> Scale:
    """Return the scale as a function of the point, and its pullback."""
    if latent.precision is not None:
        graph = latent.precision
        return PrecisionEntries(graph, space, latent.name), PrecisionPullback(graph, space)
    scale = latent.scale.astype("float64")
    return space.function(scale), space.pullback(scale)


class _EntryTransform:
    """See :class:`~pymc_augconj.block.EntryTransform`."""

    def __init__(self, latent: GaussianVariable, space: ValueSpace) -> None:
        transform, rv = latent.entry_transform, latent.rv
        assert transform is not None
        x = pt.tensor("x", dtype="float64", shape=(latent.total_size,))
        shaped, inputs = x.reshape(latent.shape), rv.owner.inputs
        entry = transform.forward(shaped, *inputs)
        jacobian = transform.log_jac_det(entry, *inputs).sum()
        graphs = entry.ravel(), transform.backward(shaped, *inputs).ravel(), jacobian
        self._entry, self._value, self._jacobian = (
            space.function(graph, {_DIRECTION: x}) for graph in graphs
        )

    def entry(self, value: Array) -> Array:
        return self._entry({_DIRECTION: value})

    def value(self, entry: Array) -> Array:
        return self._value({_DIRECTION: entry})

    def log_jacobian(self, value: Array) -> float:
        return float(self._jacobian({_DIRECTION: value}))

    def on_tape(self, tape: TapeBuilder, value: Index) -> tuple[Index, Index]:
        entry, jacobian = (
            tape.evaluate(function, {_DIRECTION: value})
            for function in (self._entry, self._jacobian)
        )
        return entry, jacobian


def _log_factor(latent: GaussianVariable, space: ValueSpace) -> _LogFactor | None:
    if latent.log_factor is None or isinstance(latent.log_factor, Constant):
        return None
    return _LogFactor(latent.log_factor, space)


class _LogFactor:
    """``point -> (value, {name: derivative})`` of a scalar."""

    def __init__(self, graph: Variable, space: ValueSpace) -> None:
        self._value, self._gradient = space.function(graph), space.gradient(graph)

    def __call__(self, point: Point) -> tuple[float, dict[str, np.ndarray]]:
        return float(self._value(point)), self._gradient(point)
