"""Processes whose covariance function makes them Markov, as products in linear time.

A graph K of ``pm.gp.Latent`` is read as a sum of products of scalars and leaves: Matérn, cosine and
periodic covariances of one input, constants, the identity, and products φφᵀ of a column of data
(``Linear``, ``ScaledCov``). A Matérn leaf depends on θ and the inputs through their product with
1/ℓ alone; as a function of that product it is compared with the formulas. The parsed sum is
compared with the graph at a few inputs and random values of all parameters.

PyMC adds 1e-12 to squared distances, which takes 1e-6 of the variance of a process of ν = ½ from
the diagonal of its K; here the variance is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Add, Mul, TrueDiv
from pytensor.tensor.basic import Alloc, AllocDiag, Eye
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.math import Dot

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.state_space import (
    COSINE,
    PERIODIC,
    SHORTEST,
    MarkovFactor,
    MarkovInputs,
    product_with_cov,
    transitions_of,
)
from pymc_augconj.recognition.graph.interpreter import NotInterpretedError, interpret, is_constant
from pymc_augconj.recognition.graph.rewrite import (
    Variables,
    constant_number,
    down_to_random,
    is_random,
)
from pymc_augconj.typing import Array

# Dimension of the state, 0 for the cosine, rate or frequency, and formula at a lengthscale of one;
# ν = ½ twice, since PyMC's Exponential has half the rate.
_KINDS: tuple[tuple[int, float, Callable[[Array], Array]], ...] = (
    (1, 1.0, lambda r: np.exp(-r)),
    (1, 0.5, lambda r: np.exp(-r)),
    (2, 3.0**0.5, lambda r: (1.0 + r) * np.exp(-r)),
    (3, 5.0**0.5, lambda r: (1.0 + r + r**2 / 3.0) * np.exp(-r)),
    (0, 2.0 * np.pi, np.cos),
)
# Inputs at which graphs are compared with formulas, and the tolerances beside and at distance zero.
_INPUTS = np.array([0.4, 0.0, 0.03, 0.1, 1.0, 1.7, 3.0, 8.0, 0.4])
_TOLERANCE, _AT_ZERO = 1e-9, 4e-6


class MarkovRoot(Op):
    """The product S w, in place of ``cholesky(K) @ w``, for the S of :class:`.MarkovPrior`.

    Its inputs are those of the process with its columns, (n, 1 + m), the array of a
    :class:`.MarkovFactor`, and w, (n, k). ``orders`` and ``loadings`` are as of
    :class:`.MarkovInputs`.
    """

    __props__ = ("orders", "loadings")

    def __init__(self, orders: tuple[int, ...], loadings: tuple[tuple[int, int], ...] = ()) -> None:
        self.orders, self.loadings = orders, loadings
        self._known: MarkovInputs | None = None

    def make_node(self, x: Any, array: Any, w: Any) -> Apply:
        x, array, w = (pt.as_tensor(v).astype("float64") for v in (x, array, w))
        return Apply(self, [x, array, w], [w.type()])

    def inputs(self, x: Array) -> MarkovInputs:
        """Return the inputs in order, for x with columns; those of the last call are kept."""
        known = self._known
        if known is None or not np.array_equal(known.table, x):
            known = self._known = MarkovInputs(np.array(x), self.orders, self.loadings)
        return known

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        """Compute the product; NaN where K has no Cholesky factor, as PyTensor's does."""
        x, array, w = inputs
        try:
            factor = MarkovFactor(self.inputs(x), array)
            outputs[0][0] = np.ascontiguousarray(factor.product(np.ascontiguousarray(w.T)).T)
        except NotPositiveDefiniteError:
            outputs[0][0] = np.full(w.shape, np.nan)

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Any]:
        return [shapes[2]]


def inputs_of(node: Apply) -> MarkovInputs:
    """Return the inputs of a :class:`MarkovRoot`'s process."""
    (x,) = interpret([node.inputs[0]])
    return node.op.inputs(x)


def inputs_beside(node: Apply, X: Array) -> MarkovInputs:
    """Return the inputs of a :class:`MarkovRoot`'s process, then those from an array like its."""
    found = _value(node.inputs[:1], {_root(node.inputs[0]): pt.constant(X)})
    assert found is not None  # as it has been read
    table = np.vstack([inputs_of(node).table, found[0]])
    return MarkovInputs(table, node.op.orders, node.op.loadings)


def is_product_with_cholesky(node: Apply) -> bool:
    """Return whether a node is ``cholesky(K) @ w`` for one matrix K."""
    op = getattr(node.op, "core_op", node.op)
    factor = node.inputs[0].owner if isinstance(op, Dot) else None
    if factor is None:
        return False
    op = getattr(factor.op, "core_op", factor.op)
    return isinstance(op, Cholesky) and op.lower and factor.inputs[0].ndim == 2


_ZERO = pt.constant(0.0)


class _Term(NamedTuple):
    """A product of scalars and leaves; of order 0 a multiple of the identity."""

    order: int = 1
    variance: Variable = pt.constant(1.0)
    rate: Variable = _ZERO
    wave: int = 0
    frequency: Variable = _ZERO
    a: Variable = _ZERO
    columns: tuple[Variable, ...] = ()

    def times(self, other: _Term) -> _Term:
        """Return the product; raises NotInterpretedError if it is not known to be Markov."""
        one, two = (self, other) if self.order and self.rate is _ZERO else (other, self)
        columns, wave = one.columns + two.columns, one if one.wave else two
        has_noise = not (one.order and two.order)
        if one.rate is not _ZERO or (one.wave and two.wave) or (has_noise and columns):
            raise NotInterpretedError
        variance = one.variance * two.variance
        return wave._replace(order=two.order, variance=variance, rate=two.rate, columns=columns)


class _Reading:
    """Inputs of stationary leaves, and values of the comparison for what K depends on."""

    def __init__(self) -> None:
        self.inputs: list[Variable] = []
        self.given: dict[Variable, Variable] = {}
        self._rng = np.random.default_rng(0)

    def add(self, x: Variable, *scalars: Variable) -> None:
        """Add the inputs of a leaf, which may be functions of the data, and its scalars."""
        self.inputs.append(x)
        self.given[x] = pt.constant(_INPUTS[:, None])
        for scalar in scalars:
            self.number(scalar)

    def number(self, v: Variable, filled: Variable | None = None) -> Variable:
        """Add a scalar, and the matrix of it, whose lengths may be constants; return it."""
        value = self._rng.uniform(0.5, 2.0)
        self.given[v] = pt.constant(np.full((1,) * v.type.ndim, value))
        if filled is not None:
            where = np.eye(_INPUTS.size) if isinstance(filled.owner.op, AllocDiag) else 1.0
            self.given[filled] = pt.constant(value * where * np.ones(2 * (_INPUTS.size,)))
        return _number(v)


def linear_product(node: Apply) -> Variable:
    """Return a product with a Cholesky factor in linear time.

    Raises NotInterpretedError if there is no such form.
    """
    (K,), w = node.inputs[0].owner.inputs, node.inputs[1]
    reading = _Reading()
    every = _read(K, reading)
    noise, terms = [t for t in every if not t.order], [t for t in every if t.order]
    columns = [reduce(pt.mul, t.columns) for t in terms if t.columns]
    inputs = reading.inputs or [0.0 * column for column in columns]
    if not inputs or not noise:
        raise NotInterpretedError
    # Data that are a constant may be several of the same value.
    roots = [root for v in [*inputs, *columns] if (root := _root(v)) is not None]
    columns = clone_replace(columns, dict.fromkeys(roots[1:], roots[0]), rebuild_strict=False)
    for arrays in (roots, inputs):
        values = interpret(arrays)
        if not all(np.isfinite(x).all() and np.array_equal(x, values[0]) for x in values):
            raise NotInterpretedError
    x = pt.concatenate([inputs[0], *columns], axis=1) if columns else inputs[0]
    parameters = [v for t in terms for v in (t.variance, t.rate)]
    loadings: tuple[tuple[int, int], ...] = ()
    if columns or any(t.wave for t in terms):
        parameters += [v for t in terms for v in (t.frequency, t.a)]
        numbers = iter(range(len(columns)))
        loadings = tuple((t.wave, next(numbers) if t.columns else -1) for t in terms)
    array = pt.stack([_number(v) for v in [*parameters, sum(t.variance for t in noise)]])
    op = MarkovRoot(tuple(t.order for t in terms), loadings)
    found = _value([K, array, x], {root: _like(root) for root in roots} | reading.given)
    if found is None or values[0].shape[1:] != (1,):
        raise NotInterpretedError
    few, value = op.inputs(found[2]), found[1]
    formula = product_with_cov(few, value, transitions_of(few, value), np.eye(_INPUTS.size))
    if not _close(found[0], formula):
        raise NotInterpretedError
    product: Variable = op(x, array, w)
    return product


def _read(K: Variable, reading: _Reading) -> list[_Term]:
    """Return the terms of K, and add to what they depend on; raises like `linear_product`."""
    node = K.owner
    if node is None:
        raise NotInterpretedError
    kind = type(getattr(node.op, "scalar_op", None)) if isinstance(node.op, Elemwise) else None
    if kind is Add:
        return [term for v in node.inputs for term in _read(v, reading)]
    # A Matérn covariance is a product, too.
    leaf = _leaf(K, reading)
    if leaf is None and kind is Mul:
        products = [_Term()]
        for v in node.inputs:
            if _is_scalar(v) and (constant_number(v) or 0.0) < 0.0:
                raise NotInterpretedError  # no covariance by itself, though the sum may be one
            terms = [_Term(1, reading.number(v))] if _is_scalar(v) else _read(v, reading)
            products = [one.times(two) for one in products for two in terms]
        return products
    if isinstance(node.op, Eye):
        leaf = _Term(0)
    elif _is_white_noise(node):
        leaf = _Term(0, reading.number(node.inputs[0].owner.inputs[0], K))
    elif isinstance(node.op, Alloc) and _is_scalar(node.inputs[0]):
        leaf = _Term(1, reading.number(node.inputs[0], K))
    leaf = leaf or _column(K) or _periodic(K, reading)
    if leaf is None:
        raise NotInterpretedError
    return [leaf]


def without_noise(K: Variable) -> tuple[list[Variable], list[Variable]]:
    """Return the terms of K that are no multiple of the identity, and the factors of the others."""
    if isinstance(K.owner and getattr(K.owner.op, "scalar_op", None), Add):
        parts = [without_noise(v) for v in K.owner.inputs]
        return [v for rest, _ in parts for v in rest], [v for _, own in parts for v in own]
    try:
        terms = _read(K, _Reading())
    except NotInterpretedError:
        return [K], []
    noise = [_number(t.variance) for t in terms if not t.order]
    return ([], noise) if len(noise) == len(terms) else ([K], [])


def _is_white_noise(node: Apply) -> bool:
    """Return whether a node is the diagonal matrix of one number."""
    inner = node.inputs[0].owner if isinstance(node.op, AllocDiag) else None
    return inner is not None and isinstance(inner.op, Alloc) and _is_scalar(inner.inputs[0])


def _is_scalar(v: Variable) -> bool:
    return all(getattr(v.type, "broadcastable", (False,)))


def _number(v: Variable) -> Variable:
    return pt.as_tensor(v).reshape(()).astype("float64")


def _column(K: Variable) -> _Term | None:
    """Return φφᵀ, of which the comparison decides whether it is that."""
    is_product = isinstance(getattr(K.owner.op, "core_op", K.owner.op), Dot)
    left = K.owner.inputs[0]
    return _Term(columns=(left,)) if is_product and left.ndim == 2 and _is_data(left) else None


def _leaf(K: Variable, reading: _Reading) -> _Term | None:
    """Return a Matérn or a cosine covariance."""
    # With a constant ℓ other products are of data and a scalar, too.
    for scaled, inverse, x in _scaled_inputs(K):
        found = _value([K], {scaled: pt.constant(_INPUTS[:, None])})
        if found is None:
            continue
        # In closed form: most processes are none of these, and need no compiled filter.
        distance = np.abs(np.subtract.outer(_INPUTS, _INPUTS))
        for order, rate, formula in _KINDS:
            if _close(found[0], formula(rate * distance)):
                reading.add(x, inverse)
                rate = rate * pt.abs(_number(inverse))
                return _Term(order, rate=rate) if order else _Term(wave=COSINE, frequency=rate)
    return None


def _periodic(K: Variable, reading: _Reading) -> _Term | None:
    """Return a periodic covariance, of which the comparison decides whether it is one."""
    pairs = [v.owner.inputs for v in _results(K, TrueDiv, 3) if _is_scalar(v.owner.inputs[1])]
    every = [v for sine, _ in pairs for v in ancestors([sine])]
    data = [v for v in every if getattr(v.type, "ndim", 0) == 2 and _is_data(v)]
    if len(pairs) != 2 or not data:
        return None
    (_, ls), (_, period) = pairs
    if (constant_number(ls) or 1.0) < SHORTEST:
        return None  # of too many cosines
    reading.add(data[0], ls, period)
    frequency, a = 2.0 * np.pi / pt.abs(_number(period)), 0.25 / _number(ls) ** 2
    return _Term(wave=PERIODIC, frequency=frequency, a=a)


def _value(graphs: Variables, given: dict[Variable, Variable]) -> list[Array] | None:
    """Return the values of graphs of ``given``; None for other dependences or wrong types."""
    try:
        graphs = clone_replace(graphs, given, rebuild_strict=False)
        if all(map(is_constant, graphs)):
            return interpret(graphs)
    except Exception:
        # Types differ where a graph has the number of inputs.
        return None
    return None


def _results(K: Variable, kind: type, ndim: int) -> Iterator[Variable]:
    """Yield results of one scalar operation."""
    for v in down_to_random([K]):
        op = getattr(v.owner, "op", None)
        if isinstance(op, Elemwise) and isinstance(op.scalar_op, kind) and v.type.ndim == ndim:
            yield v


def _scaled_inputs(K: Variable) -> Iterator[tuple[Variable, Variable, Variable]]:
    """Yield products of data with a scalar, the scalar, and the data."""
    for v in _results(K, Mul, 2):
        if len(v.owner.inputs) != 2 or v.type.shape[1] not in (1, None):
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


def _like(root: Variable) -> Variable:
    """Return an array like a root, of the inputs of the comparison in all columns."""
    columns = getattr(root.type, "shape", (None, None))[1] or 1
    return pt.constant(np.repeat(_INPUTS[:, None], columns, axis=1))


def _close(found: Array, expected: Array) -> bool:
    at_zero = np.equal.outer(_INPUTS, _INPUTS)
    bound = np.where(at_zero, _AT_ZERO, _TOLERANCE) * np.abs(expected).max()
    return found.shape == expected.shape and bool((np.abs(found - expected) <= bound).all())
