"""Held sites as functions of parameters of their density.

Sites are found from two expectations about a mean m, see :mod:`.observed`. Where θ moves with the
latents integrated out, m moves as these do: an intercept and a largest probability, say, take each
other's place. It is a parabola in each entry of θ, through means that sites about them give back.
Of a density that is not log-concave negative λ are zero, and the others multiplied so that their
total stays.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pymc_augconj.engines.variational.bound import BoundFamily
from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.contract import MultiLikelihood
from pymc_augconj.model import Site
from pymc_augconj.point import Point
from pymc_augconj.typing import Array

#: By what factors λ may follow parameters, and by how much h d may: far out, where a density is
#: next to zero, the evidence would be one of rounding. The least share of λ, and how many steps
#: parabolas are followed.
LEAST_RATIO, LARGEST_RATIO, LARGEST_CHANGE = 0.25, 4.0, 1e4
LEAST_SHARE, FARTHEST = 0.1, 2.0
# Steps of an entry, on the unconstrained scale, of which the first with a mean at both of its ends
# is taken; from how many sites a mean is found; and how far the last of them may move it, in its
# standard deviations.
_STEPS, _PASSES, _FOUND = (0.5, 0.25, 0.125, 0.0625, 0.03125), 12, 0.2

# References by variable, h, λ and the mean.
_Chosen = tuple[Mapping[str, Array], Array, Array, Array]


def reference_of(site: Site, point: Point, mean: Array, var: Array) -> Array:
    """Return what sites that follow parameters are compared with, see :class:`HeldSites`."""
    step = np.sqrt(3.0 * var)
    found = differences(site.likelihood, site.y(point), mean, step, site.params(point))
    return np.stack([mean[0], step[0], *found])


def moved_sites(
    site: Site, params: Params, y: Array, h: Array, lam: Array, reference: Array, mean: Array
) -> tuple[Array, Array]:
    """Return the sites (h, λ) at other parameters, about another mean."""
    before, step, slope, curvature = reference[:4]
    above, bend = differences(site.likelihood, y, mean[None], step[None], params)
    with np.errstate(all="ignore"):
        ratio, change = bend / curvature, 0.5 * (above - slope) / step
        most = LARGEST_CHANGE / step
        share = share_of(bend / step**2) / share_of(curvature / step**2)
        new = np.clip(ratio, LEAST_RATIO, LARGEST_RATIO) * share * lam
        is_known = np.isfinite(ratio) & np.isfinite(change)
        moved = h + np.clip(change, -most, most) + new * mean - lam * before
    return np.where(is_known, moved, h), np.where(is_known, new, lam)


def share_of(lam: Array) -> float:
    """Return the total of λ, over that of its positive entries."""
    known = lam[np.isfinite(lam)]
    total = np.maximum(known, 0.0).sum()
    return max(float(known.sum() / total), LEAST_SHARE) if total > 0.0 else 1.0


def mean_at(theta: Array, reference: Array) -> Array:
    """Return the mean at parameters θ."""
    curves = reference[4:].reshape(4, theta.size, reference.shape[1])
    away = np.clip((theta[:, None] - curves[0]) / curves[1], -FARTHEST, FARTHEST)
    return np.asarray(reference[0] + (away * (curves[2] + away * curves[3])).sum(axis=0))


def curves_of(
    family: BoundFamily, chosen: _Chosen, point: Point, names: Mapping[str, bool]
) -> Array:
    """Return parabolas of the mean in entries of the point, shape (4, entries, rows).

    With t = (θ − a)/b the mean moves by c t + d t²; ``chosen`` are references, sites and the mean
    at the point. The parabola is zero for ``names`` that sites do not follow, and where no means
    are found.
    """
    mean = chosen[3]
    entries = [(name, i) for name in names for i in range(np.size(point[name]))]
    curves = np.zeros((4, len(entries), mean.size))
    curves[1] = 1.0
    for e, (name, i) in enumerate(entries):
        curves[0, e] = np.ravel(point[name])[i]
        for step in _STEPS if names[name] else ():
            ends = np.empty((2, mean.size))
            for end, by in zip(ends, (-step, step), strict=True):
                moved = {**point, name: np.array(point[name])}
                moved[name].reshape(-1)[i] += by
                end[:] = _mean_found(family, chosen, moved) - mean
            if np.isfinite(ends).all():
                for site in family.model.sites:
                    # Sites that have other parameters stay where they are.
                    ends[:, site.row_numbers[0]] *= name in site.params.names
                lower, upper = 0.5 * ends
                curves[1:, e] = np.full_like(lower, step), upper - lower, upper + lower
                break
    return curves


def _mean_found(family: BoundFamily, chosen: _Chosen, point: Point) -> Array:
    """Return the mean that sites about it give back, NaN where it is not found."""
    references, *sites, mean = chosen
    prior = family.at(point, factorized=True).prior
    for _ in range(_PASSES):
        h, lam = map(np.array, sites)
        for site in family.model.sites:
            if site.name in references:
                own = site.row_numbers[0]
                given = site.y(point), h[own], lam[own], references[site.name], mean[own]
                h[own], lam[own] = moved_sites(site, site.params(point), *given)
        merged = family.priors.groups.sites(h, lam, prior.offset)
        posterior, before = family.solver.of_fit(prior, merged), mean
        mean = np.asarray(posterior.mean)
        if np.mean((mean - before) ** 2) < _FOUND**2 * np.mean(posterior.var[: mean.size]):
            return mean
    return np.full_like(mean, np.nan)


def differences(
    likelihood: MultiLikelihood, y: Array, mean: Array, step: Array, params: Params
) -> tuple[Array, Array]:
    """Return ℓ₊ − ℓ₋ and 2ℓ₀ − ℓ₊ − ℓ₋."""
    with np.errstate(all="ignore"):
        below, here, above = (
            likelihood.log_density(y, mean + k * step, params) for k in (-1, 0, 1)
        )
        return above - below, 2.0 * here - above - below
