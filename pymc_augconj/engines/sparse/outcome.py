"""The result of a fit through inducing points: as everywhere, sites and θ.

q(w) ∝ N(w | 0, I) exp(bᵀw − ½ wᵀBw) with B = V diag(λ) Vᵀ is the prior times D sites, on the
predictors Vᵀw, with precisions λ and linear coefficients h = V⁻¹b. A sparse model is conditioned on
these as a dense one is on the sites of its observations, whatever their number; a prediction is
that of the dense model with Z for X.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.linalg import eigh

from pymc_augconj.engines.base import FitOutcome, Iteration
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.registry import block_prior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.linear_map import DenseMap
from pymc_augconj.point import Point
from pymc_augconj.typing import Array

from .inducing import inducing_block
from .model import SparseModel
from .posterior import WeightsPosterior

__all__ = ["outcome_of"]


def outcome_of(
    model: SparseModel,
    point: Point,
    inducing: Sequence[Array],
    q: WeightsPosterior,
    evidence: float,
    objective: float,
    converged: bool,
    message: str,
    iterations: list[Iteration],
    gradient: dict[str, Array] | None = None,
    diagnostics: Mapping[str, float | str] | None = None,
) -> FitOutcome:
    """Return the fit as D sites on rotated weights."""
    lgm = model.lgm
    whole = _whole_blocks(model, point, inducing)
    lams, linear, maps = [], [], [np.zeros((q.mean.size, b.block.total_size)) for b in whole]
    last = 0
    for part, own in zip(model.parts, q.parts, strict=True):
        # In units in which the data add as much to wide weights as to others.
        unit = np.sqrt(1.0 + np.maximum(np.diagonal(own.precision), 0.0))
        lam, V = eigh(own.precision / np.multiply.outer(unit, unit))
        lams.append(lam)
        linear.append(V.T @ (own.linear / unit))
        V *= unit[:, None]
        rows, first = slice(last, last + lam.size), 0
        last = rows.stop
        its_blocks, its_latents = part.component.blocks, part.component.latents
        for block, Z in zip(part.blocks, part.inducing(inducing), strict=True):
            (copy,) = np.unique(its_latents[block] // lgm.blocks[its_blocks[block]].size)
            columns = slice(copy * len(Z), (copy + 1) * len(Z))
            maps[its_blocks[block]][rows, columns] = V[first : first + len(Z)].T
            first += len(Z)
        for i, _, _, where in part.other_parts(point, slice(0, 0), first):
            maps[its_blocks[i]][rows, its_latents[i]] = V[where].T
    unscaled = tuple(_unscaled(block, rows) for block, rows in zip(whole, maps, strict=True))
    lam = np.concatenate(lams)
    prior = LatentPrior(np.zeros(lam.size), whole, unscaled, unscaled)
    # q(w) is compared with N(0, I).
    flat = prior.log_flat
    iterations = [
        replace(done, bound=done.bound + flat, divergence=done.divergence - flat)
        for done in iterations
    ]
    return FitOutcome(
        dict(point), np.concatenate(linear), lam, evidence + flat, objective + flat, prior,
        RowGroups.apart(lam.size), "weight", converged, message, iterations,
        gradient or {}, dict(diagnostics or {}),
        inducing={prior.name: np.array(Z) for prior, Z in zip(model.priors, inducing, strict=True)},
    )  # fmt: skip


def _whole_blocks(
    model: SparseModel, point: Point, inducing: Sequence[Array]
) -> tuple[BlockPrior, ...]:
    """Return the priors of all blocks, processes at their inducing inputs."""
    by_name = {prior.name: (prior, Z) for prior, Z in zip(model.priors, inducing, strict=True)}
    return tuple(
        inducing_block(model.lgm, by_name[block.name][0], point, by_name[block.name][1])
        if block.name in by_name
        else block_prior(block, block.scale(point)).factorized()
        for block in model.lgm.blocks
    )


def _unscaled(block: BlockPrior, rows: Array) -> DenseMap:
    """Return A with A S = ``rows``; a latent without variance enters nothing."""
    return DenseMap(np.asfortranarray(block.unscale_transpose(rows)))
