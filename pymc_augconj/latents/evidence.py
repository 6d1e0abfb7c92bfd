"""The gradient of the log evidence of the Gaussian move with respect to hyperparameters.

Given sites (h, λ), log Z = log ∫ exp(Σ h η − ½ λ η²) p(η | θ) dη depends on θ only through the
prior mean and covariance of η, so its gradient is a vector–Jacobian product of the kernel,

    ∂ log Z/∂θ = ⟨G, ∂C/∂θ⟩ + αᵀ ∂offset/∂θ,      G = ½ (α αᵀ − R),

without a derivative of a Cholesky factor.
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.errors import UncertainEvidenceError
from pymc_augconj.linalg.rounding import LARGEST_ERROR
from pymc_augconj.model import LatentGaussianModel, Point
from pymc_augconj.typing import Array

from .by_observations import ObservationSolver
from .derivatives import accumulate
from .joint import LatentPriors

__all__ = ["log_evidence_and_gradient"]


def log_evidence_and_gradient(
    model: LatentGaussianModel,
    priors: LatentPriors,
    point: Point,
    h: Array,
    lam: Array,
    origin: Array | float = 0.0,
) -> tuple[float, dict[str, Array]]:
    """Return the log evidence at ``point`` and its derivatives.

    Parameters
    ----------
    model, priors
        The model and its priors; the solver is the one by observations.
    point : mapping
        θ on the unconstrained scale.
    h, lam : ndarray, shape (N,)
        Sites of every predictor, before merging.
    origin : ndarray, shape (N,), optional
        What the sites are functions of is η − origin.

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
    prior, groups = priors.at(point), priors.groups
    sites = groups.sites(h, lam, prior.offset, origin)
    posterior = ObservationSolver(model.blocks, groups).posterior(prior, sites)
    if not posterior.error <= LARGEST_ERROR:
        raise UncertainEvidenceError("rounding leaves no digits of the log evidence")
    gradient: dict[str, Array] = {}
    for i, block in enumerate(model.blocks):
        if block.scale.names and block.scale_pullback is not None:
            accumulate(gradient, block.scale_pullback(point, posterior.pull_cov(i)))
    zeros = {b.name: np.zeros(b.total_size) for b in model.blocks}
    alpha = h - groups.coupling.product(lam, posterior.mean - origin)
    accumulate(gradient, model.predictor_pullback(point, zeros, alpha))
    return posterior.log_normalizer, gradient
