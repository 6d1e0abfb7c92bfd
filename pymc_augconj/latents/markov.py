"""Values of a Markov process at inputs, in any order, each with a little noise of its own.

K is a sum of Matérn covariances of one input plus a multiple of the identity, and S its Cholesky
factor in the order of the inputs, applied in linear time by a :class:`.MarkovFactor`. Where the
inputs do not decrease, or do not increase, that is the order of the latents, and S is PyMC's
factor. Matrices are formed for solvers that need them alone.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.dense import TriangularFactor
from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.linalg.state_space import (
    MarkovFactor,
    MarkovInputs,
    product_with_cov,
    transitions_of,
)
from pymc_augconj.typing import Array

from .base import BlockPrior, PredictorGradient


class MarkovPrior(BlockPrior):
    """Given by the variance and the rate of each process, and the variance of the noise."""

    kind = "markov"

    def __init__(self, block: LatentBlock, array: Array, jitter: float = 0.0) -> None:
        super().__init__(block, array, jitter)
        assert block.inputs is not None
        self.inputs: MarkovInputs = block.inputs
        self._name = f"the covariance of {block.name!r}"
        if not (np.isfinite(array).all() and (array >= 0.0).all()):
            raise NotPositiveDefiniteError(
                f"{self._name}: expected finite variances and rates, not negative, found {array}"
            )

    @cached_property
    def transitions(self) -> tuple[Array, Array]:
        """See :func:`~pymc_augconj.linalg.state_space.transitions_of`."""
        return transitions_of(self.inputs, self.array)

    @cached_property
    def factor(self) -> MarkovFactor:
        """The factor of K; not needed where latents are integrated out."""
        return self.with_noise(None)

    def with_noise(self, extra: Array | None) -> MarkovFactor:
        """Return the factor of one output's K + diag(extra)."""
        return MarkovFactor(self.inputs, self.array, extra, self._name, self.transitions)

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
        return self.factor.product(v)

    def scale_transpose(self, x: Array) -> Array:
        return self.factor.transpose_product(x)

    def unscale(self, u: Array) -> Array:
        return self.factor.half_solve(u)

    def unscale_transpose(self, x: Array) -> Array:
        return self.factor.transpose_solve(x)

    def apply_cov(self, x: Array) -> Array:
        return product_with_cov(self.inputs, self.array, self.transitions[0], x)

    def log_det_scale(self) -> float:
        return self.block.copies * float(np.log(self.factor.roots).sum())

    def var(self) -> Array:
        return np.full(self.block.total_size, self.array[:-1:2].sum() + self.array[-1])

    @cached_property
    def _kernels(self) -> list[tuple[Array, Array]]:
        """Covariance of each process, and its derivative by the rate, shape (size, size)."""
        distance = np.abs(np.subtract.outer(self.inputs.x, self.inputs.x))
        found = []
        for order, variance, rate in zip(
            self.inputs.orders, self.array[:-1:2], self.array[1::2], strict=True
        ):
            s = rate * distance
            e = variance * np.exp(-s)
            value = (1.0, 1.0 + s, 1.0 + s + s**2 / 3.0)[order - 1]
            slope = (1.0, s, (s + s**2) / 3.0)[order - 1]
            found.append((value * e, -distance * slope * e))
        return found

    def _by_array(self, by_cov: Array) -> Array:
        """Return derivatives by :attr:`array`, given those by K of one output."""
        found = []
        for variance, (cov, by_rate) in zip(self.array[:-1:2], self._kernels, strict=True):
            of_variance = np.vdot(by_cov, cov) / variance if variance > 0.0 else 0.0
            found += [of_variance, np.vdot(by_cov, by_rate)]
        return np.array([*found, np.trace(by_cov)])

    def pull_cov(self, A: LinearMap, gradient: PredictorGradient) -> Array:
        return self._by_array(self._pull_output(A, gradient))

    def pull_design(self, A: LinearMap, G: Array) -> Array:
        ordered, back = self.inputs.ordered, self.inputs.back
        chol = np.asfortranarray(ordered(ordered(self.scale(np.eye(self.block.size))).T))
        by_chol = ordered(ordered(self._pull_scale(A, G)).T).T
        weights = TriangularFactor(chol).pull(chol.T @ by_chol)
        return self._by_array(back(back(0.5 * (weights + weights.T)).T))
