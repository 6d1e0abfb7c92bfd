"""Constants in a graph, and graphs of constants."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from .functions import PointFunction

__all__ = ["constant_number", "folded", "is_tensor"]


def is_tensor(var: Variable) -> bool:
    """Return whether ``var`` is an array, rather than a generator, say."""
    return isinstance(var.type, TensorType)


def folded(graph: Variable) -> Variable:
    """Return a constant for a graph of constants, any other as it is."""
    if all(isinstance(leaf, Constant) for leaf in ancestors([graph]) if leaf.owner is None):
        return pt.constant(np.array(PointFunction(graph, {})({}), dtype=float))
    return graph


def constant_number(var: Variable) -> np.ndarray | None:
    """Return the number that every entry of a constant, or of a graph of constants, is."""
    tensors = [leaf for leaf in ancestors([var]) if leaf.owner is None]
    if not is_tensor(var) or not all(isinstance(leaf, Constant) for leaf in tensors):
        return None
    value = np.asarray(PointFunction(var, {})({}))
    return np.ravel(value)[:1] if np.unique(value).size == 1 else None
