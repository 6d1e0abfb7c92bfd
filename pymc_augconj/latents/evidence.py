"""The log evidence of the Gaussian move and its gradient with respect to hyperparameters.

Given sites (h, λ), log ∫ exp(Σ h η − ½ λ η²) p(η | θ) dη depends on θ through the prior mean and
covariance of η alone, so its gradient is a vector–Jacobian product of the kernel,

    ∂ log Z/∂θ = ⟨G, ∂C/∂θ⟩ + αᵀ ∂offset/∂θ,      G = ½ (α αᵀ − R),

and no derivative of a Cholesky factor is ever taken.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.gaussian import observation_space
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.model import LatentGaussianModel, Point

from .derivatives import accumulate
from .joint import BlockPrior, LatentPriors

__all__ = ["log_evidence_and_gradient"]

Array = NDArray[np.float64]


def log_evidence_and_gradient(
    model: LatentGaussianModel, priors: LatentPriors, point: Point, h: Array, lam: Array
) -> tuple[float, dict[str, Array]]:
    """Return the log evidence at ``point`` and its derivatives.

    Parameters
    ----------
    model, priors
        The model and its priors; conditioning is in observation space.
    point : mapping
        θ on the unconstrained scale.
    h, lam : ndarray, shape (N,)
        Sites of every predictor, before merging.

    Returns
    -------
    value : float
    gradient : dict
        By entry of the point; entries the evidence does not depend on are absent.

    Raises
    ------
    NotPositiveDefiniteError
        Where the covariance has no Cholesky factor.
    """
    prior = priors.at(point)
    merged_h, merged_lam, constant = priors.groups.merge(h, lam, prior.offset)
    factor = observation_space.factorize(prior.predictor_cov, merged_lam)
    posterior = observation_space.condition(factor, np.zeros_like(merged_h), merged_h)
    G = posterior.gradient_wrt_cov()
    gradient: dict[str, Array] = {}

    for block, A in zip(prior.blocks, prior.maps, strict=True):
        if block.block.scale.names and block.block.scale_pullback is not None:
            weights = _weights_of_scale(block, A, G)
            accumulate(gradient, block.block.scale_pullback(point, weights))

    centred = posterior.mean
    if priors.groups.inverse is not None:
        centred = centred[priors.groups.inverse]
    alpha = h - lam * (prior.offset + centred)
    zeros = {b.name: np.zeros(b.total_size) for b in model.blocks}
    accumulate(gradient, model.predictor_pullback(point, zeros, alpha))
    return constant + posterior.log_normalizer, gradient


def _weights_of_scale(block: BlockPrior, A: LinearMap, G: Array) -> Array:
    """Return the derivative of ⟨G, A K Aᵀ⟩ with respect to K, or to the standard deviations."""
    if A.is_identity and block.std is None:
        return G
    if block.std is not None:
        dense = A.dense()
        return 2.0 * block.std * np.einsum("ij,ij->j", G @ dense, dense)
    size, copies = block.block.size, block.block.copies
    if isinstance(A, RowSelection) and copies == 1:
        weighted = G if A.coef is None else G * np.multiply.outer(A.coef, A.coef)
        total = np.zeros((size, size))
        np.add.at(total, (A.index[:, None], A.index[None, :]), weighted)
        return total
    total = np.zeros((size, size))
    for part in np.split(A.dense(), copies, axis=1):
        total += part.T @ G @ part
    return total
