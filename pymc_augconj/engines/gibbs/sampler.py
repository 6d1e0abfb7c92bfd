"""The Gibbs step: four moves, in the order that makes them exact.

1. hyperparameters of the likelihoods given the latents, ω integrated out; some of them once more
   while the level of a predictor moves against them, see :mod:`.levels`;
2. ω given everything;
3. hyperparameters of the prior given ω, the latents integrated out;
4. the latents given everything.

Where a likelihood has several groups of predictors, moves 2 and 4 are made for one part of the
latents after the other, see :mod:`.parts`: ω of a group is drawn immediately before its latents,
given all predictors as they are then, so that each pair of moves leaves the posterior as it is.

Moves 3 and 4 together are one draw of (θ, u) given ω. How a move explores the density it is
given is not decided here: the caller passes an update (slice sampling, say) for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_augconj.errors import (
    AugmentationError,
    NotPositiveDefiniteError,
    UncertainEvidenceError,
)
from pymc_augconj.latents.affine import AffinePosterior
from pymc_augconj.latents.evidence import log_evidence_and_gradient
from pymc_augconj.latents.joint import LatentPrior, LatentPriors
from pymc_augconj.latents.registry import block_prior
from pymc_augconj.latents.rows import SiteSum
from pymc_augconj.linalg.rounding import EPS, LARGEST_ERROR, SMALL_ERROR
from pymc_augconj.model import Argument, Hyperparameter, LatentGaussianModel, Point
from pymc_augconj.plan import Plan
from pymc_augconj.typing import Array

from .conditioning import draw
from .evidence_check import check_log_evidence
from .levels import Level, find_levels
from .parts import Part, make_parts
from .site_terms import SiteData
from .targets import Gradient, PointTarget, Update

__all__ = ["GibbsInfo", "GibbsSampler"]

# Evaluations with other rounding, the units in the last place that they move a number by, and how
# much larger an error may be than the largest that they show.
_N_ROUNDINGS, _ULPS, _SAFETY = 3, 4, 32.0


@dataclass
class GibbsInfo:
    """What one step tells about itself.

    Attributes
    ----------
    log_evidence : float
        Log normaliser of the Gaussian move: log ∫ exp(Σ h η − ½ λ η²) p(η | θ) dη.
    evaluations : int
        Evaluations of a log density by the hyperparameter updates.
    jitter : float
        Largest jitter that a covariance needed.
    updates, refusals : int
        Updates that take a log evidence; and how many of them met values of hyperparameters at
        which rounding leaves it no digits, so that these were refused.
    stays : int
        Updates, and draws of latents, that were left out because that is so at the present state.
    refused : dict
        By the names of hyperparameters, the least and the largest of the refused values.
    log_density : float
        The model's log density at the new point, as PyMC defines it.
    slices, trials : int
        Elliptical slices, where sites are held, and the evaluations of densities they took.
    trajectories, acceptance : float
        Hamiltonian trajectories, and the mean acceptance of their points.
    residual, residual_std : float
        r, the log ratio of densities to their held sites; and its standard deviation over the
        last steps.
    """

    log_evidence: float = 0.0
    evaluations: int = 0
    jitter: float = 0.0
    updates: int = 0
    refusals: int = 0
    stays: int = 0
    refused: dict[str, tuple[float, float]] = field(default_factory=dict)
    log_density: float = 0.0
    slices: int = 0
    trials: int = 0
    trajectories: int = 0
    acceptance: float = 0.0
    residual: float = 0.0
    residual_std: float = 0.0

    def note(
        self, refused: Sequence[Array], members: Sequence[Hyperparameter], *, stays: bool
    ) -> None:
        """Count an update that takes a log evidence, and the values that it refused."""
        self.updates += 1
        if not refused:
            return
        self.refusals += 1
        self.stays += stays
        starts = np.cumsum([0, *(h.size for h in members)])
        for h, start in zip(members, starts, strict=False):
            for values in (x[start : start + h.size] for x in refused):
                least, largest = self.refused.get(h.value_name, (np.inf, -np.inf))
                self.refused[h.value_name] = (
                    min(least, float(values.min())), max(largest, float(values.max())),
                )  # fmt: skip


class GibbsSampler:
    """One chain's Gibbs sampler; everything it keeps is a cache.

    Parameters
    ----------
    model : LatentGaussianModel
    plan : Plan
        Which hyperparameters each move updates; those it does not name are held fixed.
    point : mapping
        The chain's start.
    probes : sequence of mapping
        Other values of θ, at which predictors must agree to be merged.
    sweeps : int
        How often ω and the latents are drawn in each step. Further draws reuse K and its factor:
        each costs one factorisation, where an update of the kernel's hyperparameters costs ten.
    """

    def __init__(
        self,
        model: LatentGaussianModel,
        plan: Plan,
        point: Point,
        probes: Sequence[Point] = (),
        sweeps: int = 1,
    ) -> None:
        self.model, self.plan, self.sweeps = model, plan, sweeps
        self._order = _topological(model)
        # Means may cancel in every predictor, so that these are not among the names of priors.
        self._mean_names = {n for b in model.blocks if b.mean is not None for n in b.mean.names}
        # Observations first: reading them refuses data whose shapes have changed.
        self._data = [SiteData(site, np.array(site.y(point), dtype=float)) for site in model.sites]
        self.parts = make_parts(
            model, self._data, [point, *probes], self._groups_of, self._is_full, self._is_exact,
            self._sites_of,
        )  # fmt: skip
        names = {h.value_name for h in plan.level}
        self._levels = find_levels(self.parts, self._groups_of, names)
        # Of some predictors, which no latent enters, there may be no part.
        self._is_whole = len(self.parts) == 1 and self.parts[0].rows.size == model.n_rows
        whole = self._is_whole
        self.priors = self.parts[0].priors if whole else LatentPriors(model, [point, *probes])
        self._factorize_candidates = False
        #: Whether log evidences are compared with those of another factorisation.
        self.verifies = False
        # Whether the evidence given the sites is the whole density of move 3, and whether it is the
        # same in every space of conditioning, of which one may take another's place at any time.
        self._evidence_is_exact = self._may_settle = True

    def _groups_of(self, data: SiteData) -> tuple[tuple[int, ...], ...]:
        """Return the groups of predictors of an observed variable."""
        return data.site.terms.groups

    def _is_full(self, data: SiteData) -> bool:
        """Return whether :meth:`_sites_of` gives Λ as blocks."""
        return data.site.terms.coupled

    # -- coordinates --------------------------------------------------------------------------

    def innovations(self, point: Point, prior: LatentPrior) -> list[Array]:
        """Return every block's u at ``point``, flat."""
        found: list[Array] = [np.empty(0)] * len(self.model.blocks)
        values = self._latent_values(point, prior)
        for i, block in enumerate(self.model.blocks):
            value = values[Argument("value", block.name)]
            if block.whitened or block.mean is None:
                found[i] = value
            else:
                found[i] = value - block.mean({**point, **values})
        return found

    def _whitened(self, point: Point, prior: LatentPrior) -> list[Array]:
        """Return every block's v at ``point``, flat, with u = S v."""
        if all(b.whitened for b in self.model.blocks):
            return [np.ravel(point[b.value_name]) for b in self.model.blocks]
        innovations = self.innovations(point, prior)
        return [
            np.ravel(point[b.block.value_name]) if b.block.whitened else b.unscale(u)
            for b, u in zip(prior.blocks, innovations, strict=True)
        ]

    def _latent_values(self, point: Point, prior: LatentPrior) -> dict[Argument, Array]:
        # What prior means are functions of: the value, or u for a whitened block.
        values = {}
        for block, at in zip(self.model.blocks, prior.blocks, strict=True):
            flat = np.asarray(point[block.value_name], dtype=float).ravel()
            values[Argument("value", block.name)] = at.scale(flat) if block.whitened else flat
        return values

    def point_of(self, point: Point, innovations: list[Array], whitened: list[Array]) -> dict:
        """Return ``point`` with the latents replaced, in its own order of keys."""
        new = dict(point)
        values: dict[Argument, Array] = {}
        for i in self._order:
            block = self.model.blocks[i]
            value = innovations[i]
            if not block.whitened and block.mean is not None:
                value = value + block.mean({**point, **values})
            values[Argument("value", block.name)] = value
            entry = whitened[i] if block.whitened else value
            new[block.value_name] = entry.reshape(block.shape)
        return new

    def draw_from_prior(self, rng: np.random.Generator, point: Point) -> dict:
        """Return ``point`` with the latents drawn from their prior: a dispersed start."""
        prior = self.priors.at(point).factorized()
        whitened = [rng.standard_normal(b.total_size) for b in self.model.blocks]
        innovations = [b.scale(v) for b, v in zip(prior.blocks, whitened, strict=True)]
        return self.point_of(point, innovations, whitened)

    def log_densities(self, point: Point) -> dict[str, Array]:
        """Return log p(y | η) of every observation of each observed variable, by name."""
        prior = self.priors.at(point)
        eta = prior.predictor(self.innovations(point, prior))
        return {d.site.name: _log_densities(d, eta, point) for d in self._data}

    def site_log_densities(self, point: Point) -> dict[str, float]:
        """Return the log density of every observed variable, by name."""
        return {name: float(one.sum()) for name, one in self.log_densities(point).items()}

    def rounding(self, point: Point) -> float:
        """Return by how much rounding of the prior's covariances moves the log density at a point.

        A few evaluations with each entry moved by some units in its last place, which is what
        another way of computing a covariance does.
        """
        prior = self.priors.at(point).factorized()
        innovations, whitened = self.innovations(point, prior), self._whitened(point, prior)
        rng = np.random.default_rng(0)

        def density(move: bool) -> float:
            total, eta = 0.0, prior.offset.copy()
            for b, A, u, v in zip(
                prior.blocks, prior.full_maps, innovations, whitened, strict=True
            ):
                if move:
                    ulps = rng.integers(-_ULPS, _ULPS, b.array.shape, endpoint=True)
                    moved = b.array * (1.0 + np.finfo(float).eps * ulps)
                    b = block_prior(b.block, moved, b.jitter)
                    u, v = (b.scale(v), v) if b.block.whitened else (u, b.unscale(u))
                total += b.log_density(v)
                eta += A.apply(u)
            return total + _log_likelihood(self._data, eta, point)

        try:
            expected = density(False)
            differences = [abs(density(True) - expected) for _ in range(_N_ROUNDINGS)]
        except NotPositiveDefiniteError:
            return np.inf
        return _SAFETY * max(differences)

    # -- the step -----------------------------------------------------------------------------

    def step(
        self, rng: np.random.Generator, point: Point, updates: Mapping[str, Update]
    ) -> tuple[dict[str, np.ndarray], GibbsInfo]:
        """Return the next point and what the step tells about itself; ``point`` is unchanged."""
        info = GibbsInfo()
        point = dict(point)
        self._update(rng, point, updates, info, "prior_only", self.model.log_prior)
        self._update_joint(rng, point, updates, info)
        self._update_likelihood(rng, point, updates, info)
        for level in self._levels:
            point = self._update_level(rng, point, updates, info, level)
        for part in self.parts:
            point = self._move(rng, point, updates, info, part)
        for _ in range(self.sweeps - 1):
            info.log_evidence = 0.0
            for part in self.parts:
                self._draw_auxiliary(rng, point, part)
                point = self._draw_latents(rng, point, part, info, relax=True)

        eta = self.parts[0].eta
        if not self._is_whole:
            eta = self.priors.at(point).offset.copy()
            for part in self.parts:
                eta[part.rows] = part.eta
        info.log_density = (
            float(self.model.log_prior(point))
            + sum(part.log_prior for part in self.parts)
            + _log_likelihood(self._data, eta, point)
        )
        prior = self.priors.at(point).factorized()
        values = self._latent_values(point, prior) if self.model.forward else {}
        for variable in self.model.forward:
            try:
                draw = variable.draw(rng, {**point, **values})
            except ValueError as error:
                raise AugmentationError(
                    f"variable {variable.name!r}: expected parameters that it can be drawn with, "
                    f"found some that overflow ({error}); give the predictor priors that keep it "
                    "in range"
                ) from error
            point[variable.value_name] = draw.reshape(np.shape(point[variable.value_name]))
        info.log_density += sum(
            float(variable.log_density({**point, **values})) for variable in self.model.forward
        )
        info.jitter = prior.jitter
        return point, info

    def _move(
        self,
        rng: np.random.Generator,
        point: dict,
        updates: Mapping[str, Update],
        info: GibbsInfo,
        part: Part,
    ) -> dict:
        """Make moves 2 to 4 for one part, given the predictors of the others."""
        self._draw_auxiliary(rng, point, part)
        before = dict(point)
        self._update_collapsed(rng, point, updates, info, part)
        # Where θ has moved with the latents integrated out, the present ones are not a draw from
        # their distribution at the new θ: nothing is left to over-relax.
        relax = not self._collapsed_moves(part)
        try:
            return self._draw_latents(rng, point, part, info, relax)
        except NotPositiveDefiniteError:
            if relax or self._factorize_candidates:
                raise
            # The evidence does not need chol(K), a draw does, and so does PyMC's own model: from
            # now on values of θ without one are outside the support from the outset.
            self._factorize_candidates = True
            self._update_collapsed(rng, before, updates, info, part)
            return self._draw_latents(rng, before, part, info, relax)

    # -- move 1 -------------------------------------------------------------------------------

    def _update_likelihood(
        self, rng: np.random.Generator, point: dict, updates: Mapping[str, Update], info: GibbsInfo
    ) -> None:
        if not self.plan.likelihood:
            return
        names = {h.value_name for h in self.plan.likelihood}
        prior = self.priors.at(point)
        innovations = self.innovations(point, prior)
        moving = bool(names.intersection(self.priors.names))
        eta = prior.predictor(innovations)
        touched = [d for d in self._data if moving or names.intersection(d.site.params.names)]

        def log_density(candidate: Point) -> float:
            log_prior = float(self.model.log_prior(candidate))
            if not np.isfinite(log_prior):
                return -np.inf
            at = self.priors.at(candidate).predictor(innovations) if moving else eta
            return log_prior + _log_likelihood(touched, at, candidate)

        self._update(rng, point, updates, info, "likelihood", log_density)
        if moving or names.intersection(self._mean_names):
            # What is held fixed is u: a value mean(θ) + u moves with its mean.
            whitened = [np.ravel(point[b.value_name]) for b in self.model.blocks]
            point.update(self.point_of(point, innovations, whitened))

    def _update_level(
        self,
        rng: np.random.Generator,
        point: dict,
        updates: Mapping[str, Update],
        info: GibbsInfo,
        level: Level,
    ) -> dict:
        if not np.isfinite(level.log_parameter(point)):
            # Of a value that underflows; nor is any such value reached from another one.
            return point
        part = level.part
        prior = self.priors.at(point).factorized()
        u, v = self.innovations(point, prior), self._whitened(point, prior)
        pairs = list(zip(part.blocks, part.latents, strict=True))
        path = level.path(
            point,
            prior.predictor(u),
            [u[i][own] for i, own in pairs],
            [v[i][own] for i, own in pairs],
        )

        def log_density(candidate: Point) -> float:
            log_prior = float(self.model.log_prior(candidate))
            if not np.isfinite(log_prior):
                return -np.inf
            eta, of_latents = path.at(candidate)
            return log_prior + of_latents + _log_likelihood(self._data, eta, candidate)

        self._update(rng, point, updates, info, "level", log_density)
        return self._replaced(point, part, *path.latents(point))

    def _update_joint(
        self, rng: np.random.Generator, point: dict, updates: Mapping[str, Update], info: GibbsInfo
    ) -> None:
        """Hyperparameters of a covariance and a likelihood at once, given the whitened latents."""
        if not self.plan.joint:
            return
        prior = self.priors.at(point)
        whitened = self._whitened(point, prior)

        def at(candidate: Point) -> tuple[LatentPrior, list[Array]]:
            prior = self.priors.at(candidate)
            return prior, [b.scale(v) for b, v in zip(prior.blocks, whitened, strict=True)]

        def log_density(candidate: Point) -> float:
            log_prior = float(self.model.log_prior(candidate))
            if not np.isfinite(log_prior):
                return -np.inf
            prior, innovations = at(candidate)
            eta = prior.predictor(innovations)
            return log_prior + _log_likelihood(self._data, eta, candidate)

        self._update(rng, point, updates, info, "joint", log_density)
        _, innovations = at(point)
        point.update(self.point_of(point, innovations, whitened))

    # -- moves 2 and 4 ------------------------------------------------------------------------

    def _draw_auxiliary(self, rng: np.random.Generator, point: dict, part: Part) -> None:
        prior = self.priors.at(point)
        eta = prior.predictor(self.innovations(point, prior))
        omegas = []
        for data, group in part.members:
            data.params = data.site.params(point)
            data.eta = data.site.select(eta)
            omegas.append(self._draw_omega(rng, data, group))
        part.sites.condition(omegas)

    def _draw_omega(self, rng: np.random.Generator, data: SiteData, group: int) -> Any:
        return data.site.terms.draw_auxiliary(rng, data.y, data.eta, data.params, group)

    def _sites_of(self, data: SiteData, omega: Any, group: int) -> tuple[Array, Array]:
        return data.site.terms.sites(data.y, omega, data.params, data.eta, group)

    def _posterior(
        self, point: Point, part: Part, **how: bool
    ) -> tuple[AffinePosterior, LatentPrior, float]:
        """Return the posterior of the part's latents, their prior, and what merging leaves.

        ``how`` is passed to the part's space.
        """
        prior = part.priors.at(point).factorized()
        for data, _ in part.members:
            data.params = data.site.params(point)
        sites = part.sites.at(prior.offset)
        return part.space.posterior(prior, sites, **how), prior, sites.constant

    def _draw_latents(
        self,
        rng: np.random.Generator,
        point: dict,
        part: Part,
        info: GibbsInfo,
        relax: bool,
    ) -> dict:
        current = None
        if relax:
            whitened = self._whitened(point, self.priors.at(point).factorized())
            pairs = zip(part.blocks, part.latents, strict=True)
            current = np.concatenate([whitened[i][own] for i, own in pairs])
        try:
            how = {"settle": self._may_settle, "for_draws": True}
            posterior, prior, constant = self._posterior(point, part, **how)
        except UncertainEvidenceError:
            return self._stay(point, part, info)
        if current is not None:
            current = posterior.coordinates(current)
        drawn = self._draw_coordinates(rng, prior, posterior, current, info)
        info.log_evidence += posterior.log_evidence + constant
        v = posterior.whitened(drawn)
        if self.verifies:
            sites, coupling = part.sites.at(prior.offset), part.priors.groups.merged
            if posterior.error <= SMALL_ERROR:
                check_log_evidence(prior, sites, coupling, v, posterior.log_evidence)
        whitened = prior.split(v)
        innovations = posterior.innovations(prior, drawn)
        part.eta = prior.predictor(innovations)
        part.log_prior = sum(b.log_density(v) for b, v in zip(prior.blocks, whitened, strict=True))
        return self._replaced(point, part, innovations, whitened)

    def _stay(self, point: dict, part: Part, info: GibbsInfo) -> dict:
        """Leave the latents as they are, which leaves their distribution as it is, too."""
        info.stays += 1
        info.log_evidence = np.nan
        prior = part.priors.at(point).factorized()
        whole = self.priors.at(point).factorized()
        pairs = list(zip(part.blocks, part.latents, strict=True))
        u, v = self.innovations(point, whole), self._whitened(point, whole)
        part.eta = prior.predictor([u[i][own] for i, own in pairs])
        part.log_prior = sum(
            b.log_density(v[i][own]) for b, (i, own) in zip(prior.blocks, pairs, strict=True)
        )
        return point

    def _replaced(
        self, point: Point, part: Part, innovations: list[Array], whitened: list[Array]
    ) -> dict:
        """Return ``point`` with the part's latents replaced; the others keep their innovations."""
        if self._is_whole:
            return self.point_of(point, innovations, whitened)
        prior = self.priors.at(point).factorized()
        every = [u.copy() for u in self.innovations(point, prior)]
        entries = [np.array(point[b.value_name]).ravel() for b in self.model.blocks]
        pairs = zip(part.blocks, part.latents, strict=True)
        for (i, own), u, v in zip(pairs, innovations, whitened, strict=True):
            every[i][own], entries[i][own] = u, v
        return self.point_of(point, every, entries)

    def _draw_coordinates(
        self,
        rng: np.random.Generator,
        prior: LatentPrior,
        posterior: AffinePosterior,
        current: Array | None,
        info: GibbsInfo,
    ) -> Array:
        """Return the coordinates of the next latents, given the sites."""
        return draw(posterior, rng, current)

    # -- move 3 -------------------------------------------------------------------------------

    def _update_collapsed(
        self,
        rng: np.random.Generator,
        point: dict,
        updates: Mapping[str, Update],
        info: GibbsInfo,
        part: Part,
    ) -> None:
        for move in self._collapsed_moves(part):
            self._update_given_omega(rng, point, updates, info, part, move)

    def _collapsed_moves(self, part: Part) -> list[str]:
        """Return the names of the updates of move 3 that concern a part."""
        moves = self.plan.moves
        names = ["collapsed"]
        names += [f"collapsed {self.model.blocks[i].name}" for i in part.blocks]
        return [name for name in names if moves.get(name)]

    def _update_given_omega(
        self,
        rng: np.random.Generator,
        point: dict,
        updates: Mapping[str, Update],
        info: GibbsInfo,
        part: Part,
        move: str,
    ) -> None:
        """Make one update of move 3."""
        names = {h.value_name for h in self.plan.moves[move]}
        moving = [d for d, _ in part.members if not names.isdisjoint(d.site.params.names)]
        priors, digits = part.priors, EPS * math.sqrt(part.rows.size)

        def log_density(candidate: Point) -> float:
            total = float(self.model.log_prior(candidate))
            if not np.isfinite(total):
                return -np.inf
            for data in moving:
                data.params = data.site.params(candidate)
            prior = priors.at(candidate)
            if self._factorize_candidates:
                prior.factorized()
            sites = part.sites.at(prior.offset)
            base = part.sites.log_base(sites, names)
            if digits * (abs(base) + sites.magnitude) > LARGEST_ERROR:
                raise UncertainEvidenceError("rounding leaves no digits of the sites' constants")
            total += base + sites.constant
            return total + self._log_marginal(candidate, part, prior, sites)

        def gradient(candidate: Point) -> tuple[float, dict[str, Array]]:
            value, terms = log_evidence_and_gradient(
                self.model, priors, candidate, *part.sites.stacked
            )
            slopes = self.model.log_prior_gradient(candidate)
            for name, term in terms.items():
                slopes[name] = slopes[name] + term if name in slopes else term
            if self._evidence_is_exact:
                return value + float(self.model.log_prior(candidate)), slopes
            return log_density(candidate), slopes

        self._update(rng, point, updates, info, move, log_density, gradient)

    def _is_exact(self, data: SiteData) -> bool:
        """Return whether the site of an observed variable is its likelihood, without an ω."""
        return not data.site.likelihood.has_auxiliary

    def _log_marginal(
        self, candidate: Point, part: Part, prior: LatentPrior, sites: SiteSum
    ) -> float:
        return part.space.posterior(prior, sites).log_evidence

    # -- updates ------------------------------------------------------------------------------

    def _update(
        self,
        rng: np.random.Generator,
        point: dict,
        updates: Mapping[str, Update],
        info: GibbsInfo,
        move: str,
        log_density: Callable[[Point], Any],
        gradient: Gradient | None = None,
    ) -> None:
        """Run the update of one move, writing the new values into ``point``."""
        members = self.plan.moves[move]
        if not members:
            return
        target = PointTarget(point, members, log_density, gradient)
        start = np.concatenate([np.ravel(point[h.value_name]) for h in members])
        with np.errstate(all="ignore"):
            # To stay where the density has no digits leaves it as it is, as ω alone decides that.
            target(start)
            value = start if target.refused else updates[move](target, start, rng)
        info.evaluations += target.evaluations
        if gradient is not None:
            info.note(target.refused, members, stays=value is start)
        target.write(point, value)


def _log_likelihood(data: list[SiteData], eta: Array, point: Point) -> float:
    return sum(float(_log_densities(d, eta, point).sum()) for d in data)


def _log_densities(data: SiteData, eta: Array, point: Point) -> Array:
    site = data.site
    return site.terms.log_density(data.y, site.select(eta), site.params(point))


def _topological(model: LatentGaussianModel) -> list[int]:
    """Return the blocks in an order in which every mean comes after what it depends on."""
    order: list[int] = []
    placed: set[Argument] = set()
    waiting = list(range(len(model.blocks)))
    while waiting:
        for i in waiting:
            block = model.blocks[i]
            needs = () if block.mean is None else block.mean.names
            if all(name in placed for name in needs if isinstance(name, Argument)):
                order.append(i)
                placed.add(Argument("value", block.name))
                waiting.remove(i)
                break
    return order
