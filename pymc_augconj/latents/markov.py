"""Values of a Markov process at inputs, in any order, each with a little noise of its own.

K is a sum of Matérn covariances of one input, perhaps times cosines, periodic kernels and functions
of the input on both sides, plus a multiple of the identity, and S its Cholesky
factor in the order of the inputs, applied in linear time by a :class:`.MarkovFactor`. Where the
inputs do not decrease, or do not increase, that is the order of the latents, and S is PyMC's
factor. Matrices are formed for solvers that need them alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.dense import TriangularFactor
from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.linalg.state_space import (
    MarkovFactor,
    MarkovInputs,
    Motion,
    product_with_cov,
    transitions_of,
)
from pymc_augconj.typing import Array

from .base import STENCIL, BlockPrior, PredictorGradient

# Relative step of the derivative by variances and rates.
_STEP = 2e-3


class MarkovPrior(BlockPrior):
    """Given by the array of a :class:`.MarkovFactor`."""

    kind = "markov"

    def __init__(self, block: LatentBlock, array: Array, jitter: float = 0.0) -> None:
        super().__init__(block, array, jitter)
        assert block.inputs is not None
        self.inputs: MarkovInputs = block.inputs
        self._scaled: tuple[Array, Array] | None = None
        self._name = f"the covariance of {block.name!r}"
        if not (np.isfinite(array).all() and (array >= 0.0).all()):
            raise NotPositiveDefiniteError(
                f"{self._name}: expected finite variances and rates, not negative, found {array}"
            )

    @cached_property
    def motion(self) -> Motion:
        """See :func:`~pymc_augconj.linalg.state_space.transitions_of`."""
        return transitions_of(self.inputs, self.array)

    @cached_property
    def factor(self) -> MarkovFactor:
        """The factor of K; not needed where latents are integrated out."""
        return self.with_noise(None)

    def with_noise(self, extra: Array | None, x: Array | None = None) -> MarkovFactor:
        """Return the factor of one output's K + diag(extra), and its products with rows x."""
        return MarkovFactor(self.inputs, self.array, extra, self._name, self.motion, x)

    def factorized(self) -> MarkovPrior:
        assert self.factor is not None  # raises where there is none
        return self

    @classmethod
    def matrix_order(cls, block: LatentBlock) -> int:
        return block.size

    @property
    def scale_error(self) -> float:
        return 0.5 * self.factor.error

    def scale(self, v: Array) -> Array:
        if v.ndim > 1:
            return self.factor.product(v)
        # A step asks for the same values several times.
        if self._scaled is None or not np.array_equal(v, self._scaled[0]):
            self._scaled = v.copy(), self.factor.product(v)
        return self._scaled[1].copy()

    def scale_transpose(self, x: Array) -> Array:
        return self.factor.transpose_product(x)

    def unscale(self, u: Array) -> Array:
        return self.factor.half_solve(u)

    def unscale_transpose(self, x: Array) -> Array:
        return self.factor.transpose_solve(x)

    def apply_cov(self, x: Array) -> Array:
        return product_with_cov(self.inputs, self.array, self.motion, x)

    def log_det_scale(self) -> float:
        return self.block.copies * float(np.log(self.factor.roots).sum())

    def var(self) -> Array:
        variance = np.broadcast_to(self.motion.variance, self.block.size) + self.array[-1]
        return np.tile(self.inputs.back(variance), self.block.copies)

    def moved(self) -> Iterator[tuple[int, float, Array]]:
        """Yield the terms of central differences by :attr:`array`: entry, weight, and array."""
        scale = np.ones(self.array.size)
        # Frequencies move all phases.
        reach = self.inputs.parameters(self.array)[2:3].ravel() * np.ptp(self.inputs.x)
        scale[2 * self.inputs.orders.size : -1 : 2] += reach
        for k, value in enumerate(self.array):
            for steps, weight in STENCIL if value > 0.0 else ():
                array, step = self.array.copy(), _STEP / scale[k]
                array[k] *= 1.0 + steps * step
                yield k, weight / (step * value), array

    def _by_array(self, by_cov: Array) -> Array:
        """Return derivatives by :attr:`array`, given those by K of one output."""
        found, each = np.zeros(self.array.size), np.eye(self.inputs.size)
        for k, weight, array in self.moved():
            motion = transitions_of(self.inputs, array)
            K = product_with_cov(self.inputs, array, motion, each)
            found[k] += weight * np.vdot(by_cov, K)
        return found

    def pull_cov(self, A: LinearMap, gradient: PredictorGradient) -> Array:
        return self._by_array(self._pull_output(A, gradient))

    def pull_design(self, A: LinearMap, G: Array) -> Array:
        ordered, back = self.inputs.ordered, self.inputs.back
        chol = np.asfortranarray(ordered(ordered(self.scale(np.eye(self.block.size))).T))
        by_chol = ordered(ordered(self._pull_scale(A, G)).T).T
        weights = TriangularFactor(chol).pull(chol.T @ by_chol)
        return self._by_array(back(back(0.5 * (weights + weights.T)).T))
