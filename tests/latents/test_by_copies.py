"""Conditioning copies of weights that share their design, against the same with the matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.gaussian.sites import Coupling, SiteLayout
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.registry import block_prior
from pymc_augconj.latents.rows import RowGroups, SiteSum
from pymc_augconj.latents.space import SPACES, cheapest_space
from pymc_augconj.linalg.linear_map import CopiesMap, DenseMap, RowSelection
from pymc_augconj.model import FixedValue, LatentBlock

RNG = np.random.default_rng(0)
P, N, M = 3, 6, 4
BASE = RNG.normal(size=(5, M))
# An input that two observations share, and one more row at the end without a coupled one.
POSITION = np.append(np.tile([0, 2, 1, 2, 4, 3], P), 0)
COPY = np.append(np.repeat(np.arange(P), N), 1)
ROWS = P * N + 1
LAYOUT = SiteLayout([(P, N), (1, 1)], [True, False])
COEF = RNG.normal(size=ROWS)


@dataclass(frozen=True)
class Model:
    blocks: tuple[LatentBlock, ...]
    latent_size: int


def write(coef: Any, copy: Any, beside: bool) -> tuple[Model, list[LatentPrior]]:
    """Return a model, and its prior with the map and with its matrix."""
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
    return Model(blocks, sum(b.size for b in blocks)), priors


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
    model, priors = write(COEF if coupled else None, copy, beside)
    h, lam = sites(coupled, signed=coupled)
    coupling = LAYOUT.coupling
    groups = RowGroups.apart(ROWS, coupling, priors[0].maps)
    work = [np.empty((model.latent_size,) * 2, order="F") for _ in range(2)]
    found = SPACES["copies"](priors[0], groups, h, lam, work=work[0], second_work=work[1])
    dense = SPACES["weight"](priors[1], groups, h, lam)
    close = np.testing.assert_allclose
    for name in ("mean", "cov", "alpha", "divergence", "log_normalizer"):
        close(getattr(found, name), getattr(dense, name), atol=1e-10)
    for ours, theirs in zip(found.innovation_means(), dense.innovation_means(), strict=True):
        close(ours, theirs, atol=1e-10)
    X = RNG.normal(size=(ROWS, 2))
    close(found.response_product(X), dense.response_product(X), atol=1e-9)
    close(
        SPACES["copies"].prior_cov(priors[0], groups), SPACES["weight"].prior_cov(priors[1], groups)
    )

    merged = SiteSum((groups.merge(h, lam, priors[0].offset),))
    ours, theirs = (
        SPACES[space].conditioner(model.latent_size, coupling).posterior(prior, merged)
        for space, prior in zip(("copies", "weight"), priors, strict=True)
    )
    close(ours.log_evidence, theirs.log_evidence, atol=1e-10)
    nu = RNG.normal(size=(2, ours.size))
    for values in (nu, nu[0]):
        close(ours.apply(values), theirs.apply(values), atol=1e-10)
    close(ours.solve(RNG, nu[0]), theirs.solve(RNG, nu[0]), atol=1e-10)


@pytest.mark.parametrize("coupled", [False, True])
def test_negative_precisions_that_outweigh_the_prior_are_refused(coupled):
    _, priors = write(None, COPY, False)
    h, lam = sites(coupled, False)
    lam[3] -= 30.0
    with pytest.raises(NotPositiveDefiniteError, match="no Cholesky factor"):
        SPACES["copies"](priors[0], RowGroups.apart(ROWS, LAYOUT.coupling), h, lam)


def test_coupled_rows_at_different_inputs_take_the_matrix():
    model, priors = write(None, COPY, False)
    spaces = [
        cheapest_space(model, RowGroups.apart(ROWS, LAYOUT.coupling, prior.maps))
        for prior in priors
    ]
    assert spaces[0] is SPACES["copies"]
    assert spaces[1] is not SPACES["copies"]
    moved = CopiesMap(BASE, np.roll(POSITION, 1), COPY, None, P)
    space = cheapest_space(model, RowGroups.apart(ROWS, LAYOUT.coupling, (moved,)))
    assert space is not SPACES["copies"]
    # Sites that couple nothing do not mind.
    assert (
        cheapest_space(model, RowGroups.apart(ROWS, Coupling(ROWS), (moved,))) is (SPACES["copies"])
    )
