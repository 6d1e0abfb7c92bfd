"""The predictors of a :class:`.PrecisionPattern` at one θ."""

from __future__ import annotations

import numpy as np

from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.typing import Array

from .base import BlockPrior
from .joint import LatentPrior
from .precision import PrecisionPrior
from .precision_pattern import PrecisionPattern, Products

__all__ = ["PrecisionDesign"]


class PrecisionDesign:
    """Φ at one θ: coefficients of the blocks in B, and the matrix of the border."""

    def __init__(self, pattern: PrecisionPattern, prior: LatentPrior) -> None:
        self.pattern = pattern
        self.maps = {i: _in_coordinates(prior.maps[i], prior.blocks[i]) for i in pattern.within}
        n_rows = next(iter(self.maps.values())).index.size
        parts = [prior.blocks[i].whitened_design(prior.maps[i]) for i in pattern.outside]
        for i in pattern.intrinsic:
            A = self.maps[i]
            parts.append(A.apply(np.ones(A.size))[:, None])
        self.border = np.hstack([np.empty((n_rows, 0)), *parts])

    def products(self, which: Products, weights: Array) -> Array:
        """Return weighted products of entries of Φ in pairs of rows, one entry in each row."""
        coupling = self.pattern.coupling
        terms = which.taken(weights)
        for block, rows in ((which.first, coupling.first), (which.second, coupling.second)):
            coef = self.maps[block].coef
            if coef is not None:
                terms = terms * which.taken(coef[rows] if which.coupled else coef)
        return terms if which.twice is None else terms * which.twice

    def transpose_within(self, weights: Array) -> Array:
        """Return Φᵀw of the blocks in B, shape (count, n), for each row of w."""
        return self._in_order([A.transpose_rows(weights) for A in self.maps.values()])

    def transpose(self, w: Array) -> Array:
        """Return Φᵀw."""
        within = self._in_order([A.apply_transpose(w) for A in self.maps.values()])
        return np.concatenate([within, w @ self.border])

    def _in_order(self, parts: list[Array]) -> Array:
        pattern = self.pattern
        for k, i in enumerate(self.maps):
            if i in pattern.intrinsic:
                parts[k] = parts[k][..., pattern.columns(i) >= 0]
        return pattern.sparsity.forward(np.concatenate(parts, axis=-1))

    def apply(self, x: Array) -> Array:
        """Return Φ x."""
        total = self.border @ x[self.pattern.size :]
        for i, A in self.maps.items():
            total += A.apply(self.pattern.within_block(i, x))
        return total

    def apply_within(self, x: Array) -> Array:
        """Return the part of Φ x of the blocks in B, for each row of x."""
        parts = ((A, self.pattern.within_block(i, x)) for i, A in self.maps.items())
        return sum((A.apply_rows(part) for A, part in parts), np.zeros(()))


def _in_coordinates(A: LinearMap, block: BlockPrior) -> RowSelection:
    """Return the map from a block's coordinates: u of structured blocks, v of diagonal ones."""
    assert isinstance(A, RowSelection)
    if isinstance(block, PrecisionPrior):
        return A
    scale = block.diagonal_scale
    assert scale is not None  # see PrecisionPattern
    coef = scale[A.index]
    return RowSelection(A.index, coef if A.coef is None else coef * A.coef, A.size)
