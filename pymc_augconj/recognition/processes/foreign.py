"""Processes of another model."""

from __future__ import annotations

from collections.abc import Sequence

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RNGConsumerOp

from pymc_augconj.errors import AugmentationError

__all__ = ["refuse_foreign_variables"]


def refuse_foreign_variables(process: str, graphs: Sequence[Variable]) -> None:
    """Refuse a process whose mean or covariance depends on another model's random variables.

    Parameters
    ----------
    process : str
        Name of the process, for the message.
    graphs : sequence of Variable
        Mean and covariance, in which the model's own random variables have been replaced.

    Raises
    ------
    AugmentationError
        If a random variable is left.
    """
    foreign = sorted(
        {
            str(var.name)
            for var in ancestors(graphs)
            if var.owner is not None and isinstance(var.owner.op, RNGConsumerOp)
        }
    )
    if foreign:
        raise AugmentationError(
            f"gp: expected the kernel and the mean of {process!r} to depend on random variables of "
            f"this model, found {', '.join(map(repr, foreign))} of another one. A copy of a model "
            "(freeze_model, pm.do, pm.observe) has new variables, but its processes keep those of "
            "the original: fit the model in which the process was made, and pass it as model= or "
            "as the context"
        )
