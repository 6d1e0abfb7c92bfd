"""Conditioning copies of weights that share their design, against the same with the matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.gaussian.sites import Coupling, SiteLayout
from pymc_augconj.latents.choice import SOLVERS, cheapest_solver, condition
from pymc_augconj.latents.joint import LatentPrior, block_prior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.linear_map import CopiesMap, DenseMap, RowSelection
from pymc_augconj.point import FixedValue

RNG = np.random.default_rng(0)
P, N, M = 3, 6, 4
BASE = RNG.normal(size=(5, M))
# An input that two observations share, and one more row at the end without a coupled one.
POSITION = np.append(np.tile([0, 2, 1, 2, 4, 3], P), 0)
COPY = np.append(np.repeat(np.arange(P), N), 1)
ROWS = P * N + 1
LAYOUT = SiteLayout([(P, N), (1, 1)], [True, False])
COEF = RNG.normal(size=ROWS)


def write(coef: Any, copy: Any, beside: bool) -> tuple[tuple[LatentBlock, ...], list[LatentPrior]]:
    """Return blocks, and its prior with the map and with its matrix."""
    A = CopiesMap(BASE, POSITION, copy, coef, P)
    kinds = [("standard", A, np.ones(A.size))]
    if beside:
        intercepts = RowSelection(np.append(np.repeat(np.arange(P), N), 0), None, P)
        another = CopiesMap(BASE[:, :1] ** 2, POSITION, copy, None, P)
        # The copies are neither first nor last.
        kinds.insert(0, ("diagonal", intercepts, np.array([0.5, 2.0, 1.0])))
        kinds.append(("standard", another, np.ones(another.size)))
    blocks = tuple(
        LatentBlock(
            name=str(i), value_name=str(i), form="", shape=std.shape, size=std.size, copies=1,
            whitened=True, kind=kind, scale=FixedValue(std),
        )
        for i, (kind, _, std) in enumerate(kinds)
    )  # fmt: skip
    own = tuple(block_prior(block, std) for block, (_, _, std) in zip(blocks, kinds, strict=True))
    maps = tuple(A for _, A, _ in kinds)
    matrices = tuple(DenseMap(np.asfortranarray(A.dense())) for A in maps)
    priors = [LatentPrior(RNG.normal(size=ROWS), own, which, which) for which in (maps, matrices)]
    priors[1].offset = priors[0].offset
    return blocks, priors


def sites(coupled: bool, signed: bool) -> tuple[np.ndarray, np.ndarray]:
    root = RNG.normal(size=(P, P, N))
    full = np.einsum("pkn,qkn->pqn", root, root) * (1.0 if coupled else np.eye(P)[..., None])
    if signed:
        full[..., 0] -= 0.02 * np.eye(P)
    return RNG.normal(size=ROWS), LAYOUT.stack_precisions([full, np.ones((1, 1))])


# One copy may be in two predictors of an observation.
@pytest.mark.parametrize("copy", [COPY, np.where(COPY == 2, 0, COPY)], ids=["each", "twice"])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("coupled", [False, True])
def test_moments_and_evidence_are_those_of_the_matrix(coupled, beside, copy):
    blocks, priors = write(COEF if coupled else None, copy, beside)
    h, lam = sites(coupled, signed=coupled)
    coupling = LAYOUT.coupling
    groups = RowGroups.apart(ROWS, coupling, priors[0].maps)
    solvers = [SOLVERS[name](blocks, groups) for name in ("copies", "weight")]
    size = solvers[0].order(blocks, groups)
    solvers[0].scratch = np.full((size, size), np.nan, order="F")
    found, dense = (
        solver.posterior(prior, groups.sites(h, lam, prior.offset))
        for solver, prior in zip(solvers, priors, strict=True)
    )
    close = np.testing.assert_allclose
    for name in ("mean", "cov", "alpha", "divergence", "log_normalizer"):
        close(getattr(found, name), getattr(dense, name), atol=1e-10)
    for ours, theirs in zip(found.innovation_means(), dense.innovation_means(), strict=True):
        close(ours, theirs, atol=1e-10)
    X = RNG.normal(size=(ROWS, 2))
    close(found.response_product(X), dense.response_product(X), atol=1e-9)
    close(*(solver.prior_cov(prior) for solver, prior in zip(solvers, priors, strict=True)))
    nu = RNG.normal(size=(2, found.size))
    for values in (nu, nu[0]):
        close(found.apply(values), dense.apply(values), atol=1e-10)
    close(found.solve(RNG, nu[0]), dense.solve(RNG, nu[0]), atol=1e-10)


@pytest.mark.parametrize("coupled", [False, True])
def test_negative_precisions_that_outweigh_the_prior_are_refused(coupled):
    _, priors = write(None, COPY, False)
    h, lam = sites(coupled, False)
    lam[3] -= 30.0
    groups = RowGroups.apart(ROWS, LAYOUT.coupling)
    with pytest.raises(NotPositiveDefiniteError, match="no Cholesky factor"):
        condition(priors[0], groups, h, lam, solver="copies")


def test_coupled_rows_at_different_inputs_take_the_matrix():
    blocks, priors = write(None, COPY, False)
    kinds = [
        cheapest_solver(blocks, RowGroups.apart(ROWS, LAYOUT.coupling, prior.maps))
        for prior in priors
    ]
    assert kinds[0] is SOLVERS["copies"]
    assert kinds[1] is not SOLVERS["copies"]
    moved = CopiesMap(BASE, np.roll(POSITION, 1), COPY, None, P)
    kind = cheapest_solver(blocks, RowGroups.apart(ROWS, LAYOUT.coupling, (moved,)))
    assert kind is not SOLVERS["copies"]
    # Sites that couple nothing do not mind.
    kind = cheapest_solver(blocks, RowGroups.apart(ROWS, Coupling(ROWS), (moved,)))
    assert kind is SOLVERS["copies"]
