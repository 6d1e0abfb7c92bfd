"""Predictors of every affine form are read as the right kind of map."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_augconj.linalg.linear_map import DenseMap, RowSelection
from pymc_augconj.recognition.predictors.coefficients import Product

N = 8
RNG = np.random.default_rng(3)
X = RNG.standard_normal((N, 2))
BINARY = RNG.integers(0, 2, N)
COUNTS = RNG.poisson(3, N)
REAL = RNG.standard_normal(N)
GROUP = np.array([0, 2, 1, 1, 0, 2, 2, 0])
TIME = np.linspace(0, 1, N)

exp = pm.math.exp


def observe(eta, observed=BINARY, **kwargs):
    pm.Bernoulli("y", logit_p=eta, observed=observed, **kwargs)


def process(name="f", inputs=X):
    cov = pm.gp.cov.ExpQuad(2, ls=pm.InverseGamma(f"ls_{name}", 5, 5))
    return pm.gp.Latent(cov_func=cov).prior(name, X=inputs)


def effects(size=3, name="b"):
    return pm.Normal(name, 0, 1, shape=size)


MASK = np.arange(N + 4) >= 4
INDEXED = {
    "array": lambda f: f[GROUP],
    "data": lambda f: f[pm.Data("group", GROUP)],
    "list": lambda f: f[GROUP.tolist()],
    "Deterministic": lambda f: pm.Deterministic("taken", f[GROUP]) + 1.0,
    "take": lambda f: pt.take(f, GROUP),
    "repeat": lambda f: pt.repeat(f, [3, 3, 2]),
}


@pytest.mark.parametrize("spelling", INDEXED)
def test_indexing_is_a_selection(spelling, read):
    with pm.Model() as model:
        observe(INDEXED[spelling](process(inputs=X[:3])))
    reading = read(model)
    assert reading.kinds == {"f": "selection"}
    A = reading.lgm.maps[0](reading.recognition.start)
    assert isinstance(A, RowSelection)
    assert A.coef is None
    expected = np.repeat(range(3), [3, 3, 2]) if spelling == "repeat" else GROUP
    np.testing.assert_array_equal(A.index, expected)


def test_solutions_of_linear_equations_in_a_hierarchy(read):
    matrix = np.random.default_rng(5).standard_normal((3, 3)) + 2.0 * np.eye(3)
    with pm.Model() as model:
        mid = pm.Normal("mid", 0, 1)
        e = pm.Normal("e", mid, 0.8, shape=3)
        pm.Cauchy("y", pt.linalg.solve(matrix, e), 1, observed=np.array([0.3, -1.0, 2.0]))
    reading = read(model)
    assert reading.kinds == {"e": "design matrix", "mid": "selection"}
    A = reading.lgm.maps[0](reading.recognition.start)
    np.testing.assert_allclose(A.dense(), np.linalg.inv(matrix), rtol=1e-12)


SLICED = {"slice": lambda f: f[4:], "mask": lambda f: f[MASK], "reversed": lambda f: f[::-1][:N]}


@pytest.mark.parametrize("spelling", SLICED)
def test_slicing_is_a_selection(spelling, read):
    with pm.Model() as model:
        observe(SLICED[spelling](process(inputs=RNG.standard_normal((N + 4, 2)))))
    assert read(model).kinds == {"f": "selection"}


MATRIX_PRODUCTS = {
    "@": lambda beta: X @ beta,
    "pt.dot": lambda beta: pt.dot(pt.as_tensor(X), beta),
    "pm.math.dot": lambda beta: pm.math.dot(X, beta),
    "sum": lambda beta: (X * beta).sum(axis=1),
    "data": lambda beta: pm.Data("X", X) @ beta,
}


@pytest.mark.parametrize("spelling", MATRIX_PRODUCTS)
def test_matrix_product_is_a_design(spelling, read):
    with pm.Model() as model:
        observe(MATRIX_PRODUCTS[spelling](effects(2, "beta")) + pm.Normal("b0", 0, 1))
    reading = read(model)
    assert reading.kinds == {"beta": "design matrix", "b0": "selection"}
    A = reading.lgm.maps[0](reading.recognition.start)
    assert isinstance(A, DenseMap)
    np.testing.assert_allclose(A.matrix, X)


def test_columns_scaled_by_hyperparameters(read):
    with pm.Model() as model:
        lam, tau = pm.HalfCauchy("lam", 1, shape=2), pm.HalfCauchy("tau", 1)
        observe(X @ (effects(2, "z") * lam * tau))
    reading = read(model)
    assert reading.kinds == {"z": "design matrix, columns scaled by hyperparameters"}
    assert reading.roles == {"lam": "prior", "tau": "prior"}


DENSE = {
    "difference": lambda b: b[GROUP] - b[(GROUP + 1) % 3],
    "cumulative sum": lambda b: pt.cumsum(b[GROUP]),
    "mean": lambda b: b[GROUP] - b.mean(),
}


@pytest.mark.parametrize("spelling", DENSE)
def test_rows_with_several_entries_are_dense(spelling, read):
    with pm.Model() as model:
        observe(DENSE[spelling](effects()))
    assert read(model).kinds == {"b": "design matrix"}


@pytest.mark.parametrize("unit", [1e-9, 1e-15, 1e-40, 1e-150])
def test_an_entry_however_small_beside_the_others_is_one(unit, read):
    """The prior of its coefficient may be as wide as the entry is small."""
    design = X * np.array([1.0, unit])
    with pm.Model() as model:
        observe(design @ pm.Normal("b", 0, np.array([1.0, 1.0 / unit]), shape=2))
    reading = read(model)
    assert reading.kinds == {"b": "design matrix"}
    np.testing.assert_array_equal(reading.lgm.maps[0](reading.recognition.start).matrix, design)


@pytest.mark.parametrize("unit", [1.0, 1e-9, 1e-15, 1e-150])
def test_a_column_of_small_unit_may_depend_on_a_hyperparameter(unit, read):
    with pm.Model() as model:
        columns = [pt.as_tensor(X[:, 0]), unit * exp(-pm.HalfNormal("decay", 1) * TIME)]
        observe(pt.stack(columns, axis=1) @ pm.Normal("b", 0, [1.0, 1.0 / unit], shape=2))
    reading = read(model)
    assert reading.kinds == {"b": "design matrix depending on hyperparameters"}
    for value in (-1.0, 1.5):
        point = {**reading.recognition.start, "decay_log__": np.asarray(value)}
        A = reading.lgm.maps[0](point).dense()
        np.testing.assert_allclose(A[:, 1], unit * np.exp(-np.exp(value) * TIME), rtol=1e-14)


def test_columns_scaled_in_some_rows_alone(read):
    """A prior that is not normal is an observation of coefficients, whatever scales them."""
    with pm.Model() as model:
        lam, z = pm.HalfNormal("lam", 1, shape=2), pm.Laplace("z", 0, 1, shape=2)
        observe(X @ (z * lam))
    reading = read(model)
    assert reading.kinds == {"z": "design matrix, columns scaled by hyperparameters"}
    point = {**reading.recognition.start, "lam_log__": np.log([3.0, 7.0])}
    A = reading.lgm.maps[0](point).dense()
    np.testing.assert_allclose(A, np.vstack([X * [3.0, 7.0], np.eye(2)]), rtol=1e-12)


def test_columns_scaled_by_hyperparameters_in_different_units(read):
    units = np.array([1e9, 1e-9])
    with pm.Model() as model:
        scale = pm.HalfNormal("s", 1, shape=2) / units
        observe((X * units) @ (effects(2, "z") * scale))
    reading = read(model)
    assert reading.kinds == {"z": "design matrix, columns scaled by hyperparameters"}
    point = {**reading.recognition.start, "s_log__": np.log([3.0, 7.0])}
    A = reading.lgm.maps[0](point).dense()
    np.testing.assert_allclose(A, X * [3.0, 7.0], rtol=1e-12)


SELECTING = {
    "stack": lambda: pt.stack([pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)])[GROUP % 2],
    "set": lambda: pt.zeros(N)[2:5].set(effects()) + pm.Normal("a", 0, 1),
    "switch by data": lambda: pm.math.switch(X[:, 0] > 0, effects(N), 2 * pm.Normal("a", 0, 1)),
    "concatenate": lambda: pt.concatenate([effects(N - 1), pm.Normal("a", 0, 1)[None]]),
}


@pytest.mark.parametrize("spelling", SELECTING)
def test_other_spellings_of_selections(spelling, read):
    with pm.Model() as model:
        observe(SELECTING[spelling]())
    assert read(model).kinds == {"a": "selection", "b": "selection"}


def test_scaled_process(read):
    with pm.Model() as model:
        observe(pm.HalfNormal("eta", 1) * process() + pm.Normal("b0", 0, 1))
    reading = read(model)
    assert reading.kinds["f"] == "selection, scaled by hyperparameters"
    assert reading.roles == {"eta": "prior", "ls_f": "prior"}


def test_a_coefficient_may_be_subnormal(read):
    """It has few digits then; an optimiser tries such values."""
    with pm.Model() as model:
        scale, share = pm.HalfNormal("scale", 1), pm.Beta("share", 2, 2)
        shared, own = effects(N, "shared"), effects(N, "own")
        observe(scale * (pt.sqrt(share) * shared + pt.sqrt(1.0 - share) * own))
    reading = read(model)
    assert set(reading.kinds.values()) == {"selection, scaled by hyperparameters"}
    point = {**reading.recognition.start, "scale_log__": np.array(-735.0)}
    for design in reading.lgm.maps:
        found = np.abs(design(point).rows(slice(0, N)).dense()).max()
        assert 0.0 < found < np.finfo(float).tiny


def test_coefficient_that_starts_at_zero(read):
    """PyMC's initial point has β = 0, where β f tells nothing about how f enters."""
    with pm.Model() as model:
        observe(pm.Normal("beta", 0, 1) * process())
    reading = read(model)
    assert reading.recognition.start["beta"] == 0.0
    assert reading.kinds == {"f": "selection, scaled by hyperparameters"}


# -- observed variables that others depend on ------------------------------------------------------

USES_OF_DATA = {
    "index": lambda d: effects(2, "b")[d],
    "regressor": lambda d: d * pm.Normal("b", 0, 1),
    "mean of a latent": lambda d: pm.Normal("b", 2 * d, 1, shape=N),
    "scale of a latent": lambda d: pm.Normal("b", 0, 1 + d, shape=N),
    "scale": lambda d: pm.HalfNormal("s", 1 + d, shape=N) * effects(N, "b"),
    "hierarchy": lambda d: pm.Normal("b", pm.Normal("m", 0, 1, shape=2)[d], 1, shape=N),
}


@pytest.mark.parametrize("use", USES_OF_DATA)
def test_an_observed_variable_is_data_to_others(use, read):
    """Although it depends on a latent itself."""

    def write(as_variable):
        with pm.Model() as model:
            u = effects(N, "u")
            d = pm.Bernoulli("d", logit_p=u + pm.Normal("delta", 0, 1), observed=BINARY)
            observe(USES_OF_DATA[use](d if as_variable else BINARY) + u)
        return read(model)

    found, expected = write(True), write(False)
    assert found.kinds == expected.kinds
    assert {"u", "b", "delta"} <= found.kinds.keys()
    for point in found.points():
        assert found.log_density(point) == pytest.approx(expected.log_density(point), rel=1e-12)


def test_a_missing_value_may_depend_on_an_observed_variable(read):
    values = np.ma.masked_array(REAL, np.arange(N) < 2)
    with pm.Model() as model:
        f = process()
        x = pm.Normal("x", f, 1, observed=REAL)
        with pytest.warns(pm.exceptions.ImputationWarning):
            pm.Normal("y", pm.Normal("a", 0, 1) + pm.Normal("b", 0, 1) * x, 1, observed=values)
    reading = read(model)
    assert reading.forward == ["y_unobserved"]
    assert set(reading.kinds) == {"f", "a", "b"}


# -- structure that depends on hyperparameters ------------------------------------------------


def at_several(reading, name, values):
    """The map of the only block at several values of a hyperparameter, with the product by PyMC."""
    (block,) = reading.lgm.blocks
    u = RNG.standard_normal(block.total_size)
    for value in values:
        point = {**reading.recognition.start, name: np.asarray(value)}
        offset = reading.lgm.offset(point)
        yield (
            offset + reading.lgm.maps[0](point).apply(u),
            reading.lgm.predictor(point, {block.name: u}),
        )


def test_index_by_a_discrete_hyperparameter(read):
    with pm.Model() as model:
        observe(effects(2)[pm.Bernoulli("k", 0.5)] + X[:, 0])
    reading = read(model)
    assert reading.kinds == {"b": "design matrix depending on hyperparameters"}
    for ours, theirs in at_several(reading, "k", [0, 1]):
        np.testing.assert_allclose(ours, theirs)


CHANGE_POINTS = {
    "entry": lambda cp, b: pm.math.switch(cp < TIME, b[0], b[1]),
    "coefficient": lambda cp, b: pm.math.switch(cp < TIME, b[0], 0.5 * b[0]),
    "kink": lambda cp, b: b[1] * pt.maximum(TIME - cp, 0),
    # Exactly 0 or 1 for most rows.
    "saturation": lambda cp, b: b[1] * pm.math.invlogit(1000 * (TIME - cp)),
}


@pytest.mark.parametrize("spelling", CHANGE_POINTS)
def test_change_point(spelling, read):
    """Rows that agree at the points where structure is examined may differ elsewhere."""
    with pm.Model() as model:
        observe(CHANGE_POINTS[spelling](pm.Beta("cp", 2, 2), effects(2)))
    reading = read(model)
    assert reading.kinds == {"b": "design matrix depending on hyperparameters"}
    for ours, theirs in at_several(reading, "cp_logodds__", [-4.0, -1.0, 0.5, 3.0]):
        np.testing.assert_allclose(ours, theirs)


def test_scales_of_groups_keep_the_selection(read):
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1, shape=2)
        observe(s[GROUP % 2] * effects()[GROUP])
    reading = read(model)
    assert reading.kinds == {"b": "selection, scaled by hyperparameters"}
    assert reading.sampler.priors.groups.size == 3


def test_clamped_scale_keeps_the_selection(read):
    with pm.Model() as model:
        observe(pm.math.maximum(pm.HalfNormal("s", 1), 1e-6) * effects()[GROUP])
    assert read(model).kinds == {"b": "selection, scaled by hyperparameters"}


# -- several observed variables and predictors ------------------------------------------------


def test_observed_variables_of_different_likelihoods_share_latents(read):
    with pm.Model() as model:
        f = process()
        observe(f)
        pm.Normal("z", 2 * f + pm.Normal("b", 0, 1), pm.HalfNormal("s", 1), observed=REAL)
        alpha = pm.Gamma("alpha", 2, 1)
        pm.NegativeBinomial("w", mu=pm.math.exp(f[:3]), alpha=alpha, observed=COUNTS[:3])
    reading = read(model)
    assert reading.likelihoods == {
        "y": "Bernoulli, logit",
        "z": "Normal, identity",
        "w": "Negative binomial, logit",
    }
    assert [site.rows for site in reading.lgm.sites] == [
        slice(0, 8),
        slice(8, 16),
        slice(16, 19),
    ]
    assert reading.kinds == {"f": "selection", "b": "selection"}
    assert reading.roles == {"ls_f": "prior", "s": "prior", "alpha": "likelihood"}


def test_scale_shared_by_a_covariance_and_a_likelihood(read):
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        pm.StudentT("y", nu=3, mu=pm.Normal("b", 0, s, shape=3)[GROUP], sigma=s, observed=REAL)
    assert read(model).roles == {"s": "both"}


def test_two_dimensional_observations(read):
    coords = {"obs": np.arange(N), "t": np.arange(3)}
    with pm.Model(coords=coords) as model:
        b = pm.Normal("b", 0, pm.HalfNormal("s", 1), dims="t")
        eta = process()[:, None] + b[None, :]
        observe(eta, RNG.integers(0, 2, (N, 3)), dims=("obs", "t"))
    reading = read(model)
    assert reading.kinds == {"f": "selection", "b": "selection"}
    assert reading.lgm.sites[0].size == 3 * N


def test_parameters_broadcast_against_observations(read):
    with pm.Model() as model:
        nu, sigma = pm.Gamma("nu", 2, 0.1, shape=3), pm.HalfNormal("s", 1, shape=(N, 1))
        pm.StudentT("y", nu=nu, mu=effects(), sigma=sigma, observed=RNG.standard_normal((N, 3)))
    reading = read(model)
    assert reading.kinds == {"b": "selection"}
    assert reading.roles == {"nu": "likelihood", "s": "likelihood"}


def test_a_predictor_of_one_number(read):
    with pm.Model() as model:
        observe(pm.Normal("b", 0, 1))
    assert read(model).kinds == {"b": "selection"}


def test_maps_hold_what_the_engine_needs(read):
    with pm.Model() as model:
        observe(process() + effects()[GROUP])
    reading = read(model)
    A, B = (m(reading.recognition.start) for m in reading.lgm.maps)
    assert A.is_identity
    assert A.coef is None
    np.testing.assert_array_equal(B.index, GROUP)
    assert all(m.names == () for m in reading.lgm.maps)


@pytest.mark.parametrize("far", [0.0, 1e-9])
def test_designs_with_few_entries_a_row_take_few_products(far, read, monkeypatch):
    group = np.arange(24) % 8
    x = np.random.default_rng(4).standard_normal(24)
    with pm.Model() as model:
        a, t = pm.Normal("a", 0, 1), pm.Normal("t", 0, 1)
        z = pm.Normal("z", 0, 1, shape=(8, 2))
        # At t above 8 each effect enters one more row, of however small a coefficient.
        more = far * pt.maximum(t - 8.0, 0.0) * pt.roll(z[:, 0], 1)[group]
        observe(
            (1.0 + a**2) * z[group, 0] + x * (a * z[group, 0] + z[group, 1]) + more,
            COUNTS[:1].repeat(24) % 2,
        )
    reading = read(model)
    assert reading.kinds["z"] == "design matrix depending on hyperparameters"
    (index,) = (i for i, b in enumerate(reading.lgm.blocks) if b.name == "z")
    calls = []
    original = Product.__call__
    monkeypatch.setattr(Product, "__call__", lambda *args: calls.append(1) or original(*args))
    read_map = reading.lgm.maps[index]
    rows = np.arange(24)
    for a_value, t_value in ((0.3, 0.0), (-1.2, 1.0), (0.0, 2.0), (0.7, 9.0)):
        expected = np.zeros((24, 16))
        expected[rows, 2 * group] = 1.0 + a_value**2 + x * a_value
        expected[rows, 2 * group + 1] = x
        expected[rows, 2 * ((group - 1) % 8)] += far * max(t_value - 8.0, 0.0)
        calls.clear()
        found = read_map({"a": np.array(a_value), "t": np.array(t_value)})
        np.testing.assert_allclose(found.dense(), expected, rtol=1e-14, atol=0.0)
        # Of the whole map there is a first column, then all others at once.
        assert len(calls) == (3 + 1 if far > 0.0 and t_value > 8.0 else 3)
