"""Inducing points: the bound against closed forms, its gradients, and stochastic steps on it."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pymc as pm
import pytest
from scipy.stats import multivariate_normal

import pymc_augconj as pac
from pymc_augconj.engines.base import FitProblem, SparseProblem
from pymc_augconj.engines.sparse import rows as sparse_rows
from pymc_augconj.engines.sparse import svi
from pymc_augconj.engines.sparse.component import inducing_entry
from pymc_augconj.engines.sparse.fit import _Bound, _Family
from pymc_augconj.engines.sparse.inducing import WeightsPosterior, inducing_inputs
from pymc_augconj.engines.sparse.rows import (
    RowsInMemory,
    State,
    all_slopes,
    evaluated,
    expected_sums,
    natural_sums,
    slope_sums,
)
from pymc_augconj.engines.variational.ascent import climb
from pymc_augconj.engines.variational.bound import CoordinateAscent, VariationalGaussian
from pymc_augconj.recognition.processes.process import LatentProcess

RULES = (CoordinateAscent, VariationalGaussian)
N = 48


@pytest.fixture(scope="module")
def inputs():
    return np.random.default_rng(0).normal(size=(N, 2))


def every_part(X):
    """A mean and a coefficient that move, a hierarchy, an intercept that is scaled, two sites."""
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        ls, eta = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("eta", 2)
        b0, c = pm.Normal("b0", 0, 2), pm.Normal("c", 0, 1)
        sigma, tau = pm.HalfNormal("sigma", 1), pm.HalfNormal("tau", 1)
        a = pm.Normal("a", 0, tau, shape=3)
        gp = pm.gp.Latent(
            mean_func=pm.gp.mean.Constant(c), cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls)
        )
        f = gp.prior("f", X=X)
        small = pm.gp.Latent(cov_func=tau**2 * pm.gp.cov.Matern52(1, ls=0.5))
        g = small.prior("g", X=np.linspace(0, 1, 4)[:, None])
        y = (rng.random(N) < 0.5).astype(int)
        pm.Bernoulli("y", logit_p=b0 + f + a[np.arange(N) % 3], observed=y)
        z = rng.standard_t(3, size=N)
        mu = c * f + eta * b0 + g[np.arange(N) % 4]
        pm.StudentT("z", nu=4, mu=mu, sigma=sigma, observed=z)
    return model, gp


def family_of(model, gp, rule, Z, *, c=0.7, move=False):
    recognition = pac.recognize(model)
    point = {name: np.asarray(value, dtype=float) for name, value in recognition.start.items()}
    if "c" in point:
        point["c"] = np.array(c)
    law = LatentProcess(model, gp, recognition.model, gradient_of_inducing=move)
    sparse = SparseProblem([law], [Z], np.random.default_rng(0))
    problem = FitProblem(
        recognition.model, point, recognition.probes, (), None, 500, 1e-10, sparse=sparse
    )
    return _Family(problem, rule()), point


def top(bound: _Bound, start=None):
    found = climb(bound, start, max_iter=500, tol=1e-11)
    assert found.converged, found.message
    return found


@pytest.mark.parametrize("c", [0.7, 0.0])
@pytest.mark.parametrize("rule", RULES)
def test_gradient_agrees_with_differences_of_converged_bounds(inputs, rule, c):
    model, gp = every_part(inputs)
    Z = inducing_inputs(np.random.default_rng(1), inputs, 9)
    family, point = family_of(model, gp, rule, Z, c=c)
    bound = family.at(point)
    end = top(bound).evaluation
    gradient = bound.gradient(end)
    assert set(gradient) == {"ls_log__", "eta_log__", "c", "sigma_log__", "tau_log__"}
    step = 1e-3
    for name, slope in gradient.items():
        values = [
            top(family.at({**point, name: point[name] + k * step}), (end.h, end.lam))
            for k in (-2, -1, 1, 2)
        ]
        far, near, there, farther = (value.evaluation.bound for value in values)
        # Fourth order: an error of about step⁴ and of rounding in the bounds over the step.
        expected = (far - 8 * near + 8 * there - farther) / (12 * step)
        assert float(np.sum(slope)) == pytest.approx(expected, rel=1e-6, abs=1e-6), name


def test_gradient_by_inducing_inputs(inputs):
    model, gp = every_part(inputs)
    Z = inducing_inputs(np.random.default_rng(1), inputs, 9)
    family, point = family_of(model, gp, CoordinateAscent, Z, move=True)
    bound = family.at(point)
    end = top(bound).evaluation
    slope = bound.gradient(end)[inducing_entry(*family.model.priors)]
    for entry in ((0, 0), (4, 1)):
        values = []
        for sign in (-1.0, 1.0):
            moved = Z.copy()
            moved[entry] += sign * 1e-4
            family.inducing = [moved]
            values.append(top(family.at(point), (end.h, end.lam)).evaluation.bound)
        assert slope[entry] == pytest.approx((values[1] - values[0]) / 2e-4, rel=1e-5, abs=1e-6)


def slopes_of(family, rows):
    """All derivatives of Σ ℓ over evaluated rows at fixed q(w)."""
    state, sums = State(rows.design.point, family.inducing, rows.q), natural_sums(rows)
    return all_slopes(family.model, state, lambda: slope_sums(rows), (sums.gram, sums.linear))


def test_derivative_by_the_factor_without_the_rows(inputs):
    model, gp = every_part(inputs)
    Z = inducing_inputs(np.random.default_rng(1), inputs, 9)
    family, point = family_of(model, gp, CoordinateAscent, Z)
    design = family.at(point).design
    rng = np.random.default_rng(3)
    h, lam = rng.normal(size=2 * N), rng.uniform(0.1, 1.0, 2 * N)
    q = design.posterior(h, lam)
    mean, _, (half,) = design.moments(q)
    slope = h - lam * mean
    (part,), (own,) = design.parts, q.parts
    G = own.solve_half(half.copy())
    G[: part.n_sparse] -= part.Phi[: part.n_sparse]
    G = G * -lam + np.multiply.outer(q.mean, slope)
    direct = -(G[: part.n_sparse] @ part.Phi[: part.n_sparse].T)
    (found,) = family.model.by_factors(family.inducing, q, *design.natural(h, lam)).values()
    np.testing.assert_allclose(found, direct, atol=1e-10)


@pytest.mark.parametrize("rule", RULES)
def test_normal_observations_give_titsias_bound(inputs, rule):
    y = np.sin(inputs[:, 0]) + 0.3 * np.random.default_rng(2).normal(size=N)
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=1.3**2 * pm.gp.cov.ExpQuad(2, ls=0.9))
        pm.Normal("y", mu=gp.prior("f", X=inputs), sigma=0.3, observed=y)
    Z = inducing_inputs(np.random.default_rng(1), inputs, 12)
    family, point = family_of(model, gp, rule, Z)

    def k(A, B):
        return 1.69 * np.exp(-0.5 * ((A[:, None] - B) ** 2).sum(-1) / 0.81)

    cross = k(inputs, Z)
    Q = cross @ np.linalg.solve(k(Z, Z) + 1e-6 * np.eye(12), cross.T)
    expected = multivariate_normal(np.zeros(N), Q + 0.09 * np.eye(N)).logpdf(y)
    expected -= 0.5 * np.sum(1.69 - np.diag(Q)) / 0.09
    assert top(family.at(point)).evaluation.bound == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("rule", RULES)
def test_more_inducing_points_raise_the_bound_towards_the_dense_one(inputs, rule):
    y = (np.random.default_rng(2).random(N) < 0.5).astype(int)
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=1.3**2 * pm.gp.cov.ExpQuad(2, ls=0.9))
        pm.Bernoulli("y", logit_p=gp.prior("f", X=inputs), observed=y)
        method = "cavi" if rule is CoordinateAscent else "vgp"
        dense = pac.fit(method, hyper="fixed", progressbar=False).log_evidence
    bounds = []
    for size in (4, 12, 24, N):
        family, point = family_of(model, gp, rule, inputs[:size])
        bounds.append(top(family.at(point)).evaluation.bound)
    assert (np.diff(bounds) > 0.0).all()
    # What is left is the process's own jitter of 1e-6, once an observation.
    assert dense - 1e-4 < bounds[-1] < dense + 1e-7


def test_minibatches_are_unbiased(inputs):
    model, gp = every_part(inputs)
    Z = inducing_inputs(np.random.default_rng(1), inputs, 9)
    family, point = family_of(model, gp, CoordinateAscent, Z)
    rng = np.random.default_rng(5)
    q = family.at(point).design.posterior(rng.normal(size=2 * N), np.ones(2 * N))

    def parts(rows):
        design = family.model.design(point, family.inducing, rows)
        part = evaluated(family.sites, design, q)
        sums, theta = natural_sums(part), slopes_of(family, part)
        return [sums.value, sums.gram, sums.linear, *(theta[name] for name in sorted(theta))]

    # The minibatches of one pass, together: sums over all rows, exactly.
    order = rng.permutation(2 * N).reshape(8, -1)
    batches = [parts(np.sort(rows)) for rows in order]
    for total, *found in zip(parts(slice(None)), *batches, strict=True):
        np.testing.assert_allclose(sum(found), total, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [6, 60])
def test_parts_of_a_minibatch_add_up(inputs, size, monkeypatch):
    """For inducing points fewer than the rows, and more."""
    monkeypatch.setattr(sparse_rows, "SMALLEST_DIVIDED", 8)
    model, gp = every_part(inputs)
    Z = np.random.default_rng(1).normal(size=(size, 2))
    family, point = family_of(model, gp, CoordinateAscent, Z, move=True)
    rng = np.random.default_rng(5)
    q = family.at(point).design.posterior(rng.normal(size=2 * N), np.ones(2 * N))
    rows = np.sort(rng.permutation(2 * N)[:50])
    design = family.model.design(point, family.inducing, rows)
    whole = evaluated(family.sites, design, q)
    sums, mean, var = natural_sums(whole), whole.mean, whole.var
    by_theta = slopes_of(family, whole)
    with closing(RowsInMemory(family.model, family.sites)) as source:
        batch = source.start(point, family.inducing, rows, lambda: q)
        batch.wait()
        assert batch.is_divided
        assert batch.sums.count == 50
        pairs = [(getattr(batch.sums, name), getattr(sums, name)) for name in ("gram", "linear")]
        pairs += [(batch.sums.value, sums.value), (batch.sums.magnitude, sums.magnitude)]
        pairs += zip(batch.moments(), (mean, var), strict=True)
        for found, expected in pairs:
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
        natural = batch.sums.gram, batch.sums.linear
        state = State(point, family.inducing, q)
        found = all_slopes(family.model, state, batch.begin_slopes(), natural)
        expected = source.total(expected_sums, state, rows)
    assert expected.value == pytest.approx(sums.value, rel=1e-12)
    assert set(found) == set(by_theta)
    assert inducing_entry(*family.model.priors) in found
    for name, slope in by_theta.items():
        np.testing.assert_allclose(found[name], slope, rtol=1e-7, atol=1e-7)


def test_inducing_inputs_are_spread_and_reproducible():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(30_000, 2)), [[50.0, 0.0]]])
    first, second = (inducing_inputs(np.random.default_rng(7), X, 20) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first.shape == (20, 2)
    assert np.isfinite(first).all()
    few = np.repeat([[1.0], [2.0]], 5, axis=0)
    np.testing.assert_array_equal(inducing_inputs(rng, few, 4), [[1.0], [2.0]])


def test_divergence_of_weights():
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(5, 5)), rng.normal(size=5)
    q = WeightsPosterior((A @ A.T).ravel(), b, [5])
    S = np.linalg.inv(np.eye(5) + A @ A.T)
    mean = S @ b
    expected = 0.5 * (np.trace(S) + mean @ mean - 5 - np.linalg.slogdet(S)[1])
    assert q.divergence == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(q.mean, mean, rtol=1e-12)


def rings(method, **options):
    """Fit eight classes on a circle, from minibatches of two or three of each."""
    rng = np.random.default_rng(0)
    y = rng.integers(8, size=240)
    angle = 0.25 * np.pi * y
    X = np.column_stack([np.cos(angle), np.sin(angle)]) + 0.1 * rng.standard_normal((240, 2))
    with pm.Model():
        gp = pm.gp.Latent(cov_func=9.0 * pm.gp.cov.ExpQuad(2, ls=0.8))
        F = gp.prior("F", X=X, n_outputs=8)
        pac.RobustMax("y", F.T, epsilon=1e-3, observed=y)
        return pac.fit(method, gp=gp, inducing=25, random_seed=0, progressbar=False, **options)


@pytest.mark.filterwarnings("ignore:.*still rising")
def test_no_class_is_lost_on_the_way(monkeypatch):
    """Of a density that is bounded below: what minibatches lose they do not find again."""
    best = rings("vgp")
    assert best.converged
    options = {"batch_size": 20, "max_iter": 150}
    assert best.log_evidence - 4.0 < rings("svi", **options).log_evidence <= best.log_evidence
    # The negative control: all the weight from the beginning.
    monkeypatch.setattr(svi, "LEAST_WEIGHT", 1.0)
    assert rings("svi", **options).log_evidence < best.log_evidence - 20.0
