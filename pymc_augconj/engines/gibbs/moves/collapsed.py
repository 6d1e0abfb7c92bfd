"""Hyperparameters of the prior given ω, the latents of a part integrated out.

Where the part has held sites all but ν is, see :mod:`pymc_augconj.engines.gibbs.tilted`.
A gradient is then that of p(θ) Z(θ): a trajectory that follows it is reversible and keeps volume,
and its points are weighed by the whole density.
"""

from __future__ import annotations

import math

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.parts import Part
from pymc_augconj.engines.gibbs.state import State
from pymc_augconj.errors import UncertainEvidenceError
from pymc_augconj.latents.evidence import log_evidence_and_gradient
from pymc_augconj.linalg.rounding import EPS, LARGEST_ERROR
from pymc_augconj.model import Point
from pymc_augconj.typing import Array

__all__ = ["collapsed_names", "update_collapsed"]


def collapsed_names(chain: Chain, part: Part) -> list[str]:
    """Return the names of the updates that concern a part."""
    names = ["collapsed", *(f"collapsed {chain.model.blocks[i].name}" for i in part.blocks)]
    return [name for name in names if chain.plan.moves.get(name)]


def update_collapsed(rng: np.random.Generator, chain: Chain, state: State, part: Part) -> None:
    """Make all updates that concern a part."""
    names = collapsed_names(chain, part)
    if not names or part.tilted is None:
        for name in names:
            _update(rng, chain, state, part, name)
        return
    try:
        posterior, prior, _ = part.posterior(state.point, alone=True)
    except UncertainEvidenceError:
        state.info.stays += 1
        return
    part.tilted.begin(rng, posterior, np.concatenate(part.select(chain.whitened(state.point))))
    for name in names:
        _update(rng, chain, state, part, name)
    posterior, prior, _ = part.posterior(state.point, alone=True)
    x = part.tilted.choose(rng, prior, posterior)
    whitened = prior.split(posterior.whitened(x))
    state.point = chain.replaced(state.point, part, posterior.innovations(prior, x), whitened)


def _update(rng: np.random.Generator, chain: Chain, state: State, part: Part, move: str) -> None:
    members, model, tilted = chain.plan.moves[move], chain.model, part.tilted
    names = {h.value_name for h in members}
    moving = [d for d, _ in part.members if not names.isdisjoint(d.site.params.names)]
    digits = EPS * math.sqrt(part.rows.size)

    def log_density(candidate: Point) -> float:
        total = float(model.log_prior(candidate))
        if not np.isfinite(total):
            return -np.inf
        for data in moving:
            data.params = data.site.params(candidate)
        prior = part.priors.at(candidate)
        if part.factorizes:
            prior = prior.factorized()
        sites = part.sites.at(prior.offset)
        base = part.sites.log_base(sites, names)
        if digits * (abs(base) + sites.magnitude) > LARGEST_ERROR:
            raise UncertainEvidenceError("rounding leaves no digits of the sites' constants")
        posterior = part.space.posterior(prior, sites, alone=tilted is not None)
        total += base + sites.constant + posterior.log_evidence
        return total if tilted is None else total + tilted.log_sum(prior, posterior, candidate)

    def gradient(candidate: Point) -> tuple[float, dict[str, Array]]:
        value, terms = log_evidence_and_gradient(model, part.priors, candidate, *part.sites.stacked)
        slopes = model.log_prior_gradient(candidate)
        for name, term in terms.items():
            slopes[name] = slopes[name] + term if name in slopes else term
        if tilted is None:
            return value + float(model.log_prior(candidate)), slopes
        return log_density(candidate), slopes

    state.update(rng, move, members, log_density, gradient)
