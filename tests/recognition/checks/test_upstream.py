"""Where PyMC's own log density is wrong the package's is right, and one sentence says so."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.stats import norm, t

import pymc_augconj as pac
from pymc_augconj.recognition.checks.checks import WholeDensity
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.recognizer import read_model

REAL = np.random.default_rng(1).normal(3, 2, 20)


class NoSites:
    site_log_densities = staticmethod(lambda point: {})
    rounding = staticmethod(lambda point: 0.0)


def half_student_t(nu, sigma):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b", 0, 5), pm.HalfStudentT("s", nu, sigma), observed=REAL)
    return model


@pytest.mark.parametrize(
    ("nu", "sigma", "outcome"),
    [
        (3, 10, "wrong as it is written, and right as it is compiled"),
        (3, 36, "near the start PyMC's compiled log density, which pm.sample uses, is -4"),
        (3, 10**10, "near the start PyMC's compiled log density"),
    ],
)
def test_whole_numbers_that_overflow(nu, sigma, outcome):
    """3 · 10² is 44 in eight bits."""
    model = half_student_t(nu, sigma)
    with pytest.warns(RuntimeWarning, match=rf"'s': pm.HalfStudentT's logp .*{outcome}") as told:
        reading = read_model(model)
    assert len(told) == 1
    s = 7.0
    prior = np.log(2.0) + t.logpdf(s, nu, scale=sigma) + np.log(s)
    at = {"b": np.asarray(0.3), "s_log__": np.log(s)}
    # PyMC takes the logarithm of two in single precision.
    assert reading.model.log_prior(at) == pytest.approx(prior, abs=1e-6)
    # The whole density is compared with the right one, and nothing else passes.
    ours = prior + norm.logpdf(0.3, scale=5.0) + norm.logpdf(REAL, 0.3, s).sum()
    WholeDensity(model).check(at, ours, NoSites(), "here")
    for error in (1e-4, prior):
        with pytest.raises(pac.RecognitionError, match="expected the log density that PyMC gives"):
            WholeDensity(model).check(at, ours + error, NoSites(), "here")


def test_whole_numbers_that_fit():
    for nu, sigma in ((3, 5), (3.0, 36.0), (3, 6)):
        read_model(half_student_t(nu, sigma))  # warnings are errors


def test_overflow_is_mended_wherever_it_stands():
    x = pt.dscalar("x")
    eight = [pt.constant(np.int8(n)) for n in (3, 10, -2, 100)]
    graphs = [
        x / (eight[0] * eight[1] ** 2),
        x * eight[1] ** eight[2],
        pt.sqrt(x + (eight[3] + eight[3])[None]) * (eight[0] * eight[3]),
        x * (eight[0] * eight[1]),
        x + pt.sum(pt.ones(eight[0] * eight[1])),
    ]
    right = [2 / 300, 0.02, np.sqrt(202.0) * 300, 60.0, 32.0]
    function = PointFunction(graphs, {"x": x})
    for found in (function.as_written({"x": np.asarray(2.0)}), function({"x": np.asarray(2.0)})):
        np.testing.assert_allclose([np.ravel(value)[0] for value in found], right)


def reversed_in_prior():
    h = pm.Normal("h", 0, 1, shape=3)
    pm.Normal("y", pm.Normal("b", pt.exp(h)[:-2:-1].sum(), 1), pt.exp(h[0]), observed=REAL)


def reversed_in_potential():
    h = pm.Normal("h", 0, 1, shape=3)
    pm.Potential("y", -pt.sqr((h + 1.0)[:-2:-1].sum()))
    pm.Normal("z", pm.Normal("b"), pt.exp(h[0]), observed=REAL)


@pytest.mark.parametrize("build", [reversed_in_prior, reversed_in_potential])
def test_a_slice_that_pytensor_rewrites_wrongly(build):
    """Of three entries PyTensor takes the first for x[:-2:-1], the last."""
    with pm.Model() as model:
        build()
        with pytest.warns(RuntimeWarning, match="local_dimshuffle_subtensor .*pm.sample uses"):
            step = pac.AugmentedGibbs()
    step.setup_chain(np.random.default_rng(3), 4, 0)
    point = model.initial_point()
    for _ in range(4):  # compares with PyMC's graph as it is written
        point, _ = step.step(point)


def test_a_slice_that_pytensor_rewrites_rightly():
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=3)
        pm.Normal("y", b[:-2:-1] + b[:-3:-1].sum(), 1, observed=REAL)
    read_model(model)  # warnings are errors
