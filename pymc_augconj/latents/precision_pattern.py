"""The precision of structured latents and of those beside them, given sites: a band with a border.

With Q the prior precision of the structured blocks, in their own coordinates u, and the identity of
the others, in whitened coordinates v, η′ = Φ x with x = (u, v) and

    M = blockdiag(Q, I) + ΦᵀΛΦ = [B  Cᵀ]
                                 [C  D ].

Structured blocks that each predictor takes one value of stand in B, which is banded after
reordering, and with them diagonal blocks of which the same is true and which keep the band narrow
(a map's independent effects). The others, an intercept or coefficients, are the border. So

    B = L₁ L₁ᵀ,        W = L₁⁻¹ Cᵀ,        D − WᵀW = L₂ L₂ᵀ.

An intrinsic block, u = x + t 1 (:mod:`.intrinsic`), has x within the band, t in the border, and the
precision of its sum, c² (Σ x + n t)², is a term P Pᵀ of rank one beside M. With V = L₁⁻¹P₁ the
factor of B + P₁P₁ᵀ is L₁ (I + V Vᵀ)^½, and the corner D − WᵀW becomes

    D − WᵀW + (P₂ − WᵀV)(I + VᵀV)⁻¹(P₂ − WᵀV)ᵀ,

a sum of what is not negative.

References
----------
Rue & Held (2005), Gaussian Markov Random Fields, chapters 2 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri, dtrtrs

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.linalg.banded import BandedFactor, BandPattern
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.model import LatentBlock
from pymc_augconj.typing import Array, Index

from .base import BlockPrior
from .diagonal import DiagonalPrior
from .intrinsic import IntrinsicPrior
from .joint import LatentPrior
from .precision import PrecisionPrior

__all__ = ["PrecisionFactor", "PrecisionPattern"]


@dataclass(frozen=True)
class _Products:
    """Which products of Φ's entries in pairs of rows enter B, and where.

    Attributes
    ----------
    first, second : int
        Blocks.
    coupled : bool
        Whether the pairs of rows are those that sites couple; else they are each row with itself.
    which : ndarray of int, or None
        Those of the pairs whose values both stand within the band; None where all do.
    positions : ndarray of int
        In the flat band.
    twice : ndarray, or None
        2 where entry and transposed entry are the same one, so that both count; else 1.
    """

    first: int
    second: int
    coupled: bool
    which: Index | None
    positions: Index
    twice: Array | None

    def taken[T: np.generic](self, x: NDArray[T]) -> NDArray[T]:
        """Return the entries of ``x`` that belong to the pairs."""
        return x if self.which is None else x[self.which]

    def add(self, total: Array, terms: Array) -> None:
        """Add the pairs' terms to ``total`` in place."""
        total[slice(None) if self.which is None else self.which] += terms


class PrecisionPattern:
    """Which latents stand in B, in which order, and which rows enter which of its entries.

    Parameters
    ----------
    blocks : sequence of LatentBlock
    maps : sequence of LinearMap
        A_b on the merged rows.
    coupling : Coupling
        Which of these rows sites couple.
    """

    def __init__(
        self, blocks: Sequence[LatentBlock], maps: Sequence[LinearMap], coupling: Coupling
    ) -> None:
        self._blocks, self._maps, self.coupling = blocks, maps, coupling
        structured = [i for i, block in enumerate(blocks) if block.entries is not None]
        self.intrinsic = [i for i in structured if blocks[i].kind == IntrinsicPrior.kind]
        #: Whether there are structured blocks, and each predictor takes one value of each.
        self.fits_model = bool(structured) and all(
            isinstance(maps[i], RowSelection) for i in structured
        )
        if not self.fits_model:
            return
        self._choose(structured)
        # Diagonal blocks whose effects are many are taken into the band where that saves work.
        others = [
            i
            for i, (block, A) in enumerate(zip(blocks, maps, strict=True))
            if block.kind == DiagonalPrior.kind and isinstance(A, RowSelection)
        ]
        for i in sorted(others, key=lambda i: -blocks[i].total_size):
            known, cost = self.within, self.multiplications
            self._choose(sorted([*known, i]))
            if self.multiplications > cost:
                self._choose(known)

    def _choose(self, within: Sequence[int]) -> None:
        """Take these blocks into the band."""
        sizes = [block.total_size for block in self._blocks]
        self.within = list(within)
        self.outside = [i for i in range(len(sizes)) if i not in self.within]
        self.size, self._columns = 0, {}
        rows, cols = [], []
        for i in within:
            columns = self._columns[i] = self._columns_of(i)
            self.size += int(np.count_nonzero(columns >= 0))
            entries = self._blocks[i].entries
            if entries is not None:
                meet = (columns[entries] >= 0).all(axis=0)
                rows.append(columns[entries[0, meet]])
                cols.append(columns[entries[1, meet]])
        self._n_whitened = sum(sizes[i] for i in self.outside)
        self.border = self._n_whitened + len(self.intrinsic)
        for *_, left, right in self._pairs():
            meet = (left >= 0) & (right >= 0)
            rows.append(left[meet])
            cols.append(right[meet])
        self.band = BandPattern(self.size, np.concatenate(rows), np.concatenate(cols))
        for name in ("products", "_prior_positions"):
            self.__dict__.pop(name, None)
        self._of_sites: tuple[Array, list[Array | None], Array] | None = None
        n, m = float(self.size), float(self.border)
        self.multiplications = n * (self.band.width + 1.0) ** 2 + n * (m + 1.0) ** 2 + m**3 / 3.0

    def _columns_of(self, index: int) -> Index:
        """Return the columns of a block's values; −1 of the origin of an intrinsic one."""
        values = np.arange(self._blocks[index].total_size)
        if index not in self.intrinsic:
            return self.size + values
        pinned = self._blocks[index].band.order[-1]
        return np.where(values == pinned, -1, self.size + values - (values > pinned))

    def _pairs(self) -> list[tuple[int, int, bool, Index, Index]]:
        """Return columns that meet: by blocks, in rows, and in coupled pairs of rows."""
        selections = {i: A for i, A in enumerate(self._maps) if isinstance(A, RowSelection)}
        columns = {i: self._columns[i][selections[i].index] for i in self.within}
        found = [
            (a, b, False, columns[a], columns[b])
            for k, a in enumerate(self.within)
            for b in self.within[k:]
        ]
        first, second = self.coupling.first, self.coupling.second
        if first.size:
            found += [
                (a, b, True, columns[a][first], columns[b][second])
                for a in self.within
                for b in self.within
            ]
        return found

    @cached_property
    def products(self) -> list[_Products]:
        """The products of Φ's entries that enter B."""
        found = []
        for a, b, coupled, left, right in self._pairs():
            meet, which = (left >= 0) & (right >= 0), None
            if not meet.all():
                which = np.flatnonzero(meet)
                left, right = left[which], right[which]
            twice = np.where(left == right, 2.0, 1.0) if coupled else None
            positions = self.band.positions(left, right)
            found.append(_Products(a, b, coupled, which, positions, twice))
        return found

    @cached_property
    def _prior_positions(self) -> dict[int, tuple[Index, Index]]:
        """Which of the entries of Q enter B, and where; of a diagonal block all diagonal ones."""
        found = {}
        for i in self.within:
            entries, columns = self._blocks[i].entries, self._columns[i]
            if entries is None:
                entries = np.tile(np.arange(columns.size), (2, 1))
            rows, cols = columns[entries]
            lower = np.flatnonzero((entries[0] >= entries[1]) & (rows >= 0) & (cols >= 0))
            found[i] = lower, self.band.positions(rows[lower], cols[lower])
        return found

    def holds(self, maps: Sequence[LinearMap]) -> bool:
        """Return whether maps take the same values of the blocks within the band."""
        return self.fits_model and all(_same_index(maps[i], self._maps[i]) for i in self.within)

    # -- coordinates: those within the band, in its order, then the border -------------------------

    def columns(self, index: int) -> Index:
        """Return where the values of a block within the band stand, before reordering, or −1."""
        return self._columns[index]

    def level(self, index: int) -> int:
        """Return where t of an intrinsic block stands in x."""
        return self.size + self._n_whitened + self.intrinsic.index(index)

    def within_band(self, index: int, x: Array) -> Array:
        """Return what is within the band of a block, in its own order; zero at an origin."""
        columns = self._columns[index]
        part = self.band.back(x[..., : self.size])
        if index not in self.intrinsic:
            return part[..., columns[0] : columns[0] + columns.size]
        return np.where(columns >= 0, part[..., columns], 0.0)

    def part(self, index: int, x: Array) -> Array:
        """Return the part of one block, in its own order, of x, shape (…, D)."""
        if index in self.intrinsic:
            level = self.level(index)
            return self.within_band(index, x) + x[..., level : level + 1]
        if index in self._columns:
            return self.within_band(index, x)
        start = self.size + sum(self._blocks[i].total_size for i in self.outside if i < index)
        return x[..., start : start + self._blocks[index].total_size]

    def joined(self, parts: Sequence[Array]) -> Array:
        """Return x from the parts of all blocks."""
        return self._join(parts, lambda part, pinned: part[..., [pinned]], subtract=True)

    def joined_weights(self, parts: Sequence[Array]) -> Array:
        """Return w with wᵀx = Σ partᵀ part of x."""
        return self._join(parts, lambda part, _: part.sum(axis=-1, keepdims=True), subtract=False)

    def _join(
        self, parts: Sequence[Array], level: Callable[[Array, int], Array], *, subtract: bool
    ) -> Array:
        within, levels = [], []
        for i in self.within:
            part = parts[i]
            if i in self.intrinsic:
                pinned = int(self._blocks[i].band.order[-1])
                levels.append(level(part, pinned))
                part = np.delete(part - levels[-1] if subtract else part, pinned, axis=-1)
            within.append(part)
        joined = self.band.forward(np.concatenate(within, axis=-1))
        return np.concatenate([joined, *(parts[i] for i in self.outside), *levels], axis=-1)

    def of_sums(self, prior: LatentPrior) -> Array:
        """Return Pᵀ: c times the coefficients of the sum of each intrinsic block in x."""
        found = np.zeros((len(self.intrinsic), self.size + self.border))
        for row, i in zip(found, self.intrinsic, strict=True):
            block = prior.blocks[i]
            assert isinstance(block, IntrinsicPrior)
            columns, c = self._columns[i], np.sqrt(block.common)
            row[self.band.place[columns[columns >= 0]]] = c
            row[self.level(i)] = c * columns.size
        return found

    def from_whitened(self, prior: LatentPrior, v: Array) -> Array:
        """Return x, given all whitened latents, (D,) or (count, D)."""
        return self.joined(
            [
                block.scale(part) if isinstance(block, PrecisionPrior) else part
                for block, part in zip(prior.blocks, prior.split(v), strict=True)
            ]
        )

    def to_whitened(self, prior: LatentPrior, x: Array) -> Array:
        """Return all whitened latents."""
        parts = (self.part(i, x) for i in range(len(prior.blocks)))
        return np.concatenate(
            [
                block.unscale(part) if isinstance(block, PrecisionPrior) else part
                for block, part in zip(prior.blocks, parts, strict=True)
            ],
            axis=-1,
        )

    # -- the precision -----------------------------------------------------------------------------

    def _prior_part(self, prior: LatentPrior) -> Array:
        """Return the prior precision of what is within the band, flat."""
        if len(self.within) == 1:
            # The band of the one block is that of all, where the predictors couple no values.
            block = prior.blocks[self.within[0]]
            own = block.block.band
            if block.block.kind == PrecisionPrior.kind and (
                own.width == self.band.width and np.array_equal(own.order, self.band.order)
            ):
                return block.block.flat_precision(block.array)
        flat = np.zeros(self.band.n_flat)
        for i, (lower, positions) in self._prior_positions.items():
            block = prior.blocks[i]
            flat[positions] = block.array[lower] if isinstance(block, PrecisionPrior) else 1.0
        return flat

    def _gram(self, design: PrecisionDesign, lam: Array) -> Array:
        """Return ΦᵀΛΦ within the band, flat; the last one is kept."""
        coefs = [A.coef for A in design.maps.values()]
        if self._of_sites is not None:
            known_lam, known, gram = self._of_sites
            if known_lam is lam and all(a is b for a, b in zip(known, coefs, strict=True)):
                return gram
        n_rows = self.coupling.n_rows
        gram = np.zeros(self.band.n_flat)
        for products in self.products:
            weights = lam[n_rows:] if products.coupled else lam[:n_rows]
            terms = design.products(products, weights)
            gram += np.bincount(products.positions, terms, minlength=gram.size)
        self._of_sites = lam, coefs, gram
        return gram

    def factorize(self, prior: LatentPrior, lam: Array) -> PrecisionFactor:
        """Return the factor of M; NotPositiveDefiniteError if negative precisions outweigh Q."""
        design = PrecisionDesign(self, prior)
        flat = self._gram(design, lam) + self._prior_part(prior)
        factor = self.band.factorize(flat, "the posterior precision of the latents")
        X = design.border
        weighted = np.array([self.coupling.product(lam, x) for x in X.T]).reshape(X.T.shape)
        half = factor.half_solve(design.transpose_within(weighted))
        corner = weighted @ X - half @ half.T
        corner.ravel()[:: self.border + 1][: self._n_whitened] += 1.0
        within = UpdatedFactor(factor, np.empty((0, self.size)))
        if self.intrinsic:
            sums = self.of_sums(prior)
            first, second = sums[:, : self.size], sums[:, self.size :]
            within = UpdatedFactor(factor, factor.half_solve(first))
            left = second - within.rows @ half.T
            corner += left.T @ np.linalg.solve(
                np.eye(len(sums)) + within.rows @ within.rows.T, left
            )
            half = within.shrink(half + second.T @ within.rows)
        chol, info = dpotrf(corner, lower=1) if self.border else (corner, 0)
        log_det = within.log_det + 2.0 * float(np.log(np.diagonal(chol)).sum())
        if info != 0 or not np.isfinite(log_det):
            raise NotPositiveDefiniteError(
                "the posterior precision of the latents has no Cholesky factor: expected a finite "
                "design and precisions whose negative ones do not outweigh the prior"
            )
        structured = [block for block in prior.blocks if isinstance(block, PrecisionPrior)]
        log_det += 2.0 * sum(block.log_det_scale() for block in structured)
        return PrecisionFactor(self, design, within, half, chol, log_det)


def _same_index(A: LinearMap, known: LinearMap) -> bool:
    return (
        isinstance(A, RowSelection)
        and isinstance(known, RowSelection)
        and (A.index is known.index or np.array_equal(A.index, known.index))
    )


class PrecisionDesign:
    """Φ at one θ: coefficients of the blocks within the band, and the matrix of the border."""

    def __init__(self, pattern: PrecisionPattern, prior: LatentPrior) -> None:
        self._pattern = pattern
        self.maps = {i: _in_coordinates(prior.maps[i], prior.blocks[i]) for i in pattern.within}
        n_rows = next(iter(self.maps.values())).index.size
        parts = [prior.blocks[i].whitened_design(prior.maps[i]) for i in pattern.outside]
        for i in pattern.intrinsic:
            A = self.maps[i]
            parts.append(A.apply(np.ones(A.size))[:, None])
        self.border = np.hstack([np.empty((n_rows, 0)), *parts])

    def products(self, which: _Products, weights: Array) -> Array:
        """Return the weighted products of two entries of Φ, each in one of a pair of rows."""
        coupling = self._pattern.coupling
        terms = which.taken(weights)
        for block, rows in ((which.first, coupling.first), (which.second, coupling.second)):
            coef = self.maps[block].coef
            if coef is not None:
                terms = terms * which.taken(coef[rows] if which.coupled else coef)
        return terms if which.twice is None else terms * which.twice

    def transpose_within(self, weights: Array) -> Array:
        """Return Φᵀw within the band, shape (count, n), for each row of w."""
        return self._to_band([A.transpose_rows(weights) for A in self.maps.values()])

    def transpose(self, w: Array) -> Array:
        """Return Φᵀw."""
        within = self._to_band([A.apply_transpose(w) for A in self.maps.values()])
        return np.concatenate([within, w @ self.border])

    def _to_band(self, parts: list[Array]) -> Array:
        pattern = self._pattern
        for k, i in enumerate(self.maps):
            if i in pattern.intrinsic:
                parts[k] = parts[k][..., pattern.columns(i) >= 0]
        return pattern.band.forward(np.concatenate(parts, axis=-1))

    def apply(self, x: Array) -> Array:
        """Return Φ x."""
        total = self.border @ x[self._pattern.size :]
        for i, A in self.maps.items():
            total += A.apply(self._pattern.within_band(i, x))
        return total

    def apply_within(self, x: Array) -> Array:
        """Return the part of Φ x of what is within the band, for each row of x."""
        parts = ((A, self._pattern.within_band(i, x)) for i, A in self.maps.items())
        return sum((A.apply_rows(part) for A, part in parts), np.zeros(()))


class UpdatedFactor:
    """The factor L (I + V Vᵀ)^½ of L Lᵀ + P Pᵀ, with L banded and Vᵀ = ``rows``, shape (r, n)."""

    def __init__(self, banded: BandedFactor, rows: Array) -> None:
        self.banded, self.rows = banded, rows
        # Vᵀ in coordinates in which its rows are orthogonal.
        self.squares, vectors = np.linalg.eigh(rows @ rows.T)
        self.basis = vectors.T @ rows
        self.log_det = banded.log_det + float(np.log1p(self.squares).sum())

    def _along(self, x: Array, factors: Array) -> Array:
        return x + ((x @ self.basis.T) * factors) @ self.basis if factors.size else x

    def shrink(self, x: Array) -> Array:
        """Return (I + V Vᵀ)^−½ x."""
        return self._along(x, (1.0 / np.sqrt(1.0 + self.squares) - 1.0) / self.squares)

    def half_solve(self, x: Array) -> Array:
        """Return the inverse times x."""
        return self.shrink(self.banded.half_solve(x))

    def transpose_solve(self, x: Array) -> Array:
        """Return the inverse of the transpose times x."""
        return self.banded.transpose_solve(self.shrink(x))

    def transpose_product(self, x: Array) -> Array:
        """Return the transpose times x."""
        stretch = (np.sqrt(1.0 + self.squares) - 1.0) / self.squares
        return self._along(self.banded.transpose_product(x), stretch)


def _in_coordinates(A: LinearMap, block: BlockPrior) -> RowSelection:
    """Return the map from a block's coordinates: u of structured blocks, v of diagonal ones."""
    assert isinstance(A, RowSelection)
    if isinstance(block, PrecisionPrior):
        return A
    scale = block.diagonal_scale
    assert scale is not None  # see PrecisionPattern
    coef = scale[A.index]
    return RowSelection(A.index, coef if A.coef is None else coef * A.coef, A.size)


class PrecisionFactor:
    """The factor of M: see the module's docstring.

    Attributes
    ----------
    pattern : PrecisionPattern
    design : PrecisionDesign
    log_det : float
        log|M| − log|Q| = log|I + ΛC|.
    """

    def __init__(
        self,
        pattern: PrecisionPattern,
        design: PrecisionDesign,
        within: UpdatedFactor,
        half_border: Array,
        chol: Array,
        log_det: float,
    ) -> None:
        self.pattern, self.design, self.log_det = pattern, design, log_det
        self._within, self._half_border, self._chol = within, half_border, chol

    def half_solve(self, x: Array) -> Array:
        """Return L⁻¹ x; x is (D,), or (count, D) as below."""
        first, second = self._split(x)
        first = self._within.half_solve(first)
        second = self._corner(second - first @ self._half_border.T, 0)
        return np.concatenate([first, second], axis=-1)

    def transpose_solve(self, x: Array) -> Array:
        """Return L⁻ᵀ x."""
        first, second = self._split(x)
        second = self._corner(second, 1)
        first = self._within.transpose_solve(first - second @ self._half_border)
        return np.concatenate([first, second], axis=-1)

    def transpose_product(self, x: Array) -> Array:
        """Return Lᵀ x."""
        first, second = self._split(x)
        first = self._within.transpose_product(first) + second @ self._half_border
        return np.concatenate([first, second @ np.tril(self._chol)], axis=-1)

    def solve(self, x: Array) -> Array:
        """Return M⁻¹ x."""
        return self.transpose_solve(self.half_solve(x))

    def _split(self, x: Array) -> tuple[Array, Array]:
        return x[..., : self.pattern.size], x[..., self.pattern.size :]

    def _corner(self, x: Array, trans: int) -> Array:
        if not x.size:
            return x
        solved, _ = dtrtrs(self._chol, np.atleast_2d(x).T, lower=1, trans=trans)
        return solved.T.reshape(x.shape)

    # -- moments -----------------------------------------------------------------------------------

    @cached_property
    def corner_cov(self) -> Array:
        """The covariance of the border."""
        if not self.pattern.border:
            return self._chol
        cov, _ = dpotri(self._chol, lower=1)
        return np.tril(cov) + np.tril(cov, -1).T

    @cached_property
    def _inverse(self) -> Array:
        """(L₁ L₁ᵀ)⁻¹ within the band, flat."""
        return self._within.banded.inverse()

    @cached_property
    def _regression(self) -> Array:
        """What the rest of M⁻¹ within the band is made of, shape (r, n).

        M⁻¹ is (L₁ L₁ᵀ)⁻¹ + Gᵀ J G there: G has the border's regression on what is within the band,
        and what a term of low rank takes off.
        """
        of_border = self._within.transpose_solve(self._half_border)
        return np.vstack([of_border, self._within.banded.transpose_solve(self._within.basis)])

    @cached_property
    def _core(self) -> Array:
        """J."""
        m = self.pattern.border
        core = np.diag(np.append(np.zeros(m), -1.0 / (1.0 + self._within.squares)))
        core[:m, :m] = self.corner_cov
        return core

    @cached_property
    def _rest(self) -> Array:
        """H with Cov(η) = Φ₁ (L₁ L₁ᵀ)⁻¹ Φ₁ᵀ + H J Hᵀ, and Cov(η, x₁) likewise with −H J G."""
        n_updates = len(self._regression) - self.pattern.border
        border = np.pad(self.design.border, ((0, 0), (0, n_updates)))
        return border - self.design.apply_within(self._regression).T

    def cov_of_entries(self, index: int, rows: Index, cols: Index) -> Array:
        """Return covariances of values of a block within the band that meet in M.

        Of an intrinsic block they are those of x.
        """
        columns, band = self.pattern.columns(index), self.pattern.band
        rows, cols = columns[rows], columns[cols]
        known = self._inverse[band.positions(rows, cols)]
        half, G = self._core @ self._regression, self._regression
        found = known + np.einsum("ik,ik->k", half[:, band.place[rows]], G[:, band.place[cols]])
        return np.where((rows >= 0) & (cols >= 0), found, 0.0)

    def var(self, index: int) -> Array:
        """Return the variances of a block within the band."""
        columns = self.pattern.columns(index)
        own = np.arange(columns.size)
        var = self.cov_of_entries(index, own, own)
        if index in self.pattern.intrinsic:
            level = self.pattern.level(index) - self.pattern.size
            with_level = -self.corner_cov[level] @ self._regression[: self.pattern.border]
            with_level = with_level[self.pattern.band.place[columns]]
            var += self.corner_cov[level, level] + 2.0 * np.where(columns >= 0, with_level, 0.0)
        return var

    def predictor_cov(self) -> Array:
        """Return the variances of η′, then the covariances of coupled rows."""
        design, coupling = self.design, self.pattern.coupling
        H, HJ = self._rest, self._rest @ self._core
        own = np.einsum("ij,ij->i", H, HJ)
        pairs = np.einsum("ij,ij->i", HJ[coupling.first], H[coupling.second])
        for which in self.pattern.products:
            weights = np.zeros(pairs.size if which.coupled else own.size)
            which.add(weights, self._inverse[which.positions])
            terms = design.products(which, weights)
            if which.coupled:
                which.add(pairs, terms if which.twice is None else terms / which.twice)
            else:
                which.add(own, terms if which.first == which.second else 2.0 * terms)
        return np.concatenate([own, pairs])

    def cov_with_predictors(self, index: int, lam: Array) -> Array:
        """Return Σₖ Λᵢₖ Cov(η′ₖ, uⱼ) for every row i, uⱼ the value that it takes of a block."""
        design, coupling, pattern = self.design, self.pattern.coupling, self.pattern
        n_rows = coupling.n_rows
        column = pattern.columns(index)[design.maps[index].index]
        H = self._rest
        weighted = np.array([coupling.product(lam, t) for t in H.T]).reshape(H.T.shape)
        through = (self._core @ self._regression)[:, pattern.band.place[column]]
        total = -np.einsum("ik,ik->k", weighted, np.where(column >= 0, through, 0.0))
        if index in pattern.intrinsic:
            m = pattern.border
            total += self.corner_cov[pattern.level(index) - pattern.size] @ weighted[:m]
        for which in pattern.products:
            known = self._inverse[which.positions]
            if not which.coupled:
                if index in (which.first, which.second):
                    other = which.second if index == which.first else which.first
                    coef = _taken(design.maps[other].coef, which)
                    which.add(total, _times(which.taken(lam[:n_rows]) * known, coef))
                continue
            for block, rows, other, others in (
                (which.first, coupling.first, which.second, coupling.second),
                (which.second, coupling.second, which.first, coupling.first),
            ):
                if block == index:
                    coef = design.maps[other].coef
                    coef = _taken(None if coef is None else coef[others], which)
                    term = _times(which.taken(lam[n_rows:]) * known, coef)
                    total += np.bincount(which.taken(rows), term, minlength=n_rows)
        return total


def _taken(coef: Array | None, which: _Products) -> Array | None:
    return None if coef is None else which.taken(coef)


def _times(x: Array, coef: Array | None) -> Array:
    return x if coef is None else x * coef
