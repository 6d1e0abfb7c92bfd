"""The ``pm.Data`` that a process's inputs are made of, to tell whether they are still the same."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

__all__ = ["checksums", "input_data"]


def input_data(gp: Any) -> dict[str, SharedVariable]:
    """Return the data that the inputs of a ``pm.gp.Latent`` depend on, by name."""
    if not isinstance(gp.X, Variable):
        return {}
    return {
        var.name: var for var in ancestors([gp.X]) if isinstance(var, SharedVariable) and var.name
    }


def checksums(variables: Iterable[Variable]) -> dict[str, int]:
    """Return a checksum of value and shape of every ``pm.Data`` among the variables."""
    found = {}
    for var in variables:
        if isinstance(var, SharedVariable) and var.name:
            value = np.ascontiguousarray(var.get_value(borrow=True))
            if value.dtype.hasobject:
                continue
            shape = np.array(value.shape, dtype=np.int64)
            found[var.name] = zlib.crc32(value.view(np.uint8).ravel(), zlib.crc32(shape.tobytes()))
    return found
