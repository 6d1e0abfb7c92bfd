"""One component of a model through inducing points, and its predictors at some rows.

A process f at inputs X is written through its values u at M inducing inputs Z, u = L w with
L = chol(K(Z, Z) + jitter·I). Every other latent block is whitened too, so that all weights of a
component are w ~ N(0, I_D), and a predictor is

    ηᵢ = offsetᵢ + φᵢᵀ w + eᵢ,      φᵢ = (aᵢ L⁻¹ k_Z(xᵢ), rows of A_b S_b, …),
    Var eᵢ = aᵢ² (k(xᵢ, xᵢ) − |L⁻¹ k_Z(xᵢ)|²) =: rᵢ,

with aᵢ the coefficient of the process. Titsias' (2009) bound takes the eᵢ as independent of the
data; with q(w) = N(μ, S) the predictors' marginals are m = offset + Φᵀμ and v = φᵀSφ + r. Sites
with ∂ℓ/∂m = h − λm and ∂ℓ/∂v = −½λ give the derivatives of the bound at fixed q(w).

References
----------
Titsias (2009), Variational learning of inducing variables in sparse Gaussian processes. AISTATS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pymc_augconj.engines.base import ProcessPrior
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.components import Component, restricted_model
from pymc_augconj.latents.derivatives import accumulate
from pymc_augconj.latents.joint import KeptParts, block_prior
from pymc_augconj.linalg.dense import TriangularFactor, add_outer
from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Point, PointMap
from pymc_augconj.typing import Array, Index

from .inducing import ComponentPosterior, factor_at, selection_of


def inducing_entry(process: ProcessPrior) -> str:
    """Return the entry of derivatives that is by the inducing inputs; no name of PyMC's."""
    return f"inducing inputs of {process.name}"


class SparseComponent:
    """Latents and predictors that belong together, processes through inducing points."""

    def __init__(
        self,
        whole: LatentGaussianModel,
        component: Component,
        priors: Sequence[ProcessPrior],
        point: Point,
    ) -> None:
        self.whole, self.component = whole, component
        self.rows = np.concatenate([whole.sites[s].row_numbers[p] for s, p in component.members])
        self.lgm = restricted_model(whole, component, self.rows)
        names = [block.name for block in self.lgm.blocks]
        self.processes = tuple(i for i, prior in enumerate(priors) if prior.name in names)
        self.priors = [priors[i] for i in self.processes]
        #: Their indices among the component's blocks.
        self.blocks = [names.index(prior.name) for prior in self.priors]
        self._others = [i for i in range(len(names)) if i not in self.blocks]
        self._kept = KeptParts()
        for p, prior in enumerate(self.priors):
            selection_of(prior, self.map_of(p)(point))

    def has_design_of(self, other: SparseComponent, point: Point) -> bool:
        """Return whether Φ is the same: for copies of one process, and nothing else."""
        if self.processes != other.processes or len(self.processes) != 1:
            return False
        if any(one._others or one.map_of(0).names for one in (self, other)):
            return False
        first, second = (selection_of(one.priors[0], one.map_of(0)(point)) for one in (self, other))
        if first.coef is not None or second.coef is not None:
            return False
        return np.array_equal(first.index, second.index)

    def inducing(self, inducing: Sequence[Array]) -> list[Array]:
        """Return the inducing inputs of its own processes."""
        return [inducing[i] for i in self.processes]

    def n_sparse(self, inducing: Sequence[Array]) -> int:
        """Return the number of weights of inducing points, which are the first."""
        return sum(len(inducing[i]) for i in self.processes)

    def size(self, inducing: Sequence[Array]) -> int:
        """Return D, the number of weights."""
        return self.n_sparse(inducing) + sum(self.lgm.blocks[i].total_size for i in self._others)

    def prepare(self, point: Point, inducing: Sequence[Array]) -> None:
        self._offset(point)
        for p, Z in enumerate(self.inducing(inducing)):
            self._map(self.blocks[p], point)
            # Used for several minibatches, and from several threads.
            _ = self._factor(p, point, Z).inverse
        for i in self._others:
            self._block(i, point)
            self._map(i, point)

    def design(
        self, point: Point, inducing: Sequence[Array], rows: Index | slice
    ) -> ComponentDesign:
        """Return the predictors ``rows`` at θ and given inducing inputs."""
        offset = self._offset(point)[rows]
        alone = len(self.priors) == 1 and not self._others
        Phi = np.empty((0 if alone else self.size(inducing), offset.size), order="F")
        residual = np.zeros(offset.size)
        processes, first = [], 0
        pairs = zip(self.priors, self.inducing(inducing), strict=True)
        for p, (prior, Z) in enumerate(pairs):
            read = selection_of(prior, self._map(self.blocks[p], point))
            coef = None if read.coef is None else read.coef[rows]
            X = np.asarray(prior.inputs[read.index[rows]], dtype=float)
            factor = self._factor(p, point, Z)
            xz, diagonal = prior.cross(point, X, Z)
            half = factor.solve(xz.T, overwrite=True)
            left = diagonal - np.vecdot(half.T, half.T)
            residual += left if coef is None else coef**2 * left
            scaled = half if coef is None else half * coef
            part = slice(first, first + len(Z))
            if alone:
                Phi = scaled
            else:
                Phi[part] = scaled
            first = part.stop
            processes.append(_ProcessRows(p, part, coef, X, Z, factor, half, diagonal))
        for _, block, A, part in self.other_parts(point, rows, first):
            Phi[part] = block.whitened_design(A).T
        # Where an inducing input is an input nothing is left, up to rounding.
        np.maximum(residual, 0.0, out=residual)
        return ComponentDesign(self, point, rows, Phi, residual, offset, first, processes)

    def other_parts(
        self, point: Point, rows: Index | slice, first: int
    ) -> Iterator[tuple[int, BlockPrior, LinearMap, slice]]:
        """Yield (index, prior, map onto the rows, which weights from ``first``) of other blocks."""
        for i in self._others:
            block = self._block(i, point)
            A = self._map(i, point)
            if not (isinstance(rows, slice) and rows == slice(None)):
                A = A.rows(rows)
            part = slice(first, first + block.block.total_size)
            first = part.stop
            yield i, block, A, part

    # -- parts that depend on few entries of the point ---------------------------------------------

    def _offset(self, point: Point) -> Array:
        return self._kept.get("offset", self.lgm.offset, point, lambda x: np.array(x, dtype=float))

    def _map(self, index: int, point: Point) -> LinearMap:
        return self._kept.get(("map", index), self.lgm.maps[index], point, lambda A: A)

    def _factor(self, process: int, point: Point, Z: Array) -> TriangularFactor:
        prior = self.priors[process]
        return self._kept.keep(
            ("factor", process), prior.names, point, lambda: factor_at(prior, point, Z), Z.tobytes()
        )

    def _block(self, index: int, point: Point) -> BlockPrior:
        latent = self.lgm.blocks[index]
        return self._kept.get(
            ("block", index), latent.scale, point, lambda x: block_prior(latent, x).factorized()
        )

    # -- derivatives -------------------------------------------------------------------------------

    def map_of(self, process: int) -> PointMap[LinearMap]:
        """Return the map of a process, as a function of the point."""
        return self.lgm.maps[self.blocks[process]]

    def pull_predictors(
        self,
        point: Point,
        rows: Index | slice,
        weights: Array,
        latents: Mapping[int, Array] | None = None,
    ) -> dict[str, Array]:
        """Return the derivatives of ⟨weights, η(θ, u)⟩ over the rows, at u = 0 or as given."""
        full = np.zeros(self.whole.n_rows)
        full[self.rows[rows]] = weights
        values = {block.name: np.zeros(block.total_size) for block in self.whole.blocks}
        for i, u in (latents or {}).items():
            values[self.lgm.blocks[i].name][self.component.latents[i]] = u
        return self.whole.predictor_pullback(point, values, full)

    def pull_map(
        self, point: Point, rows: Index | slice, index: int, weights: Array, u: Array
    ) -> dict[str, Array]:
        """Return the derivatives of ⟨weights, A(θ) u⟩ over the rows, for block ``index``."""
        at_zero = self.pull_predictors(point, rows, weights)
        at_u = self.pull_predictors(point, rows, weights, {index: u})
        return {name: at_u[name] - at_zero[name] for name in at_u}

    def slopes_by_factor(
        self, point: Point, inducing: Sequence[Array], by_factor: Array
    ) -> dict[str, Array]:
        """Return the derivatives through the factors L, given Lᵀ ∂/∂L of all processes."""
        total: dict[str, Array] = {}
        first = 0
        for p, (prior, Z) in enumerate(zip(self.priors, self.inducing(inducing), strict=True)):
            part = slice(first, first + len(Z))
            first = part.stop
            by_zz = self._factor(p, point, Z).pull(by_factor[part, part])
            accumulate(total, _with_inducing(prior, *prior.pull_cov(point, Z, by_zz)))
        return total


@dataclass
class _ProcessRows:
    """One process at some rows: its weights, aᵢ, inputs, L, L⁻¹ K(Z, X) and diag K(X, X)."""

    index: int
    part: slice
    coef: Array | None
    X: Array
    Z: Array
    factor: TriangularFactor
    half: Array
    diagonal: Array


@dataclass
class ComponentDesign:
    """Predictors of some rows at one θ."""

    model: SparseComponent
    point: Point
    rows: Index | slice
    # Whitened design, (D, B), a column a row of the model; Fortran-ordered.
    Phi: Array
    # rᵢ ≥ 0, (B,).
    residual: Array
    offset: Array
    # Number of weights of inducing points, which are the first.
    n_sparse: int
    processes: list[_ProcessRows]

    def moments(self, q: ComponentPosterior) -> tuple[Array, Array, Array]:
        """Return means and variances of the predictors, and chol(S⁻¹)⁻¹ Φ."""
        half = q.half(self.Phi)
        var = np.vecdot(half.T, half.T) + self.residual
        return self.offset + q.mean @ self.Phi, var, half

    def natural(self, h: Array, lam: Array) -> tuple[Array, Array]:
        """Return Φ Λ Φᵀ and Φ (h − Λ offset): what sites are to the weights."""
        linear = self.Phi @ (h - lam * self.offset)
        # Symmetric: the transpose, for it to be Fortran-ordered as all matrices of weights are.
        if (lam < 0.0).any():
            return ((self.Phi * lam) @ self.Phi.T).T, linear
        # NumPy computes half of a product with its own transpose.
        scaled = self.Phi * np.sqrt(lam)
        return (scaled @ scaled.T).T, linear

    def by_design(self, q: ComponentPosterior, half: Array, slope: Array, lam: Array) -> Array:
        """Return ∂/∂Φ; overwrites ``half``."""
        # ∂/∂Φ = μ slopeᵀ − (S − J)Φ Λ, where J takes the process' own share out of r.
        G = q.solve_half(half, overwrite=True)
        G[: self.n_sparse] -= self.Phi[: self.n_sparse]
        G *= -lam
        return add_outer(G, q.mean, slope)

    def slopes(self, G: Array, lam: Array) -> dict[str, Array]:
        """Return the derivatives through Φ, given G by it, and r, without L; overwrites ``G``."""
        total: dict[str, Array] = {}
        for process in self.processes:
            accumulate(total, self._of_process(process, G[process.part], lam))
        for i, block, A, part in self.model.other_parts(self.point, self.rows, self.n_sparse):
            accumulate(total, self._of_block(i, block, A, G[part]))
        return total

    def _of_process(self, process: _ProcessRows, G: Array, lam: Array) -> dict[str, Array]:
        model, prior, coef = self.model, self.model.priors[process.index], process.coef
        by_diagonal = -0.5 * lam
        total: dict[str, Array] = {}
        if model.map_of(process.index).names:
            # Φ = a L⁻¹k, and r holds a² k(x, x).
            residual = lam * process.diagonal if coef is None else lam * coef * process.diagonal
            weights = np.einsum("ij,ij->j", G, process.half) - residual
            block = model.blocks[process.index]
            ones = np.ones(model.lgm.blocks[block].total_size)
            total = model.pull_map(self.point, self.rows, block, weights, ones)
        by_cross = process.factor.solve(G, transposed=True, overwrite=True)
        if coef is not None:
            by_cross *= coef
            by_diagonal = by_diagonal * coef**2
        pulled = prior.pull_cross(self.point, process.X, process.Z, (by_cross.T, by_diagonal))
        accumulate(total, _with_inducing(prior, *pulled))
        return total

    def _of_block(self, index: int, block: BlockPrior, A: LinearMap, G: Array) -> dict[str, Array]:
        model = self.model
        latent, read = model.lgm.blocks[index], model.lgm.maps[index]
        total: dict[str, Array] = {}
        if latent.scale.names and latent.scale_pullback is not None:
            weights = block.pull_design(A, G)
            accumulate(total, latent.scale_pullback(self.point, weights))
        if read.names:
            # ⟨∂/∂A, dA⟩ with ∂/∂A = Gᵀ Sᵀ, a column of A at a time.
            columns = np.stack([block.scale(g) for g in G.T])
            for j, unit in enumerate(np.eye(A.size)):
                accumulate(total, model.pull_map(self.point, self.rows, index, columns[:, j], unit))
        return total


def _with_inducing(
    prior: ProcessPrior, by_theta: Mapping[str, Array], by_inducing: Array | None
) -> dict[str, Array]:
    found = dict(by_theta)
    return found if by_inducing is None else found | {inducing_entry(prior): by_inducing}
