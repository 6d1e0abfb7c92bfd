"""A process on a grid is conditioned as by dense matrices, whatever the precisions of its sites."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.by_grid import (
    GridSolver,
    mean_by_value,
    nearest_product,
    precision_factors,
)
from pymc_augconj.latents.choice import cheapest_solver, condition
from pymc_augconj.latents.dense import DiagonalPrior, kronecker_product
from pymc_augconj.latents.joint import LatentPrior, block_prior
from pymc_augconj.latents.rows import RowGroups
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


def a_prior(rng, grid, A, columns):
    """The process, with coefficients before it, of rows with an offset."""
    covs = [(1.0 + i) * a_matern(n, 1.0 + i) for i, n in enumerate(grid)]
    own = block_prior(a_grid(grid), np.concatenate([K.ravel() for K in covs]))
    H = DenseMap(np.asfortranarray(rng.normal(size=(A.index.size, columns))))
    b = block_prior(coefficients(columns), rng.uniform(0.5, 3.0, columns))
    blocks, maps = ((b, own), (H, A)) if columns else ((own,), (A,))
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
def test_the_posterior_is_that_of_dense_matrices(grid, columns):
    """Of a product of precisions, and of any ones together with the observations that are drawn."""
    rng = np.random.default_rng(1)
    for A, is_whole in designs(grid, rng):
        prior, groups = a_prior(rng, grid, A, columns)
        h, lam = rng.normal(size=A.index.size), rng.uniform(0.1, 4.0, A.index.size)
        blocks = [b.block for b in prior.blocks]
        if is_whole:
            lam = nearest_product(blocks, prior.maps, lam)
        sites = groups.sites(h, lam, prior.offset)
        solver = GridSolver(blocks, groups)
        solver.augment(rng, prior, sites, prior.innovations(rng.standard_normal(columns + A.size)))
        found, more = solver.posterior(prior, sites), solver._drawn
        assert more.tau.any() != is_whole
        # The same by dense matrices, of rows for the drawn observations too.
        phi = prior.whitened_design
        extra = prior.blocks[-1].scale(np.eye(A.size)).T * (1.0 if A.coef is None else 0.7)
        extra = np.hstack([mean_by_value(A, phi[:, :columns].T).T, extra])
        M = np.eye(found.size) + (phi.T * lam) @ phi + (extra.T * more.tau) @ extra
        linear = phi.T @ sites.h + extra.T @ more.linear
        mean = np.linalg.solve(M, linear)
        np.testing.assert_allclose(found.latent_mean, mean, rtol=1e-8, atol=1e-10)
        root = found.root(np.eye(found.size)).T
        np.testing.assert_allclose(root @ root.T, np.linalg.inv(M), rtol=1e-8, atol=1e-9)
        expected = 0.5 * (linear @ mean - np.linalg.slogdet(M)[1]) + sites.constants[0]
        np.testing.assert_allclose(found.log_normalizer, expected, rtol=1e-10)
        nu, slope = rng.normal(size=found.size), rng.normal(size=found.size)
        np.testing.assert_allclose(found.solve(rng, found.apply(nu)), nu, atol=1e-9)
        np.testing.assert_allclose(found.pull(slope), root.T @ slope, atol=1e-9)
        if is_whole:
            dense = condition(prior, groups, h, lam, solver="weight")
            np.testing.assert_allclose(found.log_normalizer, dense.log_normalizer, rtol=1e-9)


def test_other_sites_are_completed_without_the_drawn_observations():
    rng = np.random.default_rng(2)
    (A, _), *_ = designs((4, 3), rng)
    prior, groups = a_prior(rng, (4, 3), A, 1)
    blocks, lam = [b.block for b in prior.blocks], rng.uniform(0.1, 4.0, 12)
    solver = GridSolver(blocks, groups)
    other = groups.sites(np.zeros(12), np.full(12, 0.5), np.zeros(12))
    before = solver.posterior(prior, other).log_normalizer
    u = prior.innovations(rng.standard_normal(13))
    solver.augment(rng, prior, groups.sites(np.zeros(12), lam, np.zeros(12)), u)
    assert solver.posterior(prior, other).log_normalizer == before


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
