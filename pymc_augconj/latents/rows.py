"""Predictors that are equal for every value of the latents, and so can share a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap
from pymc_augconj.typing import Array, Index

__all__ = ["RowGroups"]


@dataclass(frozen=True)
class RowGroups:
    """Predictors that are equal for every value of the latents.

    Attributes
    ----------
    first : ndarray of int, shape (R,)
        One member of each group.
    inverse : ndarray of int, shape (n,), or None
        Group of each predictor; None where every predictor is its own group.
    coupling : Coupling
        Which predictors sites couple; each of these is its own group.
    """

    first: Index
    inverse: Index | None
    coupling: Coupling

    @classmethod
    def apart(cls, n_rows: int, coupling: Coupling | None = None) -> RowGroups:
        """Return groups of one predictor each."""
        return cls(np.arange(n_rows), None, coupling or Coupling(n_rows))

    @classmethod
    def find(cls, maps_at: Sequence[Sequence[LinearMap]], coupling: Coupling) -> RowGroups:
        """Group the rows that agree in every block and at every θ tried.

        Parameters
        ----------
        maps_at : sequence of sequence of LinearMap
            The blocks' maps at one or more values of θ.
        coupling : Coupling
        """
        n_rows = coupling.n_rows
        columns: list[NDArray[Any]] = []
        for maps in maps_at:
            for A in maps:
                if isinstance(A, DenseMap):
                    return cls.apart(n_rows, coupling)
                columns.append(A.index)
                if A.coef is not None:
                    columns.append(A.coef)
        if coupling.rows:
            alone = np.zeros(n_rows)
            for rows in coupling.rows:
                alone[rows] = 1 + rows
            columns.append(alone)
        keys = np.stack(columns, axis=1)
        _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        if first.size == n_rows:
            return cls.apart(n_rows, coupling)
        # In order of first appearance, so that f[idx] with a permutation-free idx is the identity.
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        return cls(first[order], rank[inverse.ravel()], coupling)

    @property
    def size(self) -> int:
        """R, the number of groups."""
        return self.first.size

    @cached_property
    def merged(self) -> Coupling:
        """The coupling of the groups."""
        return self.coupling.merged(self.inverse, self.size)

    def merge(self, h: Array, lam: Array, offset: Array) -> tuple[Array, Array, float]:
        """Return the merged sites of η − offset, and the constant that the shift leaves.

        Returns
        -------
        h : ndarray, shape (R,)
        lam : ndarray
            As :mod:`pymc_augconj.gaussian.sites` stacks it.
        constant : float
            Σ (h·offset − ½ offsetᵀΛ·offset).
        """
        weighted = self.coupling.product(lam, offset)
        constant = float(h @ offset - 0.5 * (weighted @ offset))
        h = h - weighted
        if self.inverse is not None:
            h = np.bincount(self.inverse, weights=h, minlength=self.size)
            n_rows = self.coupling.n_rows
            own = np.bincount(self.inverse, weights=lam[:n_rows], minlength=self.size)
            lam = np.concatenate([own, lam[n_rows:]])
        return h, lam, constant

    def expand(self, merged: Array) -> Array:
        """Return the entries of all predictors, and of their pairs, given those of the groups."""
        if self.inverse is None:
            return merged
        return np.concatenate([merged[: self.size][self.inverse], merged[self.size :]])
