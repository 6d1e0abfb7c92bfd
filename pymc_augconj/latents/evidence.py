"""The log evidence of the Gaussian move and its gradient with respect to hyperparameters.

Given sites (h, λ), log Z = log ∫ exp(Σ h η − ½ λ η²) p(η | θ) dη depends on θ only through the
prior mean and covariance of η, so its gradient is a vector–Jacobian product of the kernel,

    ∂ log Z/∂θ = ⟨G, ∂C/∂θ⟩ + αᵀ ∂offset/∂θ,      G = ½ (α αᵀ − R),

without a derivative of a Cholesky factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymc_augconj.errors import UncertainEvidenceError
from pymc_augconj.gaussian import observation_space
from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.linalg.rounding import LARGEST_ERROR
from pymc_augconj.model import LatentGaussianModel, Point
from pymc_augconj.typing import Array

from .derivatives import accumulate
from .joint import LatentPriors

__all__ = ["log_evidence_and_gradient"]


@dataclass(frozen=True)
class _DenseGradient:
    """A :class:`.PredictorGradient` given as a matrix."""

    matrix: Array

    def congruence(self, A: LinearMap) -> Array:
        return A.congruence(self.matrix)

    def congruence_diagonal(self, A: LinearMap) -> Array:
        dense = A.dense()
        return np.einsum("ij,ij->j", self.matrix @ dense, dense)


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
        By entry of the point; entries without influence are absent.

    Raises
    ------
    UncertainEvidenceError
        If its rounding error is above one nat.
    NotPositiveDefiniteError
        If the covariance has no Cholesky factor.
    """
    prior = priors.at(point)
    merged = priors.groups.merge(h, lam, prior.offset)
    diagonal, rotation = priors.groups.merged.diagonalize(merged.lam)
    K, H = prior.covariance_and_border
    H = rotation.forward(H.T).T
    factor = observation_space.factorize(rotation.congruence(K), diagonal, H=H)
    posterior = observation_space.condition(
        factor, np.zeros_like(merged.h), rotation.forward(merged.h)
    )
    if not posterior.error <= LARGEST_ERROR:
        raise UncertainEvidenceError("rounding leaves no digits of the log evidence")
    G = _DenseGradient(rotation.congruence_back(posterior.gradient_wrt_cov()))
    gradient: dict[str, Array] = {}

    for block, A in zip(prior.blocks, prior.maps, strict=True):
        if block.block.scale.names and block.block.scale_pullback is not None:
            accumulate(gradient, block.block.scale_pullback(point, block.pull_cov(A, G)))

    centred = priors.groups.expand(rotation.back(posterior.mean))
    alpha = h - priors.groups.coupling.product(lam, prior.offset + centred)
    zeros = {b.name: np.zeros(b.total_size) for b in model.blocks}
    accumulate(gradient, model.predictor_pullback(point, zeros, alpha))
    return merged.constant + posterior.log_normalizer, gradient
