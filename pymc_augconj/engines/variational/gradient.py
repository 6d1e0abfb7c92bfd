"""The gradient of a converged bound with respect to hyperparameters.

At sites that equal their targets the bound is stationary in q, so only its explicit dependence on θ
counts, and the sites may be fixed while θ changes. Hence, with C, α and R as in
:mod:`~pymc_augconj.latents.posterior`,

    d bound/dθ = ∂ log Z(θ; sites)/∂θ + ∂/∂θ Σ ℓᵢ(mᵢ, vᵢ; params(θ)) at fixed m, v,
    ∂ log Z/∂C = G = ½ (α αᵀ − R),        ∂ log Z/∂offset = h − λμ,

and through C = Σ A_b K_b A_bᵀ: ∂/∂K_b = A_bᵀ G A_b, ∂/∂A_b = 2 G A_b K_b. The three are pulled
back by the model's vector–Jacobian products, without derivatives of Cholesky factors.

Σ ℓ is differentiated by the parameters of likelihoods numerically.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from pymc_augconj.engines.base import SiteEvaluation, SiteRule
from pymc_augconj.latents.derivatives import accumulate, difference_slopes
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap
from pymc_augconj.model import Site
from pymc_augconj.point import Point
from pymc_augconj.typing import Array

__all__ = ["bound_gradient"]


def bound_gradient(bound: Any, evaluation: SiteEvaluation) -> dict[str, Array]:
    """Return d bound/dθ at sites that equal their targets.

    Parameters
    ----------
    bound : Bound
        Its own or another engine's.
    evaluation : SiteEvaluation
        The last evaluation made, from :func:`~pymc_augconj.engines.variational.ascent.climb`.

    Returns
    -------
    dict
        By entry of the point, of its shape; entries without influence are absent.
    """
    model, point = bound.family.model, bound.point
    posterior = evaluation.posterior
    assert isinstance(posterior, Posterior)  # of a converged run
    gradient: dict[str, Array] = {}
    for index, (block, read) in enumerate(zip(posterior.prior.blocks, model.maps, strict=True)):
        A = posterior.prior.maps[index]
        if block.block.scale.names and block.block.scale_pullback is not None:
            accumulate(gradient, block.block.scale_pullback(point, posterior.pull_cov(index)))
        if read.names:
            _accumulate_map(gradient, bound, posterior, index, A)
    weights = evaluation.h - posterior.groups.coupling.product(evaluation.lam, posterior.mean)
    accumulate(gradient, model.predictor_pullback(point, _innovations(bound), weights))
    _accumulate_likelihood(gradient, bound, evaluation)
    return gradient


def _innovations(bound: Any) -> dict[str, Array]:
    return {b.name: np.zeros(b.total_size) for b in bound.family.model.blocks}


def _accumulate_map(
    gradient: dict[str, Array], bound: Any, posterior: Posterior, index: int, A: LinearMap
) -> None:
    """Add ⟨∂ log Z/∂A, ∂A/∂θ⟩, as a sum of ⟨w, ∂A/∂θ u⟩ over pairs (w, u)."""
    model, point = bound.family.model, bound.point
    first, name = bound.family.priors.groups.first, model.blocks[index].name
    if isinstance(A, DenseMap):
        derivative = posterior.pull_map(index)
        pairs = [(derivative[:, j], unit) for j, unit in enumerate(np.eye(A.size))]
    else:
        # Each row has one entry, whose derivative is selected; all are pulled back at once.
        pairs = [(posterior.pull_selection(index), np.ones(A.size))]
    for weights, u in pairs:
        full = np.zeros(model.n_rows)
        full[first] = weights
        innovations = _innovations(bound)
        at_zero = model.predictor_pullback(point, innovations, full)
        at_u = model.predictor_pullback(point, {**innovations, name: u}, full)
        accumulate(gradient, {key: at_u[key] - at_zero[key] for key in at_u})


def _accumulate_likelihood(
    gradient: dict[str, Array], bound: Any, evaluation: SiteEvaluation
) -> None:
    family, point = bound.family, bound.point
    moments = family.layout.moments(evaluation.mean, evaluation.cov)
    for site, y, own in zip(family.model.sites, family.y, moments, strict=True):
        total = partial(_expected, family.rule, site, y, own)
        accumulate(gradient, difference_slopes(total, point, site.params.names))


def _expected(
    rule: SiteRule, site: Site, y: Array, moments: tuple[Array, Array], point: Point
) -> float:
    """Return Σ ℓ of one observed variable at fixed moments."""
    value = rule.value(site, y, *moments, site.params(point))
    return float(np.sum(np.broadcast_to(value, y.shape)))
