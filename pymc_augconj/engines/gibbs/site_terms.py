"""The sites of one part of the latents, given ω, at any value of the hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from math import inf, log
from operator import is_not
from typing import Any

import numpy as np

from pymc_augconj.gaussian.sites import SiteLayout
from pymc_augconj.latents.rows import MergedSites, RowGroups, SiteSum, weighted_sum
from pymc_augconj.typing import Array

from .observed import SiteData

__all__ = ["SiteTerms"]


class _Term:
    """Sites of all rows, and the same merged at the offset that was asked for last."""

    def __init__(self, h: Array, lam: Array) -> None:
        self.h, self.lam = h, lam
        self._offset: Array | None = None
        self._merged: MergedSites | None = None

    def merged(self, groups: RowGroups, offset: Array) -> MergedSites:
        if self._merged is None or self._offset is not offset:
            self._merged, self._offset = groups.merge(self.h, self.lam, offset), offset
        return self._merged


class _Normal(_Term):
    """The exact sites (c z, c) of one observed variable, divided by c."""

    def __init__(self, data: SiteData, z: Array, h: Array, lam: Array, log_base: float) -> None:
        super().__init__(h, lam)
        self._data, self._n_rows, self._square = data, z.size, float(z @ z)
        self._constant = 0.0
        self._constant = log_base - self.log_base(self.scale)

    @property
    def scale(self) -> float:
        """The present c."""
        # Of one observation: c is that of all.
        found = self._data.site.terms.as_normal(self._data.y[:1], self._data.params)
        assert found is not None  # see SiteTerms
        return found[1].item()

    def log_base(self, c: float) -> float:
        """Return Σ log p(y | η) − (h η − ½ λ η²)."""
        if not c > 0.0:
            return -inf
        return 0.5 * (self._n_rows * log(c) - c * self._square) + self._constant


class SiteTerms:
    """The sites of one part of the latents, a sum of terms of which some are only scaled by θ.

    They are those of the parameters that its observed variables have when it is asked for them.

    Parameters
    ----------
    members : sequence of (SiteData, int)
        Observed variables, and the group of the predictors of each.
    layout : SiteLayout
        How their sites are stacked.
    groups : RowGroups
    """

    def __init__(
        self, members: Sequence[tuple[SiteData, int]], layout: SiteLayout, groups: RowGroups
    ) -> None:
        self._members, self.layout, self._groups = members, layout, groups
        self.omegas: Sequence[Any] = [None] * len(members)
        self._scaled: list[_Normal] = []
        self._rest: list[int] | None = None
        self._term: _Term | None = None
        self._params: list[Any] = []

    def condition(self, omegas: Sequence[Any]) -> None:
        """Take these ω, one for every member, and what is held now."""
        self.omegas = omegas
        if not all(data.exact for data, _ in self._members):
            self._term = None

    def at(self, offset: Array) -> SiteSum:
        """Return the merged sites relative to an offset."""
        terms, scales = self._terms()
        return SiteSum(tuple(term.merged(self._groups, offset) for term in terms), scales)

    @property
    def stacked(self) -> tuple[Array, Array]:
        """(h, Λ) of all rows, before merging."""
        terms, scales = self._terms()
        h, lam = [term.h for term in terms], [term.lam for term in terms]
        return weighted_sum(scales, h), weighted_sum(scales, lam)

    def log_base(self, sites: SiteSum, names: Set[Any]) -> float:
        """Return Σ log p(y | η) − (h η − ½ λ η²) of exact sites that depend on ``names``.

        ``sites`` are those of :meth:`at`; others count where they are scaled, which is constant.
        """
        total = sum(term.log_base(c) for term, c in zip(self._scaled, sites.scales, strict=False))
        for i in self._rest or ():
            data, group = self._members[i]
            if data.exact and not names.isdisjoint(data.site.params.names):
                total += _log_base(data, group)
        return total

    def _terms(self) -> tuple[list[_Term], tuple[float, ...]]:
        if self._rest is None:
            self._rest = self._split()
        terms: list[_Term] = [*self._scaled]
        scales = [term.scale for term in self._scaled]
        if self._rest:
            terms.append(self._rest_term(self._rest))
            scales.append(1.0)
        return terms, tuple(scales)

    def _split(self) -> list[int]:
        """Find the members whose sites are only scaled; return the others."""
        rest = []
        for i, (data, group) in enumerate(self._members):
            exact = data.exact
            found = data.site.terms.as_normal(data.y, data.params) if exact else None
            if found is None or found[1].size != 1:
                rest.append(i)
                continue
            z, ones = found[0], np.ones((1, 1))
            h, lam = self.stack({i: (z[None], ones)})
            self._scaled.append(_Normal(data, z, h, lam, _log_base(data, group)))
        return rest

    def _rest_term(self, rest: Sequence[int]) -> _Term:
        # Parameters are other objects where they have changed.
        params = [self._members[i][0].params for i in rest]
        if self._term is None or any(map(is_not, params, self._params)):
            found = {}
            for i in rest:
                data, group = self._members[i]
                found[i] = data.how.sites(data.y, self.omegas[i], data.params, data.eta, group)
            self._term, self._params = _Term(*self.stack(found)), params
        return self._term

    def stack(self, found: Mapping[int, tuple[Array, Array]]) -> tuple[Array, Array]:
        """Return (h, Λ) of all rows, zero for members that are not named."""
        pairs = []
        for i, span in enumerate(self.layout.spans):
            P, _ = span.shape
            pairs.append(
                found.get(i, (np.zeros((P, 1)), np.zeros((P, P, 1) if span.full else (P, 1))))
            )
        return (
            self.layout.stack_rows([h for h, _ in pairs]),
            self.layout.stack_precisions([lam for _, lam in pairs]),
        )


def _log_base(data: SiteData, group: int) -> float:
    base = data.site.terms.log_base(data.y, None, data.params, data.eta, group)
    return float(np.sum(np.broadcast_to(base, data.y.shape)))
