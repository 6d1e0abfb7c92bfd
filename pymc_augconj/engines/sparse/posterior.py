"""q(w) = N(μ, S) of weights with the prior N(0, I), by what the data add to its precision."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg.blas import dtrsv

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.blas import diagonal_view, lower_column_norms, lower_transpose_product
from pymc_augconj.linalg.triangular_factor import TriangularFactor
from pymc_augconj.linalg.unlocked import cholesky_in_place
from pymc_augconj.typing import Array

__all__ = ["ComponentPosterior", "WeightsPosterior"]


class ComponentPosterior:
    """The Gaussian with precision I + B and precision times mean b.

    Parameters
    ----------
    precision : ndarray, shape (D, D)
        B, symmetric: precision added by the data; zero under the prior.
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
        self.factor = TriangularFactor(chol)
        self.mean = dtrsv(chol, dtrsv(chol, linear, lower=1), lower=1, trans=1)

    def half(self, Phi: Array) -> Array:
        """Return chol(I + B)⁻¹ Φ, whose columns' squares are variances of φᵀw."""
        return self.factor.solve(Phi)

    def solve_half(self, half: Array, *, overwrite: bool = False) -> Array:
        """Return S Φ, given :meth:`half` of Φ. May overwrite ``half``."""
        return self.factor.solve_transposed(half, overwrite=overwrite)

    def scaled_norm(self, step: Array) -> float:
        """Return the length of a change of the mean, in standard deviations."""
        return float(np.linalg.norm(lower_transpose_product(self.factor.chol, step)))

    @cached_property
    def log_det(self) -> float:
        """log|I + B|."""
        return 2.0 * float(np.log(np.diagonal(self.factor.chol)).sum())

    @cached_property
    def divergence(self) -> float:
        """KL(q(w) ‖ N(0, I))."""
        trace = float(lower_column_norms(self.factor.inverse).sum())
        return 0.5 * (trace + float(self.mean @ self.mean) - self.mean.size + self.log_det)


class WeightsPosterior:
    """Π_c N(w_c; μ_c, S_c) over components, whose natural parameters are flat vectors.

    Parameters
    ----------
    precision : ndarray
        The entries of every B_c of :class:`ComponentPosterior`, one matrix after the other.
    linear : ndarray
        The b_c.
    sizes : sequence of int
        Number of weights of each component.
    """

    def __init__(self, precision: Array, linear: Array, sizes: Sequence[int]) -> None:
        self.precision, self.linear, self.sizes = precision, linear, tuple(sizes)
        pairs = zip(self.matrices(precision), self.split(linear), strict=True)
        self.parts = [ComponentPosterior(*pair) for pair in pairs]
        self.mean = np.concatenate([part.mean for part in self.parts])

    def __reduce__(self) -> tuple[Any, ...]:
        # The factors are computed again where they are needed, rather than sent there.
        return WeightsPosterior, (self.precision, self.linear, self.sizes)

    @classmethod
    def prior(cls, sizes: Sequence[int]) -> WeightsPosterior:
        """Return N(0, I)."""
        return cls(np.zeros(sum(size**2 for size in sizes)), np.zeros(sum(sizes)), sizes)

    def split(self, vector: Array) -> list[Array]:
        """Return the parts of a vector of all weights."""
        return np.split(vector, np.cumsum(self.sizes)[:-1])

    def matrices(self, entries: Array) -> list[Array]:
        """Return the symmetric matrices of the components, Fortran-ordered."""
        parts = np.split(entries, np.cumsum(np.square(self.sizes))[:-1])
        return [own.reshape(size, size).T for own, size in zip(parts, self.sizes, strict=True)]

    def prepare(self) -> None:
        """Invert the factors, so that several threads can share them."""
        for part in self.parts:
            _ = part.factor.inverse

    @property
    def var(self) -> Array:
        """Variances of the weights."""
        return np.concatenate([lower_column_norms(part.factor.inverse) for part in self.parts])

    def scaled_norm(self, step: Array) -> float:
        """Return the length of a change of the mean, in standard deviations."""
        pairs = zip(self.parts, self.split(step), strict=True)
        return float(np.linalg.norm([part.scaled_norm(own) for part, own in pairs]))

    @property
    def log_det(self) -> float:
        """Σ log|I + B_c|."""
        return sum(part.log_det for part in self.parts)

    @property
    def divergence(self) -> float:
        """KL(q(w) ‖ N(0, I))."""
        return sum(part.divergence for part in self.parts)

    def towards(
        self, precision: Array, linear: Array, rate: float, scale: float = 1.0
    ) -> WeightsPosterior:
        """Return q with natural parameters moved to ``scale``·(B̂, b̂) by the fraction ``rate``."""
        moved = (1.0 - rate) * self.precision
        moved += (rate * scale) * precision
        linear = (1.0 - rate) * self.linear + (rate * scale) * linear
        return WeightsPosterior(moved, linear, self.sizes)
