"""Figures of a process: what they show is what was predicted."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pymc as pm
import pytest
from scipy.stats import norm

import pymc_augconj as pac

mpl.use("agg")
N = 25
RNG = np.random.default_rng(1)


def fitted(d, counts=False):
    X = RNG.uniform(-2, 2, (N, d))
    eta = np.sin(2 * X[:, 0])
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(d, ls=1.0))
        f = gp.prior("f", X=X)
        if counts:
            pm.Poisson("y", mu=pm.math.exp(1 + f), observed=RNG.poisson(np.exp(1 + eta)))
        else:
            pm.StudentT("y", nu=4, mu=f, sigma=0.2, observed=eta + 0.2 * RNG.standard_normal(N))
    return model, gp, pac.fit("vgp", model=model, progressbar=False)


@pytest.fixture(autouse=True)
def _close():
    yield
    mpl.pyplot.close("all")


def band_of(ax):
    (collection,) = ax.collections
    return collection.get_paths()[0].vertices


def test_mean_and_band_of_an_approximation():
    _, gp, fit = fitted(1)
    ax = pac.plot_fit(fit, gp, level=0.8)
    x, shown = ax.lines[0].get_data()
    expected = pac.predict(fit, gp, x[:, None]).predictions
    np.testing.assert_allclose(shown, expected["f_mean"].values)
    half = norm.ppf(0.9) * expected["f_std"].values
    band = band_of(ax)[:, 1]
    np.testing.assert_allclose(band.max(), (expected["f_mean"].values + half).max())
    np.testing.assert_allclose(band.min(), (expected["f_mean"].values - half).min())
    # A rug of the inputs, as f is not on the scale of the data.
    assert len(ax.lines[1].get_xdata()) == N


def test_observations_with_their_data():
    model, gp, fit = fitted(1, counts=True)
    ax = pac.plot_fit(fit, gp, "y")
    x, shown = ax.lines[0].get_data()
    expected = pac.predict(fit, gp, x[:, None], "y", quantile=[0.05, 0.95]).predictions
    np.testing.assert_allclose(shown, expected["y_mean"].values)
    assert band_of(ax)[:, 1].max() == expected["y_quantile"].values.max()
    data = model.rvs_to_values[model["y"]].eval()
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), data)


def test_draws_and_given_axes_and_inputs():
    model, gp, fit = fitted(1)
    ax = mpl.figure.Figure().subplots()
    Xnew = np.array([[1.0], [-1.0], [0.0]])
    draws = fit.sample(400)
    shown = pac.plot_fit(draws, gp, model=model, Xnew=Xnew, ax=ax, draws=100, random_seed=1)
    assert shown is ax
    x, mean = ax.lines[0].get_data()
    np.testing.assert_array_equal(x, [-1.0, 0.0, 1.0])
    expected = pac.predict(
        draws.isel(draw=slice(None, None, 4)), gp, Xnew, model=model, joint=False, random_seed=1
    )
    np.testing.assert_allclose(mean, expected.predictions["f_mean"].values[[1, 2, 0]])


def test_map_of_two_inputs(monkeypatch):
    monkeypatch.setattr("pymc_augconj.api.plot_fit._SIDE", 10)
    _, gp, fit = fitted(2)
    ax = pac.plot_fit(fit, gp, "y")
    points = ax.collections[-1].get_offsets()
    np.testing.assert_array_equal(points, gp.X)
    assert len(ax.figure.axes) == 2  # a colour bar


def test_what_cannot_be_drawn():
    _, gp, fit = fitted(3)
    with pytest.raises(pac.AugmentationError, match="at most two inputs, found 3"):
        pac.plot_fit(fit, gp)
    _, gp, fit = fitted(1)
    with pytest.raises(pac.AugmentationError, match="level"):
        pac.plot_fit(fit, gp, level=1.0)
    with pytest.raises(pac.AugmentationError, match="with a prior"):
        pac.plot_fit(fit, pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)))
