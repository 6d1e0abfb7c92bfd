"""Conditioning latents on their sites through the D × D precision of all whitened latents.

With M = I + ΦᵀΛΦ = L Lᵀ the affine map is invertible,

    v = M⁻¹Φᵀh + L⁻ᵀ ν,        ν = Lᵀ (v − M⁻¹Φᵀh),        log Z = ½ |L⁻¹Φᵀh|² − ½ log|M|.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from scipy.linalg.blas import dtrsm, dtrsv

from pymc_augconj.block import LatentBlock
from pymc_augconj.gaussian.sites import Rotation, cholesky, weight_precision
from pymc_augconj.linalg.dense import lower_transpose_product
from pymc_augconj.linalg.rounding import EPS, precision_error, probes
from pymc_augconj.typing import Array

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
    if all(b.diagonal_scale is not None or b.scale_error for b in prior.blocks):
        return error
    var = [
        np.zeros(b.block.total_size) if b.diagonal_scale is not None or b.scale_error else b.var()
        for b in prior.blocks
    ]
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
        return dtrsv(self._chol, self._half, lower=1, trans=1)

    def root(self, nu: Array) -> Array:
        if nu.ndim == 1:
            return dtrsv(self._chol, nu, lower=1, trans=1)
        return dtrsm(1.0, self._chol, nu.T, lower=1, trans_a=1).T

    def pull(self, slope: Array) -> Array:
        if slope.ndim == 1:
            return dtrsv(self._chol, slope, lower=1)
        return dtrsm(1.0, self._chol, slope.T, lower=1).T

    def solve(self, rng: np.random.Generator, x: Array) -> Array:
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
