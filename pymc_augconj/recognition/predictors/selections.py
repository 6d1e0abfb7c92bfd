"""Maps A whose rows have a single entry, found by a few products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pymc_augconj.linalg.linear_map import RowSelection
from pymc_augconj.point import Point

from .products import Product

__all__ = ["Selection", "find_selection", "random_vector"]


@dataclass(frozen=True)
class Selection:
    """The entry that each row of A selects, and its coefficient at every point examined."""

    index: np.ndarray
    coefs: list[np.ndarray]

    @property
    def is_one_multiple(self) -> bool:
        """Whether all rows have one coefficient, not zero, at every point."""
        return all(c.size and c[0] != 0.0 and np.all(c == c[0]) for c in self.coefs)

    def map(self, size: int) -> RowSelection:
        """Return it with the coefficients of the first point."""
        coef = self.coefs[0]
        return RowSelection(self.index, None if np.all(coef == 1.0) else coef, size)


def find_selection(product: Product, points: Sequence[Point]) -> Selection | None:
    """Return the single entries of A's rows, or None if a row has more than one."""
    points = points if product.names else points[:1]
    ramp = np.arange(1.0, product.size + 1.0)
    coefs: list[np.ndarray] = []
    index, known = np.empty(0, dtype=np.intp), np.empty(0, dtype=bool)
    for point in points:
        coef = product.once(point, np.ones(product.size))
        if not np.isfinite(coef).all():
            return None
        nonzero = coef != 0.0
        picked = np.divide(product.once(point, ramp), coef, out=np.ones_like(coef), where=nonzero)
        found = np.clip(np.rint(picked), 1, product.size).astype(np.intp) - 1
        if not coefs:
            index, known = found, nonzero
        else:
            # A coefficient that is zero at one point (β = 0) does not show the entry.
            if np.any(known & nonzero & (index != found)):
                return None
            index = np.where(known, index, found)
            known = known | nonzero
        coefs.append(coef)
    weights = random_vector(product.size)
    for columns in _subsets(product.size):
        vector = np.where(columns, weights, 0.0)
        for point, coef in zip(points, coefs, strict=True):
            # Zeros add up to exactly zero; a second entry has a term that is not zero.
            others = product.once(point, vector)[~(columns[index] & (coef != 0.0))]
            if np.any(others != 0.0):
                return None
    return Selection(index, coefs)


def _subsets(size: int) -> Iterator[np.ndarray]:
    """Yield masks such that of any two columns each is in one of them without the other.

    The digits of a column's number, and those of the number of zeros among them (Berger's code):
    about log₂ size of them.
    """
    columns = np.arange(size)
    n_digits = max(size - 1, 0).bit_length()
    zeros = np.full(size, n_digits)
    for digit in range(n_digits):
        mask = (columns >> digit) & 1 == 1
        zeros -= mask
        yield mask
    for digit in range(n_digits.bit_length()):
        yield (zeros >> digit) & 1 == 1


def random_vector(size: int) -> np.ndarray:
    """Return numbers between one and two."""
    # A fixed stream: recognition of one model gives one result.
    return np.random.default_rng(20_261_121).uniform(1.0, 2.0, size)
