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

from pymc_augconj.quadrature.panels import Quadrature
from pymc_augconj.quadrature.tilted import tilted_moments

from .objective import EPEvaluation, EPObjective

__all__ = ["tilted_quadratures"]


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
