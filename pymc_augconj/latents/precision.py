"""Latents with a banded or sparse precision matrix Q, given by its entries or its pivots.

With P Q Pᵀ = L Lᵀ in a suitable order, L banded or sparse, S = Pᵀ L⁻ᵀ P: the cost of products with
S and its inverse is the number of entries of L. K = Q⁻¹ is formed only for dense solvers. Values
and derivatives are by the entries of Q. Random walks also have the precisions τ₀ of their first
values: in the elimination from the last value on, the pivots are the precisions of the steps and
τ₀, which as a difference of entries of Q may have no digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.factors import Factor, factor_of_walks
from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.linalg.sparse import BandPattern, SymmetricPattern
from pymc_augconj.typing import Array

from .base import BlockPrior, PredictorGradient
from .dense import DensePrior

# From this estimated error of log|Q| on, the user's own formula is used if available.
_LEAST_ERROR = 1e-6


class PrecisionPrior(DensePrior):
    """Given by the entries of Q at ``block.entries`` and, for walks, τ₀."""

    kind = "precision"
    #: τ₀.
    firsts: Array = np.empty(0)
    _log_det: tuple[float, float] | None = None

    def __init__(
        self, block: LatentBlock, array: Array, jitter: float = 0.0,
        log_det: tuple[float, float] | None = None,
    ) -> None:  # fmt: skip
        """``log_det`` has log|Q| and its error where they are known: L is then made when needed."""
        BlockPrior.__init__(self, block, array, jitter)
        self._read_pattern(block)
        self._log_det = log_det
        n_entries = self.entries.shape[1]
        #: Q, flat.
        self.flat = block.flat_precision(array[:n_entries])
        self.firsts = array[n_entries:]
        if log_det is None:
            self.factor  # noqa: B018, which refuses what is not positive definite

    @cached_property
    def factor(self) -> Factor:
        """L."""
        if self.firsts.size:
            assert isinstance(self.pattern, BandPattern)  # of three diagonals
            return factor_of_walks(self.flat, self.firsts, self._name)
        return self.pattern.factorize(self.flat.copy(), self._name)

    @property
    def _name(self) -> str:
        return f"the prior precision of {self.block.name!r}"

    def _read_pattern(self, block: LatentBlock) -> None:
        assert block.entries is not None
        self.entries, self.pattern = block.entries, block.sparsity

    def factorized(self) -> PrecisionPrior:
        return self

    @cached_property
    def cov(self) -> Array:
        place = self.pattern.place
        return np.asfortranarray(self.factor.dense_inverse()[np.ix_(place, place)])

    @property
    def root(self) -> Factor:
        """L with S = Pᵀ L⁻ᵀ P in the order of :attr:`_order`."""
        return self.factor

    @property
    def _order(self) -> SymmetricPattern:
        return self.pattern

    def _through(self, apply: Callable[[Array], Array], x: Array) -> Array:
        return self._order.back(apply(self._order.forward(x)))

    def scale(self, v: Array) -> Array:
        return self._through(self.root.transpose_solve, v)

    def scale_transpose(self, x: Array) -> Array:
        return self._through(self.root.half_solve, x)

    def unscale(self, u: Array) -> Array:
        return self._through(self.root.transpose_product, u)

    def unscale_transpose(self, x: Array) -> Array:
        return self._through(self.root.product, x)

    @property
    def _is_uncertain(self) -> bool:
        return self._log_det is None and self.factor.error > _LEAST_ERROR

    @property
    def scale_error(self) -> float:
        return 0.5 * self.root.error

    @property
    def log_det_error(self) -> float:
        if self._log_det is not None:
            return self._log_det[1]
        return 0.0 if self._is_uncertain and self.log_peak is not None else self.scale_error

    @property
    def is_lazy(self) -> bool:  # type: ignore[override]
        return self._log_det is not None and not self.block.whitened

    def log_density_of(self, u: Array) -> float:
        if not self.is_lazy:
            return super().log_density_of(u)
        rows, cols = self.entries
        square = float(self.array @ (u[rows] * u[cols])) + u.size * float(np.log(2.0 * np.pi))
        return -0.5 * square - self.log_det_scale()

    def log_det_scale(self) -> float:
        # For an explosive autoregression log|Q| is well defined, but the entries of Q lose its
        # digits.
        if self._is_uncertain and self.log_peak is not None:
            return -float(self.log_peak()) - 0.5 * self.block.size * float(np.log(2.0 * np.pi))
        return -0.5 * (self.factor.log_det if self._log_det is None else self._log_det[0])

    def apply_cov(self, x: Array) -> Array:
        return self._through(self.root.solve, x)

    @cached_property
    def cov_within(self) -> Array:
        """Entries of K on the pattern of the factor, flat."""
        return self.factor.inverse()

    def var(self) -> Array:
        return self.pattern.back(self.cov_within[self.pattern.diagonal])

    def log_det_slopes(self) -> Array:
        """Return the derivative of log|Q| by :attr:`array`."""
        if self.firsts.size:
            # Σ (log τ₀ + (n − 1) log τ), τ the last entry of a walk.
            slopes = np.zeros(self.array.size)
            n_entries, n_walks = self.entries.shape[1], self.firsts.size
            slopes[n_entries:] = 1.0 / self.firsts
            last = np.arange(1, n_walks + 1) * (n_entries // n_walks) - 1
            slopes[last] = (self.block.size / n_walks - 1.0) / self.array[last]
            return slopes
        return self.cov_within[self.pattern.positions(*self.entries)]

    def pull_cov(self, A: LinearMap, gradient: PredictorGradient) -> Array:
        return self._by_entries(super().pull_cov(A, gradient))

    def pull_design(self, A: LinearMap, G: Array) -> Array:
        by_precision = pull_root(self.root, self._by_order(self._pull_scale(A, G)))
        return by_precision[tuple(self._order.place[self.entries])]

    def _by_order(self, matrix: Array) -> Array:
        return self._order.forward(self._order.forward(matrix).T).T

    def _by_entries(self, by_cov: Array) -> Array:
        """Return derivatives by the entries of Q, given derivatives by K: ∂K = −K ∂Q K."""
        rows, cols = self.entries
        return -(self.cov @ by_cov @ self.cov)[rows, cols]


def pull_root(factor: Factor, weights: Array) -> Array:
    """Return the derivative of ⟨W, L⁻ᵀ⟩ by L Lᵀ, a symmetric matrix.

    With X = L⁻¹ ∂Q L⁻ᵀ and Φ(X) its lower triangle with half its diagonal, ∂L = L Φ(X), so that
    ∂L⁻ᵀ = −L⁻ᵀ Φ(X)ᵀ.
    """
    lower = np.tril(factor.half_solve(weights.T))
    lower[np.diag_indices_from(lower)] *= 0.5
    half = factor.transpose_solve(0.5 * (lower + lower.T))
    return -factor.transpose_solve(half.T)


# Tolerance on the row sums of B, relative to its diagonal.
_ROUNDING = 1e-8


class IntrinsicPrior(PrecisionPrior):
    """Given by the entries of B at ``block.entries`` and, last, c²: Q = B + c² 1 1ᵀ with B 1 = 0.

    An intrinsic autoregression (ICAR) is a prior of differences between neighbours; c² 1 1ᵀ gives
    the sum the standard deviation 1/c (Besag & Kooperberg 1995, Biometrika 82). With the last value
    in the elimination order as the origin,

        u = x + t 1,        x_last = 0,        t = Σ u/n − Σ x/n,

    x has the sparse precision B without that row and column, B₁₁ = L Lᵀ, and Σ u ~ N(0, 1/c²) is
    independent of x. So no dense or nearly singular matrix is factorised:

        u = x − (Σ x/n) 1 + v_last/(n c) 1,        x = L⁻ᵀ v.
    """

    kind = "intrinsic"

    def __init__(self, block: LatentBlock, array: Array, jitter: float = 0.0) -> None:
        BlockPrior.__init__(self, block, array, jitter)
        self._read_pattern(block)
        self.common = float(array[-1])
        rows, cols = self.entries
        sums = np.bincount(rows, array[:-1], minlength=block.size)
        largest = float(np.abs(array[:-1]).max())
        name = self._name
        if not (np.abs(sums).max() <= _ROUNDING * largest and 0.0 < self.common < np.inf):
            raise NotPositiveDefiniteError(
                f"{name}: expected rows that sum to zero and a positive precision of the sum, "
                f"found sums up to {np.abs(sums).max():.3g} and a precision of {self.common:.3g}"
            )
        # Row and column of the origin become those of the identity.
        origin = self.pattern.order[-1]
        meets_origin = (rows == origin) | (cols == origin)
        others = np.where(meets_origin, np.where(rows == cols, 1.0, 0.0), array[:-1])
        self.factor = self.pattern.factorize(block.flat_precision(others), name)

    @cached_property
    def cov(self) -> Array:
        return np.asfortranarray(self.apply_cov(np.eye(self.block.size)))

    @property
    def _of_sum(self) -> float:
        return 1.0 / (self.block.size * np.sqrt(self.common))

    def scale(self, v: Array) -> Array:
        v = self.pattern.forward(v)
        x = _pinned(self.factor.transpose_solve(v))
        level = self._of_sum * v[..., -1:] - x.mean(axis=-1, keepdims=True)
        return self.pattern.back(x + level)

    def scale_transpose(self, x: Array) -> Array:
        x = self.pattern.forward(x)
        mean = x.mean(axis=-1, keepdims=True)
        found = self.factor.half_solve(x - mean)
        found[..., -1:] = self._of_sum * self.block.size * mean
        return self.pattern.back(found)

    def unscale(self, u: Array) -> Array:
        u = self.pattern.forward(u)
        found = self.factor.transpose_product(u - u[..., -1:])
        found[..., -1:] = np.sqrt(self.common) * u.sum(axis=-1, keepdims=True)
        return self.pattern.back(found)

    def unscale_transpose(self, x: Array) -> Array:
        x = self.pattern.forward(x)
        found = _pinned(self.factor.product(x))
        found[..., -1] = -found.sum(axis=-1)
        return self.pattern.back(found + np.sqrt(self.common) * x[..., -1:])

    def log_det_scale(self) -> float:
        return -0.5 * self.factor.log_det + float(np.log(self._of_sum))

    def apply_cov(self, x: Array) -> Array:
        return self.scale(self.scale_transpose(x))

    def var(self) -> Array:
        n = self.block.size
        own = self.cov_within[self.pattern.diagonal]
        means = _pinned(self.factor.solve(np.ones(n))) / n
        return self.pattern.back(own - 2.0 * means + means.mean() + self._of_sum**2)

    @cached_property
    def cov_within(self) -> Array:
        """Covariances of x on the pattern of the factor, flat."""
        cov = self.factor.inverse()
        # Covariances of the origin with others are zero, as entries of the factor are.
        origin = self.pattern.order[-1]
        cov[self.pattern.positions(origin, origin)] = 0.0
        return cov

    def log_det_slopes(self) -> Array:
        return np.append(super().log_det_slopes(), 1.0 / self.common)

    def pull_cov(self, A: LinearMap, gradient: PredictorGradient) -> Array:
        by_cov = DensePrior.pull_cov(self, A, gradient)
        by_common = self.cov.sum(axis=0) @ by_cov @ self.cov.sum(axis=0)
        return np.append(self._by_entries(by_cov), -by_common)

    def pull_design(self, A: LinearMap, G: Array) -> Array:
        by_scale = self._by_order(self._pull_scale(A, G))
        centred = by_scale - by_scale.mean(axis=0)
        centred[-1], centred[:, -1] = 0.0, 0.0
        by_precision = pull_root(self.factor, centred)
        by_precision[-1], by_precision[:, -1] = 0.0, 0.0
        by_entries = by_precision[tuple(self.pattern.place[self.entries])]
        by_common = -0.5 * self._of_sum / self.common * by_scale[:, -1].sum()
        return np.append(by_entries, by_common)


def _pinned(x: Array) -> Array:
    """Overwrite x with zero at the origin; return it."""
    x[..., -1] = 0.0
    return x


class PivotPrior(PrecisionPrior):
    """Given by the entries of Q at ``block.entries`` and the precision of each value given some.

    These pivots are squares of the diagonal of a root Q = UᵀU, as Vecchia's approximation has one:
    log|Q| follows with all its digits and without a factorisation.
    """

    kind = "pivots"

    def __init__(self, block: LatentBlock, array: Array, jitter: float = 0.0) -> None:
        BlockPrior.__init__(self, block, array, jitter)
        assert block.entries is not None
        self.entries = block.entries
        self.pivots = array[self.entries.shape[1] :]
        if not (np.isfinite(array).all() and (self.pivots > 0.0).all()):
            raise NotPositiveDefiniteError(
                f"the prior precision of {block.name!r}: expected finite, positive precisions of "
                "each value given its neighbours; move coinciding inputs apart, or raise jitter"
            )

    @cached_property
    def pattern(self) -> SymmetricPattern:  # type: ignore[override]
        """The pattern of :attr:`factor`, which has more entries than that of :attr:`root`."""
        return self.block.sparsity

    @cached_property
    def flat(self) -> Array:  # type: ignore[override]
        """Q in the order of ``pattern``."""
        return self.block.flat_precision(self.array[: self.entries.shape[1]])

    @cached_property
    def factor(self) -> Factor:
        """A factor of Q with the places of all its entries, which moments ask for."""
        return self.pattern.factorize(self.flat.copy(), self._name)

    @cached_property
    def root(self) -> Factor:
        pattern = self.block.root_pattern
        return pattern.factorize(self.array[pattern.entry_at], self._name)

    @property
    def _order(self) -> SymmetricPattern:
        return self.block.root_pattern

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
