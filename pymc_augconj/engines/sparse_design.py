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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk, dtrsm

from ..errors import AugmentationError
from ..gaussian.cholesky import cholesky_with_jitter
from ..gaussian.linear_map import LinearMap, RowSelection
from ..gaussian.triangular import mirror_lower
from ..model import LatentGaussianModel, Point, ProcessLaw
from .latent_prior import BlockPrior, block_prior
from .triangular_factor import TriangularFactor, is_wide
from .weights_posterior import WeightsPosterior

__all__ = ["SparseDesign", "SparseModel"]

Array = NDArray[np.float64]


@dataclass
class _Process:
    """One process at some rows."""

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
    processes: list[_Process]
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
            _accumulate(total, found)
            by_inducing.append(moved)
        for i, block, A, part in self.model.other_parts(self.point, self.rows, first):
            _accumulate(total, self._of_block(i, block, A, G[part]))
        if self.model.offset_moves:
            _accumulate(total, self.model.pull_predictors(self.point, self.rows, slope))
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

    def _of_process(self, process: _Process, G: Array, by_chol: Array, lam: Array):
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
        _accumulate(found, pulled)
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
            _accumulate(found, latent.scale_pullback(self.point, weights))
        if read.names:
            # ⟨∂/∂A, dA⟩ with ∂/∂A = Gᵀ Sᵀ, a column of A at a time.
            columns = np.stack([block.scale(g) for g in G.T])
            for j, unit in enumerate(np.eye(A.size)):
                _accumulate(
                    found, model.pull_map(self.point, self.rows, index, columns[:, j], unit)
                )
        return found


class SparseModel:
    """A recognised model whose processes act through inducing points.

    Parameters
    ----------
    lgm : LatentGaussianModel
    laws : sequence of ProcessLaw
        The processes that do.
    point : mapping
        Any value of θ.

    Raises
    ------
    AugmentationError
        If a process enters a predictor by more than one of its values.
    """

    def __init__(self, lgm: LatentGaussianModel, laws: Sequence[ProcessLaw], point: Point):
        self.lgm, self.laws = lgm, tuple(laws)
        names = [block.name for block in lgm.blocks]
        self._blocks = [names.index(law.name) for law in self.laws]
        self.others = [i for i in range(len(names)) if i not in self._blocks]
        self._parts: dict[object, tuple[object, object]] = {}
        #: The laws, for each thread that works on rows of its own.
        self.lanes = [self.laws]
        for law in self.laws:
            A = lgm.maps[names.index(law.name)](point)
            if not isinstance(A, RowSelection):
                raise AugmentationError(
                    f"gp {law.name!r}: expected every observation to take one value of it, "
                    "perhaps scaled, for inducing points, but it enters a predictor through a "
                    "matrix; fit without inducing points"
                )
            if A.size != len(law.inputs):
                raise AugmentationError(
                    f"gp {law.name!r}: expected inputs for its {A.size} values, found "
                    f"{len(law.inputs)}"
                )

    @property
    def n_rows(self) -> int:
        """N, the number of predictors."""
        return self.lgm.n_predictors

    @property
    def offset_moves(self) -> bool:
        """Whether the predictors' offset depends on θ."""
        return bool(self.lgm.offset.names)

    def size(self, inducing: Sequence[Array]) -> int:
        """Return D, the number of weights."""
        rest = sum(self.lgm.blocks[i].total_size for i in self.others)
        return sum(len(Z) for Z in inducing) + rest

    def map_of(self, process: int):
        """Return the map of a process, as a function of the point."""
        return self.lgm.maps[self._blocks[process]]

    def open_lanes(self, count: int) -> int:
        """Let ``count`` threads make designs, or as many as the laws allow; return how many."""
        copies = [law.lanes(count) for law in self.laws]
        self.lanes = list(zip(*copies, strict=False))
        return len(self.lanes)

    def prepare(self, point: Point, inducing: Sequence[Array]) -> None:
        """Evaluate what does not depend on rows, so that several threads can share it."""
        self._offset(point)
        for p, Z in enumerate(inducing):
            self._map(self._blocks[p], point)
            self._factor(p, point, Z)
        for i in self.others:
            self._block(i, point)
            self._map(i, point)

    def design(
        self,
        point: Point,
        inducing: Sequence[Array],
        rows: NDArray[np.intp] | slice,
        lane: int = 0,
    ) -> SparseDesign:
        """Return the predictors ``rows`` at θ and given inducing inputs.

        Raises
        ------
        NotPositiveDefiniteError
            If a covariance has no Cholesky factor.
        """
        offset = self._offset(point)[rows]
        Phi = np.empty((self.size(inducing), offset.size), order="F")
        residual = np.zeros(offset.size)
        processes, first = [], 0
        for p, (law, Z) in enumerate(zip(self.lanes[lane], inducing, strict=True)):
            A = self._map(self._blocks[p], point)
            index = A.index[rows]
            coef = None if A.coef is None else A.coef[rows]
            X = np.asarray(law.inputs[index], dtype=float)
            factor = self._factor(p, point, Z)
            xz, diagonal = law.cross(point, X, Z)
            half = factor.solve(xz.T)
            left = diagonal - np.einsum("ij,ij->j", half, half)
            residual += left if coef is None else coef**2 * left
            Phi[first : first + len(Z)] = half if coef is None else half * coef
            first += len(Z)
            processes.append(_Process(p, coef, X, Z, factor, half, diagonal))
        for _, block, A, part in self.other_parts(point, rows, first):
            Phi[part] = block.whitened_design(A).T
        # Where an inducing input is an input nothing is left, up to rounding.
        np.maximum(residual, 0.0, out=residual)
        return SparseDesign(Phi, residual, offset, first, self, point, rows, processes, lane)

    def inducing_block(self, law: ProcessLaw, point: Point, Z: Array) -> BlockPrior:
        """Return the prior of a process's values at inducing inputs, jitter included."""
        index = [block.name for block in self.lgm.blocks].index(law.name)
        zz = _jittered(law, point, Z)
        latent = replace(
            self.lgm.blocks[index],
            name=f"{law.name}_u", value_name=f"{law.name}_u", form="GP at inducing points",
            shape=(len(Z),), size=len(Z), copies=1, whitened=False, diagonal=False,
            scale=None, scale_pullback=None, mean=None,
        )  # fmt: skip
        return BlockPrior(latent, zz).factorized()

    def other_parts(self, point: Point, rows, first: int):
        """Yield (index, prior, map onto the rows, which weights) of every other block.

        ``first`` is the number of weights before theirs.
        """
        for i in self.others:
            block = self._block(i, point)
            A = self._map(i, point)
            if not (isinstance(rows, slice) and rows == slice(None)):
                A = A.rows(rows)
            part = slice(first, first + block.block.total_size)
            first = part.stop
            yield i, block, A, part

    # -- parts that depend on few entries of the point ---------------------------------------------

    def _offset(self, point: Point) -> Array:
        return self._part("offset", self.lgm.offset, point, lambda x: np.array(x, dtype=float))

    def _map(self, index: int, point: Point) -> LinearMap:
        return self._part(("map", index), self.lgm.maps[index], point, lambda A: A)

    def _factor(self, process: int, point: Point, Z: Array) -> TriangularFactor:
        law = self.laws[process]
        key = (Z.tobytes(), *(np.asarray(point[entry]).tobytes() for entry in law.names))
        known = self._parts.get(("factor", process))
        if known is None or known[0] != key:
            name = f"the covariance of {law.name!r} at its inducing inputs"
            chol = cholesky_with_jitter(_jittered(law, point, Z), name=name)[0]
            known = self._parts["factor", process] = (key, TriangularFactor(chol))
        return known[1]

    def _block(self, index: int, point: Point) -> BlockPrior:
        latent = self.lgm.blocks[index]
        return self._part(
            ("block", index),
            latent.scale,
            point,
            lambda scale: _factorized(block_prior(latent, scale)),
        )

    def _part(self, name, function, point: Point, make):
        key = tuple(np.asarray(point[entry]).tobytes() for entry in function.names)
        known = self._parts.get(name)
        if known is None or known[0] != key:
            known = self._parts[name] = (key, make(function(point)))
        return known[1]

    # -- derivatives that go through the predictors' graph ----------------------------------------

    def pull_predictors(self, point: Point, rows, weights: Array, latents=None) -> dict[str, Array]:
        """Return the derivatives of ⟨weights, η(θ, u)⟩ over the rows, at u = 0 or as given."""
        full = np.zeros(self.n_rows)
        full[rows] = weights
        zeros = {block.name: np.zeros(block.total_size) for block in self.lgm.blocks}
        return self.lgm.predictor_pullback(point, {**zeros, **(latents or {})}, full)

    def pull_map(self, point: Point, rows, index: int, weights: Array, u: Array):
        """Return the derivatives of ⟨weights, A(θ) u⟩ over the rows, for block ``index``."""
        at_zero = self.pull_predictors(point, rows, weights)
        at_u = self.pull_predictors(point, rows, weights, {self.lgm.blocks[index].name: u})
        return {name: at_u[name] - at_zero[name] for name in at_u}

    def pull_coefficients(self, point: Point, rows, process: int, weights: Array):
        """Return the derivatives of Σ weightsᵢ aᵢ(θ) for the coefficients of a process."""
        index = self._blocks[process]
        ones = np.ones(self.lgm.blocks[index].total_size)
        return self.pull_map(point, rows, index, weights, ones)


def chol_pullback(chol: Array, transposed_slope: Array) -> Array:
    """Return the derivative by K, given Lᵀ times that by L = chol(K); symmetric.

    Murray, I. (2016), Differentiation of the Cholesky decomposition, arXiv:1602.07527.
    """
    lower = np.tril(transposed_slope)
    lower[np.diag_indices_from(lower)] *= 0.5
    inner = np.asfortranarray(lower + lower.T)
    left = dtrsm(0.5, chol, inner, lower=1, trans_a=1, overwrite_b=1)
    return dtrsm(1.0, chol, left, lower=1, side=1, overwrite_b=1)


def _jittered(law: ProcessLaw, point: Point, Z: Array) -> Array:
    zz = np.array(law.cov(point, Z), order="F")
    zz[np.diag_indices_from(zz)] += law.jitter
    return zz


def _factorized(block: BlockPrior) -> BlockPrior:
    return block if block.std is not None else block.factorized()


def _accumulate(total: dict[str, Array], terms: Mapping[str, Array]) -> None:
    for name, term in terms.items():
        total[name] = total[name] + term if name in total else np.asarray(term)
