"""Coordinate ascent on the augmented model: q(f) q(ω), each optimal given the other.

The update of q(ω) given q(f) is in closed form, and q(f) depends on it through the expected site
only. With q(ω) at its optimum, the bound of one site is

    ℓ(m, v) = log ∫ exp( h(ω) m − ½ λ(ω) (m² + v) + log_base(y, ω) ) dω,

whose derivatives are ∂ℓ/∂m = E[h] − E[λ] m and ∂ℓ/∂v = −½ E[λ]: the target sites of
:mod:`.bound` are the expected sites, and a step onto them is a sweep of coordinate ascent, which
never decreases the bound. Since ℓ ≤ E[log p(y | η)], the bound is below the bound of the VGP.

References
----------
Galy-Fajou, T., Wenzel, F. & Opper, M. (2020). Automated augmented conjugate inference for
non-conjugate Gaussian process models. AISTATS, algorithm 1.
"""

from __future__ import annotations

from pymc_augconj.likelihoods.base import Params
from pymc_augconj.model import Site
from pymc_augconj.typing import Array


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
