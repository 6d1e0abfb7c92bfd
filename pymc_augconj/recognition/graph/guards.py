"""Guards against rounding: a probability of exactly 0 or 1 that is replaced by one next to it.

bambi, for one, writes p = switch(eq(p, 1), 1 − ε, p) with ε the machine epsilon, so that no log
density is −∞. That is p but where p was rounded to 1, and is read as p: the densities differ where
an observation has a probability below ε.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import EQ, Switch
from pytensor.tensor.elemwise import Elemwise

from .constants import constant_number
from .rewrite import substitute

__all__ = ["without_guards"]

# By how much a guard may change a number.
_EPSILON = float(np.finfo(np.float64).eps)


def without_guards(graphs: Sequence[Variable]) -> list[Variable]:
    """Return the graphs with every guard against rounding replaced by what it guards."""
    guards = {var: inner for var in ancestors(graphs) if (inner := _guarded(var)) is not None}
    if not guards:
        return list(graphs)
    for guard, inner in guards.items():
        while inner in guards:
            inner = guards[inner]
        guards[guard] = inner
    # What is guarded may itself depend on something guarded.
    return without_guards(substitute(graphs, guards))


def _guarded(var: Variable) -> Variable | None:
    """Return x where ``var`` is switch(eq(x, c), c′, x) with c′ equal to c but for rounding."""
    if not _is(var, Switch):
        return None
    condition, then, otherwise = var.owner.inputs
    if not _is(condition, EQ) or otherwise not in condition.owner.inputs:
        return None
    if otherwise.type.broadcastable != var.type.broadcastable or otherwise.dtype != var.dtype:
        return None
    limits = [constant_number(part) for part in condition.owner.inputs if part is not otherwise]
    value = constant_number(then)
    if len(limits) != 1 or limits[0] is None or value is None:
        return None
    return otherwise if abs(float(value[0]) - float(limits[0][0])) <= _EPSILON else None


def _is(var: Variable, scalar_op: type) -> bool:
    op = None if var.owner is None else var.owner.op
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, scalar_op)
