"""From the variables of a PyMC model to the entries of a point, on the unconstrained scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from pymc.model import Model

from pymc_augconj.model import Point
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.graph.rewrite import substitute

__all__ = ["point_function"]


def point_function(model: Model) -> Callable[[Mapping[str, np.ndarray]], Point]:
    """Return the function that makes a point from values of the free variables, by name."""
    transforms = {rv: model.rvs_to_transforms[rv] for rv in model.free_RVs}
    moved = [rv for rv, transform in transforms.items() if transform is not None]
    names = [model.rvs_to_values[rv].name for rv in moved]
    graphs = [transforms[rv].forward(rv, *rv.owner.inputs) for rv in moved]
    given = {rv: rv.type(rv.name) for rv in model.free_RVs}
    forward = PointFunction(substitute(graphs, given), {rv.name: given[rv] for rv in given})
    kept = {rv.name: model.rvs_to_values[rv].name for rv in model.free_RVs if rv not in moved}

    def point(values: Mapping[str, np.ndarray]) -> Point:
        found = {entry: np.asarray(values[name]) for name, entry in kept.items()}
        new = forward({name: values[name] for name in forward.names}) if moved else []
        return found | dict(zip(names, map(np.asarray, new), strict=True))

    return point
