"""Graphs executed as they stand: the same values as compiled, and what is left to compiling."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.logprob.utils import ParameterValueError

import pymc_augconj as pac
from pymc_augconj.python_mode import python_mode
from pymc_augconj.recognition.graph import interpreter as interpret_module
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.graph.interpreter import Interpreter, NotInterpretedError, interpret
from pymc_augconj.recognition.recognizer import read_model

RNG = np.random.default_rng(41)
N = 7
X = RNG.standard_normal((N, 2))
VALUES = {"x": RNG.standard_normal(N), "s": np.asarray(0.7), "K": RNG.standard_normal((N, N))}
COUNTS = RNG.integers(0, 5, N)


def inputs():
    return {"x": pt.dvector("x", shape=(N,)), "s": pt.dscalar("s"), "K": pt.dmatrix("K")}


def covariance(kernel):
    return lambda x, s, K: (s * kernel)(X) + 1e-6 * pt.eye(N)


def log_density(make, value):
    return lambda x, s, K: pm.logp(make(x, s), value)


def small_integers(x, s, K):
    numbers = pt.constant(np.arange(1, N + 1, dtype="int8"))
    return pt.sqrt(numbers) + 1 / numbers + numbers**2 + pt.sum(numbers) + x


GRAPHS = {
    "exponentiated quadratic": covariance(pm.gp.cov.ExpQuad(2, ls=[0.5, 2.0])),
    "Matérn": covariance(pm.gp.cov.Matern52(2, ls=0.5)),
    "rational quadratic": covariance(pm.gp.cov.RatQuad(2, alpha=1.5, ls=0.5)),
    "periodic": covariance(pm.gp.cov.Periodic(2, period=1.3, ls=0.5)),
    "linear and polynomial": covariance(
        pm.gp.cov.Linear(2, c=0.3) * pm.gp.cov.Polynomial(2, c=0.1, d=2, offset=1.0)
    ),
    "Bernoulli": log_density(lambda x, s: pm.Bernoulli.dist(logit_p=s * x), COUNTS > 1),
    "Student-t": log_density(lambda x, s: pm.StudentT.dist(nu=3, mu=x, sigma=s), np.arange(N)),
    "negative binomial": log_density(
        lambda x, s: pm.NegativeBinomial.dist(mu=pt.exp(x), alpha=s), COUNTS
    ),
    "asymmetric Laplace": log_density(
        lambda x, s: pm.AsymmetricLaplace.dist(kappa=s, mu=x, b=2.0), np.arange(N)
    ),
    "indices and shapes": lambda x, s, K: pt.broadcast_to(x[[0, 3, 3]].reshape((3, 1)), (3, 4)).T,
    "derivative of a kernel": lambda x, s, K: pt.grad(
        (K * pm.gp.cov.Matern32(1, ls=s)(x[:, None])).sum(), [s, x]
    )[1],
    "small integers": small_integers,
    "clipped, cast and switched": lambda x, s, K: pt.switch(x > 0, pt.clip(x, 0.1, 0.4), s).astype(
        "int64"
    ),
    "of an op that is a graph": lambda x, s, K: pt.logsumexp(s * K + x, axis=1),
    "an inner graph": lambda x, s, K: pt.special.LogSumExp(axis=(1,))(K) + pt.logsumexp(x),
    "of many terms": lambda x, s, K: pt.add(x, s, x, 1) * pt.mul(x, s, x) @ K,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_values_are_those_of_the_compiled_graph(name):
    given = inputs()
    graph = GRAPHS[name](*given.values())
    used = [var for key, var in given.items() if key in PointFunction(graph, given).names]
    at = [VALUES[var.name] for var in used]
    compiled = pytensor.function(used, graph, mode=python_mode())(*at)
    run = Interpreter([graph], used)
    for _ in range(2):  # what is constant is kept from the first call
        (found,) = run(*at)
        assert found.dtype == graph.dtype
        np.testing.assert_allclose(found, compiled, rtol=1e-12, atol=1e-14)


def test_results_are_the_callers_to_write_to():
    x = pt.dvector("x")
    given, constant = np.arange(3.0), np.ones(3)
    more = x + 1
    outputs = [pt.specify_shape(x, (3,)), x[:2], pt.constant(constant), more, more]
    run = Interpreter(outputs, [x])
    expected = ([0, 1, 2], [0, 1], [1, 1, 1], [1, 2, 3], [1, 2, 3])
    for _ in range(2):
        for value, numbers in zip(run(given), expected, strict=True):
            np.testing.assert_array_equal(value, numbers)
            value[...] = np.nan


def test_shared_values_are_read_at_every_call():
    x, data = pt.dscalar("x"), pytensor.shared(2.0)
    function = PointFunction(x * data, {"x": x})
    at = {"x": np.asarray(3.0)}
    assert function.uncompiled(at) == 6.0
    data.set_value(5.0)
    assert function.uncompiled(at) == 15.0
    assert PointFunction(data + 1, {}).uncompiled({}) == 6.0


def drawn():
    return pm.Normal.dist()


def repeated():
    return pytensor.scan(
        lambda a, b: a + b,
        sequences=[pt.arange(3.0)],
        outputs_info=[pt.zeros((), dtype="float64")],
        return_updates=False,
    )


def checked():
    return pm.logp(pm.Normal.dist(0, -1.0), 0.0)


def masked():
    data = pytensor.shared(np.ones(2))
    data.set_value(np.ma.masked_invalid([1.0, np.nan]))  # as pm.set_data does
    return data + 1


NOT_INTERPRETED = {
    "a random variable": drawn,
    "a loop": repeated,
    "a condition that is not met": checked,
    "masked data": masked,
    "an infinity": lambda: pt.log(pt.constant(0.0)),
    "a function of Python's for every element": lambda: pt.tri_gamma(pt.constant([1.0, 2.0])),
    "a large array": lambda: pt.zeros((2, interpret_module.LARGEST_ARRAY)),
}


@pytest.mark.parametrize("name", NOT_INTERPRETED)
def test_what_is_left_to_compiling(name):
    with pytest.raises(NotInterpretedError):
        interpret([NOT_INTERPRETED[name]()])


def test_values_that_an_unstable_form_loses_are_compiled():
    x = pt.dvector("x")
    function = PointFunction(pt.log(1 - pt.sigmoid(x)), {"x": x})
    near, far = np.array([1.0, 2.0]), np.array([1.0, 800.0])
    stable = -np.logaddexp(0.0, near)
    np.testing.assert_allclose(function.uncompiled({"x": near}), stable, rtol=1e-12)
    (as_written,) = interpret([pt.sigmoid(pt.constant(far[1]))])
    assert as_written == 1.0
    np.testing.assert_allclose(function.uncompiled({"x": far}), -np.logaddexp(0.0, far))


def test_a_condition_that_is_not_met_is_no_error_of_a_log_density():
    s = pt.dscalar("s")
    function = PointFunction(pm.logp(pm.Normal.dist(0, s), 0.0), {"s": s})
    assert np.isneginf(function.uncompiled({"s": np.asarray(-1.0)}))
    with pytest.raises(ParameterValueError):
        pytensor.function([s], function.graph, mode=python_mode())(-1.0)


def counting(monkeypatch) -> list:
    compiled = []
    original = pytensor.function

    def function(*args, **kwargs):
        compiled.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(pytensor, "function", function)
    return compiled


def test_first_calls_compile_nothing(monkeypatch):
    x = pt.dvector("x")
    function = PointFunction(pt.exp(2 * x), {"x": x}, first_calls=2)
    compiled = counting(monkeypatch)
    for k in range(4):
        np.testing.assert_allclose(function({"x": np.array([k, 1.0])}), np.exp([2 * k, 2]))
        assert len(compiled) == max(0, min(k - 1, 1))


UNSTABLE = {
    "the complement of a probability": lambda x: pt.log(1 - pt.sigmoid(x)),
    "softplus": lambda x: pt.log(1 + pt.exp(x)),
    "a tail of the normal law": lambda x: pt.log(pt.erfc(x)),
    "a sum of exponentials": lambda x: pt.log(pt.sum(pt.exp(x))),
}


@pytest.mark.parametrize("name", UNSTABLE)
def test_first_calls_compile_what_would_lose_digits(name):
    x = pt.dvector("x")
    graph = UNSTABLE[name](x)
    assert not Interpreter([graph], [x]).is_stable
    at = {"x": np.array([30.0])}
    compiled = PointFunction(graph, {"x": x})(at)
    np.testing.assert_array_equal(PointFunction(graph, {"x": x}, first_calls=9)(at), compiled)


def test_a_transform_to_positive_values_loses_nothing():
    x, f = pt.dscalar("x"), pt.dvector("f")
    assert Interpreter([pt.log(pt.exp(x)[None]) + pt.exp(f)], [x, f]).is_stable
    assert Interpreter([pt.log(pt.constant(1.0) - 0.3) * x], [x]).is_stable  # constants


def test_a_function_travels_used_or_not():
    x = pt.dvector("x")
    function = PointFunction(pt.exp(x) @ pt.linalg.cholesky(pt.diag(1 + x**2)), {"x": x})
    at = {"x": np.ones(3)}
    expected = function.uncompiled(at)
    for use in (function.uncompiled, function):
        np.testing.assert_allclose(use(at), expected, rtol=1e-12)
        copy = cloudpickle.loads(cloudpickle.dumps(function))
        np.testing.assert_allclose(copy(at), expected, rtol=1e-12)


def test_nothing_is_compiled_where_the_kernel_is_fixed(monkeypatch):
    """Rewriting took two thirds of the time of such a fit."""
    with pm.Model() as model:
        cov = pm.gp.cov.ExpQuad(2, ls=0.5)
        f = pm.gp.Latent(cov_func=cov).prior("f", X=X)
        pm.Bernoulli("y", logit_p=f, observed=COUNTS > 1)
    compiled = counting(monkeypatch)
    pac.fit("vgp", model=model, hyper="fixed", progressbar=False)
    assert not compiled


KERNELS = {
    "exponentiated quadratic": lambda ls: pm.gp.cov.ExpQuad(2, ls=ls),
    "Matérn, of the first column": lambda ls: pm.gp.cov.Matern52(2, ls=ls, active_dims=[0]),
    "rational quadratic": lambda ls: pm.gp.cov.RatQuad(2, alpha=1.5, ls=ls),
    "periodic, and linear": lambda ls: pm.gp.cov.Periodic(2, 1.0, ls) + pm.gp.cov.Linear(2, c=ls),
}


@pytest.mark.parametrize("name", KERNELS)
def test_covariances_and_their_derivatives_are_those_compiled(name, monkeypatch):
    with pm.Model() as model:
        cov = pm.HalfNormal("eta", 1) ** 2 * KERNELS[name](pm.LogNormal("ls"))
        f = pm.gp.Latent(cov_func=cov).prior("f", X=X)
        pm.Bernoulli("y", logit_p=f, observed=COUNTS > 1)
    (compiled,) = pac.recognize(model).model.blocks
    (as_written,) = read_model(model, first_calls=9).model.blocks
    points = [{"eta_log__": np.asarray(a), "ls_log__": np.asarray(b)} for a, b in ((0, 0), (1, -2))]
    points = [{name: value.astype(float) for name, value in point.items()} for point in points]
    expected = [(compiled.scale(at), compiled.scale_pullback(at, VALUES["K"])) for at in points]
    calls = counting(monkeypatch)
    for at, (scale, derivatives) in zip(points, expected, strict=True):
        np.testing.assert_allclose(as_written.scale(at), scale, rtol=1e-12)
        found = as_written.scale_pullback(at, VALUES["K"])
        assert found.keys() == derivatives.keys() == at.keys()
        for entry, value in derivatives.items():
            np.testing.assert_allclose(found[entry], value, rtol=1e-9)
    assert not calls
