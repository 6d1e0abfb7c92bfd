"""Constants in a graph, and graphs of constants."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.type import TensorType

from .functions import PointFunction
from .whole_numbers import is_constant


def is_tensor(var: Variable) -> bool:
    """Return whether ``var`` is an array, rather than a generator, say."""
    return isinstance(var.type, TensorType)


def folded(graph: Variable) -> Variable:
    """Return a constant for a graph of constants, any other graph unchanged."""
    if is_constant(graph):
        return pt.constant(np.array(PointFunction(graph, {})({}), dtype=float))
    return graph


def constant_number(var: Variable) -> np.ndarray | None:
    """Return the common number of all entries of a constant, or of a graph of constants."""
    if not is_tensor(var) or not is_constant(var):
        return None
    value = np.asarray(PointFunction(var, {})({}))
    return np.ravel(value)[:1] if np.unique(value).size == 1 else None
