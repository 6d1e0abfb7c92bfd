"""The variational Gaussian approximation, for every likelihood with a log density.

The Gaussian q(f) that maximises E[log p(y | f)] − KL(q‖p) has, with mean m and covariance Σ,

    m = prior mean + K α,  αᵢ = E[∂ log p(yᵢ | ηᵢ)],
    Σ = (K⁻¹ + Λ)⁻¹,       λᵢ = −E[∂² log p(yᵢ | ηᵢ)],

2n numbers (Opper & Archambeau 2009). By the theorems of Bonnet and Price these expectations are
the derivatives of ℓ(m, v) = E[log p(y | η)] that :mod:`.bound` needs: ∂ℓ/∂m = α and ∂ℓ/∂v = −½λ.
A whole step may overshoot; the loop halves it until the bound increases.

Expectations are in closed form where the likelihood brings one, else by a nested trapezoidal rule
to 1e-10, see :mod:`pymc_augconj.quadrature.expectation`. λ < 0 occurs where log p is not concave.

References
----------
Opper, M. & Archambeau, C. (2009). The variational Gaussian approximation revisited. Neural
Computation 21.
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.likelihoods.base import DensityLikelihood
from pymc_augconj.quadrature.expectation import gaussian_expectation

__all__ = ["VariationalGaussian"]

# A predictor without a variance has no derivative by it that matters; keeps closed forms finite.
_SMALLEST_VAR = 1e-12


class VariationalGaussian:
    """The rule of the VGP; see :class:`~pymc_augconj.engines.variational.bound.SiteRule`."""

    monotone = False
    augmented = False

    def value(self, likelihood: DensityLikelihood, y, mean, var, params):
        return _expectations(likelihood, y, mean, var, params)[0]

    def targets(self, likelihood: DensityLikelihood, y, mean, var, params):
        value, d_mean, d_var = _expectations(likelihood, y, mean, var, params)
        lam = -2.0 * d_var
        return value, d_mean + lam * mean, lam


def _expectations(likelihood: DensityLikelihood, y, mean, var, params):
    var = np.maximum(var, _SMALLEST_VAR)
    closed = likelihood.expected_log_density(y, mean, var, params)
    if closed is not None:
        return closed
    if likelihood.n_predictors > 1:
        raise AugmentationError(
            f"{likelihood.name}: expected a likelihood of one predictor, whose expectations are "
            f"integrals over one η, found {likelihood.n_predictors}; use method='cavi'"
        )
    columns = {name: np.asarray(value) for name, value in params.items()}

    def log_density(eta, which):
        chosen = {
            name: value if value.ndim == 0 else np.broadcast_to(value, y.shape)[which, None]
            for name, value in columns.items()
        }
        return likelihood.log_density(y[which, None], eta, chosen)

    return gaussian_expectation(log_density, mean, var)
