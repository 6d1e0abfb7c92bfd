"""The distributions of auxiliary variables that PyMC lacks, as PyMC distributions.

NumPy computes their log densities, without derivatives for PyTensor: PyMC can evaluate, simulate
and plot a model with such a variable, but NUTS cannot sample it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.continuous import PositiveContinuous
from pymc.distributions.shape_utils import rv_size_is_none
from pymc.logprob.abstract import _logprob
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.auxiliary.polya_gamma.distribution import logpdf_polya_gamma, random_polya_gamma


@dataclass(frozen=True, eq=False)
class Distribution:
    """A distribution of ω with parameters, as functions of NumPy arrays.

    ``logpdf`` is ``(ω, *parameters)``, broadcasting, and ``random`` ``(rng, shape, *parameters)``;
    ``positive`` says that the support is ω > 0. The name is the label in ``pm.model_to_graphviz``.
    """

    name: str
    logpdf: Callable[..., np.ndarray]
    random: Callable[..., np.ndarray]
    positive: bool = True

    def log_density(self, value: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
        """Return log p(value), −inf outside of the support."""
        if not self.positive:
            return self.logpdf(value, *parameters)
        return np.where(value > 0.0, self.logpdf(np.abs(value), *parameters), -np.inf)


#: PG(h, 0).
POLYA_GAMMA = Distribution(
    "PolyaGamma",
    lambda omega, h: logpdf_polya_gamma(omega, h, 0.0),
    lambda rng, shape, h: random_polya_gamma(rng, np.broadcast_to(h, shape), np.zeros(shape)),
)


class NumPyFunction(Op):
    """An elementwise function of NumPy's, without derivatives; ``what`` is its name in messages."""

    __props__ = ("function", "what")

    def __init__(self, function: Callable[..., np.ndarray], what: str) -> None:
        self.function, self.what = function, what

    def make_node(self, *arguments: Any) -> Apply:
        inputs = [pt.as_tensor(part).astype("float64") for part in arguments]
        output = pt.broadcast_arrays(*inputs)[0].type()
        return Apply(self, inputs, [output])

    def perform(
        self, node: Apply, inputs: Sequence[np.ndarray], outputs: list[list[np.ndarray | None]]
    ) -> None:
        with np.errstate(all="ignore"):
            found = self.function(*inputs)
        shape = np.broadcast_shapes(*(np.shape(part) for part in inputs))
        outputs[0][0] = np.array(np.broadcast_to(found, shape), dtype="float64")

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Any]:
        return [pt.broadcast_shape(*shapes, arrays_are_shapes=True)]

    def pullback(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        output_gradients: Sequence[Variable],
    ) -> list[Variable]:
        raise NotImplementedError(
            f"{self.what} is computed by NumPy and has no derivative; sample the original model "
            "with pac.sample, or with NUTS"
        )


class AuxiliaryRV(RandomVariable):
    """The random variable of :class:`AuxiliaryDistribution`."""

    name = "auxiliary_distribution"
    dtype = "floatX"
    _print_name = ("AuxiliaryDistribution", "\\operatorname{AuxiliaryDistribution}")
    __props__ = (*RandomVariable.__props__, "distribution")

    def __init__(self, distribution: Distribution, **kwargs: Any) -> None:
        self.distribution = distribution
        super().__init__(**kwargs)
        self._print_name = (distribution.name, f"\\operatorname{{{distribution.name}}}")

    def rng_fn(self, rng: np.random.Generator, *args: Any) -> np.ndarray:
        *parameters, size = args
        shape = np.broadcast_shapes(*map(np.shape, parameters)) if size is None else tuple(size)
        return self.distribution.random(rng, shape, *parameters)


class AuxiliaryDistribution(PositiveContinuous):
    """ω with a distribution that NumPy computes; pass ``default_transform=None`` unless ω > 0."""

    rv_type = AuxiliaryRV

    @classmethod
    def dist(
        cls, distribution: Distribution, parameters: Sequence[Any] = (), **kwargs: Any
    ) -> TensorVariable:
        """Return the variable outside a model; see the class."""
        return super().dist(
            [pt.as_tensor(p) for p in parameters], distribution=distribution, **kwargs
        )

    @classmethod
    def rv_op(
        cls,
        *parameters: TensorVariable,
        distribution: Distribution,
        size: Any = None,
        rng: Any = None,
        **kwargs: Any,
    ) -> TensorVariable:
        op = AuxiliaryRV(
            distribution=distribution, signature=",".join(["()"] * len(parameters)) + "->()"
        )
        rng = pt.random.shared_rng(seed=None) if rng is None else rng
        return op(*parameters, size=size, rng=rng, return_next_rng=True, **kwargs)[1]

    def support_point(rv: TensorVariable, size: Any, *parameters: TensorVariable) -> TensorVariable:
        if rv_size_is_none(size):
            return pt.ones(pt.broadcast_arrays(*parameters)[0].shape)
        return pt.ones(size)


@_logprob.register(AuxiliaryRV)
def _log_density(
    op: AuxiliaryRV,
    values: Sequence[TensorVariable],
    rng: Variable,
    size: Variable,
    *parameters: TensorVariable,
    **kwargs: Any,
) -> TensorVariable:
    (value,) = values
    what = f"the density of ω ~ {op.distribution.name}"
    return NumPyFunction(op.distribution.log_density, what)(value, *parameters)
