"""Merging of predictors that are equal for every value of the latents, and share a site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap
from pymc_augconj.typing import Array, Index

# Codes of rows are below this; rows from which one pass over them is compiled.
_MOST_CODES, _MANY = 2**62, 10_000


@dataclass(frozen=True, eq=False)
class MergedSites:
    """Sites of the merged rows, relative to their offset, see :meth:`RowGroups.merge`.

    ``constant`` is Σ (h·offset − ½ offsetᵀΛ·offset), with h and Λ of all rows, and ``magnitude``
    that of its two terms; ``lam`` is stacked as in :mod:`pymc_augconj.gaussian.sites`; ``rounded``
    is the largest number that ``h`` is a difference of.
    """

    h: Array
    lam: Array
    constant: float
    magnitude: float = 0.0
    rounded: float = 0.0

    def equals(self, other: MergedSites) -> bool:
        """Return whether h, Λ and the constant are the same."""
        pairs = ((self.lam, other.lam), (self.h, other.h))
        same = self.constant == other.constant
        return self is other or (same and all(np.array_equal(*pair) for pair in pairs))


@dataclass(frozen=True, eq=False)
class SiteSum:
    """Sites as a sum Σ_k c_k (h_k, Λ_k); hyperparameters may change the scales c_k alone.

    ``about`` returns the same sites relative to another offset, that of all rows.
    """

    terms: tuple[MergedSites, ...]
    scales: tuple[float, ...] = (1.0,)
    about: Callable[[Array], SiteSum] | None = field(default=None, repr=False)

    @cached_property
    def h(self) -> Array:
        """Σ c h."""
        return self.weighted([term.h for term in self.terms])

    @cached_property
    def lam(self) -> Array:
        """Σ c Λ."""
        return self.weighted([term.lam for term in self.terms])

    @property
    def constants(self) -> tuple[float, float]:
        """Σ c · constant and Σ c · magnitude."""
        constant = magnitude = 0.0
        for c, term in zip(self.scales, self.terms, strict=True):
            constant += c * term.constant
            magnitude += c * term.magnitude
        return constant, magnitude

    def equals(self, other: SiteSum) -> bool:
        """Return whether terms and scales are the same."""
        return self.scales == other.scales and all(map(MergedSites.equals, self.terms, other.terms))

    def weighted[T: (Array, float)](self, parts: Sequence[T]) -> T:
        """Return Σ c · part, given something of every term; it may be a part itself."""
        return weighted_sum(self.scales, parts)


def weighted_sum[T: (Array, float)](scales: Sequence[float], parts: Sequence[T]) -> T:
    """Return Σ c · part; a single part with c = 1 as it is."""
    if tuple(scales) == (1.0,):
        return parts[0]
    total = scales[0] * parts[0]
    for c, part in zip(scales[1:], parts[1:], strict=True):
        total += c * part
    return total


@dataclass(frozen=True)
class RowGroups:
    """Predictors that are equal for every value of the latents.

    ``first`` is one member of each group, (R,), and ``inverse`` the group of each predictor, (n,),
    None where every predictor is its own group. Predictors that sites couple, ``coupling``, are
    their own groups. ``maps`` are the blocks' maps onto the groups at one θ, a random one if any.
    """

    first: Index
    inverse: Index | None
    coupling: Coupling
    maps: tuple[LinearMap, ...] | None = field(default=None, compare=False, repr=False)
    _kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def apart(
        cls,
        n_rows: int,
        coupling: Coupling | None = None,
        maps: tuple[LinearMap, ...] | None = None,
    ) -> RowGroups:
        """Return groups of one predictor."""
        return cls(np.arange(n_rows), None, coupling or Coupling(n_rows), maps)

    def keep[T](self, name: str, make: Callable[[], T]) -> T:
        """Return ``make()``, called once: a space's knowledge of the groups."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    @classmethod
    def find(cls, maps_at: Sequence[Sequence[LinearMap]], coupling: Coupling) -> RowGroups:
        """Group the rows that agree in every block at every θ of ``maps_at``."""
        n_rows = coupling.n_rows
        columns: list[NDArray[Any]] = []
        # A chain often starts where coefficients are one that will not stay so.
        last_maps = tuple(maps_at[-1])
        if not last_maps or any(_takes_each_once(A) for A in last_maps):
            return cls.apart(n_rows, coupling, last_maps)
        for maps in maps_at:
            for A in maps:
                if isinstance(A, DenseMap):
                    return cls.apart(n_rows, coupling, last_maps)
                columns.append(A.index)
                if A.coef is not None:
                    columns.append(A.coef)
        if coupling.rows:
            alone = np.zeros(n_rows)
            for rows in coupling.rows:
                alone[rows] = 1 + rows
            columns.append(alone)
        _, first, inverse = np.unique(row_codes(columns), return_index=True, return_inverse=True)
        if first.size == n_rows:
            return cls.apart(n_rows, coupling, last_maps)
        # In order of first appearance, so that f[idx] with a permutation-free idx is the identity.
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        maps = tuple(A.rows(first[order]) for A in last_maps)
        return cls(first[order], rank[inverse.ravel()], coupling, maps)

    @property
    def size(self) -> int:
        """R, the number of groups."""
        return self.first.size

    @cached_property
    def merged(self) -> Coupling:
        """The coupling of the groups."""
        return self.coupling.merged(self.inverse, self.size)

    def merge(self, h: Array, lam: Array, offset: Array) -> MergedSites:
        """Return the merged sites of η − offset, with the constant of the shift."""
        if self.inverse is not None and self.inverse.size > _MANY and not self.coupling.first.size:
            from pymc_augconj.linalg.sparse_kernels import sums_by_group

            return MergedSites(*sums_by_group(h, lam, offset, self.inverse, self.size))
        weighted = self.coupling.product(lam, offset)
        linear, square = float(h @ offset), 0.5 * float(weighted @ offset)
        rounded = float(np.abs(lam).max(initial=0.0) * np.abs(offset).max(initial=0.0))
        h = h - weighted
        if self.inverse is not None:
            h = np.bincount(self.inverse, weights=h, minlength=self.size)
            n_rows = self.coupling.n_rows
            own = np.bincount(self.inverse, weights=lam[:n_rows], minlength=self.size)
            lam = np.concatenate([own, lam[n_rows:]])
        return MergedSites(h, lam, linear - square, abs(linear) + abs(square), rounded)

    def sites(self, h: Array, lam: Array, offset: Array, origin: Array | float = 0.0) -> SiteSum:
        """Return the merged sites of η − offset, as a sum of one, given those of η − origin."""
        about = partial(self.sites, h, lam, origin=origin)
        return SiteSum((self.merge(h, lam, offset - origin),), about=about)

    def expand[T: np.generic](self, merged: NDArray[T]) -> NDArray[T]:
        """Return entries for all predictors, and their pairs, from entries for the groups."""
        if self.inverse is None:
            return merged
        return np.concatenate([merged[: self.size][self.inverse], merged[self.size :]])


def _takes_each_once(A: LinearMap) -> bool:
    """Return whether all rows take different values of a block."""
    if isinstance(A, DenseMap) or A.index.size > A.size:
        return False
    return bool(np.bincount(A.index, minlength=1).max() <= 1)


def row_codes(columns: Sequence[NDArray[Any]]) -> Index:
    """Return a number for every row, the same for rows that are equal in all columns."""
    codes = np.zeros(columns[0].size, dtype=np.int64)
    n_codes = 1
    for column in columns:
        own = column
        if own.dtype.kind == "f" or n_codes * (int(own.max(initial=0)) + 1) >= _MOST_CODES:
            own = np.unique(own, return_inverse=True)[1].ravel()
        n_own = int(own.max(initial=0)) + 1
        if n_codes * n_own >= _MOST_CODES:
            codes = np.unique(codes, return_inverse=True)[1].ravel()
            n_codes = int(codes.max(initial=0)) + 1
        codes, n_codes = codes * n_own + own, n_codes * n_own
    return codes
