"""Forecasts of time series: paths have PyMC's own density given the past, and exact moments."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_augconj as pac
from pymc_augconj.python_mode import python_mode
from pymc_augconj.recognition.prediction.transitions import read_transition

N, STEPS = 5, 3
QUIET = {"progressbar": False}


# Each takes the number of values and the parameters, variables or numbers.


def walks(n, mu, s):
    pm.GaussianRandomWalk("h", mu=mu, sigma=s, init_dist=pm.Normal.dist(0, 1), shape=(2, n))


def vector_walk(n, chol):
    init = pm.MvNormal.dist(np.zeros(2), np.eye(2))
    pm.MvGaussianRandomWalk("h", mu=[0.1, -0.2], chol=chol, init_dist=init, shape=(n, 2))


def autoregression(n, rho, tau):
    pm.AR("h", rho=rho, tau=tau, constant=True, init_dist=pm.Normal.dist(0, 1), shape=n)


def diffusion(n, a, b):
    init = pm.Normal.dist(0, 1)
    pm.EulerMaruyama(
        "h", 0.1, lambda x, a, b: (-a * x, b * pt.exp(0.2 * x)), (a, b), init_dist=init, shape=n,
        initval=np.zeros(n),
    )  # fmt: skip


PARAMETERS = {
    walks: {"mu": np.array([0.3, -1.0]), "s": np.array(0.7)},
    vector_walk: {"chol": np.array([[0.5, 0.0], [-0.3, 0.2]])},
    autoregression: {"rho": np.array([0.4, 0.5, -0.3]), "tau": np.array(4.0)},
    diffusion: {"a": np.array(0.8), "b": np.array(1.5)},
}


def written(build, n, **parameters):
    """Write the model, its parameters free variables where none are given."""
    with pm.Model() as model:
        shapes = {} if parameters else {k: v.shape for k, v in PARAMETERS[build].items()}
        free = {name: pm.Normal(name, 0, 1, shape=shape) for name, shape in shapes.items()}
        build(n, **parameters, **free)
    return model


@pytest.mark.parametrize("build", PARAMETERS)
def test_paths_have_the_density_of_the_longer_series(build):
    """Of a path made of noise z: log p(past, path) − log p(past) = Σ log N(z) − log|S|."""
    series = read_transition(written(build, N), "h")
    values = PARAMETERS[build]
    assert set(series.names) == set(values)
    draws = {name: value[None] for name, value in values.items()}
    past = np.random.default_rng(2).normal(size=series.shape)
    x = np.take(past, range(N - series.lags, N), axis=series.axis)[None]
    path = series.simulate(draws, x, STEPS, np.random.default_rng(7))

    rng, expected = np.random.default_rng(7), 0.0
    for t in range(STEPS):
        mean, root = series.moments(draws, x)
        z, d = rng.standard_normal(mean.shape), mean.shape[-1]
        if series.axis == -1:
            root = np.broadcast_to(root, mean.shape)[..., None] * np.eye(d)
        expected -= 0.5 * (np.sum(z**2) + z.size * np.log(2 * np.pi))
        expected -= np.linalg.slogdet(root)[1].sum()
        x = np.concatenate([x, np.take(path, [t], axis=series.axis)], series.axis)
        x = np.take(x, range(1, series.lags + 1), axis=series.axis)
    found = []
    for n, h in ((N + STEPS, np.concatenate([past, path[0]], axis=series.axis)), (N, past)):
        model = written(build, n, **values)
        found.append(float(model.compile_logp([model["h"]], mode=python_mode())({"h": h})))
    assert found[0] - found[1] == pytest.approx(expected, rel=1e-10)


DRAWS = 4000


def tree_of(**draws):
    return az.from_dict({"posterior": {name: value[None] for name, value in draws.items()}})


def assert_moments(paths, mean, cov):
    """Compare with the moments of a normal distribution, within five standard errors."""
    draws = len(paths)
    error = np.sqrt(np.diag(cov) / draws)
    assert np.max(np.abs(paths.mean(0) - mean) / error) < 5.0
    found = np.cov(paths.T)
    spread = np.sqrt((cov**2 + np.outer(np.diag(cov), np.diag(cov))) / draws)
    assert np.max(np.abs(found - cov) / spread) < 5.0
    # A wrong one is found out.
    assert np.max(np.abs(found - 1.3 * cov) / spread) > 5.0


def test_moments_of_a_walk_and_of_an_autoregression():
    k = np.arange(1, STEPS + 1)
    with pm.Model(coords={"day": np.arange(10, 10 + N)}) as model:
        s, rho = pm.HalfNormal("s", 1), pm.Uniform("rho", -1, 1)
        pm.GaussianRandomWalk("h", mu=0.2, sigma=s, init_dist=pm.Normal.dist(), dims="day")
        pm.AR("a", rho=[rho], sigma=s, init_dist=pm.Normal.dist(), shape=N)
    # Half of the draws have other steps: each path has those of its own draw.
    scale = np.repeat([0.5, 2.0], DRAWS // 2)
    values = np.random.default_rng(1).normal(size=(DRAWS, N))
    values[:, -1] = 1.5
    tree = tree_of(s=scale, rho=np.full(DRAWS, 0.8), h=values, a=values)
    found = pac.predict(tree, "h", steps=STEPS, model=model, random_seed=3).predictions
    assert found["h"].dims == ("chain", "draw", "day")
    np.testing.assert_array_equal(found["day"], [5, 6, 7])
    np.testing.assert_allclose(found["h_mean"], found["h"].mean(("chain", "draw")))
    for half, s in zip(np.split(found["h"].values[0], 2), (0.5, 2.0), strict=True):
        assert_moments(half, 1.5 + 0.2 * k, s**2 * np.minimum.outer(k, k))
    same = pac.predict(tree, "h", steps=STEPS, model=model, random_seed=3, dim="t", coords=[*"abc"])
    np.testing.assert_array_equal(same.predictions["h"], found["h"])
    assert list(same.predictions["t"].values) == ["a", "b", "c"]

    found = pac.predict(tree, "a", steps=STEPS, model=model, random_seed=3).predictions["a"]
    power = 0.8 ** np.abs(np.subtract.outer(k, k))
    cov = power * (1 - 0.8 ** (2 * np.minimum.outer(k, k))) / (1 - 0.8**2)
    for half, s in zip(np.split(found.values[0], 2), (0.5, 2.0), strict=True):
        assert_moments(half, 1.5 * 0.8**k, s**2 * cov)


def test_a_fit_and_a_sample_go_on():
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        h = pm.GaussianRandomWalk("h", sigma=s, init_dist=pm.Normal.dist(0, 2), shape=20)
        pm.Normal("y", mu=h, sigma=0.4, observed=np.sin(np.arange(20.0)))
    fit = pac.fit("vgp", model=model, **QUIET)
    ahead = pac.predict(fit, "h", steps=2, random_seed=1).predictions["h"].values[0]
    last, std, s = fit.mean["h"].values[-1], fit.std["h"].values[-1], fit.theta["s"]
    k = np.arange(1, 3)
    assert_moments(ahead, np.full(2, last), std**2 + s**2 * np.minimum.outer(k, k))
    idata = pac.sample(5, tune=5, chains=2, cores=1, model=model, random_seed=1, **QUIET)
    ahead = pac.predict(idata, "h", steps=2, model=model).predictions["h"]
    assert ahead.shape == (2, 5, 2)
    assert np.ptp(ahead.values) > 0.0


def test_what_is_no_forecast_is_refused():
    with pm.Model() as model:
        h = pm.GaussianRandomWalk("h", init_dist=pm.Normal.dist(), shape=N)
        pm.Deterministic("twice", 2 * h)
        pm.RandomWalk(
            "rough", init_dist=pm.Normal.dist(), innovation_dist=pm.Laplace.dist(0, 1), shape=N
        )
        pm.GaussianRandomWalk(
            "uneven", sigma=np.arange(1.0, N), init_dist=pm.Normal.dist(), shape=N
        )
        pm.Normal("x", 0, 1)
    values = np.zeros((3, N))
    tree = tree_of(h=values, rough=values, uneven=values, x=np.zeros(3))

    def refuses(match, name="h", tree=tree, steps=2, **options):
        with pytest.raises(pac.AugmentationError, match=match):
            pac.predict(tree, name, steps=steps, model=model, **options)

    refuses(r"time series \(one of .*'uneven'\]\), found 'twice'.*Deterministic", "twice")
    refuses("'x', which is a N", "x")
    refuses("'z', which is no variable", "z")
    refuses("'rough'.*normal steps, found Laplace", "rough")
    refuses("'uneven'.*same mean and scale at all times", "uneven")
    refuses("positive integer, got 0", steps=0)
    refuses("name of a time series", name=h)
    refuses("name 'h'; pass the process itself", steps=None)
    refuses(r"alone, got \['Xnew', 'kind'\]", Xnew=[[1.0]], kind="y")
    refuses("expected 2 labels, got 3", coords="abc")
    refuses(r"'h' of the model's shape \(5,\), found \(6,\)", tree=tree_of(h=np.zeros((3, 6))))
    refuses("expected the variable 'h'", tree=tree_of(x=np.zeros(3)))
    refuses("DataTree with a posterior", tree=None)
