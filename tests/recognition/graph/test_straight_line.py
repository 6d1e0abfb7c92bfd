"""Functions written out as source, against PyTensor's execution of the same graphs."""

import math

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.inner_function import link_only_mode
from pytensor.compile.io import In, Out

from pymc_augconj.python_mode import operations, python_mode
from pymc_augconj.python_mode.mode import StraightLine
from pymc_augconj.recognition.graph.functions import PointFunction

SHAPES = {"scalar": (), "one": (1,), "vector": (4,), "matrix": (4, 3)}
TAKEN = np.array([3, 0, 0, 2])
SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-310, 1e308)

UNARY = [
    *(pt.exp, pt.log, pt.log1p, pt.expm1, pt.sqrt, pt.sqr, pt.abs, pt.neg, pt.sigmoid),
    *(pt.softplus, pt.erf, pt.erfc, pt.gammaln, pt.sin, pt.tanh, pt.sign, pt.floor, pt.reciprocal),
    lambda x: pt.clip(x, -0.5, 1.5),
    lambda x: pt.cast(pt.cast(pt.clip(x, -5.0, 5.0), "int64"), "float64"),
    lambda x: pt.switch(pt.isnan(x), 0.25, x),
    lambda x: pt.cast(x > 0.3, "float64"),
]
BINARY = [
    *(pt.add, pt.sub, pt.mul, pt.true_div, pt.maximum, pt.minimum, pt.power),
    lambda x, y: pt.switch(pt.lt(x, y), x, 2.0 * y),
    lambda x, y: pt.switch(pt.and_(pt.ge(x, 0.0), pt.invert(pt.eq(y, 0.0))), y, x),
]
OF_ARRAYS = [
    lambda x: x.sum(),
    lambda x: x.sum(axis=0),
    lambda x: x.max(axis=-1),
    lambda x: x.prod(axis=0),
    lambda x: x[::-1],
    lambda x: x[1:],
    lambda x: x[-1],
    lambda x: x.T,
    lambda x: x.ravel(),
    lambda x: pt.concatenate([x, 2.0 * x[:1]]),
    lambda x: pt.set_subtensor(x[0], 3.0),
    lambda x: pt.inc_subtensor(x[1:], x[:-1]),
    lambda x: pt.set_subtensor(x[np.array([0, 1])], x[np.array([1, 0])]),
    lambda x: pt.inc_subtensor(x[np.array([0, 0, 1])], 1.5),
    lambda x: x[:4][TAKEN] if x.type.shape[0] >= 4 else x[np.array([0, 0])],
    lambda x: pt.dot(x.T, x),
    lambda x: pt.dot(x, x[0]) if x.ndim == 2 else pt.dot(x, x),
    lambda x: pt.full((3,), x.sum()),
    lambda x: pt.stack([x.sum(), x.max()]),
    lambda x: x.dimshuffle("x", *range(x.ndim)).reshape((-1,)),
]


def random_graph(rng, n_operations=12):
    """Return inputs by name, and outputs: some results, one of them twice, and an input."""
    inputs = {name: pt.tensor(name, shape=shape) for name, shape in SHAPES.items()}
    known = list(inputs.values())
    while len(known) < len(inputs) + n_operations:
        x = known[rng.integers(len(known))]
        kind = rng.integers(3)
        if kind == 0:
            known.append(UNARY[rng.integers(len(UNARY))](x))
        elif kind == 1:
            shapes = [
                y for y in known if y.type.shape == x.type.shape or x.ndim == 0 or y.ndim == 0
            ]
            y = shapes[rng.integers(len(shapes))]
            known.append(BINARY[rng.integers(len(BINARY))](x, y))
        elif x.ndim and x.type.shape[0] and x.type.shape[0] > 1:
            found = OF_ARRAYS[rng.integers(len(OF_ARRAYS))](x)
            if None not in found.type.shape and np.prod(found.type.shape) <= 64:
                known.append(found)
    results = known[len(inputs) :]
    return inputs, [*results[-4:], results[-1], inputs["vector"]]


def values(rng, *, special):
    point = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    if special:
        for value in point.values():
            where = rng.random(value.shape) < 0.4
            value[...] = np.where(where, rng.choice(SPECIAL, size=value.shape), value)
    return {name: np.asarray(value) for name, value in point.items()}


def by_pytensor(compiled):
    """Return PyTensor's own execution of the rewritten graph, without its results' copies."""
    mode = link_only_mode("vm")
    graph = compiled.maker.fgraph.clone()
    ends = [In(var, borrow=True) for var in graph.inputs], [Out(var) for var in graph.outputs]
    maker = mode.function_maker(
        *ends, mode, fgraph=graph, accept_inplace=True, on_unused_input="ignore"
    )
    return maker.create()


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs(seed):
    rng = np.random.default_rng(seed)
    inputs, outputs = random_graph(rng)
    function = PointFunction(outputs, inputs).compile()
    given = [inputs[name] for name in function.names]
    results = [Out(var, borrow=True) for var in outputs]
    linked = pytensor.function(given, results, mode=python_mode())
    pytensors = by_pytensor(linked)
    for special in (False, False, True, True):
        point = values(rng, special=special)
        before = {name: value.copy() for name, value in point.items()}
        with np.errstate(all="ignore"):
            given = [point[name] for name in function.names]
            expected = [np.array(v) for v in pytensors(*given)]
            if not special:
                # The source itself, which is to raise where Python's numbers do and nowhere else.
                compare(run_source(linked.vm.jit_fn, given) or expected, expected)
            found = function(point)
            compare(found, expected)
            # The results are the caller's to write to.
            for value in found:
                assert isinstance(value, np.ndarray)
                value[...] = -7.0
            compare(function(point), expected)
        for name, value in point.items():
            np.testing.assert_array_equal(value, before[name])


def run_source(function, values):
    """Return what the source gives; None where it raises as Python's numbers do alone."""
    try:
        return function.run(*values)
    except (ValueError, ArithmeticError) as error:
        if not str(error).startswith(("math domain", "math range", "float division")):
            raise
        return None


def compare(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-300)


def test_each_of_several_results_may_be_a_number(monkeypatch):
    monkeypatch.delattr(StraightLine, "of_arrays")
    K = pt.tensor("K", shape=(3, 3))
    sign, log_det = pt.linalg.slogdet(K)
    first, rest = pt.split(K[0], [1, 2], n_splits=2)
    graphs = [pt.exp(log_det) * sign, pt.exp(first), rest]
    found = PointFunction(graphs, {"K": K}).compile()({"K": np.diag([1.0, 2.0, 3.0])})
    compare(found, [np.array(6.0), np.exp([1.0]), np.zeros(2)])


def test_the_comparison_finds_an_operation_that_is_wrong(monkeypatch):
    x = pt.scalar("x")
    graph = {"inputs": {"x": x}, "outputs": [pt.sin(x) * 2.0]}
    point = {"x": np.asarray(0.7)}
    right = PointFunction(**graph)(point)
    monkeypatch.setitem(operations._OF_FLOATS, "Sin", math.cos)
    wrong = PointFunction(**graph)(point)
    with pytest.raises(AssertionError):
        compare(wrong, right)
