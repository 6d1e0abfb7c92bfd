"""The result of a fit: moments, draws, and keeping it."""

from __future__ import annotations

import dataclasses
import datetime
import html
import json
import pickle
import warnings

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
from scipy.special import expit

import pymc_augconj as pac

N = 25
QUIET = {"progressbar": False}
DRAWS = 4000


def build() -> pm.Model:
    """A GP with a mean, an intercept under a prior mean, a deterministic, an unused variable."""
    rng = np.random.default_rng(2)
    X = np.sort(rng.uniform(-3.0, 3.0, (N, 1)), axis=0)
    y = 0.5 + np.sin(X[:, 0]) + 0.2 * rng.standard_t(3, size=N)
    with pm.Model(coords={"place": [f"p{i}" for i in range(N)]}) as model:
        ls, mu = pm.InverseGamma("ls", 5, 5), pm.Normal("mu", 0, 1)
        b0 = pm.Normal("b0", 2.0 + mu, 0.5)
        cov = pm.gp.cov.ExpQuad(1, ls=ls)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.7), cov_func=cov)
        f = gp.prior("f", X=X, dims="place")
        pm.Deterministic("level", pm.math.exp(b0 + f), dims="place")
        pm.Normal("forward", b0, 0.1)
        pm.StudentT("y", nu=4, mu=b0 + f, sigma=0.2, observed=y, dims="place")
    return model


@pytest.fixture(scope="module")
def model():
    return build()


@pytest.fixture(scope="module")
def cavi(model):
    return pac.fit("cavi", model=model, random_seed=3, **QUIET)


@pytest.fixture(scope="module")
def vi(model):
    return pac.fit("vgp", model=model, random_seed=3, **QUIET)


@pytest.fixture(scope="module")
def weights():
    """A fit in weight space: basis functions, grouped intercepts with a common mean."""
    rng = np.random.default_rng(5)
    X, group = rng.uniform(-2.0, 2.0, (200, 1)), rng.integers(0, 5, 200)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        alpha = pm.Normal("alpha", mu, 0.5, shape=5)
        gp = pm.gp.HSGP(m=[8], c=1.5, cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        f = gp.prior("f", X=X)
        pm.Bernoulli("y", logit_p=f + alpha[group], observed=rng.random(200) < 0.6)
    return pac.fit("vgp", model=model, random_seed=3, **QUIET)


def brute_force(vi):
    """Mean and covariance of all innovations, stacked, by dense algebra."""
    covs, maps = [], []
    for block, A in zip(vi._latents.blocks, vi._latents.prior.full_maps, strict=True):
        dense = block.block.kind == "dense"
        covs.append(block.array if dense else np.diag(block.array**2))
        maps.append(A.dense())
    size = sum(len(c) for c in covs)
    K, start = np.zeros((size, size)), 0
    for cov in covs:
        K[start : start + len(cov), start : start + len(cov)] = cov
        start += len(cov)
    A = np.hstack(maps)
    cov = np.linalg.inv(np.linalg.inv(K) + A.T @ (vi.lam[:, None] * A))
    return cov @ A.T @ (vi.h - vi.lam * vi._latents.prior.offset), cov


def test_printed_in_a_few_lines(vi, weights):
    lines = repr(vi).splitlines()
    assert lines[0] == "Approximation by pac.fit('vgp')"
    assert lines[1] == f"  log evidence     {vi.log_evidence:.4f} (lower bound)"
    assert lines[2] == f"  latents          f ({N}), mu, b0"
    assert lines[3] == f"  hyperparameters  ls = {vi.theta['ls']:.4f}"
    assert len(lines) < 10
    assert max(len(line) for line in lines) <= 100
    assert "hyperparameters  " not in repr(weights)


def test_printed_as_not_converged():
    with pytest.warns(RuntimeWarning, match="max_iter"):
        vi = pac.fit("cavi", model=build(), hyper="fixed", max_iter=1, **QUIET)
    assert repr(vi).startswith("Approximation by pac.fit('cavi'), NOT CONVERGED")


@pytest.mark.parametrize("which", ["cavi", "vi", "weights"])
def test_moments_are_the_dense_ones(which, request):
    fit = request.getfixturevalue(which)
    mean, cov = brute_force(fit)
    start = 0
    latents = fit._latents
    for name, affine, block in zip(fit.names, latents.means, latents.blocks, strict=True):
        size = block.block.total_size
        if not affine.matrices:
            part = slice(start, start + size)
            expected = mean[part] + affine.constant
            np.testing.assert_allclose(fit.mean[name].values.ravel(), expected, atol=1e-6)
            np.testing.assert_allclose(
                fit.std[name].values.ravel() ** 2, np.diagonal(cov)[part], rtol=1e-5
            )
            np.testing.assert_allclose(fit.cov(name), cov[part, part], atol=1e-6)
        start += size


@pytest.mark.parametrize("which", ["cavi", "vi", "weights"])
def test_draws_have_the_moments(which, request):
    fit = request.getfixturevalue(which)
    posterior = fit.sample(DRAWS, random_seed=0).posterior
    for name in fit.names:
        draws = posterior[name].values[0].reshape(DRAWS, -1)
        mean, std = fit.mean[name].values.ravel(), fit.std[name].values.ravel()
        error = np.abs(draws.mean(axis=0) - mean) / (std / np.sqrt(DRAWS))
        assert error.max() < 5.0
        spread = np.abs(draws.std(axis=0) / std - 1.0) * np.sqrt(2.0 * DRAWS)
        assert spread.max() < 5.0
        sampled, exact = np.corrcoef(draws.T), fit.cov(name) / np.outer(std, std)
        assert np.abs(sampled - exact).max() < 5.0 / np.sqrt(DRAWS)


def test_draws_satisfy_the_users_model(vi, model):
    tree = vi.sample(50)
    posterior = tree.posterior
    assert list(posterior.data_vars) == [rv.name for rv in model.unobserved_RVs]
    assert posterior["f"].dims == ("chain", "draw", "place")
    assert posterior["f"].shape == (1, 50, N)
    assert list(posterior["place"].values[:2]) == ["p0", "p1"]
    with model:
        free = posterior.to_dataset()[[rv.name for rv in model.free_RVs]]
        theirs = pm.compute_deterministics(free, progressbar=False)
    for name in ("f", "level"):
        np.testing.assert_allclose(posterior[name].values, theirs[name].values, atol=1e-6)
    assert np.ptp(posterior["ls"].values) == 0.0
    difference = posterior["forward"].values - posterior["b0"].values
    assert 0.05 < difference.std() < 0.2
    observed = model.rvs_to_values[model["y"]].data
    np.testing.assert_array_equal(tree.observed_data["y"].values, observed)


def test_draws_are_repeatable_and_the_seed_is_the_fits(vi):
    first, second = vi.sample(5).posterior, vi.sample(5).posterior
    np.testing.assert_array_equal(first["f"].values, second["f"].values)
    other = vi.sample(5, random_seed=9).posterior
    assert not np.array_equal(first["f"].values, other["f"].values)


def test_pickling_keeps_everything(vi):
    copy = pickle.loads(pickle.dumps(vi))
    a, b = vi.sample(4, random_seed=1).posterior, copy.sample(4, random_seed=1).posterior
    for name in a.data_vars:
        np.testing.assert_array_equal(a[name].values, b[name].values)


@pytest.mark.parametrize("which", ["cavi", "vi", "weights"])
def test_saving_keeps_the_numbers(which, request, tmp_path):
    fit = request.getfixturevalue(which)
    fit.save(tmp_path / "fit")
    loaded = pac.Approximation.load(tmp_path / "fit")
    for name in (
        "method",
        "log_evidence",
        "converged",
        "message",
        "timings",
        "names",
        "_variables",
    ):
        assert getattr(loaded, name) == getattr(fit, name)
    assert loaded.history.equals(fit.history)
    a, b = fit.sample(4, random_seed=1).posterior, loaded.sample(4, random_seed=1).posterior
    for name in loaded.names:
        np.testing.assert_allclose(loaded.mean[name].values, fit.mean[name].values)
        np.testing.assert_allclose(b[name].values, a[name].values)
    assert set(b.data_vars) <= set(a.data_vars)


def test_a_file_of_another_kind_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.ones(2))
    (tmp_path / "other.txt").write_text("x = 1")
    for name in ("other.npz", "other.txt"):
        with pytest.raises(pac.AugmentationError, match="saved approximation"):
            pac.Approximation.load(tmp_path / name)


@pytest.mark.parametrize("name", ["fit", "fit.v1", "fit.npz", "fit.0.npz"])
def test_a_file_has_any_name(weights, tmp_path, name):
    weights.save(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == [name.removesuffix(".npz") + ".npz"]
    assert pac.Approximation.load(tmp_path / name).log_evidence == weights.log_evidence


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"expected a saved approximation .*missing\.v1\.npz"
    ):
        pac.Approximation.load(tmp_path / "missing.v1")


LABELS = {
    "dates": pd.date_range("2024-01-31", periods=4, freq="ME"),
    "numbers": [4, 3, 2, 1],
    "words": ["a", "b", "ä", "d"],
    "pairs": [("a", 1), ("a", 2), ("b", 1), ("b", 2)],
    "days": [datetime.date(2024, 1, day) for day in (1, 2, 3, 4)],
    "dates of a zone": pd.date_range("2024-01-31", periods=4, tz="Europe/Berlin"),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_are_kept(tmp_path, kind):
    with pm.Model(coords={"t": LABELS[kind]}):
        b = pm.Normal("b", 0, 1, dims="t")
        pm.Bernoulli("y", logit_p=b, observed=[0, 1, 1, 0], dims="t")
        fit = pac.fit("cavi", **QUIET)
    if as_words := kind in ("pairs", "days", "dates of a zone"):
        with pytest.warns(
            UserWarning, match="labels of 't' are saved as strings; expected numbers"
        ):
            fit.save(tmp_path / "fit")
    else:
        fit.save(tmp_path / "fit")
    loaded = pac.Approximation.load(tmp_path / "fit")
    kept, found = fit.mean["b"]["t"].values, loaded.mean["b"]["t"].values
    np.testing.assert_array_equal([str(k) for k in kept] if as_words else kept, found)
    assert loaded.sample(2).posterior["b"].dims == fit.sample(2).posterior["b"].dims


def rewrite(path, change):
    """Change the arrays of a saved file."""
    with np.load(path) as archive:
        arrays = dict(archive)
    change(arrays)
    np.savez(path, **arrays)


def without(name):
    return lambda arrays: arrays.pop(name)


def entry(name, value):
    return lambda arrays: arrays[name].ravel().__setitem__(0, value)


def of(name, value):
    return lambda arrays: arrays.__setitem__(name, value(arrays[name]))


CHANGES = {
    "a site is missing": without("h"),
    "a covariance is missing": without("_latents.prior.blocks.0.array"),
    "sites of other observations": of("lam", lambda lam: lam[:-1]),
    "a covariance of other inputs": of("_latents.prior.blocks.0.array", lambda K: K[:-1]),
    "a mean of another latent": of("_latents.means.0.constant", lambda m: m[:-1]),
    "an index that is out of range": entry("_latents.prior.full_maps.0.index", 10**6),
    "a number that is none": entry("h", np.nan),
    "words in the place of numbers": of("h", lambda h: h.astype(str)),
    "no JSON": of("meta", lambda meta: np.array(str(meta)[1:])),
    "another format": of(
        "meta", lambda meta: np.array(json.dumps({**json.loads(str(meta)), "format": 9}))
    ),
    "objects": of("_latents.prior.offset", lambda offset: offset.astype(object)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_refused(cavi, tmp_path, change):
    path = tmp_path / "fit.npz"
    cavi.save(path)
    rewrite(path, lambda arrays: None)
    pac.Approximation.load(path)
    rewrite(path, CHANGES[change])
    with pytest.raises(pac.AugmentationError, match=r"fit\.npz to be a saved .*unchanged: "):
        pac.Approximation.load(path)


def test_other_numbers_than_were_saved_are_refused(cavi, tmp_path):
    path = tmp_path / "fit.npz"
    cavi.save(path)
    rewrite(path, entry("h", 0.123))
    with pytest.raises(pac.AugmentationError, match="checksum"):
        pac.Approximation.load(path)


def test_a_truncated_file_is_refused(cavi, tmp_path):
    cavi.save(tmp_path / "fit.npz")
    content = (tmp_path / "fit.npz").read_bytes()
    for size in (0, 30, len(content) // 2, len(content) - 30):
        (tmp_path / "part.npz").write_bytes(content[:size])
        with pytest.raises(pac.AugmentationError, match="saved approximation"):
            pac.Approximation.load(tmp_path / "part.npz")


def test_stands_in_a_comparison(vi):
    table = pac.compare({"vi": vi, "again": vi.sample(500)}, reference="vi", loo=False)
    assert table.loc["vi", "wall_time"] > 0.0
    assert table.loc["again", "mean_diff"] < 0.3


def test_an_unknown_latent_is_named(vi):
    with pytest.raises(pac.AugmentationError, match="expected the name of a Gaussian latent"):
        vi.cov("g")
    for draws in (0, 10.0):
        with pytest.raises(pac.AugmentationError, match="positive integer"):
            vi.sample(draws)


@pytest.mark.parametrize("sparse", [False, True])
def test_data_set_after_the_fit_change_nothing_in_it(sparse):
    rng = np.random.default_rng(5)
    X = rng.uniform(-2.0, 2.0, (20, 1))
    with pm.Model():
        inputs, shift, size = pm.Data("inputs", X), pm.Data("shift", 0.7), pm.Data("size", 1.5)
        gp = pm.gp.Latent(cov_func=size**2 * pm.gp.cov.ExpQuad(1, ls=0.7))
        f = gp.prior("f", X=inputs)
        p = pm.Deterministic("p", pm.math.invlogit(f + shift))
        pm.Bernoulli("y", p=p, observed=X[:, 0] > 0)
        fit = pac.fit("cavi", **({"gp": gp, "inducing": 6} if sparse else {}), progressbar=False)
        again = pickle.loads(pickle.dumps(fit))
        pm.set_data({"inputs": X + 1.0, "shift": -1.0, "size": 3.0})
        after = [one.sample(4, random_seed=1).posterior for one in (fit, again)]
        std = fit.std["f"]
        pm.set_data({"inputs": X, "shift": 0.7, "size": 1.5})
        before = again.sample(4, random_seed=1).posterior
    for draws in after:
        np.testing.assert_allclose(draws["f"], before["f"])
        np.testing.assert_allclose(draws["p"], expit(before["f"] + 0.7))
    np.testing.assert_allclose(std, again.std["f"])


def test_only_variational_evidence_is_called_a_bound(cavi):
    assert cavi.is_bound
    assert not dataclasses.replace(cavi, method="ep").is_bound


PLACES, SIGMA = np.linspace(0.0, 3.0, 15), 0.8


@pytest.fixture(scope="module")
def noisy():
    rng = np.random.default_rng(4)
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.5))
        f = gp.prior("f", X=PLACES[:, None])
        y = np.sin(2.0 * PLACES) + SIGMA * rng.standard_normal(PLACES.size)
        pm.Normal("y", f, SIGMA, observed=y)
    return model


def test_leave_one_out_of_a_gaussian_model_is_the_closed_form(noisy):
    """With normal noise the approximation is the posterior, and LOO has a closed form."""
    vi = pac.fit("cavi", model=noisy, **QUIET)
    tree = vi.sample(4000, random_seed=1, log_likelihood=True)
    stats = tree.sample_stats
    assert float((stats["log_p"] - stats["log_q"]).std()) < 1e-8
    K = np.exp(-0.5 * ((PLACES[:, None] - PLACES) / 1.5) ** 2)
    inverse = np.linalg.inv(K + (SIGMA**2 + 1e-6) * np.eye(PLACES.size))
    var = 1.0 / np.diag(inverse)
    deviation = (inverse @ vi.observed["y"]) * var
    expected = -0.5 * (np.log(2.0 * np.pi * var) + deviation**2 / var)
    found = az.loo_approximate_posterior(tree, stats["log_p"], stats["log_q"], pointwise=True)
    # Importance weights of 4000 draws: a few per cent of error a point.
    np.testing.assert_allclose(found.elpd_i, expected, atol=0.05)
    naive = tree.log_likelihood["y"].mean(("chain", "draw"))
    assert np.abs(naive - expected).max() > 0.15


def test_leave_one_out_corrects_an_approximation(noisy):
    """Draws of a wrong approximation, weighed back: without log_p and log_q it is another LOO."""
    vi = pac.fit("cavi", model=noisy, **QUIET)
    wrong = dataclasses.replace(vi, h=0.8 * vi.h, lam=0.7 * vi.lam)
    right, tree = (fit.sample(8000, random_seed=1, log_likelihood=True) for fit in (vi, wrong))

    def elpd(tree, corrected=True):
        if not corrected:
            return az.loo(tree, pointwise=True).elpd
        stats = tree.sample_stats
        return az.loo_approximate_posterior(tree, stats["log_p"], stats["log_q"]).elpd

    # Monte Carlo errors of 8000 draws are about 0.01.
    assert abs(elpd(tree) - elpd(right)) < 0.05
    assert abs(elpd(tree, corrected=False) - elpd(right)) > 0.5


def test_comparison_has_leave_one_out_of_approximations(noisy):
    vi = pac.fit("cavi", model=noisy, **QUIET)
    draws = vi.sample(500, log_likelihood=True, random_seed=1)
    with warnings.catch_warnings():
        # Few draws: Pareto k may be high, and says so.
        warnings.simplefilter("ignore", UserWarning)
        table = pac.compare({"vi": vi, "again": draws})
    assert table["elpd_loo"].notna().all()


def test_log_likelihood_of_a_loaded_fit_is_refused(cavi, tmp_path):
    cavi.save(tmp_path / "fit")
    with pytest.raises(pac.AugmentationError, match="log_likelihood: expected a dense fit"):
        pac.Approximation.load(tmp_path / "fit").sample(2, log_likelihood=True)


def test_a_notebook_shows_the_summary_as_a_table():
    with pm.Model() as model:
        f = pm.Normal("f<1>", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=f, observed=[0, 1, 1])
    fit = pac.fit("cavi", model=model, progressbar=False)
    shown = fit._repr_html_()
    assert "<td>f&lt;1&gt; (3)</td>" in shown
    # Label and text of every line of the printed summary.
    for line in repr(fit).splitlines()[1:]:
        label, text = line[:19].strip(), line[19:].strip()
        assert f"<th>{label}</th><td>{html.escape(text)}" in shown
