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

__all__ = ["Polynomial", "SumBuilder"]

# More registers than a tape has.
_MANY = 1 << 20


class Polynomial(NamedTuple):
    """Σ_k r[i_k] r[j_k] r[l_k] value_k, entry by entry.

    Attributes
    ----------
    factors : ndarray of int, shape (K, 3)
        Registers i, j and l of each monomial.
    begin : ndarray of int, shape (K + 1,)
        Where the entries of each begin.
    place, value : ndarray
        The entries of a monomial's coefficient that are not zero.
    """

    factors: Index
    begin: Index
    place: Index
    value: Array


class SumBuilder:
    """Adds up monomials."""

    def __init__(self) -> None:
        self._terms: list[tuple[Index, Index, Array]] = []

    def add(self, factors: tuple[Index, ...], place: Index | int, value: Array) -> None:
        """Add values times three registers to the entries ``place``; all of these broadcast."""
        every = np.broadcast_arrays(*factors, place, value)
        *registers, place, value = (x.ravel() for x in every)
        first, second, third = np.sort(np.stack(registers), axis=0)
        self._terms.append(_summed((first * _MANY + second) * _MANY + third, place, value))

    def finish(self) -> Polynomial:
        """Return the sum of all."""
        code, place, value = _summed(*map(np.concatenate, zip(*self._terms, strict=True)))
        monomials, begin = np.unique(code, return_index=True)
        pairs, last = np.divmod(monomials, _MANY)
        factors = np.stack([*np.divmod(pairs, _MANY), last], axis=1)
        return Polynomial(factors, np.append(begin, code.size), place, value)


def _summed(code: Index, place: Index, value: Array) -> tuple[Index, Index, Array]:
    """Return every pair of code and place once, sorted, with the sums of their values."""
    monomials, number = np.unique(code, return_inverse=True)
    width = int(place.max(initial=0)) + 1
    pairs, inverse = np.unique(number * width + place, return_inverse=True)
    total = np.bincount(inverse, weights=value, minlength=pairs.size)
    pairs, total = pairs[total != 0.0], total[total != 0.0]
    return monomials[pairs // width], pairs % width, total
