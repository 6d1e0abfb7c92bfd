"""The observations that a minibatch holds: their part of the bound and their target sites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pymc_augconj.engines.base import SiteRule
from pymc_augconj.engines.variational.vgp import VariationalGaussian
from pymc_augconj.errors import AugmentationError
from pymc_augconj.gaussian.sites import SiteLayout
from pymc_augconj.latents.derivatives import accumulate, difference_slopes
from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.density import select_params
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Index

from .model import observations_of


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
        """Return the arguments of a :class:`.SiteRule`."""
        params = select_params(self.site.params(point), self.own, self.site.size)
        return self.site, self.y, *self.moments, params


def mean_field_rule(rule: type[SiteRule], lgm: LatentGaussianModel) -> SiteRule:
    """Return the rule whose sites factorise over predictors, where there are several."""
    several = any(site.shape[0] > 1 for site in lgm.sites)
    return VariationalGaussian(factorised=several) if rule is VariationalGaussian else rule()
