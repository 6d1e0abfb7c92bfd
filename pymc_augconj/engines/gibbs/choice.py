"""Whether sites are held where there is an auxiliary variable too.

Given ω the latents have the precision M_ω = I + Φᵀ Λ_ω Φ, where the posterior has about
M = I + Φᵀ Λ Φ, Λ = −∂² log p. Draws with auxiliary variables have the autocorrelation 1 − γ,

    γ = min_v (vᵀ M v) / (vᵀ M_ω v),

before over-relaxation. Rare classes make γ small; held sites do not depend on it, but a step takes
two to four times as long. Effective samples a second, held sites over auxiliary variables: 0.6 to
1.5 for regressions with γ > 0.3, 3 to 30 below 0.1; 0.4 to 2.4 for Gaussian processes. So
``sites="auto"`` holds the sites of counts and classes where nothing but the latents is learned, γ
is below 0.3, and latents are fewer than observations and so few that γ costs next to nothing.

Several classes have a predictor each, and auxiliary variables draw one given the others: held sites
give 1.0 to 106 times as many effective samples a second, and are taken. So they are for groups of
predictors that a latent or a held site ties together, which have no Gaussian conditional.

References
----------
Johndrow, Smith, Pillai & Dunson (2019), MCMC for imbalanced categorical data. JASA 114.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from scipy.linalg import eigh

from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.latents.choice import condition
from pymc_augconj.latents.components import find_components
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.plan import held_names
from pymc_augconj.point import Point

from .observed import HeldSites

# Below this γ sites are held.
_SMALL_SHARE = 0.3
# Latents for which γ is computed.
_MANY_LATENTS = 100


def choose_held(
    model: LatentGaussianModel, point: Point, sites: str = "auto", probes: Sequence[Point] = ()
) -> tuple[str, ...]:
    """Return the observed variables whose sites are held, for a chain that starts at ``point``.

    ``sites`` is as for :func:`pymc_augconj.plan.held_names`; "auto" is the choice of the module's
    docstring. ``probes`` are other values of θ, at which a latent may enter other predictors.
    """
    held = held_names(model, sites)
    if sites != "auto":
        return held
    classes = {
        s.name for s in model.sites if s.likelihood.discrete and s.likelihood.n_predictors > 1
    }
    over_grid = any(block.grid for block in model.blocks)
    held = tuple(
        s.name
        for s in model.sites
        if s.name in {*held, *classes} or (over_grid and not _has_one_precision(s, point))
    )
    # Groups of predictors are sampled one after the other only where no latent ties them.
    grouped = {s.name for s in model.sites if len(s.likelihood.groups) > 1}
    if grouped and _is_tied(model, held, [point, *probes]):
        return tuple(s.name for s in model.sites if s.name in grouped.union(held))
    if held or model.latent_size >= min(model.n_rows, _MANY_LATENTS + 1):
        return held
    kinds = [site.likelihood for site in model.sites]
    if not all(k.discrete and k.has_auxiliary and k.n_predictors == 1 for k in kinds):
        return held
    if model.hyperparameters:
        return held
    small = share_of_information(model, point) < _SMALL_SHARE
    return tuple(site.name for site in model.sites) if small else ()


def _has_one_precision(site: Site, point: Point) -> bool:
    """Return whether all sites are exact, with one precision, which leaves a grid its structure."""
    normal = getattr(site.likelihood, "as_normal", None)
    found = normal(site.y(point), site.params(point)) if normal else None
    return found is not None and np.size(found[1]) == 1


def _is_tied(model: LatentGaussianModel, held: Collection[str], points: Sequence[Point]) -> bool:
    """Return whether latents enter, or held sites tie, two groups of predictors."""
    groups = [
        (tuple(range(site.shape[0])),) if site.name in held else site.likelihood.groups
        for site in model.sites
    ]
    try:
        find_components(model, groups, [[read(p) for read in model.maps] for p in points])
    except AugmentationError:
        return True
    return False


def share_of_information(model: LatentGaussianModel, point: Point) -> float:
    """Return γ at ``point`` and the variational Gaussian approximation there.

    One where there is none.
    """
    sites = HeldSites(model, [site.name for site in model.sites], ())
    try:
        sites.choose(point)
        priors = LatentPriors(model, [point])
        prior = priors.at(point).factorized()
    except NotPositiveDefiniteError:
        return 1.0
    posterior = condition(prior, priors.groups, *sites.chosen, solver="weight")
    design = prior.predictor(prior.innovations(np.eye(model.latent_size))) - prior.offset
    expected = []
    for site in model.sites:
        mean, var = site.select(posterior.mean), site.select(posterior.var)
        y = site.y(point)
        expected.append(site.likelihood.expected_sites(y, mean, var, site.params(point))[1].ravel())
    held, augmented = (
        np.eye(model.latent_size) + (design * lam) @ design.T
        for lam in (sites.chosen[1], np.concatenate(expected))
    )
    share = eigh(held, augmented, eigvals_only=True, subset_by_index=[0, 0])[0]
    return float(share) if np.isfinite(share) else 1.0
