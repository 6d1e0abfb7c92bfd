"""Vectors of hyperparameters whose entries are independent given all other variables.

The terms of the model's log density that depend on one entry depend on no other: log p = Σⱼ fⱼ(xⱼ)
+ constant, and all entries are updated at once. To find the entry of each term, the module moves
sets of entries: those whose number has a given bit set, and those whose number does not.

Other hyperparameters hardly move given the vector v where its prior has a scale near zero, or where
the entries and a number that is added to them are known by their sum. Both move along a *ridge*: a
location and a scale with v, given (v − m)/t, what is added to the entries or multiplies them
against v, given the sums or products (Yu & Meng 2011, To center or not to center, J. Comput. Graph.
Stat. 20; Liu & Sabatti 2000, Generalised Gibbs sampler and multigrid Monte Carlo for Bayesian
computation, Biometrika 87). If v scales latents, so does a scalar τ that multiplies it.

The local scales λ of a horseshoe, ``Normal(0, tau * lam)`` or ``z * tau * lam``, each scale one
latent, and nothing else: the standard deviation, or the factor of the column, of coefficient j
depends on λⱼ and on shared parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np
from pytensor.graph.basic import Variable

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import RecognitionError
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap
from pymc_augconj.model import ColumnScales, EntryDensities, EntryRidge
from pymc_augconj.point import Key, Point, PointMap
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.dependence import ValueSpace
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.typing import Array, Generator, Index, Mask

#: Entries of the shortest vector whose terms are separated.
FEWEST = 10
# Standard deviation of the moves, on the unconstrained scale.
_MOVE = 0.3
# Rounding of a term, of which a value of another entry may change the order of operations.
_ROUNDING = 1e-9


class SeparateEntries(EntryDensities):
    """The terms of the log density that depend on each entry of a vector, added up.

    ``owner`` has the entry of each term, −1 where none; terms are flat, one array after the other.
    """

    def __init__(
        self, name: str, terms: PointFunction, priors: PointFunction, owner: Index, size: int
    ) -> None:
        self._name, self._terms, self._size, self.priors = name, terms, size, priors
        self._owner, self._own = owner, np.flatnonzero(owner >= 0)
        self.ridges: Sequence[EntryRidge] = ()
        self.names = terms.names

    def __call__(self, point: Point) -> Array:
        found = _flat(self._terms, point)[self._own]
        return np.bincount(self._owner[self._own], found, minlength=self._size)

    def check(self, old: Point, new: Point, moved: Mask) -> None:
        x = {**old, self._name: np.where(moved.reshape(old[self._name].shape), new[self._name],
                                         old[self._name])}  # fmt: skip
        before, after, mixed = (_flat(self._terms, point) for point in (old, new, x))
        takes_new = np.append(moved, False)[self._owner]
        expected = np.where(takes_new, after, before)
        if not np.allclose(mixed, expected, rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True):
            raise RecognitionError(
                f"variable {self._name!r}: expected entries that are independent given the other "
                "variables, found a term of the log density that depends on two of them; sample "
                "this model with pm.sample's NUTS, and please report it"
            )


def separate_entries(
    name: str, terms: PointFunction, priors: PointFunction, points: Sequence[Point]
) -> SeparateEntries | None:
    """Return the terms by entry of the vector ``name``; None if a term depends on two entries.

    ``priors`` are those of the terms that no latent enters.
    """
    owner, size = find_owners(name, terms, points), points[0][name].size
    return None if owner is None else SeparateEntries(name, terms, priors, owner, size)


def find_owners(
    name: str, terms: Callable[[Point], Sequence[Array]], points: Sequence[Point]
) -> Index | None:
    """Return the one entry of the vector ``name`` that each term depends on at some point.

    It is −1 where there is none, and None if a term depends on two.
    """
    owner: Index | None = None
    for seed, point in enumerate(points):
        rng = np.random.default_rng(seed)
        found = _owners(name, terms, _away_from_zero(point, rng), rng)
        if found is None:
            return None
        # A term may be constant in some part of the space.
        if owner is None:
            owner = found
        elif np.any((owner != found) & (owner >= 0) & (found >= 0)):
            return None
        else:
            owner = np.maximum(owner, found)
    return owner


def entry_ridges(
    value: Variable, terms: Sequence[Variable], space: ValueSpace, points: Sequence[Point]
) -> tuple[EntryRidge, ...]:
    """Return the moves of other hyperparameters that the vector follows, see :class:`.EntryRidge`.

    Given the vector its scale hardly moves where this is near zero, nor does its location where its
    entries are known well; given the standardised vector they do. A number that is added to all
    entries, or multiplies them, moves against them.
    """
    model, found = space.model, list[EntryRidge]()
    prior_of = {model.rvs_to_values[rv]: i for i, rv in enumerate(model.basic_RVs)}
    make = partial(PointFunction, inputs=model.inputs, mode=space.mode)
    prior, tried = make([terms[prior_of[value]]]), []
    for h in space.inputs.values():
        if h is value or not h.dtype.startswith("float") or points[0][h.name].size >= FEWEST:
            continue
        rest = [t for i, t in enumerate(terms) if i not in (prior_of[h], prior_of[value])]
        rest = [t for t in rest if depends_on(t, h) or depends_on(t, value)]
        functions = prior, make(rest)
        for sign, (stays, others) in ((1, functions), (-1, functions[::-1])):
            if rest and {h.name, value.name} <= {*stays.names}:
                entries = range(points[0][h.name].size)
                tried += [((h.name, i), sign, stays, others) for i in entries]
    # What locations are to scales of priors, multiples of entries are to a level.
    for scales in (False, True, None):
        for h, sign, stays, others in list(tried):
            scaled = sign > 0 if scales is None else scales
            beside = [r.h for r in found if r.sign == sign and r.scales != scaled and r.h != h]
            for c in beside if scales is None else [None]:
                ridge = EntryRidge(h, value.name, points[0][value.name].size, sign, scaled, c)
                if _stays(stays, others, ridge, points):
                    found.append(ridge)
                    tried.remove((h, sign, stays, others))
                    break
    return tuple(found)


def _stays(
    stays: PointFunction, others: PointFunction, ridge: EntryRidge, points: Sequence[Point]
) -> bool:
    """Return whether terms that depend on a hyperparameter stay the same along a ridge.

    With the Jacobian, if they are the prior; then no others may depend on the hyperparameter.
    """
    name, is_prior = ridge.h[0], ridge.sign > 0
    for seed, point in enumerate(points):
        given = _away_from_zero(point, np.random.default_rng(seed))
        moved = ridge.moved(given, _MOVE)
        alone = {**given, name: moved[name]}
        before, after, by_it = (_flat(stays, at) for at in (given, moved, alone))
        after += _MOVE * (is_prior and ridge.scales)
        if not np.allclose(before, after, rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True):
            return False
        # It has an effect there, and no other.
        if np.array_equal(before, by_it):
            return False
        if is_prior and not np.array_equal(_flat(others, given), _flat(others, alone)):
            return False
    return True


def _owners(
    name: str, terms: Callable[[Point], Sequence[Array]], point: Point, rng: Generator
) -> Index | None:
    """Return the one entry that each term depends on, −1 where none; None if two."""
    value = point[name]
    moved = value + _MOVE * rng.standard_normal(value.shape)
    before, numbers = _flat(terms, point), np.arange(value.size).reshape(value.shape)

    def changes(members: Mask) -> Mask:
        after = _flat(terms, {**point, name: np.where(members, moved, value)})
        return ~((before == after) | (np.isnan(before) & np.isnan(after)))

    owner, depends = np.zeros(before.size, dtype=np.intp), changes(np.ones(value.shape, dtype=bool))
    for bit in range(int(value.size - 1).bit_length()):
        has_bit = (numbers >> bit & 1).astype(bool)
        with_bit, without = changes(has_bit), changes(~has_bit)
        if np.any(with_bit & without):
            return None
        depends |= with_bit | without
        owner += with_bit.astype(np.intp) << bit
    return np.where(depends, owner, -1)


def _flat(terms: Callable[[Point], Sequence[Array]], point: Point) -> Array:
    with np.errstate(all="ignore"):
        return np.concatenate([np.ravel(term) for term in terms(point)])


def _away_from_zero(point: Point, rng: Generator) -> dict[str, Array]:
    # Latents are zero in PyMC's initial point, where their coefficients do not matter.
    return {
        key: value + rng.standard_normal(value.shape) if value.dtype.kind == "f" else value
        for key, value in point.items()
    }


def find_columns(
    blocks: Sequence[LatentBlock],
    maps: Sequence[PointMap[LinearMap]],
    others: Collection[Key],
    value: Variable,
    priors: PointFunction,
    points: Sequence[Point],
) -> ColumnScales | None:
    """Return the latents that the vector scales; None if it has another or no such effect.

    All graphs except the blocks' scales and maps depend on ``others``; ``priors`` are the log
    priors of hyperparameters that depend on the vector.
    """
    name: str = value.name
    pairs = list(zip(blocks, maps, strict=True))
    scaled = [i for i, (b, A) in enumerate(pairs) if name in (*b.scale.names, *A.names)]
    if name in others or len(scaled) != 1:
        return None
    block, read = pairs[scaled[0]]
    if not (block.is_independent or block.is_standard) or block.is_flat or block.transform:
        return None
    matrices = [A.matrix if type(A) is DenseMap else None for A in map(read, points)]
    if any(M is None or M is not matrices[0] for M in matrices):
        return None
    of_all = ColumnScales(scaled[0], np.arange(block.total_size), None, block.scale, read)  # type: ignore[arg-type]

    def scales(point: Point) -> list[Array]:
        std, factors = of_all(point)
        return [std * factors]

    owner = find_owners(name, scales, points)
    size = points[0][name].size
    if owner is None or not np.array_equal(np.sort(owner[owner >= 0]), np.arange(size)):
        return None
    densities = separate_entries(name, priors, priors, points)
    if densities is None:
        return None
    latents = np.empty(size, dtype=np.intp)
    latents[owner[owner >= 0]] = np.flatnonzero(owner >= 0)
    return ColumnScales(scaled[0], latents, densities, block.scale, read)
