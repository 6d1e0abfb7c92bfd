"""The Gibbs step where some observed variables have held sites instead of auxiliary variables.

Let Z(θ) normalise p(f | θ) times all sites, those of ω and the held ones, let f = f(θ, ν) map
standard normal numbers to that Gaussian distribution (:mod:`pymc_augconj.latents.affine`), and let

    r(f) = Σ log p(yᵢ | fᵢ) − (hᵢ fᵢ − ½ λᵢ fᵢ²)

over the observations with held sites. Given ω, the posterior of (θ, ν) is proportional to
p(θ) Z(θ) N(ν; 0, I) exp r(f(θ, ν)). It is a marginal of the distribution of θ, K independent
vectors ν_k and an index κ, proportional to

    p(θ) Z(θ) exp r(f(θ, ν_κ)) Π_k N(ν_k; 0, I),

in which ν = ν_κ. Moves 1 and 2 of :mod:`.sampler` are as they were; then

3. ν_k for k ≠ κ from N(0, I); hyperparameters of the prior given ω and all ν_k, κ summed out, from
   p(θ) Z(θ) Σ_k exp r(f(θ, ν_k)); and κ, with probabilities in proportion to these terms;
4. the latents given θ and ω by elliptical slices, each with a fresh draw of the Gaussian
   distribution and no factorisation; and where these hardly move, because r is steep, by a
   Hamiltonian trajectory of ν, see :mod:`.trajectory`.

With K = 1 the posterior of θ is conditioned on how one f deviates from its Gaussian distribution,
which K → ∞ would integrate out.

Where a gradient of move 3 is asked for, it is that of p(θ) Z(θ): a trajectory that follows it is
reversible and keeps volume, and its points are weighed by the whole density.

References
----------
Murray & Adams (2010), Slice sampling covariance hyperparameters of latent Gaussian models.
Nishihara, Murray & Adams (2014), Parallel MCMC with generalized elliptical slice sampling.
Andrieu & Roberts (2009), The pseudo-marginal approach for efficient Monte Carlo computations.
Fagan, Bhandari & Cunningham (2016), Elliptical slice sampling with expectation propagation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from pymc_augconj.errors import (
    AugmentationError,
    NotPositiveDefiniteError,
    UncertainEvidenceError,
)
from pymc_augconj.latents.affine import AffinePosterior, DifferentiablePosterior
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.rows import SiteSum
from pymc_augconj.model import LatentGaussianModel, Point
from pymc_augconj.plan import Plan
from pymc_augconj.typing import Array

from .elliptical import elliptical_slice
from .held_sites import HeldSites
from .parts import Part
from .sampler import GibbsInfo, GibbsSampler
from .site_terms import SiteData
from .targets import Update
from .trajectory import trajectory

__all__ = ["HeldGibbsSampler"]


# Draws from the Gaussian approximation among which one with a density is looked for.
_START_ATTEMPTS = 100
# Standard normal vectors that move 3 sums over. They cost little beside factorisations.
_ENSEMBLE = 8
# Draws of ω in each step, where there are some.
_SWEEPS = 4
# The angle that a trajectory turns by, and the most steps that it takes.
_TURN, _MOST_STEPS = math.pi, 64
# Steps over which the standard deviation of r is taken.
_RECENT = 50


class HeldGibbsSampler(GibbsSampler):
    """One chain's sampler of a model with held sites.

    Parameters
    ----------
    model, plan, point, probes
        As for :class:`~pymc_augconj.engines.gibbs.GibbsSampler`.
    held : collection of str
        The observed variables whose sites are held.
    sites : HeldSites
    sweeps : int, optional
        Elliptical slices in each step. By default as many as the held sites ask for, and one where
        trajectories follow; where ω is drawn too, it is drawn anew before each of four parts of
        them.
    """

    def __init__(
        self,
        model: LatentGaussianModel,
        plan: Plan,
        point: Point,
        probes: Sequence[Point] = (),
        sweeps: int | None = None,
        *,
        held: Collection[str],
        sites: HeldSites,
    ) -> None:
        self._alone, self._given = len(held) == len(model.sites), sweeps
        self._names = frozenset(held)
        super().__init__(model, plan, point, probes, sweeps=1 if self._alone else sweeps or _SWEEPS)
        if len(self.parts) > 1:
            raise AugmentationError(
                "expected observed variables with one group of predictors each beside those with "
                f"held sites {sorted(held)}, found {len(self.parts)} parts of the latents that are "
                "drawn one after the other; use sites='held' for all"
            )
        (self._part,) = self.parts
        self.sites = sites
        self._held = [data for data in self._data if self._is_held(data)]
        self._has_gradients = all(data.site.terms.has_gradient for data in self._held)
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._nu = np.empty((0, 0))
        # The sites that have had a posterior.
        self._possible: tuple[Array | None, Array | None] = (None, None)
        # f(θ, ν) takes chol(K), and r is a factor of the density of move 3.
        self._factorize_candidates, self._evidence_is_exact = True, False
        # ν is that of one space: another one is taken with other sites alone.
        self._may_settle = False

    def step(
        self, rng: np.random.Generator, point: Point, updates: Mapping[str, Update]
    ) -> tuple[dict[str, np.ndarray], GibbsInfo]:
        """See :meth:`.GibbsSampler.step`."""
        if self.sites.h is None:
            self.sites.choose(point)
        self._keep_possible(point)
        new, info = super().step(rng, point, updates)
        if np.isfinite(info.residual):
            self._recent.append(info.residual)
        info.residual_std = float(np.std(self._recent)) if self._recent else np.inf
        return new, info

    @property
    def follows(self) -> bool:
        """Whether the latents are drawn by trajectories too."""
        # Any space may condition the draws where the preferred one has no digits.
        can_follow = self._part.space.differentiable and self._has_gradients
        return can_follow and self.sites.fit_badly

    def draw_from_prior(self, rng: np.random.Generator, point: Point) -> dict[str, np.ndarray]:
        """Return ``point`` with the latents drawn from the Gaussian approximation at its θ.

        A draw from the prior may be so far out that an ellipse around the approximation hardly
        leads back.
        """
        self.sites.choose(point)
        for data in self._held:
            data.params = data.site.params(point)
        prior, posterior = self._approximation(point)
        for _ in range(_START_ATTEMPTS):
            x = posterior.apply(rng.standard_normal(posterior.size))
            innovations = posterior.innovations(prior, x)
            if np.isfinite(self._residual(prior.predictor(innovations))):
                return self.point_of(point, innovations, prior.split(posterior.whitened(x)))
        return dict(point)

    # -- sites --------------------------------------------------------------------------------

    def _approximation(self, point: Point, **how: bool) -> tuple[LatentPrior, AffinePosterior]:
        prior = self.priors.at(point).factorized()
        sites = self.priors.groups.merge(*self.sites.chosen, prior.offset)
        return prior, self._part.space.posterior(prior, SiteSum((sites,)), **how)

    def _keep_possible(self, point: Point) -> None:
        """Go back to the sites before, where new ones have no posterior at the present θ.

        They were chosen at the mean θ of a window of tuning, which may be far away.
        """
        if self.sites.h is self._possible[0]:
            return
        try:
            self._approximation(point, settle=True)
        except NotPositiveDefiniteError:
            if self._possible[0] is None:
                raise
            self.sites.h, self.sites.lam = self._possible
        self._possible = self.sites.chosen

    def _is_held(self, data: SiteData) -> bool:
        return data.site.name in self._names

    def _is_exact(self, data: SiteData) -> bool:
        return not self._is_held(data) and super()._is_exact(data)

    def _groups_of(self, data: SiteData) -> tuple[tuple[int, ...], ...]:
        if self._is_held(data):
            return (tuple(range(data.site.likelihood.n_predictors)),)
        return super()._groups_of(data)

    def _is_full(self, data: SiteData) -> bool:
        return self._is_held(data) or super()._is_full(data)

    def _draw_omega(self, rng: np.random.Generator, data: SiteData, group: int) -> Any:
        return None if self._is_held(data) else super()._draw_omega(rng, data, group)

    def _sites_of(self, data: SiteData, omega: Any, group: int) -> tuple[Array, Array]:
        if not self._is_held(data):
            return super()._sites_of(data, omega, group)
        return self.sites.of(data.site.name)

    def _residual(self, eta: Array, point: Point | None = None) -> Array:
        """Return r at the predictors η, (n,) or (count, n); −∞ outside the support."""
        etas = np.atleast_2d(eta)
        total = np.zeros(len(etas))
        for data in self._held:
            site, (h, lam) = data.site, self.sites.of(data.site.name)
            own = etas[:, site.rows].reshape(-1, *site.shape).swapaxes(0, 1)
            params = data.params if point is None else site.params(point)
            with np.errstate(all="ignore"):
                log_density = site.terms.log_density(data.y, own, params)
                slope = h[:, None] - 0.5 * np.einsum("pqn,qkn->pkn", lam, own)
                total += (log_density - (own * slope).sum(axis=0)).sum(axis=-1)
        total[~np.isfinite(total)] = -np.inf
        return total if eta.ndim == 2 else total[0]

    def _residual_and_gradient(self, eta: Array) -> tuple[float, Array]:
        """Return r at the predictors η, (n,), and its gradient there."""
        total, gradient = 0.0, np.zeros_like(eta)
        for data in self._held:
            site, (h, lam) = data.site, self.sites.of(data.site.name)
            own = site.select(eta)
            value, slope = site.terms.log_density_and_gradient(data.y, own, data.params)
            weighted = np.einsum("pqn,qn->pn", lam, own)
            total += float(value.sum() - np.sum(own * (h - 0.5 * weighted)))
            gradient[site.row_numbers] = slope - h + weighted
        return total, gradient

    def _residual_on_ellipse(
        self, centre: Array, here: Array, there: Array, cos: float, sin: float
    ) -> float:
        return float(self._residual(centre + cos * here + sin * there))

    # -- move 3 -------------------------------------------------------------------------------

    def _update_collapsed(
        self,
        rng: np.random.Generator,
        point: dict,
        updates: Mapping[str, Update],
        info: GibbsInfo,
        part: Part,
    ) -> None:
        if not self.plan.collapsed:
            return
        try:
            posterior, prior, _ = self._posterior(point, part, alone=True)
        except UncertainEvidenceError:
            info.stays += 1
            return
        v = np.concatenate(self._whitened(point, prior))
        present = posterior.solve(rng, posterior.coordinates(v))
        others = rng.standard_normal((_ENSEMBLE - 1, posterior.size))
        self._nu = np.vstack([present, others])
        super()._update_collapsed(rng, point, updates, info, part)
        posterior, prior, _ = self._posterior(point, part, alone=True)
        x = posterior.apply(self._nu)
        residual = self._residual(prior.predictor(posterior.innovations(prior, x)))
        # Draws from probabilities that are known by their logarithms, up to a constant.
        chosen = x[np.argmax(residual + rng.gumbel(size=residual.size))]
        innovations, v = posterior.innovations(prior, chosen), posterior.whitened(chosen)
        point.update(self.point_of(point, innovations, prior.split(v)))

    def _log_marginal(
        self, candidate: Point, part: Part, prior: LatentPrior, sites: SiteSum
    ) -> float:
        prior = prior.factorized()
        posterior = part.space.posterior(prior, sites, alone=True)
        eta = prior.predictor(posterior.innovations(prior, posterior.apply(self._nu)))
        return posterior.log_evidence + float(np.logaddexp.reduce(self._residual(eta, candidate)))

    # -- move 4 -------------------------------------------------------------------------------

    def _count_slices(self) -> int:
        if self._alone:
            return self._given or self.sites.slices
        return 1 if self._given else -(-self.sites.slices // _SWEEPS)

    def _draw_latents(
        self,
        rng: np.random.Generator,
        point: dict,
        part: Part,
        info: GibbsInfo,
        relax: bool,
    ) -> dict:
        # An elliptical slice starts at the present latents.
        return super()._draw_latents(rng, point, part, info, relax=True)

    def _draw_coordinates(
        self,
        rng: np.random.Generator,
        prior: LatentPrior,
        posterior: AffinePosterior,
        current: Array | None,
        info: GibbsInfo,
    ) -> Array:
        assert current is not None  # see _draw_latents
        mean = posterior.mean
        eta, centre = prior.predictor(posterior.innovations(prior, np.stack([current, mean])))
        here, value = eta - centre, float(self._residual(eta))
        follow = self.follows and hasattr(posterior, "pull")
        count = (self._given or 1) if follow else self._count_slices()
        # Several at once: to solve for many takes hardly longer than for one.
        fresh = posterior.apply(rng.standard_normal((count, posterior.size)))
        etas = prior.predictor(posterior.innovations(prior, fresh)) - centre
        # Of the deviation from the mean at the start, and of the fresh ones.
        away, weights = current - mean, np.eye(count + 1)[0]
        for k, there in enumerate(etas, start=1):
            residual = partial(self._residual_on_ellipse, centre, here, there)
            cos, sin, value, trials = elliptical_slice(rng, residual, value)
            weights *= cos
            weights[k] = sin
            here = cos * here + sin * there
            info.trials += trials
            info.slices += 1
            if follow:
                x = mean + weights[0] * away + weights[1:] @ (fresh - mean)
                x, eta, value = self._follow(rng, prior, posterior, x, info)
                away, here, weights = x - mean, eta - centre, np.eye(count + 1)[0]
        info.residual = value
        return mean + weights[0] * away + weights[1:] @ (fresh - mean)

    def _follow(
        self,
        rng: np.random.Generator,
        prior: LatentPrior,
        posterior: AffinePosterior,
        x: Array,
        info: GibbsInfo,
    ) -> tuple[Array, Array, float]:
        """Return the end of a trajectory, its predictors and r."""
        residual = partial(self._residual_of, prior, posterior)
        angle, nu = self.sites.angle, posterior.solve(rng, x)
        steps = int(np.clip(math.ceil(_TURN / angle), 1, _MOST_STEPS))
        with np.errstate(all="ignore"):
            nu, value, acceptance = trajectory(rng, residual, nu, angle, steps)
        info.trajectories += 1
        info.acceptance += acceptance
        x = posterior.apply(nu)
        return x, prior.predictor(posterior.innovations(prior, x)), value

    def _residual_of(
        self, prior: LatentPrior, posterior: AffinePosterior, nu: Array
    ) -> tuple[float, Array]:
        """Return r and its gradient as functions of ν."""
        groups = self._part.priors.groups
        value, slope = self._residual_and_gradient(
            prior.predictor(posterior.innovations(prior, posterior.apply(nu)))
        )
        if groups.inverse is not None:
            slope = np.bincount(groups.inverse, slope, groups.size)
        pull = cast(DifferentiablePosterior, posterior).pull
        return value, pull(prior.whitened_transpose(slope))
