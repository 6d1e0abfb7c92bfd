"""``pac.fit(data=…)``: the fit of a model that holds all the data, from chunks of them."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac

QUIET = {"progressbar": False}
N = 300
Z = np.linspace(-3, 3, 8)[:, None]


class Chunked:
    """An array that tells its chunks and reads slices, as those of Zarr."""

    def __init__(self, values, rows):
        self.shape, self.chunks, self._values = values.shape, (rows, *values.shape[1:]), values
        self.read = []

    def __getitem__(self, rows):
        self.read.append(rows)
        return self._values[rows]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    X = rng.uniform(-3.0, 3.0, (N, 1))
    group = rng.integers(0, 3, N)
    eta = np.sin(1.5 * X[:, 0]) + group
    return {
        "X": X,
        "group": group,
        "y": (rng.random(N) < 1.0 / (1.0 + np.exp(-eta))).astype(int),
        "z": 2.0 * eta + 0.5 * rng.standard_t(4, N),
    }


def write(X, group, y, z, dims=False):
    """Two observed variables, a group effect, hyperparameters of prior, predictor and noise."""
    with pm.Model(coords={"row": np.arange(len(y))} if dims else {}) as model:
        of = {"dims": "row"} if dims else {}
        X, group = pm.Data("X", X), pm.Data("group", group, **of)
        ls, c = pm.InverseGamma("ls", 5, 5), pm.Normal("c", 1, 1)
        sigma, tau = pm.HalfNormal("sigma", 1), pm.HalfNormal("tau", 1)
        a = pm.Normal("a", 0, tau, shape=3)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls))
        f = gp.prior("f", X=X)
        pm.Bernoulli("y", logit_p=f + a[group], observed=pm.Data("y_data", y))
        pm.StudentT("z", nu=4, mu=c * f + 2 * a[group], sigma=sigma, observed=pm.Data("z_data", z))
    return model, gp


def named(data):
    return {name + "_data" * (name in "yz"): value for name, value in data.items()}


@pytest.fixture(scope="module")
def sample(data):
    return write(**{name: value[:20] for name, value in data.items()})


@pytest.fixture(scope="module")
def chunked(data, sample):
    model, gp = sample
    options = {"model": model, "gp": gp, "inducing": Z, "data": _in_chunks(named(data), 70)}
    return {method: pac.fit(method, tol=1e-8, **options, **QUIET) for method in ("cavi", "vgp")}


def _in_chunks(arrays, rows):
    # All but the first have no chunks of their own.
    first, *others = arrays
    return {first: Chunked(arrays[first], rows)} | {name: arrays[name] for name in others}


@pytest.mark.parametrize("method", ["cavi", "vgp"])
def test_chunks_give_the_fit_of_all_the_data(data, chunked, method, monkeypatch):
    model, gp = write(**data)
    whole = pac.fit(method, model=model, gp=gp, inducing=Z, tol=1e-8, **QUIET)
    found = chunked[method]
    assert whole.converged
    assert found.converged
    assert found.log_evidence == pytest.approx(whole.log_evidence, abs=1e-6)
    for name, value in whole.theta.items():
        np.testing.assert_allclose(found.theta[name], value, rtol=1e-4)
    for name in ("f_u", "a"):
        np.testing.assert_allclose(found.mean[name], whole.mean[name], atol=1e-3)
        np.testing.assert_allclose(found.std[name], whole.std[name], rtol=1e-3)
