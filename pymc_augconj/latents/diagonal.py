"""Independent latents: K = diag(std²), S = diag(std); or K = S = I, where only the design has θ."""

from __future__ import annotations

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.typing import Array

from .base import BlockPrior, PredictorGradient

#: Standard deviation of a flat coefficient. Scaling rows and columns does not change the rounding
#: errors of a Cholesky factorisation, so any number will do whose square outweighs the precision
#: that data add by more than 1e16; a power of two keeps u = S v exact.
FLAT_STD = 2.0**100


class DiagonalPrior(BlockPrior):
    """Given by its standard deviations, shape (total_size,)."""

    kind = "diagonal"

    def __init__(self, block: LatentBlock, array: Array, jitter: float = 0.0) -> None:
        self.std = np.array(array, dtype=float)
        if not (self.std >= 0.0).all():
            raise NotPositiveDefiniteError(
                f"the standard deviations of {block.name!r} must not be negative or NaN, "
                f"found {self.std[~(self.std >= 0.0)][0]}"
            )
        super().__init__(block, self.std, jitter)

    @classmethod
    def matrix_order(cls, block: LatentBlock) -> int:
        return 0

    @property
    def diagonal_scale(self) -> Array:
        return self.std

    def scale(self, v: Array) -> Array:
        return self.std * v

    def scale_transpose(self, x: Array) -> Array:
        return self.std * x

    def unscale(self, u: Array) -> Array:
        # A latent without variance is its mean for every v.
        return np.divide(u, self.std, out=np.zeros_like(u), where=self.std > 0.0)

    def unscale_transpose(self, x: Array) -> Array:
        return self.unscale(x)

    def log_det_scale(self) -> float:
        return float(np.log(self.std).sum())

    def log_density(self, v: Array) -> float:
        if not self.block.is_flat:
            return super().log_density(v)
        transform = self.block.transform
        return 0.0 if transform is None else transform.log_jacobian(self.scale(v))

    def var(self) -> Array:
        return self.std**2

    def apply_cov(self, x: Array) -> Array:
        return self.std**2 * x

    def predictor_cov(self, A: LinearMap) -> Array:
        if not isinstance(A, RowSelection):
            return super().predictor_cov(A)
        same = np.equal.outer(A.index, A.index)
        values = self.std[A.index] if A.coef is None else self.std[A.index] * A.coef
        return np.where(same, np.multiply.outer(values, values), 0.0)

    def pull_cov(self, A: LinearMap, gradient: PredictorGradient) -> Array:
        return 2.0 * self.std * gradient.congruence_diagonal(A)

    def pull_design(self, A: LinearMap, G: Array) -> Array:
        return np.einsum("ji,ij->j", G, A.dense())


class StandardPrior(DiagonalPrior):
    """Standard normal latents; the whitened design is the design itself, without a copy."""

    kind = "standard"

    def whitened_design(self, A: LinearMap) -> Array:
        return A.dense()
