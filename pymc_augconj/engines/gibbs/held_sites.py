"""Held sites: how they are chosen while tuning, and how many slices a step they take.

Held sites (h, λ ≥ 0) stand for a density without an auxiliary variable. They are those of the
variational Gaussian approximation at a typical θ, λ = −E ∂² log p(y | η) and
h = E ∂ log p(y | η) + λ E η, chosen when a chain starts and at the end of windows that double
during tuning, see ``docs/theory/held_sites.md``. Where latents are drawn by factor, E is under the
moments that predictors had in the last window, relative to the mean cutpoint c̄, with which an
intercept moves. Sites of steps, and of latents or outcomes within bounds, are by expectation
propagation: a variational approximation lies within the walls. Negative eigenvalues of λ are set to
zero, and h is such that the mean of the approximation stays as it is. Sites (0, 0) hold where there
is no approximation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from pymc_augconj.engines.base import Evaluation, SiteRule
from pymc_augconj.engines.ep.fit import EPFamily
from pymc_augconj.engines.ep.solve import solve
from pymc_augconj.engines.variational.ascent import climb
from pymc_augconj.engines.variational.bound import (
    Bound,
    BoundFamily,
    CoordinateAscent,
    VariationalGaussian,
)
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.gaussian.sites import SiteLayout
from pymc_augconj.latents.by_grid import nearest_product
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import Point
from pymc_augconj.typing import Array

from .followed import curves_of, reference_of, share_of

# Steps of tuning until the sites are chosen again; further windows double.
_FIRST_WINDOW = 10
# Variance of predictors before any has been seen.
_START_VAR = 1.0
# The sites need not be at the fixed point, only close.
_MAX_ITER, _TOL = 50, 1e-2
# Of the posterior's share that ellipses miss: draws that estimate it, the log ratio of likelihood
# and sites there above that at the mean, and the largest share.
_PRIOR_DRAWS, _FAR_ABOVE, _MOST_MISSED = 64, 10.0, 0.02
# Of expectation propagation: how far sites move towards what replaces them.
_DAMPING = 0.5
# Elliptical slices a step: this many times the evaluations that a slice takes, within bounds.
# Where sites fit, a slice takes 1.2 evaluations, and 4 slices give 0.8 effective samples a step;
# where one takes 3 evaluations, 0.2 effective samples a step with 4 slices and 0.5 with 12.
_SLICES, FEWEST_SLICES, _MOST_SLICES = 4.0, 4, 16
# Evaluations of a slice from which trajectories take over; the angle of their first steps, the
# acceptance that it is adapted to, and the power of the number of steps by which that slows down.
_MANY_TRIALS = 3.0
# Evaluations up to which one ν is enough. With 1.6 r given θ has a standard deviation of some 0.5,
# and one gave 1.7 to 3.1 times the effective samples a second of eight, in six models.
_FEW_TRIALS = 2.0
# After windows of so many steps in which slices took more evaluations than that, sites of several
# predictors, which no trajectory follows, get this share of λ: a variational approximation is
# narrow beside a plateau, as of zero inflation that few data tell. 5 to 10 times the effective
# samples in three such models; where a slice takes 1.7, a third of them; and a tenth of two
# processes, of a mean and of a noise: the latents are to be independent.
_SHARE, _LONG_WINDOW, _NARROW = 0.1, 80, 1.9
_FIRST_ANGLE, _ACCEPTANCE, _SLOWING = 0.1, 0.8, 0.6
# Cutpoints so close to where they were, relative to their mean, leave sites as they are.
_CLOSE = 0.05


class _Rule:
    """The rule of the VGP for held sites; that of CAVI, which integrates ω out, for the others."""

    monotone = augmented = False

    def __init__(self, held: Collection[str]) -> None:
        self._held, self._cavi = held, CoordinateAscent()
        self._vgp = VariationalGaussian(rough=True)
        self.error = self._vgp.error

    def _of(self, site: Site) -> SiteRule:
        return self._vgp if site.name in self._held else self._cavi

    def full(self, site: Site) -> bool:
        # Held sites couple the predictors, or may do so.
        return site.name in self._held or self._cavi.full(site)

    def groups(self, site: Site) -> tuple[tuple[int, ...], ...]:
        own = tuple(range(site.shape[0]))
        return (own,) if site.name in self._held else self._cavi.groups(site)

    def value(self, site: Site, *at: Any) -> Array:
        return self._of(site).value(site, *at)

    def targets(self, site: Site, *at: Any) -> tuple[Array, Array, Array]:
        return self._of(site).targets(site, *at)


class _Chosen(NamedTuple):
    """Sites of all predictors, and the means and variances that they were chosen at."""

    h: Array
    lam: Array
    mean: Array
    var: Array


class HeldSites:
    """Held sites of one chain, with what it takes to choose them.

    ``h`` and ``lam`` are those of all predictors, stacked, None before the first choice. They are
    chosen at the mean of the entries ``names`` of the point. ``by_moments`` takes expectations
    under the moments that predictors had during the last window, instead of the approximation's,
    which takes a factorisation of all latents; it needs ``predictor``, that of the present step.
    ``over_grid`` does too, and makes λ a product over the axes of a grid, see :mod:`.by_grid`.
    ``moving`` are hyperparameters that are updated given the latents alone, which sites follow;
    ``references`` has m, d, ℓ₊ − ℓ₋ and 2ℓ₀ − ℓ₊ − ℓ₋ of those that do, by variable; then
    parabolas by which m moves with entries of the point, see :func:`.curves_of`: of ``collapsed``,
    hyperparameters by whether sites follow them.
    ``slices`` are elliptical slices a step, ``trials`` the evaluations that one took in the last
    window, and ``angle`` is that of the steps of trajectories.
    """

    def __init__(
        self,
        model: LatentGaussianModel,
        held: Collection[str],
        names: Collection[str],
        probes: Sequence[Point] = (),
        *,
        by_moments: bool = False,
        over_grid: bool = False,
        moving: Collection[str] = (),
        collapsed: Mapping[str, bool] = MappingProxyType({}),
    ) -> None:
        self.collapsed = dict(collapsed)
        self.size = sum(h.size for h in model.hyperparameters if h.value_name in collapsed)
        # Priors may have walls that scales move, past which sites would jump.
        one = [s for s in model.sites if s.shape[0] == 1 and not s.is_prior]
        known = {s.name: set(s.params.names) for s in one}
        can_follow = [n for n, own in known.items() if n in held and own and own <= set(moving)]
        self._followed = [] if over_grid else can_follow
        self.references: dict[str, Array] = {}
        # Cutpoints of each variable where its sites were chosen.
        self._cutpoints: dict[str, Array] = {}
        self._by_moments, self.predictor = by_moments or over_grid, np.empty(0)
        self._over_grid = over_grid
        self._model, self._names, self._probes = model, tuple(names), tuple(probes)
        self.held = frozenset(held)
        self._rule = _Rule(self.held)
        self._layout = SiteLayout(
            [site.shape for site in model.sites], [self._rule.full(site) for site in model.sites]
        )
        self._index = {site.name: i for i, site in enumerate(model.sites)}
        self.h: Array | None = None
        self.lam: Array | None = None
        # The mean of the approximation: the sites are written about it.
        self.mean = np.empty(0)
        # Asked for at every evaluation of r: kept with the sites that it is of.
        self._parts: tuple[Array | None, Array | None, list[Any]] = (None, None, [])
        self.slices, self.trials = FEWEST_SLICES, 1.0
        self.angle = _FIRST_ANGLE
        several = any(s.shape[0] > 1 for s in model.sites if s.name in held)
        self._share, self._several = 1.0, several and model.is_independent
        self._count, self._window = 0, 1 if self._by_moments else _FIRST_WINDOW
        self._moments: tuple[Array | float, Array | float] = (0.0, 0.0)
        self._sums: dict[str, Array] = {}

    def cutpoints(self, site: Site, params: Mapping[str, Array]) -> Array:
        """Return the cutpoints, where moments are relative to their mean c̄; else zero."""
        names = site.likelihood.cutpoints if self._by_moments else ()
        return np.array([float(np.mean(params[name])) for name in names] or [0.0])

    def moved(self, site: Site, params: Mapping[str, Array]) -> tuple[float, bool]:
        """Return by what c̄ moved since the sites were chosen, and whether the rest did."""
        by = self.cutpoints(site, params) - self._cutpoints[site.name]
        alone = self._by_moments and set(params) == set(site.likelihood.cutpoints)
        return float(by.mean()), not alone or float(np.abs(by - by.mean()).max()) > _CLOSE

    def _level(self, point: Point) -> Array:
        found = np.zeros(self._model.n_rows)
        for site in self._model.sites:
            found[site.row_numbers[0]] = self.cutpoints(site, site.params(point)).mean()
        return found

    @property
    def chosen(self) -> tuple[Array, Array]:
        """(h, λ) of all predictors, stacked."""
        # Chosen when the chain started.
        assert self.h is not None
        assert self.lam is not None
        return self.h, self.lam

    def of(self, name: str) -> tuple[Array, Array]:
        """Return (h, Λ) of a variable, (P, N) and (P, P, N), or as ω gives them if not held."""
        h, lam, found = self._parts
        if h is not self.h or lam is not self.lam:
            found = self._layout.moments(*self.chosen)
            self._parts = (self.h, self.lam, found)
        return found[self._index[name]]

    def mean_of(self, name: str) -> Array:
        """Return the predictors of a variable that its sites are written about, (P, N)."""
        return self._layout.moments(self.mean, self.chosen[1])[self._index[name]][0]

    @property
    def state(self) -> dict[str, Any]:
        """The chosen sites, and the number of slices learned."""
        known = (
            *("h", "lam", "mean", "slices", "trials", "angle", "_share"),
            *("_count", "_window", "_moments"),
        )
        own = {name: getattr(self, name) for name in (*known, "references", "_cutpoints")}
        return own | {"_sums": dict(self._sums)}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def fit_well(self) -> bool:
        """Whether r hardly varies."""
        return self.trials < _FEW_TRIALS

    @property
    def fit_badly(self) -> bool:
        """Whether ellipses hardly move."""
        return self.trials >= _MANY_TRIALS

    @property
    def steps_ahead(self) -> int:
        """Steps of tuning before that after which sites are chosen."""
        return self._window - self._count - 1

    def learn(self, point: Point, trials: float, acceptance: float = _ACCEPTANCE) -> None:
        """Add a step of tuning that ended at ``point``; at the end of a window choose the sites.

        ``trials`` are the evaluations of each elliptical slice, ``acceptance`` that of
        trajectories.
        """
        sums, self._count = self._sums, self._count + 1
        for name in self._names:
            sums[name] = np.asarray(sums.get(name, 0.0) + point[name])
        sums[""] = np.asarray(sums.get("", 0.0) + trials)
        if self._by_moments:
            mean, square = self._moments
            away = self.predictor - self._level(point)
            self._moments = mean + away, square + away**2
        self.angle *= math.exp((acceptance - _ACCEPTANCE) * self._count**-_SLOWING)
        if self._count < self._window:
            return
        self.trials = float(sums.pop("")) / self._count
        self.slices = int(np.clip(np.ceil(_SLICES * self.trials), FEWEST_SLICES, _MOST_SLICES))
        if self._several and self._count >= _LONG_WINDOW and self.trials > _NARROW:
            self._share = _SHARE
        typical = {name: np.asarray(total / self._count) for name, total in sums.items()}
        self.choose({**point, **typical})
        self._moments = (0.0, 0.0)
        self._count, self._window, self._sums = 0, 2 * self._window, {}

    def choose(self, point: Point) -> None:
        """Choose the sites at ``point``; keep the present ones where there is no approximation."""
        start = None if self.h is None else self.chosen
        coupling = self._layout.coupling
        try:
            if all(site.likelihood.traits.propagates for site in self._model.sites):
                h, lam, mean, var = self._propagate(self._bound(point), start)
            else:
                if self._by_moments:
                    h, lam, mean, var = self._expected(point)
                else:
                    is_bounded = self._model.is_bounded
                    found = self._propagated_moments(point, start) if is_bounded else None
                    h, lam, mean, var = found or self._climb(point, start)
                with np.errstate(invalid="ignore"):
                    positive = coupling.nonnegative(lam)
                    if self._over_grid:
                        maps = [read(point) for read in self._model.maps]
                        positive = nearest_product(self._model.blocks, maps, positive)
                    for site in self._model.sites:
                        if site.name in self._followed:
                            rows = site.row_numbers[0]
                            positive[rows] *= share_of(lam[rows])
                    h, lam = h + coupling.product(positive - lam, mean), positive
            # Sites of predictors that no latent enters are of no use, and may be of any size.
            moves = var > 0.0
            pairs = moves[coupling.first] & moves[coupling.second]
            h, lam = np.where(moves, h, 0.0), np.where(np.concatenate([moves, pairs]), lam, 0.0)
            if self._share < 1.0:
                h, lam = h - (1.0 - self._share) * coupling.product(lam, mean), self._share * lam
        except (NotPositiveDefiniteError, FloatingPointError):
            h = lam = mean = np.full(coupling.size, np.nan)
        if all(np.isfinite(x).all() for x in (h, lam, mean)):
            self.h, self.lam, self.mean = h, lam, mean
            rows, sites = self._layout.rows, self._model.sites
            self._cutpoints = {s.name: self.cutpoints(s, s.params(point)) for s in sites}
            self.references = {
                site.name: reference_of(site, point, m, v)
                for site, m, v in zip(sites, rows(mean), rows(var), strict=True)
                if site.name in self._followed and lam.any()
            }
            if self.references and self.collapsed:
                family = BoundFamily(self._model, self._rule, [point, *self._probes])
                curves = curves_of(family, (self.references, h, lam, mean), point, self.collapsed)
                for site in sites:
                    if site.name in self.references:
                        own = curves[..., site.row_numbers[0]].reshape(-1, site.shape[1])
                        known = self.references[site.name]
                        self.references[site.name] = np.vstack([known, own])
        elif self.h is None:
            self.h, self.lam = np.zeros(coupling.n_rows), np.zeros(coupling.size)
            self.mean = np.zeros(coupling.n_rows)
            if self._model.is_improper:
                self.lam[: coupling.n_rows] = 1.0

    def theta(self, point: Point) -> Array:
        """Return the entries of the point that the mean moves with."""
        return np.concatenate([np.zeros(0), *(np.ravel(point[name]) for name in self.collapsed)])

    def _bound(self, point: Point) -> Bound:
        family = BoundFamily(self._model, self._rule, [point, *self._probes])
        return family.at(point, factorized=True)

    def _expected(self, point: Point) -> _Chosen:
        """Return sites for independent predictors of the last window's moments."""
        if self._count:
            first, second = self._moments
            mean = np.asarray(first / self._count)
            var = np.maximum(second / self._count - mean**2, 0.0)
            mean = mean + self._level(point)
        else:
            mean, var = self.predictor, np.full(self.predictor.size, _START_VAR)
        given = zip(self._model.sites, self._layout.moments(mean, var), strict=True)
        found = [
            self._rule.targets(site, site.y(point), *own, site.params(point))[1:]
            for site, own in given
        ]
        h = self._layout.stack_rows([h for h, _ in found])
        lam = self._layout.stack_precisions([lam for _, lam in found])
        return _Chosen(h, lam, mean, var)

    def _propagated_moments(
        self, point: Point, start: tuple[Array, Array] | None
    ) -> _Chosen | None:
        """Return sites of expectation propagation, as for a variational bound of −∞."""
        sites = self._model.sites
        if any(site.shape[0] > 1 for site in sites):
            return None
        family = EPFamily(self._model, [point, *self._probes], 1.0)
        objective = family.at(point).objective
        end = solve(objective, start, max_iter=_MAX_ITER, tol=_TOL, double_loop=False).evaluation
        return _Chosen(end.h, end.lam, end.mean, end.cov[: end.h.size])

    def _propagate(self, bound: Bound, start: tuple[Array, Array] | None) -> _Chosen:
        """Return sites by expectation propagation."""
        family, layout = bound.family, self._layout
        h, lam = start or bound.prior.first_sites(layout.coupling)
        for _ in range(_MAX_ITER):
            sites = family.priors.groups.sites(h, lam, bound.prior.offset)
            posterior = family.solver.of_fit(bound.prior, sites)
            new = [
                site.likelihood.propagated_sites(y, *moments, np.zeros(site.shape), own, params)
                for site, y, params, moments, own in zip(
                    self._model.sites, family.y, bound.params,
                    layout.moments(posterior.mean, posterior.cov), layout.moments(h, lam),
                    strict=True,
                )
            ]  # fmt: skip
            move_h = layout.stack_rows([h for h, _ in new]) - h
            move_lam = layout.stack_precisions([lam for _, lam in new]) - lam
            # Of the means of predictors if each site were alone, in standard deviations.
            moved = move_h - layout.coupling.product(move_lam, posterior.mean)
            h, lam = h + _DAMPING * move_h, lam + _DAMPING * move_lam
            if np.mean(moved**2 * posterior.var) < _TOL**2:
                break
        return _Chosen(h, lam, posterior.mean, posterior.var)

    def _climb(self, point: Point, start: tuple[Array, Array] | None) -> _Chosen:
        """Return the target sites of the variational approximation, zero if they miss too much."""
        bound = self._bound(point)
        end = climb(bound, start, max_iter=_MAX_ITER, tol=_TOL).evaluation
        if not np.isfinite(end.bound):
            # Some density is zero beyond a wall. Sites of other walls would lead nowhere.
            found = self._propagated_moments(point, None)
            if found is not None:
                return found
        h, lam, var = end.target_h, end.target_lam, end.cov[: end.mean.size]
        if missed_share(bound, end, self._count) > _MOST_MISSED:
            h, lam = np.zeros_like(h), np.zeros_like(lam)
        return _Chosen(h, lam, end.mean, var)


def missed_share(bound: Bound, end: Evaluation, seed: int) -> float:
    """Estimate the share of the posterior that ellipses about the target sites do not reach.

    It is where the log ratio of likelihood and sites is far above that at the approximation's
    mean, such as a plateau beside a narrow mode; by draws of the prior, whose ellipses reach it.
    """
    prior, family = bound.prior, bound.family
    if family.model.is_improper or not np.isfinite(end.bound):
        return 0.0
    size = sum(block.total_size for block in family.model.blocks)
    v = np.random.default_rng(seed).standard_normal((_PRIOR_DRAWS, size))
    etas = np.vstack([end.mean, prior.predictor(prior.innovations(v))])
    product, lam, ratio, density = end.coupling.product, end.target_lam, *np.zeros((2, len(etas)))
    with np.errstate(all="ignore"):
        slope = end.target_h - product(lam, end.mean)
        for i, eta in enumerate(etas):
            for site, y, params in zip(family.model.sites, family.y, bound.params, strict=True):
                density[i] += np.sum(site.likelihood.log_density(y, site.select(eta), params))
            # About the mean, as predictors may be far from zero.
            away = eta - end.mean
            ratio[i] = density[i] - away @ (slope - 0.5 * product(lam, away))
        missed = density[1:][ratio[1:] > ratio[0] + _FAR_ABOVE]
        return float(np.sum(np.exp(missed - end.bound))) / _PRIOR_DRAWS
