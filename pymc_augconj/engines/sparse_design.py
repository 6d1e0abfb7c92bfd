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

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk, dtrsm

from ..gaussian.linear_map import LinearMap
from ..gaussian.triangular import mirror_lower
from ..model import Point
from .derivatives import accumulate
from .latent_prior import BlockPrior
from .triangular_factor import TriangularFactor, is_wide
from .weights_posterior import WeightsPosterior

if TYPE_CHECKING:
    from .sparse_model import SparseModel

__all__ = ["ProcessRows", "SparseDesign", "chol_pullback"]

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
        var = np.einsum("ij,ij->j", half, half) + self.residual
        return self.offset + q.mean @ self.Phi, var, half

    def natural(self, h: Array, lam: Array) -> tuple[Array, Array]:
        """Return Φ Λ Φᵀ and Φ (h − Λ offset): what sites are to the weights."""
        return self._gram(lam), self.Phi @ (h - lam * self.offset)

    def _gram(self, lam: Array) -> Array:
        # SciPy's dsyrk is half the work, but keeps other threads waiting.
        if (lam < 0.0).any() or is_wide(self.Phi):
            return (self.Phi * lam) @ self.Phi.T
        return mirror_lower(dsyrk(1.0, self.Phi * np.sqrt(lam), lower=1))

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
        # ∂/∂Φ = μ slopeᵀ − (S − J)Φ Λ, where J takes the process' own share out of r.
        G = q.solve_half(half)
        G[: self.n_sparse] -= self.Phi[: self.n_sparse]
        G *= -lam
        G += np.multiply.outer(q.mean, slope)
        total: dict[str, Array] = {}
        by_inducing = []
        first = 0
        by_chol = self._by_chol(q, G, slope, gram)
        for process in self.processes:
            part = slice(first, first + len(process.Z))
            first = part.stop
            found, moved = self._of_process(process, G[part], by_chol[part, part], lam)
            accumulate(total, found)
            by_inducing.append(moved)
        for i, block, A, part in self.model.other_parts(self.point, self.rows, first):
            accumulate(total, self._of_block(i, block, A, G[part]))
        if self.model.offset_moves:
            accumulate(total, self.model.pull_predictors(self.point, self.rows, slope))
        return total, by_inducing

    def _by_chol(self, q: WeightsPosterior, G: Array, slope: Array, gram: Array) -> Array:
        """Return Lᵀ ∂/∂L = −G Φᵀ for the processes' factors L, whichever way is the shorter."""
        n_sparse, n_rows = self.n_sparse, slope.size
        if n_rows < 2 * n_sparse:
            return -(G[:n_sparse] @ self.Phi[:n_sparse].T)
        found = q.solve_half(q.half(gram))[:n_sparse, :n_sparse]
        found = found - gram[:n_sparse, :n_sparse]
        found -= np.multiply.outer(q.mean[:n_sparse], (self.Phi @ slope)[:n_sparse])
        return found

    def _of_process(self, process: ProcessRows, G: Array, by_chol: Array, lam: Array):
        model, law = self.model, self.model.lanes[self.lane][process.index]
        by_cross = process.factor.solve_transposed(G)
        by_zz = chol_pullback(process.factor.chol, by_chol)
        by_diagonal = -0.5 * lam
        coef = process.coef
        found: dict[str, Array] = {}
        read = model.map_of(process.index)
        if read.names:
            # Φ = a L⁻¹k, and r holds a² k(x, x).
            weights = np.einsum("ij,ij->j", G, process.half) - lam * coef * process.diagonal
            found = model.pull_coefficients(self.point, self.rows, process.index, weights)
        if coef is not None:
            by_cross = by_cross * coef
            by_diagonal = by_diagonal * coef**2
        pulled, by_inducing = law.pullback(
            self.point, process.X, process.Z, (by_zz, np.ascontiguousarray(by_cross.T), by_diagonal)
        )
        accumulate(found, pulled)
        return found, by_inducing

    def _of_block(self, index: int, block: BlockPrior, A: LinearMap, G: Array):
        model = self.model
        latent = model.lgm.blocks[index]
        found: dict[str, Array] = {}
        read = model.lgm.maps[index]
        if latent.scale.names and latent.scale_pullback is not None:
            dense = A.dense()
            if block.std is not None:
                weights = np.einsum("ji,ij->j", G, dense)
            else:
                by_chol = sum(
                    (part.T @ g.T)
                    for part, g in zip(
                        np.split(dense, block.block.copies, axis=1),
                        np.split(G, block.block.copies),
                        strict=True,
                    )
                )
                weights = chol_pullback(block.chol, block.chol.T @ by_chol)
            accumulate(found, latent.scale_pullback(self.point, weights))
        if read.names:
            # ⟨∂/∂A, dA⟩ with ∂/∂A = Gᵀ Sᵀ, a column of A at a time.
            columns = np.stack([block.scale(g) for g in G.T])
            for j, unit in enumerate(np.eye(A.size)):
                accumulate(found, model.pull_map(self.point, self.rows, index, columns[:, j], unit))
        return found


def chol_pullback(chol: Array, transposed_slope: Array) -> Array:
    """Return the derivative by K, given Lᵀ times that by L = chol(K); symmetric.

    Murray, I. (2016), Differentiation of the Cholesky decomposition, arXiv:1602.07527.
    """
    lower = np.tril(transposed_slope)
    lower[np.diag_indices_from(lower)] *= 0.5
    inner = np.asfortranarray(lower + lower.T)
    left = dtrsm(0.5, chol, inner, lower=1, trans_a=1, overwrite_b=1)
    return dtrsm(1.0, chol, left, lower=1, side=1, overwrite_b=1)
