"""Coordinates of hyperparameters: their Jacobian, derivatives and tape, and PyMC's density."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.engines.gibbs.coordinates import flatten, gradient_of, values_of, values_on_tape
from pymc_augconj.engines.gibbs.state import PointTarget
from pymc_augconj.model import Hyperparameter
from pymc_augconj.python_mode.tape import TapeBuilder
from pymc_augconj.python_mode.tape_kernel import run_tape
from pymc_augconj.recognition.recognizer import read_model

ORDERS = [1, 2, 3, 5]
STEP = 1e-6


def members(order):
    size = order * (order + 1) // 2
    return [
        Hyperparameter("a", "a_log__", (2,), True, "prior"),
        Hyperparameter("L", "L_packed__", (size,), True, "prior", factor_order=order),
        Hyperparameter("b", "b", (), True, "none"),
    ]


def random_point(order, seed=0):
    rng = np.random.default_rng(seed)
    return {h.value_name: rng.normal(size=h.shape) for h in members(order)}


def derivatives(function, x):
    ends = (function(x + step * e) for e in np.eye(x.size) for step in (STEP, -STEP))
    found = np.array(list(ends))
    return (found[::2] - found[1::2]) / (2.0 * STEP)


@pytest.mark.parametrize("order", ORDERS)
def test_values_come_back_and_their_jacobian_is_that_of_differences(order):
    own, point = members(order), random_point(order)
    x = flatten(own, point)
    values, log_jacobian = values_of(own, x)
    for name, value in point.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-13, atol=1e-14)

    def flat(at):
        return np.concatenate([np.ravel(v) for v in values_of(own, at)[0].values()])

    assert np.linalg.slogdet(derivatives(flat, x))[1] == pytest.approx(log_jacobian, abs=1e-8)


@pytest.mark.parametrize("order", ORDERS)
def test_derivatives_are_those_of_differences(order):
    own, weights = members(order), random_point(order, seed=1)

    def density(at):
        values, log_jacobian = values_of(own, at)
        return sum(np.sum(weights[name] * v) for name, v in values.items()) + log_jacobian

    x = flatten(own, random_point(order))
    np.testing.assert_allclose(gradient_of(own, x, weights), derivatives(density, x), atol=1e-7)


@pytest.mark.parametrize("order", ORDERS)
def test_the_tape_has_the_same_values(order):
    own, point, tape = members(order), random_point(order), TapeBuilder()
    inputs = {h.value_name: tape.inputs(h.shape) for h in own}
    registers_of, (log_jacobian,) = values_on_tape(tape, own, inputs)
    code, registers = tape.finish()
    x = flatten(own, point)
    registers[np.concatenate([index.ravel() for index in inputs.values()])] = x
    run_tape(code, registers)
    for name, value in point.items():
        np.testing.assert_allclose(registers[registers_of[name]], value, rtol=1e-13, atol=1e-14)
    assert registers[log_jacobian] == pytest.approx(values_of(own, x)[1], abs=1e-12)


def slopes(**kwargs):
    rng = np.random.default_rng(3)
    group, x, y = rng.integers(0, 5, 30), rng.normal(size=30), rng.normal(size=30)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov(
            "L", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0), **kwargs
        )
        z = pm.Normal("z", size=(2, 5))
        u = pm.Deterministic("u", pm.math.dot(chol, z))
        pm.Normal("y", u[0, group] + u[1, group] * x, 1.0, observed=y)
    return model


def test_a_target_is_the_density_of_values_times_the_jacobian():
    found = read_model(slopes())
    (factor,) = found.model.hyperparameters
    assert factor.factor_order == 2
    rng = np.random.default_rng(4)
    target = PointTarget(found.start, (factor,), found.model.log_prior)
    x = rng.normal(size=(2, 3))
    at = [values_of([factor], each) for each in x]
    expected = [float(found.model.log_prior({**found.start, **v})) + j for v, j in at]
    np.testing.assert_allclose([target(each) for each in x], expected, rtol=1e-12)
    plain = Hyperparameter("L", factor.value_name, (3,), True, "prior")
    values = np.ravel(at[0][0][factor.value_name])
    without = PointTarget(found.start, (plain,), found.model.log_prior)(values)
    assert abs(target(x[0]) - without) > 0.1


def test_steps_that_share_values_have_them_as_pymc_does():
    model = slopes()
    assert read_model(model, vars=[model["z"]]).model.hyperparameters[0].factor_order == 0
    with model:
        assert pac.recognize(model).model.hyperparameters[0].factor_order == 2
