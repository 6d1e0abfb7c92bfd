"""The precision matrix of a random walk, by its formula.

The entries of Q are few numbers, each of them at many places: for a walk whose first value has the
precision τ₀ and whose steps have the precision τ they are τ₀ + τ, 2τ and τ on the diagonal, and −τ
beside it; and τ₀ itself, of which τ₀ + τ keeps no digit where the start is much wider than the
steps. That takes less time than the products from which :mod:`.precision` finds them.
"""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.timeseries import RandomWalkRV
from pytensor.graph.basic import Variable

from pymc_augconj.typing import Index

from .precision import CommonValues

__all__ = ["values_of_walk"]


def values_of_walk(
    rv: Variable, shape: tuple[int, ...], rows: Index, cols: Index
) -> CommonValues | None:
    """Return entries of Q at some places of the flat variable, and the precisions of first values.

    None of what is no walk of numbers by normal steps.
    """
    if not isinstance(rv.owner.op, RandomWalkRV) or rv.owner.op.ndim_supp > 1 or shape[-1] < 2:
        return None
    first, step = rv.owner.inputs[:2]
    if any(type(of.owner.op).__name__ != "NormalRV" for of in (first, step)):
        return None
    *batch, n = shape
    firsts = np.arange(np.prod(batch, dtype=int))
    if rows.size != firsts.size * (3 * n - 2):
        return None
    tau_first, tau = (
        pt.broadcast_to(_precision(of), (1, *batch))[0].ravel() for of in (first, step)
    )
    values = pt.stack([tau_first + tau, 2.0 * tau, tau, -tau, tau_first], axis=1).ravel()
    walk, time = rows // n, rows % n
    diagonal = 0 + (time > 0) + (time == n - 1)
    kinds = diagonal * (rows == cols) + 3 * (rows != cols)
    return CommonValues(values, np.append(5 * walk + kinds, 5 * firsts + 4))


def _precision(normal: Variable) -> Variable:
    _, sigma = normal.owner.op.dist_params(normal.owner)
    # No precision where PyMC's density has no value.
    return pt.switch(sigma > 0.0, sigma**-2.0, float("nan"))
