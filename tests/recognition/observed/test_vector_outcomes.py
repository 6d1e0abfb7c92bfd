"""Vector outcomes that are read entry by entry, beside PyMC's density and closed forms."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import integrate, stats

import pymc_augconj as pac
from pymc_augconj.recognition.observed.observed_graph import without_vectors
from tests.recognition.conftest import assert_log_density_is_that_of_pymc

RNG = np.random.default_rng(20_261_124)
N = 20
T = np.linspace(0.0, 3.0, N)
X = np.stack([np.ones(N), T], axis=1)
WALK = RNG.normal(0.3, 1.0, size=N).cumsum()
Y = RNG.normal(size=N) + X @ [1.0, 2.0]
V = 0.5 * np.exp(-np.abs(np.subtract.outer(T, T))) + 0.2 * np.eye(N)
ROWS = RNG.multivariate_normal(np.arange(3.0), 0.5 + 0.5 * np.eye(3), size=N)
MISSING = RNG.random(ROWS.shape) < 0.2
MASKED = np.ma.masked_array(ROWS, MISSING)
COV = 0.4 + 0.6 * np.eye(3)


def scale(name="s"):
    return pm.HalfNormal(name, 1.0)


def coefficients(size=2):
    return pm.Normal("b", 0.0, 2.0, shape=size)


def long(**spelling):
    return pm.MvNormal("y", pt.dot(X, coefficients()), observed=Y, **spelling)


def masked_long():
    mask = np.zeros(N, dtype=bool)
    mask[[2, 7]] = True
    long_ = np.ma.masked_array(Y, mask)
    pm.MvNormal("y", pt.dot(X, coefficients()), cov=scale() * V, observed=long_)


def marginal_process():
    b, ls = coefficients(()), pm.Gamma("ls", 2, 2)
    gp = pm.gp.Marginal(
        mean_func=pm.gp.mean.Linear(b, pm.Normal("c", 0, 1)), cov_func=pm.gp.cov.ExpQuad(1, ls=ls)
    )
    gp.marginal_likelihood("y", X=T[:, None], y=Y, sigma=scale())


def autoregression(constant, order=2):
    init = pm.Normal.dist(0.0, pm.HalfNormal("start", 3.0))
    rho = coefficients(order + constant)
    pm.AR("y", rho, sigma=scale(), constant=constant, init_dist=init, observed=WALK)


def walk(name="GaussianRandomWalk", observed=WALK, **parameters):
    m = pm.Normal("m", 0.0, 3.0)
    parameters = {"mu": coefficients(()), "sigma": scale(), **parameters}
    init = pm.Normal.dist(m, 1.0, shape=observed.shape[:-1])
    getattr(pm, name)("y", init_dist=init, observed=observed, **parameters)


def vector_walk():
    init = pm.MvNormal.dist(np.zeros(3), np.eye(3))
    pm.MvGaussianRandomWalk("y", coefficients(3), cov=scale() * COV, init_dist=init, observed=ROWS)


def student_walk():
    innovations = pm.StudentT.dist(nu=4.0, mu=coefficients(()), sigma=scale())
    pm.RandomWalk("y", init_dist=pm.Normal.dist(0, 1), innovation_dist=innovations, observed=WALK)


pytestmark = pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning")

# With the number of latents, missing entries included.
MODELS = {
    "chol": (lambda: long(chol=np.linalg.cholesky(V) * scale()), 2),
    "cov": (lambda: long(cov=scale() * V), 2),
    "tau": (lambda: long(tau=np.linalg.inv(V) / scale()), 2),
    "rows": (
        lambda: pm.MvNormal(
            "y", pt.dot(X, coefficients()), cov=scale() * V, observed=np.stack([Y, WALK])
        ),
        2,
    ),
    "marginal process": (marginal_process, 2),
    "autoregression": (lambda: autoregression(False), 2),
    "autoregression with a constant": (lambda: autoregression(True, 1), 2),
    "walk": (walk, 2),
    "walks": (lambda: walk(observed=np.stack([WALK, Y])), 2),
    "vector walk": (vector_walk, 3),
    "Student-t walk": (student_walk, 1),
    "missing entries": (
        lambda: pm.MvNormal("y", coefficients(3), cov=scale() * COV, observed=MASKED),
        3 + MISSING.sum(),
    ),
    "missing entries, Student-t": (
        lambda: pm.MvStudentT("y", nu=5, mu=coefficients(3), scale=scale() * COV, observed=MASKED),
        3 + MISSING.sum(),
    ),
    "missing entries of a long vector": (masked_long, 4),
}


@pytest.mark.parametrize("case", MODELS)
def test_log_density_is_that_of_pymc(case):
    build, n_latents = MODELS[case]
    with pm.Model() as model:
        build()
    step = pac.AugmentedGibbs(model=model)
    lgm = step.recognition.model
    assert lgm.latent_size == n_latents
    assert not step.held
    assert_log_density_is_that_of_pymc(step, model)


def test_only_the_outcome_changes():
    with pm.Model() as model:
        walk()
    changed, new = without_vectors(model)
    assert changed.free_RVs == tuple(model.free_RVs)
    assert {rv.name for rv in new} == {"y", "y (first)"} == {rv.name for rv in changed.observed_RVs}
    assert [rv.name for rv in model.observed_RVs] == ["y"]
    assert without_vectors(changed.model)[0].model is changed.model


def test_outcomes_that_others_depend_on_stay():
    with pm.Model() as model:
        walk()
        pm.Normal("z", model["y"], 1.0, observed=WALK)
    index, new = without_vectors(model)
    assert (index.model, new) == (model, {})


# -- closed forms ---------------------------------------------------------------------------------


def regression(A, y, cov, prior):
    """Return log evidence, mean and covariance for y ~ N(A b, cov), b ~ N(0, prior)."""
    total = cov + A @ prior @ A.T
    gain = np.linalg.solve(total, A @ prior).T
    log_evidence = stats.multivariate_normal.logpdf(y, np.zeros(y.size), total)
    return log_evidence, gain @ y, prior - gain @ A @ prior


def test_hyperparameters_alone_in_a_mean_and_a_covariance():
    """A mean without latents makes an outcome that is read by entries, and then there is none."""
    with pm.Model() as model:
        pm.MvNormal("y", pm.HalfNormal("c", 1) * T, cov=scale() * V, observed=Y)
    assert not pac.recognize(model).model.blocks


def check_fit(model, name, log_evidence, mean, cov):
    q = pac.fit("vgp", model=model, progressbar=False)
    np.testing.assert_allclose(q.log_evidence, log_evidence, rtol=1e-8)
    np.testing.assert_allclose(q.mean[name].to_numpy().ravel(), mean, atol=1e-7)
    np.testing.assert_allclose(
        q.std[name].to_numpy().ravel(), np.sqrt(np.diag(np.atleast_2d(cov))), rtol=1e-7
    )
    return q


def test_fit_of_a_long_vector_is_the_closed_form():
    with pm.Model() as model:
        long(cov=V)
    check_fit(model, "b", *regression(X, Y, V, 4.0 * np.eye(2)))


def test_fit_of_an_autoregression_is_the_closed_form():
    with pm.Model() as model:
        b, init = coefficients(3), pm.Normal.dist(0, 1)
        pm.AR("y", b, sigma=0.7, constant=True, init_dist=init, observed=WALK)
    A = np.stack([np.ones(N - 2), WALK[1:-1], WALK[:-2]], axis=1)
    log_evidence, *moments = regression(A, WALK[2:], 0.49 * np.eye(N - 2), 4.0 * np.eye(3))
    # Of the first values nothing depends on latents.
    q = check_fit(model, "b", log_evidence, *moments)
    np.testing.assert_array_equal(q.observed["y"], WALK)
    draws = q.sample(3, random_seed=1, log_likelihood=True)
    theirs = stats.norm.logpdf(WALK[2:], draws.posterior["b"].to_numpy()[0] @ A.T, 0.7)
    np.testing.assert_allclose(draws.log_likelihood["y"].to_numpy()[0], theirs.sum(axis=1))


def test_missing_entries_are_the_closed_form():
    """Given the mean they are normal, row by row, given the observed ones."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0, shape=3)
        pm.MvNormal("y", mu, cov=COV, observed=MASKED)
    seen = ~MISSING.ravel()
    A, noise = np.tile(np.eye(3), (N, 1)), np.kron(np.eye(N), COV)
    total = noise + 4.0 * A @ A.T
    gain = np.linalg.solve(total[np.ix_(seen, seen)], total[np.ix_(seen, ~seen)]).T
    y = ROWS.ravel()[seen]
    cov = total[np.ix_(~seen, ~seen)] - gain @ total[np.ix_(seen, ~seen)]
    log_evidence = stats.multivariate_normal.logpdf(y, np.zeros(y.size), total[np.ix_(seen, seen)])
    check_fit(model, "y_unobserved", log_evidence, gain @ y, cov)
    # Negative control: rows without their missing entries do not depend on each other otherwise.
    apart = np.linalg.solve(noise[np.ix_(seen, seen)], total[np.ix_(seen, ~seen)]).T @ y
    assert np.abs(apart - gain @ y).max() > 0.1
    # The log likelihood has a density of each row, of its entries seen and drawn.
    tree = pac.fit("vgp", model=model, progressbar=False).sample(3, log_likelihood=True)
    away = tree["posterior"]["y"].values[0] - tree["posterior"]["mu"].values[0][:, None]
    of_rows = stats.multivariate_normal.logpdf(away, np.zeros(3), COV)
    np.testing.assert_allclose(tree["log_likelihood"]["y_observed"][0], of_rows, rtol=1e-9)


# -- processes that a model has integrated out ----------------------------------------------------


def marginal(build):
    with pm.Model() as model:
        ls = pm.Gamma("ls", 3, 3)
        build(ls)
    return model


def of_marginal(ls):
    gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
    gp.marginal_likelihood("y", X=T[:, None], y=np.sin(2.0 * T), sigma=0.5)
    gp.conditional("f_new", np.array([[3.5]]))


def of_kronecker(ls):
    covs = [pm.gp.cov.ExpQuad(1, ls=ls), pm.gp.cov.ExpQuad(1, ls=1.0)]
    gp = pm.gp.MarginalKron(cov_funcs=covs)
    y = np.sin(2.0 * T[:12])
    gp.marginal_likelihood("y", Xs=[T[:4, None], T[:3, None]], y=y, sigma=0.5)


def of_approximation(ls):
    gp = pm.gp.MarginalApprox(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
    gp.marginal_likelihood("y", X=T[:, None], Xu=T[::5, None], y=np.sin(2.0 * T), sigma=0.5)


def of_a_normal_period(ls):
    period = pm.Normal("period", 3.0, 0.1)
    gp = pm.gp.Marginal(cov_func=pm.gp.cov.Periodic(1, period=period, ls=ls))
    gp.marginal_likelihood("y", X=T[:, None], y=np.sin(2.0 * T), sigma=0.5)


PROCESSES = (of_marginal, of_kronecker, of_approximation, of_a_normal_period)


@pytest.mark.parametrize("build", PROCESSES)
def test_hyperparameters_of_an_integrated_process_are_sampled(build):
    model = marginal(build)
    assert not pac.recognize(model).model.blocks
    with pytest.raises(pac.AugmentationError, match=r"hyperparameters alone.*pac\.sample"):
        pac.fit("vgp", model=model, progressbar=False)
    if build is not of_marginal:
        return
    idata = pac.sample(
        model=model, draws=1500, tune=200, chains=1, cores=1, random_seed=1, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
    assert idata.posterior["f_new"].shape == (1, 1500, 1)
    # Slices along one axis take four; all hyperparameters on an ellipse fewer, however many.
    assert idata.sample_stats["evaluations"].mean() < 3.0
    draws = idata.posterior["ls"].to_numpy().ravel()

    def log_density(ls, noise=0.25):
        cov = np.exp(-0.5 * np.subtract.outer(T, T) ** 2 / ls**2) + (noise + 1e-6) * np.eye(N)
        own = stats.multivariate_normal.logpdf(np.sin(2.0 * T), np.zeros(N), cov)
        return own + stats.gamma.logpdf(ls, 3, scale=1 / 3)

    grid = np.linspace(0.01, 6.0, 2000)
    for noise, holds in ((0.25, True), (1.0, False)):  # a wrong noise is found
        log_p = np.array([log_density(ls, noise) for ls in grid])
        cdf = integrate.cumulative_trapezoid(np.exp(log_p - log_p.max()), grid, initial=0.0)
        u = np.interp(draws, grid, cdf / cdf[-1])
        n = pm.stats.ess(idata, var_names=["ls"])["ls"].item()
        assert n > 100
        z = (np.mean(u) - 0.5) / np.sqrt(1.0 / (12.0 * n))
        assert (abs(z) < 5.0) == holds
