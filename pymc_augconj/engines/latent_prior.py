"""The joint prior of the latent blocks and of the predictors, at one value of θ.

Predictors are taken relative to their offset, η′ = η − offset = Σ_b A_b u_b, so that their prior
mean is zero, and rows of A that are equal are merged: observations that share their predictor
(``f[idx]``, ``alpha[group]``) become one site with the summed natural parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from ..errors import NotPositiveDefiniteError, RecognitionError
from ..gaussian.cholesky import cholesky_with_jitter
from ..gaussian.linear_map import DenseMap, LinearMap, RowSelection
from ..gaussian.triangular import lower_product, lower_transpose_product, symmetric_product
from ..model import LatentBlock, LatentGaussianModel, Point, PointMap

__all__ = ["BlockPrior", "KeptParts", "LatentPrior", "LatentPriors", "RowGroups", "block_prior"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RowGroups:
    """Predictors that are equal for every value of the latents.

    Attributes
    ----------
    first : ndarray of int, shape (R,)
        One member of each group.
    inverse : ndarray of int, shape (N,), or None
        Group of each predictor; None where every predictor is its own group.
    """

    first: NDArray[np.intp]
    inverse: NDArray[np.intp] | None

    @classmethod
    def find(cls, maps_at: Sequence[Sequence[LinearMap]]) -> RowGroups:
        """Group the rows that agree in every block and at every θ tried.

        Parameters
        ----------
        maps_at : sequence of sequence of LinearMap
            The blocks' maps at one or more values of θ.
        """
        columns = []
        for maps in maps_at:
            for A in maps:
                if isinstance(A, DenseMap):
                    n_rows = A.matrix.shape[0]
                    return cls(np.arange(n_rows), None)
                columns.append(A.index)
                if A.coef is not None:
                    columns.append(A.coef)
        keys = np.stack(columns, axis=1)
        n_rows = keys.shape[0]
        _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        if first.size == n_rows:
            return cls(np.arange(n_rows), None)
        # In order of first appearance, so that f[idx] with a permutation-free idx is the identity.
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        return cls(first[order], rank[inverse.ravel()])

    @property
    def size(self) -> int:
        """R, the number of groups."""
        return self.first.size

    def merge(self, h: Array, lam: Array, offset: Array) -> tuple[Array, Array, float]:
        """Return the merged sites of η − offset, and the constant that the shift leaves.

        Returns
        -------
        h, lam : ndarray, shape (R,)
        constant : float
            Σ (h·offset − ½ λ·offset²).
        """
        weighted = lam * offset
        constant = float(h @ offset - 0.5 * (weighted @ offset))
        h = h - weighted
        if self.inverse is not None:
            h = np.bincount(self.inverse, weights=h, minlength=self.size)
            lam = np.bincount(self.inverse, weights=lam, minlength=self.size)
        return h, lam, constant


class BlockPrior:
    """One block at one θ: u = S v with v ~ N(0, I), S = diag(std) or chol(K).

    Attributes
    ----------
    block : LatentBlock
    std : ndarray or None
        Standard deviations, for a diagonal block.
    cov : ndarray or None
        K, for a dense one.
    jitter : float
        What was added to the diagonal of the user's K to factorise it.
    """

    def __init__(self, block: LatentBlock, scale: Array, jitter: float = 0.0):
        self.block = block
        self.std = scale if block.diagonal else None
        self.cov = None if block.diagonal else scale
        self.jitter = jitter
        self._chol: Array | None = None
        self._jittered: BlockPrior | None = None

    def factorized(self) -> BlockPrior:
        """Return this block, or one with the jitter that its covariance needs, factorised.

        Raises
        ------
        NotPositiveDefiniteError
            If no jitter of the ladder suffices. A whitened block takes none: PyMC itself uses the
            plain factor there, and any other would make its f another one than ours.
        """
        if self._chol is None and self._jittered is None:
            name = f"the covariance of {self.block.name!r}"
            jitters = {"relative_jitters": (0.0,)} if self.block.whitened else {}
            chol, jitter = cholesky_with_jitter(self.cov, name=name, **jitters)
            if jitter == 0.0:
                self._chol = chol
            else:
                cov = np.array(self.cov, order="F")
                cov[np.diag_indices_from(cov)] += jitter
                self._jittered = BlockPrior(self.block, cov, jitter)
                self._jittered._chol = chol
        return self if self._jittered is None else self._jittered

    @property
    def chol(self) -> Array:
        """Lower Cholesky factor of K, Fortran-ordered."""
        if self._chol is None:
            self.factorized()
        return self._chol if self._chol is not None else self._jittered._chol

    def scale(self, v: Array) -> Array:
        """Return S v, flat."""
        if self.std is not None:
            return self.std * v
        if self.block.copies == 1:
            return lower_product(self.chol, v)
        return (v.reshape(self.block.copies, -1) @ self.chol.T).ravel()

    def scale_transpose(self, x: Array) -> Array:
        """Return Sᵀ x, flat."""
        if self.std is not None:
            return self.std * x
        if self.block.copies == 1:
            return lower_transpose_product(self.chol, x)
        return (x.reshape(self.block.copies, -1) @ self.chol).ravel()

    def unscale(self, u: Array) -> Array:
        """Return v = S⁻¹ u, flat."""
        if self.std is not None:
            # A latent without variance is its mean, whatever v is.
            return np.divide(u, self.std, out=np.zeros_like(u), where=self.std > 0.0)
        columns = u.reshape(self.block.copies, -1).T
        return np.ravel(solve_triangular(self.chol, columns, lower=True), order="F")

    def apply_cov(self, x: Array) -> Array:
        """Return K x, flat."""
        if self.std is not None:
            return self.std**2 * x
        if self.block.copies == 1:
            return symmetric_product(self.cov, x)
        return (x.reshape(self.block.copies, -1) @ self.cov).ravel()

    def log_density(self, v: Array) -> float:
        """Return the log density, in the point's own parametrisation, at the whitened v."""
        log_scale = 0.0
        if not self.block.whitened:
            if self.std is not None:
                log_scale = float(np.log(self.std).sum())
            else:
                log_scale = self.block.copies * float(np.log(np.diagonal(self.chol)).sum())
        return -0.5 * float(v @ v) - 0.5 * v.size * np.log(2.0 * np.pi) - log_scale

    def predictor_cov(self, A: LinearMap) -> Array:
        """Return A K Aᵀ, shape (R, R)."""
        copies = self.block.copies
        if isinstance(A, DenseMap):
            dense = A.dense()
            if self.std is not None:
                half = dense * self.std
                return half @ half.T
            parts = np.split(dense, copies, axis=1)
            return sum(part @ self.cov @ part.T for part in parts)
        if self.std is not None:
            same = np.equal.outer(A.index, A.index)
            values = self.std[A.index] if A.coef is None else self.std[A.index] * A.coef
            return np.where(same, np.multiply.outer(values, values), 0.0)
        if copies == 1:
            cov = self.cov if A.is_identity else self.cov[np.ix_(A.index, A.index)]
        else:
            within = A.index % self.block.size
            which = A.index // self.block.size
            cov = self.cov[np.ix_(within, within)] * np.equal.outer(which, which)
        return cov if A.coef is None else cov * np.multiply.outer(A.coef, A.coef)

    def whitened_design(self, A: LinearMap) -> Array:
        """Return A S, shape (R, total_size)."""
        dense = A.dense()
        if self.std is not None:
            return dense * self.std
        parts = np.split(dense, self.block.copies, axis=1)
        return np.hstack([part @ self.chol for part in parts])


class LatentPrior:
    """All blocks and the predictors at one θ; matrices are formed when first asked for.

    Attributes
    ----------
    offset : ndarray, shape (N,)
        η at u = 0, every predictor.
    blocks : tuple of BlockPrior
    maps : tuple of LinearMap
        A_b on the merged rows.
    full_maps : tuple of LinearMap
        A_b on every row.
    """

    def __init__(
        self,
        offset: Array,
        blocks: tuple[BlockPrior, ...],
        full_maps: tuple[LinearMap, ...],
        maps: tuple[LinearMap, ...],
    ):
        self.offset, self.blocks, self.full_maps, self.maps = offset, blocks, full_maps, maps
        self._jittered: LatentPrior | None = None

    @cached_property
    def predictor_cov(self) -> Array:
        """C = Σ A_b K_b A_bᵀ on the merged rows, shape (R, R), symmetric."""
        parts = [b.predictor_cov(A) for b, A in zip(self.blocks, self.maps, strict=True)]
        if len(parts) == 1:
            return parts[0]
        total = np.array(parts[0], order="F")
        for part in parts[1:]:
            # A symmetric matrix is its own transpose: add in the order of memory.
            total += part if part.flags.f_contiguous else part.T
        return total

    @cached_property
    def whitened_design(self) -> Array:
        """Φ with η′ = Φ v on the merged rows, shape (R, D)."""
        return np.hstack(
            [b.whitened_design(A) for b, A in zip(self.blocks, self.maps, strict=True)]
        )

    def split(self, v: Array) -> list[Array]:
        """Return the blocks' parts of a vector of all latents."""
        return np.split(v, np.cumsum([b.block.total_size for b in self.blocks])[:-1])

    def innovations(self, v: Array) -> list[Array]:
        """Return every block's u = S v for the whitened latents v of all of them."""
        return [b.scale(part) for b, part in zip(self.blocks, self.split(v), strict=True)]

    def whitened_product(self, v: Array) -> Array:
        """Return Φ v, shape (R,), without forming Φ."""
        return sum(A.apply(u) for A, u in zip(self.maps, self.innovations(v), strict=True))

    def whitened_transpose(self, x: Array) -> Array:
        """Return Φᵀ x, shape (D,), without forming Φ."""
        parts = zip(self.maps, self.blocks, strict=True)
        return np.concatenate([b.scale_transpose(A.apply_transpose(x)) for A, b in parts])

    def predictor(self, innovations: Sequence[Array]) -> Array:
        """Return η of every row, shape (N,)."""
        eta = self.offset.copy()
        for A, u in zip(self.full_maps, innovations, strict=True):
            eta += A.apply(u)
        return eta

    def factorized(self) -> LatentPrior:
        """Return the prior with every dense block factorised, raising where that fails.

        It is this object itself, unless a covariance needed jitter: then it is one whose
        covariances hold that jitter, so that K and chol(K) stand for the same prior.
        """
        if all(b.cov is None or b.factorized() is b for b in self.blocks):
            return self
        if self._jittered is None:
            blocks = tuple(b.factorized() for b in self.blocks)
            self._jittered = LatentPrior(self.offset, blocks, self.full_maps, self.maps)
        return self._jittered

    @property
    def jitter(self) -> float:
        """The largest jitter that the blocks' covariances hold."""
        return max(b.jitter for b in self.blocks)


class KeptParts:
    """Values of functions of the point, each kept until an entry that it depends on changes."""

    def __init__(self):
        self._known: dict[object, tuple[tuple[bytes, ...], Any]] = {}

    def get[T, V](
        self, name: object, function: PointMap[T], point: Point, make: Callable[[T], V]
    ) -> V:
        """Return ``make(function(point))``."""
        return self.keep(name, function.names, point, lambda: make(function(point)))

    def keep[V](
        self,
        name: object,
        entries: Iterable[str],
        point: Point,
        make: Callable[[], V],
        *further: bytes,
    ) -> V:
        """Return ``make()``, which depends on some entries of the point and on ``further``."""
        key = (*further, *(np.asarray(point[entry]).tobytes() for entry in entries))
        known = self._known.get(name)
        if known is None or known[0] != key:
            known = self._known[name] = (key, make())
        return known[1]


class LatentPriors:
    """Evaluates :class:`LatentPrior` at points, keeping the parts that θ did not change.

    Parameters
    ----------
    model : LatentGaussianModel
    points : sequence of mapping
        Values of θ at which rows must agree to be merged; the first is the chain's start.
    """

    def __init__(self, model: LatentGaussianModel, points: Sequence[Point]):
        self.model = model
        self.groups = RowGroups.find([[read(point) for read in model.maps] for point in points])
        self.names = tuple(
            sorted(
                {
                    name
                    for part in (model.offset, *model.maps, *(b.scale for b in model.blocks))
                    for name in part.names
                }
            )
        )
        self._parts = KeptParts()
        self._recent: list[tuple[object, LatentPrior]] = []

    def key(self, point: Point) -> tuple[bytes, ...]:
        """Return what identifies the prior at ``point``."""
        return tuple(point[name].tobytes() for name in self.names)

    def at(self, point: Point) -> LatentPrior:
        """Return the prior at ``point``; the two most recent ones are kept."""
        key = self.key(point)
        for known, prior in self._recent:
            if known == key:
                return prior
        model = self.model
        blocks = tuple(
            self._parts.get(
                ("block", b.name), b.scale, point, lambda scale, b=b: block_prior(b, scale)
            )
            for b in model.blocks
        )
        full_maps, maps = [], []
        for b, read in zip(model.blocks, model.maps, strict=True):
            pair = self._parts.get(("map", b.name), read, point, self._merge_map)
            full_maps.append(pair[0])
            maps.append(pair[1])
        offset = self._parts.get("offset", model.offset, point, lambda x: np.array(x, dtype=float))
        prior = LatentPrior(offset, blocks, tuple(full_maps), tuple(maps))
        self._recent = [(key, prior), *self._recent[:1]]
        return prior

    def _merge_map(self, A: LinearMap) -> tuple[LinearMap, LinearMap]:
        if self.groups.inverse is None:
            return A, A
        first, inverse = self.groups.first, self.groups.inverse
        if A.coef is not None and not np.allclose(
            A.coef, A.coef[first][inverse], rtol=1e-12, atol=0.0
        ):
            raise RecognitionError(
                "predictors that had equal coefficients at every hyperparameter value tried differ "
                "at this one: expected rows of one group to stay equal; please report this model"
            )
        merged = A.rows(first)
        if isinstance(merged, RowSelection) and merged.coef is not None:
            ones = np.array_equal(merged.coef, np.ones_like(merged.coef))
            merged = RowSelection(merged.index, None if ones else merged.coef, merged.size)
        return A, merged


def block_prior(block: LatentBlock, scale: Array) -> BlockPrior:
    """Return the prior of ``block``, refusing standard deviations that are none."""
    if block.diagonal:
        scale = np.array(scale, dtype=float)
        if not np.all(scale >= 0.0):
            raise NotPositiveDefiniteError(
                f"the standard deviations of {block.name!r} must not be negative or NaN, "
                f"found {scale[~(scale >= 0.0)][0]}"
            )
    return BlockPrior(block, scale)
