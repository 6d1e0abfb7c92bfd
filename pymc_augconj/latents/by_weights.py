"""Conditioning latents on their sites through the D × D precision of all whitened latents.

With M = I + ΦᵀΛΦ = L Lᵀ the affine map is invertible,

    v = M⁻¹Φᵀh + L⁻ᵀ ν,        ν = Lᵀ (v − M⁻¹Φᵀh),        log Z = ½ |L⁻¹Φᵀh|² − ½ log|M|.

Independent outputs of a process share their design: M is found without forming Φ. Let the map of a
block be a :class:`.CopiesMap` with rows aᵢ of B, and let coupled rows take the same aᵢ. Then

    M_kl = δ_kl I + Bᵀ diag(w_kl) B,        Cov(aᵢᵀu_k, aᵢᵀu_l) = aᵢᵀ (M⁻¹)_kl aᵢ,

where w_kl,ᵢ sums the entries of Λ between rows of outputs k and l that take aᵢ. For K outputs of m
weights and n rows of B the cost is O(K² n m² + (K m)³), or O(K (n m² + m³)) where no site couples
two outputs; with Φ it would be O(K³ n m²) and K² n m numbers. Other blocks add a few columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
from scipy.linalg.blas import dtrsm, dtrsv
from scipy.linalg.lapack import dpotri

from pymc_augconj.block import LatentBlock
from pymc_augconj.gaussian.sites import Coupling, Rotation, cholesky, weight_precision
from pymc_augconj.linalg.dense import (
    EPS,
    diagonal_view,
    lower_transpose_product,
    mirror_lower,
    precision_error,
    probes,
    square_work_array,
)
from pymc_augconj.linalg.factors import solve_triangle
from pymc_augconj.linalg.linear_map import CopiesMap, LinearMap
from pymc_augconj.typing import Array, Generator

from .joint import LatentPrior, kind_of
from .posterior import Posterior, Solver
from .rows import RowGroups, SiteSum


def _covariance_error(
    prior: LatentPrior, Phi: Array, lam: Array, chol: Array, rotation: Rotation
) -> float:
    """Return the estimated error of log|M| by errors of the factors of the blocks' K.

    The computed factor belongs to K + ΔK, |ΔKᵢⱼ| ≤ ε √(Kᵢᵢ Kⱼⱼ); log|I + ΛC| moves by tr(R ΔK).
    Vectors z of random signs times √Kᵢᵢ estimate ε n Σ (AᵀRA)ᵢᵢ Kᵢᵢ, with R = Λ − ΛΦM⁻¹ΦᵀΛ: a
    wide K that the data determine changes nothing.
    """
    error = 2.0 * prior.scale_error
    exact = [b.diagonal_scale is not None or bool(b.scale_error) for b in prior.blocks]
    if all(exact):
        return error
    pairs = zip(prior.blocks, exact, strict=True)
    var = [np.zeros(b.block.total_size) if is_exact else b.var() for b, is_exact in pairs]
    size = sum(map(np.count_nonzero, var))
    z = rotation.forward(prior.merged_predictor(prior.split(probes(np.concatenate(var)))))
    weighted = lam * z
    half = dtrsm(1.0, chol, (weighted @ Phi).T, lower=1)
    total, explained = float(np.vdot(weighted, z)), float(np.vdot(half, half))
    # The difference may have no digits itself.
    trace = max(total - explained, EPS * z.size * total) / len(z)
    return error + EPS * size * trace


class WeightPosterior(Posterior):
    """Posterior by the lower factor of M, whose upper triangle is meaningless.

    ``factor`` is L, log|M|, its estimated error and the diagonal of M; ``projected`` is Φᵀh.
    ``merged_cov`` returns covariances of predictors from L, where that is faster.
    """

    def __init__(
        self,
        prior: LatentPrior,
        groups: RowGroups,
        sites: SiteSum,
        factor: tuple[Array, float, float, Array],
        projected: Array,
        work: Array,
        merged_cov: Callable[[Array], Array] | None = None,
    ) -> None:
        super().__init__(prior, groups, sites)
        self._merged_cov = merged_cov
        self._chol, self.log_det, self.factor_error, diagonal = factor
        self._half = dtrsv(self._chol, projected, lower=1)
        self.work, self.size = work, self._half.size
        square = float(self._half @ self._half)
        self.log_normalizer = 0.5 * (square - self.log_det)
        self.error = precision_error(
            self.factor_error, square, lambda: diagonal, lambda: self.latent_mean
        )

    @cached_property
    def merged_cov(self) -> Array:
        return super().merged_cov if self._merged_cov is None else self._merged_cov(self._chol)

    @cached_property
    def latent_mean(self) -> Array:
        return solve_triangle(self._chol, self._half, True)

    def root(self, nu: Array) -> Array:
        return solve_triangle(self._chol, nu, True)

    def pull(self, slope: Array) -> Array:
        return solve_triangle(self._chol, slope, False)

    def solve(self, rng: Generator, x: Array) -> Array:
        return lower_transpose_product(self._chol, x) - self._half


class WeightSolver(Solver):
    """One D × D factorisation, D the total number of latent values."""

    name = "weight"
    takes_factors = True
    differentiable = True

    @classmethod
    def order(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> int:
        return sum(block.total_size for block in blocks)

    @classmethod
    def multiplications(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> float:
        R, D = float(groups.size), float(cls.order(blocks, groups))
        # Forming Φ with a dense block costs R·size² more, and so does forming C unless the map is a
        # selection, by observations as well.
        sizes = [(float(kind_of(b).matrix_order(b)), b.copies) for b in blocks]
        dense = sum(size**3 for size, _ in sizes)
        forming = sum(R * size**2 * copies for size, copies in sizes)
        return R * D**2 + D**3 / 3.0 + forming + dense / 3.0

    def _condition(
        self, prior: LatentPrior, sites: SiteSum, keep: Posterior | None
    ) -> WeightPosterior:
        diagonal, rotation = self.groups.merged.diagonalize(sites.lam)
        Phi, work = rotation.forward(prior.whitened_design.T).T, self._work(keep)
        chol, log_det, error, of_M = cholesky(weight_precision(Phi, diagonal, work), diagonal)
        error += _covariance_error(prior, Phi, diagonal, chol, rotation)
        projected, factor = rotation.forward(sites.h) @ Phi, (chol, log_det, error, of_M)
        return WeightPosterior(prior, self.groups, sites, factor, projected, work)


def _index_of(
    blocks: Sequence[LatentBlock], maps: Sequence[LinearMap], coupling: Coupling
) -> int | None:
    """Return the index of the largest block with a :class:`.CopiesMap`; None if there is none."""
    candidates = [
        (A.size, -i)
        for i, (block, A) in enumerate(zip(blocks, maps, strict=True))
        if isinstance(A, CopiesMap)
        and block.is_standard
        and np.array_equal(A.position[coupling.first], A.position[coupling.second])
    ]
    return -max(candidates)[1] if candidates else None


class _Design:
    """Φ at one θ: the rows of B for each output, and the other blocks' columns."""

    diagonal_blocks: Sequence[slice]

    def __init__(self, prior: LatentPrior, coupling: Coupling) -> None:
        index = _index_of([b.block for b in prior.blocks], prior.maps, coupling)
        assert index is not None  # this solver is chosen for models that have one
        A = prior.maps[index]
        assert isinstance(A, CopiesMap)
        self.A, starts = A, np.cumsum([0, *(b.block.total_size for b in prior.blocks)])
        self.size, first = int(starts[-1]), int(starts[index])
        m = A.base.shape[1]
        self.parts = [slice(first + k * m, first + (k + 1) * m) for k in range(A.copies)]
        self.own = slice(first, first + A.size)
        self.others = np.delete(np.arange(self.size), self.own)
        rest = [i for i in range(len(prior.blocks)) if i != index]
        columns = [prior.blocks[i].whitened_design(prior.maps[i]) for i in rest]
        self.rest = np.hstack([np.empty((coupling.n_rows, 0)), *columns])
        # Rows of every entry of Λ, and the position of its sum.
        rows = np.arange(coupling.n_rows)
        self.coupling = coupling
        self.r, self.s = (
            np.concatenate([rows, more]) for more in (coupling.first, coupling.second)
        )
        copies = np.sort([A.copy[self.r], A.copy[self.s]], axis=0)
        self.shape = A.copies, A.copies, len(A.base)
        self.flat = np.ravel_multi_index((copies[1], copies[0], A.position[self.r]), self.shape)
        self.coef = 1.0 if A.coef is None else A.coef[self.r] * A.coef[self.s]
        # An off-diagonal entry is in Λ twice; so it is in the symmetric M, except between rows of
        # one output.
        self.twice = np.where((copies[0] == copies[1]) & (self.r != self.s), 2.0, 1.0)

    def factorize(self, lam: Array, M: Array) -> tuple[Array, float, float, Array]:
        """Return the factor of M; it is zero outside of ``diagonal_blocks``.

        Raises NotPositiveDefiniteError if there is none.
        """
        B, others = self.A.base, self.others
        M.fill(0.0)
        w = np.bincount(self.flat, self.coef * self.twice * lam, int(np.prod(self.shape)))
        w = w.reshape(self.shape)
        apart = not others.size
        for k, rows in enumerate(self.parts):
            for other, columns in enumerate(self.parts[: k + 1]):
                own = w[k, other]
                if own.any():
                    apart &= k == other
                    M[rows, columns] = B.T @ (own[:, None] * B)
        if others.size:
            weighted = self.coupling.product(lam, self.rest.T)
            cross = self.A.apply_transpose(weighted)
            M[others, self.own] = cross
            M[self.own, others] = cross.T
            M[np.ix_(others, others)] = weighted @ self.rest
        diagonal_view(M)[...] += 1.0
        if not apart:
            self.diagonal_blocks = [slice(0, self.size)]
            return cholesky(M, lam)
        log_det, error, diagonal = 0.0, 0.0, diagonal_view(M).copy()
        self.diagonal_blocks = self.parts
        for part in self.parts:
            own = cholesky(np.array(M[part, part], order="F"), lam)
            M[part, part] = own[0]
            log_det, error = log_det + own[1], error + own[2]
        return M, log_det, error, diagonal

    def cov(self, S: Array) -> Array:
        """Return the variances of the rows of Φ v, and covariances of pairs, for Cov(v) = S."""
        B, products = self.A.base, np.zeros(self.shape)
        for k, rows in enumerate(self.parts):
            for other, columns in enumerate(self.parts[: k + 1]):
                if S[rows, columns].any():
                    products[k, other] = np.vecdot(B @ S[rows, columns], B)
        total = self.coef * products.ravel()[self.flat]
        others, rest, r, s = self.others, self.rest, self.r, self.s
        if others.size:
            beside = self.A.apply(S[others, self.own]).T
            own = rest @ S[np.ix_(others, others)]
            total += np.vecdot(beside[r], rest[s]) + np.vecdot(rest[r], beside[s])
            total += np.vecdot(own[r], rest[s])
        return total

    def posterior_cov(self, scratch: Array | None, chol: Array) -> Array:
        """Return the same of the posterior, given the factor of M."""
        inverse = square_work_array(self.size, scratch)
        inverse.fill(0.0)
        for part in self.diagonal_blocks:
            own = np.array(chol[part, part], order="F")
            inverse[part, part] = mirror_lower(dpotri(own, lower=1, overwrite_c=1)[0])
        return self.cov(inverse)


class CopiesSolver(WeightSolver):
    """The same factorisation, formed and inverted output by output."""

    name = "copies"

    @classmethod
    def multiplications(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> float:
        maps, coupling = groups.maps or (), groups.merged
        index = _index_of(blocks, maps, coupling) if maps else None
        if index is None:
            return np.inf
        A = maps[index]
        assert isinstance(A, CopiesMap)
        n, m = A.base.shape
        K, D = float(A.copies), float(cls.order(blocks, groups))
        pairs = K * (K + 1.0) / 2.0 if coupling.rows else K
        return pairs * n * m**2 + D**3 / 3.0 + groups.size * (D - A.size) * D

    def prior_cov(self, prior: LatentPrior) -> Array:
        design = _Design(prior, self.groups.merged)
        return design.cov(np.eye(design.size))

    def _condition(
        self, prior: LatentPrior, sites: SiteSum, keep: Posterior | None
    ) -> WeightPosterior:
        design, work = _Design(prior, self.groups.merged), self._work(keep)
        factor, projected = design.factorize(sites.lam, work), prior.whitened_transpose(sites.h)
        cov = partial(design.posterior_cov, self.scratch)
        return WeightPosterior(prior, self.groups, sites, factor, projected, work, cov)
