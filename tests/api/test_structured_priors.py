"""Random walks, autoregressions and maps beside the same model written with a covariance."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.sparse import csr_array

import pymc_augconj as pac
from pymc_augconj.api.step_choices import choose_updates
from pymc_augconj.api.updates import EllipticalUpdate, MixedUpdate
from pymc_augconj.latents import choice
from pymc_augconj.python_mode import python_mode
from pymc_augconj.recognition.latents import normal
from pymc_augconj.recognition.processes import other_graphs
from pymc_augconj.recognition.processes.other_graphs import in_linear_time

N = 8
RNG = np.random.default_rng(3)
COUNTS, BINARY = RNG.poisson(3.0, N), RNG.integers(0, 2, N)
W = np.eye(N, k=1, dtype=int) + np.eye(N, k=-1, dtype=int)
W[0, 5] = W[5, 0] = 1
D = np.diag(W.sum(0))
STEPS = np.minimum.outer(np.arange(N), np.arange(N))
QUIET = {"progressbar": False}


def walk(s):
    return pm.GaussianRandomWalk("z", mu=0.1, sigma=s, init_dist=pm.Normal.dist(0.5, 1), shape=N)


def walk_twin(s):
    return pm.MvNormal("z", 0.5 + 0.1 * np.arange(N), cov=1.0 + s**2 * STEPS)


def autoregression(s):
    return pm.AR("z", rho=pt.stack([0.4, 0.3]), sigma=s, init_dist=pm.Normal.dist(0, 2), shape=N)


def autoregression_twin(s):
    B = np.eye(N) - 0.4 * np.eye(N, k=-1) - 0.3 * np.eye(N, k=-2)
    B[:2] = np.eye(N)[:2]
    root = np.linalg.inv(B)
    first = np.arange(N) < 2
    cov = 4.0 * root[:, first] @ root[:, first].T + s**2 * (root[:, ~first] @ root[:, ~first].T)
    return pm.MvNormal("z", np.zeros(N), cov=cov)


def areas(s):
    return pm.CAR("z", mu=np.zeros(N), W=W, alpha=0.8, tau=s)


def areas_twin(s):
    return pm.MvNormal("z", np.zeros(N), cov=np.linalg.inv(D - 0.8 * W) / s)


def constrained_areas(s):
    return s * pm.ICAR("z", W=W, zero_sum_stdev=0.01)


def constrained_areas_twin(s):
    Q = D - W + np.ones((N, N)) / (0.01 * N) ** 2
    return s * pm.MvNormal("z", np.zeros(N), cov=np.linalg.inv(Q))


X = RNG.uniform(size=(N, 2))


def scattered(s):
    return pac.Vecchia("z", X=X, cov_func=pm.gp.cov.Matern32(2, ls=s), neighbours=N)


def scattered_twin(s):
    return pm.MvNormal("z", np.zeros(N), cov=pm.gp.cov.Matern32(2, ls=s)(X) + 1e-6 * np.eye(N))


def scaled_areas(s):
    return pac.ICAR("z", W=csr_array(W), sigma=s, zero_sum_stdev=0.01, scaled=True)


def scaled_areas_twin(s):
    scale = np.exp(np.log(np.diag(np.linalg.pinv(D - W))).mean())
    Q = scale * (D - W) / s**2 + np.ones((N, N)) / (0.01 * N) ** 2
    return pm.MvNormal("z", np.zeros(N), tau=Q)


PAIRS = {
    "Vecchia": (scattered, scattered_twin),
    "scaled ICAR": (scaled_areas, scaled_areas_twin),
    "random walk": (walk, walk_twin),
    "AR": (autoregression, autoregression_twin),
    "CAR": (areas, areas_twin),
    "ICAR": (constrained_areas, constrained_areas_twin),
}


def written(prior, observe):
    with pm.Model() as model:
        observe(prior(pm.Gamma("s", 2, 2)) + pm.Normal("b", 0, 1))
    return model


def counts(eta):
    pm.Poisson("y", pm.math.exp(eta), observed=COUNTS)


def binary(eta):
    pm.Bernoulli("y", logit_p=eta, observed=BINARY)


@pytest.mark.parametrize("method", ["vgp", "ep"])
@pytest.mark.parametrize("name", PAIRS)
def test_fit_is_that_of_the_covariance(name, method):
    fits = [pac.fit(method, model=written(prior, counts), **QUIET) for prior in PAIRS[name]]
    ours, theirs = fits
    assert ours.converged
    # Both stop where a step along the hyperparameter changes less than their tolerance.
    assert ours.log_evidence == pytest.approx(theirs.log_evidence, abs=1e-6)
    assert ours.objective == pytest.approx(theirs.objective, abs=1e-6)
    assert ours.theta["s"] == pytest.approx(theirs.theta["s"], rel=1e-3)
    for latent in ("z", "b"):
        np.testing.assert_allclose(ours.mean[latent], theirs.mean[latent], atol=1e-3)
        np.testing.assert_allclose(ours.std[latent], theirs.std[latent], rtol=1e-2)


@pytest.mark.parametrize("name", PAIRS)
def test_draws_are_those_of_the_covariance(name, monkeypatch):
    """One seed gives one chain, whichever of the two says what the covariance is.

    That is by one solver: few latents with a precision would be conditioned by another.

    Areas are reordered, so that their random numbers belong to others: of these the log densities
    alone are compared.
    """
    monkeypatch.setattr(choice, "_FEW", 0.0)
    monkeypatch.setattr(choice, "_FEW_LATENTS", 0)
    chains = []
    for prior in PAIRS[name]:
        model = written(prior, binary)
        step = pac.AugmentedGibbs(model=model)
        assert {v.name for v in step.vars} == {v.name for v in model.value_vars}
        step.setup_chain(np.random.default_rng(5), 10, 20)
        point, chain = model.initial_point(), []
        for _ in range(30):
            point, (stats,) = step.step(point)
            chain.append(np.concatenate([np.ravel(value) for value in point.values()]))
        assert stats["model_logp"] == pytest.approx(
            float(model.compile_logp(mode=python_mode())(point)), rel=1e-9, abs=1e-6
        )
        chains.append(chain)
    ours, theirs = chains
    if name in ("random walk", "AR"):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert np.std(ours, axis=0).min() > 0.0


def test_the_map_of_the_reproducer_is_no_hyperparameter():
    """A CAR was held at its mode: the predictor's sd was a fifth of what it is."""
    fit = pac.fit("vgp", model=written(areas, counts), **QUIET)
    assert set(fit.theta) == {"s"}
    sd = fit.std["z"]
    assert sd.min() > 0.1


def test_a_sample_of_a_walk_comes_with_its_names():
    idata = pac.sample(
        20, tune=20, chains=1, cores=1, model=written(walk, binary), random_seed=1, **QUIET
    )
    assert idata.posterior["z"].shape == (1, 20, N)


def process(inputs):
    kernel = pm.gp.cov.Matern32(1, 3.0) * pm.gp.cov.Cosine(1, 9.0)
    pm.gp.Latent(cov_func=kernel).prior("z", inputs[:, None])


def on_axes():
    kernels = [pm.gp.cov.Matern32(1, 1.0)] * 2
    pm.gp.LatentKron(cov_funcs=kernels).prior("z", [np.arange(N / 2)[:, None], np.eye(2)[:, :1]])


KINDS = {
    "precision": lambda: walk(0.5),
    "intrinsic": lambda: pm.ICAR("z", W=W),
    "markov": lambda: process(np.arange(N)),
    "markov, unsorted": lambda: process(np.roll(np.arange(N), 3)),
    "kronecker": on_axes,
    "pivots": lambda: pac.Vecchia(
        "z", X=np.arange(N)[:, None] / 9, cov_func=pm.gp.cov.Matern32(1, 1.0), neighbours=3
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_saved_or_pickled_fit_of_every_kind_draws_the_same(name, tmp_path, monkeypatch):
    monkeypatch.setattr(other_graphs, "_FEWEST", 5)
    monkeypatch.setattr(other_graphs, "_FEWEST_UNORDERED", 5)
    monkeypatch.setattr(normal, "_FEWEST", 5)
    with pm.Model() as model:
        KINDS[name]()
        pm.Bernoulli("y", logit_p=model["z"], observed=np.arange(N) % 3 == 0)
    fit = pac.fit("vgp", model=model, **QUIET)
    assert fit._latents.prior.blocks[0].block.kind == name.partition(",")[0]
    fit.save(tmp_path / "fit.npz")
    pickled = pickle.loads(pickle.dumps(fit))
    for other in (pac.Approximation.load(tmp_path / "fit.npz"), pickled):
        np.testing.assert_allclose(other.std["z"], fit.std["z"], rtol=1e-9)
        drawn = [each.sample(3, random_seed=1)["posterior"]["z"] for each in (other, fit)]
        np.testing.assert_allclose(*drawn, rtol=1e-9, atol=1e-12)


def test_scales_of_a_map_have_slices_along_axes_too():
    """Ellipses alone are long in leaving the tail in which one of two scales is near zero."""
    n = 40
    W = np.roll(np.eye(n, dtype=int), 1, axis=0)
    with pm.Model() as model:
        scales = pm.HalfNormal("scales", 1, shape=2)
        phi, theta = pm.ICAR("phi", W=W + W.T), pm.Normal("theta", 0, 1, shape=n)
        pm.Poisson("y", pm.math.exp(scales[0] * phi + scales[1] * theta), observed=np.arange(n))
    step = pac.AugmentedGibbs(model=model)
    assert step.held == ("y",)
    assert step._kinds["collapsed"] is MixedUpdate
    rest = step.recognition.model, step.plan, step.held, step._solver
    assert choose_updates("elliptical", *rest)["collapsed"] is EllipticalUpdate
    of_one = replace(step.plan, collapsed=(replace(step.plan.collapsed[0], shape=()),))
    assert choose_updates("auto", rest[0], of_one, *rest[2:])["collapsed"] is EllipticalUpdate


def test_many_hyperparameters_beside_a_covariance_have_slices_along_axes():
    """The ridge of a factor and a power bends: ellipses had 19 of 4 000 effective draws of it."""
    x = np.linspace(0.0, 1.0, 5)
    with pm.Model() as model:
        factor, power = pm.Exponential("factor", 1), pm.Exponential("power", 1)
        cov = pm.Exponential("scale", 2) * pm.math.exp(-(np.subtract.outer(x, x) ** 2))
        k = pm.MvNormal("k", np.zeros(5), cov=cov + 0.01 * pm.Exponential("own", 1) * np.eye(5))
        pm.Poisson("y", factor * (1.0 + x) ** power * pm.math.exp(k), observed=np.arange(5))
    step = pac.AugmentedGibbs(model=model)
    assert step.held == ("y",)
    assert step._kinds["collapsed"] is MixedUpdate
    few = replace(step.plan, collapsed=step.plan.collapsed[:3])
    rest = step.recognition.model, few, step.held, step._solver
    assert choose_updates("auto", *rest)["collapsed"] is EllipticalUpdate


@pytest.mark.parametrize(("noise", "sweeps", "held"), [("t", 2, ()), ("counts", None, ("y",))])
def test_series_have_slices_along_axes_and_few_sweeps(noise, sweeps, held):
    """Of a process in linear time a draw costs as much as an evidence."""
    n = 600
    x = np.linspace(0.0, 20.0, n)
    with pm.Model() as model:
        cov = pm.HalfNormal("eta", 1) ** 2 * pm.gp.cov.Matern32(1, pm.HalfNormal("ls", 5))
        f = pm.gp.Latent(cov_func=cov).prior("f", X=x[:, None])
        if noise == "t":
            pm.StudentT("y", nu=4, mu=f, sigma=1, observed=np.sin(x))
        else:
            pm.Poisson("y", pm.math.exp(f), observed=np.arange(n) % 3)
    with in_linear_time(model):
        step = pac.AugmentedGibbs()
    assert (step.sweeps, step.held) == (sweeps, held)
    assert step._kinds["collapsed"] is MixedUpdate
