"""Likelihoods of classes in every engine, against quadrature over two observations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pymc as pm
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy.linalg import block_diag
from scipy.optimize import minimize
from scipy.special import expit

import pymc_augconj as pac
from pymc_augconj.engines.gibbs.choice import choose_held
from pymc_augconj.engines.gibbs.held_sites import HeldSites
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.engines.variational.ascent import climb
from pymc_augconj.engines.variational.bound import (
    BoundFamily,
    CoordinateAscent,
    VariationalGaussian,
)
from pymc_augconj.errors import AugmentationError
from pymc_augconj.likelihoods.logistic_softmax import LogisticSoftmax
from pymc_augconj.likelihoods.robust_max import RobustMax
from pymc_augconj.likelihoods.softmax import Categorical, Multinomial
from pymc_augconj.linalg.linear_map import DenseMap, RowSelection
from pymc_augconj.plan import make_plan
from tests.engines.test_several_predictors import (
    K_F,
    draws_of,
    start,
    write_model,
    z_scores,
)

OFFSET = np.array([0.5, -0.3])  # of the two predictors
LABELS = np.array([2.0, 0.0])
COUNTS = {f"entry_{k}": np.array(row, float) for k, row in enumerate([[3, 0], [1, 2], [0, 5]])}
COUNTS["n"] = sum(COUNTS.values())
PAIRS = {
    "entry_0": np.array([3.0, 1.0]),
    "entry_1": np.array([1.0, 4.0]),
    "n": np.array([4.0, 5.0]),
}

# Two predictors each: classes 0 and 2 of three.
CASES = {
    "categorical": (partial(Categorical, 2, reference=1), LABELS, {}),
    "multinomial": (partial(Multinomial, 2, reference=1), COUNTS["n"], COUNTS),
    "logistic-softmax": (partial(LogisticSoftmax, 2), np.array([1.0, 0.0]), {}),
}
over = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def classes(likelihood, y, params, *, split=False):
    """A process for each of the predictors: blocks of their own, or copies of one."""
    P, size = likelihood.n_predictors, len(y)
    offset = np.repeat(OFFSET, size)
    rows = np.arange(P * size)
    if not split:
        maps = [RowSelection(rows, None, P * size)]
        model = write_model(likelihood, y, {"F": K_F}, maps, offset, params)
        (whole,) = model.blocks
        return replace(model, blocks=(replace(whole, copies=P, shape=(P, size)),))
    own = [np.where(rows // size == p, 1.0, 0.0) for p in range(P)]
    maps = [RowSelection(rows % size, coef, size) for coef in own]
    return write_model(likelihood, y, {f"f{p}": K_F for p in range(P)}, maps, offset, params)


def exact(likelihood, y, params):
    """Return log p(y), and first and second moments of the latents, by quadrature."""
    P, size = likelihood.n_predictors, len(y)
    nodes, weights = hermegauss(16)
    z = np.stack([axis.ravel() for axis in np.meshgrid(*[nodes] * (P * size), indexing="ij")])
    weight = np.prod([w.ravel() for w in np.meshgrid(*[weights] * (P * size))], axis=0)
    u = block_diag(*[np.linalg.cholesky(K_F)] * P) @ z
    eta = u.reshape(P, size, -1) + OFFSET[:, None, None]
    columns = {name: value[:, None] for name, value in params.items()}
    density = likelihood.log_density(y[:, None], eta, columns).sum(axis=0)
    weight = weight / (2.0 * np.pi) ** (0.5 * P * size) * np.exp(density)
    total = weight.sum()
    return np.log(total), u @ weight / total, u**2 @ weight / total


@over
def test_gibbs_has_the_posterior(case):
    build, y, params = case
    likelihood = build()
    _, first, second = exact(likelihood, y, params)
    draws, spaces = [], []
    for split in (False, True):
        model = classes(likelihood, y, params, split=split)
        sampler = GibbsSampler(model, make_plan(model), start(model))
        assert len(sampler.parts) == len(likelihood.groups)
        draws.append(draws_of(sampler, model, 1500))
        assert z_scores(draws[-1], first, second).max() < 5.0
        spaces.append([type(part.solver.preferred) for part in sampler.parts])
    # Copies of one process are drawn as processes of their own would be.
    if spaces[0] == spaces[1]:
        np.testing.assert_allclose(draws[0][:100], draws[1][:100], atol=1e-10)


def test_gibbs_with_a_wrong_offset_is_found_out():
    class Wrong(Categorical):
        def _offset(self, eta, group):
            return np.zeros_like(eta[0])

    likelihood = Categorical(2, reference=1)
    model = classes(Wrong(2, reference=1), LABELS, {})
    sampler = GibbsSampler(model, make_plan(model), start(model))
    found = z_scores(draws_of(sampler, model, 1500), *exact(likelihood, LABELS, {})[1:])
    assert found.max() > 5.0


@over
def test_held_sites_have_the_posterior(case):
    build, y, params = case
    likelihood = build()
    model = classes(likelihood, y, params)
    sampler = GibbsSampler(
        model, make_plan(model, ["y"]), start(model), sites=HeldSites(model, ["y"], [])
    )
    draws = draws_of(sampler, model, 1500)
    assert z_scores(draws, *exact(likelihood, y, params)[1:]).max() < 5.0


@pytest.mark.parametrize("counts", [False, True])
def test_two_classes_are_the_logit_model_of_their_difference(counts):
    labels = np.array([1.0, 0.0])
    likelihood, y, params = Categorical(2), labels, {}
    if counts:
        likelihood, y, params = Multinomial(2), PAIRS["n"], PAIRS
    with pm.Model() as one:
        d = OFFSET[1] - OFFSET[0] + pm.MvNormal("d", np.zeros(2), 2.0 * K_F)
        if counts:
            pm.Binomial("y", n=y.astype(int), logit_p=d, observed=PAIRS["entry_1"].astype(int))
        else:
            pm.Bernoulli("y", logit_p=d, observed=labels.astype(int))
    fit = pac.fit("vgp", model=one, tol=1e-9, progressbar=False)
    model = classes(likelihood, y, params)
    found = climb(BoundFamily(model, VariationalGaussian(), [{}]).at({}), max_iter=500, tol=1e-9)
    assert found.converged, found.message
    assert found.evaluation.bound == pytest.approx(fit.log_evidence, abs=1e-8)
    evidence, first, second = exact(likelihood, y, params)
    assert found.evaluation.bound < evidence
    mean = found.evaluation.mean.reshape(2, 2)
    np.testing.assert_allclose(mean[1] - mean[0], fit._posterior.mean, atol=1e-6)
    sampler = GibbsSampler(model, make_plan(model), start(model))
    assert z_scores(draws_of(sampler, model, 1500), first, second).max() < 5.0


@over
def test_vgp_is_below_the_evidence(case):
    build, y, params = case
    likelihood = build()
    family = BoundFamily(classes(likelihood, y, params), VariationalGaussian(), [{}])
    found = climb(family.at({}), max_iter=500, tol=1e-8)
    assert found.converged, found.message
    evidence, first, _ = exact(likelihood, y, params)
    assert evidence - 0.05 < found.evaluation.bound < evidence
    np.testing.assert_allclose(found.evaluation.mean - np.repeat(OFFSET, 2), first, atol=0.05)


def test_vgp_of_many_classes_converges():
    rng, K, size = np.random.default_rng(0), 6, 5
    likelihood, y = Categorical(K), rng.integers(0, K, size).astype(float)
    maps = [RowSelection(np.arange(K * size), None, K * size)]
    K_X = 3.0 * np.exp(-0.5 * np.subtract.outer(np.arange(size), np.arange(size)) ** 2 / 4.0)
    model = write_model(
        likelihood, y, {"F": K_X + 1e-6 * np.eye(size)}, maps, np.zeros(K * size), {}
    )
    model = replace(model, blocks=(replace(model.blocks[0], copies=K, shape=(K, size)),))
    found = climb(BoundFamily(model, VariationalGaussian(), [{}]).at({}), max_iter=300, tol=1e-7)
    assert found.converged, found.message
    assert found.evaluation.bound > size * np.log(1.0 / K) - 2.0


def test_no_coordinate_ascent_without_a_bound():
    model = classes(Categorical(2, reference=1), LABELS, {})
    with pytest.raises(AugmentationError, match=r"'y'.*no bound.*'vgp'.*LogisticSoftmax"):
        model.require_bound()


def test_cavi_of_the_logistic_softmax_climbs_below_the_evidence():
    build, y, params = CASES["logistic-softmax"]
    likelihood = build()
    model = classes(likelihood, y, params)
    bound = BoundFamily(model, CoordinateAscent(), [{}]).at({})
    found = climb(bound, max_iter=300, tol=1e-9, accelerate=False)
    assert found.converged, found.message
    bounds = np.array([iteration.bound for iteration in found.iterations])
    assert np.diff(bounds).min() > -1e-10
    vgp = climb(BoundFamily(model, VariationalGaussian(), [{}]).at({}), max_iter=300, tol=1e-8)
    assert bounds[-1] < vgp.evaluation.bound < exact(likelihood, y, params)[0]
    # Dense formulas.
    mean, var = np.repeat(OFFSET, 2).reshape(2, 2), np.full((2, 2), K_F[0, 0])
    for _ in range(300):
        h, lam = likelihood.expected_sites(y, mean, var, params)
        for p in range(2):
            cov = np.linalg.inv(np.linalg.inv(K_F) + np.diag(lam[p]))
            mean[p] = OFFSET[p] + cov @ (h[p] - lam[p] * OFFSET[p])
            var[p] = np.diagonal(cov)
    np.testing.assert_allclose(found.evaluation.mean, mean.ravel(), atol=1e-7)
    np.testing.assert_allclose(found.evaluation.var, var.ravel(), rtol=1e-7)


@pytest.mark.parametrize("wrong", [False, True])
def test_conditionals_of_a_and_n_leave_their_joint_draw_as_it_is(wrong):
    """a given n is Gamma(1 + Σ n_j, rate K), and n given a is Poisson: the published pair."""
    rng, size, K = np.random.default_rng(2), 100_000, 3
    eta = np.array([0.6, -1.1, 0.2])
    likelihood, etas = LogisticSoftmax(K), np.repeat(eta[:, None], size, axis=1)
    a, n, _ = likelihood.draw_auxiliary(rng, np.ones(size), etas, {}, 0)
    moved = rng.standard_gamma(1.0 + n.sum(axis=0)) / (K + 0.5 * wrong)
    moved_n = rng.poisson(moved * expit(-etas))
    rate = expit(eta).sum()
    thinned = expit(-eta) / rate
    errors = [
        (moved.mean() - 1.0 / rate) / moved.std(),
        *((moved_n.mean(axis=1) - thinned) / moved_n.std(axis=1)),
        ((moved * moved_n[0]).mean() - 2.0 * thinned[0] / rate) / (moved * moved_n[0]).std(),
    ]
    assert (np.abs(errors).max() * np.sqrt(size) > 5.0) == wrong
    assert wrong or np.abs(a.mean() - 1.0 / rate) < 5.0 * a.std() / np.sqrt(size)


def exact_robust_max(y, epsilon):
    """The same as :func:`exact` for two classes: f₀ − f₁ alone matters, and is free of f₀ + f₁."""
    cov, mean = 2.0 * K_F, OFFSET[0] - OFFSET[1]
    # Cells that end where the density has its steps.
    step = 0.02
    edges = np.arange(-800, 800) * step + 0.5 * step
    d = np.stack([axis.ravel() for axis in np.meshgrid(edges, edges, indexing="ij")])
    e = d - mean
    density = np.exp(-0.5 * np.sum(e * np.linalg.solve(cov, e), axis=0))
    density *= step**2 / (2.0 * np.pi * np.sqrt(np.linalg.det(cov)))
    right = (d > 0.0) == (y == 0.0)[:, None]
    weight = density * np.prod(np.where(right, 1.0 - epsilon, epsilon), axis=0)
    total = weight.sum()
    first, second = e @ weight / total, e**2 @ weight / total
    own = np.diagonal(cov)
    return np.log(total), 0.5 * np.append(first, -first), 0.25 * np.tile(second + own, 2)


def test_robust_max_has_the_posterior_and_a_bound_below_the_evidence():
    y, likelihood, params = np.array([1.0, 0.0]), RobustMax(2), {"epsilon": np.array(0.1)}
    model = classes(likelihood, y, params)
    evidence, first, second = exact_robust_max(y, 0.1)
    found = climb(BoundFamily(model, VariationalGaussian(), [{}]).at({}), max_iter=500, tol=1e-7)
    assert found.converged, found.message
    assert found.evaluation.bound < evidence
    # It factorises over the predictors, and is the best Gaussian that does.
    assert found.evaluation.cov.size == 4
    lower = np.tril_indices(2)

    def negative_bound(x):
        value, var = 0.0, np.empty((2, 2))
        mean = x[:4].reshape(2, 2)
        for p, own in enumerate(np.split(x[4:], 2)):
            root = np.zeros((2, 2))
            root[lower] = own
            cov, shift = root @ root.T, mean[p] - OFFSET[p]
            solved = np.linalg.solve(K_F, cov)
            value += 0.5 * (np.trace(solved) - 2.0 - np.linalg.slogdet(solved)[1])
            value += 0.5 * shift @ np.linalg.solve(K_F, shift)
            var[p] = np.diagonal(cov)
        cov = np.eye(2)[:, :, None] * var
        return value - likelihood.expected_log_density(y, mean, cov, params)[0].sum()

    guess = np.concatenate([np.repeat(OFFSET, 2), np.tile(np.linalg.cholesky(K_F)[lower], 2)])
    best = minimize(negative_bound, guess, method="BFGS", options={"gtol": 1e-6})
    assert found.evaluation.bound == pytest.approx(-best.fun, abs=1e-6)
    np.testing.assert_allclose(found.evaluation.mean, best.x[:4], atol=1e-3)
    sampler = GibbsSampler(
        model, make_plan(model, ["y"]), start(model), sites=HeldSites(model, ["y"], [])
    )
    draws = draws_of(sampler, model, 1500)
    assert z_scores(draws, first, second).max() < 5.0
    assert z_scores(draws, *exact_robust_max(y, 0.3)[1:]).max() > 5.0


def test_robust_max_of_tied_predictors_is_refused_by_the_factorised_fit():
    model = with_intercepts(common=True, likelihood=RobustMax(3), epsilon=np.array(0.1))
    with pytest.raises(AugmentationError, match=r"'y'.*factorises.*pac.sample"):
        BoundFamily(model, VariationalGaussian(), [{}])


def with_intercepts(common: bool, likelihood=None, **params):
    """Three classes: processes, and intercepts of their own or one of all."""
    likelihood, size = likelihood or Categorical(3), 2
    rows = np.arange(3 * size)
    index = np.zeros_like(rows) if common else rows // size
    count = 1 if common else 3
    maps = [RowSelection(rows, None, 3 * size), DenseMap(np.eye(count)[index])]
    model = write_model(
        likelihood, LABELS, {"F": K_F, "b": np.ones(count)}, maps, np.zeros(3 * size), params
    )
    F, b = model.blocks
    F = replace(F, copies=3, shape=(3, size))
    return replace(model, blocks=(F, replace(b, kind="diagonal")))


def test_intercepts_of_each_class_are_drawn_with_their_class():
    model = with_intercepts(common=False)
    sampler = GibbsSampler(model, make_plan(model), start(model))
    assert [[own.tolist() for own in part.latents] for part in sampler.parts] == [
        [[0, 1], [0]],
        [[2, 3], [1]],
        [[4, 5], [2]],
    ]


@pytest.mark.parametrize("common", [False, True])
def test_sites_of_classes_are_held_unless_asked_for(common):
    model = with_intercepts(common)
    assert choose_held(model, {}) == ("y",)
    assert choose_held(model, {}, "augmented") == ()


def test_a_predictor_without_latents_is_left_out():
    """A reference class that is written as a constant: the same as none."""
    likelihood = Categorical(3)
    rows = np.arange(6)
    maps = [RowSelection(rows % 4, np.where(rows < 4, 1.0, 0.0), 4)]
    offset = np.append(np.repeat(OFFSET, 2), [0.0, 0.0])
    model = write_model(likelihood, LABELS, {"F": K_F}, maps, offset, {})
    model = replace(model, blocks=(replace(model.blocks[0], copies=2, shape=(2, 2)),))
    sampler = GibbsSampler(model, make_plan(model), start(model))
    found = draws_of(sampler, model, 100)
    other = classes(Categorical(2, reference=2), LABELS, {})
    expected = draws_of(GibbsSampler(other, make_plan(other), start(other)), other, 100)
    np.testing.assert_allclose(found, expected, atol=1e-10)
    _, info = sampler.step(np.random.default_rng(0), start(model), {})
    assert np.isfinite(info.log_density)
