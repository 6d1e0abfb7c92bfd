"""``pac.fit`` through inducing points: what a user asks for and gets."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.engines.sparse import rows as sparse_rows
from pymc_augconj.engines.sparse import svi
from pymc_augconj.engines.sparse.svi import FORGETFUL_RATE, RATE, default_rate
from pymc_augconj.parallel.executor import Threads

QUIET = {"progressbar": False}
N = 60


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    X = rng.uniform(-3.0, 3.0, (N, 1))
    return X, (rng.random(N) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(1.5 * X[:, 0])))).astype(int)


def classify(X, y):
    with pm.Model() as model:
        ls, b0 = pm.InverseGamma("ls", 5, 5), pm.Normal("b0", 0, 1)
        gp = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.Matern52(1, ls=ls))
        f = gp.prior("f", X=X)
        pm.Deterministic("p", pm.math.invlogit(b0 + f))
        pm.Bernoulli("y", logit_p=b0 + f, observed=y)
    return model, gp


@pytest.mark.parametrize("method", ["cavi", "vgp"])
def test_inducing_points_at_the_inputs_give_the_dense_fit(data, method):
    X, y = data
    model, gp = classify(X, y)
    new = np.linspace(-3, 3, 9)[:, None]
    with model:
        dense = pac.fit(method, **QUIET)
        sparse = pac.fit(method, gp=gp, inducing=X, **QUIET)
        assert dense.converged
        assert sparse.converged
        there, here = (
            pac.predict(fit, gp, new, kind="y", ynew=np.ones(9), quantile=[0.5]).predictions
            for fit in (dense, sparse)
        )
        wide, narrow = (
            pac.predict(fit, gp, new, full_cov=True).predictions for fit in (dense, sparse)
        )
    # The process's jitter of 1e-6 counts twice at inducing points that are inputs.
    assert sparse.log_evidence == pytest.approx(dense.log_evidence, abs=1e-4)
    assert sparse.theta["ls"] == pytest.approx(dense.theta["ls"], rel=1e-4)
    for name in ("f", "b0"):
        np.testing.assert_allclose(sparse.mean[name], dense.mean[name], atol=1e-4)
        np.testing.assert_allclose(sparse.std[name], dense.std[name], atol=1e-4)
    for name in there.data_vars:
        np.testing.assert_allclose(here[name], there[name], atol=1e-4)
    for name in wide.data_vars:
        np.testing.assert_allclose(narrow[name], wide[name], atol=1e-4)


def test_stochastic_on_all_data_at_rate_one_is_coordinate_ascent(data):
    model, gp = classify(*data)
    options = {"gp": gp, "inducing": np.linspace(-3, 3, 12)[:, None], "hyper": "fixed"} | QUIET
    with model:
        cavi = pac.fit("cavi", tol=1e-10, **options)
        svi = pac.fit("svi", batch_size=N, rate=1.0, max_iter=300, **options)
    assert svi.log_evidence == pytest.approx(cavi.log_evidence, abs=1e-8)
    np.testing.assert_allclose(svi.mean["f"], cavi.mean["f"], atol=1e-6)
    np.testing.assert_allclose(svi.cov("f_u"), cavi.cov("f_u"), atol=1e-6)


def test_minibatches_come_near_the_full_fit_and_seeds_reproduce_them(data):
    model, gp = classify(*data)
    Z = np.linspace(-3, 3, 12)[:, None]
    options = {"gp": gp, "inducing": Z, "batch_size": 20, "max_iter": 600, "random_seed": 4}
    with model:
        best = pac.fit("cavi", gp=gp, inducing=Z, **QUIET)
        first, second = (pac.fit("svi", **options, **QUIET) for _ in range(2))
        other = pac.fit("svi", **(options | {"random_seed": 5}), **QUIET)
        with pytest.warns(RuntimeWarning, match="too few to tell"):
            start = pac.fit("svi", **(options | {"max_iter": 1}), **QUIET)
    assert first.diagnostics["evidence_error"] == 0.0
    assert first.log_evidence == second.log_evidence
    np.testing.assert_array_equal(first.h, second.h)
    assert first.log_evidence != other.log_evidence
    # Eight seeds gave 0.05 to 0.33; one iteration leaves 2.4.
    for fit in (first, other):
        assert -1e-6 < best.objective - fit.objective < 0.6
    assert start.objective < best.objective - 1.2


def test_a_rise_that_the_noise_of_minibatches_hides_is_no_convergence():
    rng = np.random.default_rng(1)
    X = rng.uniform(-3, 3, (2000, 1))
    with pm.Model():
        ls, eta = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("eta", 2)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=ls))
        y = 2 * np.sin(1.5 * X[:, 0]) + 0.3 * rng.standard_t(4, 2000)
        pm.StudentT("y", nu=4, mu=gp.prior("f", X=X), sigma=0.3, observed=y)
        options = {"gp": gp, "inducing": 15, "batch_size": 100, "random_seed": 1, **QUIET}
        with pytest.warns(RuntimeWarning, match=r"still rising: \+\S+ nats in the last 60 iter"):
            slow = pac.fit("svi", rate=(1.0, 0.9), max_iter=300, **options)
        best = pac.fit("cavi", gp=gp, inducing=slow.inducing["f"], **QUIET)
        # At fixed hyperparameters the same steps arrive.
        fixed = pac.fit("svi", hyper="fixed", max_iter=300, start=best.theta, **options)
    assert not slow.converged
    assert slow.objective < best.objective - 1.0
    bounds = slow.history["bound"].to_numpy()[-120:]
    early, late = bounds[:60], bounds[60:]
    assert late.mean() - early.mean() < 3.0 * np.sqrt((late.var() + early.var()) / 60)
    assert fixed.converged
    assert fixed.log_evidence == pytest.approx(best.log_evidence, abs=0.2)


def test_steps_forget_where_hyperparameters_move_and_data_come_again():
    assert default_rate(20.0, learned=True) == FORGETFUL_RATE
    assert default_rate(20.0, learned=False) == default_rate(1.0, learned=True) == RATE


def test_what_a_sparse_fit_says_of_the_process(data, tmp_path):
    model, gp = classify(*data)
    with model:
        fit = pac.fit("cavi", gp=gp, inducing=8, random_seed=0, **QUIET)
        prediction = pac.predict(fit, gp, data[0]).predictions
    assert fit.inducing["f"].shape == (8, 1)
    assert fit.mean["f_u"].shape == (8,)
    np.testing.assert_allclose(fit.mean["f"], prediction["f_mean"], atol=1e-8)
    # Draws hold the jitter of 1e-6 that the model's own process has.
    np.testing.assert_allclose(fit.std["f"] ** 2, prediction["f_std"] ** 2, atol=3e-6)
    draws = fit.sample(4000, random_seed=1).posterior
    error = fit.std["f"].values / np.sqrt(4000)
    assert (np.abs(draws["f"].mean(("chain", "draw")) - fit.mean["f"]).values < 5 * error).all()
    spread = draws["f"].std(("chain", "draw")).values / fit.std["f"].values
    assert (np.abs(spread - 1.0) < 5 / np.sqrt(2 * 4000)).all()
    eta = draws["b0"].values[..., None] + draws["f"].values
    np.testing.assert_allclose(draws["p"], 1 / (1 + np.exp(-eta)), atol=1e-6)
    for kept in (pickle.loads(pickle.dumps(fit)), _saved(fit, tmp_path)):
        assert isinstance(kept, pac.Approximation)
        np.testing.assert_array_equal(kept.inducing["f"], fit.inducing["f"])
        np.testing.assert_allclose(kept.mean["f_u"], fit.mean["f_u"], atol=1e-10)
        with model:
            again = pac.predict(kept, gp, data[0]).predictions
        np.testing.assert_allclose(again["f_mean"], prediction["f_mean"], atol=1e-10)


def _saved(fit, tmp_path):
    fit.save(tmp_path / "fit.npz")
    return pac.Approximation.load(tmp_path / "fit.npz")


@pytest.mark.filterwarnings("ignore:.*still rising:RuntimeWarning")
def test_two_processes_and_a_memory_map(tmp_path):
    rng = np.random.default_rng(0)
    n = 3000
    X = np.lib.format.open_memmap(tmp_path / "X.npy", mode="w+", dtype="float64", shape=(n, 1))
    X[:] = rng.uniform(-2, 2, (n, 1))
    X.flush()
    X = np.load(tmp_path / "X.npy", mmap_mode="r")
    y = np.sin(3 * X[:, 0]) + 0.5 * X[:, 0] + 0.1 * rng.standard_t(3, n)
    with pm.Model():
        sigma = pm.HalfNormal("sigma", 1)
        slow = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.Linear(1, c=0.0))
        fast = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=0.5))
        mu = slow.prior("slow", X=X) + fast.prior("fast", X=X)
        pm.StudentT("y", nu=3, mu=mu, sigma=sigma, observed=y)
        fit = pac.fit(
            "svi",
            gp=[slow, fast],
            inducing={"slow": 2, "fast": 15},
            batch_size=200,
            max_iter=400,
            random_seed=0,
            **QUIET,
        )
    assert isinstance(fit._processes["slow"].inputs, np.memmap)
    assert {name: len(Z) for name, Z in fit.inducing.items()} == {"slow": 2, "fast": 15}
    total = (fit.mean["slow"].values + fit.mean["fast"].values).ravel()
    truth = np.sin(3 * X[:, 0]) + 0.5 * X[:, 0]
    assert np.sqrt(np.mean((total - truth) ** 2)) < 0.05
    assert fit.theta["sigma"] == pytest.approx(0.1, rel=0.15)


@pytest.mark.filterwarnings("ignore:.*still rising:RuntimeWarning")
def test_inducing_inputs_move_where_asked(data):
    model, gp = classify(*data)
    Z = np.linspace(2.0, 3.0, 4)[:, None]
    options = {"gp": gp, "inducing": Z, "batch_size": N, "max_iter": 150, "hyper_rate": 0.05}
    with model:
        still = pac.fit("svi", **options, **QUIET)
        moved = pac.fit("svi", optimize_inducing=True, **options, **QUIET)
    np.testing.assert_array_equal(still.inducing["f"], Z)
    assert moved.log_evidence > still.log_evidence + 1.0


def many(n=1500, kernel=pm.gp.cov.Matern32, **options):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 2))
    with pm.Model() as model:
        eta, ls = pm.HalfNormal("eta", 2), pm.InverseGamma("ls", 5, 5)
        a = pm.Normal("a", 0, 1, shape=3)
        gp = pm.gp.Latent(cov_func=eta**2 * kernel(2, ls=ls, **options))
        mu = gp.prior("f", X=X) + a[np.arange(n) % 3]
        nu = pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu=nu, mu=mu, sigma=0.5, observed=np.sin(X[:, 0]) + rng.normal(size=n))
    return model, gp


@pytest.mark.parametrize(
    ("inducing", "kernel", "kernel_options"),
    [
        (10, pm.gp.cov.Matern32, {}),
        (10, pm.gp.cov.RatQuad, {"alpha": 1.5}),
        (700, pm.gp.cov.Matern32, {}),
    ],
)
def test_threads_change_nothing(inducing, kernel, kernel_options, monkeypatch):
    model, gp = many(kernel=kernel, **kernel_options)
    Z = np.random.default_rng(0).normal(size=(inducing, 2))
    threads, fits = [], []
    monkeypatch.setattr(sparse_rows, "_PART", 150)  # four parts
    options = {"gp": gp, "inducing": Z, "batch_size": 600, "optimize_inducing": True}
    for cores in (1, 3):
        monkeypatch.setattr(sparse_rows, "available_cores", lambda cores=cores: cores)
        monkeypatch.setattr(
            sparse_rows,
            "Threads",
            lambda size: threads.append(size) or Threads(size),
        )
        with model, pytest.warns(RuntimeWarning, match="too few to tell"):
            fits.append(pac.fit("svi", max_iter=6, random_seed=2, **options, **QUIET))
    assert threads == [3]
    one, two = fits
    np.testing.assert_array_equal(one.h, two.h)
    np.testing.assert_array_equal(one.inducing["f"], two.inducing["f"])
    assert one.log_evidence == two.log_evidence
    assert one.theta == two.theta
    start = model.initial_point()
    for name in ("eta", "ls", "nu"):
        # The fourth iteration moves them by about the rate of 0.05.
        assert abs(np.log(one.theta[name]) - start[f"{name}_log__"]) > 0.001


def test_divided_minibatches_stop_and_fail_without_hanging(monkeypatch):
    model, gp = many()
    monkeypatch.setattr(sparse_rows, "available_cores", lambda: 2)
    options = {"gp": gp, "inducing": 10, "batch_size": 600, "max_iter": 50} | QUIET
    seen = []

    def stop(state):
        seen.append(state.count)
        if len(seen) == 3:
            raise StopIteration

    def fail(state):
        raise ZeroDivisionError

    with model:
        with pytest.warns(RuntimeWarning, match="stopped by the callback after 3"):
            pac.fit("svi", callback=stop, **options)
        with pytest.raises(ZeroDivisionError):
            pac.fit("svi", callback=fail, **options)
    assert seen == [1, 2, 3]

    def refuse(*args):
        raise FloatingPointError

    monkeypatch.setattr(svi, "_moved", refuse)
    with model, pytest.raises(FloatingPointError):
        pac.fit("svi", **options)


def test_callback_may_stop_it(data):
    model, gp = classify(*data)
    seen = []

    def callback(state):
        seen.append(state.count)
        if state.count == 7:
            raise StopIteration

    with model, pytest.warns(RuntimeWarning, match="stopped by the callback after 7 iterations"):
        fit = pac.fit("svi", gp=gp, inducing=5, callback=callback, max_iter=50, **QUIET)
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert len(fit.history) == 7


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("svi", {"gp": None}, "pass gp=gp"),
        ("ep", {"inducing": 5}, "inducing: expected it with method='cavi' or .*'svi' only"),
        (
            "cavi",
            {"inducing": 5, "batch_size": 10},
            "batch_size: expected it with method",
        ),
        ("svi", {"batch_size": 0}, "positive integer"),
        ("svi", {"rate": 1.5}, "rate: expected a number in"),
        ("svi", {"rate": (1.0, 0.3)}, "forgetting in"),
        ("svi", {"hyper_rate": -1.0}, "hyper_rate: expected a finite number above 0"),
        ("svi", {"inducing": 0}, "expected a positive number"),
        ("svi", {"inducing": np.zeros((3, 2))}, r"shape \(M, 1\)"),
        ("svi", {"inducing": "many"}, r"shape \(M, 1\).*got 'many'"),
        ("svi", {"inducing": {"g": 3}}, r"an entry for each of the processes \['f'\]"),
        ("cavi", {"inducing": {"f": 3, "g": 3}}, r"an entry for each of the processes \['f'\]"),
        ("svi", {"inducing": [[np.nan]]}, "found a NaN"),
    ],
)
def test_options_that_do_not_fit_are_refused(data, method, options, message):
    model, gp = classify(*data)
    with model, pytest.raises(pac.AugmentationError, match=message):
        pac.fit(method, **({"gp": gp} | options), **QUIET)


def test_a_process_that_enters_through_a_matrix_is_refused(data):
    X, y = data
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        f = gp.prior("f", X=X)
        pm.Bernoulli("y", logit_p=f[1:] - f[:-1], observed=y[1:])
        with pytest.raises(pac.AugmentationError, match="take one value of it"):
            pac.fit("svi", gp=gp, inducing=5, **QUIET)


@pytest.mark.filterwarnings("ignore:.*increase max_iter:RuntimeWarning")
def test_minibatches_of_pymc_are_drawn_from_all_their_data():
    rng = np.random.default_rng(0)
    n = 2000
    X = rng.uniform(-3.0, 3.0, (n, 1))
    y = (np.sin(X[:, 0]) + 0.2 * rng.standard_normal(n)).astype("float64")
    new = np.linspace(-3, 3, 5)[:, None]

    def write(X, y, **kwargs):
        with pm.Model() as model:
            ls, b = pm.InverseGamma("ls", 5, 5), pm.Normal("b", 0, 1)
            gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
            mu = pm.Deterministic("mu", b + gp.prior("f", X=X))
            pm.Laplace("y", mu=mu, b=0.2, observed=y, **kwargs)
        return model, gp

    batches = pm.Minibatch(X, y, batch_size=100)
    model, gp = write(*batches, total_size=n)
    theirs, their_gp = write(X, y)
    options = {"inducing": 10, "max_iter": 60, "random_seed": 3} | QUIET
    with model:
        fit = pac.fit("svi", gp=gp, **options)
    with theirs:
        same = pac.fit("svi", gp=their_gp, batch_size=100, **options)
    assert fit.log_evidence == same.log_evidence
    for kind in ("f", "y"):
        one = pac.predict(fit, gp, new, kind=kind, model=model).predictions
        other = pac.predict(same, their_gp, new, kind=kind, model=theirs).predictions
        for name in other.data_vars:
            np.testing.assert_array_equal(one[name], other[name])
    with model, pytest.raises(pac.AugmentationError, match="expected all the data in the model"):
        pac.fit("cavi", **QUIET)
    wrong, gp = write(*batches, total_size=n + 1)
    with wrong, pytest.raises(pac.RecognitionError, match=f"expected total_size={n}"):
        pac.fit("svi", gp=gp, **QUIET)


def test_minibatches_of_compound_distributions_are_refused_and_arrays_are_not():
    rng = np.random.default_rng(5)
    X = np.sort(rng.uniform(0, 3, 120))[:, None]
    times, ends = np.exp(np.sin(X[:, 0])) * rng.weibull(2.0, 120), rng.exponential(3.0, 120)
    y, upper = np.minimum(times, ends), np.where(times <= ends, np.inf, ends)

    def write(X, y, upper, **kwargs):
        with pm.Model() as model:
            gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
            base = pm.Weibull.dist(2.0, pm.math.exp(gp.prior("f", X=X)))
            pm.Censored("y", base, lower=None, upper=upper, observed=y, **kwargs)
        return model, gp

    options = {"inducing": 12, "max_iter": 300, "random_seed": 3, "hyper": "fixed"} | QUIET
    model, gp = write(*pm.Minibatch(X, y, upper, batch_size=40), total_size=120)
    with pytest.raises(pac.RecognitionError, match=r"pm.Minibatch.*batch_size=… to pac.fit"):
        pac.fit("svi", model=model, gp=gp, **options)
    model, gp = write(X, y, upper)
    sparse = pac.fit("svi", model=model, gp=gp, batch_size=40, **options)
    dense = pac.fit("vgp", model=model, hyper="fixed", **QUIET)
    # Twelve inducing points hold nearly all of so smooth a process.
    assert dense.log_evidence - 0.05 < sparse.log_evidence < dense.log_evidence + 1e-6


def test_memory_grows_with_the_data_and_not_with_their_square():
    n = 200_000
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n, 2)), rng.integers(0, 2, n)
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=pm.InverseGamma("ls", 5, 5)))
        pm.Bernoulli("y", logit_p=gp.prior("f", X=X), observed=y)
        tracemalloc.start()
        with pytest.warns(RuntimeWarning, match="too few to tell"):
            fit = pac.fit("svi", gp=gp, inducing=20, max_iter=5, **QUIET)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert fit.mean["f"].shape == (n,)
    assert peak < 600e6  # an n × n array of bits would be 5e9


def test_a_likelihood_without_an_augmentation_is_fitted_by_its_density():
    rng = np.random.default_rng(0)
    n = 400
    X = rng.uniform(-2.0, 2.0, (n, 1))
    y = rng.poisson(np.exp(0.5 + np.sin(2 * X[:, 0])))
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=0.7))
        pm.Poisson("y", mu=pm.math.exp(gp.prior("f", X=X)), observed=y)
        best = pac.fit("vgp", gp=gp, inducing=12, random_seed=0, **QUIET)
        svi = pac.fit(
            "svi", gp=gp, inducing=best.inducing["f"], batch_size=100, max_iter=200, **QUIET
        )
        with pytest.raises(pac.UnknownLikelihoodError, match="vgp"):
            pac.fit("cavi", gp=gp, inducing=12, **QUIET)
    assert best.log_evidence - 1.0 < svi.log_evidence < best.log_evidence + 1e-6
    assert float(np.abs(svi.mean["f"] - best.mean["f"]).max()) < 0.2


def test_what_would_not_fit_into_memory_is_refused_at_once():
    X = np.zeros((40_000, 1)) + np.arange(40_000)[:, None]
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        pm.Bernoulli("y", logit_p=gp.prior("f", X=X), observed=np.arange(40_000) % 2)
        for method in ("cavi", "ep"):
            with pytest.raises(pac.AugmentationError, match=r"13 GB each.*method='svi'"):
                pac.fit(method, **QUIET)
        with pytest.raises(pac.AugmentationError, match=r"13 GB each.*method='svi'"):
            pac.AugmentedGibbs()


@pytest.mark.filterwarnings("ignore:.*increase max_iter:RuntimeWarning")
def test_the_bound_of_few_minibatches_is_their_mean_with_its_error():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (6000, 1))
    y = (np.sin(2 * X[:, 0]) + rng.normal(size=6000) > 0).astype(int)
    model, gp = classify(X, y)
    Z = np.linspace(-2, 2, 10)[:, None]
    options = {"gp": gp, "inducing": Z, "hyper": "fixed", "batch_size": 100} | QUIET
    with model:
        few = pac.fit("svi", max_iter=59, random_seed=1, **options)
        many = pac.fit("svi", max_iter=61, random_seed=1, **options)
    assert many.diagnostics["evidence_error"] == 0.0
    error = few.diagnostics["evidence_error"]
    assert 0.0 < error < 0.05 * abs(few.log_evidence)
    assert abs(few.log_evidence - many.log_evidence) < 5.0 * error


def counts_under_a_wide_prior(observe):
    X = np.linspace(-2.0, 2.0, 24)[:, None]
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=10.0**2 * pm.gp.cov.ExpQuad(1, ls=1.0))
        observe(gp.prior("f", X=X))
    return model, gp, X


def test_minibatches_start_under_a_prior_too_wide_to_start_from():
    model, gp, X = counts_under_a_wide_prior(
        lambda f: pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(24))
    )
    with model:
        full = pac.fit("vgp", gp=gp, inducing=X, **QUIET)
        svi = pac.fit("svi", gp=gp, inducing=X, batch_size=8, max_iter=400, random_seed=1, **QUIET)
    # From the prior both bounds and steps are of the order of exp(50).
    assert full.log_evidence - 0.1 < svi.log_evidence <= full.log_evidence + 1e-3


def test_a_bound_that_is_not_finite_is_no_convergence():
    model, gp, X = counts_under_a_wide_prior(
        lambda f: pm.OrderedLogistic("y", eta=f, cutpoints=[-1.0, 1.0], observed=np.arange(24) % 3)
    )
    with model, pytest.warns(RuntimeWarning, match="the bound is not finite") as told:
        svi = pac.fit("svi", gp=gp, inducing=X, batch_size=8, max_iter=60, random_seed=1, **QUIET)
    assert not svi.converged
    assert len(told) == 1
