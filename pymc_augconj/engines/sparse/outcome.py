"""What is kept of a fit through inducing points: as everywhere, sites and θ.

q(w) ∝ N(w | 0, I) exp(bᵀw − ½ wᵀBw) with B = V diag(λ) Vᵀ is the prior times D sites, on the
predictors Vᵀw, with precisions λ and linear coefficients h = Vᵀb. So what conditions a dense model
on the sites of its observations conditions a sparse one on these, in whatever number of
observations it was fitted to; a prediction is that of the dense model with Z for X.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from pymc_augconj.engines.base import FitOutcome, Iteration
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.registry import block_prior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.linear_map import DenseMap
from pymc_augconj.model import Point
from pymc_augconj.typing import Array, Index

from .model import SparseModel, inducing_block
from .posterior import SeparatePosterior, WeightsPosterior
from .separate import SeparateModel

__all__ = ["outcome_of"]


def outcome_of(
    model: SparseModel | SeparateModel,
    point: Point,
    inducing: Sequence[Array],
    q: WeightsPosterior | SeparatePosterior,
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
    for part, own, of_part in _components(model, q, inducing):
        lam, V = eigh(own.precision)
        lams.append(lam)
        linear.append(V.T @ own.linear)
        rows, first = slice(last, last + lam.size), 0
        last = rows.stop
        for process, Z in zip(part.model.priors, of_part, strict=True):
            index = [block.name for block in lgm.blocks].index(process.name)
            (copy,) = np.unique(part.latents[index] // lgm.blocks[index].size)
            columns = slice(copy * len(Z), (copy + 1) * len(Z))
            maps[index][rows, columns] = V[first : first + len(Z)].T
            first += len(Z)
        for i, _, _, where in part.model.other_parts(point, slice(0, 0), first):
            index = part.blocks[i]
            maps[index][rows, part.latents[index]] = V[where].T
    unscaled = tuple(_unscaled(block, rows) for block, rows in zip(whole, maps, strict=True))
    lam = np.concatenate(lams)
    prior = LatentPrior(np.zeros(lam.size), whole, unscaled, unscaled)
    return FitOutcome(
        dict(point), np.concatenate(linear), lam, evidence, objective, prior,
        RowGroups.apart(lam.size), "weight", converged, message, iterations,
        gradient or {}, dict(diagnostics or {}),
        inducing={prior.name: np.array(Z) for prior, Z in zip(model.priors, inducing, strict=True)},
    )  # fmt: skip


@dataclass(frozen=True)
class _Component:
    """A sparse model, its blocks' numbers in the whole model, and their latents by that number."""

    model: SparseModel
    blocks: tuple[int, ...]
    latents: dict[int, Index]


def _components(
    model: SparseModel | SeparateModel,
    q: WeightsPosterior | SeparatePosterior,
    inducing: Sequence[Array],
) -> Iterator[tuple[_Component, WeightsPosterior, Sequence[Array]]]:
    """Yield the components with their posteriors and inducing inputs."""
    if isinstance(model, SparseModel):
        assert isinstance(q, WeightsPosterior)
        every = {i: np.arange(block.total_size) for i, block in enumerate(model.lgm.blocks)}
        yield _Component(model, tuple(every), every), q, inducing
        return
    assert isinstance(q, SeparatePosterior)
    for part, own in zip(model.parts, q.parts, strict=True):
        blocks = part.component.blocks
        latents = dict(zip(blocks, part.component.latents, strict=True))
        yield _Component(part.model, blocks, latents), own, [inducing[i] for i in part.processes]


def _whole_blocks(
    model: SparseModel | SeparateModel, point: Point, inducing: Sequence[Array]
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
