"""Graphs as functions: what is left in them, how they are executed, and how they travel."""

from __future__ import annotations

import logging
import math
import warnings
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Eye
from pytensor.tensor.linalg import Cholesky

from pymc_augconj.api.recognize import recognize
from pymc_augconj.python_mode import operations, python_mode
from pymc_augconj.python_mode.mode import StraightLine
from pymc_augconj.recognition.graph.dependence import ModelIndex
from pymc_augconj.recognition.graph.derive import log_density_of
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.graph.rewrite import simplify, substitute

N = 8
RNG = np.random.default_rng(12)
X = RNG.standard_normal((N, 2))
BINARY = RNG.integers(0, 2, N)


def process_model():
    with pm.Model() as model:
        cov = pm.HalfNormal("eta", 1) ** 2 * pm.gp.cov.ExpQuad(2, ls=pm.InverseGamma("ls", 5, 5))
        f = pm.gp.Latent(cov_func=cov).prior("f", X=pm.Data("X", X))
        pm.Bernoulli("y", logit_p=f + pm.Normal("b", 0, 1), observed=BINARY)
    return model


# -- simplification ----------------------------------------------------------------------------


def test_simplifying_leaves_the_given_graph_and_its_random_variables_alone():
    x = pt.vector("x")
    with pm.Model():
        mean = 1.0 / (1.0 + pt.exp(-pm.Normal("a")))
        b = pm.Normal("b", mean, 1.0)
    inner = (x + b)[:, None]
    graph = 1.0 / (1.0 + pt.exp(-inner))
    before = [pytensor.dprint(var, file="str", print_type=True) for var in (graph, mean)]
    (found,) = simplify([graph])
    after = [pytensor.dprint(var, file="str", print_type=True) for var in (graph, mean)]
    assert after == before
    assert type(found.owner.op.scalar_op).__name__ == "Sigmoid"
    assert {x, b} <= set(ancestors([found]))


def test_recognition_leaves_the_model_alone():
    with pm.Model() as model:
        rate = pm.Deterministic("rate", 1.0 / (1.0 + pt.exp(-pm.HalfNormal("s"))))
        f = pm.Normal("f", 0.0, rate, shape=N)
        pm.Gamma("y", alpha=2.0, beta=pt.exp(f) * rate / rate, observed=np.arange(1.0, N + 1.0))
    before = [pytensor.dprint(var, file="str") for var in (*model.basic_RVs, rate)]
    recognize(model)
    assert [pytensor.dprint(var, file="str") for var in (*model.basic_RVs, rate)] == before


# -- substitution ------------------------------------------------------------------------------


def test_substitution_keeps_what_does_not_depend_on_the_replaced():
    x, y = pt.vectors("x", "y")
    kept = pt.exp(x)
    inner = y + 1
    (graph,) = substitute([kept * pt.log(inner)], {inner: x})
    assert kept in graph.owner.inputs
    np.testing.assert_allclose(graph.eval({x: [2.0]}), np.exp(2.0) * np.log(2.0))


def test_substitution_of_a_variable_and_its_ancestor():
    """PyTensor's graph_replace copies a random variable here, which is then not found any more."""
    with pm.Model():
        s = pm.HalfNormal("s", 1)
        a = pm.Normal("a", 0, 1)
        b = pm.Normal("b", a, s)
    value_a, value_b = pt.dscalars("value_a", "value_b")
    (graph,) = substitute([a + b * s], {a: value_a, b: value_b})
    (graph,) = substitute([graph], {s: pt.constant(3.0, dtype="float64")})
    assert graph.eval({value_a: 1.0, value_b: 2.0}) == 7.0


def test_substitution_of_nothing_changes_nothing():
    x, y = pt.vectors("x", "y")
    graph = pt.exp(x)
    assert substitute([graph], {y: x}) == [graph]


# -- execution without compilation -----------------------------------------------------------------


def ops_of(function):
    nodes = function.maker.fgraph.apply_nodes
    return {type(getattr(node.op, "scalar_op", node.op)) for node in nodes}


def test_python_mode_calls_no_function_for_every_element(monkeypatch):
    monkeypatch.delattr(operations, "performed")
    x = pt.dvector("x")
    graphs = [pt.softplus(x), pt.log1mexp(-pt.exp(x)), pt.clip(x, -1.0, 1.0), pt.log1p(pt.exp(x))]
    function = pytensor.function([x], graphs, mode=python_mode())
    points = np.array([-800.0, -40.0, -1.0, 0.0, 0.3, 5.0, 40.0, 800.0])
    softplus, log1mexp, clipped, log1pexp = function(points)
    np.testing.assert_allclose(softplus, np.logaddexp(0, points), rtol=1e-14)
    np.testing.assert_allclose(log1pexp, softplus)
    np.testing.assert_array_equal(clipped, np.clip(points, -1, 1))
    middle = np.abs(points) < 5
    expected = np.log1p(-np.exp(-np.exp(points[middle])))
    np.testing.assert_allclose(log1mexp[middle], expected, rtol=1e-12)
    assert log1mexp[0] == -np.inf


def test_jitter_goes_on_the_diagonal_alone():
    K, jitter = pt.dmatrix("K"), pt.dscalar("jitter")
    for graph in (K + jitter * pt.identity_like(K), 1e-6 * pt.eye(K.shape[0]) + K):
        function = pytensor.function(
            [K, jitter], graph, mode=python_mode(), on_unused_input="ignore"
        )
        assert Eye not in ops_of(function)
        value = RNG.standard_normal((4, 4))
        before = value.copy()
        np.testing.assert_allclose(function(value, 1e-6), before + 1e-6 * np.eye(4), rtol=1e-14)
        np.testing.assert_array_equal(value, before)


def test_recognition_is_quiet(caplog, capfd):
    """No warning, and none of the rewriting errors that PyTensor logs."""
    with pm.Model() as model:
        sd = pm.HalfNormal.dist(1, shape=2)
        chol, _, _ = pm.LKJCholeskyCov("L", n=2, eta=2, sd_dist=sd, compute_corr=True)
        b = pm.MvNormal("b", mu=np.zeros(2), chol=chol, shape=(3, 2))
        p = 1 - pm.math.invprobit((b[BINARY] * X).sum(axis=1))
        pm.Bernoulli("y", p=p, observed=BINARY)
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        recognition = recognize(model)
        str(recognition)
    assert caplog.records == []
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_nothing_warns_at_extreme_hyperparameters():
    lgm = recognize(process_model()).model
    for value in (-800.0, -40.0, 40.0, 800.0):
        point = {"eta_log__": np.asarray(value), "ls_log__": np.asarray(value), "b": np.zeros(())}
        lgm.log_prior(point)
        lgm.log_prior_gradient(point)
        lgm.blocks[0].scale(point)
        lgm.maps[0](point)


def test_mode_of_the_user():
    recognition = recognize(process_model(), compile_kwargs={"mode": "FAST_COMPILE"})
    ours = recognize(process_model())
    K = recognition.model.blocks[0].scale(recognition.start)
    np.testing.assert_allclose(K, ours.model.blocks[0].scale(ours.start))


# -- functions of a point ------------------------------------------------------------------------


def test_function_knows_what_it_reads():
    x, y, z = pt.dscalars("x", "y", "z")
    data = pytensor.shared(2.0, name="data")
    function = PointFunction([x + data, x * y], {"x": x, "y": y, "z": z})
    assert function.names == ("x", "y")
    assert function.shared == (data,)
    point = {"x": np.asarray(1.0), "y": np.asarray(3.0), "unknown": np.zeros(2)}
    assert function(point) == [3.0, 3.0]
    with pytest.raises(KeyError, match="no input provides"):
        PointFunction(x + y, {"x": x})


def gaussian_process():
    """The gradient of a Cholesky factor, and a softplus."""
    f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=pm.Gamma("ls", 5, 5))).prior("f", X=X)
    pm.Bernoulli("y", logit_p=f, observed=BINARY)


def gamma():
    """Constants of single precision in the branches of a switch."""
    alpha, f = pm.Gamma("alpha", 8, 4), pm.Normal("f", 0, 1, shape=N)
    pm.Gamma("y", alpha=alpha, beta=alpha * pm.math.exp(-f), observed=1.0 + np.arange(N))


def ordinal():
    """Probabilities looked up by the observations; sums along an axis."""
    ordered = pm.distributions.transforms.ordered
    c = pm.Normal("c", [-1.0, 1.0], 0.2, transform=ordered, initval=[-1.0, 1.0])
    f = pm.Normal("f", 0, 1, shape=N)
    pm.OrderedLogistic("y", eta=f, cutpoints=c, observed=np.arange(N) % 3)


def correlated():
    """Numbers whose difference has a type that does not know that it is one."""
    pm.LKJCholeskyCov("L", n=2, eta=2, sd_dist=pm.HalfNormal.dist(1, shape=2), compute_corr=False)


BUILDS = [gaussian_process, gamma, ordinal, correlated]


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_densities_and_gradients_never_fall_back(build, monkeypatch):
    """Arrays take twice as long as numbers."""
    with pm.Model() as model:
        build()
    values = {value.name: value for value in model.value_vars}
    graphs = [model.logp(), model.dlogp()]
    function, theirs = PointFunction(graphs, values), PointFunction(graphs, values, "FAST_COMPILE")
    monkeypatch.delattr(StraightLine, "of_arrays")
    start = model.initial_point()
    for i in range(3):
        point = {k: x + 0.3 * i for k, x in start.items()}
        found, expected = function(point), theirs(point)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-9, atol=1e-10)


def test_results_are_not_overwritten_by_the_next_call():
    lgm = recognize(process_model()).model
    start = {"eta_log__": np.zeros(()), "ls_log__": np.zeros(())}
    scale = lgm.blocks[0].scale
    K = scale(start)
    kept = K.copy()
    scale({"eta_log__": np.ones(()), "ls_log__": np.zeros(())})
    np.testing.assert_array_equal(K, kept)


def test_functions_of_one_matrix_factorise_it_once(monkeypatch):
    found, perform = [], Cholesky.perform
    monkeypatch.setattr(Cholesky, "perform", lambda *args: (found.append(1), perform(*args)))
    s = pt.scalar("s")
    D = np.abs(np.subtract.outer(np.arange(30.0), np.arange(30.0)))
    L = pt.linalg.cholesky(pt.exp(-s * D))
    graphs = L, pt.log(pt.diagonal(L)).sum(), pt.linalg.solve_triangular(L, D, lower=True)
    functions = [PointFunction(graph, {"s": s}) for graph in graphs]
    for at in (0.7, 0.3, 0.7):
        expected = np.linalg.cholesky(np.exp(-at * D))
        expected = expected, np.log(np.diag(expected)).sum(), np.linalg.solve(expected, D)
        for f, value in zip(functions, expected, strict=True):
            result = f({"s": np.array(at)})
            np.testing.assert_allclose(result, value, rtol=1e-12, atol=1e-12)
            result[...] = 0.0  # is the caller's to write to
    # The last two matrices are known.
    assert len(found) == 2


def test_recognition_survives_pickling():
    """A step method is sent to a worker process with it, used or unused."""
    recognition = recognize(process_model())
    copy = cloudpickle.loads(cloudpickle.dumps(recognition))
    start = recognition.start
    K = recognition.model.blocks[0].scale(start)
    used = cloudpickle.loads(cloudpickle.dumps(recognition))
    for other in (copy, used):
        np.testing.assert_array_equal(other.model.blocks[0].scale(start), K)
        np.testing.assert_array_equal(other.model.sites[0].y(start), BINARY)
        np.testing.assert_array_equal(other.model.offset(start), np.zeros(N))
        assert other.model.maps[0](start).is_identity
        assert other.model.log_prior(start) == recognition.model.log_prior(start)
        assert str(other) == str(recognition)


def test_several_threads_may_call_a_function():
    x = pt.dvector("x")
    # A scan's inner function is one for both graphs.
    steps = pytensor.scan(
        lambda a, b: a + b,
        sequences=[x],
        outputs_info=[pt.zeros((), dtype="float64")],
        return_updates=False,
    )
    functions = [PointFunction(graph, {"x": x}) for graph in (x**2, steps, 2.0 * steps)]
    at = [np.arange(i, i + 30.0) for i in range(40)]
    calls = [(function, {"x": value}) for value in at for function in functions]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda call: call[0](call[1]), calls))
    for value, own in zip(at, zip(*[iter(found)] * 3, strict=True), strict=True):
        sums = np.cumsum(value)
        np.testing.assert_array_equal(own, [value**2, sums, 2.0 * sums])


def test_draws_censored_from_below_stay_above():
    """PyMC writes them as clip(x, lower, x)."""
    y = pm.Censored.dist(pm.Normal.dist(shape=50), lower=-0.5, upper=None)
    drawn = pm.draw(y, mode=python_mode(), random_seed=1)
    assert drawn.min() == -0.5


@pytest.mark.parametrize("log_kappa", [0.0, 12.0, 30.0, 90.0])
def test_beta_binomial_densities_keep_their_digits(log_kappa):
    """PyMC's exceeds zero by thousands beyond κ = e³⁴."""
    p, n, y = np.array([0.3, 0.9, 1e-3]), np.array([10, 1, 400]), np.array([4, 1, 0])
    kappa = np.exp(log_kappa)
    with pm.Model() as model:
        rv = pm.BetaBinomial("y", n=n, alpha=p * kappa, beta=(1.0 - p) * kappa, observed=y)
    density = log_density_of(ModelIndex(model), rv, pt.constant(y)).eval()
    # Γ(a + k)/Γ(a) = a (a + 1) … (a + k − 1)
    rising = [
        [np.log(a + np.arange(k)).sum() for a, k in zip(start * kappa, count, strict=True)]
        for start, count in ((p, y), (1.0 - p, n - y), (np.ones(3), n))
    ]
    expected = np.array(rising[0]) + rising[1] - rising[2]
    expected += [np.log(math.comb(*one)) for one in zip(n, y, strict=True)]
    np.testing.assert_allclose(density, expected, rtol=1e-9, atol=1e-9)
