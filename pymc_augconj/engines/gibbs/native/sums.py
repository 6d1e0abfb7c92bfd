"""Sums over observations as polynomials of registers, with coefficients that are kept.

With c the precision of an observation, a a coefficient of its design and o its offset, G = AᵀΛA is
a sum of c a a′, g = Aᵀh of c (z − o) a, and constants are of c z o and c o². Each of the factors
is a number or in a register, so that all of these are polynomials of degree three at most, whose
coefficients are sums over the observations that have the same registers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pymc_augconj.typing import Array, Index

# More registers than a tape has.
_MANY = 1 << 20
# Terms that are summed at a time, for which there is memory.
_TOGETHER = 1 << 18


class Polynomial(NamedTuple):
    """Σ_k r[i_k] r[j_k] r[l_k] value_k, entry by entry, with value = fixed + Σ by · ω[of].

    Attributes
    ----------
    factors : ndarray of int, shape (K, 3)
        Registers i, j and l of each monomial.
    begin : ndarray of int, shape (K + 1,)
        Where the entries of each begin.
    place, fixed : ndarray, shape (E,)
        The entries of the monomials' coefficients that are not zero.
    weights, of, by : ndarray
        Where those of each entry begin, of shape (E + 1,); observations, and their factors.
    """

    factors: Index
    begin: Index
    place: Index
    fixed: Array
    weights: Index
    of: Index
    by: Array


class SumBuilder:
    """Adds up monomials."""

    def __init__(self) -> None:
        self._terms: list[tuple[Index, Index, Index, Array]] = []

    def add(
        self, factors: tuple[Index, ...], place: Index | int, value: Array, of: Index | int = -1
    ) -> None:
        """Add values times three registers to the entries ``place``; all of these broadcast.

        A value is also times the ω of an observation, where ``of`` is not negative.
        """
        every = [x.reshape(-1) for x in np.broadcast_arrays(*factors, place, of, value)]
        terms = np.flatnonzero(every[-1])
        for start in range(0, max(terms.size, 1), _TOGETHER):
            own = terms[start : start + _TOGETHER]
            *registers, places, numbers, values = (x[own] for x in every)
            first, second, third = np.sort(np.stack(registers), axis=0)
            code = (first * _MANY + second) * _MANY + third
            self._terms.append(_summed(code, places, numbers, values))

    def finish(self) -> Polynomial:
        """Return the sum of all."""
        code, place, of, value = _summed(*map(np.concatenate, zip(*self._terms, strict=True)))
        starts = np.flatnonzero(np.diff(code, prepend=-1) | np.diff(place, prepend=-1))
        entry = np.repeat(np.arange(starts.size), np.diff(starts, append=code.size))
        is_fixed = of < 0
        fixed = np.bincount(entry[is_fixed], value[is_fixed], starts.size)
        counts = np.bincount(entry[~is_fixed], minlength=starts.size)
        monomials, begin = np.unique(code[starts], return_index=True)
        pairs, last = np.divmod(monomials, _MANY)
        return Polynomial(
            np.stack([*np.divmod(pairs, _MANY), last], axis=1),
            np.append(begin, starts.size),
            place[starts],
            fixed.astype(float),  # integers where nothing is fixed
            np.concatenate([[0], np.cumsum(counts)]),
            of[~is_fixed],
            value[~is_fixed],
        )


def _summed(
    code: Index, place: Index, of: Index, value: Array
) -> tuple[Index, Index, Index, Array]:
    """Return every triple of code, place and observation once, sorted, with the sums of values."""
    monomials, number = np.unique(code, return_inverse=True)
    width, depth = int(place.max(initial=0)) + 1, int(of.max(initial=0)) + 2
    triples, inverse = np.unique((number * width + place) * depth + of + 1, return_inverse=True)
    total = np.bincount(inverse, weights=value, minlength=triples.size)
    triples, total = triples[total != 0.0], total[total != 0.0]
    pairs, of = np.divmod(triples, depth)
    return monomials[pairs // width], pairs % width, of - 1, total
