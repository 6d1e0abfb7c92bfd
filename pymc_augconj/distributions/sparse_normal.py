"""A normal vector with a sparse precision matrix, as a PyMC distribution.

The distributions with a sparse precision construct this random variable: they give the positions
of Q's entries, and the entries as a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import Continuous
from pymc.distributions.shape_utils import rv_size_is_none
from pymc.logprob.abstract import _logprob
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.latents.joint import block_prior
from pymc_augconj.latents.precision import PrecisionPrior
from pymc_augconj.typing import Array, Index


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


class _Structure(LatentBlock):
    """A block that is equal to itself alone, as properties of an operation are hashed."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__
    __repr__ = object.__repr__


def precision_block(
    size: int, entries: Index, kind: str = "precision", order: Index | None = None
) -> LatentBlock:
    """Return the structure of Q: a block without a name or values."""
    nowhere: Any = None
    return _Structure(
        name="", value_name="", form="", shape=(size,), size=size, copies=1, whitened=False,
        kind=kind, scale=nowhere, entries=entries, order=order,
    )  # fmt: skip


class SparseNormalRV(RandomVariable):
    """The random variable of :class:`SparseNormal`; its inputs are the mean and Q's entries."""

    name = "sparse_normal"
    signature = "(n),(e)->(n)"
    dtype = "floatX"
    __props__ = (*RandomVariable.__props__, "block", "label")

    def __init__(self, block: LatentBlock, label: str, **kwargs: Any) -> None:
        self.block, self.label = block, label
        super().__init__(**kwargs)
        self._print_name = (label, f"\\operatorname{{{label}}}")

    def _supp_shape_from_params(self, dist_params: Any, param_shapes: Any = None) -> Any:
        return (self.block.size,)

    def rng_fn(self, rng: np.random.Generator, *args: Any) -> Array:
        """Draw mean + S v."""
        mu, entries, size = args
        if entries.size > entries.shape[-1]:
            raise NotImplementedError(f"{self.label}: expected one precision matrix, found several")
        shape = np.shape(mu) if size is None else (*size, self.block.size)
        prior, v = precision_prior(self.block, entries.ravel()), rng.standard_normal(shape)
        return mu + prior.scale(v.reshape(-1, self.block.size)).reshape(shape)


class SparseNormal(Continuous):
    """A normal vector with the precision matrix of a :func:`precision_block`."""

    rv_type = SparseNormalRV

    @classmethod
    def dist(
        cls, block: LatentBlock, entries: Variable, mu: Any, label: str, **kwargs: Any
    ) -> TensorVariable:
        """Return the variable, given the places of Q's entries and their values."""
        mu = pt.broadcast_to(pt.as_tensor(mu).astype("float64"), (block.size,))
        return super().dist([mu, entries], block=block, label=label, **kwargs)

    @classmethod
    def rv_op(
        cls,
        mu: Any,
        entries: Any,
        *,
        block: LatentBlock,
        label: str,
        size: Any = None,
        rng: Any = None,
    ) -> TensorVariable:
        """Return the random variable's node."""
        op = SparseNormalRV(block=block, label=label)
        rng = pt.random.shared_rng(seed=None) if rng is None else rng
        return op(mu, entries, size=size, rng=rng, return_next_rng=True)[1]

    def support_point(rv: TensorVariable, size: Any, mu: Any, entries: Any) -> TensorVariable:
        """Return the mean."""
        return mu if rv_size_is_none(size) else pt.broadcast_to(mu, (*size, mu.shape[-1]))


@_logprob.register(SparseNormalRV)
def _log_density(
    op: SparseNormalRV,
    values: Sequence[TensorVariable],
    rng: Variable,
    size: Variable,
    mu: TensorVariable,
    entries: TensorVariable,
    **kwargs: Any,
) -> TensorVariable:
    block, x = op.block, values[0] - mu
    # With a size the entries have dimensions of length one.
    entries = entries.reshape((entries.shape[-1],))
    assert block.entries is not None
    # Constants, as PyTensor looks at each entry of an array.
    rows, cols = map(pt.constant, block.entries)
    square = (entries[: len(block.entries[0])] * x[..., rows] * x[..., cols]).sum(axis=-1)
    if block.is_intrinsic:
        square += entries[-1] * x.sum(axis=-1) ** 2
    normal = log_determinant(block, entries) - block.size * np.log(2.0 * np.pi) - square
    return pt.switch(pt.isnan(normal), -np.inf, 0.5 * normal)
