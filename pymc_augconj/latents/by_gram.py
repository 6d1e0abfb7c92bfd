"""Conditioning independent latents on their sites, with the observations summed out.

Where every block is diagonal, S = diag(s), sites (h, λ) enter only through G = AᵀΛA and g = Aᵀh:

    M = I + S G S,        v | sites ~ N(M⁻¹ S g, M⁻¹),        log Z = −½ log|M| + ½ gᵀS M⁻¹ S g.

G has as few entries as the groups of a hierarchical model that meet, and is factorised as such.
Values of θ that only scale the sites or a block's design, as a noise level or the scale of
non-centred effects does, scale G and g; anything else sums over the observations once more.

References
----------
Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, section 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np
from scipy.sparse import csr_array

from pymc_augconj.linalg.bordered import BorderedFactor, BorderedPattern
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection
from pymc_augconj.typing import Array, Index

from .affine import Conditioner, FactorMemory
from .base import BlockPrior
from .joint import LatentPrior
from .rows import MergedSites, SiteSum

__all__ = ["GramPattern", "GramSpace"]

# Up to so many latents a dense factor takes less time than the calls for a sparse one.
_SMALL = 32
# More pairs of latents that meet than this are not worth looking at one by one.
_MANY_PAIRS = 20_000
# Of two arrays that are multiples of each other, in units of the last place.
_ROUNDING = 4.0 * np.finfo(float).eps
# Of factors between known arrays and new ones: sums of squares of numbers that are further apart
# may have lost digits to underflow.
_SMALLEST = 1e-100


class AffineByGram:
    """An :class:`.AffinePosterior` from the factor of M, in the order of its elimination."""

    def __init__(self, factor: BorderedFactor, order: Index) -> None:
        self._factor, self._order = factor, order
        self.size = factor.half.size
        self.log_evidence = 0.5 * (float(factor.half @ factor.half) - factor.log_det)

    @cached_property
    def mean(self) -> Array:
        """E[v]."""
        return self._ordered(self._factor.solve_transpose(self._factor.half))

    def apply(self, nu: Array) -> Array:
        """See :class:`.AffinePosterior`."""
        if nu.ndim == 2:
            return np.array([self.apply(row) for row in nu])
        return self._ordered(self._factor.solve_transpose(self._factor.half + nu))

    def solve(self, rng: np.random.Generator, v: Array) -> Array:
        """See :class:`.AffinePosterior`."""
        return self._factor.transpose_product(v[self._order]) - self._factor.half

    def _ordered(self, eliminated: Array) -> Array:
        v = np.empty_like(eliminated)
        v[self._order] = eliminated
        return v


class GramPattern:
    """Where G may have entries, and which rows are summed in each.

    Parameters
    ----------
    maps : sequence of LinearMap
        A_b on the merged rows, one a block.
    """

    def __init__(self, maps: Sequence[LinearMap]) -> None:
        starts = np.cumsum([0, *(A.size for A in maps)])
        self.size = int(starts[-1])
        chosen = _selections(maps)
        self._chosen = [b for b, _ in chosen]
        # Of the selected latents, by block and row; and of the latents with dense columns.
        columns = [starts[b] + A.index for b, A in chosen]
        is_dense = [b for b in range(len(maps)) if b not in self._chosen]
        dense = [np.arange(starts[b], starts[b + 1]) for b in is_dense]
        self._dense_columns = np.concatenate([np.empty(0, dtype=np.intp), *dense])
        n_rows = columns[0].size if columns else 0
        pairs = [(a, b) for b in range(len(columns)) for a in range(b + 1)]
        first = [columns[a] for a, _ in pairs] or [np.empty(0, dtype=np.intp)]
        second = [columns[b] for _, b in pairs] or [np.empty(0, dtype=np.intp)]
        codes = np.concatenate(first) * self.size + np.concatenate(second)
        met, inverse = np.unique(codes, return_inverse=True)
        row, col = np.divmod(met, self.size)
        is_small = self.size <= _SMALL or met.size > _MANY_PAIRS
        self.pattern = BorderedPattern(
            self.size,
            zip(row.tolist(), col.tolist(), strict=True),
            range(self.size) if is_small else self._dense_columns.tolist(),
        )
        self._place = np.empty(self.size, dtype=np.intp)
        self._place[self.pattern.order] = np.arange(self.size)
        self._pairs = pairs
        self._targets = self._flat(self._place[row], self._place[col])[inverse.ravel()]
        self._transposed = [
            _Transposed(A.index, A.size, self._place[starts[b] : starts[b + 1]]) for b, A in chosen
        ]
        self.multiplications = self.pattern.multiplications + float(
            n_rows * len(pairs) + self._rows_of(maps) * self._dense_columns.size**2
        )

    @staticmethod
    def _rows_of(maps: Sequence[LinearMap]) -> int:
        A = maps[0]
        return A.index.size if isinstance(A, RowSelection) else A.matrix.shape[0]

    def _flat(self, i: Index, j: Index) -> Index:
        """Return where entries (i, j), in the order of elimination, stand in the flat buffer."""
        n, n_border = self.pattern.size, self.pattern.border
        low, high = np.minimum(i, j), np.maximum(i, j)
        flat = np.empty(low.size, dtype=np.intp)
        sparse = high < n
        flat[sparse] = [
            self.pattern.entry(a, b)
            for a, b in zip(high[sparse].tolist(), low[sparse].tolist(), strict=True)
        ]
        n_values = self.pattern.rows.size
        side = ~sparse & (low < n)
        flat[side] = n_values + low[side] * n_border + (high[side] - n)
        corner = low >= n
        start = n_values + n * n_border
        flat[corner] = start + (high[corner] - n) * n_border + (low[corner] - n)
        return flat

    def fits(self, maps: Sequence[LinearMap]) -> bool:
        """Return whether the maps are of the kinds and select the latents that were known."""
        chosen = _selections(maps)
        return [b for b, _ in chosen] == self._chosen and all(
            known.index is A.index or np.array_equal(known.index, A.index)
            for (_, A), known in zip(chosen, self._transposed, strict=True)
        )

    def gram(self, maps: Sequence[LinearMap], lam: Array) -> Array:
        """Return G, flat, without column factors of dense maps."""
        pattern, n = self.pattern, self.pattern.size
        total = np.zeros(pattern.n_entries)
        chosen = [A for _, A in _selections(maps)]
        if chosen:
            weighted = [_times(lam, A.coef) for A in chosen]
            sums = [_times(weighted[a], chosen[b].coef) for a, b in self._pairs]
            total = np.bincount(self._targets, np.concatenate(sums), minlength=total.size)
        _, border, corner = pattern.parts(total)
        matrices = [A.matrix for A in maps if isinstance(A, DenseMap)]
        if matrices:
            X = np.hstack(matrices)
            places = self._place[self._dense_columns] - n
            weighted_rows = lam[:, None] * X
            corner[places[:, None], places] = X.T @ weighted_rows
            for A, block in zip(chosen, self._transposed, strict=True):
                products = block.matrix(A.coef) @ weighted_rows
                inner = block.places < n
                border[block.places[inner][:, None], places] = products[inner]
                outer = block.places[~inner] - n
                corner[outer[:, None], places] = products[~inner]
                corner[places[:, None], outer] = products[~inner].T
        return total

    def project(self, maps: Sequence[LinearMap], h: Array) -> Array:
        """Return g = Aᵀh in the order of elimination, without column factors of dense maps."""
        parts = [
            A.apply_transpose(h) if isinstance(A, RowSelection) else A.matrix.T @ h for A in maps
        ]
        return np.concatenate(parts)[self.pattern.order]


def _selections(maps: Sequence[LinearMap]) -> list[tuple[int, RowSelection]]:
    return [(b, A) for b, A in enumerate(maps) if isinstance(A, RowSelection)]


def _times(x: Array, coef: Array | None) -> Array:
    return x if coef is None else x * coef


class _Transposed:
    """Aᵀ of a selection as a sparse matrix, and where its latents stand."""

    def __init__(self, index: Index, size: int, places: Index) -> None:
        self.index, self.places = index, places
        self._order = np.argsort(index, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(index, minlength=size))])
        self._shape = (size, index.size)

    def matrix(self, coef: Array | None) -> csr_array:
        """Return Aᵀ."""
        data = np.ones(self._order.size) if coef is None else coef[self._order]
        return csr_array((data, self._order, self._starts), shape=self._shape)


class GramSpace(Conditioner):
    """A :class:`.Conditioner` for blocks that are all diagonal and sites that do not couple rows.

    Parameters
    ----------
    pattern : GramPattern
    """

    def __init__(self, pattern: GramPattern) -> None:
        self._pattern = pattern
        self._maps: tuple[LinearMap, ...] = ()
        # AᵀΛA and Aᵀh of every term of the sites, at the known maps.
        self._sums: list[tuple[MergedSites, Array, Array]] = []
        self._memory = FactorMemory[BorderedFactor]()

    def compile(self) -> None:
        """See :class:`.Conditioner`."""
        pattern = self._pattern.pattern
        zeros = np.zeros(pattern.order.size)
        pattern.factorize(np.zeros(pattern.n_entries), zeros, zeros).solve_transpose(zeros)

    def log_evidence(self, prior: LatentPrior, sites: SiteSum) -> float:
        """See :class:`.Conditioner`."""
        return self.posterior(prior, sites).log_evidence

    def posterior(self, prior: LatentPrior, sites: SiteSum) -> AffineByGram:
        """See :class:`.Conditioner`."""
        factor = self._memory.get(prior, sites, partial(self._factorize, prior, sites))
        return AffineByGram(factor, self._pattern.pattern.order)

    def _factorize(self, prior: LatentPrior, sites: SiteSum) -> BorderedFactor:
        factors = self._factors(prior.maps)
        if factors is None:
            if not self._pattern.fits(prior.maps):
                self._pattern = GramPattern(prior.maps)
            self._maps, factors = prior.maps, [1.0] * len(prior.maps)
            self._sums = []
        self._sums = [self._sum(term) for term in sites.terms]
        gram = sites.weighted([gram for _, gram, _ in self._sums])
        right = sites.weighted([right for _, _, right in self._sums])
        s = np.concatenate(
            [
                _column_scale(A, b, factor)
                for A, b, factor in zip(prior.maps, prior.blocks, factors, strict=True)
            ]
        )[self._pattern.pattern.order]
        return self._pattern.pattern.factorize(gram, s, s * right)

    def _sum(self, term: MergedSites) -> tuple[MergedSites, Array, Array]:
        for known in self._sums:
            if known[0] is term:
                return known
        gram = self._pattern.gram(self._maps, term.lam)
        return term, gram, self._pattern.project(self._maps, term.h)

    def _factors(self, maps: Sequence[LinearMap]) -> list[float] | None:
        """Return what the known maps are multiplied by to give these; None if nothing is."""
        if not self._maps:
            return None
        factors = []
        for A, known in zip(maps, self._maps, strict=True):
            factor = _map_ratio(A, known)
            if factor is None:
                return None
            factors.append(factor)
        return factors


def _map_ratio(A: LinearMap, known: LinearMap) -> float | None:
    if isinstance(A, DenseMap):
        same = isinstance(known, DenseMap) and A.matrix is known.matrix
        return 1.0 if same else None
    if not isinstance(known, RowSelection) or not (
        A.index is known.index or np.array_equal(A.index, known.index)
    ):
        return None
    if A.coef is known.coef:
        return 1.0
    if A.coef is None or known.coef is None:
        return None
    return _ratio(A.coef, known.coef)


def _ratio(x: Array, known: Array) -> float | None:
    """Return c with x = c · known up to rounding; None where there is none."""
    if x is known:
        return 1.0
    if x.size != known.size or not x.size:
        return None
    # The first entry that is not zero.
    i = int((known != 0.0).argmax())
    if known[i] == 0.0:
        return None
    c = float(x[i] / known[i])
    away = c * known
    away -= x
    if not _SMALLEST < abs(c) < 1.0 / _SMALLEST:
        return None
    return c if (np.abs(away) <= _ROUNDING * np.abs(x)).all() else None


def _column_scale(A: LinearMap, block: BlockPrior, factor: float) -> Array:
    scale = block.diagonal_scale
    assert scale is not None  # every block is diagonal
    if isinstance(A, DenseMap) and A.columns is not None:
        scale = scale * A.columns
    return scale if factor == 1.0 else factor * scale
