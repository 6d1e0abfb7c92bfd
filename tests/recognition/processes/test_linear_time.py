"""Processes of one input that are Markov are found in the model, and stay the user's process."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytest
from scipy.sparse import csr_matrix
from scipy.special import logit

import pymc_augconj as pac
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.recognition.latents import markov
from pymc_augconj.recognition.prediction.transitions import MarkovProcess
from pymc_augconj.recognition.processes import other_graphs
from pymc_augconj.recognition.processes.other_graphs import in_linear_time

N = 12
cov = pm.gp.cov


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    monkeypatch.setattr(other_graphs, "_FEWEST", 1)
    monkeypatch.setattr(other_graphs, "_FEWEST_UNORDERED", 5)


def inputs(seed=0):
    return np.sort(np.random.default_rng(seed).uniform(0.0, 10.0, N))


def a_model(make, x, likelihood="Poisson", data=True, **of_prior):
    rng = np.random.default_rng(1)
    with pm.Model(coords={"time": np.arange(N)}) as model:
        ls, eta = pm.InverseGamma("ls", 3, 2), pm.HalfNormal("eta", 1, initval=0.7)
        X = pm.Data("X", x[:, None]) if data else x[:, None]
        model.gp = pm.gp.Latent(cov_func=make(ls, eta))
        f = model.gp.prior("f", X=X, dims="time", **of_prior)
        level = pm.Normal("level", 0, 2)
        if likelihood == "Poisson":
            pm.Poisson("y", pm.math.exp(level + f), observed=rng.poisson(2.0, N))
        else:
            pm.Bernoulli("y", logit_p=level + f, observed=rng.random(N) < 0.5)
    return model


# Where ν = ½, PyMC's kernel has 1e-6 less variance on its diagonal. Where the rank of K is below N,
# the jitter of 1e-6 divides the rounding errors of PyMC's K, 1e-14.
READ = {
    "Matern12": (lambda ls, eta: eta**2 * cov.Matern12(1, ls=ls), [1], 2e-4),
    "Exponential": (lambda ls, eta: cov.Exponential(1, ls_inv=ls) * eta, [1], 2e-4),
    "Matern32": (lambda ls, eta: eta**2 * cov.Matern32(1, ls=ls), [2], 1e-8),
    "Matern52, fixed": (lambda ls, eta: cov.Matern52(1, ls=1.3), [3], 1e-8),
    "Matern52 of the second column": (
        lambda ls, eta: 3.0 * eta**2 * cov.Matern52(2, ls=ls, active_dims=[1]), [3], 1e-8,
    ),
    "sum": (
        lambda ls, eta: (
            eta**2 * cov.Matern32(1, ls=ls)
            + 0.3 * cov.Matern52(1, ls=4.0)
            + cov.Constant(eta)
            + cov.WhiteNoise(0.1)
        ),
        [2, 3, 1],
        1e-8,
    ),
    # The lengths of its matrices are constants.
    "sum, of fixed inputs": (
        lambda ls, eta: cov.Matern52(1, ls=ls) + cov.Constant(2.0) + cov.WhiteNoise(0.3),
        [3, 1],
        1e-8,
    ),
    "Cosine": (lambda ls, eta: eta**2 * cov.Cosine(1, ls=ls), [1], 1e-6),
    "waves": (
        lambda ls, eta: cov.Matern52(1, ls=ls) * cov.Cosine(1, ls=eta) + cov.Cosine(1, ls=3.0),
        [3, 1],
        1e-8,
    ),
    "seasonal": (
        lambda ls, eta: (
            eta**2 * cov.Matern32(1, ls=6.0) * cov.Periodic(1, period=2.0 + eta, ls=ls)
            + 0.1 * cov.Linear(1, c=5.0)
        ),
        [2, 1],
        1e-8,
    ),
    "Periodic, of fixed inputs": (
        lambda ls, eta: cov.Periodic(1, period=eta, ls_inv=0.7) + cov.Linear(1, c=2.0),
        [1, 1],
        1e-6,
    ),
    "product of sums": (
        lambda ls, eta: (
            (cov.Matern32(1, ls=ls) + cov.Constant(eta))
            * (cov.Linear(1, c=5.0) + cov.Cosine(1, ls=4.0))
        ),
        [2, 2, 1, 1],
        1e-8,
    ),
    "Linear": (lambda ls, eta: eta**2 * cov.Linear(1, c=3.0) * cov.Linear(1, c=1.0), [1], 1e-6),
    "scaled and warped": (
        lambda ls, eta: cov.ScaledCov(
            1,
            cov.WarpedInput(1, eta * cov.Matern32(1, ls=ls), lambda x: np.log(1.0 + 2.0 * x)),
            lambda x: 1.0 + 0.1 * x**2,
        ),
        [2],
        1e-8,
    ),
    "scaled sum": (
        lambda ls, eta: eta**2 * (cov.Matern32(1, ls=ls) + cov.Matern52(1, ls=2.0 * ls)),
        [2, 3],
        1e-8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_read_processes_have_the_values_of_the_model(name):
    make, orders, tolerance = READ[name]
    x = inputs()
    two = "second" in name
    model = a_model(make, x, data="fixed" not in name)
    if two:
        with pm.Model() as model:
            ls, eta = pm.InverseGamma("ls", 3, 2), pm.HalfNormal("eta", 1)
            X = np.column_stack([np.arange(N), x])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                f = pm.gp.Latent(cov_func=make(ls, eta)).prior("f", X=X)
            pm.Poisson("y", pm.math.exp(f), observed=np.ones(N))
    linear = in_linear_time(model)
    assert linear is not model
    assert list(linear.named_vars) == list(model.named_vars)
    assert linear.named_vars_to_dims == model.named_vars_to_dims
    assert [v.name for v in linear.value_vars] == [v.name for v in model.value_vars]
    found = pac.recognize(linear).model.blocks[0]
    assert found.kind == "markov"
    assert found.inputs.orders.tolist() == orders
    rng = np.random.default_rng(2)
    point = {n: 0.3 * rng.standard_normal(v.shape) for n, v in model.initial_point().items()}
    f, g = (
        m.compile_fn(
            m.replace_rvs_by_values([m["f"]]), inputs=m.value_vars, mode="FAST_COMPILE",
            on_unused_input="ignore",
        )
        for m in (model, linear)
    )  # fmt: skip
    ours, theirs = (h(point)[0] for h in (g, f))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)
    assert linear.initial_point().keys() == model.initial_point().keys()


@pytest.mark.parametrize(
    "make",
    [
        lambda ls, eta: eta**2 * cov.ExpQuad(1, ls=ls),
        lambda ls, eta: cov.Matern32(1, ls=ls) * cov.Matern12(1, ls=eta),
        lambda ls, eta: cov.RatQuad(1, alpha=eta, ls=ls),
        lambda ls, eta: 2.0 * cov.Matern32(1, ls=ls) + (-0.2) * cov.Matern32(1, ls=ls),
        lambda ls, eta: cov.Cosine(1, ls=ls) * cov.Cosine(1, ls=eta),
        lambda ls, eta: cov.ExpQuad(1, ls=ls) * cov.Periodic(1, period=eta, ls=1.0),
        lambda ls, eta: cov.Matern32(1, ls=ls) * cov.Periodic(1, period=eta, ls=0.02),
        lambda ls, eta: cov.Matern32(1, ls=ls) + cov.Linear(1, c=eta),
        lambda ls, eta: cov.WhiteNoise(ls) * cov.Linear(1, c=1.0) + cov.Matern32(1, ls=eta),
        # Its scaled input is no data.
        lambda ls, eta: cov.Gibbs(1, lambda x: 1.0 + 0.1 * x**2),
        lambda ls, eta: cov.WarpedInput(
            1, cov.Matern32(1, ls=ls), lambda x, a: x**3 + a * x, (eta,)
        ),
    ],
)  # fmt: skip
def test_other_processes_stay_dense(make):
    model = a_model(make, inputs())
    assert in_linear_time(model) is model


@pytest.mark.parametrize("form", [csr_matrix, np.array, None])
def test_autoregressions_of_maps_need_no_eigenvalues(form):
    """PyMC's density of them, without its normalising constant, and variables, of few numbers."""
    W = np.diag(np.ones(N - 1), 1) + np.diag(np.full(N - 4, 2.0), 4)
    W = W + W.T if form else W
    with pm.Model(coords={"area": np.arange(N)}) as model:
        alpha, tau = pm.Beta("alpha", 4, 2), pm.Gamma("tau", 2, 2)
        mu = pm.Normal("mu", 0, 1) * np.linspace(0, 1, N)
        f = pm.CAR("f", mu, (form or csr_matrix)(W), alpha, tau, dims="area")
        pm.Poisson("y", pm.math.exp(f), observed=np.ones(N))
    linear = in_linear_time(model)
    if form is None:
        assert linear is model  # not symmetric: PyMC raises its own error
        return
    assert linear.named_vars_to_dims == model.named_vars_to_dims
    assert type(linear["f"].owner.op).__name__ == "SparseNormalRV"
    theirs, ours = (m.compile_logp(mode="FAST_COMPILE") for m in (model, linear))
    draws = pac.sample(3, tune=3, chains=1, model=model, random_seed=1, progressbar=False)
    for draw, found in zip(
        draws.posterior.draw.values, draws.sample_stats.lp.values[0], strict=True
    ):
        at = {name: draws.posterior[name][0, draw].values for name in ("alpha", "tau", "mu", "f")}
        at |= {"alpha_logodds__": logit(at.pop("alpha")), "tau_log__": np.log(at.pop("tau"))}
        assert ours(at) == pytest.approx(theirs(at), rel=1e-10)
        assert float(found) == pytest.approx(theirs(at), rel=1e-10)


def test_other_kernels_need_no_filter(monkeypatch):
    """Nor its kernels, which a first fit would wait for."""
    monkeypatch.setattr(markov, "transitions_of", None)
    model = a_model(lambda ls, eta: eta**2 * cov.ExpQuad(1, ls=ls), inputs())
    assert in_linear_time(model) is model
    with pytest.raises(TypeError):
        in_linear_time(a_model(READ["Matern32"][0], inputs()))


# The amplitude of these data is zero at the optimum.
@pytest.mark.filterwarnings("ignore:.*as good as zero:RuntimeWarning")
def test_fits_are_those_of_the_dense_form(monkeypatch):
    for method, likelihood, kernel in (
        ("vgp", "Poisson", "seasonal"),
        ("ep", "Bernoulli", "waves"),
        ("cavi", "Bernoulli", "Matern32"),
    ):
        model, found = a_model(READ[kernel][0], inputs(), likelihood), []
        for fewest in (1, 1000):
            monkeypatch.setattr(other_graphs, "_FEWEST", fewest)
            fit = pac.fit(method=method, model=model, progressbar=False, random_seed=1)
            new = np.array([[-1.0], [2.5], [3.0], [14.0]])
            f = pac.predict(fit, model.gp, new, model=model).predictions
            y = pac.predict(fit, model.gp, new, kind="y", model=model).predictions
            assert np.allclose(fit.sample(10)["posterior"]["f"].std("draw"), 0.0) is False
            found.append((fit.log_evidence, *fit.theta.values(), fit.mean["f"], f, y))
        ours, theirs = found
        for a, b in zip(ours[:-2], theirs[:-2], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
        for a, b in zip(ours[-2:], theirs[-2:], strict=True):
            for name in a.data_vars:
                np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-6)


def sampled(model, **options):
    return pac.sample(
        20, tune=20, chains=1, model=model, progressbar=False, random_seed=1,
        compute_convergence_checks=False, **options,
    )  # fmt: skip


def test_a_trace_has_the_values_that_pymc_computes():
    x, model = inputs(), a_model(READ["Matern32"][0], inputs())
    posterior = sampled(model).posterior.isel(chain=0)
    assert posterior["f"].dims == ("draw", "time")
    for i in (0, 19):
        one = posterior.isel(draw=i)
        s = np.sqrt(3.0) * np.abs(np.subtract.outer(x, x)) / float(one["ls"])
        K = float(one["eta"]) ** 2 * (1.0 + s) * np.exp(-s) + 1e-6 * np.eye(N)
        expected = np.linalg.cholesky(K) @ one["f_rotated_"].values
        np.testing.assert_allclose(one["f"], expected, rtol=0, atol=1e-8)


def test_whitened_values_of_unordered_inputs_are_left_out():
    x = np.random.default_rng(3).permutation(inputs())
    model = a_model(READ["Matern32"][0], x, "Bernoulli")
    with pytest.warns(UserWarning, match=r"sort the rows of the data"):
        draws = sampled(model)
    assert "f" in draws.posterior
    assert "f_rotated_" not in draws.posterior
    predicted = pac.predict(draws, model.gp, x[:2, None], model=model).predictions
    # At its own inputs a process is what it was, up to the jitter.
    np.testing.assert_allclose(
        predicted["f"].values, draws.posterior["f"].values[..., :2], atol=1e-2
    )
    fit = pac.fit(method="vgp", model=model, progressbar=False)
    assert "f_rotated_" not in fit.sample(5).posterior


@pytest.mark.parametrize("name", ["sum", "product of sums"])
def test_draws_at_new_inputs_are_those_of_the_dense_conditional(name):
    model = a_model(READ[name][0], inputs())
    new = np.array([[-2.0], [4.4], [5.0], [20.0]])
    process = MarkovProcess.find(model, "f", new)
    array = process.array({"ls": np.array(1.2), "eta": np.array(0.8)})
    recognition = pac.recognize(model)
    prior = LatentPriors(recognition.model, [recognition.start]).at(recognition.start).blocks[0]
    prior = type(prior)(prior.block, array)
    np.testing.assert_array_equal(process._every.x, np.append(inputs(), new))
    factor = type(prior.factor)(process._every, np.append(array[:-1], 1e-12))
    K = factor.product(factor.transpose_product(np.eye(N + 4)))
    C = K[:N, :N] + array[-1] * np.eye(N)
    deviation = np.random.default_rng(4).normal(size=N)
    mean = K[N:, :N] @ np.linalg.solve(C, deviation)
    S = K[N:, N:] - K[N:, :N] @ np.linalg.solve(C, K[:N, N:]) + 0.01 * np.eye(4)
    rng, size = np.random.default_rng(5), 2000
    diagonal = np.diagonal(K)[N:] + 0.01
    for joint in (True, False):
        draws = process.draw(rng, array, np.tile(deviation, (size, 1)), diagonal, joint=joint)
        std = np.sqrt(np.diagonal(S) / size)
        assert (np.abs(draws.mean(axis=0) - mean) <= 5.0 * std).all()
        cov_found, expected = np.cov(draws.T), S if joint else np.diag(np.diagonal(S))
        bound = 5.0 * np.sqrt(2.0 / size) * np.sqrt(np.outer(np.diagonal(S), np.diagonal(S)))
        assert (np.abs(cov_found - expected) <= bound).all()


def test_many_values_need_no_matrix():
    n = 40_000
    rng = np.random.default_rng(6)
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 3, 2)
        gp = pm.gp.Latent(cov_func=cov.Matern32(1, ls=ls))
        f = gp.prior("f", X=np.arange(n)[:, None] / 100.0)
        pm.Bernoulli("y", logit_p=f, observed=rng.random(n) < 0.5)
    draws = pac.sample(
        1, tune=1, chains=1, model=model, progressbar=False, random_seed=1,
        compute_convergence_checks=False,
    )  # fmt: skip
    assert draws.posterior["f"].shape == (1, 1, n)
    assert pac.predict(draws, gp, np.array([[1.0], [500.0]]), model=model).predictions["f"].size
