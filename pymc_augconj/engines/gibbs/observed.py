"""Observed variables, and how the site of each is handled.

It is given by the augmented likelihood itself, which draws ω; or it is *held*, see
:mod:`.held_sites`, by something that is asked the same. The site of a likelihood without an ω is
*exact*, the likelihood as a function of the predictors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_augconj.likelihoods.contract import MultiLikelihood, Traits
from pymc_augconj.model import Site
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Index

from .held_sites import HeldSites


class Held:
    """A held site in place of an augmentation, and what it leaves of the density."""

    traits = Traits(coupled=True)

    def __init__(self, site: Site, sites: HeldSites) -> None:
        self._site, self.held_sites = site, sites
        self.groups = (tuple(range(site.likelihood.n_predictors)),)

    def draw_auxiliary(self, *given: Any) -> None:
        """Return no ω."""

    def sites(self, *given: Any) -> tuple[Array, Array]:
        """Return (h, Λ)."""
        return self.held_sites.of(self._site.name)

    def residuals(
        self, y: Array, eta: Array, params: Mapping[str, Array], rows: Index | None = None
    ) -> Array:
        """Return r of each observation, (count, N), at predictors of shape (P, count, N).

        With ``rows`` the predictors are those of some observations.
        """
        h, lam = self.sites()
        if rows is not None:
            params = {
                name: np.broadcast_to(value, y.shape)[rows] if np.ndim(value) else value
                for name, value in params.items()
            }
            y, h, lam = y[rows], h[:, rows], lam[:, :, rows]
        log_density = self._site.likelihood.log_density(y, eta, params)
        slope = h[:, None] - 0.5 * np.einsum("pqn,qkn->pkn", lam, eta)
        return np.asarray(log_density - (eta * slope).sum(axis=0))

    def residual_and_gradient(
        self, y: Array, eta: Array, params: Mapping[str, Array]
    ) -> tuple[float, Array]:
        """Return r at the predictors (P, N), and its gradient."""
        h, lam = self.sites()
        value, slope = self._site.likelihood.log_density_and_gradient(y, eta, params)
        weighted = np.einsum("pqn,qn->pn", lam, eta)
        return float(value.sum() - np.sum(eta * (h - 0.5 * weighted))), slope - h + weighted


@dataclass
class SiteData:
    """An observed variable, its observations, and the predictors and parameters used last.

    ``how`` its site is handled; ``exact`` where it is the likelihood, without an ω.
    """

    site: Site
    how: MultiLikelihood | Held
    exact: bool
    y: Array
    eta: Array = field(default_factory=lambda: np.empty(0))
    params: Mapping[str, Array] = field(default_factory=dict)

    def log_densities(self, eta: Array, point: Point) -> Array:
        """Return log p(y | η) of every observation, given all predictors."""
        return self.site.likelihood.log_density(
            self.y, self.site.select(eta), self.site.params(point)
        )


def observe(site: Site, sites: HeldSites | None, point: Point) -> SiteData:
    """Return an observed variable; its site is held where ``sites`` name it."""
    y = site.y(point)
    if sites is not None and site.name in sites.held:
        return SiteData(site, Held(site, sites), False, y)
    return SiteData(site, site.likelihood, not site.likelihood.has_auxiliary, y)
