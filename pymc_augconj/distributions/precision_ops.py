"""Operations of graphs on a precision matrix that is given by its entries: log|Q| and Q⁻¹ b.

They work within the band; PyTensor's own operations would take a dense matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.latents.joint import block_prior
from pymc_augconj.latents.precision import PrecisionPrior
from pymc_augconj.typing import Array


def precision_prior(block: LatentBlock, entries: Array) -> PrecisionPrior:
    """Return the prior with a precision of these entries, if it is positive definite."""
    prior = block_prior(block, entries)
    assert isinstance(prior, PrecisionPrior)
    return prior


def log_determinant(block: LatentBlock, entries: Variable) -> Variable:
    """Return the graph of log|Q|."""
    return _LogDeterminant(block)(entries)


def solve_precision(block: LatentBlock, entries: Variable, b: Variable) -> Variable:
    """Return the graph of Q⁻¹ b."""
    return _Solve(block)(entries, b)


class _OfPrecision(Op):
    """An operation whose first input has the entries of Q."""

    def __init__(self, block: LatentBlock) -> None:
        self.block = block

    def _output(self, entries: Variable) -> Any:
        raise NotImplementedError

    def make_node(self, *inputs: Variable) -> Apply:
        return Apply(self, list(inputs), [self._output(inputs[0])])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        entries, *others = inputs
        with np.errstate(all="ignore"):
            try:
                prior = precision_prior(self.block, np.asarray(entries, dtype=float))
                value = self._value(prior, *others)
            except NotPositiveDefiniteError:
                # Outside the support of the hyperparameters.
                shape = () if node.outputs[0].ndim == 0 else np.shape(inputs[-1])
                value = np.full(shape, np.nan)
        outputs[0][0] = np.asarray(value)

    def _value(self, prior: PrecisionPrior, *others: Array) -> Any:
        raise NotImplementedError


class _LogDeterminant(_OfPrecision):
    def _output(self, entries: Variable) -> Any:
        return pt.scalar(dtype="float64")

    def _value(self, prior: PrecisionPrior, *others: Array) -> Any:
        return -2.0 * prior.log_det_scale()

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], slopes: Sequence[Variable]
    ) -> list[Variable]:
        return [slopes[0] * _LogDeterminantSlopes(self.block)(inputs[0])]


class _LogDeterminantSlopes(_OfPrecision):
    def _output(self, entries: Variable) -> Any:
        return entries.type()

    def _value(self, prior: PrecisionPrior, *others: Array) -> Any:
        return prior.log_det_slopes()


class _Solve(_OfPrecision):
    def _output(self, entries: Variable) -> Any:
        return pt.vector(dtype="float64", shape=(self.block.size,))

    def _value(self, prior: PrecisionPrior, *others: Array) -> Any:
        return prior.apply_cov(np.asarray(others[0], dtype=float))

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], slopes: Sequence[Variable]
    ) -> list[Variable]:
        assert self.block.entries is not None
        rows, cols = self.block.entries
        back = _Solve(self.block)(inputs[0], slopes[0])
        by_entries = -back[rows] * outputs[0][cols]
        rest = pt.zeros(inputs[0].shape[0] - rows.size)
        if self.block.is_intrinsic:
            rest = [-back.sum() * outputs[0].sum()]
        return [pt.concatenate([by_entries, rest]), back]
