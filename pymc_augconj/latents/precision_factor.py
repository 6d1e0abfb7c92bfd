"""Predictors of a :class:`.PrecisionPattern` at one θ, the factor of its precision, and moments."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.linalg.lapack import dpotri

from pymc_augconj.linalg.factors import BorderedFactor, UpdatedFactor
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection, times
from pymc_augconj.linalg.rounding import dense_error, probes, trace_error
from pymc_augconj.typing import Array, Index

from .base import BlockPrior
from .joint import LatentPrior
from .precision import PrecisionPrior
from .precision_pattern import PrecisionPattern, Products

__all__ = ["PrecisionFactor", "PrecisionSystem"]

_NO_FACTOR = (
    "the posterior precision of the latents has no Cholesky factor: expected a finite design and "
    "precisions whose negative ones do not outweigh the prior"
)


class PrecisionDesign:
    """Φ at one θ: coefficients of the blocks in B, and the matrix of the border."""

    def __init__(self, pattern: PrecisionPattern, prior: LatentPrior) -> None:
        self.pattern = pattern
        self.maps = {i: _in_coordinates(prior.maps[i], prior.blocks[i]) for i in pattern.within}
        n_rows = next(iter(self.maps.values())).index.size
        parts = [prior.blocks[i].whitened_design(prior.maps[i]) for i in pattern.outside]
        for i in pattern.intrinsic:
            A = self.maps[i]
            parts.append(A.apply(np.ones(A.size))[:, None])
        self.border = np.hstack([np.empty((n_rows, 0)), *parts])

    def products(self, which: Products, weights: Array) -> Array:
        """Return weighted products of entries of Φ in pairs of rows, one entry in each row."""
        coupling = self.pattern.coupling
        terms = which.taken(weights)
        for block, rows in ((which.first, coupling.first), (which.second, coupling.second)):
            coef = self.maps[block].coef
            if coef is not None:
                terms = terms * which.taken(coef[rows] if which.coupled else coef)
        return terms if which.twice is None else terms * which.twice

    def transpose_within(self, weights: Array) -> Array:
        """Return Φᵀw of the blocks in B, shape (count, n), for each row of w."""
        return self._in_order([A.transpose_rows(weights) for A in self.maps.values()])

    def transpose(self, w: Array) -> Array:
        """Return Φᵀw."""
        within = self._in_order([A.apply_transpose(w) for A in self.maps.values()])
        return np.concatenate([within, w @ self.border])

    def _in_order(self, parts: list[Array]) -> Array:
        pattern = self.pattern
        for k, i in enumerate(self.maps):
            if i in pattern.intrinsic:
                parts[k] = parts[k][..., pattern.columns(i) >= 0]
        return pattern.sparsity.forward(np.concatenate(parts, axis=-1))

    def apply(self, x: Array) -> Array:
        """Return Φ x."""
        total = self.border @ x[self.pattern.size :]
        for i, A in self.maps.items():
            total += A.apply(self.pattern.within_block(i, x))
        return total

    def apply_within(self, x: Array) -> Array:
        """Return the part of Φ x of the blocks in B, for each row of x."""
        parts = ((A, self.pattern.within_block(i, x)) for i, A in self.maps.items())
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


class PrecisionSystem:
    """A pattern with the last ΦᵀΛΦ, as a step evaluates many θ at the same sites."""

    def __init__(self, pattern: PrecisionPattern) -> None:
        self.pattern = pattern
        self._known: tuple[Array, list[Array | None], Array] | None = None

    def _gram(self, design: PrecisionDesign, lam: Array) -> Array:
        """Return ΦᵀΛΦ in B, flat."""
        pattern = self.pattern
        coefs = [A.coef for A in design.maps.values()]
        if self._known is not None:
            known_lam, known, gram = self._known
            if known_lam is lam and all(a is b for a, b in zip(known, coefs, strict=True)):
                return gram
        n_rows = pattern.coupling.n_rows
        gram = np.zeros(pattern.sparsity.n_flat)
        for products in pattern.products:
            weights = lam[n_rows:] if products.coupled else lam[:n_rows]
            terms = design.products(products, weights)
            gram += np.bincount(products.positions, terms, minlength=gram.size)
        self._known = lam, coefs, gram
        return gram

    def factorize(self, prior: LatentPrior, lam: Array, h: Array) -> PrecisionFactor:
        """Return the factor of M.

        Raises NotPositiveDefiniteError if negative precisions outweigh Q.
        """
        pattern, design = self.pattern, PrecisionDesign(self.pattern, prior)
        flat = self._gram(design, lam) + pattern.prior_precision(prior)
        factor = pattern.sparsity.factorize(flat, "the posterior precision of the latents")
        X = design.border
        weighted = np.array([pattern.coupling.product(lam, x) for x in X.T]).reshape(X.T.shape)
        sums, linear = pattern.of_sums(prior), design.transpose(h)
        first, second = sums[:, : pattern.size], sums[:, pattern.size :]
        # All at once, as several right-hand sides cost hardly more than one.
        right = [design.transpose_within(weighted), first, linear[None, : pattern.size]]
        solved = factor.half_solve(np.vstack([*right, probes(factor.diagonal)]))
        stop = pattern.border + len(sums)
        half, rows, of_linear = (
            solved[: pattern.border],
            solved[pattern.border : stop],
            solved[stop],
        )
        error = trace_error(solved[stop + 1 :])
        corner = weighted @ X
        corner.ravel()[:: pattern.border + 1][: pattern.n_whitened] += 1.0
        of_corner = np.diagonal(corner).copy()
        corner -= half @ half.T
        within = UpdatedFactor(factor, rows)
        if pattern.intrinsic:
            left = second - within.rows @ half.T
            corner += left.T @ np.linalg.solve(
                np.eye(len(sums)) + within.rows @ within.rows.T, left
            )
            half = within.shrink(half + second.T @ within.rows)
        bordered = BorderedFactor.eliminated(within, half, corner, _NO_FACTOR)
        if pattern.border:
            error += dense_error(bordered.corner, of_corner)
        structured = [block for block in prior.blocks if isinstance(block, PrecisionPrior)]
        log_det = bordered.log_det + 2.0 * sum(block.log_det_scale() for block in structured)
        half = bordered.joined_half(within.shrink(of_linear), linear[pattern.size :])
        diagonal = np.concatenate([factor.diagonal, of_corner])
        return PrecisionFactor(pattern, design, bordered, half, log_det, error, diagonal)


class PrecisionFactor:
    """The factor L of M, see :mod:`.precision_pattern`.

    ``half`` is L⁻¹ Φᵀh, ``log_det`` is log|M| − log|Q| = log|I + ΛC|, ``error`` its estimated
    rounding error, and ``diagonal`` that of M without the terms of sums.
    """

    def __init__(
        self,
        pattern: PrecisionPattern,
        design: PrecisionDesign,
        factor: BorderedFactor,
        half: Array,
        log_det: float,
        error: float,
        diagonal: Array,
    ) -> None:
        self.pattern, self.design, self.factor, self.half = pattern, design, factor, half
        self.log_det, self.error, self.diagonal = log_det, error, diagonal
        within = factor.leading
        assert isinstance(within, UpdatedFactor)
        self._within = within

    # -- moments -----------------------------------------------------------------------------------

    @cached_property
    def corner_cov(self) -> Array:
        """The covariance of the border."""
        if not self.pattern.border:
            return self.factor.corner
        cov, _ = dpotri(self.factor.corner, lower=1)
        return np.tril(cov) + np.tril(cov, -1).T

    @cached_property
    def _inverse(self) -> Array:
        """(L₁ L₁ᵀ)⁻¹ on the pattern of L₁, flat."""
        return self._within.factor.inverse()

    @cached_property
    def _regression(self) -> Array:
        """Low-rank correction factor G, (r, n): M⁻¹ on B is (L₁ L₁ᵀ)⁻¹ + Gᵀ J G.

        Its rows are the regression of the border on B, and the low-rank terms of sums.
        """
        of_border = self._within.transpose_solve(self.factor.border)
        return np.vstack([of_border, self._within.factor.transpose_solve(self._within.basis)])

    @cached_property
    def _core(self) -> Array:
        """J of :attr:`_regression`, shape (r, r)."""
        m = self.pattern.border
        core = np.diag(np.append(np.zeros(m), -1.0 / (1.0 + self._within.squares)))
        core[:m, :m] = self.corner_cov
        return core

    @cached_property
    def _rest(self) -> Array:
        """H with Cov(η) = Φ₁ (L₁ L₁ᵀ)⁻¹ Φ₁ᵀ + H J Hᵀ and Cov(η, x₁) = Φ₁ (L₁ L₁ᵀ)⁻¹ − H J G."""
        n_updates = len(self._regression) - self.pattern.border
        border = np.pad(self.design.border, ((0, 0), (0, n_updates)))
        return border - self.design.apply_within(self._regression).T

    def cov_of_entries(self, index: int, rows: Index, cols: Index) -> Array:
        """Return covariances of values of a block in B that meet in M.

        For an intrinsic block they are covariances of x.
        """
        columns, sparsity = self.pattern.columns(index), self.pattern.sparsity
        rows, cols = columns[rows], columns[cols]
        meet = (rows >= 0) & (cols >= 0)
        rows, cols = rows[meet], cols[meet]
        half, G = self._core @ self._regression, self._regression
        left, right = half[:, sparsity.place[rows]], G[:, sparsity.place[cols]]
        cov = np.zeros(meet.size)
        cov[meet] = self._inverse[sparsity.positions(rows, cols)]
        cov[meet] += np.einsum("ik,ik->k", left, right)
        return cov

    def var(self, index: int) -> Array:
        """Return the variances of a block in B."""
        columns = self.pattern.columns(index)
        own = np.arange(columns.size)
        var = self.cov_of_entries(index, own, own)
        if index in self.pattern.intrinsic:
            level = self.pattern.level(index) - self.pattern.size
            with_level = -self.corner_cov[level] @ self._regression[: self.pattern.border]
            with_level = with_level[self.pattern.sparsity.place[columns]]
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
        """Return Σₖ Λᵢₖ Cov(η′ₖ, uⱼ) for every row i, uⱼ its value of a block."""
        design, coupling, pattern = self.design, self.pattern.coupling, self.pattern
        n_rows = coupling.n_rows
        column = pattern.columns(index)[design.maps[index].index]
        H = self._rest
        weighted = np.array([coupling.product(lam, t) for t in H.T]).reshape(H.T.shape)
        through = (self._core @ self._regression)[:, pattern.sparsity.place[column]]
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
                    which.add(total, times(which.taken(lam[:n_rows]) * known, coef))
                continue
            for block, rows, other, others in (
                (which.first, coupling.first, which.second, coupling.second),
                (which.second, coupling.second, which.first, coupling.first),
            ):
                if block == index:
                    coef = design.maps[other].coef
                    coef = _taken(None if coef is None else coef[others], which)
                    rows_of = rows if which.which is None else rows[which.which]
                    term = times(which.taken(lam[n_rows:]) * known, coef)
                    total += np.bincount(rows_of, term, minlength=n_rows)
        return total


def _taken(coef: Array | None, which: Products) -> Array | None:
    return None if coef is None else which.taken(coef)
