"""Latents whose precision has a sum-to-zero constraint: Q = B + c² 1 1ᵀ with B 1 = 0.

An intrinsic autoregression (ICAR) knows of differences between neighbours alone; c² 1 1ᵀ says that
the sum has the standard deviation 1/c. With the last value in the order of the band as the origin,

    u = x + t 1,        x_last = 0,        t = Σ u/n − Σ x/n,

x has the banded precision B without that row and column, B₁₁ = L Lᵀ, and Σ u ~ N(0, 1/c²) is
independent of it. So no matrix that is dense or nearly singular is factorised:

    u = x − (Σ x/n) 1 + v_last/(n c) 1,        x = L⁻ᵀ v.

References
----------
Besag & Kooperberg (1995), On conditional and intrinsic autoregressions. Biometrika 82.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.model import LatentBlock
from pymc_augconj.typing import Array

from .base import BlockPrior, PredictorGradient
from .dense import DensePrior
from .precision import PrecisionPrior, pull_root

__all__ = ["IntrinsicPrior"]

# Of the sums of B's rows, relative to its diagonal.
_ROUNDING = 1e-8


class IntrinsicPrior(PrecisionPrior):
    """Given by the entries of B at ``block.entries`` and, last, c²."""

    kind = "intrinsic"

    def __init__(self, block: LatentBlock, array: Array, jitter: float = 0.0) -> None:
        BlockPrior.__init__(self, block, array, jitter)
        self.pattern, self.common = block.band, float(array[-1])
        assert block.entries is not None
        rows = block.entries[0]
        sums = np.bincount(rows, array[:-1], minlength=block.size)
        largest = float(np.abs(array[:-1]).max())
        name = f"the prior precision of {block.name!r}"
        if not (np.abs(sums).max() <= _ROUNDING * largest and 0.0 < self.common < np.inf):
            raise NotPositiveDefiniteError(
                f"{name}: expected rows that sum to zero and a positive precision of the sum, "
                f"found sums up to {np.abs(sums).max():.3g} and a precision of {self.common:.3g}"
            )
        flat = block.flat_precision(array[:-1])
        self.factor = self.pattern.factorize(flat[: -self.pattern.width - 1], name)

    @cached_property
    def cov(self) -> Array:
        """K."""
        return np.asfortranarray(self.apply_cov(np.eye(self.block.size)))

    @property
    def _of_sum(self) -> float:
        """1/(n c)."""
        return 1.0 / (self.block.size * np.sqrt(self.common))

    def scale(self, v: Array) -> Array:
        v = self.pattern.forward(v)
        x = _padded(self.factor.transpose_solve(v[..., :-1]))
        level = self._of_sum * v[..., -1:] - x.mean(axis=-1, keepdims=True)
        return self.pattern.back(x + level)

    def scale_transpose(self, x: Array) -> Array:
        x = self.pattern.forward(x)
        mean = x.mean(axis=-1, keepdims=True)
        first = self.factor.half_solve((x - mean)[..., :-1])
        last = self._of_sum * self.block.size * mean
        return self.pattern.back(np.concatenate([first, last], axis=-1))

    def unscale(self, u: Array) -> Array:
        u = self.pattern.forward(u)
        first = self.factor.transpose_product(u[..., :-1] - u[..., -1:])
        last = np.sqrt(self.common) * u.sum(axis=-1, keepdims=True)
        return self.pattern.back(np.concatenate([first, last], axis=-1))

    def unscale_transpose(self, x: Array) -> Array:
        x = self.pattern.forward(x)
        first = self.factor.product(x[..., :-1])
        back = np.concatenate([first, -first.sum(axis=-1, keepdims=True)], axis=-1)
        return self.pattern.back(back + np.sqrt(self.common) * x[..., -1:])

    def log_det_scale(self) -> float:
        return -0.5 * self.factor.log_det + float(np.log(self._of_sum))

    def apply_cov(self, x: Array) -> Array:
        return self.scale(self.scale_transpose(x))

    def var(self) -> Array:
        n, diagonals = self.block.size, self.pattern.width + 1
        own = np.append(self.factor.inverse()[::diagonals], 0.0)
        means = np.append(self.factor.solve(np.ones(n - 1)), 0.0) / n
        return self.pattern.back(own - 2.0 * means + means.mean() + self._of_sum**2)

    @cached_property
    def cov_within_band(self) -> Array:
        """The covariances of x within the band, flat."""
        return np.append(self.factor.inverse(), np.zeros(self.pattern.width + 1))

    def log_det_slopes(self) -> Array:
        return np.append(super().log_det_slopes(), 1.0 / self.common)

    def pull_cov(self, A: LinearMap, gradient: PredictorGradient) -> Array:
        by_cov = DensePrior.pull_cov(self, A, gradient)
        by_common = self.cov.sum(axis=0) @ by_cov @ self.cov.sum(axis=0)
        return np.append(self._by_entries(by_cov), -by_common)

    def pull_design(self, A: LinearMap, G: Array) -> Array:
        assert self.block.entries is not None
        by_scale = self._by_band(self._pull_scale(A, G))
        centred = by_scale - by_scale.mean(axis=0)
        by_precision = np.zeros_like(by_scale)
        by_precision[:-1, :-1] = pull_root(self.factor, centred[:-1, :-1])
        place = self.pattern.place
        by_entries = by_precision[np.ix_(place, place)][tuple(self.block.entries)]
        by_common = -0.5 * self._of_sum / self.common * by_scale[:, -1].sum()
        return np.append(by_entries, by_common)


def _padded(x: Array) -> Array:
    return np.concatenate([x, np.zeros((*x.shape[:-1], 1))], axis=-1)
