"""Processes whose covariance function makes them Markov, as products in linear time.

A graph K of ``pm.gp.Latent`` is read as a sum of multiples of leaves: Matérn covariances of one
input, constants, and the identity. A Matérn leaf depends on θ and the inputs through their product
with 1/ℓ alone; as a function of that product it is compared with the formulas. The parsed sum is
compared with the graph at a few inputs and random values of all parameters.

PyMC adds 1e-12 to squared distances, which takes 1e-6 of the variance of a process of ν = ½ from
the diagonal of its K; here the variance is whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, walk
from pytensor.scalar.basic import Add, Mul
from pytensor.tensor.basic import Alloc, AllocDiag, Eye
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.math import Dot

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.state_space import (
    MarkovFactor,
    MarkovInputs,
    product_with_cov,
    transitions_of,
)
from pymc_augconj.recognition.graph.interpreter import NotInterpretedError, interpret, is_constant
from pymc_augconj.recognition.graph.rewrite import constant_number, is_random
from pymc_augconj.typing import Array

# Dimension of the state and rate of the kernels at a lengthscale of one; ν = ½ twice, since PyMC's
# Exponential has half the rate.
_KINDS = ((1, 1.0), (1, 0.5), (2, 3.0**0.5), (3, 5.0**0.5))
# Inputs at which graphs are compared with formulas, and the tolerances beside and at distance zero.
_INPUTS = np.array([0.4, 0.0, 0.03, 0.1, 1.0, 1.7, 3.0, 8.0, 0.4])
_TOLERANCE, _AT_ZERO = 1e-9, 4e-6


class MarkovRoot(Op):
    """The product S w, in place of ``cholesky(K) @ w``, for the S of :class:`.MarkovPrior`.

    Its inputs are those of the process, (n, 1), the variances, rates and noise, and w, (n, k);
    ``orders`` are the dimensions of the states.
    """

    __props__ = ("orders",)

    def __init__(self, orders: tuple[int, ...]) -> None:
        self.orders = orders
        self._known: MarkovInputs | None = None

    def make_node(self, x: Any, array: Any, w: Any) -> Apply:
        """Return the node."""
        x, array, w = (pt.as_tensor(v).astype("float64") for v in (x, array, w))
        return Apply(self, [x, array, w], [w.type()])

    def inputs(self, x: Array) -> MarkovInputs:
        """Return the inputs in order; those of the last call are kept."""
        known = self._known
        if known is None or not np.array_equal(known.x, x):
            known = self._known = MarkovInputs(np.array(x), self.orders)
        return known

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        """Compute the product; NaN where K has no Cholesky factor, as PyTensor's does."""
        x, array, w = inputs
        try:
            factor = MarkovFactor(self.inputs(x[:, 0]), array)
            outputs[0][0] = np.ascontiguousarray(factor.product(np.ascontiguousarray(w.T)).T)
        except NotPositiveDefiniteError:
            outputs[0][0] = np.full(w.shape, np.nan)

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Any]:
        """Return the shape of w."""
        return [shapes[2]]


def inputs_of(node: Apply) -> MarkovInputs:
    """Return the inputs of a :class:`MarkovRoot`'s process."""
    (x,) = interpret([node.inputs[0]])
    return node.op.inputs(x[:, 0])


def inputs_at(node: Apply, X: Array) -> Array:
    """Return inputs for a :class:`MarkovRoot` from an array like its own, shape (P,)."""
    found = _value(node.inputs[0], {_root(node.inputs[0]): pt.constant(X)})
    assert found is not None  # as it has been read
    return found[0][:, 0]


def is_product_with_cholesky(node: Apply) -> bool:
    """Return whether a node is ``cholesky(K) @ w`` for one matrix K."""
    op = getattr(node.op, "core_op", node.op)
    factor = node.inputs[0].owner if isinstance(op, Dot) else None
    if factor is None:
        return False
    op = getattr(factor.op, "core_op", factor.op)
    return isinstance(op, Cholesky) and op.lower and factor.inputs[0].ndim == 2


@dataclass
class _Reading:
    """Terms of K: leaves with the scalars that multiply them."""

    orders: list[int] = field(default_factory=list)
    variances: list[Variable] = field(default_factory=list)
    rates: list[Variable] = field(default_factory=list)
    noise: list[Variable] = field(default_factory=list)
    #: Inputs of the Matérn leaves, and the other scalars of the graph.
    inputs: list[Variable] = field(default_factory=list)
    scalars: list[Variable] = field(default_factory=list)
    #: Matrices of one number, whose lengths may be constants, with that number.
    filled: list[tuple[Variable, Variable]] = field(default_factory=list)

    @property
    def array(self) -> Variable:
        """Graph of the variances, rates and noise."""
        pairs = [v for pair in zip(self.variances, self.rates, strict=True) for v in pair]
        noise = sum(self.noise[1:], self.noise[0])
        return pt.stack([_number(v) for v in [*pairs, noise]])


def linear_product(node: Apply) -> Variable | None:
    """Return a product with a Cholesky factor in linear time; None if there is no such form."""
    (K,), w = node.inputs[0].owner.inputs, node.inputs[1]
    reading = _Reading()
    if not _read(K, [], reading) or not reading.inputs or not reading.noise:
        return None
    values = []
    with suppress(NotInterpretedError):
        values = interpret(reading.inputs)
    same = [x.shape[1:] == (1,) and np.array_equal(x, values[0]) for x in values]
    if not same or not all(same) or not np.isfinite(values[0]).all():
        return None
    if not _agrees(K, reading):
        return None
    product: Variable = MarkovRoot(tuple(reading.orders))(reading.inputs[0], reading.array, w)
    return product


def _read(K: Variable, factors: list[Variable], reading: _Reading) -> bool:
    """Add the terms of a product of scalars and K; return whether all terms are known."""
    node = K.owner
    if node is None:
        return False
    kind = type(getattr(node.op, "scalar_op", None)) if isinstance(node.op, Elemwise) else None
    if kind is Add:
        return all(_read(part, factors, reading) for part in node.inputs)
    matrices = [v for v in node.inputs if not _is_scalar(v)]
    if kind is Mul and len(matrices) == 1:
        own = [v for v in node.inputs if _is_scalar(v)]
        if any((constant_number(v) or 0.0) < 0.0 for v in own):
            return False  # no covariance by itself, though the sum may be one
        reading.scalars += own
        return _read(matrices[0], [*factors, *own], reading)
    if isinstance(node.op, Eye) or _is_white_noise(node):
        more = [] if isinstance(node.op, Eye) else [node.inputs[0].owner.inputs[0]]
        reading.scalars += more
        reading.filled += [(K, scalar) for scalar in more]
        reading.noise.append(_product([*factors, *more]))
        return True
    if isinstance(node.op, Alloc) and _is_scalar(node.inputs[0]):
        reading.scalars.append(node.inputs[0])
        reading.filled.append((K, node.inputs[0]))
        _add(reading, 1, [*factors, node.inputs[0]], pt.constant(0.0))
        return True
    found = _leaf(K)
    if found is None:
        return False
    order, rate, inverse, x = found
    reading.inputs.append(x)
    reading.scalars.append(inverse)
    _add(reading, order, factors, rate * pt.abs(_number(inverse)))
    return True


def _add(reading: _Reading, order: int, factors: Sequence[Variable], rate: Variable) -> None:
    reading.orders.append(order)
    reading.variances.append(_product(factors))
    reading.rates.append(rate)


def _is_white_noise(node: Apply) -> bool:
    """Return whether a node is the diagonal matrix of one number."""
    inner = node.inputs[0].owner if isinstance(node.op, AllocDiag) else None
    return inner is not None and isinstance(inner.op, Alloc) and _is_scalar(inner.inputs[0])


def _is_scalar(v: Variable) -> bool:
    return all(getattr(v.type, "broadcastable", (False,)))


def _number(v: Variable) -> Variable:
    return pt.as_tensor(v).reshape(()).astype("float64")


def _product(factors: Sequence[Variable]) -> Variable:
    total = pt.constant(1.0)
    for factor in factors:
        total = total * _number(factor)
    return total


def _leaf(K: Variable) -> tuple[int, float, Variable, Variable] | None:
    """Return order, rate, 1/ℓ and the inputs of a Matérn covariance."""
    # With a constant ℓ other products are of data and a scalar, too.
    for scaled, inverse, x in _scaled_inputs(K):
        found = _value(K, {scaled: pt.constant(_INPUTS[:, None])})
        if found is None:
            continue
        for order, rate in _KINDS:
            # In closed form: most processes are none of these, and need no compiled filter.
            r = rate * np.abs(np.subtract.outer(_INPUTS, _INPUTS))
            polynomial = (1.0, 1.0 + r, 1.0 + r + r**2 / 3.0)[order - 1]
            if _close(found[0], polynomial * np.exp(-r)):
                return order, rate, inverse, x
    return None


def _value(graphs: Any, given: dict[Variable, Variable]) -> list[Array] | None:
    """Return the values of graphs of ``given``; None for other dependences or wrong types."""
    graphs = graphs if isinstance(graphs, list) else [graphs]
    try:
        graphs = clone_replace(graphs, given, rebuild_strict=False)
        if all(map(is_constant, graphs)):
            return interpret(graphs)
    except Exception:
        # Types differ where a graph has the number of inputs.
        return None
    return None


def _scaled_inputs(K: Variable) -> Iterator[tuple[Variable, Variable, Variable]]:
    """Yield products of data with a scalar, the scalar, and the data."""
    for v in walk([K], lambda v: () if v.owner is None or is_random(v) else v.owner.inputs):
        if v.owner is None or not isinstance(v.owner.op, Elemwise) or v.type.ndim != 2:
            continue
        if not isinstance(v.owner.op.scalar_op, Mul) or len(v.owner.inputs) != 2:
            continue
        if v.type.shape[1] not in (1, None):
            continue  # of several inputs
        for x, inverse in (v.owner.inputs, v.owner.inputs[::-1]):
            if _is_scalar(inverse) and not _is_scalar(x) and _is_data(x):
                yield v, inverse, x


def _is_data(x: Variable) -> bool:
    leaves = [v for v in ancestors([x]) if v.owner is None]
    data = all(isinstance(v, Constant | SharedVariable) for v in leaves)
    return data and not any(is_random(v) for v in ancestors([x])) and _root(x) is not None


def _root(x: Variable) -> Variable | None:
    """Return the array of inputs, all columns."""
    roots = [v for v in ancestors([x]) if v.owner is None and getattr(v.type, "ndim", 0) == 2]
    return roots[0] if len(roots) == 1 else None


def _formula(orders: Sequence[int], array: Array) -> Array:
    """Return K at the inputs of the comparison."""
    inputs = MarkovInputs(_INPUTS, orders)
    A, _ = transitions_of(inputs, array)
    return product_with_cov(inputs, array, A, np.eye(_INPUTS.size))


def _close(found: Array, expected: Array) -> bool:
    at_zero = np.equal.outer(_INPUTS, _INPUTS)
    bound = np.where(at_zero, _AT_ZERO, _TOLERANCE) * np.abs(expected).max()
    return found.shape == expected.shape and bool((np.abs(found - expected) <= bound).all())


def _agrees(K: Variable, reading: _Reading) -> bool:
    """Return whether K equals its parsed form, at a few inputs and random scalars."""
    rng = np.random.default_rng(0)
    given: dict[Variable, Variable] = {}
    for root in map(_root, reading.inputs):
        if root is None:
            return False
        columns = getattr(root.type, "shape", (None, None))[1] or 1
        given[root] = pt.constant(np.repeat(_INPUTS[:, None], columns, axis=1))
    for scalar in reading.scalars:
        value = rng.uniform(0.5, 2.0)
        shape = (1,) * scalar.type.ndim
        given[scalar] = pt.constant(np.full(shape, value))
    for K_of, scalar in reading.filled:
        where = np.eye(_INPUTS.size) if isinstance(K_of.owner.op, AllocDiag) else 1.0
        value = given[scalar].data.item() * where * np.ones((_INPUTS.size, _INPUTS.size))
        given[K_of] = pt.constant(value)
    found = _value([K, reading.array], given)
    return found is not None and _close(found[0], _formula(reading.orders, found[1]))
