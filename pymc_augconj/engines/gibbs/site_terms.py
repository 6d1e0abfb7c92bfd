"""The sites of a part of the latents given ω, as a sum of terms.

At any value of the hyperparameters they are kept relative to an origin e of every row,

    exp(h η − ½ λ η²) = exp(h e − ½ λ e²) exp((h − λe)(η − e) − ½ λ (η − e)²),

without the first factor: the maximum z = h/λ of an exact site, and of another the predictor that ω
was drawn for. So no constant is larger than log densities are, however far from zero the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cached_property
from math import inf, log
from operator import is_not
from typing import Any

import numpy as np

from pymc_augconj.gaussian.sites import SiteLayout
from pymc_augconj.latents.rows import MergedSites, RowGroups, SiteSum, weighted_sum
from pymc_augconj.typing import Array

from .observed import Held, SiteData


class _Term:
    """Sites of all rows, about the origin; and the same merged at the offset asked for last.

    ``at_origin`` is Σ h e − ½ λ e².
    """

    def __init__(self, h: Array, lam: Array, at_origin: float) -> None:
        self.h, self.lam, self.at_origin = h, lam, at_origin
        self._where: tuple[Any, ...] = (None, None)
        self._merged: MergedSites | None = None

    def merged(self, groups: RowGroups, offset: Array, origin: Array) -> MergedSites:
        where = groups, offset
        if self._merged is None or any(map(is_not, where, self._where)):
            self._merged, self._where = groups.merge(self.h, self.lam, offset - origin), where
        return self._merged


class _Normal(_Term):
    """The exact sites (c z, c) of one observed variable about z, divided by c."""

    def __init__(self, data: SiteData, z: Array, h: Array, lam: Array, log_density: float) -> None:
        super().__init__(h, lam, 0.5 * float(z @ z))
        self._data, self._n_rows, self._constant = data, z.size, 0.0
        self._constant = log_density - self.log_density(self.scale)

    @property
    def scale(self) -> float:
        # Of one observation: c is that of all.
        found = self._data.site.likelihood.as_normal(self._data.y[:1], self._data.params)
        assert found is not None  # see SiteTerms
        return found[1].item()

    def log_density(self, c: float) -> float:
        """Return Σ log p(y | η = z)."""
        return 0.5 * self._n_rows * log(c) + self._constant if c > 0.0 else -inf


class SiteTerms:
    """The sites of one part of the latents, a sum of terms of which some are only scaled by θ.

    They are those of the parameters that its observed variables, ``members``, have when it is
    asked. Its factors share them, and merge them by their own groups.
    """

    def __init__(self, members: Sequence[tuple[SiteData, int]], layout: SiteLayout) -> None:
        self._members, self.layout = members, layout
        self.omegas: Sequence[Any] = [None] * len(members)
        self._term: _Term | None = None
        self._params: list[Any] = []
        # The predictors of each variable at the origin, and these in all rows.
        self._points: list[Array] = []
        self._origin: Array | None = None

    def condition(self, omegas: Sequence[Any]) -> None:
        """Take these ω, one for every member; the sites stay where all are exact or held."""
        known, self.omegas = self.omegas, omegas
        pairs = zip(self._members, omegas, known, strict=True)
        if any(not data.exact and (new is None or new is not old) for (data, _), new, old in pairs):
            self._term = self._origin = None

    def at(self, groups: RowGroups, offset: Array) -> SiteSum:
        """Return the merged sites relative to an offset, one at the origin."""
        (terms, scales), origin = self._terms(), self.origin

        def about(offset: Array) -> SiteSum:
            return SiteSum(tuple(groups.merge(t.h, t.lam, offset - origin) for t in terms), scales)

        merged = tuple(term.merged(groups, offset, origin) for term in terms)
        return SiteSum(merged, scales, about)

    @property
    def stacked(self) -> tuple[Array, Array]:
        """(h − Λe, Λ) of all rows, before merging."""
        terms, scales = self._terms()
        h, lam = [term.h for term in terms], [term.lam for term in terms]
        return weighted_sum(scales, h), weighted_sum(scales, lam)

    @property
    def origin(self) -> Array:
        """The origin e of every row."""
        if self._origin is None:
            _, _, modes = self._split
            self._points = [modes.get(i, d.centre) for i, (d, _) in enumerate(self._members)]
            pairs = zip(self._points, self._members, strict=True)
            own = [eta[list(data.how.groups[g])] for eta, (data, g) in pairs]
            self._origin = self.layout.stack_rows(own)
        return self._origin

    def at_origin(self, sites: SiteSum) -> float:
        """Return Σ h e − ½ λ e² of the sites of :meth:`at`."""
        return weighted_sum(sites.scales, [term.at_origin for term in self._terms()[0]])

    def log_base(self, sites: SiteSum, names: Set[Any]) -> float:
        """Return Σ log p(y | η = e) of exact sites that depend on ``names``, and Σ h e − ½ λ e².

        The last is of held sites that do. ``sites`` are those of :meth:`at`; others count where
        they are scaled, which is constant.
        """
        scaled, rest, _ = self._split
        total = sum(term.log_density(c) for term, c in zip(scaled, sites.scales, strict=False))
        for i in rest:
            data, _ = self._members[i]
            if names.isdisjoint(data.site.params.names):
                continue
            if data.exact:
                total += _log_density(data, self._points[i])
            elif isinstance(data.how, Held):
                (h, lam), e = data.how.sites(), self._points[i]
                total += float(np.sum(e * (h - 0.5 * np.einsum("pqn,qn->pn", lam, e))))
        return total

    def _terms(self) -> tuple[list[_Term], tuple[float, ...]]:
        scaled, rest, _ = self._split
        terms: list[_Term] = [*scaled]
        scales = [term.scale for term in scaled]
        if rest:
            terms.append(self._rest_term(rest))
            scales.append(1.0)
        return terms, tuple(scales)

    @cached_property
    def _split(self) -> tuple[list[_Normal], list[int], dict[int, Array]]:
        """The members whose sites are only scaled, the others, and z of exact sites."""
        scaled, rest, modes = list[_Normal](), list[int](), dict[int, Array]()
        for i, (data, _) in enumerate(self._members):
            found = data.site.likelihood.as_normal(data.y, data.params) if data.exact else None
            if found is not None:
                modes[i] = found[0][None]
            if found is None or found[1].size != 1:
                rest.append(i)
                continue
            h, lam = self.stack({i: (np.zeros((1, 1)), np.ones((1, 1)))})
            log_density = _log_density(data, modes[i])
            scaled.append(_Normal(data, found[0], h, lam, log_density))
        return scaled, rest, modes

    def _rest_term(self, rest: Sequence[int]) -> _Term:
        # Parameters are other objects where they have changed.
        params = [self._members[i][0].params for i in rest]
        if self._term is None or any(map(is_not, params, self._params)):
            found = {}
            for i in rest:
                data, group = self._members[i]
                found[i] = data.how.sites(data.y, self.omegas[i], data.params, data.eta, group)
            h, lam = self.stack(found)
            about = h - self.layout.coupling.product(lam, self.origin)
            at_origin = 0.5 * float(self.origin @ (h + about))
            self._term, self._params = _Term(about, lam, at_origin), params
        return self._term

    def stack(self, found: Mapping[int, tuple[Array, Array]]) -> tuple[Array, Array]:
        """Return (h, Λ) of all rows, zero for members that are not named."""
        pairs = []
        for i, span in enumerate(self.layout.spans):
            P, _ = span.shape
            none = np.zeros((P, 1)), np.zeros((P, P, 1) if span.full else (P, 1))
            pairs.append(found.get(i, none))
        h, lam = zip(*pairs, strict=True)
        return self.layout.stack_rows(h), self.layout.stack_precisions(lam)


def _log_density(data: SiteData, eta: Array) -> float:
    """Return Σ log p(y | η) at predictors of shape (P, N)."""
    found = data.site.likelihood.log_density(data.y, eta, data.params)
    return float(np.sum(np.broadcast_to(found, data.y.shape)))
