"""The values of Markov processes beside a border, the rows that take them, and their stretches.

The posterior of a process at rate r forgets what moves it at least at the rate 0.87 r (Matérn-5/2;
the others at r), whatever the sites. Inputs are cut into periods of 128/r. ν of the middle half of
each moves values of this period alone, but for 1e-11 of them: each has an ellipse of its own. One
ellipse of all turns by less the longer the series is. A second set, half a period later, has the
other ν, and a third one the border.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import numpy as np

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.gaussian.observations import SMALLEST_PRECISION
from pymc_augconj.linalg.linear_map import RowSelection
from pymc_augconj.typing import Array, Generator, Index

from .joint import LatentPrior
from .markov import MarkovPrior
from .rows import SiteSum

# Lengths 1/r in a period, and the fewest periods that are moved apart.
_PERIOD, _FEWEST = 128.0, 4


class MarkovValues:
    """All values of the Markov blocks as one vector u, and the rows that take them."""

    def __init__(self, prior: LatentPrior) -> None:
        self._maps = prior.maps
        blocks = [b.block for b in prior.blocks]
        self.which = [i for i, b in enumerate(prior.blocks) if isinstance(b, MarkovPrior)]
        starts = np.cumsum([0, *(block.total_size for block in blocks)])
        parts = [np.arange(starts[i], starts[i + 1]) for i in self.which]
        places = np.concatenate(parts)
        self.n_latents, self.size = int(starts[-1]), places.size
        #: Places of u and of β in all latents.
        one = slice(int(places[0]), int(places[-1]) + 1)
        self.places: Index | slice = one if len(parts) == 1 else places
        self.border: Index = np.setdiff1d(np.arange(starts[-1]), places, assume_unique=True)
        self.ends = np.cumsum([0, *(part.size for part in parts)])
        n_rows = prior.maps[self.which[0]].apply(np.zeros(blocks[self.which[0]].total_size)).size
        self.index, self.coef = np.zeros(n_rows, dtype=np.intp), np.zeros(n_rows)
        for start, i in zip(self.ends, self.which, strict=False):
            A = prior.maps[i]
            assert isinstance(A, RowSelection)  # see _fits
            used = A.entries != 0.0
            self.index[used], self.coef[used] = start + A.index[used], A.entries[used]
        self._given: _Given | None = None
        #: Whether A is the identity.
        self.is_all = np.array_equal(self.index, np.arange(self.size)) and (self.coef == 1.0).all()

    def fits(self, prior: LatentPrior) -> bool:
        """Return whether a prior has the same maps."""
        return all(map(is_, self._maps, prior.maps))

    def given(self, prior: LatentPrior, sites: SiteSum) -> _Given:
        """Return what depends on sites and border alone: the same for other hyperparameters."""
        border = [b for i, b in enumerate(prior.blocks) if i not in self.which]
        of = (sites.h, sites.lam, *border)
        if self._given is None or not all(map(is_, of, self._given.of)):
            self._given = _Given(self, prior, of)
        return self._given

    def sums(self, x: Array) -> Array:
        """Return Aᵀx for x of shape (R,)."""
        return x if self.is_all else np.bincount(self.index, self.coef * x, minlength=self.size)

    def taken(self, u: Array) -> Array:
        """Return A u for u of shape (…, size)."""
        return u if self.is_all else self.coef * u[..., self.index]

    def split(self, u: Array) -> list[Array]:
        """Return the parts of the blocks."""
        return [u[..., a:b] for a, b in zip(self.ends[:-1], self.ends[1:], strict=True)]

    def stretches(
        self, priors: Sequence[MarkovPrior], rng: Generator
    ) -> list[tuple[Index, Index, Index]]:
        """Return the stretches of a posterior, see :class:`.Posterior`."""
        phases: list[Array] = []
        for b in priors:
            rate = b.inputs.parameters(b.array)[1].min() / _PERIOD
            phases += [(b.inputs.x - b.inputs.x.min()) * rate] * b.block.copies
        if sum(int(at.max()) + 1 for at in phases) < _FEWEST:
            return []
        sets, share, n = [], rng.random(), self.n_latents
        for shift in (share, share + 0.5):
            numbers: list[Index] = []
            are_moved = []
            for at in phases:
                count = int(numbers[-1].max()) + 1 if numbers else 0
                shifted = at + shift
                own = shifted.astype(np.intp)
                shifted -= own
                are_moved.append(np.abs(shifted - 0.5) < 0.25)
                numbers.append(count + own)
            number, moved = np.concatenate(numbers), np.flatnonzero(np.concatenate(are_moved))
            of_nu = np.concatenate([np.arange(n)[self.places][moved], n + moved])
            sets.append((of_nu, np.tile(number[moved], 2), number[self.index]))
        if self.border.size:
            sets.append((self.border, np.zeros_like(self.border), np.zeros_like(self.index)))
        return sets


class _Given:
    """Terms that depend on the sites and the border alone, and not on processes.

    These are Λᵤ and its inverse, H, the rows H̄ and z, W, h − ΛA z, and their part of M and of its
    linear term.
    """

    def __init__(self, own: MarkovValues, prior: LatentPrior, of: tuple[Any, ...]) -> None:
        self.of, (h, lam, *border) = of, of
        if not (np.isfinite(lam).all() and np.isfinite(h).all()):
            raise NotPositiveDefiniteError("expected finite sites, got a NaN or an infinity")
        precision = own.sums(own.coef * lam)
        tiny = np.abs(precision) < SMALLEST_PRECISION
        self.precision: Array = np.where(tiny, SMALLEST_PRECISION, precision)
        self.extra = own.split(1.0 / self.precision)
        others = [A for i, A in enumerate(prior.maps) if i not in own.which]
        parts = [b.whitened_design(A) for b, A in zip(border, others, strict=True)]
        self.H = H = np.hstack([np.empty((lam.size, 0)), *parts])
        sums = [own.sums(x) for x in (*(lam * column for column in H.T), h)]
        self.both = np.array(sums) / self.precision
        self.W = H - own.taken(self.both[:-1]).T
        self.rest = h - lam * own.taken(self.both[-1])
        self.square = float(sums[-1] @ self.both[-1])
        self.magnitude = float(np.abs(sums[-1]) @ np.abs(self.both[-1]))
        self.linear, self.M = self.W.T @ self.rest, self.W.T @ (lam[:, None] * self.W)
        self.M[np.diag_indices_from(self.M)] += 1.0
