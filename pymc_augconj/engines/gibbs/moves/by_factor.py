"""The latents of a part factor by factor, see :mod:`pymc_augconj.engines.gibbs.factors`."""

from __future__ import annotations

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.held_sites import HeldSites
from pymc_augconj.engines.gibbs.parts import Part
from pymc_augconj.engines.gibbs.state import State
from pymc_augconj.typing import Array

from .latents import draw_auxiliary, draw_latents, update_collapsed

# Rounds at most in which a start is looked for, the log density that one must gain for another, and
# how often a move that climbs too far is halved.
_ROUNDS, _LEAST_GAIN, _HALVINGS = 20, 1.0, 10


def draw_by_factor(rng: np.random.Generator, chain: Chain, state: State, part: Part) -> None:
    """Draw ω; then hyperparameters and effects of every factor, and the shifts between factors."""
    eta = draw_auxiliary(rng, chain, state, part)[part.rows]
    for factor in part.factors:
        _condition(chain, state, part, factor, eta)
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


def _condition(chain: Chain, state: State, part: Part, factor: Part, eta: Array) -> None:
    """Condition a factor on the sites of the part, and on the effects of the others."""
    factor.sites.condition(part.sites.omegas)
    own = factor.priors.at(state.point)
    innovations = factor.select(chain.innovations(state.point))
    factor.priors.set_offset(eta - (own.predictor(innovations) - own.offset))


def approach(
    rng: np.random.Generator, chain: Chain, state: State, part: Part, sites: HeldSites
) -> None:
    """Move the latents to where their density is high, given θ: a start for held sites.

    Sites are chosen at the present predictors and each factor moves to its mean given them; half as
    far while the density would fall.
    """
    for _ in range(_ROUNDS):
        gained = 0.0
        sites.predictor = chain.predictor(state.point)
        sites.choose(state.point)
        eta = draw_auxiliary(rng, chain, state, part)
        for factor in part.factors:
            _condition(chain, state, part, factor, eta[part.rows])
            given = factor.given_sites(state.point)
            current = given.coordinates(factor.select(chain.whitened(state.point)))
            move, there = given.posterior.latent_mean - current, eta.copy()
            before = chain.log_likelihood(eta, state.point) - 0.5 * float(current @ current)
            for _ in range(_HALVINGS):
                x = current + move
                there[part.rows] = given.predictor(x)
                gain = chain.log_likelihood(there, state.point) - 0.5 * float(x @ x) - before
                if gain >= 0.0:
                    gained += gain
                    state.point = chain.replaced(state.point, factor, *given.latents(x))
                    eta = there
                    break
                move = 0.5 * move
        if gained < _LEAST_GAIN:
            break
