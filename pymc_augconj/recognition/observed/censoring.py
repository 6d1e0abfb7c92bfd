"""Censored observations: PyMC's ``Censored``, with its bounds as parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.censored import CensoredRV
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.recognition.graph.dependence import static_shape

__all__ = ["Censoring", "bounds_of", "censored_base", "read_censoring"]


@dataclass(frozen=True, eq=False)
class Censoring:
    """A censored random variable, with symbols for its bounds.

    Attributes
    ----------
    rv : Variable
        Of float type, so that its bounds may be any number.
    bounds : dict
        The bounds that there are, ``"lower"`` and ``"upper"``: symbol and graph.
    """

    rv: Variable
    bounds: dict[str, tuple[TensorVariable, TensorVariable]]


def censored_base(rv: Variable) -> Variable | None:
    """Return the random variable that ``rv`` censors, or None if it is not censored."""
    return rv.owner.inputs[0] if isinstance(rv.owner.op, CensoredRV) else None


def bounds_of(rv: Variable) -> list[Variable]:
    """Return the graphs of the bounds of a censored random variable; none for others."""
    return list(rv.owner.inputs[1:3]) if isinstance(rv.owner.op, CensoredRV) else []


def read_censoring(rv: Variable) -> Censoring | None:
    """Return ``rv`` with symbols for its bounds, or None if it is not censored."""
    base = censored_base(rv)
    if base is None:
        return None
    bounds: dict[str, tuple[Variable, Variable]] = {}
    arguments: list[Variable | None] = []
    for name, bound, none in zip(("lower", "upper"), bounds_of(rv), (-np.inf, np.inf), strict=True):
        if isinstance(bound, Constant) and np.all(bound.data == none):
            arguments.append(None)
            continue
        graph = pt.shape_padleft(bound.astype("float64"), rv.ndim - bound.ndim)
        symbol = pt.tensor(name, dtype="float64", shape=static_shape(graph))
        bounds[name] = symbol, graph
        arguments.append(symbol)
    return Censoring(CensoredRV.rv_op(base, *arguments), bounds)
