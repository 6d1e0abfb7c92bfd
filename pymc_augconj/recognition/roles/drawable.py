"""Whether a free variable can be drawn from its distribution given its parents.

A variable that nothing observed depends on is drawn, where a draw of PyMC's follows the density
that PyMC's samplers use. Where it does not, the variable is sampled by its density.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.custom import CustomDistRV, default_not_implemented
from pymc.distributions.distribution import PartialObservedRV
from pymc.distributions.multivariate import CARRV, ICARRV
from pymc.distributions.transforms import _default_transform
from pymc.model import Model
from pytensor.graph.basic import Variable, equal_computations
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.traversal import walk

from pymc_augconj.errors import RecognitionError

__all__ = ["improper_variables", "refuse_improper", "why_not_drawn"]


def why_not_drawn(model: Model, rv: Variable) -> str | None:
    """Return why draws of ``rv`` do not follow its density in ``model``; None if they do."""
    if not _is_default(model, rv):
        return "its transform= changes its distribution"
    for op in _ops_of(model, rv):
        if isinstance(op, CARRV):
            return "PyMC's draws of a CAR do not have the covariance of its density"
        if isinstance(op, PartialObservedRV):
            return "PyMC keeps it together with the observed entries"
        if isinstance(op, FlatRV | HalfFlatRV | ICARRV) or _is_without_random(op):
            return f"PyMC cannot draw from {type(op).__name__.removesuffix('RV')}"
    return None


def refuse_improper(model: Model, rv: Variable) -> None:
    """Refuse a variable that nothing observed depends on and that has no proper distribution.

    Raises
    ------
    RecognitionError
    """
    if isinstance(rv.owner.op, FlatRV | HalfFlatRV) and _is_default(model, rv):
        raise RecognitionError(
            f"variable {rv.name!r}: expected a proper prior, since nothing observed depends on it, "
            f"found {type(rv.owner.op).__name__.removesuffix('RV')}; remove the variable, or give "
            "it a proper prior"
        )


def improper_variables(model: Model) -> list[str]:
    """Return the names of free variables whose density has no integral."""
    improper = FlatRV | HalfFlatRV | ICARRV
    return [
        str(rv.name)
        for rv in model.free_RVs
        if any(isinstance(op, improper) for op in _ops_of(model, rv))
    ]


def _ops_of(model: Model, rv: Variable) -> Iterator[Op]:
    """Yield the ops that a draw of ``rv`` executes, given the other variables of the model."""
    others = set(model.basic_RVs) - {rv}

    def expand(var: Variable) -> Sequence[Variable]:
        return () if var in others or var.owner is None else var.owner.inputs

    pending = [var.owner.op for var in walk([rv], expand) if var.owner and var not in others]
    while pending:
        op = pending.pop()
        yield op
        if isinstance(op, HasInnerGraph):
            pending += [node.op for node in op.fgraph.apply_nodes]


def _is_default(model: Model, rv: Variable) -> bool:
    """Return whether the transform of ``rv`` covers the support of its distribution.

    PyMC's own transform does, and so does none; another may cover a part of it, as ``ordered``
    does.
    """
    transform, default = model.rvs_to_transforms[rv], _default_transform(rv.owner.op, rv)
    if transform is None or transform is default:
        return True
    if default is None:
        return False
    value, inputs = model.rvs_to_values[rv], rv.owner.inputs
    if default.forward(rv, *inputs).type != value.type:
        return False
    return equal_computations(
        [transform.backward(value, *inputs), transform.log_jac_det(value, *inputs)],
        [default.backward(value, *inputs), default.log_jac_det(value, *inputs)],
    )


def _is_without_random(op: Op) -> bool:
    """Return whether ``op`` is a ``CustomDist`` without ``random``."""
    # Without a given function PyMC has one that raises.
    name = getattr(getattr(op, "_random_fn", None), "__qualname__", "")
    return isinstance(op, CustomDistRV) and name.startswith(default_not_implemented.__qualname__)
