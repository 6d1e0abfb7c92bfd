"""A process on a grid is conditioned as by dense matrices, whatever the precisions of its sites."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents import by_grid
from pymc_augconj.latents.by_grid import (
    GridSolver,
    mean_by_value,
    nearest_product,
    precision_factors,
)
from pymc_augconj.latents.choice import cheapest_solver, choose_solver
from pymc_augconj.latents.dense import DiagonalPrior, kronecker_product
from pymc_augconj.latents.joint import LatentPrior, block_prior
from pymc_augconj.latents.rows import RowGroups, SiteSum
from pymc_augconj.linalg.linear_map import DenseMap, RowSelection

GRIDS = [(4, 3), (3, 2, 4)]


def a_matern(n, lengthscale):
    r = np.sqrt(3.0) * np.abs(np.subtract.outer(np.arange(n), np.arange(n))) / lengthscale
    return (1.0 + r) * np.exp(-r) + 1e-6 * np.eye(n)


def a_grid(grid):
    n = int(np.prod(grid))
    return LatentBlock(
        name="f", value_name="f_rotated_", form="", shape=(n,), size=n, copies=1, whitened=True,
        kind="kronecker", scale=None, grid=grid,
    )  # fmt: skip


def coefficients(size):
    return LatentBlock(
        name="b", value_name="b", form="", shape=(size,), size=size, copies=1, whitened=False,
        kind=DiagonalPrior.kind, scale=None,
    )  # fmt: skip


def a_prior(rng, grid, A, columns, noise=None):
    """The process, with coefficients before it and noise after it, of rows with an offset."""
    covs = [(1.0 + i) * a_matern(n, 1.0 + i) for i, n in enumerate(grid)]
    own = block_prior(a_grid(grid), np.concatenate([K.ravel() for K in covs]))
    H = DenseMap(np.asfortranarray(rng.normal(size=(A.index.size, columns))))
    b = block_prior(coefficients(columns), rng.uniform(0.5, 3.0, columns))
    blocks, maps = ((b, own), (H, A)) if columns else ((own,), (A,))
    if noise is not None:
        e = block_prior(coefficients(noise.size), rng.uniform(0.3, 1.5, noise.size))
        blocks, maps = (*blocks, e), (*maps, noise)
    offset = rng.normal(size=A.index.size)
    return LatentPrior(offset, blocks, maps, maps), RowGroups.apart(
        A.index.size, Coupling(A.index.size), maps
    )


@pytest.mark.parametrize("grid", GRIDS)
def test_products_are_those_of_the_kronecker_product(grid):
    rng = np.random.default_rng(0)
    factors = [rng.normal(size=(n, n)) for n in grid]
    whole = np.ones((1, 1))
    for A in factors:
        whole = np.kron(whole, A)
    x, X = rng.normal(size=len(whole)), rng.normal(size=(5, len(whole)))
    np.testing.assert_allclose(kronecker_product(factors, x), whole @ x, atol=1e-12)
    np.testing.assert_allclose(kronecker_product(factors, X), X @ whole.T, atol=1e-12)
    np.testing.assert_allclose(kronecker_product([A.T for A in factors], X), X @ whole, atol=1e-12)


def designs(grid, rng):
    n = int(np.prod(grid))
    yield RowSelection(np.arange(n), None, n), True
    yield RowSelection(rng.permutation(n), np.full(n, 0.7), n), True
    # Cells without an observation, and cells with several.
    yield RowSelection(np.r_[0, rng.integers(0, n, n - 3)], None, n), False


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("columns", [0, 2])
@pytest.mark.parametrize("noisy", [False, True])
def test_the_posterior_is_that_of_dense_matrices(grid, columns, noisy, monkeypatch):
    """Of a product of precisions, and of any ones together with the observations that are drawn.

    As the scale of the sites moves, so do the precisions and the density of these.
    """
    monkeypatch.setattr(by_grid, "_MOST_COLUMNS", 2)
    rng = np.random.default_rng(1)
    for A, is_whole in designs(grid, rng):
        # Two rows in three of the same value have its noise.
        own = np.unique(3 * A.index + np.arange(A.index.size) % 3 // 2, return_inverse=True)[1]
        noise = RowSelection(own, np.full(own.size, -0.6), own.max() + 2) if noisy else None
        prior, groups = a_prior(rng, grid, A, columns, noise)
        h, lam = rng.normal(size=A.index.size), rng.uniform(0.1, 4.0, A.index.size)
        blocks = [b.block for b in prior.blocks]
        if is_whole:
            lam = nearest_product(blocks, prior.maps, lam)
        sites = groups.sites(h, lam, prior.offset)
        solver = GridSolver(blocks, groups)
        size = sum(block.size for block in blocks)
        solver.augment(rng, prior, sites, prior.innovations(rng.standard_normal(size)))
        z, base = solver._z, solver._complete(prior, sites).tau
        assert (base > 0.0).all()
        assert is_whole == np.allclose(base, 1e-3 * np.bincount(A.index, lam, A.size))
        for scale in (1.0, 2.5):
            found = solver.posterior(prior, SiteSum(sites.terms, (scale,)))
            # The same by dense matrices, of rows for the drawn observations too.
            phi, tau = prior.whitened_design, scale * base
            if noisy:
                t = 0.36 * prior.blocks[-1].diagonal_scale ** 2
                total = scale * np.bincount(own, lam, noise.size)
                lost = (t * total**2 / (1.0 + t * total))[own] * scale * lam / total[own]
                tau = tau + np.bincount(A.index, lost, A.size)
            process = next(b for b in prior.blocks if b.block.grid)
            extra = process.scale(np.eye(A.size)).T * (1.0 if A.coef is None else 0.7)
            extra = np.hstack([mean_by_value(A, phi[:, :columns].T).T, extra])
            extra = np.hstack([extra, np.zeros((A.size, size - extra.shape[1]))])
            M = np.eye(size) + (phi.T * scale * lam) @ phi + (extra.T * tau) @ extra
            linear = scale * phi.T @ sites.terms[0].h + extra.T @ (tau * z)
            mean = np.linalg.solve(M, linear)
            np.testing.assert_allclose(found.latent_mean, mean, rtol=1e-8, atol=1e-10)
            root = found.root(np.eye(size)).T
            np.testing.assert_allclose(root @ root.T, np.linalg.inv(M), rtol=1e-8, atol=1e-9)
            expected = 0.5 * (linear @ mean - np.linalg.slogdet(M)[1])
            expected += 0.5 * (np.log(tau).sum() - tau @ z**2) + scale * sites.constants[0]
            np.testing.assert_allclose(found.log_normalizer, expected, rtol=1e-10)
            nu, slope = rng.normal(size=size), rng.normal(size=size)
            np.testing.assert_allclose(found.solve(rng, found.apply(nu)), nu, atol=1e-9)
            np.testing.assert_allclose(found.pull(slope), root.T @ slope, atol=1e-9)


def test_several_multiples_of_a_process_are_refused():
    """The solver is chosen at one point, at which there is one."""
    rng, n = np.random.default_rng(2), 12
    prior, groups = a_prior(rng, (4, 3), RowSelection(np.arange(n), None, n), 0)
    solver = GridSolver([b.block for b in prior.blocks], groups)
    maps = (RowSelection(np.arange(n), np.linspace(1.0, 2.0, n), n),)
    several = LatentPrior(prior.offset, prior.blocks, maps, maps)
    with pytest.raises(AugmentationError, match="expected one multiple of it"):
        solver.posterior(several, groups.sites(np.zeros(n), np.ones(n), prior.offset))


def test_means_by_value():
    A = RowSelection(np.array([2, 0, 2]), np.full(3, 0.7), 4)
    x = np.array([[1.0, 2.0, 6.0]])
    np.testing.assert_allclose(mean_by_value(A, x), [[2.0, 3.0, 3.5, 3.0]])


def test_factors_of_precisions():
    rng = np.random.default_rng(3)
    a, b, c = (rng.uniform(0.1, 3.0, n) for n in (3, 4, 2))
    product = np.einsum("i,j,k", a, b, c)
    found = precision_factors(product.ravel(), product.shape)
    np.testing.assert_allclose(np.einsum("i,j,k", *found), product, rtol=1e-10)
    # A row of the grid without observations.
    product[1], product[2, 2, 0] = 0.0, 0.0
    found = precision_factors(product.ravel(), product.shape)
    assert all((factor > 0.0).all() for factor in found)
    known = product > 0.0
    np.testing.assert_allclose(np.einsum("i,j,k", *found)[known], product[known], rtol=1e-6)
    assert all((f == 1.0).all() for f in precision_factors(np.zeros(6), (2, 3)))


def test_large_grids_are_conditioned_by_their_structure():
    n = 40 * 30
    A = RowSelection(np.arange(n), None, n)
    groups = RowGroups.apart(n, Coupling(n), (A,))
    assert cheapest_solver([a_grid((40, 30))], groups) is GridSolver
    assert cheapest_solver([a_grid((40, 30))], groups, fit=True) is not GridSolver
    several = RowSelection(np.arange(n), np.linspace(1.0, 2.0, n), n)
    groups = RowGroups.apart(n, Coupling(n), (several,))
    assert cheapest_solver([a_grid((40, 30))], groups) is not GridSolver


def test_factors_that_are_no_covariance_are_refused():
    array = np.r_[np.eye(2).ravel(), [1.0, 2.0, 2.0, 1.0]]
    with pytest.raises(NotPositiveDefiniteError, match="a factor of the covariance of 'f'"):
        block_prior(a_grid((2, 2)), array).factorized()


@pytest.mark.parametrize("size", [7_000, 12_000, 31_000])
def test_large_matrices_are_told_and_larger_ones_refused(size):
    A = RowSelection(np.arange(size), None, size)
    whole = replace(a_grid((size,)), kind="dense", grid=())
    groups = RowGroups.apart(size, Coupling(size), (A,))
    if size > 30_000:
        with pytest.raises(AugmentationError, match=r"7\.7 GB|8 GB"):
            choose_solver([whole], groups)
    elif size > 8_000:
        with pytest.warns(UserWarning, match=r"12000 × 12000 matrix takes some 29 s"):
            choose_solver([whole], groups)
    else:
        choose_solver([whole], groups)
