"""Observations that have the same predictor for all latents, as one observation.

Where p(y | η) ∝ exp(a η) / (1 + exp η)ᵇ, the product over a cell of observations with one predictor
is of the same form with Σa and Σb, and one ω ~ PG(Σb, η) takes as long to draw as one of a single
observation. A step then takes time in the number of cells. Normal observations have cross products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pymc_augconj.latents.components import RowsOf
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.contract import lift
from pymc_augconj.likelihoods.powers_of_sigmoid import BinomialLogit
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import FixedValue, Point
from pymc_augconj.typing import Array, Index

from .cross_products import reduce_normal

# Cells are worth it from this many observations in each, on average.
_LEAST = 2.0


class _Cells(BinomialLogit):
    """Sums over cells; ``constant`` is what their densities have beside powers of σ(±η)."""

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        n = params["n"]
        powers = y * np.logaddexp(0.0, -eta) + (n - y) * np.logaddexp(0.0, eta)
        return params["constant"] - powers


def pool(model: LatentGaussianModel, points: Sequence[Point]) -> LatentGaussianModel:
    """Return the model of cells; the model itself where some observations cannot be summed.

    Parameters
    ----------
    model : LatentGaussianModel
    points : sequence of mapping
        Values of θ at which predictors must agree.
    """
    kinds = [site.likelihood for site in model.sites]
    if model.offset.names or not all(k.can_augment and k.n_predictors == 1 for k in kinds):
        return model
    # Observations first: reading them refuses data whose shapes have changed.
    data = [site.y(points[0]) for site in model.sites]
    if len(kinds) == 1 and not kinds[0].has_auxiliary:
        return reduce_normal(model, points, data[0])
    if any(site.params.names for site in model.sites):
        return model
    groups, offset = LatentPriors(model, points).groups, model.offset(points[0])
    if groups.inverse is None or model.n_rows < _LEAST * groups.size:
        return model
    if not np.array_equal(offset, offset[groups.first][groups.inverse]):
        return model
    sites, rows, start = [], [], 0
    for site, y in zip(model.sites, data, strict=True):
        cells = _cells(site, y, site.params(points[0]), groups.inverse[site.rows])
        if cells is None:
            return model
        counts, first = cells
        n_cells = first.size
        sites.append(replace(counts, rows=slice(start, start + n_cells)))
        rows.append(site.rows.start + first)
        start += n_cells
    every = np.concatenate(rows)
    return replace(
        model,
        sites=tuple(sites),
        n_rows=start,
        offset=FixedValue(offset[every]),
        maps=tuple(RowsOf(A, every) for A in model.maps),
    )


def _cells(site: Site, y: Array, params: Params, groups: Index) -> tuple[Site, Index] | None:
    """Return an observed variable with the sums of each group, and the first row of each."""
    found = site.likelihood.as_logistic(y, params)
    if found is None:
        return None
    a, b = (np.broadcast_to(value, y.shape).astype(float) for value in found)
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    constant = site.likelihood.log_density(y, np.zeros((1, y.size)), params) + b * np.log(2.0)
    sums = [np.bincount(inverse, values) for values in (a, b, constant)]
    return replace(
        site,
        likelihood=lift(_Cells()),
        size=first.size,
        y=FixedValue(sums[0]),
        params=FixedValue({"n": sums[1], "constant": sums[2]}),
    ), first
