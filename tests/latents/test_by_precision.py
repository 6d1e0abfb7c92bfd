"""Conditioning through a banded precision gives the numbers of the dense spaces."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError, RecognitionError
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.by_observations import ObservationSolver
from pymc_augconj.latents.by_precision import IndependentSolver, PrecisionSolver
from pymc_augconj.latents.by_weights import WeightSolver
from pymc_augconj.latents.choice import choose_solver, condition, solver_of_step
from pymc_augconj.latents.joint import LatentPrior, block_prior
from pymc_augconj.latents.rows import MergedSites, RowGroups, SiteSum
from pymc_augconj.linalg.linear_map import DenseMap, RowSelection
from pymc_augconj.linalg.sparse import SparsePattern, find_pattern

RNG = np.random.default_rng(0)
N = 14


def a_block(kind, size, entries=None):
    return LatentBlock(
        name=kind, value_name=kind, form="", shape=(size,), size=size, copies=1,
        whitened=False, kind=kind, scale=None, entries=entries,
    )  # fmt: skip


def structured(Q):
    entries = np.array(np.nonzero(Q))
    return block_prior(a_block("precision", len(Q), entries), Q[tuple(entries)])


def walk(size=N, step=0.7):
    D = (np.eye(size) - np.eye(size, k=-1)) / step
    return structured(D.T @ D)


def ring():
    """A conditional autoregression on a ring, its areas in random order."""
    W = np.roll(np.eye(N), 1, axis=0)
    order = np.random.default_rng(5).permutation(N)
    return structured((2.2 * np.eye(N) - W - W.T)[np.ix_(order, order)])


def intrinsic(c=0.8):
    """Areas on two rings with bridges, in random order, with a soft constraint on their sum."""
    W = np.zeros((N, N))
    for i in range(N):
        W[i, (i + 1) % N] = W[i, (i + 4) % N] = 1.0
    order = np.random.default_rng(6).permutation(N)
    B = (np.diag((W + W.T).sum(0)) - W - W.T)[np.ix_(order, order)]
    entries = np.array(np.nonzero(B))
    return block_prior(a_block("intrinsic", N, entries), np.append(B[tuple(entries)], c**2))


def diagonal(size):
    return block_prior(a_block("diagonal", size), RNG.gamma(2.0, size=size))


def dense(size):
    root = RNG.normal(size=(size, size))
    return block_prior(a_block("dense", size), np.asfortranarray(root @ root.T + np.eye(size)))


IDENTITY = RowSelection(np.arange(N), None, N)
TWICE = RowSelection(np.r_[np.arange(N), np.arange(N)[::-1]], RNG.normal(size=2 * N), N)


def selection(size, n_rows=2 * N):
    return RowSelection(RNG.integers(0, size, n_rows), RNG.normal(size=n_rows), size)


def design(size, n_rows=2 * N):
    return DenseMap(np.asfortranarray(RNG.normal(size=(n_rows, size))), RNG.normal(size=size))


PAIRS = Coupling(2 * N, [np.arange(2 * N).reshape(2, N)])
# Blocks, their maps, and which rows sites couple.
CASES = {
    "walk": ([walk()], [IDENTITY], None),
    "ring": ([ring()], [IDENTITY], None),
    "some values twice, some never": ([walk()], [selection(N)], None),
    "intercept": ([walk(), diagonal(1)], [TWICE, selection(1)], None),
    "own effects": (
        [ring(), diagonal(N), diagonal(1)],
        [IDENTITY, IDENTITY, RowSelection(np.zeros(N, dtype=int), None, 1)],
        None,
    ),
    "regression and process": (
        [diagonal(2), walk(), dense(4)],
        [design(2), TWICE, design(4)],
        None,
    ),
    "two walks": ([walk(), ring()], [TWICE, selection(N)], None),
    "map": ([intrinsic()], [selection(N)], None),
    "map with own effects": (
        [diagonal(N), diagonal(1), intrinsic(30.0)],
        [IDENTITY, RowSelection(np.zeros(N, dtype=int), None, 1), IDENTITY],
        None,
    ),
    "maps and effects of several areas": (
        [intrinsic(), diagonal(4), ring(), diagonal(N)],
        [selection(N), selection(4), TWICE, selection(N)],
        None,
    ),
    "maps of mean and scale": ([intrinsic(), intrinsic(3.0)], [selection(N), TWICE], PAIRS),
    "two predictors of one walk": (
        [walk(), diagonal(2)],
        [RowSelection(np.r_[np.arange(N), np.roll(np.arange(N), 1)], None, N), design(2)],
        PAIRS,
    ),
    "walks of mean and scale": (
        [walk(), ring(), diagonal(3)],
        [
            RowSelection(np.r_[np.arange(N), np.arange(N)], np.repeat([1.0, 0.0], N), N),
            RowSelection(np.r_[np.arange(N), np.arange(N)], np.repeat([0.0, 1.3], N), N),
            selection(3),
        ],
        PAIRS,
    ),
}


@pytest.fixture(params=CASES)
def name(request):
    return request.param


@pytest.fixture(params=[find_pattern, SparsePattern])
def case(request, name, monkeypatch):
    """Small matrices are bands; the same numbers come of sparse ones."""
    blocks, maps, coupling = CASES[name]
    if request.param is SparsePattern:
        monkeypatch.setattr("pymc_augconj.block.find_pattern", SparsePattern)
        monkeypatch.setattr("pymc_augconj.latents.precision_pattern.find_pattern", SparsePattern)
        blocks = [block_prior(replace(block.block), block.array) for block in blocks]
    rng = np.random.default_rng(1)
    n_rows = maps[0].index.size if isinstance(maps[0], RowSelection) else len(maps[0].matrix)
    coupling = coupling or Coupling(n_rows)
    groups = RowGroups.apart(n_rows, coupling, tuple(maps))
    prior = LatentPrior(rng.normal(size=n_rows), tuple(blocks), tuple(maps), tuple(maps))
    h, lam = rng.normal(size=n_rows), rng.gamma(1.0, size=coupling.size)
    lam[n_rows:] = 0.3 * rng.normal(size=lam.size - n_rows)
    lam[3:5] = -0.05, 0.0
    return SimpleNamespace(prior=prior, groups=groups, h=h, lam=lam)


def both(case):
    blocks = [b.block for b in case.prior.blocks]
    sites = case.groups.sites(case.h, case.lam, case.prior.offset)
    kinds = PrecisionSolver, ObservationSolver
    return [kind(blocks, case.groups).posterior(case.prior, sites) for kind in kinds]


def test_moments(case):
    found, expected = both(case)
    close = np.testing.assert_allclose
    for name in ("mean", "cov", "alpha", "divergence", "log_normalizer"):
        close(getattr(found, name), getattr(expected, name), rtol=1e-8, atol=1e-9, err_msg=name)
    for ours, theirs in zip(found.innovation_means(), expected.innovation_means(), strict=True):
        close(ours, theirs, atol=1e-9)
    count = len(case.prior.blocks)
    for i in range(count):
        close(found.innovation_var(i), expected.innovation_var(i), atol=1e-8)
        for j in range(count):
            close(found.innovation_cov(i, j), expected.innovation_cov(i, j), atol=1e-8)
    X = np.random.default_rng(2).normal(size=(case.h.size, 3))
    close(found.response_product(X), expected.response_product(X), atol=1e-8)
    close(found.explained(X.T), expected.explained(X.T), atol=1e-8)
    close(found.explained_var(X.T), expected.explained_var(X.T), atol=1e-8)
    blocks = [b.block for b in case.prior.blocks]
    kinds = PrecisionSolver, ObservationSolver
    of_prior = [kind(blocks, case.groups).prior_cov(case.prior) for kind in kinds]
    close(*of_prior, rtol=1e-9, atol=1e-10)


def test_derivatives(case):
    found, expected = both(case)
    for i, A in enumerate(case.prior.maps):
        ours, theirs = found.pull_cov(i), expected.pull_cov(i)
        block = case.prior.blocks[i].block
        if block.entries is not None:
            # Both triangles are given; only their sum is determined.
            rows, cols = block.entries
            total = np.zeros((2, N, N))
            total[:, rows, cols] = ours[: rows.size], theirs[: rows.size]
            last = ours[rows.size :], theirs[rows.size :]
            ours, theirs = (matrix + matrix.T for matrix in total)
            if block.kind == "intrinsic":
                # Rows sum to zero: of an edge between i and j the entries ii + jj − ij − ji count.
                at = [(m, np.diagonal(m)) for m in (ours, theirs)]
                ours, theirs = (d[rows] + d[cols] - 2.0 * m[rows, cols] for m, d in at)
                ours, theirs = np.append(ours, last[0]), np.append(theirs, last[1])
        np.testing.assert_allclose(ours, theirs, atol=1e-8)
        np.testing.assert_allclose(found.pull_map(i), expected.pull_map(i), atol=1e-8)
        if isinstance(A, RowSelection):
            ours, theirs = found.pull_selection(i), expected.pull_selection(i)
            np.testing.assert_allclose(ours, theirs, atol=1e-8)


def test_affine_posterior(case):
    """Mean and covariance of the whitened latents, and the way back from them."""
    blocks = [b.block for b in case.prior.blocks]
    lam = case.lam.copy()
    lam[: case.h.size] = np.abs(lam[: case.h.size]) + 1.0  # of any sign in one space alone
    sites = SiteSum((MergedSites(case.h, lam, 0.0),))
    expected = ObservationSolver(blocks, case.groups).posterior(case.prior, sites)
    solver = PrecisionSolver(blocks, case.groups)
    found = solver.posterior(case.prior, sites)
    assert found.log_normalizer == pytest.approx(expected.log_normalizer, rel=1e-9)
    assert solver.posterior(case.prior, sites) is found
    np.testing.assert_allclose(found.whitened(found.latent_mean), expected.latent_mean, atol=1e-9)
    covs = []
    for posterior in (found, expected):
        root = posterior.whitened(posterior.apply(np.eye(posterior.size)) - posterior.latent_mean)
        covs.append(root.T @ root)
    np.testing.assert_allclose(*covs, atol=1e-8)
    rng = np.random.default_rng(3)
    nu = rng.normal(size=(2, found.size))
    x = found.apply(nu)
    np.testing.assert_allclose(found.solve(rng, x[0]), nu[0], atol=1e-9)
    np.testing.assert_allclose(x[1], found.apply(nu[1]), atol=1e-11)
    np.testing.assert_allclose(found.coordinates(found.whitened(x)), x, atol=1e-9)
    ours, theirs = found.innovations(x), case.prior.innovations(found.whitened(x))
    np.testing.assert_allclose(np.hstack(ours), np.hstack(theirs), atol=1e-9)
    slopes = [rng.normal(size=u.shape[1]) for u in ours]
    pulled = found.pull(found.innovations_transpose(slopes)) @ (nu[1] - nu[0])
    moved = sum(slope @ (u[1] - u[0]) for slope, u in zip(slopes, ours, strict=True))
    assert pulled == pytest.approx(moved, rel=1e-9)


def test_draws_are_those_of_their_numbers(case):
    found, _ = both(case)
    drawn = found.draw(np.random.default_rng(4), 2)
    again = found.draw(np.random.default_rng(4), 1)
    for several, one in zip(drawn, again, strict=True):
        np.testing.assert_allclose(several[0], one[0], atol=1e-11)
    size = sum(part.shape[1] for part in drawn)
    numbers = SimpleNamespace(standard_normal=lambda shape: np.eye(size))
    moved = np.concatenate(found.draw(numbers, size), axis=1)
    zeros = SimpleNamespace(standard_normal=lambda shape: np.zeros((1, size)))
    root = moved - np.concatenate(found.draw(zeros, 1), axis=1)
    u = np.concatenate(case.prior.innovations(root), axis=1)
    start = 0
    for i, block in enumerate(case.prior.blocks):
        own = u[:, start : start + block.block.total_size]
        start += block.block.total_size
        np.testing.assert_allclose(own.T @ own, found.innovation_cov(i, i), atol=1e-9)


def test_own_effects_of_areas_stand_within_the_band():
    blocks, maps, _ = CASES["own effects"]
    groups = RowGroups.apart(N, None, tuple(maps))
    pattern = PrecisionSolver.pattern([b.block for b in blocks], groups)
    assert pattern.within == [0, 1]
    assert pattern.border == 1
    assert pattern.sparsity.width <= 5


def test_large_maps_are_sparse():
    """Own effects cost next to nothing, and the factor is far from the band's."""
    height, width = 30, 40
    along = [np.eye(k, k=1) + np.eye(k, k=-1) for k in (height, width)]
    W = np.kron(along[0], np.eye(width)) + np.kron(np.eye(height), along[1])
    n = len(W)
    areas = a_block("intrinsic", n, np.array(np.nonzero(W + np.eye(n))))
    own, level = a_block("diagonal", n), a_block("diagonal", 1)
    each, all_ = RowSelection(np.arange(n), None, n), RowSelection(np.zeros(n, int), None, 1)
    alone, both = (
        PrecisionSolver.pattern(blocks, RowGroups.apart(n, None, tuple(maps)))
        for blocks, maps in (
            ([areas, level], [each, all_]),
            ([areas, own, level], [each, each, all_]),
        )
    )
    assert both.within == [0, 1]
    assert both.multiplications < 1.3 * alone.multiplications
    assert both.multiplications < 0.2 * both.size * 2 * width**2


@pytest.mark.parametrize(("n", "kind"), [(120, WeightSolver), (200, PrecisionSolver)])
def test_steps_of_small_maps_are_those_of_dense_matrices(n, kind):
    ring = np.eye(n) + np.roll(np.eye(n), 1, axis=0) + np.roll(np.eye(n), -1, axis=0)
    blocks, each = [a_block("intrinsic", n, np.array(np.nonzero(ring)))], np.arange(n)
    groups = RowGroups.apart(n, None, (RowSelection(each, None, n),))
    assert isinstance(solver_of_step(blocks, groups).preferred, kind)


def test_other_structures_are_refused():
    blocks, maps, _ = CASES["walk"]
    groups = RowGroups.apart(N, None, (IDENTITY,))
    other = RowSelection(np.arange(N)[::-1], None, N)
    prior = LatentPrior(np.zeros(N), tuple(blocks), (other,), (other,))
    records = [b.block for b in blocks]
    solver = PrecisionSolver(records, groups)
    with pytest.raises(RecognitionError, match=r"'precision'.*same entries.*again"):
        solver.posterior(prior, groups.sites(np.zeros(N), np.ones(N), prior.offset))
    prior = LatentPrior(np.zeros(N), tuple(blocks), tuple(maps), tuple(maps))
    with pytest.raises(NotPositiveDefiniteError, match="posterior precision"):
        solver.posterior(prior, groups.sites(np.zeros(N), np.full(N, -50.0), prior.offset))
    # What takes sums of the values has no band.
    assert (
        PrecisionSolver.multiplications(records, RowGroups.apart(9, None, (design(N, 9),)))
        == np.inf
    )


def test_independent_effects_alone_have_a_sparse_precision():
    """Many effects, few ones and an intercept: the numbers of the dense solver."""
    rng, n = np.random.default_rng(8), 400
    many, few = a_block("diagonal", 300), a_block("diagonal", 20)
    blocks = tuple(
        block_prior(replace(block, name=f"b{i}"), scale)
        for i, (block, scale) in enumerate(
            [
                (many, rng.uniform(0.5, 1.5, 300)),
                (few, np.full(20, 0.7)),
                (a_block("diagonal", 1), np.array([3.0])),
            ]
        )
    )
    index = [rng.integers(0, 300, n), rng.integers(0, 20, n), np.zeros(n, dtype=int)]
    maps = tuple(
        RowSelection(i, rng.uniform(0.5, 1.5, n), size)
        for i, size in zip(index, (300, 20, 1), strict=True)
    )
    prior = LatentPrior(rng.standard_normal(n), blocks, maps, maps)
    groups = RowGroups.apart(n, maps=maps)
    own = [b.block for b in blocks]
    assert choose_solver(own, groups, fit=True) is IndependentSolver
    assert choose_solver(own, groups) is not IndependentSolver
    h, lam = rng.standard_normal(n), rng.uniform(0.1, 2.0, n)
    found, dense = (condition(prior, groups, h, lam, solver=s) for s in ("independent", "weight"))
    assert type(found) is not type(dense)
    assert found.log_normalizer == pytest.approx(dense.log_normalizer, rel=1e-11)
    np.testing.assert_allclose(found.mean, dense.mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(found.var, dense.var, rtol=1e-9)
    for i in range(3):
        np.testing.assert_allclose(found.innovation_var(i), dense.innovation_var(i), rtol=1e-9)
        np.testing.assert_allclose(found.pull_cov(i), dense.pull_cov(i), rtol=1e-7, atol=1e-9)
        slopes = found.pull_selection(i), dense.pull_selection(i)
        np.testing.assert_allclose(*slopes, rtol=1e-7, atol=1e-9)
