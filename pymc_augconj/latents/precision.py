"""Latents whose prior is known by its precision matrix Q, handled by K = Q⁻¹.

Conditioning is dense, as for any covariance; what a block is given by, and what derivatives are
taken by, are the entries of Q.
"""

from __future__ import annotations

from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.linalg.precision import covariance_of_precision
from pymc_augconj.model import LatentBlock
from pymc_augconj.typing import Array

from .base import BlockPrior, PredictorGradient
from .dense import DensePrior

__all__ = ["PrecisionPrior"]


class PrecisionPrior(DensePrior):
    """Given by the entries of Q at ``block.entries``."""

    kind = "precision"

    def __init__(self, block: LatentBlock, array: Array, jitter: float = 0.0) -> None:
        BlockPrior.__init__(self, block, array, jitter)
        assert block.entries is not None
        rows, cols = block.entries
        name = f"the prior precision of {block.name!r}"
        self.cov, self._chol = covariance_of_precision(block.size, rows, cols, array, name=name)

    def factorized(self) -> PrecisionPrior:
        return self

    def pull_cov(self, A: LinearMap, gradient: PredictorGradient) -> Array:
        return self._by_entries(super().pull_cov(A, gradient))

    def pull_design(self, A: LinearMap, G: Array) -> Array:
        return self._by_entries(super().pull_design(A, G))

    def _by_entries(self, by_cov: Array) -> Array:
        """Return derivatives by the entries of Q, given those by K: ∂K = −K ∂Q K."""
        assert self.block.entries is not None
        rows, cols = self.block.entries
        return -(self.cov @ by_cov @ self.cov)[rows, cols]
