"""Derivatives of a sum over sites with respect to θ and inducing inputs, at fixed q(w).

See :mod:`.design` for the predictors that are differentiated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.derivatives import accumulate
from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.linalg.unlocked import add_outer

from .design import ProcessRows, SeparateDesign, SparseDesign
from .model import SparseModel
from .posterior import SeparatePosterior, WeightsPosterior
from .separate import SeparateModel

__all__ = ["DesignGradient", "add_each", "is_long", "slopes_by_factor", "slopes_of_components"]

Array = NDArray[np.float64]


class DesignGradient:
    """Derivatives through the predictors of some rows of a sparse model."""

    def __init__(self, model: SparseModel, design: SparseDesign) -> None:
        self.model, self.design = model, design

    def of_sites(
        self, q: WeightsPosterior, half: Array, h: Array, lam: Array, mean: Array, gram: Array
    ) -> tuple[dict[str, Array], list[Array | None]]:
        """Return d Σ ℓᵢ(mᵢ, vᵢ)/dθ at fixed q(w), and by the inducing inputs of each process.

        Parameters
        ----------
        q : WeightsPosterior
        half : ndarray
            From :meth:`.SparseDesign.moments`.
        h, lam : ndarray, shape (B,)
            Target sites: ∂ℓ/∂m = h − λm and ∂ℓ/∂v = −½λ.
        mean : ndarray, shape (B,)
        gram : ndarray, shape (D, D)
            Φ Λ Φᵀ, from :meth:`.SparseDesign.natural`.

        Returns
        -------
        gradient : dict
            By entry of the point; likelihood parameters are not in it.
        by_inducing : list of (ndarray or None)
        """
        slope = h - lam * mean
        long = is_long(self.design.n_sparse, slope.size)
        total, by_inducing, by_factor = self.of_rows(q, half.copy(order="F"), slope, lam, not long)
        if by_factor is None:
            by_factor = slopes_by_factor(q, self.design.n_sparse, gram, self.design.Phi @ slope)
        more, moved = self.of_factors(by_factor)
        accumulate(total, more)
        return total, add_each(by_inducing, moved)

    def of_rows(
        self, q: WeightsPosterior, half: Array, slope: Array, lam: Array, with_factor: bool
    ) -> tuple[dict[str, Array], list[Array | None], Array | None]:
        """Return what of :meth:`of_sites` goes through other things than the factors L.

        And Lᵀ ∂/∂L, of all processes together, where it is asked for; ``half`` is used up.
        """
        G = self.by_design(q, half, slope, lam)
        by_factor = None
        if with_factor:
            by_factor = -(self.design.Phi[: self.design.n_sparse] @ G[: self.design.n_sparse].T).T
        total, by_inducing = self.of_design(G, lam)
        if self.model.offset_moves:
            accumulate(total, self.of_offset(slope))
        return total, by_inducing, by_factor

    def by_design(self, q: WeightsPosterior, half: Array, slope: Array, lam: Array) -> Array:
        """Return ∂/∂Φ; ``half`` is used up."""
        # ∂/∂Φ = μ slopeᵀ − (S − J)Φ Λ, where J takes the process' own share out of r.
        G = q.solve_half(half, overwrite=True)
        G[: self.design.n_sparse] -= self.design.Phi[: self.design.n_sparse]
        G *= -lam
        return add_outer(G, q.mean, slope)

    def of_offset(self, slope: Array) -> dict[str, Array]:
        """Return what of :meth:`of_sites` goes through the offset."""
        return self.model.pull_predictors(self.design.point, self.design.rows, slope)

    def of_design(self, G: Array, lam: Array) -> tuple[dict[str, Array], list[Array | None]]:
        """Return what goes through Φ, of which G is the derivative, but the factors; uses G up."""
        total: dict[str, Array] = {}
        by_inducing: list[Array | None] = []
        for process, part in self.design.parts():
            found, moved = self._of_process(process, G[part], lam)
            accumulate(total, found)
            by_inducing.append(moved)
        for i, block, A, part in self.model.other_parts(
            self.design.point, self.design.rows, self.design.n_sparse
        ):
            accumulate(total, self._of_block(i, block, A, G[part]))
        return total, by_inducing

    def of_factors(self, by_factor: Array) -> tuple[dict[str, Array], list[Array | None]]:
        """Return what of :meth:`of_sites` goes through the factors L, given Lᵀ ∂/∂L."""
        priors = self.model.of_thread
        total: dict[str, Array] = {}
        by_inducing: list[Array | None] = []
        for process, part in self.design.parts():
            by_zz = process.factor.pull(by_factor[part, part])
            found, moved = priors[process.index].pull_cov(self.design.point, process.Z, by_zz)
            accumulate(total, found)
            by_inducing.append(moved)
        return total, by_inducing

    def _of_process(
        self, process: ProcessRows, G: Array, lam: Array
    ) -> tuple[dict[str, Array], Array | None]:
        # G, the derivative by the process' part of Φ, is used up.
        model, prior = self.model, self.model.of_thread[process.index]
        by_diagonal = -0.5 * lam
        coef = process.coef
        found: dict[str, Array] = {}
        read = model.map_of(process.index)
        if read.names:
            # Φ = a L⁻¹k, and r holds a² k(x, x).
            residual = lam * process.diagonal if coef is None else lam * coef * process.diagonal
            weights = np.einsum("ij,ij->j", G, process.half) - residual
            found = model.pull_coefficients(
                self.design.point, self.design.rows, process.index, weights
            )
        by_cross = process.factor.solve_transposed(G, overwrite=True)
        if coef is not None:
            by_cross *= coef
            by_diagonal = by_diagonal * coef**2
        pulled, by_inducing = prior.pull_cross(
            self.design.point, process.X, process.Z, (by_cross.T, by_diagonal)
        )
        accumulate(found, pulled)
        return found, by_inducing

    def _of_block(self, index: int, block: BlockPrior, A: LinearMap, G: Array) -> dict[str, Array]:
        model = self.model
        latent = model.lgm.blocks[index]
        found: dict[str, Array] = {}
        read = model.lgm.maps[index]
        if latent.scale.names and latent.scale_pullback is not None:
            weights = block.pull_design(A, G)
            accumulate(found, latent.scale_pullback(self.design.point, weights))
        if read.names:
            # ⟨∂/∂A, dA⟩ with ∂/∂A = Gᵀ Sᵀ, a column of A at a time.
            columns = np.stack([block.scale(g) for g in G.T])
            point, rows = self.design.point, self.design.rows
            for j, unit in enumerate(np.eye(A.size)):
                accumulate(found, model.pull_map(point, rows, index, columns[:, j], unit))
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
    return [None if a is None or b is None else a + b for a, b in zip(first, second, strict=True)]


def slopes_of_components(
    model: SeparateModel,
    design: SeparateDesign,
    q: SeparatePosterior,
    halves: Sequence[Array],
    h: Array,
    lam: Array,
    mean: Array,
) -> tuple[dict[str, Array], list[Array | None]]:
    """Return the derivatives of :meth:`.DesignGradient.of_sites`; ``halves`` are used up."""
    total: dict[str, Array] = {}
    moved: list[Array | None] = [None for _ in model.priors]
    slope = h - lam * mean
    through = [
        DesignGradient(part.model, own)
        for part, own in zip(model.parts, design.designs, strict=True)
    ]
    # By Φ, summed over those that share it.
    by_design: dict[int, Array] = {}
    precision: dict[int, Array] = {}
    for number, part in enumerate(model.parts):
        where = design.where[number]
        own, each = q.parts[number], through[number]
        G = each.by_design(own, halves[number], slope[where], lam[where])
        if part.model.offset_moves:
            accumulate(total, each.of_offset(slope[where]))
        if part.twin in by_design:
            by_design[part.twin] += G
            precision[part.twin] = precision[part.twin] + lam[where]
        else:
            by_design[part.twin], precision[part.twin] = G, lam[where]
    for number, G in by_design.items():
        each, part = through[number], model.parts[number]
        n_sparse = each.design.n_sparse
        by_factor = -(each.design.Phi[:n_sparse] @ G[:n_sparse].T).T
        for found, slopes in (
            each.of_design(G, precision[number]),
            each.of_factors(by_factor),
        ):
            accumulate(total, found)
            for i, slope_of_z in zip(part.processes, slopes, strict=True):
                (moved[i],) = _sum(moved[i], slope_of_z)
    return total, moved


def _sum(first: Array | None, second: Array | None) -> list[Array | None]:
    return [second] if first is None else add_each([first], [second])
