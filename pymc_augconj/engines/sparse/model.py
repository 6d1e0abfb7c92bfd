"""A recognised model through inducing points, in components whose weights are independent.

The predictors of an observation have weights of their own, one vector for every *component* (see
:mod:`pymc_augconj.latents.components`): all latents where an observation has one predictor, else
those tied together by the prior or by an observed variable of one predictor. The variational
Gaussian factorises over these, q(w) = Π q(w_c): C matrices of M × M, in the place of one of
CM × CM (Hensman et al. 2015, Saul et al. 2016). Copies of one process (``n_outputs=K``) share Φ,
its residual variances and all derivatives through them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pymc_augconj.engines.base import FitProblem, ProcessPrior, SiteRule
from pymc_augconj.engines.variational.bound import VariationalGaussian
from pymc_augconj.errors import AugmentationError
from pymc_augconj.gaussian.sites import SiteLayout
from pymc_augconj.latents.components import find_components
from pymc_augconj.latents.derivatives import accumulate, difference_slopes
from pymc_augconj.latents.joint import KeptParts
from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.contract import select_params
from pymc_augconj.linalg.dense import add_outer
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Index

from .component import ComponentDesign, SparseComponent
from .inducing import WeightsPosterior, joined


class SparseModel:
    """A recognised model whose processes act through inducing points.

    ``rows`` are observations in ascending order, by observed variable, or a slice: all of them.
    """

    def __init__(
        self, lgm: LatentGaussianModel, priors: Sequence[ProcessPrior], points: Sequence[Point]
    ) -> None:
        self.lgm, self.priors = lgm, tuple(priors)
        groups = [tuple((p,) for p in range(site.shape[0])) for site in lgm.sites]
        one = lgm.is_of_one_predictor
        maps = [] if one else [[A(point) for A in lgm.maps] for point in points]
        try:
            components = find_components(lgm, groups, maps)
        except AugmentationError:
            names = [site.label for site in lgm.sites if site.shape[0] > 1]
            raise AugmentationError(
                f"{', '.join(names)}: expected each latent variable to enter one predictor of an "
                "observation, since through inducing points the approximation factorises over "
                "them, found some that enter, or are tied to, several; fit without inducing points"
            ) from None
        self._ends = np.cumsum([0, *(site.size for site in lgm.sites)])
        self._kept = KeptParts()
        self.parts = [SparseComponent(lgm, own, priors, points[0]) for own in components]
        self.twins = [
            next(k for k in range(c + 1) if k == c or part.has_design_of(self.parts[k], points[0]))
            for c, part in enumerate(self.parts)
        ]

    @classmethod
    def of(cls, problem: FitProblem) -> SparseModel:
        """Return the model of a fit through inducing points."""
        assert problem.sparse is not None
        points = [problem.point, *problem.probes]
        return cls(problem.model, problem.sparse.priors, points)

    @property
    def n_observations(self) -> int:
        return int(self._ends[-1])

    def sizes(self, inducing: Sequence[Array]) -> list[int]:
        """Return the number of weights of each component."""
        return [part.size(inducing) for part in self.parts]

    def prepare(self, point: Point, inducing: Sequence[Array]) -> None:
        """Evaluate what does not depend on rows, so that several threads can share it."""
        self._offset(point)
        for c in set(self.twins):
            self.parts[c].prepare(point, inducing)

    def design(
        self, point: Point, inducing: Sequence[Array], rows: Index | slice = slice(None)
    ) -> SparseDesign:
        """Return the predictors of some observations at θ and given inducing inputs."""
        chosen = observations_of(self._ends, rows)
        sites = self.lgm.sites
        offset = self._offset(point)
        offset = np.concatenate(
            [site.select(offset)[:, own].ravel() for site, own in zip(sites, chosen, strict=True)]
        )
        lengths = [site.shape[0] * own.size for site, own in zip(sites, chosen, strict=True)]
        begin = np.cumsum([0, *lengths])
        designs: list[ComponentDesign] = []
        places: list[Index | slice] = []
        for c, part in enumerate(self.parts):
            local, where, first = [], [], 0
            for s, p in part.component.members:
                own = chosen[s]
                local.append(first + own)
                where.append(begin[s] + p * own.size + np.arange(own.size))
                first += sites[s].size
            places.append(np.concatenate(where))
            its_rows = rows if isinstance(rows, slice) else np.concatenate(local)
            if self.twins[c] == c:
                designs.append(part.design(point, inducing, its_rows))
            else:
                twin = designs[self.twins[c]]
                designs.append(replace(twin, model=part, offset=offset[places[-1]], rows=its_rows))
        return SparseDesign(self, point, rows, designs, places, offset)

    def by_factors(
        self, inducing: Sequence[Array], q: WeightsPosterior, gram: Array, linear: Array
    ) -> dict[int, Array]:
        """Return Lᵀ ∂/∂L of Σ ℓ for L of K(Z, Z) of each component, from the sums over all rows."""
        total: dict[int, Array] = {}
        for c, (B, b) in enumerate(zip(q.matrices(gram), q.split(linear), strict=True)):
            own, size = q.parts[c], self.parts[c].n_sparse(inducing)
            # Lᵀ ∂/∂L = −(∂/∂Φ) Φᵀ, and Φ (h − Λ m) = Φ (h − Λ offset) − Φ Λ Φᵀ μ.
            slope = own.solve_half(own.half(B), overwrite=True)[:size, :size]
            slope -= B[:size, :size]
            add_outer(slope, -own.mean[:size], (b - B @ own.mean)[:size])
            twin = self.twins[c]
            total[twin] = total[twin] + slope if twin in total else slope
        return total

    def _offset(self, point: Point) -> Array:
        return self._kept.get("offset", self.lgm.offset, point, lambda x: np.array(x, dtype=float))


@dataclass
class SparseDesign:
    """The predictors of some observations at one θ, stacked as those of the sites are."""

    model: SparseModel
    point: Point
    rows: Index | slice
    parts: list[ComponentDesign]
    # Positions of the predictors of each part among those of these observations.
    where: list[Index | slice]
    offset: Array

    def posterior(self, h: Array, lam: Array) -> WeightsPosterior:
        """Return q(w) given the sites of these observations."""
        return WeightsPosterior(*self.natural(h, lam), [len(part.Phi) for part in self.parts])

    def moments(self, q: WeightsPosterior) -> tuple[Array, Array, list[Array]]:
        """Return means and variances of the predictors, and chol(S_c⁻¹)⁻¹ Φ_c of each part."""
        mean, var, halves = self.offset.copy(), np.zeros_like(self.offset), []
        for part, where, own in zip(self.parts, self.where, q.parts, strict=True):
            mean[where], var[where], half = part.moments(own)
            halves.append(half)
        return mean, var, halves

    def natural(self, h: Array, lam: Array) -> tuple[Array, Array]:
        """Return Φ Λ Φᵀ and Φ (h − Λ offset) of every component, flat."""
        places = zip(self.parts, self.where, strict=True)
        pairs = [part.natural(h[where], lam[where]) for part, where in places]
        return joined([gram.ravel(order="F") for gram, _ in pairs]), joined([b for _, b in pairs])

    def slopes(
        self, q: WeightsPosterior, halves: Sequence[Array], h: Array, lam: Array, mean: Array
    ) -> dict[str, Array]:
        """Return the derivatives of Σ ℓ at fixed q(w) by θ and Z, for target sites (h, λ).

        Those through the factors L and by the likelihoods' parameters are left out. Overwrites
        ``halves``.
        """
        total: dict[str, Array] = {}
        slope = h - lam * mean
        # By Φ, summed over the components that share it.
        by_design: dict[int, tuple[Array, Array]] = {}
        for c, (part, where) in enumerate(zip(self.parts, self.where, strict=True)):
            G, own_lam = part.by_design(q.parts[c], halves[c], slope[where], lam[where]), lam[where]
            if part.model.lgm.offset.names:
                accumulate(total, part.model.pull_predictors(self.point, part.rows, slope[where]))
            twin = self.model.twins[c]
            if twin in by_design:
                G += by_design[twin][0]
                own_lam = own_lam + by_design[twin][1]
            by_design[twin] = G, own_lam
        for twin, (G, lam_of_all) in by_design.items():
            accumulate(total, self.parts[twin].slopes(G, lam_of_all))
        return total


def observations_of(ends: Array, rows: Index | slice) -> list[Index]:
    """Return which observations of each variable are among some; ``ends`` are its first ones."""
    if isinstance(rows, slice):
        return [np.arange(size) for size in np.diff(ends)]
    cuts = np.searchsorted(rows, ends)
    return [rows[cuts[s] : cuts[s + 1]] - ends[s] for s in range(len(ends) - 1)]


class SparseSites:
    """The observed variables of a model under one rule."""

    def __init__(self, lgm: LatentGaussianModel, rule: SiteRule, point: Point) -> None:
        coupled = [site.name for site in lgm.sites if site.shape[0] > 1 and rule.full(site)]
        if coupled:
            raise AugmentationError(
                f"{coupled}: expected likelihoods whose sites factorise over predictors for "
                "inducing points, found some that do not; fit without inducing points"
            )
        self.sites, self.rule = lgm.sites, rule
        self._y = [site.y(point) for site in lgm.sites]
        self._ends = np.cumsum([0, *(site.size for site in lgm.sites)])

    def targets(
        self, point: Point, rows: Index | slice, mean: Array, var: Array
    ) -> tuple[Array, Array, Array]:
        """Return ℓ of some observations and the target sites (ĥ, λ̂) of their predictors."""
        values: list[Array] = []
        h, lam = np.empty_like(mean), np.empty_like(mean)
        for one in self._observed(rows, mean, var):
            value, linear, precision = self.rule.targets(*one.arguments(point))
            values.append(value)
            h[one.where] = one.layout.stack_rows([linear])
            lam[one.where] = one.layout.stack_precisions([precision])
        return np.concatenate(values), h, lam

    def gradient(
        self, point: Point, rows: Index | slice, mean: Array, var: Array
    ) -> dict[str, Array]:
        """Return the derivatives of Σ ℓ by the likelihoods' parameters, by entry of the point."""
        total: dict[str, Array] = {}
        for one in self._observed(rows, mean, var):

            def value(point: Point, one: _Observed = one) -> float:
                return float(np.sum(self.rule.value(*one.arguments(point))))

            accumulate(total, difference_slopes(value, point, one.site.params.names))
        return total

    def _observed(self, rows: Index | slice, mean: Array, var: Array) -> Iterator[_Observed]:
        """Yield every observed variable of which some observations are among the rows."""
        start = 0
        chosen = observations_of(self._ends, rows)
        for site, y, own in zip(self.sites, self._y, chosen, strict=True):
            if own.size:
                where = slice(start, start + site.shape[0] * own.size)
                layout = SiteLayout([(site.shape[0], own.size)], [self.rule.full(site)])
                (moments,) = layout.moments(mean[where], var[where])
                yield _Observed(site, y[own], own, where, layout, moments)
                start = where.stop


@dataclass(frozen=True)
class _Observed:
    """Some observations of one variable and the moments of their predictors."""

    site: Site
    y: Array
    own: Index
    where: slice
    layout: SiteLayout
    moments: tuple[Array, Array]

    def arguments(self, point: Point) -> tuple[Site, Array, Array, Array, Params]:
        params = select_params(self.site.params(point), self.own, self.site.size)
        return self.site, self.y, *self.moments, params


def mean_field_rule(rule: type[SiteRule], lgm: LatentGaussianModel) -> SiteRule:
    """Return the rule whose sites factorise over predictors, where there are several."""
    several = any(site.shape[0] > 1 for site in lgm.sites)
    return VariationalGaussian(factorised=several) if rule is VariationalGaussian else rule()
