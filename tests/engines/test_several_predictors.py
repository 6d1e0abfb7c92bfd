"""A likelihood of two predictors in every engine, against quadrature over two observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy.optimize import minimize
from scipy.special import digamma, expit, polygamma

import pymc_augconj as pac
from pymc_augconj.block import LatentBlock
from pymc_augconj.engines.gibbs.held_sites import HeldSites
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.engines.variational.ascent import climb
from pymc_augconj.engines.variational.bound import (
    BoundFamily,
    CoordinateAscent,
    VariationalGaussian,
)
from pymc_augconj.errors import AugmentationError
from pymc_augconj.gaussian.sites import Coupling, SiteLayout
from pymc_augconj.latents.choice import SOLVERS
from pymc_augconj.latents.derivatives import log_evidence_and_gradient
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.likelihoods.heteroscedastic import Heteroscedastic, HeteroscedasticLog
from pymc_augconj.linalg.linear_map import DenseMap, RowSelection
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.plan import make_plan

# -- models written by hand -----------------------------------------------------------------------


@dataclass(frozen=True)
class Constant:
    """A function of no entry of the point."""

    value: Any
    names: tuple[str, ...] = ()

    def __call__(self, point):
        return self.value


def block(name: str, K: np.ndarray) -> LatentBlock:
    return LatentBlock(
        name=name, value_name=name, form="multivariate normal", shape=(len(K),), size=len(K),
        copies=1, whitened=False, kind="dense", scale=Constant(np.asfortranarray(K)),
    )  # fmt: skip


def write_model(likelihood, y, covariances, maps, offset, params) -> LatentGaussianModel:
    """Return the model of one observed variable; each of ``maps`` is onto all predictors' rows."""
    size = len(y)
    return LatentGaussianModel(
        blocks=tuple(block(name, K) for name, K in covariances.items()),
        sites=(
            Site(
                name="y", likelihood=likelihood, size=size, rows=slice(0, len(offset)),
                y=Constant(np.asarray(y)), params=Constant(params),
            ),
        ),
        hyperparameters=(), forward=(), n_rows=len(offset), offset=Constant(np.asarray(offset)),
        maps=tuple(Constant(A) for A in maps), log_prior=Constant(np.array(0.0)),
        log_prior_gradient=lambda point: {}, predictor_pullback=lambda point, u, w: {},
        predictor=lambda point, u: np.asarray(offset),
    )  # fmt: skip


def apart(likelihood, y, K_f, K_g, offset_g, **params) -> LatentGaussianModel:
    """Two processes, one for each predictor."""
    size = len(y)
    index = np.tile(np.arange(size), 2)
    own = np.repeat([1.0, 0.0], size)
    maps = [RowSelection(index, own, size), RowSelection(index, 1.0 - own, size)]
    offset = np.concatenate([np.zeros(size), np.full(size, offset_g)])
    parameters = {name: np.array(value) for name, value in params.items()}
    return write_model(likelihood, y, {"f": K_f, "g": K_g}, maps, offset, parameters)


def shared(likelihood, y, K, offset_g, **params) -> LatentGaussianModel:
    """One process that both predictors share, the second with another sign and scale."""
    size = len(y)
    A = np.vstack([np.eye(size), -0.5 * np.eye(size)])
    offset = np.concatenate([np.zeros(size), np.full(size, offset_g)])
    parameters = {name: np.array(value) for name, value in params.items()}
    maps = [DenseMap(np.asfortranarray(A))]
    return write_model(likelihood, y, {"u": K}, maps, offset, parameters)


# -- what is compared with -------------------------------------------------------------------------

Y = np.array([0.8, -1.6])
K_F = np.array([[2.0, 0.9], [0.9, 2.0]])
K_G = np.array([[2.5, -1.0], [-1.0, 2.5]])
OFFSET, R = 0.5, 3.0
NODES, WEIGHTS = hermegauss(60)
ZEROS = {"f": np.zeros(2), "g": np.zeros(2)}


def model_apart(likelihood=None):
    likelihood = Heteroscedastic() if likelihood is None else likelihood
    return apart(likelihood, Y, K_F, K_G, OFFSET, r=R)


def exact_apart():
    """Return log p(y), and first and second moments of (f₁, f₂, g₁, g₂).

    Given g, f has a normal posterior in closed form; over g a product of Gauss–Hermite rules.
    """
    chol = np.linalg.cholesky(K_G)
    total, first, second = 0.0, np.zeros(4), np.zeros(4)
    for z1, w1 in zip(NODES, WEIGHTS, strict=True):
        for z2, w2 in zip(NODES, WEIGHTS, strict=True):
            u = chol @ [z1, z2]
            C = K_F + np.diag(1.0 / (R * expit(OFFSET + u)))
            solved = np.linalg.solve(C, Y)
            log_density = -0.5 * (Y @ solved + np.linalg.slogdet(2.0 * np.pi * C)[1])
            mean = K_F @ solved
            var = np.diagonal(K_F - K_F @ np.linalg.solve(C, K_F))
            weight = w1 * w2 / (2.0 * np.pi) * np.exp(log_density)
            total += weight
            first += weight * np.concatenate([mean, u])
            second += weight * np.concatenate([var + mean**2, u**2])
    return np.log(total), first / total, second / total


EXACT = exact_apart()


# -- Gibbs ----------------------------------------------------------------------------------------


def draws_of(sampler, model, steps: int, seed: int = 1):
    rng = np.random.default_rng(seed)
    point, rows = {name: np.zeros(b.shape) for name, b in named(model)}, []
    for _ in range(steps):
        point, _ = sampler.step(rng, point, {})
        rows.append(np.concatenate([point[name].ravel() for name, _ in named(model)]))
    return np.array(rows)


def named(model):
    return [(block.value_name, block) for block in model.blocks]


def z_scores(draws, first, second):
    """Return the distances of moments from the exact ones in Monte Carlo standard errors."""
    found = []
    for k in range(draws.shape[1]):
        for values, expected in ((draws[:, k], first[k]), (draws[:, k] ** 2, second[k])):
            effective = float(az.ess(values[None]))
            assert effective > 300.0
            found.append((values.mean() - expected) / (values.std() / np.sqrt(effective)))
    return np.abs(found)


def start(model):
    return {name: np.zeros(block.shape) for name, block in named(model)}


def test_gibbs_by_groups_has_the_posterior():
    model = model_apart()
    sampler = GibbsSampler(model, make_plan(model), start(model))
    assert [part.blocks for part in sampler.parts] == [(0,), (1,)]
    assert z_scores(draws_of(sampler, model, 2500), *EXACT[1:]).max() < 5.0


def test_an_auxiliary_variable_that_is_not_refreshed_is_found_out():
    """The negative control, an order that was published: f and g at once given one (n, ω)."""

    model = model_apart()
    sampler, known = GibbsSampler(model, make_plan(model), start(model)), {}
    (data,) = sampler.chain.data

    class Stale(type(data.how)):
        def draw_auxiliary(self, rng, y, eta, params, group):
            if group == 0:
                known.update(
                    (g, super(Stale, self).draw_auxiliary(rng, y, eta, params, g)) for g in range(2)
                )
            return known[group]

    data.how = Stale()
    assert z_scores(draws_of(sampler, model, 3000), *EXACT[1:]).max() > 5.0


@pytest.mark.parametrize(
    "likelihood", [Heteroscedastic(), HeteroscedasticLog()], ids=lambda one: type(one).__name__
)
def test_held_sites_have_the_posterior(likelihood):
    model = shared(likelihood, Y, K_F, OFFSET, r=R)
    points = [start(model)]
    sampler = GibbsSampler(
        model, make_plan(model, ["y"]), points[0], sites=HeldSites(model, ["y"], [])
    )
    _, first, second = exact_shared(likelihood, K_F)
    assert z_scores(draws_of(sampler, model, 2500), first, second).max() < 5.0


def exact_shared(likelihood, K):
    """The same as :func:`exact_apart`, of one process that both predictors share."""
    chol = np.linalg.cholesky(K)
    nodes, weights = hermegauss(160)
    z = np.stack([axis.ravel() for axis in np.meshgrid(nodes, nodes, indexing="ij")])
    u = chol @ z
    eta = np.stack([u, OFFSET - 0.5 * u])
    log_density = likelihood.log_density(Y[:, None], eta, {"r": R}).sum(axis=0)
    weight = np.multiply.outer(weights, weights).ravel() / (2.0 * np.pi) * np.exp(log_density)
    total = weight.sum()
    return np.log(total), u @ weight / total, u**2 @ weight / total


def test_a_latent_of_two_groups_is_refused_but_for_engines_that_need_no_groups():
    model = shared(Heteroscedastic(), Y, K_F, OFFSET, r=R)
    for make in (
        lambda: GibbsSampler(model, make_plan(model), start(model)),
        lambda: BoundFamily(model, CoordinateAscent(), [{}]),
    ):
        with pytest.raises(AugmentationError, match=r"'y'.*one group.*sites='held'.*'vgp'"):
            make()


# -- variational ----------------------------------------------------------------------------------


def test_cavi_climbs_to_its_fixed_point_below_the_evidence():
    model = model_apart()
    bound = BoundFamily(model, CoordinateAscent(), [{}]).at({})
    for accelerate in (False, True):
        found = climb(bound, max_iter=300, tol=1e-10, accelerate=accelerate)
        assert found.converged, found.message
        bounds = np.array([iteration.bound for iteration in found.iterations])
        assert np.diff(bounds).min() > -1e-10
        assert bounds[-1] < EXACT[0]
    # Dense formulas, one predictor after the other.
    likelihood, params = Heteroscedastic(), {"r": np.array(R)}
    mean, var = np.array([[0.0, 0.0], [OFFSET, OFFSET]]), np.stack([np.diag(K_F), np.diag(K_G)])
    for _ in range(500):
        for p, (K, offset) in enumerate([(K_F, 0.0), (K_G, OFFSET)]):
            h, lam = (x[p] for x in likelihood.expected_sites(Y, mean, var, params))
            cov = np.linalg.inv(np.linalg.inv(K) + np.diag(lam))
            mean[p], var[p] = offset + cov @ (h - lam * offset), np.diagonal(cov)
    np.testing.assert_allclose(found.evaluation.mean, mean.ravel(), atol=1e-8)
    np.testing.assert_allclose(found.evaluation.var, var.ravel(), rtol=1e-8)


def expected_log_density(likelihood, mean, cov):
    """E log p of one observation, by a product of Gauss–Hermite rules."""
    chol = np.linalg.cholesky(cov)
    z = np.stack([axis.ravel() for axis in np.meshgrid(NODES, NODES, indexing="ij")])
    weights = np.multiply.outer(WEIGHTS, WEIGHTS).ravel() / (2.0 * np.pi)

    def of(y):
        eta = mean[:, None] + chol @ z
        return weights @ likelihood.log_density(y, eta, {"r": R})

    return of


@pytest.mark.parametrize(
    "likelihood", [Heteroscedastic(), HeteroscedasticLog()], ids=lambda one: type(one).__name__
)
def test_vgp_is_the_best_gaussian(likelihood):
    """Its bound is the maximum over all Gaussians of four latents, found without any site."""
    model = model_apart(likelihood)
    family = BoundFamily(model, VariationalGaussian(), [{}])
    found = climb(family.at({}), max_iter=500, tol=1e-9)
    assert found.converged, found.message
    K = np.block([[K_F, np.zeros((2, 2))], [np.zeros((2, 2)), K_G]])
    offset = np.array([0.0, 0.0, OFFSET, OFFSET])
    lower = np.tril_indices(4)

    def negative_bound(x):
        root = np.zeros((4, 4))
        root[lower] = x[4:]
        mean, cov = x[:4], root @ root.T
        total = 0.0
        for i in range(2):
            at = [i, 2 + i]
            total += expected_log_density(likelihood, mean[at], cov[np.ix_(at, at)])(Y[i])
        solved = np.linalg.solve(K, cov)
        shift = mean - offset
        divergence = np.trace(solved) - 4.0 - np.linalg.slogdet(solved)[1]
        return 0.5 * (divergence + shift @ np.linalg.solve(K, shift)) - total

    guess = np.concatenate([offset, np.linalg.cholesky(0.5 * K)[lower]])
    best = minimize(negative_bound, guess, method="BFGS", options={"gtol": 1e-6})
    assert found.evaluation.bound == pytest.approx(-best.fun, abs=1e-6)
    np.testing.assert_allclose(found.evaluation.mean, best.x[:4], atol=1e-3)
    if isinstance(likelihood, Heteroscedastic):
        cavi = climb(BoundFamily(model, CoordinateAscent(), [{}]).at({}), max_iter=300, tol=1e-8)
        assert cavi.evaluation.bound < found.evaluation.bound < EXACT[0]
        # What a factorised approximation leaves out is there: f and g of one observation.
        assert np.abs(found.evaluation.cov[4:]).max() > 0.01


def test_vgp_of_a_shared_process_is_below_the_evidence():
    likelihood = Heteroscedastic()
    model = shared(likelihood, Y, K_F, OFFSET, r=R)
    found = climb(BoundFamily(model, VariationalGaussian(), [{}]).at({}), max_iter=500, tol=1e-9)
    log_evidence, first, _ = exact_shared(likelihood, K_F)
    assert found.converged, found.message
    assert log_evidence - 0.1 < found.evaluation.bound < log_evidence
    np.testing.assert_allclose(found.evaluation.mean[:2], first, atol=0.1)


# -- conditioning on coupled sites ----------------------------------------------------------------


def coupled_sites(seed: int = 3, *, signed: bool = False):
    """Return h and a stacked Λ of two coupled predictors, and Λ as a matrix."""
    rng = np.random.default_rng(seed)
    layout = SiteLayout([(2, 2)], [True])
    root = rng.normal(size=(2, 2, 2))
    blocks = np.einsum("pkn,qkn->pqn", root, root)
    if signed:
        blocks[:, :, 0] -= 0.3 * np.eye(2)
    dense = np.zeros((4, 4))
    for i in range(2):
        dense[np.ix_([i, 2 + i], [i, 2 + i])] = blocks[:, :, i]
    return rng.normal(size=4), layout.stack_precisions([blocks]), dense, layout.coupling


@pytest.mark.parametrize("signed", [False, True])
# No latent here is known by its precision, has copies, or is a Markov process.
@pytest.mark.parametrize(
    "name", sorted(SOLVERS.keys() - {"copies", "precision", "independent", "filter"})
)
@pytest.mark.parametrize(
    "build", [model_apart, lambda: shared(HeteroscedasticLog(), Y, K_F, OFFSET)]
)
def test_posteriors_given_coupled_sites(build, name, signed):
    model = build()
    h, lam, Lam, coupling = coupled_sites(signed=signed)
    priors = LatentPriors(model, [{}], coupling)
    prior = priors.at({}).factorized()
    solver = SOLVERS[name](model.blocks, priors.groups)
    found = solver.posterior(prior, priors.groups.sites(h, lam, prior.offset))
    pairs = zip(model.maps, model.blocks, strict=True)
    Phi = np.hstack([A({}).dense() @ np.linalg.cholesky(b.scale({})) for A, b in pairs])
    M = np.eye(Phi.shape[1]) + Phi.T @ Lam @ Phi
    cov_v = np.linalg.inv(M)
    mean_v = cov_v @ Phi.T @ (h - Lam @ prior.offset)
    mean, cov = prior.offset + Phi @ mean_v, Phi @ cov_v @ Phi.T
    close = np.testing.assert_allclose
    close(found.mean, mean, atol=1e-10)
    close(found.var, np.diagonal(cov), atol=1e-10)
    close(found.cov[4:], cov[coupling.first, coupling.second], atol=1e-10)
    close(found.alpha, h - Lam @ mean, atol=1e-9)
    log_det = np.linalg.slogdet(M)[1]
    r = h - Lam @ prior.offset
    constant = h @ prior.offset - 0.5 * prior.offset @ Lam @ prior.offset
    close(found.log_normalizer, constant + 0.5 * (r @ Phi @ mean_v - log_det), atol=1e-10)
    close(found.divergence, 0.5 * (np.trace(cov_v) + mean_v @ mean_v - len(M) + log_det), atol=1e-9)
    R_matrix = Lam - Lam @ cov @ Lam
    X = np.random.default_rng(4).normal(size=(4, 3))
    close(found.response_product(X), R_matrix @ X, atol=1e-9)
    close(found.explained(X.T), X.T @ R_matrix @ X, atol=1e-9)
    close(found.explained_var(X.T), np.diagonal(X.T @ R_matrix @ X), atol=1e-9)
    draws = np.hstack(found.draw(np.random.default_rng(5), 40_000))
    root = np.linalg.cholesky(M)
    standard = (draws - mean_v) @ root
    close(standard.mean(axis=0), 0.0, atol=5.0 / np.sqrt(40_000))
    close(np.cov(standard.T), np.eye(len(M)), atol=5.0 * np.sqrt(2.0 / 40_000))

    close(found.latent_mean, mean_v, atol=1e-10)
    units = np.eye(found.size)
    matrix = np.transpose([found.apply(e) - found.latent_mean for e in units])
    close(matrix @ matrix.T, cov_v, atol=1e-10)
    close(np.array([found.pull(e) for e in np.eye(len(M))]), matrix, atol=1e-10)
    if not signed:
        v = np.random.default_rng(6).normal(size=len(M))
        close(found.apply(found.solve(np.random.default_rng(7), v)), v, atol=1e-10)
        value, _ = log_evidence_and_gradient(model, priors, {}, h, lam)
        close(value, found.log_normalizer, atol=1e-10)


def test_coupled_rows_are_not_merged():
    model = shared(HeteroscedasticLog(), np.array([0.5, 0.5, 1.0]), np.eye(3), OFFSET)
    maps = [[apart(HeteroscedasticLog(), np.zeros(3), np.eye(3), np.eye(3), 0.0).maps[0](None)]]
    none = RowGroups.find(maps, Coupling(6))
    # The rows of the other predictor are those of coefficient zero.
    assert none.size == 6
    maps = [[type(maps[0][0])(np.zeros(6, dtype=int), None, 1)]]
    assert RowGroups.find(maps, Coupling(6)).size == 1
    both = RowGroups.find(maps, Coupling(6, [np.array([[0, 1], [2, 3]])]))
    assert both.size == 5
    assert both.merged.rows[0].shape == (2, 2)
    assert model.n_rows == 6


# -- hyperparameters -------------------------------------------------------------------------------


# So far out that the scales must be larger than their priors have them.
FAR = 3.0 * Y


def learned_scales():
    """f and g with a scale each."""
    with pm.Model() as model:
        a, b = pm.Gamma("a", 4, 4), pm.Gamma("b", 4, 4)
        f = pm.MvNormal("f", np.zeros(2), a**2 * K_F)
        g = pm.MvNormal("g", np.zeros(2), 0.25 * b**2 * K_G)
        pm.Normal("y", f, tau=R * pm.math.sigmoid(OFFSET + g), observed=FAR)
    return model


def exact_log_scales():
    """First and second moments of log a and log b."""
    t, w = np.polynomial.legendre.leggauss(24)
    grid = [axis.ravel() for axis in np.meshgrid(*[-0.9 + 2.5 * t] * 2, indexing="ij")]
    prior = np.prod([w.ravel() for w in np.meshgrid(*[w] * 2)], axis=0)
    x = np.stack(grid)
    log_weight = np.log(prior) + np.sum(4.0 * x - 4.0 * np.exp(x), axis=0)
    nodes, weights = hermegauss(14)
    z = np.stack([axis.ravel() for axis in np.meshgrid(nodes, nodes, indexing="ij")])
    z_weight = np.multiply.outer(weights, weights).ravel() / (2.0 * np.pi)
    scale_f, scale_g = np.exp(2.0 * x[0]), 0.5 * np.exp(x[1])
    u = np.linalg.cholesky(K_G) @ z
    noise = 1.0 / (R * expit(OFFSET + scale_g[:, None, None] * u))
    # Of the two observations, by hand: the determinant and the inverse of a 2 × 2 matrix.
    C = scale_f[:, None, None, None] * K_F[:, :, None] + np.zeros_like(noise)[:, None]
    p, q = C[:, 0, 0] + noise[:, 0], C[:, 1, 1] + noise[:, 1]
    r = C[:, 0, 1]
    det = p * q - r**2
    quadratic = (q * FAR[0] ** 2 - 2.0 * r * FAR[0] * FAR[1] + p * FAR[1] ** 2) / det
    density = np.exp(-0.5 * quadratic) / np.sqrt(det) @ z_weight
    weight = np.exp(log_weight) * density
    weight /= weight.sum()
    return x @ weight, x**2 @ weight


def test_scales_of_one_part_are_updated_with_its_latents_integrated_out():
    with learned_scales():
        step = pac.AugmentedGibbs(sweeps=1)
    assert {name: [h.name for h in own] for name, own in step.plan.moves.items() if own} == {
        "collapsed f": ["a"],
        "collapsed g": ["b"],
    }
    step.setup_chain(np.random.default_rng(4), 100, 1200)
    point, rows = step.recognition.start, []
    for i in range(1300):
        if i == 100:
            step.stop_tuning()
        point, _ = step.step(point)
        rows.append([float(point[f"{name}_log__"]) for name in "ab"])
    first, second = exact_log_scales()
    draws = np.array(rows[100:])
    assert z_scores(draws, first, second).max() < 5.0
    # Negative control: the prior's moments, E log a = ψ(4) − log 4.
    prior = np.full(2, digamma(4.0) - np.log(4.0))
    assert z_scores(draws, prior, prior**2 + polygamma(1, 4.0)).max() > 5.0
