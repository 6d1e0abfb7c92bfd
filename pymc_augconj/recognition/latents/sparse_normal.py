"""Normal vectors with a sparse precision that is given: the package's own distributions."""

from __future__ import annotations

import numpy as np
from pymc.model import Model
from pytensor.graph.basic import Constant, Variable

from pymc_augconj.recognition.graph.constants import folded

from .innovations import GaussianVariable, flat_inputs

__all__ = ["from_sparse_normal"]


def from_sparse_normal(model: Model, rv: Variable) -> GaussianVariable:
    """Return a random variable of :class:`.SparseNormal` as a Gaussian one."""
    block = rv.owner.op.block
    mu, entries = rv.owner.op.dist_params(rv.owner)
    mu = folded(mu)
    u, value_input = flat_inputs(rv.name, block.shape)
    return GaussianVariable(
        rv=rv,
        value=model.rvs_to_values[rv],
        name=rv.name,
        form=f"{rv.owner.op.label}, by its precision",
        replaced=rv,
        shape=block.shape,
        size=block.size,
        copies=1,
        whitened=False,
        kind=block.kind,
        mean=None if isinstance(mu, Constant) and not np.any(mu.data) else mu,
        scale=entries,
        input=u,
        value_input=value_input,
        entries=block.entries,
    )
