"""The parts into which the Gibbs step divides the latents: one Gaussian move draws each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.gaussian.sites import SiteLayout, Span
from pymc_augconj.latents.by_gram import GramPattern, GramSolver, whitened_parts
from pymc_augconj.latents.choice import CertifiedSolver, solver_of_step
from pymc_augconj.latents.components import find_components, restricted_model
from pymc_augconj.latents.joint import LatentPrior, LatentPriors
from pymc_augconj.latents.rows import RowGroups, SiteSum
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.plan import Plan
from pymc_augconj.point import FixedValue, Point
from pymc_augconj.typing import Array, Index

from .factors import (
    Shift,
    best_share,
    find_independent,
    find_shifts,
    iterations_of_draw,
    time_over_draws,
)
from .held_sites import HeldSites
from .observed import Held, SiteData
from .site_terms import SiteTerms
from .tilted import Conditional, Tilted

# Of the posterior mean, by which the rate of draws factor by factor is found.
_ITERATIONS = 8
# Time over effective draws from which conjugate gradients are tried; what part of it they must
# take, as these steps are Python's, and scales where a chain starts often too large, with which
# rates are, too; and the cost of an iteration, in steps.
_SLOW, _GAIN, _PER_ITERATION = 20.0, 0.25, 0.1
# Standard normal vectors of held sites within factors: here densities cost more than solutions.
_ENSEMBLE = 1


@dataclass
class Part:
    """The latents that one Gaussian move draws, and their solver.

    ``latents`` are those of each of the model's ``blocks``, and ``members`` observed variables with
    the group of the predictors of each, of which ``rows`` are those in the stacked η. ``collapsed``
    names the updates of hyperparameters that integrate out its latents; with ``sites_follow`` some
    are parameters that held sites follow. ``factors`` are parts of its latents given the others, of
    the same predictors; empty where all are drawn at once. ``shifts`` are directions that the data
    do not determine, and ``joint_share`` the share of steps that draw all factors at once,
    by about so many ``iterations`` of conjugate gradients where these are not zero.
    ``factorizes`` says whether values of θ without a chol(K) are outside the support of move 3.
    ``eta`` and ``log_prior`` are the predictors and the log prior density of the latents that were
    drawn last, and ``nu`` their ν, where the next one is to be over-relaxed.
    """

    blocks: tuple[int, ...]
    latents: tuple[Index, ...]
    members: list[tuple[SiteData, int]]
    rows: Index
    sites: SiteTerms
    priors: LatentPriors
    solver: CertifiedSolver
    collapsed: list[str]
    tilted: Tilted | None
    factors: list[Part] = field(default_factory=list)
    shifts: list[Shift] = field(default_factory=list)
    factorizes: bool = False
    joint_share: float = 0.0
    iterations: int = 0
    sites_follow: bool = False
    eta: Array = field(default_factory=lambda: np.empty(0))
    log_prior: float = 0.0
    nu: Array | None = None

    @property
    def is_plain(self) -> bool:
        """Whether its latents are drawn at once, without variables that depend on them."""
        return not (self.factors or self.shifts or self.solver.preferred.augments)

    @property
    def log_ratio(self) -> float:
        """The log ratio r at the latents that were drawn last; zero without held sites."""
        last = self.factors[-1] if self.factors else self
        return 0.0 if last.tilted is None else last.tilted.value

    def select(self, of_blocks: Sequence[Array]) -> list[Array]:
        """Return the part's latents of all, by its blocks."""
        return [of_blocks[i][own] for i, own in zip(self.blocks, self.latents, strict=True)]

    def keep(self, prior: LatentPrior, eta: Array, whitened: list[Array]) -> None:
        """Keep the predictors and the log prior density of its latents.

        Where a prior is lazy, ``whitened`` has its u in the place of v.
        """
        self.eta = eta
        pairs = zip(prior.blocks, whitened, strict=True)
        self.log_prior = sum(
            b.log_density_of(v) if b.is_lazy else b.log_density(v) for b, v in pairs
        )

    def sites_at(self, prior: LatentPrior) -> SiteSum:
        """Return the sites relative to the prior's offset, merged by the part's groups."""
        return self.sites.at(self.priors.groups, prior.offset)

    def given_sites(self, point: Point, **how: bool) -> Conditional:
        """Return the distribution of its latents given their sites.

        ``how`` is passed to the part's solver.
        """
        prior = self.priors.at(point).factorized()
        self.take([data for data, _ in self.members], point)
        sites = self.sites_at(prior)
        posterior = self.solver.posterior(prior, sites, **how)
        return Conditional(posterior, self.sites.at_origin(sites))

    def take(self, members: Sequence[SiteData], point: Point) -> None:
        """Take the parameters of some observed variables, which held sites may follow."""
        for data in members:
            data.params = data.site.params(point)
            if self.sites_follow and isinstance(data.how, Held):
                data.how.follow(data.y, data.params, point)

    def approximation(self, point: Point, sites: HeldSites, *, settle: bool = False) -> Conditional:
        """Return the same given the sites that were chosen for all observed variables."""
        prior, found = self.priors.at(point).factorized(), {}
        for i, (data, group) in enumerate(self.members):
            own = list(data.how.groups[group])
            h, lam = sites.of(data.site.name)
            found[i] = h[own], lam[np.ix_(own, own)] if data.how.traits.coupled else lam[own]
        merged = self.priors.groups.sites(*self.sites.stack(found), prior.offset)
        return Conditional(self.solver.posterior(prior, merged, settle=settle))


def make_parts(
    model: LatentGaussianModel,
    plan: Plan,
    data: Sequence[SiteData],
    points: Sequence[Point],
    slices: int | None = None,
    sweeps: int = 1,
) -> list[Part]:
    """Return the parts of a model, predictors merged where they agree at all ``points``.

    Slices and sweeps are as for :class:`.Tilted`. Raises AugmentationError if a latent enters two
    groups of one observed variable.
    """
    groups = [one.how.groups for one in data]
    maps_at = [[read(point) for read in model.maps] for point in points]
    parts = []
    for component in find_components(model, groups, maps_at):
        members = [(data[s], g) for s, g in component.members]
        rows = [model.sites[s].row_numbers[list(groups[s][g])] for s, g in component.members]
        coupled = [one.how.traits.coupled for one, _ in members]
        layout = SiteLayout([own.shape for own in rows], coupled)
        stacked = np.concatenate([own.ravel() for own in rows])
        own_model = restricted_model(model, component, stacked)
        priors = LatentPriors(own_model, points, layout.coupling, interpolates=plan.factors is None)
        make = solver_of_step if plan.factors is None else _gram_solver
        solver = make(own_model.blocks, priors.groups)
        pairs = zip(members, layout.spans, strict=True)
        held = [(one, one.how, span) for (one, _), span in pairs if isinstance(one.how, Held)]
        # The factors have their own.
        is_held = bool(held) and plan.factors is None
        tilted = Tilted(held, priors.groups, solver, slices, sweeps) if is_held else None
        names = ["collapsed", *(f"collapsed {model.blocks[i].name}" for i in component.blocks)]
        part = Part(
            component.blocks, component.latents, members, stacked,
            SiteTerms(members, layout), priors, solver,
            [name for name in names if plan.moves.get(name)], tilted,
            # f(θ, ν) takes chol(K).
            factorizes=bool(held), sites_follow=bool(plan.followed),
        )  # fmt: skip
        if plan.factors is not None:
            blocks = plan.factors.blocks
            given = plan, points, held, slices
            part.factors = [_factor(part, own_model, own, *given) for own in blocks]
            part.shifts = find_shifts(model.blocks, maps_at, blocks)
            # One ellipse for all latents would hardly move.
            if not held:
                _choose_share(part, plan.factors.cost, points[0])
        parts.append(part)
    return parts


def _factor(
    part: Part,
    model: LatentGaussianModel,
    blocks: Sequence[int],
    plan: Plan,
    points: Sequence[Point],
    held: Sequence[tuple[SiteData, Held, Span]],
    slices: int | None,
) -> Part:
    """Return the part of some blocks given the others, whose predictors its offset has."""
    own_blocks, zero = tuple(model.blocks[i] for i in blocks), FixedValue(np.zeros(model.n_rows))
    maps = tuple(model.maps[i] for i in blocks)
    own_model = replace(model, blocks=own_blocks, maps=maps, offset=zero)
    priors = LatentPriors(own_model, points, part.priors.groups.coupling)
    names, tilted = [f"collapsed {block.name}" for block in own_model.blocks], None
    # ν of independent levels is independent in the order of elimination.
    solver = (_gram_solver if held else solver_of_step)(own_model.blocks, priors.groups)
    if held:
        levels = find_independent(own_model.blocks, [read(points[0]) for read in own_model.maps])
        tilted = Tilted(held, priors.groups, solver, slices or 1, 1, levels, _ENSEMBLE)
    return Part(
        tuple(blocks), tuple(part.latents[i] for i in blocks), part.members, part.rows,
        part.sites, priors, solver,
        [name for name in names if plan.moves.get(name)], tilted, factorizes=bool(held),
    )  # fmt: skip


def _choose_share(part: Part, cost: float, point: Point) -> None:
    """Choose the share of steps with a joint draw, and whether that is by conjugate gradients.

    The second, of sites as they are where a chain starts.
    """
    n_rows, prior = part.rows.size, part.priors.at(point).factorized()
    part.joint_share = best_share(_rate(part, point, np.ones(n_rows)), cost)
    rng, omegas = np.random.default_rng(0), []
    for data, group in part.members:
        data.params = data.site.params(point)
        data.eta = np.zeros(data.site.shape)
        omegas.append(data.how.draw_auxiliary(rng, data.y, data.eta, data.params, group))
    part.sites.condition(omegas)
    rate = _rate(part, point, part.sites.stacked[1])
    time = time_over_draws(part.joint_share, rate, cost)
    sites = part.sites_at(prior)
    iterations = iterations_of_draw(rng, prior, sites) if time > _SLOW else None
    if iterations is None:
        return
    cost = 1.0 + _PER_ITERATION * iterations
    share = best_share(rate, cost)
    if time_over_draws(share, rate, cost) < _GAIN * time:
        part.joint_share, part.iterations = share, iterations


def _rate(part: Part, point: Point, lam: Array) -> float:
    """Return the rate at which draws of one factor after another forget, at ``point``.

    It is that of the posterior means given sites with these λ, from a few iterations.
    """
    prior, rng = part.priors.at(point), np.random.default_rng(0)
    zeros = np.zeros(part.rows.size)
    innovations = [rng.standard_normal(own.size) for own in part.latents]
    offset, squares = prior.offset, [1.0, 0.0]
    for _ in range(_ITERATIONS):
        eta = prior.predictor(innovations) - offset
        squares = [squares[-1], float(eta @ eta)]
        for factor in part.factors:
            own = factor.priors.at(point)
            eta = eta - own.predictor(factor.select(innovations))
            sites = factor.priors.groups.sites(zeros, lam, eta)
            posterior = factor.solver.posterior(own, sites)
            moved = posterior.innovations(posterior.latent_mean)
            for i, u in zip(factor.blocks, moved, strict=True):
                innovations[i] = u
            eta = eta + own.predictor(moved)
        for shift in part.shifts:
            shift.draw(None, prior, innovations)
    before, after = squares
    return float(np.sqrt(after / before)) if before > 0.0 else 0.0


def _gram_solver(blocks: Sequence[LatentBlock], groups: RowGroups) -> CertifiedSolver:
    pattern = GramPattern(whitened_parts(blocks, groups.maps or ()))
    return CertifiedSolver([partial(GramSolver, groups, pattern)])
