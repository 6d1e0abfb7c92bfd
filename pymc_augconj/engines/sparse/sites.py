"""The observations that a minibatch holds: their part of the bound and their target sites."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from pymc_augconj.engines.base import SiteRule
from pymc_augconj.engines.variational.vgp import VariationalGaussian
from pymc_augconj.errors import AugmentationError
from pymc_augconj.gaussian.sites import SiteLayout
from pymc_augconj.latents.derivatives import accumulate, difference_slopes
from pymc_augconj.likelihoods.base import Params
from pymc_augconj.model import LatentGaussianModel, Point, Site
from pymc_augconj.typing import Array, Index

__all__ = ["SparseSites", "separable"]


class SparseSites:
    """The observed variables of a model under one rule.

    Parameters
    ----------
    lgm : LatentGaussianModel
    rule : SiteRule
    point : mapping
        Any value of θ.

    Raises
    ------
    AugmentationError
        If sites of several predictors do not factorise.
    """

    def __init__(self, lgm: LatentGaussianModel, rule: SiteRule, point: Point) -> None:
        coupled = [site.name for site in lgm.sites if site.shape[0] > 1 and rule.full(site.terms)]
        if coupled:
            raise AugmentationError(
                f"{coupled}: expected likelihoods whose sites factorise over predictors for "
                "inducing points, found some that do not; fit without inducing points"
            )
        self.sites, self.rule = lgm.sites, rule
        self._y = [np.array(site.y(point), dtype=float) for site in lgm.sites]
        self._ends = np.cumsum([0, *(site.size for site in lgm.sites)])
        self.names = tuple({name for site in lgm.sites for name in site.params.names})

    def _parts(self, rows: Index | slice) -> Iterator[tuple[Site, Array, Index | slice, slice]]:
        """Yield (site, y, which of its observations, where its predictors are) of every site.

        ``rows`` are observations, those of the first site first; sites without any are left out.
        """
        start = 0
        for site, y, begin, end in zip(
            self.sites, self._y, self._ends[:-1], self._ends[1:], strict=True
        ):
            if isinstance(rows, slice):
                yield site, y, slice(None), site.rows
                continue
            # Rows are in ascending order.
            first, last = np.searchsorted(rows, [begin, end])
            if last > first:
                own = rows[first:last] - begin
                stop = start + site.shape[0] * own.size
                yield site, y[own], own, slice(start, stop)
                start = stop

    def targets(
        self, point: Point, rows: Index | slice, mean: Array, var: Array
    ) -> tuple[Array, Array, Array]:
        """Return ℓ of every observation and the target sites (ĥ, λ̂) of its predictors."""
        values: list[Array] = []
        h, lam = np.empty_like(mean), np.empty_like(mean)
        for site, y, own, where in self._parts(rows):
            params = _select(site, site.params(point), own)
            layout = self._layout(site, y)
            (moments,) = layout.moments(mean[where], var[where])
            value, linear, precision = self.rule.targets(site.terms, y, *moments, params)
            values.append(value)
            h[where] = layout.stack_rows([linear])
            lam[where] = layout.stack_precisions([precision])
        return np.concatenate(values), h, lam

    def gradient(
        self, point: Point, rows: Index | slice, mean: Array, var: Array
    ) -> dict[str, Array]:
        """Return the derivatives of Σ ℓ by the likelihoods' parameters, by entry of the point."""
        total: dict[str, Array] = {}
        for site, y, own, where in self._parts(rows):
            layout = self._layout(site, y)
            (moments,) = layout.moments(mean[where], var[where])
            value = partial(self._value, site, y, own, moments)
            accumulate(total, difference_slopes(value, point, site.params.names))
        return total

    def _value(
        self,
        site: Site,
        y: Array,
        own: Index | slice,
        moments: tuple[Array, Array],
        point: Point,
    ) -> float:
        params = _select(site, site.params(point), own)
        return float(np.sum(self.rule.value(site.terms, y, *moments, params)))

    def _layout(self, site: Site, y: Array) -> SiteLayout:
        return SiteLayout([(site.shape[0], y.size)], [self.rule.full(site.terms)])


def _select(site: Site, params: Params, own: Index | slice) -> Params:
    if isinstance(own, slice):
        return params
    return {
        name: value[own] if np.shape(value) == (site.size,) else value
        for name, value in params.items()
    }


def separable(rule: type[SiteRule], lgm: LatentGaussianModel) -> SiteRule:
    """Return the rule whose sites factorise over predictors, where there are several."""
    several = any(site.shape[0] > 1 for site in lgm.sites)
    return VariationalGaussian(factorised=several) if rule is VariationalGaussian else rule()
