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
from pymc_augconj.linalg.sparse import SymmetricPattern
from pymc_augconj.typing import Array

from .base import BlockPrior, PredictorGradient
from .precision import PrecisionPrior, pull_root


class PivotPrior(PrecisionPrior):
    """Given by the entries of Q at ``block.entries`` and the precision of each value given some."""

    kind = "pivots"

    def __init__(self, block: LatentBlock, array: Array, jitter: float = 0.0) -> None:
        BlockPrior.__init__(self, block, array, jitter)
        assert block.entries is not None
        self.entries, self._log_peak = block.entries, None
        self.pivots = array[self.entries.shape[1] :]
        if not (np.isfinite(array).all() and (self.pivots > 0.0).all()):
            raise NotPositiveDefiniteError(
                f"the prior precision of {block.name!r}: expected finite, positive precisions of "
                "each value given its neighbours; move coinciding inputs apart, or raise jitter"
            )

    def set_log_peak(self, log_peak: Callable[[], Array]) -> None:
        return

    @cached_property
    def pattern(self) -> SymmetricPattern:  # type: ignore[override]
        """The pattern of :attr:`factor`, which has more entries than that of :attr:`root`."""
        return self.block.sparsity

    @cached_property
    def flat(self) -> Array:  # type: ignore[override]
        """Q in the order of ``pattern``."""
        return self.block.flat_precision(self.array[: self.entries.shape[1]])

    @cached_property
    def factor(self) -> Factor:  # type: ignore[override]
        """A factor of Q with the places of all its entries, which moments ask for."""
        return self.pattern.factorize(self.flat.copy(), self._name)

    @property
    def _name(self) -> str:
        return f"the prior precision of {self.block.name!r}"

    @cached_property
    def root(self) -> Factor:
        """L with S = Pᵀ L⁻ᵀ P in the block's own order."""
        pattern = self.block.root_pattern
        return pattern.factorize(self.array[pattern.entry_at], self._name)

    def _through(self, apply: Callable[[Array], Array], x: Array) -> Array:
        return self.block.root_pattern.back(apply(self.block.root_pattern.forward(x)))

    def scale(self, v: Array) -> Array:
        return self._through(self.root.transpose_solve, v)

    def scale_transpose(self, x: Array) -> Array:
        return self._through(self.root.half_solve, x)

    def unscale(self, u: Array) -> Array:
        return self._through(self.root.transpose_product, u)

    def unscale_transpose(self, x: Array) -> Array:
        return self._through(self.root.product, x)

    def apply_cov(self, x: Array) -> Array:
        return self.scale(self.scale_transpose(x))

    @property
    def scale_error(self) -> float:
        return 0.5 * self.root.error

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
        pattern = self.block.root_pattern
        by_scale = pattern.forward(pattern.forward(self._pull_scale(A, G)).T).T
        by_precision = pull_root(self.root, by_scale)[tuple(pattern.place[self.entries])]
        return np.append(by_precision, np.zeros(self.pivots.size))
