"""Latents with a sparse precision Q, and the pivots of an elimination of it in some order.

Where Q = UᵀU is known by a triangular root, as Vecchia's approximation is, log|Q| is that of U's
diagonal, with all its digits and without a factorisation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.factors import Factor
from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.typing import Array

from .base import BlockPrior, PredictorGradient
from .precision import PrecisionPrior


class PivotPrior(PrecisionPrior):
    """Given by the entries of Q at ``block.entries`` and the precision of each value given some."""

    kind = "pivots"

    def __init__(self, block: LatentBlock, array: Array, jitter: float = 0.0) -> None:
        BlockPrior.__init__(self, block, array, jitter)
        self._read_pattern(block)
        n_entries = self.entries.shape[1]
        self.flat = block.flat_precision(array[:n_entries])
        self.pivots, self._log_peak = array[n_entries:], None
        if not (np.isfinite(array).all() and (self.pivots > 0.0).all()):
            raise NotPositiveDefiniteError(
                f"the prior precision of {block.name!r}: expected finite, positive precisions of "
                "each value given its neighbours; move coinciding inputs apart, or raise jitter"
            )

    def set_log_peak(self, log_peak: Callable[[], Array]) -> None:
        return

    @cached_property
    def factor(self) -> Factor:  # type: ignore[override]
        """L, where S is asked for."""
        name = f"the prior precision of {self.block.name!r}"
        return self.pattern.factorize(self.flat.copy(), name)

    @property
    def log_det_error(self) -> float:
        return float(np.finfo(float).eps) * self.pivots.size

    def log_det_scale(self) -> float:
        return -0.5 * float(np.log(self.pivots).sum())

    def log_det_slopes(self) -> Array:
        entries = np.zeros(self.array.size - self.pivots.size)
        return np.append(entries, 1.0 / self.pivots)

    def pull_cov(self, A: LinearMap, gradient: PredictorGradient) -> Array:
        return np.append(super().pull_cov(A, gradient), np.zeros(self.pivots.size))

    def pull_design(self, A: LinearMap, G: Array) -> Array:
        return np.append(super().pull_design(A, G), np.zeros(self.pivots.size))
