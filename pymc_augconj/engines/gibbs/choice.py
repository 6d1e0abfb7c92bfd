"""Whether sites are held where there is an auxiliary variable too.

Given ω the latents have the precision I + Φᵀ Λ_ω Φ, where the posterior has about I + Φᵀ Λ Φ,
Λ = −∂² log p. Where ω knows too much, as of rare classes, its draws hardly move; held sites do not
depend on it, no site is drawn, and nothing is factorised where nothing but the latents is learned.
Effective samples a second in the compiled loop, held sites over auxiliary variables: 1.7 to 2.9 in
processes and walks, 1.4 and 2.5 for ten trials, 1.0 to 4.0 in regressions with 10 to 30 columns,
whose cross products every ω weights anew. It was 0.2 with six scales, and 0.8 with 100 000 rows in
300 groups. So ``sites="auto"`` holds those of counts and classes where at most three numbers, or at
most 500 latents, are learned from up to 20 000 rows, unless observations can be summed to a fourth
of as many, or latents are drawn by factor.

For single trials of which at most eight independent latents enter a predictor, and whose ω has at
most 1.5 times the likelihood's precision, the fit decides. It was 0.8 to 2.8, 1.2 in the middle, in
18 models with group effects, slopes, crossed effects or up to seven columns where the log ratio of
likelihood to sites has a standard deviation of at most 0.4; and 0.6 to 1.9 in eight others, with
many latents of ten or twenty trials each; and 0.4 to 0.8 where nothing but more than 50 latents is
learned. Both of these have ω. It was 9 to 95 where classes are separated (2.2 to 3.5 times the
precision), and 0.9 to 1.3 for rates of 5 and 12 %.

Whatever is learned, sites are held if ω has more than ten times the likelihood's precision at the
overall rate, as for rates of 1 % or counts of a hundred α: 1.5 to 63 times the effective samples a
second there. So are those whose ω the compiled loop does not draw: probits, 6 to 28 times with two
to six scales; logistic and Matérn noise, 3 to 25 times in regressions, effects, walks and a process
of 60 values, and 1.0 to 1.3 times for processes that the loop does not have and for 30 000 rows in
1 000 groups.

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
from scipy.special import expit

from pymc_augconj.auxiliary.polya_gamma.distribution import mean_polya_gamma
from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.latents.choice import solver_of_step
from pymc_augconj.latents.components import find_components
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.plan import held_names
from pymc_augconj.point import Point

from .factors import choose_factors
from .pooled import pool

# Latents for which the compiled loop's dense roots are small, and cost nothing; hyperparameters of
# which one ellipse moves all; rows beyond which they gain nothing; how many times fewer auxiliary
# variables there are than observations where these are summed before; precision of the site given ω
# over that of the likelihood, beyond which ω knows too much.
_MANY_LATENTS, _FEW_LATENTS, _MANY_LEARNED, _MANY_ROWS = 500, 50, 3, 20_000
_FEWER, _TOO_PRECISE = 4, 10.0
# The same ratio, and latents of a predictor, up to which ω of single trials may be better; steps to
# a Gaussian approximation, means of predictors there at most, and rows that are looked at.
_AS_PRECISE, _FEW_ENTRIES, _STEPS, _FAR, _SOME_ROWS = 1.5, 8, 4, 15.0, 100
# Standard deviation of the log ratio of likelihood to held sites, up to which these are better
# all the same; and draws from which it is found.
_FIT_WELL, _DRAWS = 0.4, 20


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
    several = [s for s in model.sites if s.likelihood.n_predictors > 1]
    classes = {s.name for s in several if s.likelihood.discrete}
    over_grid = any(block.grid for block in model.blocks)
    held = tuple(
        s.name
        for s in model.sites
        if s.name in {*held, *classes}
        or (over_grid and not _has_one_precision(s, point))
        or _knows_too_much(model, s, [point, *probes])
    )
    # Groups of predictors are sampled one after the other only where no latent ties them.
    grouped = {s.name for s in model.sites if len(s.likelihood.groups) > 1}
    if grouped and _is_tied(model, held, [point, *probes]):
        return tuple(s.name for s in model.sites if s.name in grouped.union(held))
    kinds, points = [site.likelihood for site in model.sites], [point, *probes]
    alone = all(k.discrete and k.has_auxiliary and k.n_predictors == 1 for k in kinds)
    learned = sum(h.size for h in model.hyperparameters)
    is_small = not learned and model.latent_size <= _FEW_LATENTS
    every = tuple(s.name for s in model.sites if s.name in held or s.likelihood.prefers_held)
    if (
        (not held and alone)
        and (learned <= _MANY_LEARNED and model.n_rows <= _MANY_ROWS)
        and (learned or model.latent_size <= _MANY_LATENTS)
        and _FEWER * pool(model, points).n_rows >= model.n_rows
        and (is_small or not _are_good_auxiliaries(model, points))
    ):
        every = tuple(site.name for site in model.sites)
    if every == held or choose_factors(model, every, point, LatentPriors(model, points).groups):
        return held
    return every


def _has_one_precision(site: Site, point: Point) -> bool:
    """Return whether all sites are exact, with one precision, which leaves a grid its structure."""
    found = site.likelihood.as_normal(site.y(point), site.params(point))
    return found is not None and np.size(found[1]) == 1


def _knows_too_much(model: LatentGaussianModel, site: Site, points: Sequence[Point]) -> bool:
    """Return whether ω is too precise at the overall rate; the more so where rows are summed."""
    found = site.likelihood.as_logistic(site.y(points[0]), site.params(points[0]))
    if found is None:
        return False
    p = (found[0].sum() + 0.5) / (np.broadcast_to(found[1], site.size).sum() + 1.0)
    ratio = (p - 0.5) / (np.log(p / (1.0 - p)) * p * (1.0 - p)) if p != 0.5 else 1.0
    return ratio > _TOO_PRECISE and ratio * pool(model, points).n_rows > model.n_rows


def _are_good_auxiliaries(model: LatentGaussianModel, points: Sequence[Point]) -> bool:
    """Return whether ω of single trials is better than held sites.

    In a Gaussian approximation ω hardly knows more than the observations, and sites fit badly.
    """
    point = points[0]
    found = [s.likelihood.as_logistic(s.y(point), s.params(point)) for s in model.sites]
    single = all(each is not None and np.max(each[1]) <= 1.0 for each in found)
    if not (found and single and model.is_independent):
        return False
    maps = [read(point).rows(slice(0, _SOME_ROWS)).dense() for read in model.maps]
    if sum(map(np.count_nonzero, maps)) > _FEW_ENTRIES * min(model.n_rows, _SOME_ROWS):
        return False
    y = np.concatenate([each[0] for each in found if each is not None])
    priors = LatentPriors(model, points)
    prior, solver = priors.at(point).factorized(), solver_of_step(model.blocks, priors.groups)
    etas = model.offset(point)[None]
    for _ in range(_STEPS):
        # Expectations are means over draws, as variances of all predictors may take long.
        etas = np.clip(etas, -_FAR, _FAR)
        p = expit(etas)
        mean, lam = etas.mean(axis=0), (p * (1.0 - p)).mean(axis=0)
        h = lam * mean + y - p.mean(axis=0)
        try:
            posterior = solver.posterior(prior, priors.groups.sites(h, lam, prior.offset))
        except NotPositiveDefiniteError:
            return False
        nu = np.random.default_rng(0).standard_normal((_DRAWS, posterior.size))
        etas = prior.predictor(posterior.innovations(posterior.apply(nu)))
    if float(mean_polya_gamma(1.0, mean).sum()) > _AS_PRECISE * float(lam.sum()):
        return False
    if not model.hyperparameters:
        return True
    log_ratio = y * etas - np.logaddexp(0.0, etas) - etas * (h - 0.5 * lam * etas)
    return float(log_ratio.sum(axis=1).std()) > _FIT_WELL


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
