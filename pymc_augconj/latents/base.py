"""The contract of the prior of a block of latents, whatever the structure of its covariance.

A block has the innovation u ~ N(0, K(θ)), K = S Sᵀ, and the whitened latents v ~ N(0, I), u = S v.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Protocol, Self

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap
from pymc_augconj.typing import Array

#: Steps and weights of the central difference of fourth order.
STENCIL = ((-2.0, 1.0 / 12.0), (-1.0, -2.0 / 3.0), (1.0, 2.0 / 3.0), (2.0, -1.0 / 12.0))


class PredictorGradient(Protocol):
    """G = ∂ log Z/∂C = ½ (α αᵀ − R), C the covariance of the merged predictors, shape (R, R)."""

    def congruence(self, A: LinearMap) -> Array:
        """Return Aᵀ G A."""

    def congruence_diagonal(self, A: LinearMap) -> Array:
        """Return the diagonal of Aᵀ G A."""


class BlockPrior(ABC):
    """One block at one θ; each kind is a subclass, listed in :mod:`.joint`.

    Vectors of latents are flat, (total_size,); some methods take several as the rows of an array.
    Methods that are not abstract are overridden where structure saves work. ``array`` is the value
    of ``block.scale``, with ``jitter`` added to the diagonal of the user's K.
    """

    #: Value of :attr:`.LatentBlock.kind`.
    kind: ClassVar[str]
    #: Whether S takes a factorisation that has not been made, as log|S| is known without it.
    is_lazy = False
    #: The user's formula of the log density at the mean, for when S has no digits of it.
    log_peak: Callable[[], Array] | None = None

    def __init__(self, block: LatentBlock, array: Array, jitter: float = 0.0) -> None:
        self.block, self.array, self.jitter = block, array, jitter

    @classmethod
    @abstractmethod
    def matrix_order(cls, block: LatentBlock) -> int:
        """Return the order of the largest factorised matrix; 0 if none."""

    def factorized(self) -> Self:
        """Return this block factorised, with the jitter that its covariance needs.

        Raises NotPositiveDefiniteError if K has no factor.
        """
        return self

    @property
    def scale_error(self) -> float:
        """Estimated relative rounding error of S, if given by its inverse."""
        return 0.0

    @property
    def log_det_error(self) -> float:
        """Estimated rounding error of :meth:`log_det_scale`, if S is given by its inverse."""
        return 0.0

    @property
    def diagonal_scale(self) -> Array | None:
        """Diagonal of S if S is diagonal, else None."""
        return None

    # -- u = S v ----------------------------------------------------------------------------------

    @abstractmethod
    def scale(self, v: Array) -> Array:
        """Return S v; of each row of v where there are several."""

    @abstractmethod
    def scale_transpose(self, x: Array) -> Array:
        """Return Sᵀ x; of each row of x where there are several."""

    @abstractmethod
    def unscale(self, u: Array) -> Array:
        """Return v = S⁻¹ u."""

    @abstractmethod
    def unscale_transpose(self, x: Array) -> Array:
        """Return S⁻ᵀ x of each row of x."""

    @abstractmethod
    def log_det_scale(self) -> float:
        """Return log|S|."""

    def log_density(self, v: Array) -> float:
        """Return the log density of the value, or of v of a whitened block, at the whitened v."""
        log_scale = 0.0 if self.block.whitened else self.log_det_scale()
        return -0.5 * float(v @ v) - 0.5 * v.size * np.log(2.0 * np.pi) - log_scale

    def log_density_of(self, u: Array) -> float:
        """Return the log density at u, where that is the value."""
        return self.log_density(self.unscale(u))

    # -- covariances ------------------------------------------------------------------------------

    @abstractmethod
    def var(self) -> Array:
        """Return the variances of u."""

    def apply_cov(self, x: Array) -> Array:
        """Return K x; of each row of x where there are several."""
        return self.scale(self.scale_transpose(x))

    def whitened_design(self, A: LinearMap) -> Array:
        """Return A S, shape (R, total_size)."""
        return self.scale_transpose(A.dense())

    def predictor_cov(self, A: LinearMap) -> Array:
        """Return A K Aᵀ, shape (R, R)."""
        half = self.whitened_design(A)
        return half @ half.T

    def cross_cov(self, A: LinearMap) -> Array:
        """Return K Aᵀ, shape (total_size, R)."""
        return self.apply_cov(A.dense()).T

    # -- derivatives by the value of ``block.scale`` ----------------------------------------------

    def _parts(self, A: LinearMap) -> list[DenseMap]:
        """Return the columns of A of each output."""
        return [DenseMap(part) for part in np.split(A.dense(), self.block.copies, axis=1)]

    def _pull_output(self, A: LinearMap, gradient: PredictorGradient) -> Array:
        """Return the derivative of ⟨G, A K Aᵀ⟩ by K of one output."""
        if self.block.copies == 1:
            return gradient.congruence(A)
        return sum((gradient.congruence(part) for part in self._parts(A)), np.zeros(()))

    def _pull_scale(self, A: LinearMap, G: Array) -> Array:
        """Return the derivative of ⟨G, (A S)ᵀ⟩ by S of one output."""
        by_copy = zip(self._parts(A), np.split(G, self.block.copies), strict=True)
        return sum((part.matrix.T @ g.T for part, g in by_copy), np.zeros(()))

    @abstractmethod
    def pull_cov(self, A: LinearMap, gradient: PredictorGradient) -> Array:
        """Return the derivative of ⟨G, A K Aᵀ⟩ by :attr:`array`, of its shape."""

    @abstractmethod
    def pull_design(self, A: LinearMap, G: Array) -> Array:
        """Return the derivative of ⟨G, (A S)ᵀ⟩ by :attr:`array`; G is (total_size, R)."""
