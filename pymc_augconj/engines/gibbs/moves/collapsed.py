"""Hyperparameters of the prior given ω, the latents of a part integrated out.

Where the part has held sites all but ν is, see :mod:`pymc_augconj.engines.gibbs.tilted`.
A gradient is then that of p(θ) Z(θ): a trajectory that follows it is reversible and keeps volume,
and its points are weighed by the whole density.
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.parts import Part
from pymc_augconj.engines.gibbs.state import State
from pymc_augconj.engines.gibbs.tilted import Conditional
from pymc_augconj.errors import UncertainEvidenceError
from pymc_augconj.latents.derivatives import log_evidence_and_gradient
from pymc_augconj.point import Point
from pymc_augconj.typing import Array

__all__ = ["update_collapsed"]


def update_collapsed(rng: np.random.Generator, chain: Chain, state: State, part: Part) -> None:
    """Make all updates that concern a part."""
    tilted = part.tilted if part.collapsed else None
    if tilted is not None:
        try:
            given = part.given_sites(state.point, alone=True)
        except UncertainEvidenceError:
            state.info.stays += 1
            return
        current = given.coordinates(part.select(chain.whitened(state.point)))
        tilted.begin(rng, given, current)
    for move in part.collapsed:
        _update(rng, chain, state, part, move)
    if tilted is not None:
        given = part.given_sites(state.point, alone=True)
        latents = given.latents(tilted.choose(rng, given))
        state.point = chain.replaced(state.point, part, *latents)


def _update(rng: np.random.Generator, chain: Chain, state: State, part: Part, move: str) -> None:
    members, model, tilted = chain.plan.moves[move], chain.model, part.tilted
    names = {h.value_name for h in members}
    moving = [d for d, _ in part.members if not names.isdisjoint(d.site.params.names)]

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
        posterior = part.solver.posterior(prior, sites, alone=tilted is not None)
        total += base + posterior.log_normalizer
        if tilted is None:
            return total
        return total + tilted.log_sum(Conditional(posterior), candidate)

    def gradient(candidate: Point) -> tuple[float, dict[str, Array]]:
        stacked = *part.sites.stacked, part.sites.origin
        value, terms = log_evidence_and_gradient(model, part.priors, candidate, *stacked)
        slopes = model.log_prior_gradient(candidate)
        for name, term in terms.items():
            slopes[name] = slopes[name] + term if name in slopes else term
        if tilted is None:
            return value + float(model.log_prior(candidate)), slopes
        return log_density(candidate), slopes

    state.update(rng, move, members, log_density, gradient)
