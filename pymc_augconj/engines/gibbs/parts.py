"""The parts into which the Gibbs step divides the latents: one Gaussian move draws each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pymc_augconj.gaussian.sites import SiteLayout
from pymc_augconj.latents.certified import CertifiedConditioner
from pymc_augconj.latents.components import find_components, restricted_model
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.latents.space import choose_conditioner
from pymc_augconj.model import LatentGaussianModel, Point
from pymc_augconj.typing import Array, Index

from .site_terms import SiteData, SitesOf, SiteTerms

__all__ = ["Groups", "Part", "make_parts"]

Groups = tuple[tuple[int, ...], ...]


@dataclass
class Part:
    """The latents that one Gaussian move draws, and their conditioner.

    Attributes
    ----------
    blocks : tuple of int
        Latent blocks of the model.
    latents : tuple of ndarray of int
        Which of the latents of each of them.
    members : list of (SiteData, int)
        Observed variables, and the group of the predictors of each.
    rows : ndarray of int
        Those predictors in the stacked η.
    sites : SiteTerms
        Their sites given ω.
    priors : LatentPriors
        Of these latents and predictors alone.
    space : CertifiedConditioner
    eta, log_prior : ndarray, float
        The predictors and the log prior density of the latents that were drawn last.
    """

    blocks: tuple[int, ...]
    latents: tuple[Index, ...]
    members: list[tuple[SiteData, int]]
    rows: Index
    sites: SiteTerms
    priors: LatentPriors
    space: CertifiedConditioner
    eta: Array = field(default_factory=lambda: np.empty(0))
    log_prior: float = 0.0


def make_parts(
    model: LatentGaussianModel,
    data: Sequence[SiteData],
    points: Sequence[Point],
    groups_of: Callable[[SiteData], Groups],
    is_full: Callable[[SiteData], bool],
    is_exact: Callable[[SiteData], bool],
    sites_of: SitesOf,
) -> list[Part]:
    """Return the parts of a model.

    Parameters
    ----------
    model : LatentGaussianModel
    data : sequence of SiteData
        Its observed variables.
    points : sequence of mapping
        Values of θ at which predictors must agree to be merged.
    groups_of : callable
        The groups of predictors of an observed variable.
    is_full : callable
        Whether its sites have Λ as blocks.
    is_exact : callable
        Whether its site is its likelihood, without an ω.
    sites_of : callable
        Its sites.

    Raises
    ------
    AugmentationError
        If a latent enters two groups of one observed variable.
    """
    groups = [groups_of(one) for one in data]
    maps_at = [[read(point) for read in model.maps] for point in points]
    parts = []
    for component in find_components(model, groups, maps_at):
        members = [(data[s], g) for s, g in component.members]
        rows = [model.sites[s].row_numbers[list(groups[s][g])] for s, g in component.members]
        layout = SiteLayout([own.shape for own in rows], [is_full(one) for one, _ in members])
        stacked = np.concatenate([own.ravel() for own in rows])
        own_model = restricted_model(model, component, stacked)
        priors = LatentPriors(own_model, points, layout.coupling)
        maps = [read(points[0]) for read in own_model.maps]
        if priors.groups.inverse is not None:
            maps = [A.rows(priors.groups.first) for A in maps]
        space = choose_conditioner(own_model, priors.groups, maps)
        sites = SiteTerms(members, layout, priors.groups, sites_of, is_exact)
        latents = component.latents
        parts.append(Part(component.blocks, latents, members, stacked, sites, priors, space))
    return parts
