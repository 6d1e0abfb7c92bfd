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
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.derivatives import accumulate
from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.linalg.triangular_factor import TriangularFactor
from pymc_augconj.linalg.unlocked import add_outer
from pymc_augconj.model import Point

from .posterior import WeightsPosterior

if TYPE_CHECKING:
    from .model import SparseModel

__all__ = ["ProcessRows", "SparseDesign", "add_each", "is_long", "slopes_by_factor"]

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
    model: SparseModel
    point: Point
    rows: NDArray[np.intp] | slice
    processes: list[ProcessRows]
    lane: int = 0

    def moments(self, q: WeightsPosterior) -> tuple[Array, Array, Array]:
        """Return means and variances of the predictors, and chol(S⁻¹)⁻¹ Φ."""
        half = q.half(self.Phi)
        var = np.vecdot(half.T, half.T) + self.residual
        return self.offset + q.mean @ self.Phi, var, half

    def natural(self, h: Array, lam: Array) -> tuple[Array, Array]:
        """Return Φ Λ Φᵀ and Φ (h − Λ offset): what sites are to the weights."""
        return self._gram(lam), self.Phi @ (h - lam * self.offset)

    def _gram(self, lam: Array) -> Array:
        # Symmetric: the transpose, for it to be Fortran-ordered as all matrices of weights are.
        if (lam < 0.0).any():
            return ((self.Phi * lam) @ self.Phi.T).T
        # NumPy knows a product with one's own transpose for what it is, half the work.
        scaled = self.Phi * np.sqrt(lam)
        return (scaled @ scaled.T).T

    def gradient(
        self, q: WeightsPosterior, half: Array, h: Array, lam: Array, mean: Array, gram: Array
    ):
        """Return d Σ ℓᵢ(mᵢ, vᵢ)/dθ at fixed q(w), and by the inducing inputs of each process.

        Parameters
        ----------
        q : WeightsPosterior
        half : ndarray
            From :meth:`moments`.
        h, lam : ndarray, shape (B,)
            Target sites: ∂ℓ/∂m = h − λm and ∂ℓ/∂v = −½λ.
        mean : ndarray, shape (B,)
        gram : ndarray, shape (D, D)
            Φ Λ Φᵀ, from :meth:`natural`.

        Returns
        -------
        gradient : dict
            By entry of the point; likelihood parameters are not in it.
        by_inducing : list of (ndarray or None)
        """
        slope = h - lam * mean
        direct = None
        if is_long(self.n_sparse, slope.size):
            direct = slopes_by_factor(q, self.n_sparse, gram, self.Phi @ slope)
        total, by_inducing, by_factor = self.gradient_of_rows(
            q, half.copy(order="F"), slope, lam, direct is None
        )
        more, moved = self.gradient_of_factors(direct if direct is not None else by_factor)
        accumulate(total, more)
        return total, add_each(by_inducing, moved)

    def gradient_of_rows(
        self, q: WeightsPosterior, half: Array, slope: Array, lam: Array, with_factor: bool
    ) -> tuple[dict[str, Array], list[Array | None], Array | None]:
        """Return what of :meth:`gradient` goes through other things than the factors L.

        And Lᵀ ∂/∂L, of all processes together, where it is asked for; ``half`` is used up.
        """
        # ∂/∂Φ = μ slopeᵀ − (S − J)Φ Λ, where J takes the process' own share out of r.
        G = q.solve_half(half, overwrite=True)
        G[: self.n_sparse] -= self.Phi[: self.n_sparse]
        G *= -lam
        add_outer(G, q.mean, slope)
        by_factor = None
        if with_factor:
            by_factor = -(self.Phi[: self.n_sparse] @ G[: self.n_sparse].T).T
        total: dict[str, Array] = {}
        by_inducing = []
        for process, part in self._parts():
            found, moved = self._of_process(process, G[part], lam)
            accumulate(total, found)
            by_inducing.append(moved)
        for i, block, A, part in self.model.other_parts(self.point, self.rows, self.n_sparse):
            accumulate(total, self._of_block(i, block, A, G[part]))
        if self.model.offset_moves:
            accumulate(total, self.model.pull_predictors(self.point, self.rows, slope))
        return total, by_inducing, by_factor

    def gradient_of_factors(self, by_factor: Array):
        """Return what of :meth:`gradient` goes through the factors L, given Lᵀ ∂/∂L."""
        laws = self.model.lanes[self.lane]
        total: dict[str, Array] = {}
        by_inducing = []
        for process, part in self._parts():
            by_zz = process.factor.pull(by_factor[part, part])
            found, moved = laws[process.index].pull_cov(self.point, process.Z, by_zz)
            accumulate(total, found)
            by_inducing.append(moved)
        return total, by_inducing

    def _parts(self) -> Iterator[tuple[ProcessRows, slice]]:
        """Yield the processes with their parts of the weights."""
        first = 0
        for process in self.processes:
            yield process, slice(first, first + len(process.Z))
            first += len(process.Z)

    def _of_process(self, process: ProcessRows, G: Array, lam: Array):
        # G, the derivative by the process' part of Φ, is used up.
        model, law = self.model, self.model.lanes[self.lane][process.index]
        by_diagonal = -0.5 * lam
        coef = process.coef
        found: dict[str, Array] = {}
        read = model.map_of(process.index)
        if read.names:
            # Φ = a L⁻¹k, and r holds a² k(x, x).
            weights = np.einsum("ij,ij->j", G, process.half) - lam * coef * process.diagonal
            found = model.pull_coefficients(self.point, self.rows, process.index, weights)
        by_cross = process.factor.solve_transposed(G, overwrite=True)
        if coef is not None:
            by_cross *= coef
            by_diagonal = by_diagonal * coef**2
        pulled, by_inducing = law.pull_cross(
            self.point, process.X, process.Z, (by_cross.T, by_diagonal)
        )
        accumulate(found, pulled)
        return found, by_inducing

    def _of_block(self, index: int, block: BlockPrior, A: LinearMap, G: Array):
        model = self.model
        latent = model.lgm.blocks[index]
        found: dict[str, Array] = {}
        read = model.lgm.maps[index]
        if latent.scale.names and latent.scale_pullback is not None:
            accumulate(found, latent.scale_pullback(self.point, block.pull_design(A, G)))
        if read.names:
            # ⟨∂/∂A, dA⟩ with ∂/∂A = Gᵀ Sᵀ, a column of A at a time.
            columns = np.stack([block.scale(g) for g in G.T])
            for j, unit in enumerate(np.eye(A.size)):
                accumulate(found, model.pull_map(self.point, self.rows, index, columns[:, j], unit))
        return found


def is_long(n_sparse: int, n_rows: int) -> bool:
    """Return whether :func:`slopes_by_factor` is less work than a product over the rows."""
    return n_rows > 1.25 * n_sparse


def slopes_by_factor(q: WeightsPosterior, n_sparse: int, gram: Array, pulled: Array) -> Array:
    """Return Lᵀ ∂/∂L = −(∂/∂Φ) Φᵀ from Φ Λ Φᵀ and Φ slope, without the rows.

    Parameters
    ----------
    q : WeightsPosterior
    n_sparse : int
    gram : ndarray, shape (D, D)
    pulled : ndarray, shape (D,)
    """
    found = q.solve_half(q.half(gram), overwrite=True)[:n_sparse, :n_sparse]
    found -= gram[:n_sparse, :n_sparse]
    return add_outer(found, -q.mean[:n_sparse], pulled[:n_sparse])


def add_each(first: list[Array | None], second: list[Array | None]) -> list[Array | None]:
    """Return the sums of derivatives by the inducing inputs of each process."""
    return [None if a is None else a + b for a, b in zip(first, second, strict=True)]
