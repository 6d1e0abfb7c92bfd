"""A recognised model through inducing points, from which designs at θ and some rows are made.

See :mod:`.design` for the formulas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.cache import KeptParts
from pymc_augconj.latents.registry import block_prior
from pymc_augconj.linalg.blas import diagonal_view
from pymc_augconj.linalg.cholesky import cholesky_with_jitter
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.linalg.triangular_factor import TriangularFactor
from pymc_augconj.model import FixedValue, LatentGaussianModel, Point, PointMap, ProcessPrior
from pymc_augconj.parallel.executor import worker_number
from pymc_augconj.typing import Array, Index

from .design import ProcessRows, SparseDesign
from .posterior import WeightsPosterior

__all__ = ["SparseModel", "inducing_block", "process_cov", "selection_of"]


class SparseModel:
    """A recognised model whose processes act through inducing points.

    Parameters
    ----------
    lgm : LatentGaussianModel
    priors : sequence of ProcessPrior
        The processes that do.
    point : mapping
        Any value of θ.

    Raises
    ------
    AugmentationError
        If a process enters a predictor by more than one of its values.
    """

    def __init__(
        self, lgm: LatentGaussianModel, priors: Sequence[ProcessPrior], point: Point
    ) -> None:
        self.lgm, self.priors = lgm, tuple(priors)
        names = [block.name for block in lgm.blocks]
        self._blocks = [names.index(prior.name) for prior in self.priors]
        self.others = [i for i in range(len(names)) if i not in self._blocks]
        self._parts = KeptParts()
        # The priors, for each thread that works on rows of its own.
        self._by_thread = [self.priors]
        for prior in self.priors:
            selection_of(prior, lgm.maps[names.index(prior.name)](point))

    @property
    def n_rows(self) -> int:
        """N, the number of predictors."""
        return self.lgm.n_rows

    @property
    def n_observations(self) -> int:
        """Number of observations, each of one predictor."""
        return self.n_rows

    @property
    def offset_moves(self) -> bool:
        """Whether the predictors' offset depends on θ."""
        return bool(self.lgm.offset.names)

    def size(self, inducing: Sequence[Array]) -> int:
        """Return D, the number of weights."""
        rest = sum(self.lgm.blocks[i].total_size for i in self.others)
        return sum(len(Z) for Z in inducing) + rest

    def entries(self, inducing: Sequence[Array]) -> int:
        """Return the number of entries of the design of all the data."""
        return self.n_rows * self.size(inducing)

    def prior_posterior(self, inducing: Sequence[Array]) -> WeightsPosterior:
        """Return q(w) = p(w)."""
        return WeightsPosterior.prior(self.size(inducing))

    def map_of(self, process: int) -> PointMap[LinearMap]:
        """Return the map of a process, as a function of the point."""
        return self.lgm.maps[self._blocks[process]]

    def open_threads(self, count: int) -> int:
        """Let ``count`` threads make designs, or as many as the priors allow; return how many."""
        copies = [prior.thread_copies(count) for prior in self.priors]
        self._by_thread = list(zip(*copies, strict=False))
        return len(self._by_thread)

    @property
    def of_thread(self) -> tuple[ProcessPrior, ...]:
        """The priors, as the thread that asks may use them."""
        return self._by_thread[worker_number() % len(self._by_thread)]

    def prepare(self, point: Point, inducing: Sequence[Array]) -> None:
        """Evaluate what does not depend on rows, so that several threads can share it."""
        self._offset(point)
        for p, Z in enumerate(inducing):
            self._map(self._blocks[p], point)
            # Used for several minibatches, and from several threads.
            _ = self._factor(p, point, Z).inverse
        for i in self.others:
            self._block(i, point)
            self._map(i, point)

    def design(
        self,
        point: Point,
        inducing: Sequence[Array],
        rows: Index | slice,
    ) -> SparseDesign:
        """Return the predictors ``rows`` at θ and given inducing inputs.

        Raises
        ------
        NotPositiveDefiniteError
            If a covariance has no Cholesky factor.
        """
        offset = self._offset(point)[rows]
        alone = len(self.priors) == 1 and not self.others
        Phi = np.empty((0 if alone else self.size(inducing), offset.size), order="F")
        residual = np.zeros(offset.size)
        processes, first = [], 0
        for p, (prior, Z) in enumerate(zip(self.of_thread, inducing, strict=True)):
            A = self._map(self._blocks[p], point)
            assert isinstance(A, RowSelection)  # which the constructor has seen to
            index = A.index[rows]
            coef = None if A.coef is None else A.coef[rows]
            X = np.asarray(prior.inputs[index], dtype=float)
            factor = self._factor(p, point, Z)
            xz, diagonal = prior.cross(point, X, Z)
            half = factor.solve(xz.T, overwrite=True)
            left = diagonal - np.vecdot(half.T, half.T)
            residual += left if coef is None else coef**2 * left
            scaled = half if coef is None else half * coef
            if alone:
                Phi = scaled
            else:
                Phi[first : first + len(Z)] = scaled
            first += len(Z)
            processes.append(ProcessRows(p, coef, X, Z, factor, half, diagonal))
        for _, block, A, part in self.other_parts(point, rows, first):
            Phi[part] = block.whitened_design(A).T
        # Where an inducing input is an input nothing is left, up to rounding.
        np.maximum(residual, 0.0, out=residual)
        return SparseDesign(Phi, residual, offset, first, point, rows, processes)

    def other_parts(
        self, point: Point, rows: Index | slice, first: int
    ) -> Iterator[tuple[int, BlockPrior, LinearMap, slice]]:
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
        return self._parts.get("offset", self.lgm.offset, point, lambda x: np.array(x, dtype=float))

    def _map(self, index: int, point: Point) -> LinearMap:
        return self._parts.get(("map", index), self.lgm.maps[index], point, lambda A: A)

    def _factor(self, process: int, point: Point, Z: Array) -> TriangularFactor:
        prior = self.priors[process]

        def factorize() -> TriangularFactor:
            name = f"the covariance of {prior.name!r} at its inducing inputs"
            return TriangularFactor(
                cholesky_with_jitter(process_cov(prior, point, Z), name=name)[0]
            )

        return self._parts.keep(("factor", process), prior.names, point, factorize, Z.tobytes())

    def _block(self, index: int, point: Point) -> BlockPrior:
        latent = self.lgm.blocks[index]
        return self._parts.get(
            ("block", index),
            latent.scale,
            point,
            lambda array: block_prior(latent, array).factorized(),
        )

    # -- derivatives that go through the predictors' graph ----------------------------------------

    def pull_predictors(
        self,
        point: Point,
        rows: Index | slice,
        weights: Array,
        latents: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """Return the derivatives of ⟨weights, η(θ, u)⟩ over the rows, at u = 0 or as given."""
        full = np.zeros(self.n_rows)
        full[rows] = weights
        zeros = {block.name: np.zeros(block.total_size) for block in self.lgm.blocks}
        return self.lgm.predictor_pullback(point, {**zeros, **(latents or {})}, full)

    def pull_map(
        self, point: Point, rows: Index | slice, index: int, weights: Array, u: Array
    ) -> dict[str, Array]:
        """Return the derivatives of ⟨weights, A(θ) u⟩ over the rows, for block ``index``."""
        at_zero = self.pull_predictors(point, rows, weights)
        at_u = self.pull_predictors(point, rows, weights, {self.lgm.blocks[index].name: u})
        return {name: at_u[name] - at_zero[name] for name in at_u}

    def pull_coefficients(
        self, point: Point, rows: Index | slice, process: int, weights: Array
    ) -> dict[str, Array]:
        """Return the derivatives of Σ weightsᵢ aᵢ(θ) for the coefficients of a process."""
        index = self._blocks[process]
        ones = np.ones(self.lgm.blocks[index].total_size)
        return self.pull_map(point, rows, index, weights, ones)


def selection_of(prior: ProcessPrior, A: LinearMap, copies: int = 1) -> RowSelection:
    """Return the map of a process, as what it has to be.

    Raises
    ------
    AugmentationError
        If a predictor takes more than one of its values.
    """
    if not isinstance(A, RowSelection):
        raise AugmentationError(
            f"gp {prior.name!r}: expected every observation to take one value of it, perhaps "
            "scaled, for inducing points, but it enters a predictor through a matrix; fit without "
            "inducing points"
        )
    if A.size != copies * len(prior.inputs):
        raise AugmentationError(
            f"gp {prior.name!r}: expected inputs for its {A.size} values, found "
            f"{copies * len(prior.inputs)}"
        )
    return A


def inducing_block(
    lgm: LatentGaussianModel, prior: ProcessPrior, point: Point, Z: Array
) -> BlockPrior:
    """Return the prior of a process's values at inducing inputs, jitter included."""
    index = [block.name for block in lgm.blocks].index(prior.name)
    zz, copies = process_cov(prior, point, Z), lgm.blocks[index].copies
    latent = replace(
        lgm.blocks[index],
        name=f"{prior.name}_u", value_name=f"{prior.name}_u", form="GP at inducing points",
        shape=(len(Z),) if copies == 1 else (copies, len(Z)), size=len(Z), whitened=False,
        kind="dense", scale=FixedValue(zz), scale_pullback=None, mean=None,
    )  # fmt: skip
    return block_prior(latent, zz).factorized()


def process_cov(prior: ProcessPrior, point: Point, Z: Array) -> Array:
    """Return the covariance of a process at Z, jitter included; Fortran-ordered."""
    # Symmetric, so that the transpose of a C-ordered one is itself, Fortran-ordered.
    zz = np.array(prior.cov(point, Z).T, order="F")
    diagonal_view(zz)[...] += prior.jitter
    return zz
