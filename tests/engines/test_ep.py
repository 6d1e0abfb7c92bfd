"""EP: reference values, exactness where it is exact, gradients, convergence on hard problems."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy.stats import multivariate_normal

from benchmarks.ep_on_arrays import dense_prior, run_ep
from pymc_augconj.engines.ep import solve as ep_double_loop
from pymc_augconj.engines.ep.objective import EPObjective, SiteGroup
from pymc_augconj.engines.ep.solve import solve
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.likelihoods import contract
from pymc_augconj.likelihoods.bernoulli_logit import BernoulliLogit
from pymc_augconj.likelihoods.bernoulli_probit import BernoulliProbit
from pymc_augconj.likelihoods.contract import LikelihoodDensity, site_moments
from pymc_augconj.likelihoods.laplace import Laplace
from pymc_augconj.likelihoods.normal import Normal
from pymc_augconj.likelihoods.poisson_log import PoissonLog
from pymc_augconj.likelihoods.student_t import StudentT
from pymc_augconj.linalg.linear_map import RowSelection

TOY_X = np.array(
    [
        [-1.07932, -1.83544],
        [1.15768, 2.91702],
        [3.26631, -3.85663],
        [1.79009, 0.11949],
        [-3.66051, 1.75159],
    ]
)
TOY_Y = np.array([0.0, 1.0, 1.0, 1.0, 0.0])
SEEDS = range(12)


def squared_exponential(X, lengthscale, amplitude):
    distance = ((X[:, None] - X) ** 2).sum(axis=-1)
    return amplitude**2 * np.exp(-0.5 * distance / lengthscale**2)


def density_of(likelihood, y, **params):
    return LikelihoodDensity(likelihood, y, {k: np.asarray(float(v)) for k, v in params.items()})


def outlier_problem(seed, n=30, nu=2.0, sigma=0.1):
    """Student-t of ν = 2 and scale 0.1 with six gross outliers."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-3.0, 3.0, n))[:, None]
    C = squared_exponential(x, 1.0, 1.0) + 1e-8 * np.eye(n)
    y = np.linalg.cholesky(C) @ rng.standard_normal(n) + 0.1 * rng.standard_t(2, n)
    outliers = rng.choice(n, 6, replace=False)
    y[outliers] += rng.choice([-1.0, 1.0], 6) * rng.uniform(3.0, 10.0, 6)
    return C, density_of(StudentT(), y, nu=nu, sigma=sigma)


def covariance_gradient(at):
    """G = ½ (α αᵀ − R), from the posterior that the engines' gradient takes it from."""
    size = at.mean.size
    return at.posterior.congruence(RowSelection(np.arange(size), None, size))


def fixed_point(C, m, density, power=1.0, **options):
    objective = EPObjective(dense_prior(C, m), (SiteGroup(slice(None), density),), power)
    return objective, solve(objective, **options)


# -- values ---------------------------------------------------------------------------------------


def test_toy_reference():
    C = squared_exponential(TOY_X, 2.0, 1.5)
    _, found = fixed_point(C, np.zeros(5), density_of(BernoulliProbit(), TOY_Y))
    assert found.converged
    assert -found.evaluation.bound == pytest.approx(3.38359489, abs=1e-6)
    G = covariance_gradient(found.evaluation)
    distance = ((TOY_X[:, None] - TOY_X) ** 2).sum(axis=-1)
    by_log_lengthscale = -np.sum(G * C * distance / 4.0)
    by_log_amplitude = -np.sum(G * 2.0 * C)
    assert by_log_lengthscale == pytest.approx(-0.0552142618, abs=1e-6)
    assert by_log_amplitude == pytest.approx(-0.0538024123, abs=1e-6)


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_normal_likelihood_is_exact_in_one_sweep(power, schedule):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((8, 2))
    C, m = squared_exponential(X, 1.0, 1.3), rng.standard_normal(8)
    y, sigma = rng.standard_normal(8), 0.3
    state, info = run_ep(C, m, density_of(Normal(), y, sigma=sigma), power=power, schedule=schedule)
    assert info.sweeps == 1
    assert info.converged
    np.testing.assert_allclose(state.lam, sigma**-2, rtol=1e-10)
    np.testing.assert_allclose(state.h, y * sigma**-2, rtol=1e-9)
    exact = multivariate_normal(m, C + sigma**2 * np.eye(8)).logpdf(y)
    assert info.evidence == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("likelihood", [BernoulliLogit(), BernoulliProbit(), Laplace(), StudentT()])
def test_one_observation_is_exact(likelihood):
    """With one site the tilted distribution is the posterior: evidence and moments are exact."""
    params = {"Laplace": {"b": 0.4}, "Student-t": {"nu": 3.0, "sigma": 0.2}}
    density = density_of(likelihood, np.ones(1), **params.get(likelihood.name, {}))
    _, found = fixed_point(np.array([[2.0]]), np.array([-0.7]), density)
    f = np.linspace(-12.0, 12.0, 200001)
    p = np.exp(density(f[:, None], np.zeros(1, dtype=int))[:, 0] - 0.25 * (f + 0.7) ** 2)
    p /= np.sqrt(4.0 * np.pi)
    # The trapezoidal rule: 1e-8 at the kink, far below elsewhere.
    total, first = np.trapezoid(p, f), np.trapezoid(p * f, f)
    second = np.trapezoid(p * f**2, f)
    assert found.evaluation.bound == pytest.approx(np.log(total), abs=1e-7)
    assert found.evaluation.mean[0] == pytest.approx(first / total, abs=1e-7)
    assert found.evaluation.var[0] == pytest.approx(second / total - (first / total) ** 2, abs=1e-7)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("likelihood", [BernoulliLogit(), BernoulliProbit()])
def test_few_observations_against_quadrature(n, likelihood):
    """EP is not exact here, but its errors for probit and logit are known to be tiny.

    A Laplace approximation is off by 0.05 and more in the means of these posteriors, a site with
    a wrong sign or power by several tenths.
    """
    X = np.linspace(-1.0, 1.0, n)[:, None]
    C, m = squared_exponential(X, 1.0, 2.0), np.full(n, 0.3)
    y = np.arange(n) % 2.0
    density = density_of(likelihood, y)
    nodes, weights = hermegauss(60)
    grid = np.stack(np.meshgrid(*[nodes] * n, indexing="ij"), axis=-1).reshape(-1, n)
    weight = np.prod(np.stack(np.meshgrid(*[weights] * n, indexing="ij"), axis=-1), axis=-1).ravel()
    f = m + grid @ np.linalg.cholesky(C).T
    p = weight / weight.sum() * np.exp(density(f, np.arange(n)).sum(axis=1))
    evidence = p.sum()
    mean = p @ f / evidence
    std = np.sqrt(p @ f**2 / evidence - mean**2)
    _, found = fixed_point(C, m, density)
    assert found.evaluation.bound == pytest.approx(np.log(evidence), abs=5e-3)
    np.testing.assert_allclose(found.evaluation.mean, mean, atol=1e-2 * std.max())
    np.testing.assert_allclose(np.sqrt(found.evaluation.var), std, rtol=1e-2)
    # Negative control: the same comparison tells the sites of another observation apart.
    _, wrong = fixed_point(C, m, density_of(likelihood, 1.0 - y))
    assert np.abs(wrong.evaluation.mean - mean).max() > 0.1


def test_moments_match_at_the_fixed_point():
    C, density = outlier_problem(3)
    _, found = fixed_point(C, np.zeros(30), density)
    at = found.evaluation
    np.testing.assert_allclose(at.tilted.mean, at.mean, atol=1e-8)
    np.testing.assert_allclose(at.tilted.var, at.var, rtol=1e-7)
    assert found.diagnostics["n_negative"] == np.count_nonzero(at.lam < 0.0) > 0
    # A negative site is felt: its marginal is wider than its cavity.
    negative = at.lam < 0.0
    assert (at.var[negative] > at.cavity_var[negative]).all()


# -- ways that agree ------------------------------------------------------------------------------


def test_starts_schedules_and_accelerations_agree_on_a_concave_likelihood():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((40, 2))
    C = squared_exponential(X, 1.0, 2.0)
    density = density_of(BernoulliLogit(), (X[:, 0] + rng.standard_normal(40) > 0) * 1.0)
    m = np.full(40, 0.2)
    first, info = run_ep(C, m, density)
    start = (rng.standard_normal(40), rng.uniform(0.0, 2.0, 40))
    for options in (
        {"start": start},
        {"accelerate": False},
        {"damping": 0.4},
        {"schedule": "sequential"},
        {"start": start, "schedule": "sequential", "damping": 0.7},
    ):
        state, other = run_ep(C, m, density, **options)
        assert other.converged
        assert other.evidence == pytest.approx(info.evidence, abs=1e-9)
        np.testing.assert_allclose(state.lam, first.lam, atol=1e-6)
    assert info.sweeps <= 20


@pytest.mark.parametrize("seed", SEEDS)
def test_hard_set_converges_to_one_evidence(seed):
    C, density = outlier_problem(seed)
    rng = np.random.default_rng(seed)
    _, info = run_ep(C, np.zeros(30), density)
    start = (rng.standard_normal(30), rng.uniform(0.0, 2.0, 30))
    for options in ({"start": start}, {"damping": 0.2, "accelerate": False}):
        _, other = run_ep(C, np.zeros(30), density, **options)
        assert info.converged
        assert other.converged
        assert other.evidence == pytest.approx(info.evidence, abs=1e-7)


def test_undamped_plain_sweeps_do_not_converge_on_all_of_the_hard_set():
    """Negative control: the set is hard, and what is not converged says so."""
    ends = []
    for seed in SEEDS:
        C, density = outlier_problem(seed)
        options = {"accelerate": False, "double_loop": False}
        _, info = run_ep(C, np.zeros(30), density, **options)
        ends.append(info.converged)
        assert info.converged == (info.residual <= 1e-8)
    assert not all(ends)


def test_singular_prior_with_repeated_rows():
    """Observations of one latent value: the merged model has the same evidence."""
    C = squared_exponential(TOY_X, 2.0, 1.5)
    rows = np.array([0, 1, 1, 2, 3, 4, 4])
    y = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    full = C[np.ix_(rows, rows)]
    _, found = fixed_point(full, np.zeros(7), density_of(BernoulliProbit(), y))
    _, jittered = fixed_point(
        full + 1e-9 * np.eye(7), np.zeros(7), density_of(BernoulliProbit(), y)
    )
    assert found.converged
    assert found.evaluation.bound == pytest.approx(jittered.evaluation.bound, abs=1e-7)
    assert found.evaluation.mean[1] == pytest.approx(found.evaluation.mean[2], abs=1e-12)


def test_groups_of_sites_are_stacked():
    rng = np.random.default_rng(2)
    C = squared_exponential(rng.standard_normal((9, 1)), 1.0, 1.0)
    y = rng.standard_normal(9)
    whole = density_of(StudentT(), y, nu=3.0, sigma=0.5)
    parts = [
        SiteGroup(slice(4, 9), density_of(StudentT(), y[4:], nu=3.0, sigma=0.5)),
        SiteGroup(slice(0, 4), density_of(StudentT(), y[:4], nu=3.0, sigma=0.5)),
    ]
    for options in ({}, {"schedule": "sequential"}):
        one, info = run_ep(C, np.zeros(9), whole, **options)
        two, other = run_ep(C, np.zeros(9), parts, **options)
        np.testing.assert_allclose(one.h, two.h, atol=1e-7)
        assert info.evidence == pytest.approx(other.evidence, abs=1e-10)


# -- gradients ------------------------------------------------------------------------------------


def problem_of(theta, power):
    """Return EP on the outliers at θ = (lengthscale, amplitude, mean, ν, σ)."""
    rng = np.random.default_rng(4)
    x = np.sort(rng.uniform(-3.0, 3.0, 20))[:, None]
    y = np.sin(2.0 * x[:, 0]) + 0.1 * rng.standard_t(2, 20)
    y[[3, 12]] += [4.0, -6.0]
    lengthscale, amplitude, mean, nu, sigma = theta
    C = squared_exponential(x, lengthscale, amplitude) + 1e-6 * np.eye(20)
    density = density_of(StudentT(), y, nu=nu, sigma=sigma)
    return x, C, fixed_point(C, np.full(20, mean), density, power, tol=1e-10)


@pytest.mark.parametrize("power", [1.0, 0.6])
def test_gradients_against_differences(power):
    """With negative sites, for kernel and mean; the differences are good to 1e-8."""
    theta = np.array([0.8, 1.2, 0.3, 3.0, 0.2])
    x, C, (_, found) = problem_of(theta, power)
    assert found.diagnostics["n_negative"] >= 2
    distance = (x - x.T) ** 2
    kernel = C - 1e-6 * np.eye(20)
    G = covariance_gradient(found.evaluation)
    gradient = [
        np.sum(G * kernel * distance) / theta[0] ** 3,
        2.0 * np.sum(G * kernel) / theta[1],
        found.evaluation.posterior.alpha.sum(),
    ]
    for i, slope in enumerate(gradient):
        step = 1e-3 * theta[i]
        values = []
        for steps in (-2, -1, 1, 2):
            moved = theta.copy()
            moved[i] += steps * step
            values.append(problem_of(moved, power)[2][1].evaluation.bound)
        difference = (values[0] - 8.0 * values[1] + 8.0 * values[2] - values[3]) / (12.0 * step)
        assert slope == pytest.approx(difference, rel=1e-5, abs=1e-5)


# -- the double loop ------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [1.0, 0.7])
def test_double_loop_increases_the_evidence_at_every_outer_step(power):
    C, density = outlier_problem(4)
    objective = EPObjective(dense_prior(C, np.zeros(30)), (SiteGroup(slice(None), density),), power)
    at = objective.at_prior()
    nu, tau = at.mean / at.var, 1.0 / at.var
    h, lam, values = at.h, at.lam, []
    for _ in range(12):
        inner = ep_double_loop.minimise_inner(objective, nu, tau, h, lam)
        assert inner.decrement < 1e-8
        # At the inner optimum q and the tilted distributions have the same moments; the decrement
        # is the square of the mismatch.
        np.testing.assert_allclose(inner.tilted.mean, inner.posterior.mean, atol=1e-4)
        np.testing.assert_allclose(inner.tilted.var, inner.posterior.var, rtol=1e-4)
        marginal = 0.5 * (nu**2 / tau - np.log(tau) + np.log(2.0 * np.pi))
        values.append(inner.value - marginal.sum() / power)
        new_nu, new_tau = inner.posterior.mean / inner.posterior.var, 1.0 / inner.posterior.var
        h, lam = inner.h, inner.lam
        assert (new_tau - power * lam > 0.0).all()
        nu, tau = new_nu, new_tau
    assert (np.diff(values) > -1e-9).all()
    assert values[-1] > values[0] + 1.0
    if power == 1.0:
        _, info = run_ep(C, np.zeros(30), density)
        assert values[-1] <= info.evidence + 1e-9


def test_double_loop_alone_reaches_the_fixed_point(monkeypatch):
    from pymc_augconj.engines.ep import solve as ep

    monkeypatch.setattr(ep, "sweep_parallel", lambda recorder, current, **_: (current, "skipped"))
    C, density = outlier_problem(0)
    _, info = run_ep(C, np.zeros(30), density)
    monkeypatch.undo()
    _, swept = run_ep(C, np.zeros(30), density)
    assert (info.method, swept.method) == ("double loop", "parallel")
    assert info.converged
    assert info.evidence == pytest.approx(swept.evidence, abs=1e-9)


@pytest.mark.parametrize(("n", "rho"), [(20, 3.0), (30, 1.8)])
def test_double_loop_ends_where_no_digits_are_left(n, rho):
    """An explosive autoregression: its Newton system has no factor, or no step changes anything."""
    root = np.linalg.inv(np.eye(n) - rho * np.eye(n, k=-1))
    y = np.random.default_rng(1).poisson(3.0, n).astype(float)
    _, info = run_ep(root @ root.T + 1.0, np.zeros(n), density_of(PoissonLog(), y, exposure=1.0))
    assert info.method == "double loop"
    assert "the double loop" in info.message
    assert not info.converged
    assert info.sweeps < 100


def test_double_loop_is_not_for_very_many_sites(monkeypatch):
    monkeypatch.setattr(ep_double_loop, "LARGEST_SIZE", 10)
    C, density = outlier_problem(7)
    _, info = run_ep(C, np.zeros(30), density)
    assert not info.converged
    assert "at most 10 sites" in info.message


# -- honesty --------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_too_few_sweeps_are_told(schedule):
    C, density = outlier_problem(0)
    _, info = run_ep(C, np.zeros(30), density, max_iter=3, schedule=schedule)
    assert not info.converged
    assert info.sweeps == 3
    assert "stopped after 3 sweeps" in info.message
    assert info.residual > 1e-8


def test_diagnostics_and_report():
    C, density = outlier_problem(8)
    seen = []
    report = {"report": lambda sweep, at: seen.append(sweep)}
    _, found = fixed_point(C, np.zeros(30), density, **report)
    assert found.iterations == seen
    info = found.diagnostics
    assert info["sweeps"] == len(seen)
    assert info["evaluations"] >= info["sweeps"]
    assert 0.0 < info["damping"] <= 1.0
    assert info["smallest_cavity_precision"] > 0.0
    assert info["quadrature_error"] < 1e-8


def test_state_without_a_posterior_is_refused_and_a_start_without_one_left():
    C = squared_exponential(TOY_X, 2.0, 1.5)
    density = density_of(BernoulliProbit(), TOY_Y)
    objective = EPObjective(dense_prior(C, np.zeros(5)), (SiteGroup(slice(None), density),))
    with pytest.raises(NotPositiveDefiniteError):
        objective.evaluate(np.zeros(5), np.full(5, -10.0))
    start = (np.zeros(5), np.full(5, -10.0))
    _, info = run_ep(C, np.zeros(5), density, start)
    assert info.evidence == pytest.approx(-3.38359489, abs=1e-6)


def test_equal_observations_are_integrated_once(monkeypatch):
    """Counts of few values with few exposures, whose cavities are equal up to rounding."""
    rng = np.random.default_rng(3)
    which = rng.integers(0, 3, 1200)
    sigma = np.array([0.5, 1.0, 2.0])[which]
    y = rng.integers(0, 2, 1200) + 1.0
    mean = np.array([0.1, -0.4, 2.0])[which] * (1.0 + 1e-15 * rng.standard_normal(1200))
    var = np.array([1.0, 0.3, 0.1])[which]
    density = LikelihoodDensity(StudentT(), y, {"nu": np.float64(4.0), "sigma": sigma})
    sizes = []
    integrate = contract.tilted_moments

    def counted(density, *args, **kwargs):
        sizes.append(density.size)
        return integrate(density, *args, **kwargs)

    monkeypatch.setattr(contract, "tilted_moments", counted)
    found = site_moments(density, mean, var)
    assert sizes == [6]
    expected = integrate(density, mean, var)
    for name in ("log_Z", "mean", "var"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9)
    # The control: cavities that differ are not equal.
    site_moments(density, mean + 1e-6 * rng.standard_normal(1200), var)
    assert sizes[-1] == 1200
