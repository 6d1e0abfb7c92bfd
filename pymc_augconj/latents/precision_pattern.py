"""The precision of structured latents and of those beside them, given sites: a band with a border.

With Q the prior precision of the structured blocks, in their own coordinates u, and the identity of
the others, in whitened coordinates v, η′ = Φ x with x = (u, v) and

    M = blockdiag(Q, I) + ΦᵀΛΦ = [B  Cᵀ]
                                 [C  D ].

Structured blocks that each predictor takes one value of stand in B, which is banded after
reordering, and with them diagonal blocks of which the same is true and which keep the band narrow
(a map's independent effects). The others, an intercept or coefficients, are the border. So

    B = L₁ L₁ᵀ,        W = L₁⁻¹ Cᵀ,        D − WᵀW = L₂ L₂ᵀ.

References
----------
Rue & Held (2005), Gaussian Markov Random Fields, chapters 2 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri, dtrtrs

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.linalg.banded import BandedFactor, BandPattern
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.model import LatentBlock
from pymc_augconj.typing import Array, Index

from .base import BlockPrior
from .diagonal import DiagonalPrior
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
    positions : ndarray of int
        In the flat band.
    twice : ndarray of bool, or None
        Where entry and transposed entry are the same one, and both count.
    """

    first: int
    second: int
    coupled: bool
    positions: Index
    twice: Array | None


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
        structured = [i for i, block in enumerate(blocks) if block.kind == PrecisionPrior.kind]
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
        self._starts = dict(
            zip(within, np.cumsum([0, *(sizes[i] for i in within)])[:-1].tolist(), strict=True)
        )
        self.size = sum(sizes[i] for i in within)
        self.border = sum(sizes[i] for i in self.outside)
        rows, cols = [], []
        for i in within:
            entries = self._blocks[i].entries
            if entries is not None:
                rows.append(entries[0] + self._starts[i])
                cols.append(entries[1] + self._starts[i])
        for _, _, _, left, right in self._pairs():
            rows.append(left)
            cols.append(right)
        self.band = BandPattern(self.size, np.concatenate(rows), np.concatenate(cols))
        for name in ("products", "_prior_positions"):
            self.__dict__.pop(name, None)
        self._of_sites: tuple[Array, list[Array | None], Array] | None = None
        n, m = float(self.size), float(self.border)
        self.multiplications = n * (self.band.width + 1.0) ** 2 + n * (m + 1.0) ** 2 + m**3 / 3.0

    def _pairs(self) -> list[tuple[int, int, bool, Index, Index]]:
        """Return columns that meet: by blocks, in rows, and in coupled pairs of rows."""
        columns = {i: self._starts[i] + self._maps[i].index for i in self.within}
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
            twice = np.where(left == right, 2.0, 1.0) if coupled else None
            found.append(_Products(a, b, coupled, self.band.positions(left, right), twice))
        return found

    @cached_property
    def _prior_positions(self) -> dict[int, tuple[Index, Index]]:
        """Which of the entries of Q enter B, and where; of a diagonal block all diagonal ones."""
        found = {}
        for i in self.within:
            entries, start = self._blocks[i].entries, self._starts[i]
            if entries is None:
                lower = own = np.arange(self._blocks[i].total_size)
                rows = cols = own
            else:
                lower = np.flatnonzero(entries[0] >= entries[1])
                rows, cols = entries[:, lower]
            found[i] = lower, self.band.positions(rows + start, cols + start)
        return found

    def holds(self, maps: Sequence[LinearMap]) -> bool:
        """Return whether maps take the same values of the blocks within the band."""
        return self.fits_model and all(_same_index(maps[i], self._maps[i]) for i in self.within)

    # -- coordinates: those within the band, in its order, then the border -------------------------

    def start(self, index: int) -> int:
        """Return where a block within the band begins among these."""
        return self._starts[index]

    def block_size(self, index: int) -> int:
        """Return the number of values of a block."""
        return self._blocks[index].total_size

    def part(self, index: int, x: Array) -> Array:
        """Return the part of one block, in its own order, of x, shape (…, n + border)."""
        size = self._blocks[index].total_size
        if index in self._starts:
            start = self._starts[index]
            return self.band.back(x[..., : self.size])[..., start : start + size]
        start = self.size + sum(self._blocks[i].total_size for i in self.outside if i < index)
        return x[..., start : start + size]

    def joined(self, parts: Sequence[Array]) -> Array:
        """Return x from the parts of all blocks."""
        within = np.concatenate([parts[i] for i in self.within], axis=-1)
        return np.concatenate([self.band.forward(within), *(parts[i] for i in self.outside)], -1)

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
            if block.block.band.width == self.band.width and np.array_equal(
                block.block.band.order, self.band.order
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
        corner.ravel()[:: self.border + 1] += 1.0
        chol, info = dpotrf(corner, lower=1) if self.border else (corner, 0)
        log_det = factor.log_det + 2.0 * float(np.log(np.diagonal(chol)).sum())
        if info != 0 or not np.isfinite(log_det):
            raise NotPositiveDefiniteError(
                "the posterior precision of the latents has no Cholesky factor: expected a finite "
                "design and precisions whose negative ones do not outweigh the prior"
            )
        structured = [block for block in prior.blocks if isinstance(block, PrecisionPrior)]
        log_det += 2.0 * sum(block.log_det_scale() for block in structured)
        return PrecisionFactor(self, design, factor, half, chol, log_det)


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
        self.border = np.hstack([np.empty((n_rows, 0)), *parts])

    def products(self, which: _Products, weights: Array) -> Array:
        """Return the weighted products of two entries of Φ, each in one of a pair of rows."""
        coupling = self._pattern.coupling
        terms = weights
        for block, rows in ((which.first, coupling.first), (which.second, coupling.second)):
            coef = self.maps[block].coef
            if coef is not None:
                terms = terms * (coef[rows] if which.coupled else coef)
        return terms if which.twice is None else terms * which.twice

    def transpose_within(self, weights: Array) -> Array:
        """Return Φᵀw within the band, shape (count, n), for each row of w."""
        parts = [A.transpose_rows(weights) for A in self.maps.values()]
        return self._pattern.band.forward(np.concatenate(parts, axis=-1))

    def transpose(self, w: Array) -> Array:
        """Return Φᵀw."""
        parts = np.concatenate([A.apply_transpose(w) for A in self.maps.values()])
        return np.concatenate([self._pattern.band.forward(parts), w @ self.border])

    def apply(self, x: Array) -> Array:
        """Return Φ x."""
        pattern = self._pattern
        total = self.border @ x[pattern.size :]
        for i, A in self.maps.items():
            total += A.apply(pattern.part(i, x))
        return total

    def apply_within(self, x: Array) -> Array:
        """Return the part of Φ x of what is within the band, for each row of x."""
        parts = ((A, self._pattern.part(i, x)) for i, A in self.maps.items())
        return sum((A.apply_rows(part) for A, part in parts), np.zeros(()))


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
        within: BandedFactor,
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
        """B⁻¹ within the band, flat."""
        return self._within.inverse()

    @cached_property
    def _regression(self) -> Array:
        """C B⁻¹, shape (border, n)."""
        return self._within.transpose_solve(self._half_border)

    def cov_of_entries(self, index: int, rows: Index, cols: Index) -> Array:
        """Return covariances of entries of a block within the band that meet in M."""
        band, start = self.pattern.band, self.pattern.start(index)
        V, rows, cols = self._regression, rows + start, cols + start
        known = self._inverse[band.positions(rows, cols)]
        half = self.corner_cov @ V
        return known + np.einsum("ik,ik->k", half[:, band.place[rows]], V[:, band.place[cols]])

    def var(self, index: int) -> Array:
        """Return the variances of a block within the band."""
        own = np.arange(self.pattern.block_size(index))
        return self.cov_of_entries(index, own, own)

    @cached_property
    def _through_border(self) -> Array:
        """T = X − Φ₁ B⁻¹ Cᵀ: Cov(η) = Φ₁ B⁻¹ Φ₁ᵀ + T Σ₂₂ Tᵀ."""
        return self.design.border - self.design.apply_within(self._regression).T

    def predictor_cov(self) -> Array:
        """Return the variances of η′, then the covariances of coupled rows."""
        design, coupling = self.design, self.pattern.coupling
        T = self._through_border
        TS = T @ self.corner_cov
        own = np.einsum("ij,ij->i", T, TS)
        pairs = np.einsum("ij,ij->i", TS[coupling.first], T[coupling.second])
        for which in self.pattern.products:
            terms = design.products(which, self._inverse[which.positions])
            if which.coupled:
                pairs += terms if which.twice is None else terms / which.twice
            else:
                own += terms if which.first == which.second else 2.0 * terms
        return np.concatenate([own, pairs])

    def cov_with_predictors(self, index: int, lam: Array) -> Array:
        """Return Σₖ Λᵢₖ Cov(η′ₖ, xⱼ) for every row i, xⱼ the value that it takes of a block."""
        design, coupling = self.design, self.pattern.coupling
        n_rows = coupling.n_rows
        column = self.pattern.start(index) + design.maps[index].index
        T = self._through_border
        weighted = np.array([coupling.product(lam, t) for t in T.T]).reshape(T.T.shape)
        through = self.corner_cov @ self._regression[:, self.pattern.band.place[column]]
        total = -np.einsum("ik,ik->k", weighted, through)
        for which in self.pattern.products:
            known = self._inverse[which.positions]
            if not which.coupled:
                if index in (which.first, which.second):
                    other = which.second if index == which.first else which.first
                    total += lam[:n_rows] * _times(known, design.maps[other].coef)
                continue
            for block, rows, other, others in (
                (which.first, coupling.first, which.second, coupling.second),
                (which.second, coupling.second, which.first, coupling.first),
            ):
                if block == index:
                    coef = design.maps[other].coef
                    term = lam[n_rows:] * _times(known, None if coef is None else coef[others])
                    total += np.bincount(rows, term, minlength=n_rows)
        return total


def _times(x: Array, coef: Array | None) -> Array:
    return x if coef is None else x * coef
