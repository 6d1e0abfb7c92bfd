"""Predictions: exact where they can be, and the same from every kind of fit."""

from __future__ import annotations

import sys
from itertools import product

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy.special import expit
from scipy.stats import norm

import pymc_augconj as pac
from pymc_augconj.api.predict import _indices_in_range

QUIET = {"progressbar": False}
ONE_CHAIN = xr.DataTree.from_dict({"posterior": xr.Dataset({"f": ("draw", np.zeros(9))})})
LS, AMP, SIGMA = 0.8, 1.3, 0.3


def kernel(a, b):
    return AMP**2 * np.exp(-0.5 * ((a - b.T) / LS) ** 2)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(4)
    X = np.sort(rng.uniform(-3.0, 3.0, (40, 1)), axis=0)
    return X, np.sin(1.5 * X[:, 0]) + SIGMA * rng.standard_normal(40)


@pytest.fixture(scope="module")
def Xnew():
    return np.linspace(-4.0, 4.0, 23)[:, None]


def write(data, observe, **fixed):
    X, y = data
    with pm.Model() as model:
        b0 = pm.Normal("b0", 0.4, 0.7)
        cov = AMP**2 * pm.gp.cov.ExpQuad(1, ls=LS)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.2), cov_func=cov)
        observe(b0 + 1.2 * gp.prior("f", X=X), y)
    return model, gp


@pytest.fixture(scope="module")
def regression(data):
    return write(data, lambda eta, y: pm.Normal("y", mu=eta, sigma=SIGMA, observed=y))


@pytest.fixture(scope="module")
def counts(data):
    def observe(eta, y):
        pm.Binomial("y", n=8, logit_p=eta, observed=np.round(8 * expit(2 * y)))

    return write(data, observe)


def exact_regression(data, Xnew):
    """Mean and covariance of f* and of η* for the normal likelihood."""
    X, y = data
    K = 1.44 * (kernel(X, X) + 1e-6 * np.eye(40)) + 0.49
    solve = np.linalg.solve
    C = K + SIGMA**2 * np.eye(40)
    residual = y - 0.4 - 1.2 * 0.2
    to_f, to_eta = 1.2 * kernel(Xnew, X), 1.44 * kernel(Xnew, X) + 0.49
    f = 0.2 + to_f @ solve(C, residual), kernel(Xnew, Xnew) - to_f @ solve(C, to_f.T)
    prior_eta = 1.44 * kernel(Xnew, Xnew) + 0.49
    eta = 0.64 + to_eta @ solve(C, residual), prior_eta - to_eta @ solve(C, to_eta.T)
    return f, eta


@pytest.mark.parametrize("method", ["cavi", "vgp"])
def test_normal_likelihood_predicts_exactly(regression, data, Xnew, method):
    model, gp = regression
    vi = pac.fit(method, model=model, **QUIET)
    (f_mean, f_cov), (mean, cov) = exact_regression(data, Xnew)
    f = pac.predict(vi, gp, Xnew, model=model, full_cov=True).predictions
    np.testing.assert_allclose(f["f_mean"], f_mean, atol=1e-7)
    np.testing.assert_allclose(f["f_cov"], f_cov, atol=1e-6)
    np.testing.assert_allclose(f["f_std"] ** 2, np.diagonal(f_cov), atol=1e-6)
    ynew, levels = np.linspace(-1.0, 1.0, len(Xnew)), [0.05, 0.5, 0.9]
    y = pac.predict(vi, gp, Xnew, "y", model=model, ynew=ynew, quantile=levels).predictions
    std = np.sqrt(np.diagonal(cov) + SIGMA**2)
    np.testing.assert_allclose(y["y_mean"], mean, atol=1e-7)
    np.testing.assert_allclose(y["y_std"], std, rtol=1e-6)
    np.testing.assert_allclose(y["y_log_density"], norm(mean, std).logpdf(ynew), atol=1e-5)
    for level in levels:
        quantile = y["y_quantile"].sel(quantile=level)
        np.testing.assert_allclose(quantile, norm(mean, std).ppf(level), atol=1e-5)


def test_draws_of_the_exact_posterior_predict_the_same(regression, data, Xnew):
    # 4000 independent draws of a posterior that the approximation has exactly.
    model, gp = regression
    draws = 4000
    idata = pac.fit("cavi", model=model, **QUIET).sample(draws, random_seed=0)
    (f_mean, f_cov), (mean, cov) = exact_regression(data, Xnew)
    std = np.sqrt(np.diagonal(f_cov))
    for joint in (True, False):
        f = pac.predict(idata, gp, Xnew, model=model, joint=joint, random_seed=1).predictions
        assert f["f"].dims == ("chain", "draw", "f_dim_0")
        assert np.abs(f["f_mean"] - f_mean).max() < 5.0 * std.max() / np.sqrt(draws)
        np.testing.assert_allclose(f["f_std"], std, rtol=5.0 / np.sqrt(2.0 * draws))
        sampled = np.corrcoef(f["f"].values[0].T)
        error = np.abs(sampled - f_cov / np.outer(std, std))
        assert (error.max() < 6.0 / np.sqrt(draws)) == joint
    ynew = np.zeros(len(Xnew))
    y = pac.predict(
        idata, gp, Xnew, "y", model=model, ynew=ynew, quantile=[0.1], random_seed=1
    ).predictions
    std = np.sqrt(np.diagonal(cov) + SIGMA**2)
    assert np.abs(y["y_mean"] - mean).max() < 5.0 * std.max() / np.sqrt(draws)
    np.testing.assert_allclose(y["y_std"], std, rtol=0.08)
    np.testing.assert_allclose(y["y_log_density"], norm(mean, std).logpdf(0.0), atol=0.15)
    np.testing.assert_allclose(y["y_quantile"][0], norm(mean, std).ppf(0.1), atol=0.2)


def test_agrees_with_gibbs_on_counts(counts, Xnew):
    model, gp = counts
    with model:
        idata = pac.sample(
            1500, chains=2, cores=1, random_seed=1, compute_convergence_checks=False, **QUIET
        )
        arguments = {"kind": "y", "ynew": np.full(len(Xnew), 4.0), "quantile": [0.25, 0.75]}
        gibbs = pac.predict(idata, gp, Xnew, random_seed=0, **arguments).predictions
        vi = pac.fit("vgp", **QUIET)
        found = pac.predict(vi, gp, Xnew, **arguments).predictions
    assert np.abs(found["y_mean"] - gibbs["y_mean"]).max() < 0.35
    np.testing.assert_allclose(found["y_std"], gibbs["y_std"], rtol=0.1)
    np.testing.assert_allclose(found["y_log_density"], gibbs["y_log_density"], atol=0.15)
    assert np.abs(found["y_quantile"] - gibbs["y_quantile"]).max() <= 1.0


def test_parameters_at_new_inputs_can_be_given(counts, Xnew):
    model, gp = counts
    vi = pac.fit("cavi", model=model, **QUIET)
    eight, twenty = (
        pac.predict(vi, gp, Xnew, "y", model=model, params={"n": n}).predictions["y_mean"]
        for n in (8, 20)
    )
    np.testing.assert_allclose(twenty, 2.5 * eight, rtol=1e-9)
    with pytest.raises(pac.AugmentationError, match="expected parameters of Binomial"):
        pac.predict(vi, gp, Xnew, "y", model=model, params={"trials": 20})


def test_a_learned_kernel_is_conditioned_draw_by_draw(data, Xnew):
    X, y = data
    with pm.Model() as model:
        ls, nu = pm.InverseGamma("ls", 5, 5), pm.Gamma("nu", 5, 1)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        pm.StudentT("y", nu=nu, mu=gp.prior("f", X=X), sigma=0.3, observed=y)
    rng, repeats = np.random.default_rng(0), 1000
    scales, f = np.array([0.5, 1.1]), rng.standard_normal((2, 40))
    draws = {"f": np.tile(f, (repeats, 1)), "ls": np.tile(scales, repeats)}
    draws["nu"] = rng.uniform(3.0, 5.0, 2 * repeats)
    tree = az.from_dict({"posterior": {name: value[None] for name, value in draws.items()}})
    found = pac.predict(tree, gp, Xnew, model=model, random_seed=0).predictions["f"].values[0]
    for i, scale in enumerate(scales):
        old, cross, new = (
            np.exp(-0.5 * ((a - b.T) / scale) ** 2) for a, b in ((X, X), (X, Xnew), (Xnew, Xnew))
        )
        A = np.linalg.solve(old + 1e-6 * np.eye(40), cross)
        std = np.sqrt(np.maximum(np.diagonal(new - A.T @ cross), 1e-12))
        mine = found[i::2]
        error = np.abs(mine.mean(axis=0) - f[i] @ A) / (std + 1e-4)
        assert error.max() < 5.0 / np.sqrt(repeats)
        np.testing.assert_allclose(mine.std(axis=0), std, rtol=0.15, atol=1e-4)


def test_terms_that_vary_between_observations_are_refused(data, Xnew):
    X, y = data
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        pm.Laplace("y", mu=gp.prior("f", X=X) + beta * y, b=1.0, observed=y)
    vi = pac.fit("cavi", model=model, **QUIET)
    with pytest.raises(pac.AugmentationError, match="the contribution of 'beta' differs"):
        pac.predict(vi, gp, Xnew, "y", model=model)
    assert np.isfinite(pac.predict(vi, gp, Xnew, model=model).predictions["f_mean"]).all()


def test_labels_are_the_users(regression, Xnew):
    model, gp = regression
    vi = pac.fit("cavi", model=model, **QUIET)
    labels = [f"new {i}" for i in range(len(Xnew))]
    found = pac.predict(vi, gp, Xnew, model=model, dim="place", coords=labels).predictions
    assert found["f_mean"].dims == ("place",)
    assert list(found["place"].values) == labels


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kind": "z"}, "kind: expected"),
        ({"params": {"sigma": 1.0}}, r"expected 'y' with \['params'\]"),
        ({"quantile": 0.5}, r"expected 'y' with \['quantile'\]"),
        ({"kind": "y", "full_cov": True}, "full_cov: expected kind='f'"),
        ({"kind": "y", "ynew": np.array([0.1, np.nan, 0.3])}, "ynew .Normal.: expected a finite"),
        ({"Xnew": [["here"]]}, "Xnew: expected an array of numbers"),
        ({"Xnew": np.zeros((3, 2))}, "Xnew: expected shape"),
        ({"Xnew": np.zeros((0, 1))}, "Xnew: expected shape"),
        ({"Xnew": np.full((3, 1), np.nan)}, "Xnew: expected finite"),
        ({"gp": 3}, "gp: expected a pm.gp.Latent"),
        ({"result": 3}, "result: expected what pac.fit returns"),
        ({"ynew": np.zeros(3)}, "use kind='y'"),
        ({"kind": "y", "observed": "z"}, "observed: expected one observed variable"),
        ({"kind": "y", "ynew": np.zeros(2)}, "ynew: expected one number"),
        ({"kind": "y", "quantile": [1.5]}, "expected levels in"),
        ({"coords": [1]}, "coords: expected 3 labels, got 1"),
        ({"dim": "draw"}, "dim: expected a name"),
        ({"result": ONE_CHAIN}, "sel\\(chain="),
    ],
)
def test_bad_arguments_are_refused(regression, change, sentence):
    model, gp = regression
    vi = pac.fit("cavi", model=model, **QUIET)
    arguments = {"result": vi, "gp": gp, "Xnew": np.zeros((3, 1)), **change}
    with pytest.raises(pac.AugmentationError, match=sentence):
        pac.predict(model=model, **arguments)


def test_one_level_and_one_observation_need_no_list(regression, Xnew):
    model, gp = regression
    vi = pac.fit("vgp", model=model, hyper="fixed", progressbar=False)
    found = [
        pac.predict(vi, gp, Xnew, "y", model=model, quantile=level, ynew=ynew).predictions
        for level, ynew in ((0.3, 0.5), ([0.3], np.full(len(Xnew), 0.5)))
    ]
    assert found[0].to_dataset().identical(found[1].to_dataset())


def test_what_is_no_process_of_the_model_is_told_what_to_do(regression, Xnew):
    model, gp = regression
    vi = pac.fit("vgp", model=model, hyper="fixed", progressbar=False)
    cov = pm.gp.cov.ExpQuad(1, ls=1.0)
    with pm.Model():
        student = pm.gp.TP(scale_func=cov, nu=5)
        student.prior("t", X=Xnew)
    for given, sentence in (
        (gp.f, "got the variable 'f'; pass the process"),
        (pm.gp.Latent(cov_func=cov), "one without a prior; call"),
        (pm.gp.HSGP(m=[5], c=1.5, cov_func=cov), r"got HSGP; use its conditional"),
        # The variance of its values at new inputs depends on those at the old ones.
        (student, r"got TP; use its conditional"),
    ):
        with pytest.raises(pac.AugmentationError, match=sentence):
            pac.predict(vi, given, Xnew, model=model)


def test_a_missing_variable_is_named(regression, Xnew):
    model, gp = regression
    tree = az.from_dict({"posterior": {"b0": np.zeros((1, 3))}})
    with pytest.raises(pac.AugmentationError, match="expected the variable 'f'"):
        pac.predict(tree, gp, Xnew, model=model)


def test_one_law_of_y_however_it_is_written(data, Xnew):
    # Laplace noise by its name, as Matérn noise of smoothness ½, and by φ alone.
    X, y = data
    spellings = {
        "name": lambda f: pm.Laplace("y", mu=f, b=0.3, observed=y),
        "Matérn": lambda f: pac.MaternNoise("y", nu=0.5, mu=f, rho=0.3, observed=y),
        "φ": lambda f: pac.SuperGaussian("y", f, log_phi=lambda r: -pt.sqrt(r) / 0.3, observed=y),
    }
    found = {}
    for name, observe in spellings.items():
        with pm.Model() as model:
            gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=LS))
            observe(gp.prior("f", X=X))
        vi = pac.fit("cavi", model=model, **QUIET)
        found[name] = pac.predict(
            vi, gp, Xnew, "y", model=model, ynew=np.zeros(len(Xnew)), quantile=[0.1, 0.8]
        ).predictions
    for name in ("Matérn", "φ"):
        for key, value in found["name"].items():
            np.testing.assert_allclose(found[name][key], value, rtol=1e-5, atol=1e-6, err_msg=key)


def test_a_pseudo_likelihood_has_no_law_of_y(data, Xnew):
    X, y = data
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=LS))
        pac.BayesianSVM("y", gp.prior("f", X=X), observed=np.where(y > 0, 1, -1))
    vi = pac.fit("cavi", model=model, **QUIET)
    with pytest.raises(pac.AugmentationError, match="there are no probabilities of y"):
        pac.predict(vi, gp, Xnew, "y", model=model)
    sign = np.sign(pac.predict(vi, gp, X, model=model).predictions["f_mean"])
    assert np.mean(sign == np.where(y > 0, 1, -1)) > 0.8


@pytest.mark.parametrize("learned", [False, True])
def test_several_outputs_are_predicted_each_by_itself(data, Xnew, learned):
    # Two outputs under normal noise are two regressions.
    X, y = data
    both = np.stack([y, np.cos(X[:, 0])])
    with pm.Model(coords={"output": ["a", "b"], "place": np.arange(40)}) as model:
        ls = pm.InverseGamma("ls", 5, 5) if learned else LS
        gp = pm.gp.Latent(cov_func=AMP**2 * pm.gp.cov.ExpQuad(1, ls=ls))
        f = gp.prior("f", X=X, n_outputs=2, dims=("output", "place"))
        pm.Normal("y", mu=f, sigma=SIGMA, observed=both)
    at = {"ls": LS} if learned else {}
    vi = pac.fit("cavi", model=model, hyper="fixed", start=at, **QUIET)
    C = kernel(X, X) + (SIGMA**2 + 1e-6) * np.eye(40)
    A = np.linalg.solve(C, kernel(X, Xnew)).T
    mean, cov = both @ A.T, kernel(Xnew, Xnew) - A @ kernel(X, Xnew)
    found = pac.predict(vi, gp, Xnew, model=model, full_cov=True).predictions
    assert found["f_mean"].dims == ("output", "f_dim_1")
    assert list(found["output"].values) == ["a", "b"]
    np.testing.assert_allclose(found["f_mean"], mean, atol=1e-6)
    np.testing.assert_allclose(found["f_std"] ** 2, np.stack(2 * [np.diagonal(cov)]), atol=1e-6)
    np.testing.assert_allclose(found["f_cov"], np.stack(2 * [cov]), atol=1e-6)

    draws = 4000
    idata = vi.sample(draws, random_seed=0)
    found = pac.predict(idata, gp, Xnew, model=model, random_seed=1).predictions
    assert found["f"].dims == ("chain", "draw", "output", "f_dim_1")
    std = np.sqrt(np.diagonal(cov))
    assert (np.abs(found["f_mean"] - mean) / std).max() < 5.0 / np.sqrt(draws)
    np.testing.assert_allclose(found["f_std"][1], std, rtol=5.0 / np.sqrt(2.0 * draws))
    with pytest.raises(pac.AugmentationError, match="expected a process of one output"):
        pac.predict(vi, gp, Xnew, "y", model=model)


@pytest.mark.parametrize("whitened", [True, False])
@pytest.mark.parametrize("mean", ["constant", "hierarchical", "linear"])
def test_a_process_with_a_random_mean(mean, whitened):
    """At the inputs the process is what was fitted; observations are of it and of the rest."""
    rng = np.random.default_rng(2)
    X = rng.uniform(-2, 2, (30, 1))
    y = (rng.random(30) < 0.7).astype(int)
    with pm.Model():
        if mean == "linear":
            mean_func = pm.gp.mean.Linear(pm.Normal("slope", 0, 1, shape=1), 0.3)
        else:
            top = pm.Normal("top", 0, 1) if mean == "hierarchical" else 0.5
            mean_func = pm.gp.mean.Constant(pm.Normal("c", top, 0.7))
        gp = pm.gp.Latent(mean_func=mean_func, cov_func=pm.gp.cov.ExpQuad(1, ls=0.8))
        f = gp.prior("f", X=X, reparameterize=whitened)
        b = pm.Normal("b", 0, 1)
        pm.Bernoulli("y", logit_p=b + 2.0 * f, observed=y)
        vi = pac.fit("cavi", progressbar=False)
        at_inputs = pac.predict(vi, gp, X, full_cov=True).predictions
        of_y = pac.predict(vi, gp, X, kind="y").predictions
    np.testing.assert_allclose(at_inputs["f_mean"], vi.mean["f"], atol=1e-4)
    np.testing.assert_allclose(at_inputs["f_std"], vi.std["f"], atol=1e-4)
    np.testing.assert_allclose(at_inputs["f_cov"], vi.cov("f"), atol=1e-4)
    eta, weights = np.polynomial.hermite_e.hermegauss(60)
    nodes = vi.predictor_mean[:, None] + vi.predictor_std[:, None] * eta
    expected = (1.0 / (1.0 + np.exp(-nodes))) @ (weights / weights.sum())
    np.testing.assert_allclose(of_y["y_mean"], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("predictor", "expected"), [(lambda f, a, b: f + a * b, 23.0), (lambda f, a, b: a * f, 6.0)]
)
def test_a_coefficient_that_starts_at_zero_is_part_of_the_predictor(predictor, expected):
    """PyMC's initial point of ``Normal(0, 1)`` is zero, where the other factor has no effect."""
    X = np.linspace(0.0, 1.0, 4)[:, None]
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=0.3))
        f, a, b = gp.prior("f", X=X), pm.Normal("a"), pm.Normal("b")
        pm.Normal("y", predictor(f, a, b), 1.0, observed=np.zeros(4))
    constant = {"f": np.full(4, 3.0), "a": 2.0, "b": 10.0}
    posterior = {name: np.full((1, 20, *np.shape(v)), v) for name, v in constant.items()}
    draws = az.from_dict({"posterior": posterior})
    with model:
        y_mean = pac.predict(draws, gp, X, kind="y", random_seed=1).predictions["y_mean"]
    np.testing.assert_allclose(y_mean, expected, atol=0.01)


@pytest.mark.parametrize("given", [None, 0.5])
@pytest.mark.parametrize("mean", [pm.gp.mean.Constant, pm.gp.mean.Linear])
def test_draws_of_a_random_mean_with_a_fixed_kernel(mean, given):
    """Each draw of the observations takes its own draw of the mean, once."""
    rng = np.random.default_rng(2)
    X = rng.uniform(-2, 2, (12, 1))
    with pm.Model():
        top = pm.Normal("top", 1, 1)
        c, b = pm.Normal("c", top, 1), pm.Normal("b", 0, 1)
        gp = pm.gp.Latent(mean_func=mean(c), cov_func=pm.gp.cov.ExpQuad(1, ls=0.8))
        f, terms = gp.prior("f", X=X), 0.0 if given is None else X[:, 0]
        pm.Bernoulli("y", logit_p=b + f + terms, observed=(X[:, 0] > -1).astype(int))
        draws = pac.sample(30, tune=20, chains=2, cores=1, random_seed=1, progressbar=False)
        process = pac.predict(draws, gp, X[:3], random_seed=5).predictions["f"]
        of_y = pac.predict(draws, gp, X[:3], kind="y", offset=given, random_seed=5).predictions
    eta = process.values + draws.posterior["b"].values[..., None] + (given or 0.0)
    expected = (1.0 / (1.0 + np.exp(-eta))).mean(axis=(0, 1))
    np.testing.assert_allclose(of_y["y_mean"], expected, atol=1e-10)


def test_threads_do_not_change_predictions_of_draws(data, Xnew, monkeypatch):
    X, y = data
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 5)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        pm.Normal("y", mu=gp.prior("f", X=X), sigma=0.3, observed=y)
    rng = np.random.default_rng(0)
    draws = {"f": rng.standard_normal((1, 100, 40)), "ls": rng.uniform(0.5, 1.0, (1, 100))}
    tree = az.from_dict({"posterior": draws})
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(
            sys.modules["pymc_augconj.api.predict_from"],
            "count_threads",
            lambda *a, t=threads: t,
        )
        found.append(pac.predict(tree, gp, Xnew, model=model, random_seed=0).predictions["f"])
    np.testing.assert_array_equal(*found)


def test_one_seed_for_draws_and_predictions_leaves_them_independent():
    X = np.array([[0.0], [0.4], [1.0]])
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=0.5))
        pm.Bernoulli("y", logit_p=gp.prior("f", X=X), observed=[0, 1, 1])
        fit = pac.fit("cavi", progressbar=False)
        tree = fit.sample(4000, random_seed=3)
        drawn = pac.predict(tree, gp, X + 5.0, random_seed=3).predictions["f"].values[0]
    # Five length scales away f* is the prior's, whatever f is.
    correlation = np.corrcoef(drawn.T, tree.posterior["f"].values[0].T)[:3, 3:]
    assert np.abs(correlation).max() < 5.0 / np.sqrt(4000)


def test_inputs_changed_after_the_fit_are_refused(data, Xnew, tmp_path):
    X, y = data
    # Labels are coordinates of the draws' data, with the name of the length that ``f`` depends on.
    with pm.Model(coords={"place": [f"place {i}" for i in range(len(X))]}) as model:
        inputs = pm.Data("inputs", X, dims=("place", "feature"))
        gp = pm.gp.Latent(cov_func=AMP**2 * pm.gp.cov.ExpQuad(1, ls=LS))
        f = gp.prior("f", X=inputs, dims="place")
        pm.Normal("y", mu=f, sigma=SIGMA, observed=y, dims="place")
        vi = pac.fit("cavi", **QUIET)
        before = pac.predict(vi, gp, Xnew).predictions["f_mean"]
        vi.save(tmp_path / "fit.npz")
        loaded = pac.Approximation.load(tmp_path / "fit.npz")
        draws = pac.sample(draws=5, tune=5, chains=1, random_seed=1, **QUIET)
        pac.predict(draws, gp, Xnew)
        pm.set_data({"inputs": X + 1.0})
        for fit in (vi, loaded, draws):
            with pytest.raises(
                pac.AugmentationError, match=r"expected the data of the fit.*inputs"
            ):
                pac.predict(fit, gp, Xnew, model=model)
        pm.set_data({"inputs": X})
        np.testing.assert_array_equal(pac.predict(vi, gp, Xnew).predictions["f_mean"], before)


def test_other_data_changed_after_the_fit_are_refused(data, Xnew):
    """Of a mean, of a covariance, of trials and of an offset: these two matter for y alone."""
    X, y = data
    with pm.Model() as model:
        level, size = pm.Data("level", 0.3), pm.Data("size", 1.2)
        trials, shift = pm.Data("trials", np.full(40, 8)), pm.Data("shift", np.full(40, 0.5))
        other = pm.Data("other", 2.0)
        gp = pm.gp.Latent(
            mean_func=pm.gp.mean.Constant(level), cov_func=size**2 * pm.gp.cov.ExpQuad(1, ls=LS)
        )
        counts = np.round(8 * expit(y))
        pm.Binomial("y", n=trials, logit_p=gp.prior("f", X=X) + shift, observed=counts)
        pm.Normal("z", pm.Normal("b", 0, other), 1.0, observed=[0.3])
        vi = pac.fit("cavi", **QUIET)
        sparse = pac.fit("cavi", gp=gp, inducing=5, **QUIET)
        draws = pac.sample(draws=5, tune=5, chains=1, random_seed=1, **QUIET)
        for name, (new, kinds) in {
            "level": (1.0, "fy"),
            "size": (2.0, "fy"),
            "trials": (np.full(40, 20), "y"),
            "shift": (np.zeros(40), "y"),
            "other": (3.0, ""),
        }.items():
            old = model[name].get_value()
            pm.set_data({name: new})
            for fit in (vi, sparse, draws):
                for kind in ("f", "y"):
                    if kind in kinds:
                        with pytest.raises(
                            pac.AugmentationError, match=f"expected the data of the fit.*{name}"
                        ):
                            pac.predict(fit, gp, Xnew, kind)
                    else:
                        pac.predict(fit, gp, Xnew, kind)
            pm.set_data({name: old})


def test_parameters_can_be_given_for_each_new_input(counts, Xnew):
    model, gp = counts
    n = np.where(np.arange(len(Xnew)) % 2, 5.0, 30.0)
    asked = {"quantile": [0.3], "ynew": np.full(len(Xnew), 2.0)}
    vi = pac.fit("cavi", model=model, **QUIET)
    for result in (vi, vi.sample(20)):

        def predict(n, result=result):
            found = pac.predict(
                result, gp, Xnew, "y", model=model, params={"n": n}, random_seed=1, **asked
            )
            return found.predictions

        several, five, thirty = predict(n), predict(5), predict(30)
        for name in ("y_mean", "y_std", "y_quantile", "y_log_density"):
            expected = np.where(n == 5.0, five[name], thirty[name])
            np.testing.assert_allclose(several[name], expected, rtol=1e-9)
    with pytest.raises(pac.AugmentationError, match=r"params\['n'\]: expected one number, or one"):
        pac.predict(vi, gp, Xnew, "y", model=model, params={"n": n[1:]})
    with pytest.raises(pac.AugmentationError, match="ynew"):
        pac.predict(vi, gp, Xnew, "y", model=model, params={"n": n}, ynew=5.5)


def test_an_approximation_knows_its_model(counts, Xnew):
    model, gp = counts
    vi = pac.fit("cavi", model=model, **QUIET)
    found = pac.predict(vi, gp, Xnew).predictions
    np.testing.assert_array_equal(
        found["f_mean"], pac.predict(vi, gp, Xnew, model=model).predictions["f_mean"]
    )
    with pytest.raises(pac.AugmentationError, match="model: expected"):
        pac.predict(vi.sample(3), gp, Xnew)


SMALL = {
    "design": lambda f, x: pm.Normal(
        "y", mu=f + (1e-10 * x) * pm.Normal("b", 0, 1e10), sigma=1.0, observed=x
    ),
    "coefficient": lambda f, x: pm.Normal("y", mu=1e-10 * (2.0 + x) * f, sigma=1e-10, observed=x),
    "offset": lambda f, x: pm.Normal("y", mu=1e-10 * (f + x), sigma=1e-10, observed=1e-10 * x),
    "noise": lambda f, x: pm.Normal("y", mu=1e-10 * f, sigma=1e-10 * (4.0 + x), observed=1e-10 * x),
}


@pytest.mark.parametrize("what", SMALL)
def test_numbers_of_small_unit_differ_between_observations_too(what, data, Xnew):
    X, _ = data
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=LS))
        SMALL[what](gp.prior("f", X=X), X[:, 0])
        vi = pac.fit("cavi", **QUIET)
        with pytest.raises(pac.AugmentationError, match="differs between observations"):
            pac.predict(vi, gp, Xnew, kind="y")


def test_observations_that_cannot_be_have_no_log_density(counts, Xnew):
    model, gp = counts
    three = Xnew[:3]
    with model:
        vi = pac.fit("cavi", **QUIET)
        for result in (vi, vi.sample(20, random_seed=1)):
            beyond = pac.predict(result, gp, three, "y", ynew=[1.0, 9.0, 8.0], random_seed=2)
            assert (beyond.predictions["y_log_density"].values == -np.inf).tolist() == [0, 1, 0]
            with pytest.raises(pac.AugmentationError, match=r"ynew \(Binomial\): .*found 0\.5"):
                pac.predict(result, gp, three, "y", ynew=[1.0, 9.0, 0.5], random_seed=2)


def test_an_offset_is_given_at_the_new_inputs():
    """An exposure in the exponent is the exposure before it."""
    rng = np.random.default_rng(0)
    X, exposure = rng.uniform(-1, 1, (12, 1)), rng.uniform(0.5, 3.0, 12)
    y, new, new_exposure = rng.poisson(2.0 * exposure), X[:3] + 0.1, np.array([1.0, 2.0, 5.0])

    def write(as_offset):
        with pm.Model() as model:
            # The prior means of other latents are theirs, and no part of the offset.
            a = pm.Normal("a", 0.4, 0.3)
            gp = pm.gp.Latent(
                mean_func=pm.gp.mean.Constant(a), cov_func=pm.gp.cov.ExpQuad(1, ls=0.8)
            )
            f, b = gp.prior("f", X=X), pm.Normal("b", pm.Normal("c", 0.7, 1.0), 1.0)
            if as_offset:
                mu = pm.math.exp(b + f + np.log(exposure))
            else:
                mu = exposure * pm.math.exp(b + f)
            pm.Poisson("y", mu=mu, observed=y)
        return model, gp

    model, gp = write(True)
    fit = pac.fit("vgp", model=model, progressbar=False)
    with pytest.raises(pac.AugmentationError, match=r"offset=…"):
        pac.predict(fit, gp, new, "y", model=model)
    with pytest.raises(pac.AugmentationError, match="offset: expected one number"):
        pac.predict(fit, gp, new, "y", model=model, offset=np.zeros(2))
    log = np.log(new_exposure)
    found = pac.predict(fit, gp, new, "y", model=model, offset=log).predictions["y_mean"]
    latent = pac.predict(fit, gp, new, model=model, full_cov=True).predictions
    other, other_gp = write(False)
    same = pac.fit("vgp", model=other, progressbar=False)
    for i, size in enumerate(new_exposure):
        expected = pac.predict(
            same, other_gp, new, "y", model=other, params={"exposure": size}
        ).predictions["y_mean"]
        assert found.values[i] == pytest.approx(expected.values[i], rel=1e-8)
    assert latent["f_mean"].shape == (3,)
    # From draws: the same draws of f* and b, by hand.
    tree = fit.sample(50, random_seed=2)
    drawn = pac.predict(tree, gp, new, "y", model=model, offset=log, random_seed=4).predictions
    f_new = pac.predict(tree, gp, new, model=model, random_seed=4).predictions["f"].values[0]
    eta = f_new + tree.posterior["b"].values[0][:, None] + log
    np.testing.assert_allclose(drawn["y_mean"], np.exp(eta).mean(axis=0), rtol=1e-10)


@pytest.mark.parametrize("alpha", [2.5, None])
def test_an_offset_of_a_negative_binomial_is_one_of_its_log_mean(alpha):
    X, exposure = np.linspace(-1.0, 1.0, 12)[:, None], np.arange(1.0, 13.0)
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=0.8))
        mu = exposure * pm.math.exp(gp.prior("f", X=X))
        size = pm.HalfNormal("alpha", 5.0) if alpha is None else alpha
        pm.NegativeBinomial("y", mu=mu, alpha=size, observed=np.arange(12))
        log = np.log([1.0, 2.0, 5.0])
        fit = pac.fit("vgp", progressbar=False)
        posterior = fit.sample(40, random_seed=2)["posterior"].to_dataset()
        if alpha is None:
            posterior["alpha"] = ("chain", "draw"), np.linspace(0.7, 3.0, 40)[None]
        tree = xr.DataTree.from_dict({"posterior": posterior})
        f_new = pac.predict(tree, gp, X[:3] + 0.1, random_seed=4).predictions["f"].values[0]
        drawn = pac.predict(tree, gp, X[:3] + 0.1, "y", offset=log, random_seed=4).predictions
        np.testing.assert_allclose(drawn["y_mean"], np.exp(f_new + log).mean(axis=0), rtol=1e-9)
        latent = pac.predict(fit, gp, X[:3] + 0.1).predictions
        expected = np.exp(latent["f_mean"] + log + 0.5 * latent["f_std"] ** 2)
        found = pac.predict(fit, gp, X[:3] + 0.1, "y", offset=log).predictions["y_mean"]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        # Nor does the mean depend on another α.
        given = {"offset": log, "params": {"alpha": 7.0}}
        found = pac.predict(fit, gp, X[:3] + 0.1, "y", **given).predictions["y_mean"]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pm.Model():
        pm.NegativeBinomial("y", mu=pm.math.exp(gp.prior("f", X=X)), alpha=2.5, observed=[3] * 12)
        fit = pac.fit("vgp", progressbar=False)
        same = [pac.predict(fit, gp, X[:3], "y", params=p) for p in ({}, {"alpha": 7.0})]
        np.testing.assert_allclose(*(found.predictions["y_mean"] for found in same), rtol=1e-6)
    with pm.Model():
        mu = pm.math.exp(gp.prior("f", X=X) + pm.HalfNormal("s", 1.0) + np.log(exposure))
        pm.Poisson("y", mu, observed=np.arange(12))
        tree.posterior["s"] = tree.posterior["f_rotated_"][..., 0] ** 2
        with pytest.raises(pac.AugmentationError, match=r"offset: expected .* found a term of 's'"):
            pac.predict(tree, gp, X[:3] + 0.1, "y", offset=log)
    with pm.Model():
        f = gp.prior("f", X=X)
        pm.ZeroInflatedNegativeBinomial("y", 0.7, pm.math.exp(f), 2.0, observed=np.arange(12))
        with pytest.raises(pac.AugmentationError, match=r"offset: expected none for .* binomial"):
            pac.predict(tree, gp, X[:3] + 0.1, "y", offset=log)


# -- a fit and a model that do not belong together ------------------------------------------------

INPUTS = np.sort(np.random.default_rng(3).uniform(-1.0, 1.0, (12, 1)), axis=0)
POSITIVE = (np.sin(4.0 * INPUTS[:, 0]) > 0).astype(int)
MATERN = pm.gp.cov.Matern32(1, ls=0.7)


def process_model(cov=MATERN, X=INPUTS, mean=0.2, likelihood="logit", **kwargs):
    with pm.Model() as model:
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(mean), cov_func=9 * cov)
        f = gp.prior("f", X=X, **kwargs)
        if likelihood == "logit":
            pm.Bernoulli("y", logit_p=f, observed=POSITIVE[: len(X)])
        elif likelihood == "probit":
            pm.Bernoulli("y", p=pm.math.invprobit(f), observed=POSITIVE)
        else:
            pm.Bernoulli("y", logit_p=f + 0.5, observed=POSITIVE)
    return model, gp


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    model, gp = process_model()
    dense = pac.fit("cavi", model=model, **QUIET)
    dense.save(path := tmp_path_factory.mktemp("fits") / "fit")
    return {
        "dense": dense,
        "loaded": pac.Approximation.load(path),
        "sparse": pac.fit("vgp", model=model, gp=gp, inducing=INPUTS[::2], random_seed=1, **QUIET),
        "draws": dense.sample(3, random_seed=1),
    }


OTHER_PROCESSES = {
    "kernel": {"cov": pm.gp.cov.ExpQuad(1, ls=0.7)},
    "inputs in another order": {"X": INPUTS[::-1]},
    "noise in the kernel": {"cov": MATERN + pm.gp.cov.WhiteNoise(0.1)},
    "mean": {"mean": 0.3},
    "number of inputs": {"X": INPUTS[1:]},
    "origin of the inputs": {"X": INPUTS + 0.5},
}


# A fit through inducing points is one of the process at any inputs; and draws without their data
# say of inputs only what their covariance does.
UNSEEN = {("sparse", change) for change in OTHER_PROCESSES if "inputs" in change}
UNSEEN.add(("draws", "origin of the inputs"))
SEEN = sorted(set(product(("dense", "loaded", "sparse", "draws"), OTHER_PROCESSES)) - UNSEEN)


@pytest.mark.parametrize(("which", "change"), SEEN)
def test_a_fit_of_another_process_is_refused(fits, which, change):
    other, gp = process_model(**OTHER_PROCESSES[change])
    with pytest.raises(pac.AugmentationError, match=r"gp 'f': expected .*fit this model"):
        pac.predict(fits[which], gp, INPUTS[:2], model=other)


@pytest.mark.parametrize("likelihood", ["probit", "offset"])
@pytest.mark.parametrize("which", ["dense", "loaded", "sparse"])
def test_a_fit_of_another_likelihood_is_refused_for_observations(fits, which, likelihood):
    model, gp = process_model(likelihood=likelihood)
    with pytest.raises(pac.AugmentationError, match=r"'y': expected the likelihood and the pred"):
        pac.predict(fits[which], gp, INPUTS[:2] + 0.1, "y", model=model)
    right, its = process_model()
    expected = pac.predict(fits[which], its, INPUTS[:2] + 0.1, model=right).predictions
    found = pac.predict(fits[which], gp, INPUTS[:2] + 0.1, model=model).predictions
    np.testing.assert_array_equal(found["f_mean"], expected["f_mean"])


@pytest.mark.parametrize("kwargs", [{}, {"reparameterize": False}, {"jitter": 1e-3}])
def test_the_same_model_written_again_is_accepted(kwargs):
    model, gp = process_model(**kwargs)
    again, its = process_model(**kwargs)
    fit = pac.fit("cavi", model=model, **QUIET)
    for result in (fit, fit.sample(3, random_seed=1)):
        for kind in ("f", "y"):
            expected = pac.predict(result, gp, INPUTS + 0.1, kind, model=model, random_seed=2)
            found = pac.predict(result, its, INPUTS + 0.1, kind, model=again, random_seed=2)
            np.testing.assert_array_equal(
                found.predictions[f"{kind}_mean"], expected.predictions[f"{kind}_mean"]
            )


def test_an_index_beyond_the_covariance_is_named():
    with pm.Model():
        cov = pm.gp.cov.Coregion(2, B=np.eye(2), active_dims=[1])
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0, active_dims=[0]) * cov)
        f = gp.prior("f", X=np.array([[0.0, 0.0], [1.0, 1.0]]))
        pm.Normal("y", f, 1.0, observed=np.ones(2))
        fit = pac.fit("vgp", **QUIET)
        with pytest.raises(pac.AugmentationError, match=r"^Xnew: .*of 'f' has.*index 2"):
            pac.predict(fit, gp, np.array([[0.5, 2.0]]))
    # Control: an index of our own code is none of the covariance.
    own = {"__name__": "pymc_augconj.api"}
    exec("def fail(): raise IndexError", own)
    with pytest.raises(IndexError), _indices_in_range("f"):
        own["fail"]()
