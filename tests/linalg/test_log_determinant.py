"""Log determinants of families of sparse matrices beside those of dense ones."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy.sparse import coo_array
from scipy.special import expit

import pymc_augconj as pac
from pymc_augconj.latents import joint
from pymc_augconj.linalg.log_determinant import LogDeterminant

PATH = np.diag(np.ones(4), 1) + np.diag(np.ones(2), 3)
W = np.kron(np.eye(3), PATH + PATH.T) + np.kron(PATH[:3, :3] + PATH[:3, :3].T, np.eye(5))
N = len(W)
Q = coo_array(np.diag(W.sum(axis=0)) + W)
ENTRIES = np.stack([Q.row, Q.col])
OWN = Q.row == Q.col


def a_family(beyond=0.0):
    """Return τ (D − αW) by entries; with another dependence beyond the first cells."""

    def scale(point):
        alpha, tau = expit(point["t"]), np.exp(point["log_tau"])
        more = 1e-3 * (point["log_tau"] > beyond) * OWN if beyond else 0.0
        return tau * (np.where(OWN, Q.data, -alpha * Q.data) + more * np.arange(Q.nnz))

    def compute(array):
        return np.linalg.slogdet(coo_array((array, Q.coords), shape=(N, N)).toarray())[1], 1e-12

    return scale, LogDeterminant(scale, ("log_tau", "t"), ENTRIES, compute), compute


def test_a_determinant_is_interpolated_to_rounding():
    scale, log_determinant, compute = a_family()
    rng = np.random.default_rng(1)
    for t in rng.uniform(-6.0, 8.0, 40):
        point = {"t": np.array(t), "log_tau": np.array([rng.normal()])}
        array = scale(point)
        found, error = log_determinant.at(point, array)
        assert abs(found - compute(array)[0]) < 1e-9
        assert error < 1e-8


def test_other_families_are_not_interpolated():
    scale, log_determinant, compute = a_family(beyond=2.0)
    point = {"t": np.array(0.3), "log_tau": np.array(1.0)}
    assert log_determinant.at(point, scale(point)) is not None
    point["log_tau"] = np.array(3.0)
    assert log_determinant.at(point, scale(point)) is None
    for bad in ({"t": np.array(np.inf)}, {"t": np.array(50.0)}):
        # Singular to working precision.
        assert log_determinant.at({**point, **bad}, scale({**point, **bad})) is None
    both = LogDeterminant(
        lambda p: np.where(OWN, Q.data + np.exp(p["log_tau"]) * np.arange(Q.nnz), -expit(p["t"])),
        ("log_tau", "t"), ENTRIES, compute,
    )  # fmt: skip
    assert both.at(point, np.ones(Q.nnz)) is None


def both_ways(model, steps, monkeypatch):
    """Yield draws with priors that are factorised, and with interpolated determinants."""
    for costly in (np.inf, 0.0):
        monkeypatch.setattr(joint, "_COSTLY", costly)
        yield pac.sample(
            steps, tune=steps, chains=1, model=model, random_seed=3, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip


@pytest.mark.parametrize("likelihood", ["Poisson", "Normal"])
def test_draws_are_those_of_factorised_priors(likelihood, monkeypatch):
    y = np.random.default_rng(2).poisson(3.0, N)
    with pm.Model() as model:
        alpha, tau = pm.Beta("alpha", 4, 2), pm.Gamma("tau", 2, 1)
        f, level = pac.CAR("f", W, alpha=alpha, tau=tau), pm.Normal("level", 0, 2)
        if likelihood == "Poisson":
            pm.Poisson("y", 2.0 * pm.math.exp(level + f), observed=y)
        else:
            pm.Normal("y", level + f, 1.0, observed=y)
    draws, known = [], []
    at = LogDeterminant.at
    monkeypatch.setattr(LogDeterminant, "at", lambda *args: known.append(at(*args)) or known[-1])
    for idata in both_ways(model, 30, monkeypatch):
        own = [idata.posterior[name].values[0].reshape(30, -1) for name in ("alpha", "tau", "f")]
        draws.append(np.hstack([*own, idata.sample_stats.lp.values[0][:, None]]))
    assert known
    assert None not in known
    np.testing.assert_allclose(*draws, rtol=1e-5, atol=1e-5)


def test_walks_have_a_factor_of_their_own(monkeypatch):
    """They are given by the precision of the first value too, beside the entries."""
    with pm.Model() as model:
        step = pm.HalfNormal("step", 1)
        f = pm.GaussianRandomWalk("f", sigma=step, init_dist=pm.Normal.dist(0, 1), shape=20)
        pm.StudentT("y", nu=4, mu=f, sigma=0.3, observed=np.cumsum(np.ones(20)))
    draws = [idata.posterior["f"].values for idata in both_ways(model, 5, monkeypatch)]
    np.testing.assert_array_equal(*draws)
