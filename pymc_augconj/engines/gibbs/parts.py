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
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.plan import Plan
from pymc_augconj.point import FixedValue, Point
from pymc_augconj.typing import Array, Index

from .factors import Shift, best_share, find_independent, find_shifts
from .held_sites import HeldSites
from .observed import Held, SiteData
from .site_terms import SiteTerms
from .tilted import Conditional, Tilted

# Of the posterior mean, by which the rate of draws factor by factor is found.
_ITERATIONS = 8
# Standard normal vectors of held sites within factors: here densities cost more than solutions.
_ENSEMBLE = 1


@dataclass
class Part:
    """The latents that one Gaussian move draws, and their solver.

    ``latents`` are those of each of the model's ``blocks``, and ``members`` observed variables with
    the group of the predictors of each, of which ``rows`` are those in the stacked η. ``collapsed``
    names the updates of hyperparameters that integrate out its latents. ``factors`` are parts of
    its latents given the others, of the same predictors; empty where all are drawn at once.
    ``shifts`` are directions that the data do not determine, and ``joint_share`` the share of steps
    that draw all factors at once. ``factorizes`` says whether values of θ without a chol(K) are
    outside the support of move 3. ``eta`` and ``log_prior`` are the predictors and the log prior
    density of the latents that were drawn last.
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
    eta: Array = field(default_factory=lambda: np.empty(0))
    log_prior: float = 0.0

    @property
    def log_ratio(self) -> float:
        """The log ratio r at the latents that were drawn last; zero without held sites."""
        last = self.factors[-1] if self.factors else self
        return 0.0 if last.tilted is None else last.tilted.value

    def select(self, of_blocks: Sequence[Array]) -> list[Array]:
        """Return the part's latents of all, by its blocks."""
        return [of_blocks[i][own] for i, own in zip(self.blocks, self.latents, strict=True)]

    def keep(self, prior: LatentPrior, eta: Array, whitened: list[Array]) -> None:
        """Keep the predictors and the log prior density of its latents."""
        self.eta = eta
        self.log_prior = sum(b.log_density(v) for b, v in zip(prior.blocks, whitened, strict=True))

    def given_sites(self, point: Point, **how: bool) -> Conditional:
        """Return the distribution of its latents given their sites.

        ``how`` is passed to the part's solver.
        """
        prior = self.priors.at(point).factorized()
        for data, _ in self.members:
            data.params = data.site.params(point)
        sites = self.sites.at(prior.offset)
        posterior = self.solver.posterior(prior, sites, **how)
        return Conditional(posterior, self.sites.at_origin(sites))

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
        priors = LatentPriors(own_model, points, layout.coupling)
        make = solver_of_step if plan.factors is None else _gram_solver
        solver = make(own_model.blocks, priors.groups)
        held = [
            (one, one.how, span)
            for (one, _), span in zip(members, layout.spans, strict=True)
            if isinstance(one.how, Held)
        ]
        # The factors have their own.
        is_held = bool(held) and plan.factors is None
        tilted = Tilted(held, priors.groups, solver, slices, sweeps) if is_held else None
        names = ["collapsed", *(f"collapsed {model.blocks[i].name}" for i in component.blocks)]
        part = Part(
            component.blocks, component.latents, members, stacked,
            SiteTerms(members, layout, priors.groups), priors, solver,
            [name for name in names if plan.moves.get(name)], tilted,
            # f(θ, ν) takes chol(K).
            factorizes=bool(held),
        )  # fmt: skip
        if plan.factors is not None:
            blocks = plan.factors.blocks
            part.factors = [
                _factor(part, own_model, own, plan, points, held, slices) for own in blocks
            ]
            part.shifts = find_shifts(model.blocks, maps_at, blocks)
            # One ellipse for all latents would hardly move.
            if not held:
                part.joint_share = best_share(_rate(part, points[0]), plan.factors.cost)
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
    own_model = replace(
        model,
        blocks=tuple(model.blocks[i] for i in blocks),
        maps=tuple(model.maps[i] for i in blocks),
        offset=FixedValue(np.zeros(model.n_rows)),
    )
    priors = LatentPriors(own_model, points, part.priors.groups.coupling)
    names, tilted = [f"collapsed {block.name}" for block in own_model.blocks], None
    # ν of independent levels is independent in the order of elimination.
    solver = (_gram_solver if held else solver_of_step)(own_model.blocks, priors.groups)
    if held:
        levels = find_independent(own_model.blocks, [read(points[0]) for read in own_model.maps])
        tilted = Tilted(held, priors.groups, solver, slices or 1, 1, levels, _ENSEMBLE)
    return Part(
        tuple(blocks), tuple(part.latents[i] for i in blocks), part.members, part.rows,
        SiteTerms(part.members, part.sites.layout, priors.groups), priors, solver,
        [name for name in names if plan.moves.get(name)], tilted, factorizes=bool(held),
    )  # fmt: skip


def _rate(part: Part, point: Point) -> float:
    """Return the rate at which draws of one factor after another forget, at ``point``.

    It is that of the posterior means given sites with λ = 1, from a few iterations.
    """
    prior, rng = part.priors.at(point), np.random.default_rng(0)
    zeros = np.zeros(part.rows.size)
    lam = np.ones(part.priors.groups.coupling.size)
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
