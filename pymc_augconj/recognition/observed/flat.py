"""Predictors and parameters with one entry for each observation."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import RecognitionError
from pymc_augconj.recognition.graph.dependence import static_shape

__all__ = ["flatten", "flatten_parameter"]


def flatten(
    graph: TensorVariable, shape: tuple[int, ...], rv: Variable, what: str = "predictor"
) -> TensorVariable:
    """Return ``graph`` broadcast to one entry per observation, of shape (size,)."""
    graph = graph.astype("float64")
    found = graph.type.shape
    if None in found:
        found = static_shape(graph)
    try:
        fits = np.broadcast_shapes(found, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise RecognitionError(
            f"observed variable {rv.name!r}: expected a {what} of the observations' shape {shape}, "
            f"found shape {found}; index it (f[idx]) so that it has one entry per observation"
        )
    if found == shape and len(shape) == 1:
        return pt.specify_shape(graph, shape)
    return pt.broadcast_to(graph, shape).reshape((int(np.prod(shape)),))


def flatten_parameter(
    graph: Variable, shape: tuple[int, ...], rv: Variable, name: str
) -> TensorVariable:
    """Return a parameter as one number, or likewise."""
    graph = pt.as_tensor(graph).astype("float64")
    if all(graph.type.broadcastable):
        return graph.reshape(())
    return flatten(graph, shape, rv, f"parameter {name!r}")
