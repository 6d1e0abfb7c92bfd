"""An incomplete factor gives exact draws of the latents, and the density of θ given ν̃."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from pymc_augconj.block import LatentBlock
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.by_neighbours import IncompleteSolver
from pymc_augconj.latents.dense import DiagonalPrior
from pymc_augconj.latents.joint import LatentPrior, block_prior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.linear_map import DenseMap, RowSelection
from pymc_augconj.linalg.vecchia import Neighbours

N, M = 60, 3
X = np.random.default_rng(0).uniform(size=(N, 2))
A = RowSelection(np.random.default_rng(1).permutation(N)[: N - 5], np.full(N - 5, 0.8), N)
COEFFICIENTS = DenseMap(np.asfortranarray(np.random.default_rng(2).normal(size=(N - 5, 2))))
INTERCEPT = DenseMap(np.asfortranarray(1.0 + np.outer(np.linspace(0.0, 1.0, N - 5), [0.0, 0.5])))


def a_block(kind, size, **structure):
    return LatentBlock(
        name=kind, value_name=kind, form="", shape=(size,), size=size, copies=1, whitened=False,
        kind=kind, scale=None, **structure,
    )  # fmt: skip


COLUMNS = a_block(DiagonalPrior.kind, 2)


@cache
def a_process():
    """Return neighbours, whose search is to be compiled, and the block of their process."""
    near = Neighbours(X, M)
    return near, a_block("pivots", N, entries=near.entries, order=near.order)


def a_prior(lengthscale, columns):
    near, process = a_process()
    a, b = X[near.lower[0]], X[near.lower[1]]
    k = np.exp(-np.sqrt(((a - b) ** 2).sum(axis=-1)) / lengthscale)
    blocks, maps = [block_prior(process, near.precision(k))], [A]
    if columns is not None:
        blocks.append(block_prior(COLUMNS, np.array([0.7, 2.0])))
        maps.append(columns)
    offset = np.linspace(-1.0, 1.0, A.index.size)
    prior = LatentPrior(offset, tuple(blocks), tuple(maps), tuple(maps))
    return prior, RowGroups.apart(A.index.size, Coupling(A.index.size), tuple(maps))


def dense(prior, sites):
    """Return the precision and linear term of u and coefficients by their standard deviations."""
    process, *others = prior.blocks
    Q = np.zeros((N, N))
    entries = a_process()[0].entries
    Q[tuple(entries)] = process.array[: entries.shape[1]]
    design = A.dense()
    for b, H in zip(others, prior.maps[1:], strict=True):
        Q = np.pad(Q, (0, b.block.size))
        Q[range(N, len(Q)), range(N, len(Q))] = 1.0
        design = np.hstack([design, H.dense() * b.array])
    return Q, Q + (design.T * sites.lam) @ design, design.T @ sites.h


# Beside an intercept, of which a long process is hardly another one, D − CB̃⁻¹Cᵀ is negative.
@pytest.mark.parametrize(
    ("columns", "unit"), [(None, 1.0), (COEFFICIENTS, 1.0), (INTERCEPT, 100.0)]
)
def test_draws_and_density(columns, unit):
    rng = np.random.default_rng(3)
    prior, groups = a_prior(0.3 * unit, columns)
    blocks = [b.block for b in prior.blocks]
    h, lam = rng.normal(size=groups.size), rng.uniform(0.1, 4.0, groups.size)
    sites = groups.sites(h, lam, prior.offset)
    solver = IncompleteSolver(blocks, groups)
    assert solver.pattern(blocks, groups) is not None
    u = prior.innovations(rng.standard_normal(sum(b.total_size for b in blocks)))
    solver.augment(rng, prior, sites, u)
    found = solver.posterior(prior, sites)
    order = np.r_[a_process()[1].root_pattern.order, N : found.size]

    Q, precision, linear = dense(prior, sites)
    assert np.log(prior.blocks[0].pivots).sum() == pytest.approx(np.linalg.slogdet(Q)[1])
    cov = np.linalg.inv(precision)
    np.testing.assert_allclose(found.latent_mean, (cov @ linear)[order], atol=1e-10)
    root = found.root(np.eye(found.size)).T
    np.testing.assert_allclose(root @ root.T, cov[np.ix_(order, order)], atol=1e-10)
    v = [b.unscale(part) for b, part in zip(prior.blocks, u, strict=True)]
    present = found.coordinates(np.concatenate(v))
    kept, excess = found.solve(rng, present), []
    np.testing.assert_allclose(found.carried(kept), present, atol=1e-10)

    # At other θ: log p(x, sites) + log |∂x/∂ν̃|, and by the exact factor it is another number.
    for lengthscale in (0.2, 0.3, 0.5):
        at, _ = a_prior(lengthscale * unit, columns)
        given = solver.posterior(at, sites)
        Q, precision, linear = dense(at, sites)
        x = given.carried(kept)
        jacobian = np.array([given.carried(kept + e) - x for e in np.eye(found.size)])
        x = x[np.argsort(order)]
        expected = 0.5 * np.linalg.slogdet(Q)[1] - 0.5 * x @ precision @ x + linear @ x
        expected += np.linalg.slogdet(jacobian)[1] + 0.5 * kept @ kept + sites.constants[0]
        assert given.log_normalizer == pytest.approx(expected, abs=1e-8)
        exact = 0.5 * linear @ np.linalg.solve(precision, linear) + sites.constants[0]
        exact += 0.5 * np.linalg.slogdet(Q)[1] - 0.5 * np.linalg.slogdet(precision)[1]
        excess.append(given.log_normalizer - exact)
    assert 1e-3 < np.ptp(excess) < 1.0


def test_the_root_of_the_prior_has_no_other_entries():
    prior, _ = a_prior(0.3, None)
    (process,) = prior.blocks
    S = process.scale(np.eye(N))
    np.testing.assert_allclose(S.T @ S, process.cov, atol=1e-10)
    np.testing.assert_allclose(process.unscale(S), np.eye(N), atol=1e-10)
    np.testing.assert_allclose(process.unscale_transpose(process.scale_transpose(S)), S, atol=1e-10)
