"""What is kept of a fit through inducing points: as everywhere, sites and θ.

q(w) ∝ N(w | 0, I) exp(bᵀw − ½ wᵀBw) with B = V diag(λ) Vᵀ is the prior times D sites, on the
predictors Vᵀw, with precisions λ and linear coefficients h = Vᵀb. So what conditions a dense model
on the sites of its observations conditions a sparse one on these, in whatever number of
observations it was fitted to; a prediction is that of the dense model with Z for X.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.linalg import eigh

from pymc_augconj.engines.base import FitOutcome, Iteration
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.linear_map import DenseMap
from pymc_augconj.model import Point
from pymc_augconj.typing import Array

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
    lam, V = eigh(q.precision)
    names = [block.name for block in model.lgm.blocks]
    parts: dict[int, tuple[BlockPrior, DenseMap]] = {}
    first = 0
    for process, Z in zip(model.priors, inducing, strict=True):
        block = model.inducing_block(process, point, Z)
        rows = V[first : first + len(Z)].T
        first += len(Z)
        parts[names.index(process.name)] = block, _unscaled(block, rows)
    for i, block, _, where in model.other_parts(point, slice(0, 0), first):
        parts[i] = block, _unscaled(block, V[where].T)
    blocks, maps = zip(*(parts[i] for i in range(len(names))), strict=True)
    prior = LatentPrior(np.zeros(lam.size), blocks, maps, maps)
    return FitOutcome(
        dict(point), V.T @ q.linear, lam, evidence, objective, prior,
        RowGroups.apart(lam.size), "weight", converged, message, iterations,
        gradient or {}, dict(diagnostics or {}),
        inducing={prior.name: np.array(Z) for prior, Z in zip(model.priors, inducing, strict=True)},
    )  # fmt: skip


def _unscaled(block: BlockPrior, rows: Array) -> DenseMap:
    """Return A with A S = ``rows``; a latent without variance enters nothing."""
    return DenseMap(np.asfortranarray(block.unscale_transpose(rows)))
