"""Values of a process on a full grid, whose covariance is a Kronecker product.

K = K₁ ⊗ K₂ ⊗ …, one factor for each axis of the grid, the first axis varying slowest, and
S = L₁ ⊗ L₂ ⊗ … with the Cholesky factors of these. Products take O(n Σ nᵢ), and K is formed for
solvers that need it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from typing import Any

import numpy as np
from scipy.linalg.lapack import dtrtri

from pymc_augconj.block import LatentBlock
from pymc_augconj.linalg.dense import TriangularFactor, cholesky_with_jitter
from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.typing import Array

from .base import BlockPrior, PredictorGradient


def kronecker_product(factors: Sequence[Array], x: Array) -> Array:
    """Return (A₁ ⊗ A₂ ⊗ …) x, of each row of x where there are several."""
    found, after = x, x.shape[-1]
    before = x.size // max(after, 1)
    for A in factors:
        n = len(A)
        after //= n
        columns = found.reshape(before, n, after)
        found = A @ columns if after > 1 else columns[..., 0] @ A.T
        before *= n
    return found.reshape(x.shape)


class KroneckerPrior(BlockPrior):
    """Given by the entries of all Kᵢ, one matrix after another."""

    kind = "kronecker"

    def __init__(self, block: LatentBlock, array: Array, jitter: float = 0.0) -> None:
        super().__init__(block, array, jitter)
        ends = np.cumsum([n * n for n in block.grid])[:-1]
        parts = zip(block.grid, np.split(array, ends), strict=True)
        #: The Kᵢ.
        self.covs = [part.reshape(n, n) for n, part in parts]

    @cached_property
    def chols(self) -> list[Array]:
        """The Lᵢ."""
        name = f"a factor of the covariance of {self.block.name!r}"
        # PyMC computes f from the plain factors.
        return [cholesky_with_jitter(K, name=name, relative_jitters=(0.0,))[0] for K in self.covs]

    @cached_property
    def _inverses(self) -> list[Array]:
        return [dtrtri(L, lower=1)[0] for L in self.chols]

    def factorized(self) -> KroneckerPrior:
        assert self.chols  # raises where there are none
        return self

    @classmethod
    def matrix_order(cls, block: LatentBlock) -> int:
        return block.size

    def scale(self, v: Array) -> Array:
        return kronecker_product(self.chols, v)

    def scale_transpose(self, x: Array) -> Array:
        return kronecker_product([L.T for L in self.chols], x)

    def unscale(self, u: Array) -> Array:
        return kronecker_product(self._inverses, u)

    def unscale_transpose(self, x: Array) -> Array:
        return kronecker_product([inverse.T for inverse in self._inverses], x)

    def apply_cov(self, x: Array) -> Array:
        return kronecker_product(self.covs, x)

    def log_det_scale(self) -> float:
        logs = (float(np.log(np.diagonal(L)).sum()) / len(L) for L in self.chols)
        return self.block.size * sum(logs)

    def var(self) -> Array:
        return reduce(np.multiply.outer, [np.diagonal(K) for K in self.covs]).ravel()

    def _pull(self, G: Array, factors: Sequence[Array]) -> list[Array]:
        """Return the derivatives of ⟨G, A₁ ⊗ A₂ ⊗ …⟩ by each of the factors, G (size, size)."""
        n_axes, found = len(factors), []
        G = G.reshape(*self.block.grid, *self.block.grid)
        for i in range(n_axes):
            operands: list[Any] = [G, list(range(2 * n_axes))]
            for j, A in enumerate(factors):
                operands += [A, [j, n_axes + j]] if j != i else []
            found.append(np.einsum(*operands, [i, n_axes + i], optimize=True))
        return found

    def pull_cov(self, A: LinearMap, gradient: PredictorGradient) -> Array:
        found = self._pull(gradient.congruence(A), self.covs)
        return np.concatenate([G.ravel() for G in found])

    def pull_design(self, A: LinearMap, G: Array) -> Array:
        slopes = zip(self._pull(self._pull_scale(A, G), self.chols), self.chols, strict=True)
        weights = [TriangularFactor(L).pull(L.T @ slope) for slope, L in slopes]
        return np.concatenate([0.5 * (W + W.T).ravel() for W in weights])
