"""q(w) = N(μ, S) of weights with the prior N(0, I), by what the data add to its precision."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from scipy.linalg.blas import dtrsv

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.blas import diagonal_view, lower_column_norms, lower_transpose_product
from pymc_augconj.linalg.triangular_factor import TriangularFactor
from pymc_augconj.linalg.unlocked import cholesky_in_place
from pymc_augconj.typing import Array

__all__ = ["ComponentPosterior", "WeightsPosterior", "joined"]


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
        self.mean = joined([part.mean for part in self.parts])

    def __reduce__(self) -> tuple[Any, ...]:
        # The factors are computed again where they are needed, rather than sent there.
        return WeightsPosterior, (self.precision, self.linear, self.sizes)

    @classmethod
    def prior(cls, sizes: Sequence[int]) -> WeightsPosterior:
        """Return N(0, I)."""
        return cls(np.zeros(sum(size**2 for size in sizes)), np.zeros(sum(sizes)), sizes)

    def split(self, vector: Array) -> list[Array]:
        """Return the parts of a vector of all weights."""
        return [vector[own] for own in _slices(self.sizes)]

    def matrices(self, entries: Array) -> list[Array]:
        """Return the symmetric matrices of the components, Fortran-ordered."""
        squares = _slices(tuple(size**2 for size in self.sizes))
        pairs = zip(self.sizes, squares, strict=True)
        return [entries[own].reshape(size, size).T for size, own in pairs]

    def prepare(self) -> None:
        """Invert the factors, so that several threads can share them."""
        for part in self.parts:
            _ = part.factor.inverse

    @property
    def var(self) -> Array:
        """Variances of the weights."""
        return joined([lower_column_norms(part.factor.inverse) for part in self.parts])

    def scaled_norm(self, step: Array) -> float:
        """Return the length of a change of the mean, in standard deviations."""
        pairs = zip(self.parts, self.split(step), strict=True)
        scaled = [lower_transpose_product(part.factor.chol, own) for part, own in pairs]
        return float(np.linalg.norm(joined(scaled)))

    @cached_property
    def log_det(self) -> float:
        """log|I + B|."""
        return 2.0 * sum(float(np.log(np.diagonal(p.factor.chol)).sum()) for p in self.parts)

    @cached_property
    def divergence(self) -> float:
        """KL(q(w) ‖ N(0, I))."""
        mean = self.mean
        return 0.5 * (float(self.var.sum()) + float(mean @ mean) - mean.size + self.log_det)

    def towards(
        self, precision: Array, linear: Array, rate: float, scale: float = 1.0
    ) -> WeightsPosterior:
        """Return q with natural parameters moved to ``scale``·(B̂, b̂) by the fraction ``rate``."""
        moved = (1.0 - rate) * self.precision
        moved += (rate * scale) * precision
        linear = (1.0 - rate) * self.linear + (rate * scale) * linear
        return WeightsPosterior(moved, linear, self.sizes)


def joined(arrays: list[Array]) -> Array:
    """Return the arrays one after the other; a single one is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@lru_cache(maxsize=8)
def _slices(lengths: tuple[int, ...]) -> list[slice]:
    return [slice(*ends) for ends in pairwise(accumulate(lengths, initial=0))]
