"""The latents of a part factor by factor, see :mod:`pymc_augconj.engines.gibbs.factors`."""

from __future__ import annotations

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.parts import Part
from pymc_augconj.engines.gibbs.state import State

from .collapsed import update_collapsed
from .latents import draw_auxiliary, draw_latents

__all__ = ["draw_by_factor"]


def draw_by_factor(rng: np.random.Generator, chain: Chain, state: State, part: Part) -> None:
    """Draw ω; then hyperparameters and effects of every factor, and the shifts between factors."""
    eta = draw_auxiliary(rng, chain, state, part)[part.rows]
    for factor in part.factors:
        factor.sites.condition(part.sites.omegas)
        own = factor.priors.at(state.point)
        innovations = factor.select(chain.innovations(state.point))
        factor.priors.set_offset(eta - (own.predictor(innovations) - own.offset))
        update_collapsed(rng, chain, state, factor)
        draw_latents(rng, chain, state, factor, relax=not factor.collapsed)
        eta = factor.eta
    # Log evidences given the other factors do not add up to one.
    state.info.log_evidence = np.nan
    if part.joint_share and rng.random() < part.joint_share:
        state.info.log_evidence = 0.0
        draw_latents(rng, chain, state, part, relax=False)
        return
    prior = part.priors.at(state.point).factorized()
    innovations = [u.copy() for u in part.select(chain.innovations(state.point, prior))]
    for shift in part.shifts:
        shift.draw(rng, prior, innovations)
    whitened = [b.unscale(u) for b, u in zip(prior.blocks, innovations, strict=True)]
    part.keep(prior, eta, whitened)
    state.point = chain.replaced(state.point, part, innovations, whitened)
