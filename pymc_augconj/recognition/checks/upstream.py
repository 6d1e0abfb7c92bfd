"""Faults of PyMC and PyTensor that change a density; the package's own is right."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import pytensor
from pymc.model import Model
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.subtensor import Subtensor, indices_from_subtensor

from pymc_augconj.point import Point
from pymc_augconj.python_mode import WRONG, python_mode
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.functions import OUT_OF_SUPPORT, PointFunction
from pymc_augconj.recognition.graph.names import distribution_name
from pymc_augconj.recognition.graph.rewrite import is_random
from pymc_augconj.recognition.graph.whole_numbers import overflows

__all__ = ["warn_of_faults"]

# PyTensor has some constants in single precision.
_ROUNDING = 1e-6


def warn_of_faults(model: Model, densities: Mapping[str, Variable], start: Point) -> None:
    """Warn where PyMC's log density is wrong, as it is written or as PyTensor compiles it.

    Parameters
    ----------
    model : pymc.Model
    densities : mapping
        PyMC's log densities by the names of variables and potentials.
    start : mapping
    """
    variables = [*model.basic_RVs, *model.potentials]
    last_entries = [var for var in ancestors(variables) if _is_last_entry(var)]
    for var in variables:
        density = densities.get(var.name)
        overflow = None if density is None else next(overflows([density]), None)
        if overflow is None and not depends_on(var, last_entries):
            continue
        right, compiled = _values(model, var, start)
        is_right = np.isclose(right, compiled, rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True)
        if overflow is not None:
            function = f"pm.{distribution_name(var)}'s logp" if is_random(var) else "the potential"
            fault = (
                f"{function} computes with whole numbers in eight to 64 bits, in which they "
                "overflow (write 10.0 rather than 10)"
            )
        elif not is_right:
            fault = (
                f"PyTensor's rewrite {WRONG[0]} takes the first entry for the last, x[:-2:-1] "
                "(write x[-1])"
            )
        else:
            continue
        outcome = (
            "PyMC's log density is wrong as it is written, and right as it is compiled"
            if is_right
            else "near the start PyMC's compiled log density, which pm.sample uses, is "
            f"{compiled:.4g}, and {right:.4g} is right"
        )
        warnings.warn(
            f"variable {var.name!r}: {fault}; {outcome}; this package computes the right one",
            RuntimeWarning,
            stacklevel=2,
        )


def _values(model: Model, var: Variable, start: Point) -> tuple[float, float]:
    """Return the right log density, and the one that PyTensor compiles for PyMC, near the start."""
    rng = np.random.default_rng(0)
    # Entries that are equal there would hide that one is taken for the other.
    point = {name: value + 0.1 * rng.standard_normal(value.shape) for name, value in start.items()}
    density = model.logp(vars=[var]).astype("float64")
    inputs = {value.name: value for value in model.value_vars}
    point = {name: np.asarray(point[name], inputs[name].dtype) for name in inputs}
    function = PointFunction(density, inputs)
    given = [inputs[name] for name in function.names]
    mode = python_mode(with_wrong=True).including(OUT_OF_SUPPORT)
    compiled = pytensor.function(given, density, mode=mode)
    with np.errstate(all="ignore"):
        return float(function(point)), float(compiled(*(point[name] for name in function.names)))


def _is_last_entry(var: Variable) -> bool:
    """Return whether a variable is one entry, from the end, as in x[:-2:-1]."""
    node = var.owner
    if node is None or not isinstance(node.op, Subtensor) or 1 not in var.type.shape:
        return False
    indices = indices_from_subtensor(node.inputs[1:], node.op.idx_list)
    steps = [i.step for i in indices if isinstance(i, slice) and i.start is None]
    return any(isinstance(step, Constant) and step.data < 0 for step in steps)
