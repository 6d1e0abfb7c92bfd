"""Predictors that are equal whatever the latents are, and so can share a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.linalg.linear_map import DenseMap, LinearMap

__all__ = ["RowGroups"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RowGroups:
    """Predictors that are equal for every value of the latents.

    Attributes
    ----------
    first : ndarray of int, shape (R,)
        One member of each group.
    inverse : ndarray of int, shape (N,), or None
        Group of each predictor; None where every predictor is its own group.
    """

    first: NDArray[np.intp]
    inverse: NDArray[np.intp] | None

    @classmethod
    def find(cls, maps_at: Sequence[Sequence[LinearMap]]) -> RowGroups:
        """Group the rows that agree in every block and at every θ tried.

        Parameters
        ----------
        maps_at : sequence of sequence of LinearMap
            The blocks' maps at one or more values of θ.
        """
        columns = []
        for maps in maps_at:
            for A in maps:
                if isinstance(A, DenseMap):
                    n_rows = A.matrix.shape[0]
                    return cls(np.arange(n_rows), None)
                columns.append(A.index)
                if A.coef is not None:
                    columns.append(A.coef)
        keys = np.stack(columns, axis=1)
        n_rows = keys.shape[0]
        _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        if first.size == n_rows:
            return cls(np.arange(n_rows), None)
        # In order of first appearance, so that f[idx] with a permutation-free idx is the identity.
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        return cls(first[order], rank[inverse.ravel()])

    @property
    def size(self) -> int:
        """R, the number of groups."""
        return self.first.size

    def merge(self, h: Array, lam: Array, offset: Array) -> tuple[Array, Array, float]:
        """Return the merged sites of η − offset, and the constant that the shift leaves.

        Returns
        -------
        h, lam : ndarray, shape (R,)
        constant : float
            Σ (h·offset − ½ λ·offset²).
        """
        weighted = lam * offset
        constant = float(h @ offset - 0.5 * (weighted @ offset))
        h = h - weighted
        if self.inverse is not None:
            h = np.bincount(self.inverse, weights=h, minlength=self.size)
            lam = np.bincount(self.inverse, weights=lam, minlength=self.size)
        return h, lam, constant
