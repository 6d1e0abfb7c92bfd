"""The ``pm.Data`` and the variables of other models that graphs depend on."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from pymc_augconj.errors import AugmentationError
from pymc_augconj.recognition.graph.affine import value_leaves
from pymc_augconj.recognition.graph.rewrite import Variables, is_random


def data_behind(
    model: Model, gp: Any, *, observations: bool, observed: str | None
) -> dict[str, SharedVariable]:
    """Return the data that a ``pm.gp.Latent`` depends on, by name.

    ``observations`` adds the data of observed variables that depend on it (``observed``, or any),
    but not the observations themselves.
    """
    roots = [gp.f]
    if observations:
        named = [rv for rv in model.observed_RVs if observed in (None, rv.name)]
        roots += [rv for rv in named if gp.f in set(ancestors([rv]))]
    return _shared(roots)


def input_data(gp: Any) -> dict[str, SharedVariable]:
    """Return the data that the inputs of a ``pm.gp.Latent`` depend on, by name."""
    return _shared([gp.X]) if isinstance(gp.X, Variable) else {}


def _shared(variables: Iterable[Variable]) -> dict[str, SharedVariable]:
    return {
        var.name: var
        for var in ancestors(variables)
        if isinstance(var, SharedVariable) and var.name
    }


def data_as_constants(variables: Iterable[Variable]) -> dict[SharedVariable, Constant]:
    """Return the current values, as constants, of all data that variables depend on.

    A graph in which they replace the data is not affected by ``pm.set_data``.
    """
    return {
        var: var.type.make_constant(var.get_value(borrow=True))
        for var in ancestors(variables)
        if isinstance(var, SharedVariable) and isinstance(var.type, TensorType)
    }


def sums_of_arrays(graph: Variable) -> list[float]:
    """Return a weighted sum over each numerical array that a graph is computed from."""
    found = []
    for leaf in value_leaves([graph]):
        if isinstance(leaf, Constant | SharedVariable):
            value = np.asarray(leaf.data if isinstance(leaf, Constant) else leaf.get_value())
            if value.ndim > 0 and value.dtype.kind in "biuf":
                weights = np.random.default_rng(value.size).uniform(1.0, 2.0, value.size)
                found.append(float(value.ravel() @ weights))
    return sorted(found)


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


def refuse_foreign_variables(process: str, graphs: Variables) -> None:
    """Refuse a process whose mean or covariance has another model's random variables in it.

    In ``graphs`` the model's own random variables have been replaced.
    """
    foreign = sorted({str(var.name) for var in ancestors(graphs) if is_random(var)})
    if foreign:
        raise AugmentationError(
            f"gp: expected the kernel and the mean of {process!r} to depend on random variables of "
            f"this model, found {', '.join(map(repr, foreign))} of another one. A copy of a model "
            "(freeze_model, pm.do, pm.observe) has new variables, but its processes keep the "
            "variables of the original: fit the model in which the process was made, and pass it "
            "as model= or as the context"
        )
