"""Formulas of stationary covariances against PyMC's graphs of the same kernels."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_augconj as pac
from pymc_augconj.recognition.processes import covariance, process
from pymc_augconj.recognition.processes.covariance import GraphCovariance, StationaryCovariance
from pymc_augconj.recognition.processes.process import LatentProcess

RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(23, 3)), RNG.normal(size=(7, 3))
COV = pm.gp.cov


def model_of(build):
    with pm.Model() as model:
        ls, each = pm.InverseGamma("ls", 5, 5), pm.InverseGamma("each", 5, 5, shape=2)
        eta = pm.HalfNormal("eta", 2)
        gp = pm.gp.Latent(cov_func=build(ls, each, eta))
        pm.Normal("y", gp.prior("f", X=X) + eta * ls * each.sum(), 1.0, observed=np.zeros(23))
    return model, gp


KERNELS = {
    "ExpQuad": lambda ls, each, eta: eta**2 * COV.ExpQuad(3, ls=ls),
    "Matern52": lambda ls, each, eta: COV.Matern52(3, ls=each, active_dims=[0, 2]) * eta,
    "Matern32": lambda ls, each, eta: 2.0 * COV.Matern32(3, ls=ls) * eta**2,
    "Matern12": lambda ls, each, eta: eta * (ls * COV.Matern12(3, ls=0.7)),
    "Exponential": lambda ls, each, eta: COV.Exponential(3, ls_inv=each, active_dims=[0, 1]),
    "negative": lambda ls, each, eta: -0.5 * eta * COV.ExpQuad(3, ls=ls),
    "ARD": lambda ls, each, eta: eta**2 * COV.ExpQuad(3, ls=pt.concatenate([each, [ls]])),
}


@pytest.mark.parametrize("name", KERNELS)
def test_formulas_agree_with_the_graph(name, monkeypatch):
    model, gp = model_of(KERNELS[name])
    recognition = pac.recognize(model)
    law = LatentProcess(model, gp, recognition.model, gradient_of_inducing=True)
    monkeypatch.setattr(process.StationaryCovariance, "find", lambda *args, **kwargs: None)
    graph = LatentProcess(model, gp, recognition.model, gradient_of_inducing=True)
    assert isinstance(law._covariance, StationaryCovariance)
    assert not isinstance(graph._covariance, StationaryCovariance)
    assert law.names == graph.names
    # One inducing input is an input: a distance of zero, where √r² would have no derivative.
    inputs = np.concatenate([X, Z[:1]])
    weights = RNG.normal(size=(7, 7)), RNG.normal(size=(24, 7)), RNG.normal(size=24)
    weights[1][23, 0] = 0.0
    np.fill_diagonal(weights[0], 0.0)
    for shift in (0.0, 0.3):
        point = {k: np.asarray(v) + shift for k, v in recognition.start.items()}
        np.testing.assert_allclose(law.cov(point, Z), graph.cov(point, Z), atol=1e-7)
        for ours, theirs in zip(
            law.cross(point, inputs, Z), graph.cross(point, inputs, Z), strict=True
        ):
            # A distance of rounding's size, 1e-8, moves an exponential kernel by as much.
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-7)
            np.testing.assert_allclose(ours[:23], theirs[:23], rtol=1e-12)
        for method, arguments in (
            ("pull_cov", (Z, weights[0])),
            ("pull_cross", (inputs, Z, weights[1:])),
        ):
            here, moved = getattr(law, method)(point, *arguments)
            there, expected = getattr(graph, method)(point, *arguments)
            assert set(there) <= set(here)
            for key, slope in here.items():
                np.testing.assert_allclose(slope, there.get(key, 0.0), rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(moved, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "build",
    [
        lambda ls, each, eta: COV.ExpQuad(3, ls=ls) + COV.Matern52(3, ls=ls),
        lambda ls, each, eta: COV.ExpQuad(3, ls=ls) * COV.Linear(3, c=eta),
        lambda ls, each, eta: COV.RatQuad(3, ls=ls, alpha=eta),
    ],
)
def test_other_kernels_go_through_their_graph(build):
    model, gp = model_of(build)
    law = LatentProcess(model, gp, pac.recognize(model).model)
    assert not isinstance(law._covariance, StationaryCovariance)
    assert np.linalg.eigvalsh(law.cov(pac.recognize(model).start, Z)).min() > -1e-10


def test_moving_points():
    model, gp = model_of(KERNELS["ExpQuad"])
    recognition = pac.recognize(model)
    law = LatentProcess(model, gp, recognition.model)
    point = {k: np.asarray(v) for k, v in recognition.start.items()}
    before = law.cov(point, Z)
    point["eta_log__"] = point["eta_log__"] + np.log(2.0)
    np.testing.assert_allclose(law.cov(point, Z), 4.0 * before, rtol=1e-12)


@pytest.mark.parametrize("wrong", [False, True])
def test_formulas_that_are_not_pymcs_are_not_used(wrong, monkeypatch):
    model, gp = model_of(KERNELS["Matern52"])
    if wrong:
        other = covariance.PROFILES[COV.Matern32]
        monkeypatch.setitem(covariance.PROFILES, COV.Matern52, other)
    law = LatentProcess(model, gp, pac.recognize(model).model)
    assert isinstance(law._covariance, GraphCovariance if wrong else StationaryCovariance)
