"""Moves along ridges of bilinear predictors: latents change by what their coefficients take back.

Where a predictor is Σ_k f_k w_k, with latents f_k and other variables w_k, it stays the same while
f_k is multiplied by e^s and w_k divided by it, or while s f_l is added to f_k and s w_k taken from
w_l, so that draws of f given w and of w given f hardly move along these directions. A slice of s
has the density of the priors at the moved point, times e^{s (|f_k| - |w_k|)} for the first of the
two (Liu & Sabatti 2000, Generalised Gibbs sampler and multigrid Monte Carlo for Bayesian
computation, Biometrika 87).

Which entries belong together is found from derivatives of the predictors, and each ridge is kept
only if the predictors stay the same along it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.model import EntryRidge, Hyperparameter, LatentGaussianModel
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Index, Mask

# Factors along one axis of a variable; the distance of a trial move, and rounding after it.
_MOST_FACTORS, _MOVE, _ROUNDING = 20, 0.3, 1e-9
_PROBES = 2
#: Moves along ridges in a step, of all that there are.
MOST = 12


class End(NamedTuple):
    """Flat entries of a value, times e^s or, by ``sign``, e^-s; or s times others is added."""

    name: str
    own: Index
    sign: int
    other: str | None = None
    its: Index | None = None


@dataclass(frozen=True)
class Ridge:
    """A group of moves of a point by one number s; of ``logs`` the point has logarithms."""

    ends: tuple[End, ...]
    logs: frozenset[str] = frozenset()

    @property
    def log_jacobian(self) -> int:
        """The log Jacobian of the move by s, divided by s."""
        own = [end for end in self.ends if end.other is None and end.name not in self.logs]
        return sum(end.sign * end.own.size for end in own)

    def moved(self, point: Point, s: float) -> dict[str, Array]:
        """Return the point moved by s."""
        new = dict(point) | {end.name: np.array(point[end.name]) for end in self.ends}
        for name, own, sign, other, its in self.ends:
            flat = new[name].reshape(-1)
            if other is not None:
                value = point[other].ravel()[its]
                flat[own] += sign * s * (np.exp(value) if other in self.logs else value)
            elif name in self.logs:
                flat[own] += sign * s
            else:
                flat[own] *= np.exp(sign * s)
        return new


def move_along(
    rng: np.random.Generator, log_density: Callable[[Point], Any], point: Point,
    ridge: Ridge | EntryRidge, update: Callable[..., Array],
) -> tuple[dict[str, Array], int]:  # fmt: skip
    """Return the point after a move along a ridge, and the evaluations of its density.

    From a point without one there is no move, as all others would be accepted.
    """
    known: dict[float, float] = {}

    def log_density_at(x: Array) -> float:
        if x[0] not in known:
            with np.errstate(all="ignore"):
                found = float(log_density(ridge.moved(point, x[0]))) + ridge.log_jacobian * x[0]
            known[x[0]] = found if np.isfinite(found) else -np.inf
        return known[x[0]]

    start = np.zeros(1)
    if log_density_at(start) == -np.inf:
        return dict(point), 1
    s = update(log_density_at, start, rng)[0]
    return ridge.moved(point, s), len(known)


def log_prior(chain: Chain, known: Sequence[BlockPrior], point: Point) -> float:
    """Return the log density of the point without its observations."""
    total = float(chain.model.log_prior(point))
    if not np.isfinite(total):
        return -np.inf
    for prior, v in zip(known, chain.whitened(point, known), strict=True):
        total += float(prior.log_density(v))
    return total


def find_ridges(chain: Chain, point: Point, movable: Sequence[Hyperparameter]) -> tuple[Ridge, ...]:
    """Return the ridges between latents and some hyperparameters."""
    fixed = [site.params for site in chain.model.sites] + [b.scale for b in chain.model.blocks]
    read = {name for own in fixed for name in own.names}
    movable = [h for h in movable if h.value_name not in read]
    if not movable:
        return ()
    return tuple(_Finder(chain, point, movable).ridges())


@dataclass(frozen=True)
class _Class:
    """Entries of one latent block that a factor has, and derivatives by all coefficients."""

    block: int
    entries: Index
    slopes: Array

    @property
    def support(self) -> Mask:
        found: Mask = self.slopes != 0.0
        return found


class _Finder:
    """The search for ridges at some random points."""

    def __init__(self, chain: Chain, point: Point, movable: Sequence[Hyperparameter]) -> None:
        self.chain, model = chain, chain.model
        self.rng = np.random.default_rng(0)
        self.probes = [_random(self.rng, model, point) for _ in range(_PROBES)]
        self.direction = self.rng.standard_normal(model.n_rows)
        kinds = [(h, self._kind(h)) for h in movable]
        self.movable = [h for h, kind in kinds if kind is not None]
        self.logs = frozenset(h.value_name for h, kind in kinds if kind == "log")
        # The owner of every coefficient, and its number there.
        sizes = [h.size for h in self.movable]
        self.owner = np.repeat(np.arange(len(sizes)), sizes)
        self.number = np.concatenate([np.arange(size) for size in sizes] or [np.zeros(0, int)])

    def ridges(self) -> Iterator[Ridge]:
        """Yield the ridges along which the predictors stay the same."""
        by_block = [self._classes(i) for i in range(len(self.chain.model.blocks))]
        for members in _joined([own for classes in by_block for own in classes]):
            support = np.any([own.support for own in members], axis=0)
            raised = tuple(End(*self._latents(own), 1) for own in members)
            # A scale beside a vector takes no part: it multiplies both.
            vectors = np.array([h.size > 1 for h in self.movable])[self.owner]
            for taken in (support, support & vectors):
                own = self._coefficients(np.flatnonzero(taken))
                ridge = Ridge((*raised, *(End(*one, -1) for one in own)), self.logs)
                if self._stays(ridge):
                    yield ridge
                    break
        for classes in by_block:
            for one, other in permutations(classes, 2):
                shear = self._shear(one, other)
                if shear is not None and self._stays(shear):
                    yield shear

    def _shear(self, one: _Class, other: _Class) -> Ridge | None:
        """Return f_k + s f_l, w_l - s w_k; None if an entry of w_k has none beside it in w_l."""
        if one.entries.size != other.entries.size:
            return None
        taken = np.flatnonzero(one.support)
        places = np.flatnonzero(other.support)
        near = np.isclose(one.slopes[taken][:, None], other.slopes[places], rtol=1e-7, atol=0.0)
        if not np.all(near.sum(axis=1) == 1):
            return None
        lowered = places[near.argmax(axis=1)]
        if any(self.movable[self.owner[i]].value_name in self.logs for i in lowered):
            return None
        pairs = sorted(set(zip(self.owner[lowered], self.owner[taken], strict=True)))
        same = [(self.owner[lowered] == i) & (self.owner[taken] == j) for i, j in pairs]
        ends = [End(*self._latents(one), 1, *self._latents(other))]
        for own in same:
            (low,), (their,) = self._coefficients(lowered[own]), self._coefficients(taken[own])
            ends.append(End(*low, -1, *their))
        return Ridge(tuple(ends), self.logs)

    def _classes(self, block: int) -> list[_Class]:
        """Return the factors of a block: slices along an axis that share no coefficient, or all."""
        own, shape = self.chain.model.blocks[block], self.chain.model.blocks[block].shape
        if own.transform is not None or own.is_flat:
            return []
        labels = np.arange(own.total_size).reshape(shape)
        for axis in sorted(range(len(shape)), key=lambda i: shape[i]):
            if 1 < shape[axis] <= _MOST_FACTORS and self.movable:
                slices = [np.ravel(part) for part in np.moveaxis(labels, axis, 0)]
                found = [_Class(block, part, self._slopes(block, part)) for part in slices]
                count = np.sum([one.support for one in found], axis=0)
                if count.max() == 1 and all(one.support.any() for one in found):
                    return found
        every = np.ravel(labels)
        whole = _Class(block, every, self._slopes(block, every))
        return [whole] if whole.support.any() else []

    def _slopes(self, block: int, entries: Index) -> Array:
        """Return derivatives of a sum of predictors by the coefficients, at given latents.

        Classes of the same size have the same values, so that coefficients that do the same have
        the same derivative.
        """
        innovations = [np.zeros(b.total_size) for b in self.chain.model.blocks]
        innovations[block][entries] = np.random.default_rng(1).standard_normal(entries.size)
        slopes = self._gradient(self.probes[0], innovations)
        at_zero = self._gradient(self.probes[0], [np.zeros_like(u) for u in innovations])
        found = []
        for h in self.movable:
            slope = (slopes[h.value_name] - at_zero[h.value_name]).ravel()
            if h.value_name in self.logs:
                slope = slope * np.exp(-self.probes[0][h.value_name].ravel())
            found.append(slope)
        flat = np.concatenate(found) if found else np.zeros(0)
        return np.where(np.abs(flat) > _ROUNDING * np.abs(flat).max(initial=0.0), flat, 0.0)

    def _kind(self, h: Hyperparameter) -> str | None:
        """Return whether predictors are linear in the entry of the point or in its exponential."""
        blocks = self.chain.model.blocks
        innovations = [np.random.default_rng(2).standard_normal(b.total_size) for b in blocks]
        point = self.probes[0]
        other = {**point, h.value_name: point[h.value_name] + np.log(2.0)}
        before, after = (self._gradient(p, innovations)[h.value_name] for p in (point, other))
        if not np.any(before):
            return None
        size = np.abs(before).max()
        for kind, factor in (("linear", 1.0), ("log", 2.0)):
            if np.allclose(after, factor * before, rtol=1e-7, atol=_ROUNDING * size):
                return kind
        return None

    def _gradient(self, point: Point, innovations: Sequence[Array]) -> dict[str, Array]:
        model = self.chain.model
        named = {b.name: u for b, u in zip(model.blocks, innovations, strict=True)}
        found = model.predictor_pullback(point, named, self.direction)
        return {
            h.value_name: np.asarray(found.get(h.value_name, np.zeros(h.shape)))
            for h in model.hyperparameters
            if h.continuous
        }

    def _latents(self, own: _Class) -> tuple[str, Index]:
        return self.chain.model.blocks[own.block].value_name, own.entries

    def _coefficients(self, which: Index) -> tuple[tuple[str, Index], ...]:
        owners = self.owner[which]
        return tuple(
            (self.movable[i].value_name, self.number[which[owners == i]]) for i in np.unique(owners)
        )

    def _stays(self, ridge: Ridge) -> bool:
        """Return whether the predictors stay the same along the ridge."""
        for probe in self.probes:
            before, after = (self.chain.predictor(p) for p in (probe, ridge.moved(probe, _MOVE)))
            if not np.allclose(
                before, after, rtol=_ROUNDING, atol=_ROUNDING * np.abs(before).max()
            ):
                return False
        return len({end.sign for end in ridge.ends}) == 2


def _random(rng: np.random.Generator, model: LatentGaussianModel, point: Point) -> dict[str, Array]:
    """Return a point with other latents and hyperparameters."""
    names = [b.value_name for b in model.blocks]
    names += [h.value_name for h in model.hyperparameters if h.continuous]
    return {**point, **{n: point[n] + rng.standard_normal(point[n].shape) for n in names}}


def _joined(classes: Sequence[_Class]) -> list[list[_Class]]:
    """Return classes in groups, of which no two share a coefficient."""
    groups: list[list[_Class]] = []
    for own in classes:
        near = [g for g in groups if any(np.any(one.support & own.support) for one in g)]
        groups = [g for g in groups if not any(g is one for one in near)]
        groups.append([own, *(one for g in near for one in g)])
    return groups
