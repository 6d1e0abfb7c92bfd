"""Observed variables, and how the site of each is handled.

It is given by the augmented likelihood itself, which draws ω; or it is *held*, by something that is
asked the same. The site of a likelihood without an ω is *exact*, the likelihood as a function of
the predictors.

Where parameters θ of a density move, its sites follow them. With m and v
the moments of η that they were chosen for, d = √(3 v), and ℓ₋, ℓ₀, ℓ₊ the log densities at m − d, m
and m + d, three points of Gauss and Hermite give E ∂ log p = (ℓ₊ − ℓ₋)/(2d) and
−E ∂² log p = (2ℓ₀ − ℓ₊ − ℓ₋)/d². The first changes h by what it changed itself since the sites were
chosen, and λ is multiplied by the ratio of the second; relative to c̄ where the moments are. Any
sites that are a function of θ are exact: given the latents θ moves while they are not in use, and
with the latents integrated out they move with it, and so does m, see :mod:`.followed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.contract import MultiLikelihood, Traits
from pymc_augconj.model import Site
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Index

from .followed import mean_at, moved_sites
from .held_sites import HeldSites

# Step of differences in place of gradients, which trajectories need roughly only.
_STEP = 1e-4


class Held:
    """A held site in place of an augmentation, and what it leaves of the density."""

    traits = Traits(coupled=True)

    def __init__(self, site: Site, sites: HeldSites) -> None:
        self._site, self.held_sites = site, sites
        # Chosen sites, parameters, and the sites at these.
        self._at: tuple[Any, Any, Any] = (None, None, None)
        self.groups = (tuple(range(site.likelihood.n_predictors)),)

    def draw_auxiliary(
        self, rng: Any, y: Array, eta: Array, params: Mapping[str, Array], group: int
    ) -> tuple[Array, Array]:
        """Return the sites in place of ω: one object until they change."""
        return self.follow(y, params)

    def follow(self, y: Array, params: Params, point: Point | None = None) -> tuple[Array, Array]:
        """Return the sites at some parameters, which they are those of from now on.

        Those of a ``point`` are about the mean that latents have there.
        """
        chosen = self.held_sites.of(self._site.name)
        reference = self.held_sites.references.get(self._site.name)
        if reference is not None and not (self._at[0] is chosen and self._at[1] is params):
            self._at = chosen, params, self._moved(chosen, reference, y, params, point)
        return self.sites()

    def sites(self, *given: Any) -> tuple[Array, Array]:
        """Return (h, Λ): those of the last draw of ω, if they were chosen before it."""
        chosen = self.held_sites.of(self._site.name)
        found: tuple[Array, Array] = self._at[2] if self._at[0] is chosen else chosen
        return found

    def _moved(
        self, chosen: tuple[Array, Array], reference: Array, y: Array, params: Params,
        point: Point | None,
    ) -> tuple[Array, Array]:  # fmt: skip
        h, lam = chosen[0][0], chosen[1][0, 0]
        by, far = self.held_sites.moved(self._site, params)
        h, mean = h + lam * by, reference[0] + by
        if far:
            reference = np.vstack([mean, reference[1:]])
            if point is not None and self.held_sites.collapsed:
                mean = mean_at(self.held_sites.theta(point), reference)
            h, lam = moved_sites(self._site, params, y, h, lam, reference, mean)
        return h[None], lam[None, None]

    @property
    def record(self) -> tuple[Array, Array]:
        """h, λ and the reference of every predictor, NaN where sites follow nothing.

        And the same of every two predictors of an observation: what couples them, in place of λ.
        """
        h, lam = self.held_sites.of(self._site.name)
        own, two = np.arange(len(h)), np.triu_indices(len(h), 1)
        nothing = np.full((4 + 4 * self.held_sites.size, h.size), np.nan)
        reference = self.held_sites.references.get(self._site.name, nothing)
        found = np.vstack([h.ravel(), lam[own, own].ravel(), reference])
        pairs = np.full((len(found), lam[two].size), np.nan)
        pairs[1] = lam[two].ravel()
        return found, pairs

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
        if len(eta) == 1:
            # In place, as arrays of all rows do not stay in the cache.
            slope = lam[0, 0] * eta[0]
            slope *= -0.5
            slope += h[0]
            slope *= eta[0]
            return np.subtract(log_density, slope, out=slope)
        slope = h[:, None] - 0.5 * np.einsum("pqn,qkn->pkn", lam, eta)
        return np.asarray(log_density - (eta * slope).sum(axis=0))

    def residual_and_gradient(
        self, y: Array, eta: Array, params: Mapping[str, Array]
    ) -> tuple[float, Array]:
        """Return r at the predictors (P, N), and its gradient; P = 1 where that has no formula."""
        (h, lam), likelihood = self.sites(), self._site.likelihood
        if likelihood.traits.has_gradient:
            value, slope = likelihood.log_density_and_gradient(y, eta, params)
        else:
            value, above, below = (
                likelihood.log_density(y, eta + step, params) for step in (0.0, _STEP, -_STEP)
            )
            slope = np.nan_to_num((above - below) / (2.0 * _STEP), posinf=0.0, neginf=0.0)[None]
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

    @property
    def centre(self) -> Array:
        """The predictors that its site is written about; zeros before any ω was drawn."""
        if isinstance(self.how, Held):
            return self.how.held_sites.mean_of(self.site.name)
        return self.eta if self.eta.size else np.zeros((self.site.likelihood.n_predictors, 1))

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
