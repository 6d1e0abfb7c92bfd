"""Derivatives of EP's evidence at a fixed point.

There log Z is stationary in sites and cavities, so that only what depends on a hyperparameter
explicitly counts (Opper & Winther 2005, Seeger 2005):

    ∂ log Z/∂C = G = ½ (α αᵀ − R),    ∂ log Z/∂m = α = h − Λμ,
    ∂ log Z/∂θᵢ = E_tilted[∂ log p(yᵢ | f, θᵢ)/∂θᵢ],

the last for any power η. The derivative of log p is a central difference of fourth order, taken
inside the expectation: nodes and weights are the same for every step, so the error is that of the
stencil on log p alone, about 1e-12 of its fifth derivative plus 1e-13 |log p| of rounding. (A
difference of log Ẑ would amplify the error of two quadratures by the inverse of the step.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pymc_augconj.latents.derivatives import STENCIL
from pymc_augconj.likelihoods.density import LikelihoodDensity
from pymc_augconj.quadrature.panels import Quadrature
from pymc_augconj.quadrature.tilted import tilted_moments
from pymc_augconj.typing import Array

from .objective import EPEvaluation, EPObjective
from .sites import CovariancePosterior

__all__ = ["covariance_gradient", "likelihood_gradient", "mean_gradient", "tilted_quadratures"]


_STEP = 1e-3


def covariance_gradient(evaluation: EPEvaluation) -> Array:
    """Return G, shape (N, N): d log Z = Σᵢⱼ Gᵢⱼ dCᵢⱼ for symmetric dC.

    The evaluation's prior is a :class:`~pymc_augconj.engines.ep.sites.CovariancePrior`.
    """
    assert isinstance(evaluation.posterior, CovariancePosterior)
    return evaluation.posterior.gradient_wrt_cov()


def mean_gradient(evaluation: EPEvaluation) -> Array:
    """Return ∂ log Z/∂m, shape (N,)."""
    return evaluation.h - evaluation.lam * evaluation.mean


def tilted_quadratures(objective: EPObjective, at: EPEvaluation) -> list[Quadrature]:
    """Return the nodes and weights of the tilted distributions, one object for each group."""
    if at.tilted.quadrature is not None:
        return [at.tilted.quadrature]
    found = []
    for group in objective.groups:
        mean, var = at.cavity_mean[group.rows], at.cavity_var[group.rows]
        quadrature = tilted_moments(group.density, mean, var, power=objective.power).quadrature
        assert quadrature is not None  # only a closed form has none
        found.append(quadrature)
    return found


def likelihood_gradient(
    objective: EPObjective, at: EPEvaluation, names: Sequence[str], group: int = 0
) -> dict[str, Array]:
    """Return E_tilted[∂ log p(yᵢ | f)/∂θᵢ] for parameters of one group's likelihood.

    Parameters
    ----------
    objective : EPObjective
        Whose ``groups[group].density`` is a LikelihoodDensity.
    at : EPEvaluation
        A fixed point.
    names : sequence of str
        Continuous parameters.

    Returns
    -------
    dict
        By name, shape (size,): a parameter that all sites share has the sum as its derivative.
    """
    density = objective.groups[group].density
    if not isinstance(density, LikelihoodDensity):
        raise TypeError(f"expected a likelihood with named parameters, got {density!r}")
    quadrature = tilted_quadratures(objective, at)[group]
    gradient = {}
    for name in names:
        value = np.asarray(density.params[name], dtype=float)
        step = _STEP * np.where(value == 0.0, 1.0, np.abs(value))
        slope = np.zeros(density.size)
        for steps, weight in STENCIL:
            moved = density.with_params({**density.params, name: value + steps * step})
            slope += weight * quadrature.expect(moved)
        gradient[name] = slope / np.broadcast_to(step, slope.shape)
    return gradient
