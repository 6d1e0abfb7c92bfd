"""Hyperparameters given the latents, in coordinates that do not move, ω integrated out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.levels import Level
from pymc_augconj.engines.gibbs.observed import SiteData
from pymc_augconj.engines.gibbs.state import State
from pymc_augconj.model import Hyperparameter
from pymc_augconj.plan import BY_ENTRY, EXCHANGE
from pymc_augconj.point import Point
from pymc_augconj.typing import Array

__all__ = [
    "update_entries",
    "update_exchanges",
    "update_joint",
    "update_level",
    "update_likelihood",
    "update_prior_only",
]


def update_prior_only(rng: np.random.Generator, chain: Chain, state: State) -> None:
    """Update hyperparameters that nothing but other hyperparameters depends on."""
    if members := chain.plan.prior_only:
        state.update(rng, "prior_only", members, chain.model.log_prior)


def update_entries(rng: np.random.Generator, chain: Chain, state: State) -> None:
    """Update vectors whose entries are independent given everything else, ω integrated out.

    What is held fixed are the values of the point, in the user's own parametrisation.
    """
    for member in chain.plan.by_entry:
        assert member.entries is not None
        old = dict(state.point)
        state.update_entries(rng, f"{BY_ENTRY}{member.name}", member, member.entries)
        if chain.verifies:
            moved = np.arange(member.size) % 2 == int(rng.integers(2))
            member.entries.check(old, state.point, moved)


def update_exchanges(rng: np.random.Generator, chain: Chain, state: State) -> None:
    """Update scalars while vectors that they multiply move against them: the products stay."""
    for vector, member in chain.plan.exchanges:
        _exchange(rng, state, vector, member)


def _exchange(
    rng: np.random.Generator, state: State, vector: Hyperparameter, member: Hyperparameter
) -> None:
    assert vector.entries is not None
    log_prior = vector.entries.exchanges[member.value_name]
    scale, entries = state.point[member.value_name], state.point[vector.value_name]

    def against(point: Point) -> Array:
        return np.asarray(entries - (point[member.value_name] - scale).ravel())

    def log_density(candidate: Point) -> float:
        return float(log_prior({**candidate, vector.value_name: against(candidate)}))

    state.update(rng, f"{EXCHANGE}{vector.name}, {member.name}", (member,), log_density)
    state.point[vector.value_name] = against(state.point)


def update_joint(rng: np.random.Generator, chain: Chain, state: State) -> None:
    """Update hyperparameters of a covariance and a likelihood, given the whitened latents."""
    if not chain.plan.joint:
        return
    whitened = chain.whitened(state.point)

    def innovations(candidate: Point) -> list[Array]:
        blocks = chain.priors.at(candidate).blocks
        return [b.scale(v) for b, v in zip(blocks, whitened, strict=True)]

    def predictors(candidate: Point) -> tuple[Array, float]:
        return chain.priors.at(candidate).predictor(innovations(candidate)), 0.0

    _update(rng, chain, state, "joint", predictors, chain.data)
    state.point = chain.point_of(state.point, innovations(state.point), whitened)


def update_likelihood(rng: np.random.Generator, chain: Chain, state: State) -> None:
    """Update hyperparameters of likelihoods, given the innovations."""
    if not chain.plan.likelihood:
        return
    names = {h.value_name for h in chain.plan.likelihood}
    moving = not names.isdisjoint(chain.priors.names)
    prior = chain.priors.at(state.point)
    innovations = chain.innovations(state.point, prior)
    eta = prior.predictor(innovations)
    touched = [d for d in chain.data if moving or not names.isdisjoint(d.site.params.names)]

    def predictors(candidate: Point) -> tuple[Array, float]:
        return chain.priors.at(candidate).predictor(innovations) if moving else eta, 0.0

    _update(rng, chain, state, "likelihood", predictors, touched)
    # What is held fixed is u: a value mean(θ) + u moves with its mean. Means may cancel in every
    # predictor, so that these are not among the names of priors.
    means = [block.mean.names for block in chain.model.blocks if block.mean is not None]
    if moving or any(not names.isdisjoint(own) for own in means):
        state.point = chain.point_of(state.point, innovations, chain.entries(state.point))


def update_level(rng: np.random.Generator, chain: Chain, state: State, level: Level) -> None:
    """Update a parameter while the level of a predictor moves against it."""
    point, part, start = state.point, level.part, level.log_parameter(state.point)
    if not np.isfinite(start):
        # Of a value that underflows; nor is any such value reached from another one.
        return
    prior, whole = part.priors.at(point).factorized(), chain.priors.at(point)
    of_all = chain.innovations(point, whole)
    eta, u, v = whole.predictor(of_all), part.select(of_all), part.select(chain.whitened(point))
    by_v, by_u, raised = level.direction(prior)

    def moved(latents: list[Array], by: list[Array], candidate: Point) -> list[Array]:
        t = level.log_parameter(candidate) - start
        return [x - t * b for x, b in zip(latents, by, strict=True)]

    def predictors(candidate: Point) -> tuple[Array, float]:
        there = eta.copy()
        (there[part.rows],) = moved([eta[part.rows]], [raised], candidate)
        blocks = zip(prior.blocks, moved(v, by_v, candidate), strict=True)
        return there, sum(block.log_density(x) for block, x in blocks)

    _update(rng, chain, state, "level", predictors, chain.data)
    ends = moved(u, by_u, state.point), moved(v, by_v, state.point)
    state.point = chain.replaced(state.point, part, *ends)


def _update(
    rng: np.random.Generator,
    chain: Chain,
    state: State,
    move: str,
    predictors: Callable[[Point], tuple[Array, float]],
    data: Sequence[SiteData],
) -> None:
    """Update given η, and the log prior of the latents, as functions of the hyperparameters."""

    def log_density(candidate: Point) -> float:
        log_prior = float(chain.model.log_prior(candidate))
        if not np.isfinite(log_prior):
            return -np.inf
        eta, of_latents = predictors(candidate)
        return log_prior + of_latents + chain.log_likelihood(eta, candidate, data)

    state.update(rng, move, chain.plan.moves[move], log_density)
