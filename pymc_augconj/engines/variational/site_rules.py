"""The site rules of the variational Gaussian approximation, and of coordinate ascent.

For every likelihood with a log density, the Gaussian q(f) that maximises E[log p(y | f)] − KL(q‖p)
has, with mean m and covariance Σ,

    m = prior mean + K α,  αᵢ = E[∂ log p(yᵢ | ηᵢ)],
    Σ = (K⁻¹ + Λ)⁻¹,       λᵢ = −E[∂² log p(yᵢ | ηᵢ)],

2n numbers; λ < 0 where log p is not concave. By the theorems of Bonnet and Price these expectations
are the derivatives of ℓ(m, v) = E[log p(y | η)] that :mod:`.bound` needs: ∂ℓ/∂m = α, ∂ℓ/∂v = −½λ.
A whole step may overshoot; the loop halves it until the bound increases. With P predictors αᵢ is a
vector and λᵢ a P × P matrix under their joint distribution, unless the expectation is known for
independent predictors alone. Without a closed form a nested trapezoidal rule of up to four
predictors has an error of 1e-10, see :mod:`pymc_augconj.quadrature.expectation`.

Coordinate ascent on the augmented model has q(f) q(ω), each optimal given the other. The update of
q(ω) given q(f) is in closed form, and q(f) depends on it through the expected site only. With q(ω)
at its optimum, the bound of one site is

    ℓ(m, v) = log ∫ exp( h(ω) m − ½ λ(ω) (m² + v) + log_base(y, ω) ) dω,

whose derivatives are ∂ℓ/∂m = E[h] − E[λ] m and ∂ℓ/∂v = −½ E[λ]: the target sites of
:mod:`.bound` are the expected sites, and a step onto them is a sweep of coordinate ascent, which
never decreases the bound. Since ℓ ≤ E[log p(y | η)], the bound is below the bound of the VGP.

References
----------
Opper, M. & Archambeau, C. (2009). The variational Gaussian approximation revisited. Neural
Computation 21.
Galy-Fajou, T., Wenzel, F. & Opper, M. (2020). Automated augmented conjugate inference for
non-conjugate Gaussian process models. AISTATS, algorithm 1.
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.likelihoods.base import Expected, Params
from pymc_augconj.likelihoods.contract import MultiDensity
from pymc_augconj.model import Site
from pymc_augconj.quadrature.expectation import (
    MOST_PREDICTORS,
    gaussian_cubature,
    quasi_monte_carlo_by_values,
)
from pymc_augconj.typing import Array, Index


class CoordinateAscent:
    """The rule of CAVI; see :class:`~pymc_augconj.engines.variational.bound.SiteRule`."""

    monotone = True
    augmented = True

    def full(self, site: Site) -> bool:
        return site.likelihood.traits.coupled

    def value(self, site: Site, y: Array, mean: Array, cov: Array, params: Params) -> Array:
        return site.likelihood.expected_log_bound(y, mean, cov, params)

    def targets(
        self, site: Site, y: Array, mean: Array, cov: Array, params: Params
    ) -> tuple[Array, Array, Array]:
        value = site.likelihood.expected_log_bound(y, mean, cov, params)
        return value, *site.likelihood.expected_sites(y, mean, cov, params)


# Keeps closed forms finite; the derivative by a variance of zero does not matter.
_SMALLEST_VAR = 1e-12
# The most predictors for which a few digits are not cheaper than the grid: three take 10^4 nodes.
_CHEAP_PREDICTORS = 2


class VariationalGaussian:
    """The rule of the VGP; see :class:`~pymc_augconj.engines.base.SiteRule`."""

    monotone = False
    augmented = False

    def __init__(self, factorised: bool = False, *, rough: bool = False) -> None:
        self.factorised, self.rough = factorised, rough

    def full(self, site: Site) -> bool:
        return not (self.factorised or site.likelihood.traits.factorises)

    def value(self, site: Site, y: Array, mean: Array, cov: Array, params: Params) -> Array:
        return expectations(site.likelihood, y, mean, cov, params, rough=self.rough)[0]

    def targets(
        self, site: Site, y: Array, mean: Array, cov: Array, params: Params
    ) -> tuple[Array, Array, Array]:
        value, d_mean, d_cov = expectations(site.likelihood, y, mean, cov, params, rough=self.rough)
        if cov.ndim == mean.ndim:
            lam = -2.0 * d_cov
            return value, d_mean + lam * mean, lam
        lam = -2.0 * d_cov
        return value, d_mean + np.einsum("pqn,qn->pn", lam, mean), lam


def expectations(
    terms: MultiDensity, y: Array, mean: Array, cov: Array, params: Params, *, rough: bool = False
) -> Expected:
    """Return E[log p(y | η)], η ~ N(mean, cov), and its derivatives by mean and by cov.

    Shapes are those of :meth:`.MultiDensity.expected_log_density`. For independent predictors
    ``cov`` and its derivative have the shape (P, N). With ``rough`` a few digits suffice.
    """
    P = len(mean)
    if cov.ndim == mean.ndim:
        var = np.maximum(cov, _SMALLEST_VAR)
        found = terms.expected_log_density_apart(y, mean, var, params)
        if found is not None:
            return found
        whole = np.einsum("pq,pn->pqn", np.eye(P), var)
        value, d_mean, d_cov = expectations(terms, y, mean, whole, params, rough=rough)
        return value, d_mean, np.einsum("ppn->pn", d_cov)
    cov = cov.copy()
    cov[np.arange(P), np.arange(P)] = np.maximum(cov[np.arange(P), np.arange(P)], _SMALLEST_VAR)
    closed = terms.expected_log_density(y, mean, cov, params)
    if closed is not None:
        return closed
    columns = {name: np.asarray(value) for name, value in params.items()}

    def log_density(eta: Array, which: Index) -> Array:
        chosen = {
            name: value if value.ndim == 0 else np.broadcast_to(value, y.shape)[which, None]
            for name, value in columns.items()
        }
        return terms.log_density(y[which, None], eta, chosen)

    if rough and P > _CHEAP_PREDICTORS:
        return quasi_monte_carlo_by_values(log_density, mean, cov)
    if P > MOST_PREDICTORS:
        raise AugmentationError(
            f"{terms.name}: expected at most {MOST_PREDICTORS} predictors of an observation where "
            f"a fit needs the expectation of its log density by quadrature, found {P}, which would "
            f"take some 10^{P} nodes for each; use pac.sample, which is exact without it"
        )
    return gaussian_cubature(log_density, mean, cov)
