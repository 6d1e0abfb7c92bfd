"""Predictors through inducing points: Gaussian processes as M weights each, and what is left.

A process f at inputs X is written through its values u at M inducing inputs Z, u = L w with
L = chol(K(Z, Z) + jitter·I) and w ~ N(0, I). Every other latent block is whitened too, so that all
weights together are w ~ N(0, I_D), and a predictor is

    ηᵢ = offsetᵢ + φᵢᵀ w + eᵢ,      φᵢ = (aᵢ L⁻¹ k_Z(xᵢ), rows of A_b S_b, …),
    Var eᵢ = aᵢ² (k(xᵢ, xᵢ) − |L⁻¹ k_Z(xᵢ)|²) =: rᵢ,

with aᵢ the coefficient of the process. Titsias' (2009) bound takes the eᵢ as independent of the
data; with q(w) = N(μ, S) the predictors' marginals are m = offset + Φᵀμ and v = φᵀSφ + r.

No array here has more than D × (number of rows) entries.

References
----------
Titsias, M. (2009). Variational learning of inducing variables in sparse Gaussian processes.
AISTATS.
Hensman, J., Matthews, A. & Ghahramani, Z. (2015). Scalable variational Gaussian process
classification. AISTATS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.linalg.triangular_factor import TriangularFactor
from pymc_augconj.model import Point

from .posterior import SeparatePosterior, WeightsPosterior

__all__ = ["ProcessRows", "SeparateDesign", "SparseDesign"]

Array = NDArray[np.float64]


@dataclass
class ProcessRows:
    """One process at some rows: aᵢ, inputs, factor of K(Z, Z), L⁻¹ K(Z, X), diag K(X, X)."""

    index: int
    coef: Array | None
    X: Array
    Z: Array
    factor: TriangularFactor
    half: Array
    diagonal: Array


@dataclass
class SparseDesign:
    """Predictors of some rows at one θ.

    Attributes
    ----------
    Phi : ndarray, shape (D, B)
        Whitened design, a column a row of the model; Fortran-ordered.
    residual : ndarray, shape (B,)
        rᵢ ≥ 0.
    offset : ndarray, shape (B,)
    n_sparse : int
        The first weights, those of the inducing points.
    """

    Phi: Array
    residual: Array
    offset: Array
    n_sparse: int
    point: Point
    rows: NDArray[np.intp] | slice
    processes: list[ProcessRows]

    def posterior(self, h: Array, lam: Array) -> WeightsPosterior:
        """Return q(w) given the sites of these rows."""
        return WeightsPosterior(*self.natural(h, lam))

    def moments(self, q: WeightsPosterior) -> tuple[Array, Array, Array]:
        """Return means and variances of the predictors, and chol(S⁻¹)⁻¹ Φ."""
        half = q.half(self.Phi)
        var = np.vecdot(half.T, half.T) + self.residual
        return self.offset + q.mean @ self.Phi, var, half

    def natural(self, h: Array, lam: Array) -> tuple[Array, Array]:
        """Return Φ Λ Φᵀ and Φ (h − Λ offset): what sites are to the weights."""
        return self._gram(lam), self.Phi @ (h - lam * self.offset)

    def parts(self) -> Iterator[tuple[ProcessRows, slice]]:
        """Yield the processes with their parts of the weights."""
        first = 0
        for process in self.processes:
            yield process, slice(first, first + len(process.Z))
            first += len(process.Z)

    def _gram(self, lam: Array) -> Array:
        # Symmetric: the transpose, for it to be Fortran-ordered as all matrices of weights are.
        if (lam < 0.0).any():
            return ((self.Phi * lam) @ self.Phi.T).T
        # NumPy knows a product with one's own transpose for what it is, half the work.
        scaled = self.Phi * np.sqrt(lam)
        return (scaled @ scaled.T).T


@dataclass
class SeparateDesign:
    """The predictors of some observations at one θ, stacked as those of the sites are.

    Attributes
    ----------
    designs : list of SparseDesign
        Of each component.
    where : list of ndarray of int
        Where its rows stand among all predictors of these observations.
    offset : ndarray
        Of all of these, also of predictors without latents.
    """

    designs: list[SparseDesign]
    where: list[NDArray[np.intp]]
    offset: Array

    def posterior(self, h: Array, lam: Array) -> SeparatePosterior:
        """Return q(w) given the sites of these observations."""
        return SeparatePosterior(*self.natural(h, lam), [len(each.Phi) for each in self.designs])

    def moments(self, q: SeparatePosterior) -> tuple[Array, Array, list[Array]]:
        """Return means and variances of the predictors, and chol(S_c⁻¹)⁻¹ Φ_c of each part."""
        mean, var, halves = self.offset.copy(), np.zeros_like(self.offset), []
        for design, where, part in zip(self.designs, self.where, q.parts, strict=True):
            mean[where], var[where], half = design.moments(part)
            halves.append(half)
        return mean, var, halves

    def natural(self, h: Array, lam: Array) -> tuple[Array, Array]:
        """Return Φ Λ Φᵀ and Φ (h − Λ offset) of every component, flat."""
        found = [
            design.natural(h[where], lam[where])
            for design, where in zip(self.designs, self.where, strict=True)
        ]
        return (
            np.concatenate([gram.ravel(order="F") for gram, _ in found]),
            np.concatenate([linear for _, linear in found]),
        )
