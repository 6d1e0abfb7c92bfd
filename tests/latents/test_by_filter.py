"""Markov processes in linear time give what dense matrices give."""

from __future__ import annotations

from dataclasses import replace

import mpmath
import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.block import LatentBlock
from pymc_augconj.engines.gibbs import elliptical
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.by_filter import FilterPosterior, FilterSolver
from pymc_augconj.latents.by_observations import ObservationSolver
from pymc_augconj.latents.dense import DiagonalPrior
from pymc_augconj.latents.joint import LatentPrior, block_prior
from pymc_augconj.latents.markov import MarkovPrior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.dense import EPS
from pymc_augconj.linalg.linear_map import DenseMap, RowSelection
from pymc_augconj.linalg.state_space import COSINE, PERIODIC, MarkovFactor, MarkovInputs
from pymc_augconj.recognition.processes.other_graphs import in_linear_time

JITTER = 1e-6


def entry(inputs, array, i, j, lib=np):
    """An entry of K without noise, from closed forms; ``lib`` has the functions and numbers."""
    number, total = getattr(lib, "mpf", float), 0.0
    distance = abs(number(inputs.x[i]) - number(inputs.x[j]))
    loadings = inputs.loadings or [(0, -1)] * len(inputs.orders)
    parts = zip(inputs.orders, loadings, inputs.parameters(array).T, strict=True)
    for order, (wave, column), (variance, rate, *turning) in parts:
        r = rate * distance
        value = variance * (1, 1 + r, 1 + r + r * r / 3)[order - 1] * lib.exp(-r)
        if wave:
            cosine = lib.cos(turning[0] * distance)
            value *= cosine if wave == COSINE else lib.exp(turning[1] * (cosine - 1))
        if column >= 0:
            value *= number(inputs.table[i, 1 + column]) * number(inputs.table[j, 1 + column])
        total += value
    return total


def covariance(inputs, array):
    each = range(inputs.size)
    K = np.array([[entry(inputs, array, i, j) for j in each] for i in each])
    return K + array[-1] * np.eye(inputs.size)


def a_process(x, orders, copies=1, name="f", loadings=()):
    columns = [x / 5.0 - 1.0, np.exp(-x / 5.0)]
    table = np.column_stack([x, *columns]) if loadings else x
    return LatentBlock(
        name=name, value_name=f"{name}_rotated_", form="", shape=(copies * x.size,), size=x.size,
        copies=copies, whitened=True, kind="markov", scale=None,
        inputs=MarkovInputs(table, orders, loadings),
    )  # fmt: skip


def an_array(rng, orders, loadings, noise=JITTER):
    """Variances and rates; frequencies and a, zero where there are none; and noise."""
    turning = rng.uniform(0.5, 2.0, (len(orders), 2))
    for pair, (wave, _) in zip(turning, loadings, strict=False):
        pair[wave:] = 0.0
    pairs = [rng.uniform(0.5, 2.0, 2 * len(orders)), turning.ravel() if loadings else []]
    return np.append(np.concatenate(pairs), noise)


def some_inputs(rng, n, how):
    x = rng.uniform(0.0, 10.0, n)
    x[3] = x[7]
    return {"sorted": np.sort(x), "decreasing": -np.sort(-x), "unsorted": x}[how]


DESIGNS = [
    ([1], "sorted", ()),
    ([2], "unsorted", ()),
    ([3], "decreasing", ()),
    ([2, 3, 1], "unsorted", ()),
    ([1, 3], "decreasing", ((PERIODIC, -1), (COSINE, 1))),
    ([2, 1, 2], "unsorted", ((PERIODIC, 0), (0, 1), (0, -1))),
]


@pytest.mark.parametrize(("orders", "how", "loadings"), DESIGNS)
def test_the_prior_is_that_of_its_matrix(orders, how, loadings):
    rng = np.random.default_rng(1)
    x = some_inputs(rng, 12, how)
    array = an_array(rng, orders, loadings)
    prior = block_prior(a_process(x, orders, loadings=loadings), array)
    K, S = covariance(prior.inputs, array), prior.scale(np.eye(12)).T
    np.testing.assert_allclose(S @ S.T, K, rtol=0, atol=1e-12 * np.abs(K).max())
    if how != "unsorted":
        np.testing.assert_allclose(S, np.linalg.cholesky(K), rtol=0, atol=1e-9)
    X = rng.normal(size=(3, 12))
    np.testing.assert_allclose(prior.scale_transpose(X), X @ S, atol=1e-12)
    np.testing.assert_allclose(prior.unscale(prior.scale(X)), X, atol=1e-9)
    np.testing.assert_allclose(prior.unscale_transpose(prior.scale_transpose(X)), X, atol=1e-9)
    np.testing.assert_allclose(prior.var(), np.diagonal(K))
    np.testing.assert_allclose(2.0 * prior.log_det_scale(), np.linalg.slogdet(K)[1], rtol=1e-8)
    A, G = DenseMap(np.asfortranarray(rng.normal(size=(5, 12)))), rng.normal(size=(5, 5))

    class Gradient:
        def congruence(self, A):
            return A.dense().T @ (G + G.T) @ A.dense()

    moved = [block_prior(prior.block, array * (1.0 + d)) for d in 1e-6 * np.eye(array.size)]
    found = prior.pull_cov(A, Gradient()) * array * 1e-6
    expected = [np.vdot(G + G.T, m.predictor_cov(A) - prior.predictor_cov(A)) for m in moved]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-9)
    weights = rng.normal(size=(12, 5))
    found = prior.pull_design(A, weights) * array * 1e-6
    change = [m.whitened_design(A) - prior.whitened_design(A) for m in moved]
    np.testing.assert_allclose(found, [np.vdot(weights, c.T) for c in change], rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("orders", [[1], [2], [3]])
def test_a_process_without_variance_has_no_factor(orders):
    prior = block_prior(a_process(np.arange(5.0), orders), np.array([0.0, 0.8, 0.0]))
    with pytest.raises(NotPositiveDefiniteError, match="no Cholesky factor"):
        prior.factorized()


def cases():
    """Blocks and maps: an intercept and repeated values; two processes; no border."""
    rng = np.random.default_rng(2)
    n = 14
    x = some_inputs(rng, n, "unsorted")
    process = block_prior(a_process(x, [2]), np.array([1.3, 0.8, JITTER]))
    other = block_prior(a_process(x[:5], [3], 2, "g"), np.array([0.7, 0.4, 1e-4]))
    beta = LatentBlock(
        name="b", value_name="b", form="", shape=(2,), size=2, copies=1, whitened=False,
        kind="diagonal", scale=None,
    )  # fmt: skip
    beta = DiagonalPrior(beta, np.array([3.0, 0.4]))
    each = RowSelection(np.arange(n), None, n)
    index, coef = rng.integers(0, n - 2, 20), rng.normal(size=20)
    design = DenseMap(np.asfortranarray(rng.normal(size=(20, 2))))
    loadings = ((PERIODIC, -1), (COSINE, 0), (0, 1))
    waves = a_process(x, [2, 1, 1], loadings=loadings)
    waves = block_prior(waves, an_array(rng, [2, 1, 1], loadings))
    yield "waves", (beta, waves), (DenseMap(np.eye(n, 2, order="F")), each)
    yield "alone", (process,), (each,)
    yield "border", (beta, process), (design, RowSelection(index, coef, n))
    used = np.arange(20) < 12
    first = RowSelection(index, 1.0 * used, n)
    second = RowSelection(rng.integers(0, 10, 20), np.where(used, 0.0, coef), 10)
    yield "two", (process, beta, other), (first, design, second)


CASES = {name: rest for name, *rest in cases()}


def both(name, signed=False):
    blocks, maps = CASES[name]
    rng = np.random.default_rng(3)
    n_rows = maps[0].apply(np.zeros(maps[0].size)).size
    prior = LatentPrior(rng.normal(size=n_rows), tuple(blocks), tuple(maps), tuple(maps))
    groups = RowGroups.apart(n_rows, Coupling(n_rows), tuple(maps))
    lam = rng.gamma(1.0, size=n_rows)
    lam[2] = 0.0
    if signed:
        lam[5] = -0.3
    sites = groups.sites(rng.normal(size=n_rows), lam, prior.offset)
    kinds = [b.block for b in blocks]
    found = FilterSolver(kinds, groups).posterior(prior, sites)
    return found, ObservationSolver(kinds, groups).posterior(prior, sites)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("signed", [False, True])
def test_posterior_is_that_by_observations(name, signed):
    ours, theirs = both(name, signed)
    assert isinstance(ours, FilterPosterior)
    rng = np.random.default_rng(4)
    close = {"rtol": 1e-9, "atol": 1e-9}
    for what in ("log_normalizer", "log_det", "mean", "var", "alpha", "centred"):
        np.testing.assert_allclose(
            getattr(ours, what), getattr(theirs, what), **close, err_msg=what
        )
    whitened = ours.whitened(ours.latent_mean)
    np.testing.assert_allclose(whitened, theirs.whitened(theirs.latent_mean), **close)
    np.testing.assert_allclose(ours.divergence, theirs.divergence, **close)
    X = rng.normal(size=(ours.alpha.size, 3))
    np.testing.assert_allclose(ours.response_product(X), theirs.response_product(X), **close)
    for i, A in enumerate(ours.prior.maps):
        np.testing.assert_allclose(ours.innovation_var(i), theirs.innovation_var(i), **close)
        np.testing.assert_allclose(
            ours.innovation_means()[i], theirs.innovation_means()[i], **close
        )
        array = ours.prior.blocks[i].array  # by logarithms, as steps of differences are relative
        found, expected = array * ours.pull_cov(i), array * theirs.pull_cov(i)
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)
        if isinstance(A, RowSelection):
            found, expected = ours.pull_selection(i), theirs.pull_selection(i)
            used = np.ones(found.size) if A.coef is None else A.coef != 0.0
            np.testing.assert_allclose(found * used, expected * used, **close)
    if signed:
        return
    D, m = ours.prior.blocks, ours.size
    root = ours.root(np.eye(m))
    v = ours.whitened(root)
    np.testing.assert_allclose(ours.coordinates(v), root, atol=1e-9)
    for u, expected in zip(ours.innovations(root), ours.prior.innovations(v), strict=True):
        np.testing.assert_allclose(u, expected, atol=1e-9)
    parts = [rng.normal(size=b.block.total_size) for b in D]
    slope = ours.innovations_transpose(parts)
    of_parts = sum(u @ part for u, part in zip(ours.innovations(root), parts, strict=True))
    np.testing.assert_allclose(root @ slope, of_parts, atol=1e-9)
    cov = np.linalg.inv(np.eye(v.shape[1]) + _gram(ours))
    np.testing.assert_allclose(v.T @ v, cov, atol=1e-9)
    slope = rng.normal(size=root.shape[1])
    np.testing.assert_allclose(ours.pull(slope), root @ slope, atol=1e-9)
    x = rng.normal(size=root.shape[1])
    np.testing.assert_allclose(ours.apply(ours.solve(rng, x)), x, atol=1e-8)
    assert len(D) == len(ours.prior.maps)


def _gram(posterior):
    Phi = posterior.prior.whitened_design
    return Phi.T @ (posterior.sites.lam[:, None] * Phi)


def test_negative_precisions_that_outweigh_the_prior_are_refused():
    blocks, maps = CASES["alone"]
    n = maps[0].size
    groups = RowGroups.apart(n, Coupling(n), maps)
    prior = LatentPrior(np.zeros(n), blocks, maps, maps)
    sites = groups.sites(np.zeros(n), np.full(n, -5.0), prior.offset)
    with pytest.raises(NotPositiveDefiniteError):
        FilterSolver([blocks[0].block], groups).posterior(prior, sites)


WAVES = ((PERIODIC, -1), (0, 0), (COSINE, 1))


@pytest.mark.parametrize(
    ("orders", "loadings"), [([1], ()), ([2], ()), ([3], ()), ([2, 1, 3], WAVES)]
)
@pytest.mark.parametrize("shortest", [1e-9, 1e-4, 1e-1])
def test_the_error_of_log_determinants_is_no_smaller_than_stated(orders, loadings, shortest):
    # The gaps are from one to ten times the shortest.
    rng, n = np.random.default_rng(orders[0]), 25
    x = np.cumsum(shortest * rng.uniform(1.0, 10.0, n))
    array = an_array(rng, orders, loadings)
    array[:2] = 40.0, 1.0
    inputs = a_process(x, orders, loadings=loadings).inputs
    factor = MarkovFactor(inputs, array)
    with mpmath.workdps(50):
        K = mpmath.matrix(n)
        for i in range(n):
            for j in range(i + 1):
                K[i, j] = K[j, i] = entry(inputs, array, i, j, mpmath)
            K[i, i] += mpmath.mpf(JITTER)
        L = mpmath.cholesky(K)
        exact = float(2 * sum(mpmath.log(L[i, i]) for i in range(n)))
    assert abs(np.log(factor.pivots).sum() - exact) <= factor.error + 1e-13 * abs(exact)
    assert factor.error < 1e-4


def test_lengthscales_far_below_a_period_are_refused():
    inputs = a_process(np.arange(5.0), [1], loadings=((PERIODIC, -1),)).inputs
    for lengthscale in (0.02, 0.022):
        array = np.array([1.0, 0.0, 1.0, 0.25 / lengthscale**2, 0.1])
        if lengthscale > 0.021:
            found = MarkovFactor(inputs, array).product(np.eye(5)).T
            np.testing.assert_allclose(found @ found.T, covariance(inputs, array), atol=1e-13)
            continue
        with pytest.raises(NotPositiveDefiniteError, match=r"ls of at least 0\.021, found 0\.02"):
            MarkovFactor(inputs, array)


def test_a_process_beside_dense_blocks_is_no_chain():
    blocks, maps = CASES["alone"]
    n = maps[0].size
    groups = RowGroups.apart(n, Coupling(n), (*maps, *maps))
    assert FilterSolver.multiplications([blocks[0].block], groups) < np.inf
    twice = [blocks[0].block, blocks[0].block]
    assert FilterSolver.multiplications(twice, groups) == np.inf
    dense = replace(blocks[0].block, kind="dense", inputs=None)
    assert FilterSolver.multiplications([blocks[0].block, dense], groups) == np.inf
    assert isinstance(blocks[0], MarkovPrior)


def counts_with_their_latents():
    """A step for counts about a process, and v and y that their joint distribution gave."""
    n, rng = 20_000, np.random.default_rng(7)
    x, v = np.linspace(0.0, 1_000.0, n), rng.standard_normal(n)
    with pm.Model() as model:
        process = pm.gp.Latent(cov_func=1.5**2 * pm.gp.cov.Matern32(1, 1.0))
        rate = pm.math.exp(process.prior("f", X=x[:, None]) - 1.0)
        y = rng.poisson(np.exp(_values_of(x, v) - 1.0))
        pm.Poisson("y", rate, observed=y)
    with in_linear_time(model):
        step = pac.AugmentedGibbs()
    step.setup_chain(np.random.default_rng(1), 0, 12)
    step.stop_tuning()
    return step, x, v, y


def _values_of(x, v):
    return MarkovFactor(MarkovInputs(x, [2]), np.array([2.25, 3.0**0.5, JITTER])).product(v)


@pytest.mark.parametrize(("factor", "kept"), [(1.0, True), (1.1, False)])
def test_trajectories_keep_latents_that_the_data_were_drawn_from(factor, kept, monkeypatch):
    """Σ vᵢ² keeps its n degrees of freedom; not where ν is not that of the latents."""
    solve = FilterPosterior.solve
    monkeypatch.setattr(FilterPosterior, "solve", lambda *given: factor * solve(*given))
    step, _, v, _ = counts_with_their_latents()
    point, excess = {"f_rotated_": v}, []
    for _ in range(10):
        step._sites.trials, step._sites.angle = 5.0, 0.3  # as where sites fit badly
        point, _ = step.step(point)
        excess.append(float(point["f_rotated_"] @ point["f_rotated_"]) - v.size)
    assert step._sampler.follows
    z = np.mean(excess[5:]) / np.sqrt(2.0 * v.size)
    assert (abs(z) < 5.0) == kept


@pytest.mark.parametrize("turned", [0, 1])
def test_stretches_keep_latents_that_the_data_were_drawn_from(turned, monkeypatch):
    """Σ y − μ keeps its variance under sites that are wrong; not with r of the stretch beside."""
    found = FilterPosterior.stretches

    def beside(self, rng):
        return [(*of_nu, np.roll(rows, turned * 2_500)) for *of_nu, rows in found(self, rng)]

    monkeypatch.setattr(FilterPosterior, "stretches", beside)
    step, x, v, y = counts_with_their_latents()
    z, sites = [], step._sites
    step.step({"f_rotated_": v})
    sites.lam = 0.9 * sites.lam
    point = {"f_rotated_": v}
    for _ in range(10):
        point, (stats,) = step.step(point)
        mean = np.exp(_values_of(x, point["f_rotated_"]) - 1.0)
        z.append((y - mean).sum() / np.sqrt(mean.sum()))
        assert 1.0 < stats["elliptical_trials"] < 6.0
    tilted, eta = step._sampler.parts[0].tilted, step._sampler.chain.predictor(point)
    assert np.isclose(tilted.value, tilted.residual(eta), rtol=1e-9) == (turned == 0)
    assert (abs(np.mean(z[5:])) < 5.0) == (turned == 0)


def test_stretches_that_find_no_point_stay(monkeypatch):
    monkeypatch.setattr(elliptical, "_LARGEST_TRIALS", 1)
    step, _, v, _ = counts_with_their_latents()
    step.step({"f_rotated_": v})
    step._sites.lam = 0.5 * step._sites.lam
    point, (stats,) = step.step({"f_rotated_": v})
    tilted, eta = step._sampler.parts[0].tilted, step._sampler.chain.predictor(point)
    assert stats["elliptical_trials"] == 1.0
    np.testing.assert_allclose(tilted.value, tilted.residual(eta), rtol=1e-9)


@pytest.mark.parametrize(("orders", "copies"), [([1], 1), ([2], 2), ([3], 1), ([2, 3, 1], 1)])
@pytest.mark.parametrize("level", [1e-3, 1.0, 1e3])
def test_stretches_move_rows_of_their_own(orders, copies, level):
    rng, n = np.random.default_rng(5), 8_000
    x = rng.uniform(0.0, 500.0, n)
    block = a_process(x[(x < 200.0) | (x > 230.0)], orders, copies)
    rates = np.linspace(1.0, 1.7, len(orders))
    array = np.append(np.column_stack([np.ones_like(rates), rates]).ravel(), JITTER)
    beta, size = CASES["border"][0][0], block.total_size
    maps = (
        DenseMap(np.asfortranarray(rng.normal(size=(n, 2)))),
        RowSelection(rng.integers(0, size, n), rng.normal(size=n), size),
    )
    prior = LatentPrior(np.zeros(n), (beta, block_prior(block, array)), maps, maps)
    groups = RowGroups.apart(n, Coupling(n), maps)
    sites = groups.sites(rng.normal(size=n), level * rng.gamma(1.0, size=n), prior.offset)
    posterior = FilterSolver([beta.block, block], groups).posterior(prior, sites)
    sets, nu = posterior.stretches(rng), rng.standard_normal(posterior.size)
    moved = np.sort(np.concatenate([moved for moved, *_ in sets]))
    np.testing.assert_array_equal(moved, np.arange(nu.size))
    for moved, of_moved, of_rows in sets:
        for j in np.unique(of_moved):
            at = np.zeros(nu.size)
            at[moved[of_moved == j]] = nu[moved[of_moved == j]]
            eta = prior.predictor(posterior.innovations(posterior.root(at)))
            assert np.abs(eta[of_rows == j]).max() > 1e-4
            assert np.abs(eta[of_rows != j]).max(initial=0.0) < 1e-11


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_products_have_their_digits_in_any_units(unit):
    rng, array = np.random.default_rng(8), np.array([2.0, 0.7, 1.0, 0.3, 1e-4])
    array[[0, 2, 4]] *= unit**2
    prior = block_prior(a_process(some_inputs(rng, 12, "unsorted"), [2, 1]), array)
    X, K = rng.normal(size=(3, 12)), covariance(prior.inputs, array)
    np.testing.assert_allclose(prior.apply_cov(X), X @ K, rtol=0, atol=1e-14 * np.abs(K).sum())


@pytest.mark.parametrize("away", [1.0, 1e4, 1e7])
def test_the_error_of_an_evidence_is_no_smaller_than_stated(away):
    """Data up to ten million standard deviations from the prior mean, in tiny units."""
    rng, n, array = np.random.default_rng(9), 10, np.array([2e-18, 0.7, 2e-22])
    prior = block_prior(a_process(some_inputs(rng, n, "unsorted"), [2]), array)
    each = RowSelection(np.arange(n), None, n)
    joint = LatentPrior(np.zeros(n), (prior,), (each,), (each,))
    groups = RowGroups.apart(n, Coupling(n), (each,))
    lam = 10.0 ** rng.uniform(16.0, 20.0, n)
    h = lam * away * 1e-9 * rng.normal(size=n)
    found = FilterPosterior(joint, groups, groups.sites(h, lam, joint.offset))
    with mpmath.workdps(50):
        C = mpmath.diag([1 / mpmath.mpf(x) for x in lam])
        for i in range(n):
            C[i, i] += mpmath.mpf(array[-1])
            for j in range(n):
                C[i, j] += entry(prior.inputs, array, i, j, mpmath)
        log_det = mpmath.log(mpmath.det(C * mpmath.diag(lam.tolist())))
        z = mpmath.matrix([mpmath.mpf(a) / mpmath.mpf(b) for a, b in zip(h, lam, strict=True)])
        square = sum(mpmath.mpf(a) * b for a, b in zip(h, z, strict=True))
        square -= (z.T * mpmath.lu_solve(C, z))[0]
        error = abs(float(mpmath.mpf(found.log_normalizer) - (square - log_det) / 2))
    assert error <= found.error + 1e-15 * abs(found.log_normalizer)
    # Some units of rounding at the largest λK, of every term.
    assert found.error < 10.0 * EPS * 200.0 * (n + abs(found.log_normalizer))
