"""Maps that are sums of fixed ones: what the graph shows, and what it does not."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_augconj.linalg.linear_map import DenseMap, RowSelection, SelectionSum
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.graph.rewrite import simplify
from pymc_augconj.recognition.predictors import coefficients as coefficients_module
from pymc_augconj.recognition.predictors.coefficients import DIRECTION, Product, find_coefficients
from pymc_augconj.recognition.recognizer import read_model

RNG = np.random.default_rng(3)
N, SIZE = 30, 6
GROUP, KIND, X = np.arange(N) % SIZE, np.arange(N) % 2, RNG.standard_normal(N)
v = pt.vector("v", shape=(SIZE,))
t = pt.vector("t", shape=(2,))


def packed():
    return pt.zeros((2, 2))[[0, 1, 1], [0, 0, 1]].set(pt.concatenate([pt.exp(t), t[:1]]))


SUMS = {
    "scale": (lambda: pt.exp(t[0]) * v[GROUP], 1),
    "quotient": (lambda: -(v / pt.exp(t[0]))[GROUP] * X, 1),
    "sum of scales": (lambda: (t[0] + 2.0 * t[1]) * v[GROUP], 1),
    "scale of each kind": (lambda: pt.exp(t)[KIND] * v[GROUP], 2),
    "triangular": (lambda: (v.reshape((3, 2)) @ packed().T)[GROUP // 2, KIND] * X, 3),
    "spread first": (lambda: pt.exp(t[0] * pt.ones(N)) * v[GROUP], 1),
    "two terms": (lambda: pt.exp(t[0]) * v[GROUP] + pt.sin(t[1]) * X * v[GROUP // 2], 2),
}
OTHERS = {
    "no coefficient": lambda: v[GROUP] * X,
    "constant beside": lambda: v[GROUP] + t[0] * v[GROUP // 2],
    "product of two": lambda: pt.exp(t[0]) * (v[GROUP] * pt.sin(t[1])),
    "many numbers": lambda: pt.sigmoid((X - t[0]) / 0.1) * v[GROUP],
    "index": lambda: v[pt.cast(t[0] > 0.0, "int64")] * pt.ones(N),
    "condition": lambda: pt.switch(t[0] > 0.0, v, 2.0 * v)[GROUP],
    "nonlinear after": lambda: pt.sigmoid(t[0] * X) * v[GROUP],
}


def coefficients(graph):
    (product,) = simplify([graph.astype("float64")])
    return find_coefficients(product, v, [t])


@pytest.mark.parametrize("case", SUMS)
def test_what_is_a_sum(case):
    build, count = SUMS[case]
    graph, symbol, product = coefficients(build())
    assert symbol.type.shape == (count,)
    whole = PointFunction(build(), {"t": t, "v": v})
    coefs = PointFunction(graph, {"t": t})
    parts = PointFunction(product, {"c": symbol, "v": v})
    assert "t" not in parts.names
    for _ in range(4):
        at, vector = RNG.standard_normal(2), RNG.standard_normal(SIZE)
        c = coefs({"t": at})
        again = sum(c[k] * parts({"c": np.eye(count)[k], "v": vector}) for k in range(count))
        np.testing.assert_allclose(again, whole({"t": at, "v": vector}), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_none(case):
    assert coefficients(OTHERS[case]()) is None


def test_a_hyperparameter_that_gives_a_shape_is_not_left_in_the_parts():
    """Its parts would be read without a value for it."""
    matrix = v.reshape((3 * pt.shape(pt.exp(t))[0] // 2, 2))
    found = find_coefficients(t[0] * matrix.sum(axis=1), v, [t])
    assert found is None


def model_of(predictor, **shapes):
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0, shape=2)
        z = pm.Normal("z", 0.0, 1.0, shape=SIZE)
        pm.Normal("y", predictor(z, scale), 1.0, observed=X)
    return model


@pytest.mark.parametrize(
    ("predictor", "kind"),
    [
        (lambda z, scale: 1.0 + scale[0] * z[GROUP] * X, RowSelection),
        (lambda z, scale: scale[1] * (RNG.standard_normal((N, SIZE)) @ z), DenseMap),
        (lambda z, scale: scale[0] * z[GROUP] + scale[1] * X * z[GROUP // 2], SelectionSum),
        (lambda z, scale: scale[KIND] * z[GROUP], RowSelection),
    ],
)
def test_maps_are_the_predictors(predictor, kind):
    recognition = read_model(model_of(predictor))
    (read,) = recognition.model.maps
    for point in (recognition.start, *recognition.probes):
        A = read(point)
        assert isinstance(A, kind)
        assert isinstance(A, SelectionSum) == (kind is SelectionSum)
        offset = recognition.model.offset(point)
        for u in np.eye(SIZE):
            expected = recognition.model.predictor(point, {"z": u}) - offset
            np.testing.assert_allclose(A.apply(u), expected, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(A.dense() @ u, expected, rtol=1e-12, atol=1e-12)


def test_a_selection_that_shared_data_change_is_read_again():
    with pm.Model() as model:
        group = pm.Data("group", GROUP)
        tau = pm.HalfNormal("tau", 1.0)
        z = pm.Normal("z", 0.0, 1.0, shape=SIZE)
        pm.Normal("y", tau * z[group], 1.0, observed=X)
    recognition = read_model(model)
    (read,) = recognition.model.maps
    before = read(recognition.start)
    pm.set_data({"group": GROUP[::-1].copy()}, model=model)
    after = read(recognition.start)
    np.testing.assert_array_equal(before.index, GROUP)
    np.testing.assert_array_equal(after.index, GROUP[::-1])


@pytest.mark.parametrize("batch", [2**20, 4 * SIZE, 0])
def test_columns_of_a_matrix_are_computed_together(batch, monkeypatch):
    """A factorisation in the graph is computed once for all of them, or for each of few batches."""
    monkeypatch.setattr(coefficients_module, "_BATCH", batch)
    K = pt.exp(-(((pt.arange(SIZE)[:, None] - pt.arange(SIZE)) / pt.exp(t[0])) ** 2))
    L = pt.linalg.cholesky(K + 1e-6 * pt.eye(SIZE))
    graph = pt.sqrt(t[1]) * (L @ v) + pt.set_subtensor(pt.zeros(SIZE)[2:], v.cumsum()[2:])
    product = Product(PointFunction(graph, {"t": t, DIRECTION: v}), SIZE)
    calls, original = [], PointFunction.__call__
    monkeypatch.setattr(PointFunction, "__call__", lambda *args: calls.append(1) or original(*args))
    for at in ([0.3, 2.0], [-0.4, 1.5]):
        point = {"t": np.array(at)}
        calls.clear()
        found = product.matrix(point)
        assert len(calls) == {2**20: 2, 4 * SIZE: 3, 0: SIZE}[batch]
        assert found.flags.f_contiguous
        each = np.column_stack([product(point, unit) for unit in np.eye(SIZE)])
        np.testing.assert_allclose(found, each, rtol=1e-15, atol=1e-16)
    masked = product.masked(np.arange(SIZE) % 2.0).matrix(point)
    np.testing.assert_array_equal(masked, found * (np.arange(SIZE) % 2.0))
