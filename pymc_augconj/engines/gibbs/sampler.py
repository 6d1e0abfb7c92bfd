"""The Gibbs step: four moves, in the order that makes them exact.

0. hyperparameters given the latents whose entries are independent then, all at once, and others
   that such a vector follows;
1. hyperparameters of the likelihoods given the latents, ω integrated out; some of them once more
   while the level of a predictor moves against them, see :mod:`.moves.given_latents`;
2. ω given everything;
3. hyperparameters of the prior given ω, the latents integrated out; scales of single latents entry
   by entry, see :mod:`.moves.given_latents`;
4. the latents given everything.

Where a likelihood has several groups of predictors, moves 2 and 4 are made for one part of the
latents after the other, see :mod:`.parts`: ω of a group is drawn immediately before its latents,
given all predictors as they are then, so that each pair of moves leaves the posterior as it is.

Moves 3 and 4 together are one draw of (θ, u) given ω, and where a part has held sites one that
leaves their posterior as it is, see :mod:`.tilted`. How a move explores the density it is given is
not decided here: the caller passes an update (slice sampling, say) for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.latents.joint import block_prior
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.plan import Plan
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Generator

from .chain import Chain
from .held_sites import HeldSites
from .moves import given_latents, latents
from .parts import Part
from .state import GibbsInfo, State, Update

# Evaluations with other rounding, the units in the last place that they move a number by, and how
# much larger an error may be than the largest that they show.
_N_ROUNDINGS, _ULPS, _SAFETY = 3, 4, 32.0
# Draws of ω in each step, where there are held sites beside it.
_SWEEPS = 4
# Draws from the Gaussian approximation among which one with a density is looked for.
_START_ATTEMPTS = 100
# Half the width of the jitter of coefficients that have priors of their own; PyMC's NUTS uses it.
_START_JITTER = 1.0
# Steps over which the standard deviation of r is taken.
_RECENT = 50


class GibbsSampler:
    """One chain's Gibbs sampler; everything it keeps is a cache, or in :attr:`state`.

    The ``plan`` says which hyperparameters each move updates (others are held fixed); ``probes``
    are other values of θ than the start ``point``, at which predictors must agree to be merged.
    ``sweeps`` are draws of ω and the latents in each step, by default one, with move 1 before each;
    further draws reuse K and its factor. Where all sites are held, they are elliptical slices in
    each step, by default as many as the held ``sites`` ask for, and one where trajectories follow;
    where ω is drawn too, by default four draws of it, each before one part of these slices.
    """

    def __init__(
        self,
        model: LatentGaussianModel,
        plan: Plan,
        point: Point,
        probes: Sequence[Point] = (),
        sweeps: int | None = None,
        sites: HeldSites | None = None,
    ) -> None:
        self.model, self.sites = model, sites
        slices = None
        if sites is not None and len(sites.held) == len(model.sites):
            slices, sweeps = sweeps, 1
        elif sites is not None:
            slices, sweeps = sweeps and 1, sweeps or _SWEEPS
        self.sweeps = sweeps or 1
        self.chain = Chain(model, plan, [point, *probes], sites, slices, self.sweeps)
        self.parts, self.priors = self.chain.parts, self.chain.priors
        # The first factor has the intercepts.
        own = [part.factors[0] if part.factors else part for part in self.parts]
        self.levels = given_latents.find_levels(own, {h.value_name for h in plan.level})
        ordered = [level.data.site.params for level in self.levels if level.are_cutpoints]
        #: Whether move 1 is left out: given many predictors cutpoints hardly move, and with their
        #: level all of them do. The compiled loop, without factors of such sites, makes both moves.
        self.skips_likelihood = plan.factors is not None and all(
            h in plan.level and any(h.value_name in params.names for params in ordered)
            for h in plan.likelihood
        )
        self._recent = np.full(_RECENT, np.nan)
        # The sites that have had a posterior.
        self._possible: tuple[Array | None, Array | None] = (None, None)

    @property
    def state(self) -> dict[str, Any]:
        """Values that steps leave behind, besides the caches that the first one fills."""
        parts = [own for part in self.parts for own in (part, *part.factors)]
        return {
            "parts": [(own.solver.state, own.factorizes, own.nu) for own in parts],
            "recent": self._recent,
            "possible": self._possible,
        }

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        parts = [own for part in self.parts for own in (part, *part.factors)]
        for own, (solver, factorizes, nu) in zip(parts, state["parts"], strict=True):
            own.solver.state, own.factorizes, own.nu = solver, factorizes, nu
        self._recent = np.array(state["recent"])
        self._possible = state["possible"]

    @property
    def follows(self) -> bool:
        """Whether latents are drawn by trajectories too."""
        return any(part.tilted.follows for part in self.parts if part.tilted is not None)

    def step(
        self,
        rng: Generator,
        point: Point,
        updates: Mapping[str, Update],
        forward: Generator | None = None,
    ) -> tuple[dict[str, np.ndarray], GibbsInfo]:
        """Return the next point and what the step tells about itself; ``point`` is unchanged.

        ``forward`` draws the variables that nothing observed depends on, by default ``rng``.
        """
        chain, state = self.chain, State(dict(point), updates)
        self._keep_possible(point)
        given_latents.update_prior_only(rng, chain, state)
        for sweep in range(self.sweeps):
            given_latents.update_entries(rng, chain, state)
            if not sweep:
                given_latents.update_along_ridges(rng, chain, state)
            if not sweep or chain.plan.by_column:
                given_latents.update_joint(rng, chain, state)
            if not self.skips_likelihood:
                given_latents.update_likelihood(rng, chain, state)
            for level in () if sweep else self.levels:
                given_latents.update_level(rng, chain, state, level)
            # That of the last sweep is recorded.
            state.info.log_evidence = 0.0
            for part in self.parts:
                self._draw_part(rng, state, part, again=sweep > 0)
        self._describe(state)
        latents.draw_forward(rng if forward is None else forward, chain, state)
        chain.relaxes = chain.relaxes or not state.info.stays
        return state.point, state.info

    def _draw_part(self, rng: Generator, state: State, part: Part, *, again: bool) -> None:
        """Make moves 2 to 4 for one part, given the predictors of the others.

        Without move 3 where they are made ``again`` in a step.
        """
        chain = self.chain
        if part.factors:
            latents.draw_by_factor(rng, chain, state, part)
            return
        latents.draw_auxiliary(rng, chain, state, part)
        for member in chain.plan.by_column:
            given_latents.update_columns(rng, chain, state, part, member)
        if again:
            latents.draw_latents(rng, chain, state, part, relax=not chain.plan.by_column)
            return
        before = dict(state.point)
        latents.update_collapsed(rng, chain, state, part)
        # Where θ has moved with the latents integrated out, the present ones are not a draw from
        # their distribution at the new θ: nothing is left to over-relax.
        relax = not (part.collapsed or chain.plan.by_column)
        try:
            latents.draw_latents(rng, chain, state, part, relax=relax)
        except NotPositiveDefiniteError:
            if relax or part.factorizes:
                raise
            # The evidence does not need chol(K), a draw does, and so does PyMC's own model: from
            # now on values of θ without one are outside the support from the outset.
            part.factorizes, state.point = True, before
            latents.update_collapsed(rng, chain, state, part)
            latents.draw_latents(rng, chain, state, part, relax=relax)

    def _describe(self, state: State) -> None:
        """Write down the log density, the jitter and the spread of r."""
        chain, point, info = self.chain, state.point, state.info
        prior = self.priors.at(point).factorized()
        eta = prior.offset.copy()
        info.log_density = float(self.model.log_prior(point)) + chain.log_jacobian(point)
        for part in self.parts:
            eta[part.rows] = part.eta
            info.log_density += part.log_prior
        info.log_density += chain.log_likelihood(eta, point)
        info.jitter = prior.jitter
        if self.sites is not None:
            self.sites.predictor = eta
            residual = sum(part.log_ratio for part in self.parts)
            info.residual_std = self.residual_std(np.array([residual])).item()

    @property
    def is_settled(self) -> bool:
        """Whether the present held sites have had a posterior."""
        return self.sites is None or self.sites.h is self._possible[0]

    def residual_std(self, values: Array) -> Array:
        """Return the standard deviation of r over the last steps after each of some more."""
        values = np.concatenate([self._recent, np.where(np.isfinite(values), values, np.nan)])
        self._recent = values[-_RECENT:]
        windows = sliding_window_view(values, _RECENT)[1:]
        is_known = ~np.isnan(windows)
        count = np.maximum(is_known.sum(axis=1), 1)
        mean = np.where(is_known, windows, 0.0).sum(axis=1) / count
        away = np.where(is_known, windows - mean[:, None], 0.0)
        return np.where(is_known.any(axis=1), np.sqrt((away**2).sum(axis=1) / count), np.inf)

    def _keep_possible(self, point: Point) -> None:
        """Go back to the held sites before, where new ones have no posterior at the present θ.

        They were chosen at the mean θ of a window of tuning, which may be far away.
        """
        sites = self.sites
        if sites is None:
            return
        if sites.h is None:
            sites.predictor = self.chain.predictor(point)
            sites.choose(point)
        if sites.h is self._possible[0]:
            return
        try:
            # Within factors λ ≥ 0 of few latents each always has a posterior.
            for part in [part for part in self.parts if not part.factors]:
                part.approximation(point, sites, settle=True)
        except NotPositiveDefiniteError:
            if self._possible[0] is None:
                raise
            sites.h, sites.lam = self._possible
        self._possible = sites.chosen

    def dispersed(self, rng: Generator, point: Point) -> dict[str, Array]:
        """Return ``point`` with other latents: a dispersed start.

        They are drawn from their prior, flat ones excepted; where there are held sites, from the
        Gaussian approximation at its θ. A draw from the prior may be so far out that an ellipse
        around the approximation hardly leads back.
        """
        if self.sites is None:
            prior = self.priors.at(point).factorized()
            pairs = zip(self.model.blocks, self.chain.whitened(point), strict=True)
            whitened = [v if b.is_flat else rng.standard_normal(v.size) for b, v in pairs]
            # At zero, where its scale would follow it, a coefficient would not leave again.
            own = {site.name for site in self.model.sites if site.is_prior}
            for i, b in enumerate(prior.blocks):
                if b.block.is_flat and b.block.transform is None and b.block.name in own:
                    jitter = rng.uniform(-_START_JITTER, _START_JITTER, whitened[i].size)
                    whitened[i] = whitened[i] + b.unscale(jitter)
            innovations = [b.scale(v) for b, v in zip(prior.blocks, whitened, strict=True)]
            return self.chain.point_of(point, innovations, whitened)
        if any(part.factors for part in self.parts):
            state = State(dict(point), {})
            for part in self.parts:
                latents.approach(rng, self.chain, state, part, self.sites)
            return state.point
        self.sites.predictor = self.chain.predictor(point)
        self.sites.choose(point)
        found = dict(point)
        for part in self.parts:
            given = part.approximation(point, self.sites)
            for _ in range(_START_ATTEMPTS):
                x = given.posterior.apply(rng.standard_normal(given.posterior.size))
                eta = given.predictor(x)
                if part.tilted is None or np.isfinite(part.tilted.residual(eta, point)):
                    found = self.chain.replaced(found, part, *given.latents(x))
                    break
        return found

    # -- densities ----------------------------------------------------------------------------

    def log_densities(self, point: Point) -> dict[str, Array]:
        """Return log p(y | η) of every observation of each observed variable, by name."""
        eta = self.chain.predictor(point)
        return {d.site.name: d.log_densities(eta, point) for d in self.chain.data}

    def site_log_densities(self, point: Point) -> dict[str, float]:
        """Return the log density of every observed variable, by name."""
        return {name: float(one.sum()) for name, one in self.log_densities(point).items()}

    def rounding(self, point: Point) -> float:
        """Return by how much rounding of latents and their covariances moves the log density.

        A few evaluations with each entry moved by some units in its last place, which is what
        another way of computing it does.
        """
        prior = self.priors.at(point).factorized()
        rng = np.random.default_rng(0)

        def moved(x: Array) -> Array:
            ulps = rng.integers(-_ULPS, _ULPS, x.shape, endpoint=True)
            return np.asarray(x * (1.0 + np.finfo(float).eps * ulps))

        def density(move: bool) -> float:
            total, eta, at = 0.0, prior.offset.copy(), dict(point)
            for name in (b.block.value_name for b in prior.blocks if move):
                at[name] = moved(point[name])
            innovations, whitened = self.chain.innovations(at), self.chain.whitened(at)
            for b, A, u, v in zip(
                prior.blocks, prior.full_maps, innovations, whitened, strict=True
            ):
                if move:
                    b = block_prior(b.block, moved(b.array), b.jitter)
                    u, v = (b.scale(v), v) if b.block.whitened else (u, b.unscale(u))
                total += b.log_density(v)
                eta += A.apply(u)
            return total + self.chain.log_likelihood(eta, point)

        try:
            expected = density(False)
            differences = [abs(density(True) - expected) for _ in range(_N_ROUNDINGS)]
        except NotPositiveDefiniteError:
            return np.inf
        return _SAFETY * max(differences)
