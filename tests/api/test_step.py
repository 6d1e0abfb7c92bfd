"""The step method's contract with PyMC, its errors, and data that are hard on it."""

from __future__ import annotations

import multiprocessing
from itertools import product

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.stats import multivariate_normal
from threadpoolctl import threadpool_info, threadpool_limits

import pymc_augconj as pac
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.latents import choice
from pymc_augconj.python_mode import python_mode

RNG = np.random.default_rng(7)
X = np.linspace(0.0, 1.0, 6)[:, None]
X_MANY = RNG.normal(size=(6, 6))
GROUP = np.array([0, 1, 2, 0, 1, 2, 2, 1, 0])
REALS, COUNTS, BINARY = RNG.normal(size=9), RNG.poisson(2.0, 9), RNG.integers(0, 2, 9)
STANDARD_ERRORS = 5.0
FEWEST_EFFECTIVE = 250

QUIET = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 5}


def gp_prior(name, X, ls, eta=1.0, **kwargs):
    cov = eta**2 * pm.gp.cov.ExpQuad(X.shape[1], ls=ls)
    return pm.gp.Latent(cov_func=cov).prior(name, X=X, **kwargs)


def classification():
    """Whitened, and the variables are defined in another order than the latents' blocks."""
    with pm.Model() as model:
        ls, eta, b0 = pm.InverseGamma("ls", 5, 3), pm.HalfNormal("eta", 1), pm.Normal("b0", 0, 2)
        f = gp_prior("f", X, ls, eta)
        pm.Bernoulli("y", logit_p=b0 + f, observed=BINARY[:6])
    return model


def hierarchy():
    """Centred blocks with random means, parameters of every move, imputed observations."""
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 1, 2), pm.HalfNormal("tau", 1)
        hyper = pm.HalfNormal("hyper", 1)
        sigma = pm.HalfNormal("sigma", hyper)
        a, nu = pm.Normal("a", mu, tau, shape=3), pm.Gamma("nu", 2, 0.1)
        y = np.ma.masked_array(REALS, mask=np.arange(9) == 4)
        with pytest.warns(UserWarning, match="automatically imputed"):
            pm.StudentT("y", nu=nu, mu=a[GROUP], sigma=sigma, observed=y)
    return model


def several_likelihoods():
    """One GP in three likelihoods, one of them normal; a scale shared by prior and likelihood."""
    with pm.Model() as model:
        s, sigma, alpha = pm.Gamma("s", 3, 3), pm.HalfNormal("sigma", 1), pm.Gamma("alpha", 2, 1)
        f = gp_prior("f", X, 0.4, s, reparameterize=False)
        pm.Normal("y1", f, sigma, observed=REALS[:6])
        pm.NegativeBinomial("y2", mu=pm.math.exp(f[:3]), alpha=alpha, observed=COUNTS[:3])
        pm.Laplace("y3", mu=-f, b=s, observed=REALS[3:9])
    return model


def weights():
    """Weight space, with a variance of its own for each coefficient."""
    design = np.random.default_rng(3).normal(size=(30, 2))
    with pm.Model() as model:
        tau = pm.HalfCauchy("tau", 1, shape=2)
        beta, b0 = pm.Normal("beta", 0, tau, shape=2), pm.Normal("b0", 0, 1)
        rate = pm.Gamma("rate", 5, 1)
        mean = rate * pm.math.sigmoid(b0 + pm.math.dot(design, beta))
        pm.Poisson("y", mu=mean, observed=np.random.default_rng(4).poisson(2.0, 30))
    return model


def length_scales():
    """Enough hyperparameters for the gradient sampler."""
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 5, shape=6)
        f = gp_prior("f", X_MANY, ls)
        pm.Bernoulli("y", logit_p=f, observed=BINARY[:6])
    return model


MODELS = [classification, hierarchy, several_likelihoods, weights, length_scales]
every_model = pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)


def run(step, point, steps, tune=0, seed=1):
    """Return the points of one chain."""
    step.setup_chain(np.random.default_rng(seed), tune, steps - tune)
    points = []
    for i in range(steps):
        if i == tune:
            step.stop_tuning()
        point, _ = step.step(point)
        points.append(point)
    return points


def assert_same(first, second):
    for a, b in zip(first, second, strict=True):
        assert list(a) == list(b)
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


# -- the contract ---------------------------------------------------------------------------------


@every_model
def test_a_step_leaves_its_point_as_it_was(build):
    model = build()
    step = pac.AugmentedGibbs(model=model)
    memory = {}
    point = model.initial_point()
    for name, value in point.items():
        # As PyMC's parallel chains have it: views of shared memory.
        memory[name] = multiprocessing.RawArray("b", max(value.nbytes, 1))
        shared = np.frombuffer(memory[name], value.dtype, value.size).reshape(value.shape)
        shared[...] = value
        shared.flags.writeable = False
        point[name] = shared
    before = {name: value.copy() for name, value in point.items()}
    step.setup_chain(np.random.default_rng(1), 2, 1)
    for _ in range(3):
        new, (stats,) = step.step(point)
        assert list(new) == list(before) == [v.name for v in model.value_vars]
        for name, value in new.items():
            np.testing.assert_array_equal(point[name], before[name])
            assert value.shape == before[name].shape
            assert value.dtype == before[name].dtype
            assert isinstance(value, np.ndarray)
            assert not np.shares_memory(value, point[name])
        assert set(stats) == set(step.stats_dtypes_shapes)
        for name, (dtype, _) in step.stats_dtypes_shapes.items():
            assert np.asarray(stats[name]).dtype == dtype
    assert step.default_tune_steps <= 300


@every_model
def test_a_chain_starts_afresh(build):
    model = build()
    step = pac.AugmentedGibbs(model=model)
    start = model.initial_point()
    first = run(step, start, 35, tune=30)
    assert_same(first, run(step, start, 35, tune=30))
    assert_same(first, run(pac.AugmentedGibbs(model=model), start, 35, tune=30))


@every_model
def test_a_restored_chain_goes_on_as_if_it_had_not_stopped(build):
    model = build()
    step = pac.AugmentedGibbs(model=model)
    start = model.initial_point()
    whole = run(step, start, 70, tune=60)
    step.setup_chain(np.random.default_rng(1), 60, 10)
    point = start
    for _ in range(30):  # past the first estimate of the axes, and still tuning
        point, _ = step.step(point)
    state = cloudpickle.loads(cloudpickle.dumps(step.sampling_state))
    other = pac.AugmentedGibbs(model=model)
    other.setup_chain(np.random.default_rng(99), 30, 10)
    other.sampling_state = state
    rest = []
    for i in range(40):
        if i == 30:
            other.stop_tuning()
        point, _ = other.step(point)
        rest.append(point)
    assert_same(whole[30:], rest)


@every_model
def test_pickled_before_and_after_sampling(build):
    model = build()
    step = pac.AugmentedGibbs(model=model)
    start = model.initial_point()
    before = cloudpickle.loads(cloudpickle.dumps(step))
    first = run(step, start, 8)
    after = cloudpickle.loads(cloudpickle.dumps(step))
    assert_same(first, run(before, start, 8))
    assert_same(first, run(after, start, 8))


@every_model
def test_model_logp_is_pymcs(build):
    model = build()
    log_density = model.compile_logp(mode=python_mode())
    step = pac.AugmentedGibbs(model=model)
    step.setup_chain(np.random.default_rng(2), 5, 5)
    point = model.initial_point()
    for _ in range(10):
        point, (stats,) = step.step(point)
        np.testing.assert_allclose(stats["model_logp"], log_density(point), rtol=1e-7)


class TestStart:
    """The point that the sampler is given in a chain's first step."""

    @pytest.fixture
    def started_from(self, monkeypatch):
        def start(model, point, seed):
            seen = []
            original = GibbsSampler.step

            def recorded(sampler, rng, at, *given):
                seen.append(at)
                return original(sampler, rng, at, *given)

            with monkeypatch.context() as patch:
                patch.setattr(GibbsSampler, "step", recorded)
                run(pac.AugmentedGibbs(model=model), point, 2, seed=seed)
            return seen[0]

        return start

    def test_chains_are_dispersed_from_pymcs_default(self, started_from):
        model = classification()
        default = model.initial_point()
        starts = [started_from(model, default, seed) for seed in range(6)]
        for name in default:
            values = np.array([start[name] for start in starts])
            assert np.all(np.ptp(values, axis=0) > 0.1)
        hyper = np.array([[s["ls_log__"], s["eta_log__"]] for s in starts])
        assert np.abs(hyper - [default["ls_log__"], default["eta_log__"]]).max() <= 1.0

    def test_a_given_start_is_kept(self, started_from):
        model = classification()
        default = model.initial_point()
        given = {name: np.array(value + 0.3) for name, value in default.items()}
        assert_same([given], [started_from(model, given, 1)])
        # Others than the given ones are dispersed.
        start = started_from(model, {**default, "eta_log__": given["eta_log__"]}, 1)
        assert start.pop("eta_log__") == given["eta_log__"]
        assert not any(np.array_equal(value, default[name]) for name, value in start.items())

    def test_a_start_in_a_narrow_support_stays_in_it(self, started_from):
        with pm.Model() as model:
            t = pm.Normal("t", 0, 1, initval=0.0)
            pm.Potential("support", pm.math.switch(abs(t) < 0.05, 0.0, -np.inf))
            f = pm.Normal("f", 0, pm.math.exp(t), shape=3)
            pm.Bernoulli("y", logit_p=f, observed=BINARY[:3])
        # The potential makes t a hyperparameter; jitter of ±1 mostly leaves the support.
        for seed in range(3):
            assert abs(started_from(model, model.initial_point(), seed)["t"]) < 0.05


# -- processes, threads, progress -----------------------------------------------------------------


def test_every_way_of_running_chains_gives_the_same_draws():
    model = classification()
    options = {"draws": 12, "tune": 6, "chains": 2, "model": model, **QUIET}
    before = blas_threads()
    serial = pac.sample(cores=1, **options)
    for context in ("fork", "spawn"):  # test_held_sites.py has the third
        parallel = pac.sample(cores=2, mp_ctx=context, **options)
        for name in serial.posterior.data_vars:
            np.testing.assert_array_equal(serial.posterior[name], parallel.posterior[name])
    assert blas_threads() == before
    assert np.abs(np.diff(serial.posterior["eta"], axis=0)).min() > 0


def blas_threads():
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {pool["filepath"]: pool["num_threads"] for pool in pools}


class RecordsThreads(pac.AugmentedGibbs):
    """Adds the most BLAS threads to the statistics."""

    stats_dtypes_shapes = {  # noqa: RUF012
        **pac.AugmentedGibbs.stats_dtypes_shapes,
        "blas": (np.int64, []),
    }

    def step(self, point):
        new, (stats,) = super().step(point)
        # The limit ends with the chain's last step.
        return new, [{**stats, "blas": max(blas_threads().values())}]


@pytest.mark.parametrize("cores", [1, 2])
def test_blas_is_limited_in_chains_and_released_after_them(cores):
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        assert max(before.values()) == 2
        idata = pm.sample(
            10,
            tune=2,
            chains=2,
            cores=cores,
            mp_ctx="fork",
            model=(model := classification()),
            step=RecordsThreads(model=model),
            **QUIET,
        )
        assert blas_threads() == before
    threads = idata.sample_stats["blas"].values
    assert np.all(threads[:, :-1] == 1)


def test_blas_is_released_after_an_error():
    model = classification()
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        step = pac.AugmentedGibbs(model=model)
        step.setup_chain(np.random.default_rng(1), 0, 10)
        assert max(blas_threads().values()) == 1
        with pytest.raises(KeyError):
            step.step({})
        assert blas_threads() == before


def test_blas_threads_are_what_the_user_asks_for():
    model = classification()
    with threadpool_limits(1, user_api="blas"):
        step = pac.AugmentedGibbs(model=model, blas_threads=2)
        step.setup_chain(np.random.default_rng(1), 0, 1)
        assert max(blas_threads().values()) == 2
        step.step(model.initial_point())
        assert max(blas_threads().values()) == 1


def test_the_progress_bar(capsys):
    idata = pac.sample(
        4, tune=2, chains=2, cores=1, model=classification(), **{**QUIET, "progressbar": True}
    )
    assert "Eva" in capsys.readouterr().out  # what fits of "Evaluations" in a narrow terminal
    assert idata.posterior.sizes["draw"] == 4


def test_statistics_and_lp_reach_the_result(compiled):
    """Here PyMC's own functions are compiled, as they are for users."""
    model = hierarchy()
    with compiled():
        idata = pm.sample(
            6,
            chains=1,
            tune=3,
            cores=1,
            model=model,
            step=pac.AugmentedGibbs(model=model),
            idata_kwargs={"include_transformed": True},
            **QUIET,
        )
    stats = idata.sample_stats
    assert {"lp", "log_evidence", "evaluations", "jitter"} <= set(stats)
    assert np.all(stats["evaluations"] > 0)
    log_density = model.compile_logp(mode=python_mode())
    for i in range(6):
        point = {v.name: idata.posterior[v.name].values[0, i] for v in model.value_vars}
        np.testing.assert_allclose(stats["lp"].values[0, i], log_density(point), rtol=1e-7)


def test_default_tuning_steps():
    model = classification()
    options = {"chains": 1, "cores": 1, "discard_tuned_samples": False, **QUIET}
    idata = pm.sample(2, model=model, step=pac.AugmentedGibbs(model=model), **options)
    assert idata.warmup_posterior.sizes["draw"] == pac.AugmentedGibbs.default_tune_steps


# -- with PyMC's own steps ------------------------------------------------------------------------


def agree(first, second, names):
    """Assert that means and sds of the draws agree, within their Monte Carlo errors."""
    for name in names:
        parts = []
        for data in (first, second):
            x = data.posterior[name].values
            x = x.reshape(*x.shape[:2], -1)
            for k in range(x.shape[-1]):
                assert az.ess(x[..., k], method="bulk") > FEWEST_EFFECTIVE
                assert az.ess(x[..., k], method="sd") > FEWEST_EFFECTIVE
            of = range(x.shape[-1])
            parts.append(
                [
                    (x.mean(axis=(0, 1)), [az.mcse(x[..., k], method="mean") for k in of]),
                    (x.std(axis=(0, 1)), [az.mcse(x[..., k], method="sd") for k in of]),
                ]
            )
        for (a, a_error), (b, b_error) in zip(*parts, strict=True):
            assert np.all(np.abs(a - b) < STANDARD_ERRORS * np.hypot(a_error, b_error)), name


@pytest.mark.slow
def test_the_rest_left_to_nuts_gives_the_same_posterior():
    options = {"draws": 450, "tune": 150, "chains": 2, "cores": 1, **QUIET}
    # NUTS runs uncompiled here: a gradient of few operations.
    with pm.Model() as model:
        tau, b0 = pm.Gamma("tau", 4, 4), pm.Normal("b0", 0, 1)
        z = pm.Normal("z", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=b0 + tau * z[GROUP], observed=BINARY)
    whole = pac.sample(model=model, **options)
    step = pac.AugmentedGibbs(vars=[z], model=model)
    assert [v.name for v in step.vars] == ["z"]
    mixed = pm.sample(model=model, step=step, **options)
    assert "step_size" in mixed.sample_stats
    agree(whole, mixed, ["tau", "b0", "z"])


def test_latents_alternate_where_nothing_depends_on_them():
    """Means of the coefficients, by quadrature over σ, from half as many draws."""
    x, y = np.stack([np.ones(9), np.arange(9.0) - 4.0], axis=1), REALS
    with pm.Model() as model:
        b, sigma = pm.Normal("b", 0.5, 2.0, shape=2), pm.HalfNormal("sigma", 1.0)
        pm.Normal("y", x @ b, sigma, observed=y)
    t = pac.sample(4000, tune=600, chains=1, cores=1, model=model, **QUIET)
    grid = np.linspace(0.05, 4.0, 400)
    means, covs, log_weights = [], [], []
    for s in grid:
        V = s**2 * np.eye(9) + 4.0 * x @ x.T
        gain = np.linalg.solve(V, 4.0 * x).T
        means.append(0.5 + gain @ (y - 0.5 * x.sum(axis=1)))
        covs.append(4.0 * np.eye(2) - gain @ (4.0 * x))
        log_weights.append(multivariate_normal(0.5 * x.sum(axis=1), V).logpdf(y) - 0.5 * s**2)
    weights = np.exp(np.array(log_weights) - max(log_weights))
    weights /= weights.sum()
    mean = weights @ np.array(means)
    second = np.einsum("s,sij->ij", weights, np.array(covs)) + (np.array(means).T * weights) @ means
    found = t["posterior"]["b"].values
    for k in range(2):
        own = found[..., k]
        assert az.ess(own, method="mean") > 1.5 * own.size
        assert abs(np.corrcoef(own[0, :-1], own[0, 1:])[0, 1] + 0.4) < 0.1
        for value, exact in ((own, mean[k]), (own**2, second[k, k])):
            error = az.mcse(value, method="mean")
            assert az.ess(value, method="mean") > FEWEST_EFFECTIVE
            assert abs(value.mean() - exact) < STANDARD_ERRORS * error
            # Negative control: what another prior mean would give is told apart.
            assert abs(value.mean() - exact - 0.1 * own.std()) > STANDARD_ERRORS * error
    # Moves of others, and ω, depend on the latents.
    for whose, other in ((None, model), ([b], model), (None, hierarchy())):
        step = pac.AugmentedGibbs(vars=whose, model=other)
        chain = step.make_sampler(other.initial_point()).chain
        assert chain.alternates == (whose is None and other is model)


def test_a_latent_is_named_as_the_user_sees_it():
    model = classification()
    for f in (model["f"], model["f_rotated_"], "f"):
        step = pac.AugmentedGibbs(vars=f, model=model)
        assert [v.name for v in step.vars] == ["f_rotated_"]
    step = pac.AugmentedGibbs(vars=[model["ls"], model["f"]], model=model)
    assert [v.name for v in step.vars] == ["ls_log__", "f_rotated_"]


def test_a_part_of_the_variables_is_all_that_moves():
    model = classification()
    step = pac.AugmentedGibbs(vars=[model["f"], model["eta"]], model=model)
    start = model.initial_point()
    last = run(step, start, 3)[-1]
    for name in ("ls_log__", "b0"):
        np.testing.assert_array_equal(last[name], start[name])
    for name in ("eta_log__", "f_rotated_"):
        assert np.all(last[name] != start[name])


@pytest.mark.parametrize("spelling", ["index", "switch", "coefficient"])
def test_discrete_variables_left_to_pymc(spelling):
    """Allocations z, summed by hand: p(z | y) ∝ p(z) N(y | 0, A Aᵀ + σ²) with A of z."""
    y, sigma = np.array([1.5, -1.0, 1.0, 2.5]), 1.5
    with pm.Model() as model:
        z = pm.Bernoulli("z", 0.4, shape=4)
        f = pm.Normal("f", 0, 1, shape=2)
        if spelling == "index":
            mu = f[z]
        elif spelling == "switch":
            mu = pm.math.switch(z, f[1], f[0])
        else:
            # Rows 0 and 1 take one latent, and their coefficients agree while z is constant.
            mu = f[np.array([0, 0, 1, 1])] * pm.math.switch(z, 2.0, 0.5)
        pm.Normal("y", mu, sigma, observed=y)

    weights = {}
    for state in product((0, 1), repeat=4):
        at = np.array(state)
        if spelling == "coefficient":
            A = np.eye(2)[[0, 0, 1, 1]] * np.where(at, 2.0, 0.5)[:, None]
        else:
            A = np.eye(2)[at]
        cov = A @ A.T + sigma**2 * np.eye(4)
        prior = np.prod(np.where(at, 0.4, 0.6))
        weights[state] = prior * multivariate_normal(np.zeros(4), cov).pdf(y)
    total = sum(weights.values())
    expected = sum(w * np.array(state) for state, w in weights.items()) / total

    step = pac.AugmentedGibbs(model=model)
    assert [v.name for v in step.vars] == ["f"]
    idata = pm.sample(750, tune=50, chains=2, cores=1, model=model, step=step, **QUIET)
    for k in range(4):
        draws = idata.posterior["z"].values[..., k].astype(float)
        effective = float(az.ess(draws, method="mean"))
        assert effective > FEWEST_EFFECTIVE
        error = np.sqrt(expected[k] * (1.0 - expected[k]) / effective)
        assert abs(draws.mean() - expected[k]) < STANDARD_ERRORS * error


def test_imputed_observations_follow_their_law():
    with pm.Model() as model:
        f = pm.Normal("f", 1, 1, shape=3)
        y = np.ma.masked_array([0.5, 0.0, 1.5], mask=[False, True, False])
        with pytest.warns(UserWarning, match="automatically imputed"):
            pm.Normal("y", f, 0.5, observed=y)
    idata = pac.sample(2500, tune=0, chains=2, cores=1, model=model, **QUIET)
    imputed = idata.posterior["y_unobserved"].values[..., 0]
    effective = float(az.ess(imputed, method="mean"))
    assert effective > FEWEST_EFFECTIVE
    # Nothing was seen of its latent: N(1, 1 + ½²).
    sd = np.sqrt(1.25)
    assert abs(imputed.mean() - 1.0) < STANDARD_ERRORS * sd / np.sqrt(effective)
    spread = float(az.mcse(imputed, method="sd"))
    assert abs(imputed.std() - sd) < STANDARD_ERRORS * spread


# -- errors ---------------------------------------------------------------------------------------


DUPLICATED = np.array([[0.0], [0.0], [1.0]])


def test_a_singular_covariance_of_a_whitened_prior():
    with pm.Model() as model:
        f = gp_prior("f", DUPLICATED, 0.5, jitter=0.0)
        pm.Bernoulli("y", logit_p=f, observed=[0, 1, 1])
    with pytest.raises(pac.NotPositiveDefiniteError, match=r"covariance of 'f'.*duplicated inputs"):
        pac.sample(5, tune=0, chains=1, cores=1, model=model, **QUIET)


def test_a_singular_covariance_at_every_hyperparameter():
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 3)
        f = gp_prior("f", DUPLICATED, ls, jitter=0.0)
        pm.Bernoulli("y", logit_p=f, observed=[0, 1, 1])
    with pytest.raises(pac.NotPositiveDefiniteError, match=r"covariance of 'f'.*duplicated inputs"):
        pac.sample(5, tune=0, chains=1, cores=1, model=model, **QUIET)


@pytest.mark.parametrize("learned", [False, True])
def test_a_singular_covariance_of_a_centred_prior_takes_jitter(learned):
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 1) if learned else 1.0
        f = gp_prior("f", DUPLICATED, 0.5, eta, jitter=0.0, reparameterize=False)
        pm.Bernoulli("y", logit_p=f, observed=[0, 1, 1])
    step = pac.AugmentedGibbs(model=model)
    step.setup_chain(np.random.default_rng(1), 0, 20)
    point = model.initial_point()
    jitters = []
    for _ in range(20):
        point, (stats,) = step.step(point)
        scale = np.exp(2 * point["eta_log__"]) if learned else 1.0
        jitters.append(stats["jitter"] / scale)
        assert abs(point["f"][0] - point["f"][1]) < 0.1 * np.sqrt(scale)
    assert max(jitters) < 1e-4
    # At an amplitude here and there rounding leaves a factor without any.
    assert np.mean(np.array(jitters) > 0.0) > 0.5


def test_a_covariance_that_only_long_length_scales_break():
    # With 24 inputs and no jitter to speak of, most of the prior's length scales have no factor.
    inputs = np.linspace(0.0, 1.0, 24)[:, None]
    with pm.Model() as model:
        ls = pm.LogNormal("ls", -1.0, 1.0, initval=0.02)
        f = gp_prior("f", inputs, ls, jitter=0.0)
        pm.Bernoulli("y", logit_p=f, observed=RNG.integers(0, 2, 24))
    step = pac.AugmentedGibbs(model=model)
    step.setup_chain(np.random.default_rng(1), 30, 30)
    point = {**model.initial_point(), "f_rotated_": np.full(24, 0.1)}
    lengths = []
    for _ in range(60):
        point, (stats,) = step.step(point)
        assert np.isfinite(stats["model_logp"])
        lengths.append(float(np.exp(point["ls_log__"])))
    assert 0.01 < min(lengths) < max(lengths) < 1.0


def test_a_variable_that_is_not_the_models():
    model = classification()
    with pm.Model():
        stranger = pm.Normal("stranger")
    with pytest.raises(pac.AugmentationError, match="stranger"):
        pac.AugmentedGibbs(vars=[model["f"], stranger], model=model)


def test_variables_that_are_not_ours():
    with pm.Model() as model:
        z = pm.Bernoulli("z", 0.5)
        f = pm.Normal("f", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=f + z, observed=BINARY[:3])
    with pytest.raises(pac.RecognitionError, match=r"cannot sample \['z'\]"):
        pac.AugmentedGibbs(vars=[f, z], model=model)
    with pytest.raises(pac.RecognitionError, match="at least one Gaussian latent"):
        pac.AugmentedGibbs(vars=[z], model=model)


@pytest.mark.parametrize(("n_rows", "sweeps"), [(100, 2), (600, 1)])
def test_many_rows_of_independent_effects_are_drawn_once_a_step(n_rows, sweeps):
    index = np.arange(n_rows) % 7
    with pm.Model() as model:
        u = pm.Normal("u", 0, pm.HalfNormal("sd", 1), shape=7)
        pm.Bernoulli("y", logit_p=u[index], observed=index % 2)
    assert pac.AugmentedGibbs(model=model).sweeps == sweeps


def test_effects_may_be_more_than_the_rows_of_a_matrix(monkeypatch):
    """None of its size is needed where effects do not meet; where they do, it is refused."""
    monkeypatch.setattr(choice, "LARGEST_MATRIX", 100)
    monkeypatch.setattr(choice, "LARGEST_ALTERNATIVE", 50)
    rng = np.random.default_rng(0)

    def step(index):
        with pm.Model() as model:
            eta, sd = pm.Normal("i", 0, 1), pm.HalfNormal("sd", 1)
            for k, own in enumerate(index):
                eta = eta + pm.Normal(f"u {k}", 0, sd, shape=300)[own]
            pm.Bernoulli("y", logit_p=eta, observed=rng.integers(2, size=2000))
        return pac.AugmentedGibbs(model=model)

    one = step([rng.integers(300, size=2000)])
    one.setup_chain(0, 0, 1)
    assert np.isfinite(one.step(one.recognition.start)[1][0]["model_logp"])
    with pytest.raises(pac.AugmentationError, match="expected at most 100 × 100"):
        step(rng.integers(300, size=(2, 2000)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hyper_sampler": "hmc"}, "hyper_sampler: expected one of 'auto', .*, got 'hmc'"),
        ({"sweeps": 0}, "sweeps: expected a positive integer, got 0"),
        ({"sweeps": 1.5}, "sweeps: expected a positive integer, got 1.5"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        pac.AugmentedGibbs(model=classification(), **options)


def test_shrinkage_priors_keep_to_slices():
    # A scale for each of many coefficients: the gradient's n × n matrices would cost O(n³).
    def regression(observations):
        design = np.random.default_rng(3).normal(size=(observations, 8))
        with pm.Model() as model:
            scale, tau = pm.HalfCauchy("scale", 1, shape=8), pm.HalfNormal("tau", 1)
            beta = pm.Normal("beta", 0, scale * tau, shape=8)
            y = np.random.default_rng(4).integers(0, 2, observations)
            pm.Bernoulli("y", logit_p=pm.math.dot(design, beta), observed=y)
        return pac.AugmentedGibbs(model=model)

    def by_gradient(step):
        return any(
            isinstance(state, dict) and "potential" in state for state in step.learned.values()
        )

    for observations, nuts in ((6, True), (60, False)):
        step = regression(observations)
        assert by_gradient(step) == nuts
        # The table says what is done.
        assert ("NUTS given ω" in str(step.recognition)) == nuts
        assert ("slice sampling given ω" in str(step.recognition)) != nuts


# -- hard data ------------------------------------------------------------------------------------


def finite_chain(model, steps=40):
    """Run a chain and assert that its points and statistics are finite; return its last point."""
    log_density = model.compile_logp(mode=python_mode())
    step = pac.AugmentedGibbs(model=model)
    step.setup_chain(np.random.default_rng(3), steps // 2, steps - steps // 2)
    point = model.initial_point()
    for _ in range(steps):
        point, (stats,) = step.step(point)
        assert all(np.isfinite(value).all() for value in point.values())
        np.testing.assert_allclose(stats["model_logp"], log_density(point), rtol=1e-6)
        assert np.isfinite(stats["log_evidence"])
    return point


def test_huge_outliers():
    y = REALS[:6].copy()
    y[2], y[4] = 1e6, -1e6
    with pm.Model() as model:
        ls, sigma = pm.InverseGamma("ls", 5, 3), pm.HalfNormal("sigma", 1)
        pm.StudentT("y", nu=2, mu=gp_prior("f", X, ls), sigma=sigma, observed=y)
    last = finite_chain(model)
    assert np.abs(last["f_rotated_"]).max() < 10.0


@pytest.mark.parametrize("centred", [False, True])
def test_almost_no_information(centred):
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 3)
        f = gp_prior("f", X, ls, reparameterize=not centred)
        pm.Laplace("y", mu=f, b=1e7, observed=1e5 * REALS[:6])
    finite_chain(model)


def test_almost_no_noise():
    with pm.Model() as model:
        f = gp_prior("f", X, 0.2)
        pm.Normal("y", f, 1e-5, observed=REALS[:6])
    point = run(pac.AugmentedGibbs(model=model), model.initial_point(), 30)[-1]
    K = pm.gp.cov.ExpQuad(1, ls=0.2)(X).eval({}) + 1e-6 * np.eye(6)
    np.testing.assert_allclose(np.linalg.cholesky(K) @ point["f_rotated_"], REALS[:6], atol=1e-3)


@pytest.mark.parametrize("value", [0, 1])
def test_all_observations_equal(value):
    with pm.Model() as model:
        ls, eta, b0 = pm.InverseGamma("ls", 5, 3), pm.HalfNormal("eta", 1), pm.Normal("b0", 0, 5)
        pm.Bernoulli("y", logit_p=b0 + gp_prior("f", X, ls, eta), observed=np.full(6, value))
    finite_chain(model)


def test_zero_counts_only():
    with pm.Model() as model:
        alpha, rate = pm.Gamma("alpha", 2, 1), pm.Gamma("rate", 2, 1)
        f = gp_prior("f", X, 0.4)
        zeros = np.zeros(6, dtype=int)
        pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=alpha, observed=zeros)
        pm.Poisson("y2", mu=rate * pm.math.sigmoid(f), observed=zeros)
    finite_chain(model)


def test_one_observation_of_one_latent():
    with pm.Model() as model:
        f = pm.Normal("f", 0, pm.HalfNormal("s", 1))
        pm.Bernoulli("y", logit_p=f, observed=1)
    finite_chain(model)


def test_a_gp_at_one_input():
    with pm.Model() as model:
        f = gp_prior("f", X[:1], pm.InverseGamma("ls", 5, 3))
        pm.StudentT("y", nu=4, mu=f, sigma=pm.HalfNormal("sigma"), observed=[0.3])
    finite_chain(model)


def test_a_scalar_latent_under_many_observations():
    with pm.Model() as model:
        b0 = pm.Normal("b0", 0, 2)
        pm.Laplace("y", mu=b0, b=pm.HalfNormal("b"), observed=REALS)
    finite_chain(model)


def test_latents_that_no_observation_uses():
    # Entries 0, 2 and 4 of f, and all of g but one, are only known by their prior.
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 3)
        f, g = gp_prior("f", X, ls), pm.Normal("g", 3, 2, shape=4)
        eta = f[np.array([1, 3, 5, 1])] + g[2]
        pm.Bernoulli("y", logit_p=eta, observed=BINARY[:4])
    finite_chain(model)
    idata = pac.sample(300, tune=100, chains=2, cores=1, model=model, **QUIET)
    unused = idata.posterior["g"].values[..., 0]
    effective = float(az.ess(unused, method="mean"))
    assert effective > FEWEST_EFFECTIVE
    assert abs(unused.mean() - 3.0) < STANDARD_ERRORS * 2.0 / np.sqrt(effective)
    assert abs(unused.std() - 2.0) < STANDARD_ERRORS * float(az.mcse(unused, method="sd"))


def test_a_mean_of_what_no_observation_uses():
    # a[1] is known by its prior alone, and so is its mean: a[1] ~ m + N(0, 1), m ~ Gamma(2, 1).
    with pm.Model() as model:
        m = pm.Gamma("m", 2, 1)
        a = pm.Normal("a", pt.stack([0.0, m]), 1)
        pm.Bernoulli("y", logit_p=a[0], observed=BINARY[:4])
    idata = pac.sample(900, tune=100, chains=2, cores=1, model=model, **QUIET)
    unused = idata.posterior["a"].values[..., 1]
    effective = float(az.ess(unused, method="mean"))
    assert effective > FEWEST_EFFECTIVE
    sd = np.sqrt(2.0 + 1.0)
    assert abs(unused.mean() - 2.0) < STANDARD_ERRORS * sd / np.sqrt(effective)
    error = float(az.mcse(unused, method="sd"))
    assert abs(unused.std() - sd) < STANDARD_ERRORS * error
    # Values that do not move with their mean have a variance of about 5.
    assert abs(unused.std() - np.sqrt(5.0)) > STANDARD_ERRORS * error


def test_starts_keep_to_standard_deviations():
    # A prior that reaches below zero: a start is moved to where the latents have a prior.
    with pm.Model() as model:
        s = pm.Normal("s", 0.3, 1)
        pm.Bernoulli("y", logit_p=pm.Normal("z", 0, s, shape=4), observed=BINARY[:4])
    step = pac.AugmentedGibbs(model=model)
    for seed in range(8):
        step.setup_chain(np.random.default_rng(seed), 0, 1)
        point, (stats,) = step.step(model.initial_point())
        assert point["s"] > 0.0
        assert np.isfinite(stats["model_logp"])
