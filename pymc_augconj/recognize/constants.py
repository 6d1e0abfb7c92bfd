"""Numbers that stand in graphs, written as such or computed from such."""

from __future__ import annotations

import numpy as np
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from .compile import PointFunction

__all__ = ["constant_number"]


def constant_number(var: Variable) -> np.ndarray | None:
    """Return the number that every entry of a constant, or of a graph of constants, is."""
    tensors = [leaf for leaf in ancestors([var]) if leaf.owner is None]
    if not isinstance(var.type, TensorType) or not all(
        isinstance(leaf, Constant) for leaf in tensors
    ):
        return None
    value = np.asarray(PointFunction(var, {})({}))
    return np.ravel(value)[:1] if np.unique(value).size == 1 else None
