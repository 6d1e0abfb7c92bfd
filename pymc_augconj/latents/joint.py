"""The kinds of prior, and the joint prior of the latent blocks and the predictors at one θ.

Predictors are taken relative to their offset, η′ = η − offset = Σ_b A_b u_b, so that their prior
mean is zero, and rows of A that are equal are merged: observations that share their predictor
(``f[idx]``, ``alpha[group]``) become one site with the summed natural parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError, RecognitionError
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Key, Point, PointMap
from pymc_augconj.typing import Array

from .base import BlockPrior
from .dense import DensePrior, DiagonalPrior, FactorPrior, KroneckerPrior, StandardPrior
from .markov import MarkovPrior
from .precision import IntrinsicPrior, PivotPrior, PrecisionPrior
from .rows import RowGroups

_ALL = (
    *(DensePrior, DiagonalPrior, FactorPrior, PrecisionPrior, IntrinsicPrior, StandardPrior),
    *(MarkovPrior, PivotPrior, KroneckerPrior),
)
_KINDS: dict[str, type[BlockPrior]] = {kind.kind: kind for kind in _ALL}


def kind_of(block: LatentBlock) -> type[BlockPrior]:
    """Return the kind of prior that ``block`` names."""
    return _KINDS[block.kind]


def block_prior(block: LatentBlock, array: NDArray[np.float64], jitter: float = 0.0) -> BlockPrior:
    """Return the prior of ``block`` given the value of its ``scale``, with ``jitter`` included.

    Raises NotPositiveDefiniteError if ``array`` is no valid value.
    """
    return kind_of(block)(block, array, jitter)


# Multiplications of a factorisation from which log determinants are interpolated.
_COSTLY = 1e6


class KeptParts:
    """Values of functions of the point, each kept until an entry that it depends on changes."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[tuple[bytes, ...], Any]] = {}

    def get[T, V](
        self, name: object, function: PointMap[T], point: Point, make: Callable[[T], V]
    ) -> V:
        """Return ``make(function(point))``."""
        return self.keep(name, function.names, point, lambda: make(function(point)))

    def keep[V](
        self,
        name: object,
        entries: Iterable[Key],
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


# Rounding of the same operations may differ with the position in an array.
_ROUNDING = 64.0 * np.finfo(float).eps

# Merged rows for each column of the border, at least.
_SHARE = 8


class Border:
    """Blocks of independent coefficients that are kept out of covariances of predictors.

    They are the flat ones, and others as long as there are few columns, which cost as much in the
    border of :mod:`~pymc_augconj.gaussian.observations` as in a covariance. A wide one would leave
    no digits of the rest there. ``mask`` says whether each latent belongs to one of its ``blocks``.
    """

    def __init__(self, blocks: Sequence[BlockPrior], n_rows: int) -> None:
        sizes = [b.block.total_size for b in blocks]
        coefficients = [i for i, b in enumerate(blocks) if b.diagonal_scale is not None]
        chosen, total = [], 0
        for i in sorted(coefficients, key=lambda i: (not blocks[i].block.is_flat, sizes[i])):
            total += sizes[i]
            if blocks[i].block.is_flat or total * _SHARE <= n_rows:
                chosen.append(i)
        self.blocks = tuple(sorted(chosen))
        self.mask = np.repeat([i in chosen for i in range(len(blocks))], sizes)
        self._n_rows = n_rows

    def design(self, blocks: Sequence[BlockPrior], maps: Sequence[LinearMap]) -> Array:
        """Return Φ of its blocks, Fortran-ordered, given all blocks and maps at one θ."""
        parts = [blocks[i].whitened_design(maps[i]) for i in self.blocks]
        return np.asfortranarray(np.hstack([np.empty((self._n_rows, 0)), *parts]))


class LatentPrior:
    """All blocks and the predictors at one θ; matrices are formed when first asked for.

    ``offset`` is η at u = 0, (N,); ``full_maps`` are A_b on every row, and ``maps`` on the merged
    ones.
    """

    def __init__(
        self,
        offset: Array,
        blocks: tuple[BlockPrior, ...],
        full_maps: tuple[LinearMap, ...],
        maps: tuple[LinearMap, ...],
        border: Border | None = None,
    ) -> None:
        self.offset, self.blocks, self.full_maps, self.maps = offset, blocks, full_maps, maps
        self._border = border
        self._jittered: LatentPrior | None = None

    @cached_property
    def predictor_cov(self) -> Array:
        """C = Σ A_b K_b A_bᵀ on the merged rows, shape (R, R), symmetric."""
        return self._cov_of(range(len(self.blocks)))

    def _cov_of(self, which: Sequence[int], n_rows: int = 0) -> Array:
        parts = [self.blocks[i].predictor_cov(self.maps[i]) for i in which]
        if not parts:
            return np.zeros((n_rows, n_rows), order="F")
        if len(parts) == 1:
            return parts[0]
        total = np.array(parts[0], order="F")
        for part in parts[1:]:
            # Transpose the symmetric matrix to add in the order of memory.
            total += part if part.flags.f_contiguous else part.T
        return total

    @cached_property
    def border(self) -> Border:
        """The blocks that are kept out of covariances of predictors."""
        n_rows = self.maps[0].apply(np.zeros(self.maps[0].size)).size
        return self._border or Border(self.blocks, n_rows)

    @cached_property
    def covariance_and_border(self) -> tuple[Array, Array]:
        """C of the blocks outside the border, shape (R, R), and Φ of the border, by columns."""
        H = self.border.design(self.blocks, self.maps)
        inside = self.border.blocks
        return self._cov_of([i for i in range(len(self.blocks)) if i not in inside], len(H)), H

    @cached_property
    def log_flat(self) -> float:
        """Log ratio of the density one of flat latents to the normal one that stands for it."""
        total = 0.0
        for b in self.blocks:
            if b.block.is_flat:
                total += 0.5 * b.block.total_size * np.log(2.0 * np.pi) + b.log_det_scale()
        return total

    @cached_property
    def whitened_design(self) -> Array:
        """Φ with η′ = Φ v on the merged rows, shape (R, D)."""
        parts = [b.whitened_design(A) for b, A in zip(self.blocks, self.maps, strict=True)]
        return parts[0] if len(parts) == 1 else np.hstack(parts)

    def split(self, v: Array) -> list[Array]:
        """Return the parts of each block from all latents, (D,) or (count, D)."""
        if len(self.blocks) == 1:
            return [v]
        parts, start = [], 0
        for b in self.blocks:
            parts.append(v[..., start : start + b.block.total_size])
            start += b.block.total_size
        return parts

    def innovations(self, v: Array) -> list[Array]:
        """Return u = S v of every block for all whitened latents v, (D,) or (count, D)."""
        return [b.scale(part) for b, part in zip(self.blocks, self.split(v), strict=True)]

    def innovations_transpose(self, slopes: Sequence[Array]) -> Array:
        """Return Sᵀ x of every block, joined, shape (D,) or (count, D)."""
        parts = [b.scale_transpose(x) for b, x in zip(self.blocks, slopes, strict=True)]
        return np.concatenate(parts, axis=-1)

    def merged_predictor(self, innovations: Sequence[Array]) -> Array:
        """Return η′ = Σ A_b u_b on the merged rows, (R,), or (count, R) for (count, size)."""
        parts = zip(self.maps, innovations, strict=True)
        return sum((A.apply(u) for A, u in parts), np.zeros(()))

    def whitened_product(self, v: Array) -> Array:
        """Return Φ v, shape (R,) or (count, R), without forming Φ."""
        return self.merged_predictor(self.innovations(v))

    def whitened_transpose(self, x: Array) -> Array:
        """Return Φᵀ x, shape (D,) or (count, D), without forming Φ."""
        return self.innovations_transpose([A.apply_transpose(x) for A in self.maps])

    def predictor(self, innovations: Sequence[Array]) -> Array:
        """Return η of every row, shape (N,), or (count, N) for innovations of (count, size)."""
        eta = self.offset
        for i, (A, u) in enumerate(zip(self.full_maps, innovations, strict=True)):
            # In place where it is a new array.
            eta = np.add(eta, A.apply(u), out=eta if i else None)
        return eta

    def factorized(self) -> LatentPrior:
        """Return the prior with every block factorised, raising where that fails.

        The result is this object, unless a covariance needed jitter: then its covariances include
        the jitter, so that K and chol(K) belong to the same prior.
        """
        if all(b.factorized() is b for b in self.blocks):
            return self
        if self._jittered is None:
            blocks = tuple(b.factorized() for b in self.blocks)
            self._jittered = LatentPrior(
                self.offset, blocks, self.full_maps, self.maps, self._border
            )
        return self._jittered

    def first_sites(self, coupling: Coupling) -> tuple[Array, Array]:
        """Return (h, λ) that approximations begin with: none, or as few as a flat prior needs.

        They have unit precision, about the prior mean.
        """
        h, lam = np.zeros(coupling.n_rows), np.zeros(coupling.size)
        if self.log_flat:
            h[...], lam[: coupling.n_rows] = self.offset, 1.0
        return h, lam

    @cached_property
    def scale_error(self) -> float:
        """The estimated relative rounding error of the blocks' S."""
        return sum(b.scale_error for b in self.blocks)

    @cached_property
    def log_det_error(self) -> float:
        """The estimated rounding error of the blocks' log determinants."""
        return sum(b.log_det_error for b in self.blocks)

    @property
    def jitter(self) -> float:
        """Largest jitter in the blocks' covariances."""
        return max((b.jitter for b in self.blocks), default=0.0)


class LatentPriors:
    """Evaluates :class:`LatentPrior` at points, keeping the parts that θ did not change.

    Rows must agree at all ``points`` to be merged; the first is the chain's start. ``coupling``
    says which predictors sites couple. With ``interpolates``, log determinants of large sparse
    precisions are interpolated.
    """

    def __init__(
        self, model: LatentGaussianModel, points: Sequence[Point],
        coupling: Coupling | None = None, *, interpolates: bool = False,
    ) -> None:  # fmt: skip
        self.model, self._interpolates = model, interpolates
        maps_at = [[read(point) for read in model.maps] for point in points]
        self.groups = RowGroups.find(maps_at, coupling or Coupling(model.n_rows))
        parts = (model.offset, *model.maps, *(b.scale for b in model.blocks))
        self.names = tuple(sorted({name for part in parts for name in part.names}))
        self._kept = KeptParts()
        # Maps up to a factor, and the same on the merged rows, by block.
        self._merged: dict[int, tuple[LinearMap, LinearMap]] = {}
        self._recent: list[tuple[object, LatentPrior]] = []
        self._border: Border | None = None
        self._offset: Array | None = None

    def key(self, point: Point) -> tuple[bytes, ...]:
        """Return a key of the prior at ``point``."""
        return tuple(point[name].tobytes() for name in self.names)

    def at(self, point: Point) -> LatentPrior:
        """Return the prior at ``point``; the two most recent ones are kept."""
        key = self.key(point)
        for known, prior in self._recent:
            if known == key:
                return prior
        model, keep = self.model, self._kept.get
        offset = self._offset
        if offset is None:
            offset = keep("offset", model.offset, point, partial(np.array, dtype=float))
        blocks = tuple(
            keep(("block", i), b.scale, point, partial(self._block_at, b, point))
            for i, b in enumerate(model.blocks)
        )
        merge = [partial(self._merge_map, i) for i in range(len(model.maps))]
        pairs = [keep(("map", i), A, point, merge[i]) for i, A in enumerate(model.maps)]
        full_maps, maps = zip(*pairs, strict=True) if pairs else ((), ())
        if self._border is None:
            self._border = Border(blocks, self.groups.size)
        prior = LatentPrior(offset, blocks, full_maps, maps, self._border)
        self._recent = [(key, prior), *self._recent[:1]]
        return prior

    def set_offset(self, offset: Array) -> None:
        """Take an offset at every θ, which is not the model's."""
        self._offset, self._recent = offset, []

    def _merge_map(self, index: int, A: LinearMap) -> tuple[LinearMap, LinearMap]:
        if self.groups.inverse is None:
            return A, A
        if isinstance(A, RowSelection) and A.multiple_of[1] is not A:
            c, base = A.multiple_of
            if self._merged.get(index, (None,))[0] is not base:
                self._merged[index] = self._merge_map(index, base)
            return A, cast(RowSelection, self._merged[index][1]).times(c)
        first, inverse = self.groups.first, self.groups.inverse
        if isinstance(A, RowSelection) and A.coef is not None:
            if not np.isfinite(A.coef).all():
                raise NotPositiveDefiniteError("expected finite coefficients, found inf or NaN")
            if np.any(np.abs(A.coef - A.coef[first][inverse]) > _ROUNDING * np.abs(A.coef)):
                raise RecognitionError(
                    "predictors that had equal coefficients at every hyperparameter value tried "
                    "differ at this one: expected rows of one group to stay equal; please report it"
                )
        merged = A.rows(first)
        if isinstance(merged, RowSelection) and merged.coef is not None:
            ones = np.array_equal(merged.coef, np.ones_like(merged.coef))
            merged = RowSelection(merged.index, None if ones else merged.coef, merged.size)
        return A, merged

    def _block_at(self, block: LatentBlock, point: Point, array: Array) -> BlockPrior:
        may_interpolate = self._interpolates and kind_of(block) is PrecisionPrior
        if may_interpolate and block.sparsity.multiplications >= _COSTLY:
            assert block.entries is not None
            # Walks have a factor of their own, by τ₀ too.
            is_walk = array.size > block.entries.shape[1]
            log_det = None if is_walk else block.log_determinant.at(point, array)
            if log_det is not None:
                return PrecisionPrior(block, array, log_det=log_det)
        prior = block_prior(block, array)
        if block.log_peak is not None and not block.is_intrinsic:
            prior.log_peak = partial(block.log_peak, dict(point))
        return prior
