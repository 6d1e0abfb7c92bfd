"""Hyperparameters given the latents, in coordinates that do not move, ω integrated out.

Some parameters r of likelihoods are updated once more given w = v + b log r, v the whitened
latents: against the location of a predictor, see ``docs/theory/gibbs.md``. Here b is the mean of v
given the sites h = λ = ½ for the rows of that predictor. Cutpoints c of ordinal observations move
with it: −c̄ is in the place of log r.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.observed import SiteData
from pymc_augconj.engines.gibbs.parts import Part
from pymc_augconj.engines.gibbs.state import State
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.model import Hyperparameter
from pymc_augconj.plan import BY_ENTRY, EXCHANGE
from pymc_augconj.point import Point, PointMap
from pymc_augconj.typing import Array, Index

from .columns import update_given_coefficients

# λ of a row: the Fisher information of log r in a normal observation of the precision r.
_INFORMATION = 0.5


@dataclass(frozen=True)
class Level:
    """A parameter r of an observed variable, and the predictor whose location it moves against.

    ``parameters`` are r, or the cutpoints if ``are_cutpoints``. ``part`` has the latents of that
    predictor, and ``rows`` are those of it among the part's.
    """

    data: SiteData
    parameters: tuple[str, ...]
    are_cutpoints: bool
    part: Part
    rows: Index

    def log_parameter(self, point: Point) -> float:
        """Return log r, its mean where observations have parameters of their own, or −c̄."""
        params = self.data.site.params(point)
        values = np.array([params[name] for name in self.parameters])
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(np.mean(-values if self.are_cutpoints else np.log(values)))

    def direction(self, prior: LatentPrior) -> tuple[list[Array], list[Array], Array]:
        """Return b by blocks: as v, as u, and what it adds to the part's predictors."""
        groups = self.part.priors.groups
        lam = np.zeros(groups.coupling.size)
        lam[self.rows] = _INFORMATION
        h = lam[: groups.coupling.n_rows]
        sites = groups.sites(h, lam, np.zeros(h.size))
        posterior = self.part.solver.posterior(prior, sites)
        x = posterior.latent_mean
        innovations = posterior.innovations(x)
        raised = prior.predictor(innovations) - prior.offset
        return prior.split(posterior.whitened(x)), innovations, raised


def find_levels(parts: Sequence[Part], names: Set[str]) -> tuple[Level, ...]:
    """Return the parameters that a level moves against, of what depends on ``names``."""
    found = []
    for part in parts:
        for data, group in part.members:
            if names.isdisjoint(data.site.params.names):
                continue
            kind = data.site.likelihood
            parameters: list[tuple[tuple[str, ...], bool, int]]
            parameters = [((name,), False, p) for name, p in kind.levels.items()]
            if kind.cutpoints:
                parameters.append((kind.cutpoints, True, 0))
            for moved, are_cutpoints, predictor in parameters:
                if predictor in data.how.groups[group]:
                    own = data.site.row_numbers[predictor]
                    rows = np.flatnonzero(np.isin(part.rows, own))
                    found.append(Level(data, moved, are_cutpoints, part, rows))
    return tuple(found)


def update_prior_only(rng: np.random.Generator, chain: Chain, state: State) -> None:
    """Update hyperparameters that nothing but other hyperparameters depends on."""
    if members := chain.plan.prior_only:
        state.update(rng, "prior_only", members, chain.model.log_prior)


def update_entries(rng: np.random.Generator, chain: Chain, state: State) -> None:
    """Update vectors whose entries are independent given everything else, ω integrated out.

    What is held fixed are the values of the point, in the user's own parametrisation.
    """
    for member in chain.plan.by_entry:
        if member in chain.plan.by_column:
            update_given_coefficients(rng, chain, state, member)
            continue
        assert member.entries is not None
        old = dict(state.point)
        state.update_entries(rng, f"{BY_ENTRY}{member.name}", member, member.entries)
        if chain.verifies:
            moved = np.arange(member.size) % 2 == int(rng.integers(2))
            member.entries.check(old, state.point, moved)


def update_exchanges(rng: np.random.Generator, chain: Chain, state: State) -> None:
    """Update scalars while vectors that they multiply move against them: the products stay."""
    for vector, member in chain.plan.exchanges:
        log_prior = chain.plan.densities_of(vector).exchanges[member.value_name]
        _exchange(rng, state, vector, member, log_prior)


def _exchange(
    rng: np.random.Generator,
    state: State,
    vector: Hyperparameter,
    member: Hyperparameter,
    log_prior: PointMap[Array],
) -> None:
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
