"""Latents whose posterior given some sites is a Gaussian distribution times exp r.

Let Z(θ) normalise p(f | θ) times all sites of a part, those of ω and the held ones, let f = f(θ, ν)
map standard normal numbers to that Gaussian distribution, and let r(f) = Σ log p(yᵢ | fᵢ) −
(hᵢ fᵢ − ½ λᵢ fᵢ²) over the observations with held sites, see ``docs/theory/held_sites.md``. The
posterior of (θ, ν) given ω is a marginal of that of θ, K independent ν_k and an index κ,

    p(θ) Z(θ) exp r(f(θ, ν_κ)) Π_k N(ν_k; 0, I),        ν = ν_κ.

So move 3 of :mod:`.sampler` draws ν_k for k ≠ κ from N(0, I); hyperparameters of the prior given ω
and all ν_k, κ summed out; and κ. Move 4 draws the latents given θ and ω by elliptical slices, each
with a fresh draw of the Gaussian distribution; and where r is steep by a trajectory of ν.

Given the effects of other factors, see :mod:`.factors`, the levels j of one are independent, and K,
κ and the ellipses are those of a level: p(θ) Z(θ) Π_j Σ_k exp r_j(f_j(θ, ν_jk)). One ellipse for
all would hardly move; nor would it of a long series, whose ellipses are of stretches of ν, see
:mod:`pymc_augconj.latents.markov_values`. ν belongs to the solver that it was found by: no other
one may take that one's place before κ is drawn (Andrieu & Roberts 2009, The pseudo-marginal
approach).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import is_not
from typing import Any

import numpy as np

from pymc_augconj.gaussian.sites import Span
from pymc_augconj.latents.choice import CertifiedSolver
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Generator, Index

from .elliptical import elliptical_slice, elliptical_slices, trajectory
from .held_sites import FEWEST_SLICES
from .observed import Held, SiteData
from .state import GibbsInfo

# The angle that a trajectory turns by, and the most steps that it takes.
_TURN, _MOST_STEPS = math.pi, 64


@dataclass(frozen=True)
class Conditional:
    """The Gaussian distribution of a part's latents given its sites, in coordinates x of a solver.

    ``constant`` is what the log evidence leaves out, the sites at their origin.
    """

    posterior: Posterior
    constant: float = 0.0

    @property
    def prior(self) -> LatentPrior:
        return self.posterior.prior

    def coordinates(self, whitened: list[Array]) -> Array:
        """Return x of v by blocks."""
        return self.posterior.coordinates(np.concatenate(whitened))

    @property
    def is_by_values(self) -> bool:
        """Whether latents are taken as u, since S of some takes a factorisation."""
        blocks = self.prior.blocks
        return any(b.is_lazy for b in blocks) and not any(b.block.whitened for b in blocks)

    def predictor(self, x: Array) -> Array:
        """Return the part's η."""
        return self.prior.predictor(self.posterior.innovations(x))

    def latents(self, x: Array) -> tuple[list[Array], list[Array]]:
        """Return u and v by blocks; of those that are lazy u itself in the place of v."""
        if self.is_by_values:
            own = self.posterior.innovations(x)
            pairs = zip(self.prior.blocks, own, strict=True)
            return own, [u if b.is_lazy else b.unscale(u) for b, u in pairs]
        whitened = self.prior.split(self.posterior.whitened(x))
        return self.posterior.innovations(x), whitened


@dataclass(frozen=True)
class Levels:
    """``count`` sets of latents that are independent given their sites."""

    of_rows: Index
    of_latents: Index
    count: int


def _sums(by_row: Array, of_rows: Index | None = None, count: int = 1) -> Array:
    """Return r of every level, (…, levels), from that of its rows, (…, n); −∞ where it is none."""
    with np.errstate(invalid="ignore"):
        if of_rows is None:
            total = by_row.sum(axis=-1, keepdims=True)
        else:
            rows = by_row.reshape(-1, of_rows.size)
            total = np.array([np.bincount(of_rows, each, count) for each in rows])
            total = total.reshape(*by_row.shape[:-1], count)
    total[~np.isfinite(total)] = -np.inf
    return np.asarray(total)


class Tilted:
    """Log ratio r of the densities of one part to its held sites, and moves that correct for it.

    ``held`` are observed variables, and the rows of each among the part's predictors. ``slices``
    are elliptical slices each time; by default as many as the held sites ask for in a step of that
    many ``sweeps``, in equal parts, and one where trajectories follow. ``levels`` are sets of
    latents, by default one of all, and ``ensemble`` is K, by default one where sites fit or long
    trajectories follow, and else the solver's. ``value`` is r at the latents that were drawn last.
    """

    def __init__(
        self,
        held: Sequence[tuple[SiteData, Held, Span]],
        groups: RowGroups,
        solver: CertifiedSolver,
        slices: int | None,
        sweeps: int,
        levels: Levels | None = None,
        ensemble: int | None = None,
    ) -> None:
        self._levels, self._ensemble = levels, ensemble
        self._held, self._groups, self._solver = held, groups, solver
        self._sites, self._slices, self._sweeps = held[0][1].held_sites, slices, sweeps
        kinds = [data.site.likelihood for data, *_ in held]
        self._are_single = all(k.n_predictors == 1 for k in kinds)
        by_differences = solver.preferred.follows and self._are_single
        self._has_gradients = by_differences or all(k.traits.has_gradient for k in kinds)
        self._nu = np.empty((0, 0))
        # The last posterior of move 3, and x of every ν_k there.
        self._at: tuple[Posterior | None, Array] = (None, self._nu)
        # The same, parameters, and r of every ν_k by row; and the chosen ν_k and r there.
        self._ratios: tuple[Posterior | None, list[Any], Array] = (None, [], self._nu)
        self._present: Array | None = None
        self._chosen: tuple[Posterior | None, Array] = (None, self._nu)
        self._start, self.value = math.nan, 0.0

    @property
    def follows(self) -> bool:
        """Whether the latents are drawn by trajectories too."""
        # Any solver may condition the draws where the preferred one has no digits.
        return self.can_follow and self._sites.fit_badly

    @property
    def can_follow(self) -> bool:
        """Whether there are gradients that trajectories may follow."""
        return self._solver.preferred.differentiable and self._has_gradients

    @property
    def count(self) -> int:
        """Number of elliptical slices each time, where no trajectory follows."""
        # Half as many where draws take as long as evidences.
        slices = self._sites.slices
        if self._solver.preferred.ensemble == 1:
            slices = max(FEWEST_SLICES, -(-slices // 2))
        return self._slices or -(-slices // self._sweeps)

    @property
    def ensemble(self) -> int:
        """Number K of the vectors ν_k."""
        solver = self._solver.preferred
        # Where sites fit badly others of many latents hardly ever take the present ones' place.
        one = self._sites.fit_well or (solver.follows and self.follows)
        return self._ensemble or (1 if one else solver.ensemble)

    @property
    def record(self) -> Array:
        """The records of all variables with held sites, see :class:`.Held`; of pairs at the end."""
        each, pairs = zip(*(how.record for _, how, _ in self._held), strict=True)
        return np.hstack([*each, *pairs])

    # -- r ------------------------------------------------------------------------------------

    def residual(self, eta: Array, point: Point | None = None) -> Array:
        """Return r at the part's predictors η, (n,) or (count, n); −∞ outside the support."""
        total = _sums(self._by_row(np.atleast_2d(eta), point))[:, 0]
        return total if eta.ndim == 2 else total[0]

    def _by_row(self, etas: Array, point: Point | None = None, rows: Index | None = None) -> Array:
        """Return r of every row, (count, n); of some rows alone, which ``etas`` are of.

        That of an observation with several predictors is in the row of one of them.
        """
        total = np.empty(0)
        for data, how, span in self._held:
            at, own = span.rows, None
            if rows is not None:
                first, last = np.searchsorted(rows, (at.start, at.stop))
                at, own = slice(first, last), rows[first:last] - at.start
            shape = (-1, *span.shape) if own is None else (len(etas), 1, own.size)
            eta = etas[:, at].reshape(shape).swapaxes(0, 1)
            params = data.params if point is None else data.site.params(point)
            with np.errstate(all="ignore"):
                found = how.residuals(data.y, eta, params, own)
            if found.shape == etas.shape:
                return found
            total = total if total.size else np.zeros(etas.shape)
            total[:, at.start : at.start + found.shape[1]] = found
        return total

    def residual_of(self, given: Conditional, nu: Array) -> tuple[float, Array]:
        """Return r and its gradient as functions of ν."""
        eta = given.predictor(given.posterior.apply(nu))
        total, slope = 0.0, np.zeros_like(eta)
        for data, how, span in self._held:
            own = eta[span.rows].reshape(span.shape)
            value, gradient = how.residual_and_gradient(data.y, own, data.params)
            total += value
            slope[span.rows] = gradient.ravel()
        if self._groups.inverse is not None:
            slope = np.bincount(self._groups.inverse, slope, self._groups.size)
        slopes = [A.apply_transpose(slope) for A in given.prior.maps]
        return total, given.posterior.pull(given.posterior.innovations_transpose(slopes))

    # -- move 3 -------------------------------------------------------------------------------

    def begin(
        self, rng: Generator, given: Conditional, current: Array, value: float = math.nan
    ) -> None:
        """Draw all ν_k, given the coordinates of the present latents, and r there if it is known.

        Then the density that is asked for first is the present one.
        """
        self._start = value
        present = given.posterior.solve(rng, current)
        others = rng.standard_normal((self.ensemble - 1, given.posterior.size))
        self._nu = np.vstack([present, others])
        self._at = (None if len(others) else given.posterior), current[None]
        self._ratios, self._present = (None, [], self._nu), None
        self._chosen = None, self._nu

    def _carried(self, posterior: Posterior) -> Array:
        """Return x of every ν_k, which a step asks for once more."""
        if self._at[0] is not posterior:
            self._at = posterior, posterior.carried(self._nu)
        return self._at[1]

    def log_sum(self, given: Conditional) -> float:
        """Return log Σ_k exp r(f(θ, ν_k)), summed over levels."""
        known, self._start = self._start, math.nan
        if math.isfinite(known) and self.ensemble == 1:
            return known
        return float(np.logaddexp.reduce(self._by_level(self._ratios_at(given))).sum())

    def _by_level(self, by_row: Array) -> Array:
        """Return r of every level from that of its rows."""
        levels = self._levels
        return _sums(by_row) if levels is None else _sums(by_row, levels.of_rows, levels.count)

    def _ratios_at(self, given: Conditional) -> Array:
        """Return r of every ν_k by row, which the end of a slice asks for once more."""
        params = [data.params for data, *_ in self._held]
        posterior, known, found = self._ratios
        if posterior is not given.posterior or any(map(is_not, params, known)):
            found = self._by_row(given.predictor(self._carried(given.posterior)))
            self._ratios = given.posterior, params, found
        return found

    def choose(self, rng: Generator, given: Conditional) -> Array:
        """Draw κ of every level; return the coordinates of its latents."""
        by_row, x = self._ratios_at(given), self._carried(given.posterior)
        residual, self._at = self._by_level(by_row), (None, x)
        # Draws from probabilities that are known by their logarithms, up to a constant.
        kappa = np.argmax(residual + rng.gumbel(size=residual.shape), axis=0)
        if self._levels is None:
            self._present = by_row[kappa[0]]
            self._chosen = given.posterior, self._nu[kappa[0]]
            return np.asarray(x[kappa[0]])
        self._present = by_row[kappa[self._levels.of_rows], np.arange(by_row.shape[1])]
        v = given.posterior.whitened(x)[kappa[self._levels.of_latents], np.arange(x.shape[1])]
        return given.posterior.coordinates(v)

    def _values(self, eta: Array) -> Array:
        """Return r of every row at the present predictors."""
        known, self._present = self._present, None
        return self._by_row(eta[None])[0] if known is None else known.copy()

    # -- move 4 -------------------------------------------------------------------------------

    def draw(self, rng: Generator, given: Conditional, current: Array, info: GibbsInfo) -> Array:
        """Return the coordinates of the next latents, given the sites and the present ones."""
        if self._levels is not None:
            return self._draw_levels(rng, given, current, info, self._levels)
        follow = self.follows and given.posterior.differentiable
        sets = given.posterior.stretches(rng) if self._are_single else []
        if sets:
            x = self._draw_stretches(rng, given, current, sets, info)
            if follow:
                x, self.value = self._follow(rng, given, x, info)
            return x
        posterior, mean = given.posterior, given.posterior.latent_mean
        eta, centre = given.predictor(current), given.predictor(mean)
        here, value = eta - centre, float(_sums(self._values(eta))[0])
        count = (self._slices or 1) if follow else self.count
        # Several at once: to solve for many takes hardly longer than for one.
        fresh = posterior.root(rng.standard_normal((count, posterior.size)))
        etas = given.predictor(fresh)
        etas -= given.prior.offset
        # x − m is a sum of these with weights, as vectors of all latents take longer.
        away, weights = current - mean, np.eye(1, count + 1)[0]
        for which, there in enumerate(etas, 1):

            def residual(cos: float, sin: float, here: Array = here, there: Array = there) -> float:
                eta = cos * here
                eta += sin * there
                eta += centre
                return float(self.residual(eta))

            cos, sin, value, trials = elliptical_slice(rng, residual, value)
            weights *= cos
            weights[which], here = sin, cos * here + sin * there
            info.trials += trials
            info.slices += 1
            if follow:
                x = mean + weights[0] * away + weights[1:] @ fresh
                x, value = self._follow(rng, given, x, info)
                away, weights, here = x - mean, np.eye(1, count + 1)[0], given.predictor(x)
                here -= centre
        self.value = value
        return np.asarray(mean + weights[0] * away + weights[1:] @ fresh)

    def _draw_levels(
        self, rng: Generator, given: Conditional, current: Array, info: GibbsInfo, levels: Levels
    ) -> Array:
        """Return the same, each level by ellipses of its own."""
        posterior, mean = given.posterior, given.posterior.latent_mean
        eta, centre = given.predictor(np.stack([current, mean]))
        away, by_row = posterior.whitened(current) - posterior.whitened(mean), self._values(eta)
        for _ in range(self._slices or 1):
            other = posterior.apply(rng.standard_normal(posterior.size))
            there = given.predictor(other) - centre
            cos, sin = self._turn(rng, levels, (eta, by_row), (eta - centre, there), info)
            other = posterior.whitened(other) - posterior.whitened(mean)
            away = cos[levels.of_latents] * away + sin[levels.of_latents] * other
        self.value = float(by_row.sum())
        return posterior.coordinates(posterior.whitened(mean) + away)

    def _draw_stretches(
        self, rng: Generator, given: Conditional, current: Array,
        sets: list[tuple[Index, Index, Index]], info: GibbsInfo,
    ) -> Array:  # fmt: skip
        """Return the same, each stretch of ν by an ellipse of its own."""
        posterior, eta, (known, nu) = given.posterior, given.predictor(current), self._chosen
        # Of these latents alone.
        self._chosen, by_row = (None, nu), self._values(eta)
        if known is not posterior:
            nu = posterior.solve(rng, current)
        for moved, of_moved, of_groups in sets * (self._slices or 1):
            levels = Levels(self._groups.expand(of_groups), of_moved, int(of_groups.max()) + 1)
            both, fresh = np.zeros((2, nu.size)), rng.standard_normal(moved.size)
            both[:, moved] = nu[moved], fresh
            here, there = given.predictor(posterior.root(both)) - given.prior.offset
            cos, sin = self._turn(rng, levels, (eta, by_row), (here, there), info)
            nu[moved] = cos[of_moved] * nu[moved] + sin[of_moved] * fresh
        self.value = float(by_row.sum())
        return posterior.apply(nu)

    def _turn(
        self, rng: Generator, levels: Levels, present: tuple[Array, Array],
        ellipse: tuple[Array, Array], info: GibbsInfo,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Return cos φ and sin φ of every level; move ``present``, η and r of every row, there.

        ``ellipse`` has the predictors of its two points relative to its centre, the present first.
        """
        (eta, by_row), (here, there) = present, ellipse
        before, centre, left = (eta.copy(), by_row.copy()), eta - here, np.arange(eta.size)

        def residual(cos: Array, sin: Array, which: Index) -> Array:
            nonlocal left
            if which.size == levels.count:
                np.multiply(cos[levels.of_rows], here, out=eta)
                np.add(eta, sin[levels.of_rows] * there, out=eta)
                np.add(eta, centre, out=eta)
                by_row[:] = self._by_row(eta[None])[0]
                return _sums(by_row, levels.of_rows, levels.count)
            places = np.full(levels.count, -1)
            places[which] = np.arange(which.size)
            # Of levels that were left last time.
            of = places[levels.of_rows[left]]
            left, of = left[of >= 0], of[of >= 0]
            eta[left] = new = centre[left] + cos[of] * here[left] + sin[of] * there[left]
            by_row[left] = found = self._by_row(new[None], rows=left)[0]
            return _sums(found, of, which.size)

        values = _sums(by_row, levels.of_rows, levels.count)
        cos, sin, _, trials = elliptical_slices(rng, residual, values)
        if not sin.all():
            stay = sin[levels.of_rows] == 0.0
            eta[stay], by_row[stay] = before[0][stay], before[1][stay]
        info.trials += trials
        info.slices += 1
        return cos, sin

    def _follow(
        self, rng: Generator, given: Conditional, x: Array, info: GibbsInfo
    ) -> tuple[Array, float]:
        """Return the end of a trajectory, and r there."""
        residual, angle = partial(self.residual_of, given), self._sites.angle
        nu, steps = given.posterior.solve(rng, x), math.ceil(_TURN / angle)
        with np.errstate(all="ignore"):
            nu, value, acceptance = trajectory(
                rng, residual, nu, angle, min(max(steps, 1), _MOST_STEPS)
            )
        info.trajectories += 1
        info.acceptance += acceptance
        return given.posterior.apply(nu), value
