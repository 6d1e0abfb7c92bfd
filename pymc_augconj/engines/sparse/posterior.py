"""q(w) = N(μ, S) of weights with the prior N(0, I), by what the data add to its precision."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dtrsv

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.blas import diagonal_view, lower_column_norms, lower_transpose_product
from pymc_augconj.linalg.triangular_factor import TriangularFactor
from pymc_augconj.linalg.unlocked import cholesky_in_place

__all__ = ["SeparatePosterior", "WeightsPosterior"]

Array = NDArray[np.float64]


class WeightsPosterior:
    """The Gaussian with precision I + B and precision times mean b.

    Parameters
    ----------
    precision : ndarray, shape (D, D)
        B, symmetric; what a prior of the weights has none of.
    linear : ndarray, shape (D,)
        b.

    Attributes
    ----------
    mean : ndarray, shape (D,)

    Raises
    ------
    NotPositiveDefiniteError
        If I + B is not positive definite.
    """

    def __init__(self, precision: Array, linear: Array) -> None:
        self.precision, self.linear = precision, linear
        chol = np.array(precision, order="F")
        diagonal_view(chol)[...] += 1.0
        info = cholesky_in_place(chol)
        if info != 0 or not np.isfinite(np.diagonal(chol)).all():
            raise NotPositiveDefiniteError(
                "the precision of the weights has no Cholesky factor: negative site precisions "
                "outweigh the prior; damp the update that made them"
            )
        self._factor, self._chol = TriangularFactor(chol), chol
        self.mean = dtrsv(chol, dtrsv(chol, linear, lower=1), lower=1, trans=1)

    def __reduce__(self) -> tuple[Any, ...]:
        # The factor is computed again where it is needed, rather than sent there.
        return WeightsPosterior, (self.precision, self.linear)

    def prepare(self) -> None:
        """Invert the factor, so that several threads can share it."""
        _ = self._factor.inverse

    @classmethod
    def prior(cls, size: int) -> WeightsPosterior:
        """Return N(0, I)."""
        return cls(np.zeros((size, size), order="F"), np.zeros(size))

    def half(self, Phi: Array) -> Array:
        """Return chol(I + B)⁻¹ Φ, whose columns' squares are variances of φᵀw."""
        return self._factor.solve(Phi)

    def solve_half(self, half: Array, *, overwrite: bool = False) -> Array:
        """Return S Φ, given :meth:`half` of Φ; in its place where that may be overwritten."""
        return self._factor.solve_transposed(half, overwrite=overwrite)

    def scaled_norm(self, step: Array) -> float:
        """Return the length of a change of the mean, in standard deviations."""
        return float(np.linalg.norm(lower_transpose_product(self._chol, step)))

    @cached_property
    def log_det(self) -> float:
        """log|I + B|."""
        return 2.0 * float(np.log(np.diagonal(self._chol)).sum())

    @cached_property
    def divergence(self) -> float:
        """KL(q(w) ‖ N(0, I))."""
        trace = float(lower_column_norms(self._factor.inverse).sum())
        return 0.5 * (trace + float(self.mean @ self.mean) - self.mean.size + self.log_det)

    def towards(
        self, precision: Array, linear: Array, rate: float, scale: float = 1.0
    ) -> WeightsPosterior:
        """Return q with natural parameters moved to ``scale``·(B̂, b̂) by the fraction ``rate``."""
        moved = (1.0 - rate) * self.precision
        moved += (rate * scale) * precision
        return WeightsPosterior(moved, (1.0 - rate) * self.linear + (rate * scale) * linear)


class SeparatePosterior:
    """Π_c N(w_c; μ_c, S_c); natural parameters are flat, see :class:`.WeightsPosterior`."""

    def __init__(self, precision: Array, linear: Array, sizes: Sequence[int]) -> None:
        self.precision, self.linear, self.sizes = precision, linear, tuple(sizes)
        ends = np.cumsum([size**2 for size in sizes])
        matrices = np.split(precision, ends[:-1])
        self.parts = [
            # Symmetric, so that a row is a column.
            WeightsPosterior(matrix.reshape(size, size).T, own)
            for size, matrix, own in zip(sizes, matrices, self.split(linear), strict=True)
        ]
        self.mean = np.concatenate([part.mean for part in self.parts])

    def split(self, vector: Array) -> list[Array]:
        """Return the parts of a vector of all weights."""
        return np.split(vector, np.cumsum(self.sizes)[:-1])

    def prepare(self) -> None:
        """See :meth:`.WeightsPosterior.prepare`."""
        for part in self.parts:
            part.prepare()

    def scaled_norm(self, step: Array) -> float:
        """Return the length of a change of the mean, in standard deviations."""
        pairs = zip(self.parts, self.split(step), strict=True)
        return float(np.linalg.norm([part.scaled_norm(own) for part, own in pairs]))

    @cached_property
    def log_det(self) -> float:
        """Σ log|I + B_c|."""
        return sum(part.log_det for part in self.parts)

    @cached_property
    def divergence(self) -> float:
        """KL(q(w) ‖ N(0, I))."""
        return sum(part.divergence for part in self.parts)

    def towards(
        self, precision: Array, linear: Array, rate: float, scale: float = 1.0
    ) -> SeparatePosterior:
        """See :meth:`.WeightsPosterior.towards`."""
        moved = (1.0 - rate) * self.precision
        moved += (rate * scale) * precision
        return SeparatePosterior(
            moved, (1.0 - rate) * self.linear + (rate * scale) * linear, self.sizes
        )
