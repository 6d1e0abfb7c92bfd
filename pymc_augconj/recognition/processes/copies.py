"""Models with other graphs of the same variables, written variable by variable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pymc as pm
from pymc.model import Model
from pytensor.graph.basic import Variable


def empty_like(model: Model) -> Model:
    """Return a model without variables, with the coordinates of ``model``."""
    # Names are those of the user's model, prefix included.
    new = pm.Model(model=None)
    for dim, labels in model.coords.items():
        new.add_coord(dim, labels, length=model.dim_lengths[dim])
    return new


def register(
    model: Model, var: Variable, graph: Variable, starts: Mapping[Variable, Any], **more: Any
) -> Variable:
    """Register ``graph`` in the model in context as what ``var`` is in ``model``.

    ``starts`` has initial values of free variables, ``more`` are dims and observations.
    """
    if var in model.deterministics:
        return pm.Deterministic(var.name, graph, **more)
    if var in model.potentials:
        return pm.Potential(var.name, graph, **more)
    if var in model.observed_RVs:
        more = {"observed": model.rvs_to_values[var]} | more
    else:
        transform = model.rvs_to_transforms[var]
        more |= {
            "initval": starts.get(var), "transform": transform, "default_transform": None
        }  # fmt: skip
    return pm.modelcontext(None).register_rv(graph, var.name, **more)
