"""Observations that have the same predictor for all latents, as fewer observations.

Where p(y | η) ∝ exp(a η) / (1 + exp η)ᵇ, the product over a cell of observations with one predictor
is of the same form with Σa and Σb, and one ω ~ PG(Σb, η) takes as long to draw as one of a single
observation. A step then takes time in the number of cells.

Normal observations are reduced to their cross products, which are as good as all of them. Those
with standard deviations σ w, for known w, are first divided by w, with their predictors. Let T have
R orthonormal rows with A = Tᵀ T A, for A the design of all latents. Then

    N(z; A u, σ² I) = N(T z; T A u, σ² I) · (2 π σ²)^(−(N − R)/2) exp(−½ ‖z − Tᵀ T z‖² / σ²),

so that T z are R normal observations, and the second factor is one of the prior of σ. The rows of T
are those of *cells*: observations for which all selections take the same entries, whatever their
coefficients and dense columns. A cell has as many as there are independent columns in it: one where
all its observations have one predictor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from pymc_augconj.errors import RecognitionError
from pymc_augconj.latents.by_gram import can_sum_out
from pymc_augconj.latents.components import RowsOf
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.latents.rows import row_codes
from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.contract import lift
from pymc_augconj.likelihoods.normal import Normal
from pymc_augconj.likelihoods.powers_of_sigmoid import BinomialLogit
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection, SelectionSum
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import FixedValue, Point, PointMap
from pymc_augconj.python_mode.tape import Registers, TapeBuilder
from pymc_augconj.typing import Array, Index

# Cells are worth it from this many observations in each, on average.
_LEAST = 2.0
# Cross products are worth it from so many observations and up to so many columns.
_MANY, _MOST_COLUMNS = 1_000, 32
# A column depends on others in a cell up to this part of its length.
_ROUNDING = 64.0 * np.finfo(float).eps


class _Cells(BinomialLogit):
    """Sums over cells; ``constant`` is what their densities have beside powers of σ(±η)."""

    def log_arrangements(self, y: Array, params: Params) -> Array:
        return params["constant"]


def pool(model: LatentGaussianModel, points: Sequence[Point]) -> LatentGaussianModel:
    """Return the model of cells; the model itself where some observations cannot be summed.

    At all values of θ in ``points`` predictors must agree.
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
    maps, own = tuple(RowsOf(A, every) for A in model.maps), FixedValue(offset[every])
    return replace(model, sites=tuple(sites), n_rows=start, offset=own, maps=maps)


def _cells(site: Site, y: Array, params: Params, groups: Index) -> tuple[Site, Index] | None:
    """Return an observed variable with the sums of each group, and the first row of each."""
    found = site.likelihood.as_logistic(y, params)
    if found is None:
        return None
    a, b = (np.broadcast_to(value, y.shape).astype(float) for value in found)
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    constant = site.likelihood.log_density(y, np.zeros((1, y.size)), params) + b * np.log(2.0)
    sums = [np.bincount(inverse, values) for values in (a, b, constant)]
    data: Any = {
        "y": FixedValue(sums[0]),
        "params": FixedValue({"n": sums[1], "constant": sums[2]}),
    }
    return replace(site, likelihood=lift(_Cells()), size=first.size, **data), first


def reduce_normal(
    model: LatentGaussianModel, points: Sequence[Point], y: Array
) -> LatentGaussianModel:
    """Return the model of T z; the model itself where T has too many rows, or is not found.

    There is one observed variable, with the observations ``y``; designs must agree up to factors of
    their columns at all ``points``.
    """
    (site,), start = model.sites, points[0]
    read_params, read_w = site.common or (site.params, FixedValue(np.ones(1)))
    params, w = read_params(start), np.ravel(read_w(start))
    maps_at = [[read(p) for read in model.maps] for p in points]
    found = site.likelihood.as_normal(y, params)
    parts_at = [[_parts(A) for A in maps] for maps in maps_at]
    parts, *others = [[id(part) for own in at for part in own] for at in parts_at]
    is_scaled = found is not None and found[1].size == 1 and (w > 0.0).all() and all(parts_at[0])
    if not is_scaled or (site.common is None and y.size < _MANY):
        return model
    if any(at != parts for at in others) or not can_sum_out(model.blocks, maps_at[0]):
        return model
    every = [part for own in parts_at[0] for part in own]
    indices = [part.index for part in every if isinstance(part, RowSelection)]
    codes = row_codes([np.zeros(y.size, dtype=np.intp), *indices])
    _, first, cell = np.unique(codes, return_index=True, return_inverse=True)
    columns = [column for part in every for column in _columns(part)]
    most = np.minimum(np.bincount(cell), len(columns)).sum()
    few = y.size < _MANY or len(columns) > _MOST_COLUMNS or y.size < _LEAST * most
    if few and site.common is None:
        return model
    assert found is not None  # see above
    columns, z, square, at = [column / w for column in columns], found[0], 0.0, np.arange(y.size)
    reduced = away = (z - model.offset(start)) / w
    if not few:
        T, at = _orthonormal(columns, cell, first)
        columns, reduced = [_product(T, column, cell, at) for column in columns], T @ away
        square = float(np.sum((away - T.T @ reduced) ** 2))
    new = iter(columns)
    of_maps = [tuple(_like(part, new, at) for part in own) for own in parts_at[0]]
    maps = map(_Reduced, model.maps, parts_at[0], of_maps)
    # What a log-normal density has besides that of log y; w; and powers of 2π.
    density = site.likelihood.log_density(y, z[None], site.params(start))
    density = density - Normal().log_density(z, z, params)
    count, size = z.size - reduced.size, reduced.size
    constant = float(density.sum() - 0.5 * count * np.log(2.0 * np.pi))
    observed: Any = {"y": FixedValue(reduced), "size": size, "rows": slice(0, size)}
    return replace(
        model,
        sites=(replace(site, likelihood=lift(Normal()), params=read_params, **observed),),
        n_rows=size,
        offset=FixedValue(np.zeros(size)),
        maps=tuple(maps),
        log_prior=_LogPrior(model.log_prior, read_params, count, square, constant),
    )


def _parts(A: LinearMap) -> list[Any]:
    """Return what θ leaves of a map: selections or a matrix; nothing of any other map."""
    if isinstance(A, SelectionSum):
        return list(A.parts)
    if isinstance(A, RowSelection):
        return [A.multiple_of[1]]
    return [A.matrix] if type(A) is DenseMap else []


def _columns(part: RowSelection | Array) -> list[Array]:
    """Return the coefficients of a selection, or the columns of a matrix."""
    if isinstance(part, RowSelection):
        return [part.entries]
    return list(part.T)


def _like(part: Any, columns: Iterator[Array], at: Index) -> Any:
    """Return a part with the next columns, for the cells of the observations ``at``."""
    if isinstance(part, RowSelection):
        return RowSelection(part.index[at], next(columns), part.size)
    return np.array(list(islice(columns, part.shape[1]))).T


def _orthonormal(columns: Sequence[Array], cell: Index, first: Index) -> tuple[csr_array, Index]:
    """Return T, and the first observation of the cell of each row.

    By Gram and Schmidt in all cells at once; ``cell`` is that of each observation.
    """
    basis: list[Array] = []
    kept = np.empty((first.size, len(columns)), dtype=bool)
    for k, column in enumerate(columns):
        left = np.array(column, dtype=float)
        least = _ROUNDING * np.sqrt(np.bincount(cell, left**2))
        # Twice, so that rounding leaves them orthogonal.
        for q in basis * 2:
            left -= np.bincount(cell, q * left)[cell] * q
        length = np.sqrt(np.bincount(cell, left**2))
        kept[:, k] = length > least
        basis.append(left / np.where(kept[:, k], length, np.inf)[cell])
    entry, k_of = np.nonzero(kept[cell])
    row = np.cumsum(kept).reshape(kept.shape)[cell[entry], k_of] - 1
    values = np.array(basis)[k_of, entry]
    T = csr_array((values, (row, entry)), shape=(int(kept.sum()), cell.size))
    return T, np.repeat(first, kept.sum(axis=1))


def _product(T: csr_array, column: Array, cell: Index, at: Index) -> Array:
    """Return T times a column: zero where it is rounding, as shifts compare coefficients."""
    product, length = T @ column, np.sqrt(np.bincount(cell, column**2))[cell[at]]
    return np.where(np.abs(product) > _ROUNDING * length, product, 0.0)


class _Reduced:
    """T A(θ), for A(θ) of ``parts`` that stay."""

    def __init__(self, whole: PointMap[LinearMap], parts: Sequence[Any], reduced: Any) -> None:
        self.names, self._whole = whole.names, whole
        self._parts, self._reduced = parts, reduced

    def __call__(self, point: Point) -> LinearMap:
        return self._of(self._whole(point))

    def _of(self, A: LinearMap) -> LinearMap:
        own = _parts(A)
        number = next((i for i, part in enumerate(self._parts) if own and part is own[0]), None)
        if number is None:
            raise RecognitionError(
                "expected a design that hyperparameters only scale, as they did where the model "
                "was examined, found another one; sample this model with pm.sample's NUTS"
            )
        if isinstance(A, SelectionSum):
            return SelectionSum(A.coefs, self._reduced)
        new = self._reduced[number]
        if isinstance(A, RowSelection):
            return new if A is own[0] else new.times(A.multiple_of[0])
        return DenseMap(new, A.columns)

    def on_tape(self, tape: TapeBuilder, entries: Mapping[Any, Index]) -> Any:
        """Return its parts, with the registers of their factors."""
        return [(factor, self._of(A)) for factor, A in tape.evaluate(self._whole, entries)]


class _LogPrior:
    """The log prior, with the second factor of the module: ``count`` is N − R."""

    def __init__(self, whole: Any, params: Any, count: int, square: float, constant: float) -> None:
        self.names = (*whole.names, *params.names)
        self._whole, self._params = whole, params
        self._count, self._square, self._constant = count, square, constant

    def _total(self, log_prior: Any, sigma: Any) -> Any:
        log_density = -self._count * np.log(sigma) - 0.5 * self._square / sigma**2
        return log_prior + log_density + self._constant

    def __call__(self, point: Point) -> np.ndarray:
        return np.asarray(self._total(self._whole(point), self._params(point)["sigma"].item()))

    def on_tape(self, tape: TapeBuilder, entries: Mapping[Any, Index]) -> Index:
        """Return the register of the value."""
        found = tape.evaluate(self._whole, entries), tape.evaluate(self._params, entries)["sigma"]
        return self._total(*(Registers(tape, index.reshape(())) for index in found)).index
