"""Conditioning latents on their sites through the D × D precision of all whitened latents."""

from __future__ import annotations

from functools import cached_property, partial
from typing import ClassVar

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.blas import dtrsm, dtrsv

from pymc_augconj.gaussian import weight_space
from pymc_augconj.gaussian.sites import Coupling, Rotation
from pymc_augconj.gaussian.weight_space import WeightSpaceFactor
from pymc_augconj.linalg.blas import lower_transpose_product
from pymc_augconj.linalg.rounding import EPS, precision_error, probes
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.typing import Array

from .affine import Conditioner, FactorMemory, WhitenedCoordinates
from .joint import LatentPrior
from .posterior import SitePosterior
from .registry import kind_of
from .rows import RowGroups, SiteSum

__all__ = ["WeightPosterior", "WeightSpace"]


def _factor_error(prior: LatentPrior, factor: WeightSpaceFactor, rotation: Rotation) -> float:
    """Return the estimated error of log|M|, including errors of the factors of the blocks' K.

    The computed factor belongs to K + ΔK, |ΔKᵢⱼ| ≤ ε √(Kᵢᵢ Kⱼⱼ); log|I + ΛC| moves by tr(R ΔK).
    Vectors z of random signs times √Kᵢᵢ estimate ε n Σ (AᵀRA)ᵢᵢ Kᵢᵢ, with R = Λ − ΛΦM⁻¹ΦᵀΛ: a
    wide K that the data determine changes nothing.
    """
    error = factor.error + 2.0 * prior.scale_error
    if all(b.diagonal_scale is not None or b.scale_error for b in prior.blocks):
        return error
    var = [
        np.zeros(b.block.total_size) if b.diagonal_scale is not None or b.scale_error else b.var()
        for b in prior.blocks
    ]
    size = sum(map(np.count_nonzero, var))
    signed = zip(prior.maps, prior.split(probes(np.concatenate(var))), strict=True)
    z = rotation.forward(np.sum([A.apply_rows(u) for A, u in signed], axis=0))
    weighted = factor.lam * z
    half = dtrsm(1.0, factor.chol_M, (weighted @ factor.Phi).T, lower=1)
    total, explained = float(np.vdot(weighted, z)), float(np.vdot(half, half))
    # The difference may have no digits itself.
    trace = max(total - explained, EPS * z.size * total) / len(z)
    return error + EPS * size * trace


class AffineByWeights(WhitenedCoordinates):
    """An :class:`.AffinePosterior` from the factor of M; ``half`` is L⁻¹Φᵀh."""

    def __init__(
        self, chol: Array, half: Array, log_det: float, error: float, diagonal: Array
    ) -> None:
        self._chol, self._half = chol, half
        self.size = half.size
        square = float(half @ half)
        self.log_volume = -0.5 * log_det
        self.log_evidence = 0.5 * square + self.log_volume
        self.error = precision_error(error, square, lambda: diagonal, lambda: self.mean)
        self.factor_error = error

    @cached_property
    def mean(self) -> Array:
        """E[v]."""
        return dtrsv(self._chol, self._half, lower=1, trans=1)

    def apply(self, nu: Array) -> Array:
        """See :class:`.AffinePosterior`."""
        if nu.ndim == 1:
            return dtrsv(self._chol, self._half + nu, lower=1, trans=1, overwrite_x=1)
        return dtrsm(1.0, self._chol, (self._half + nu).T, lower=1, trans_a=1, overwrite_b=1).T

    def pull(self, slope: Array) -> Array:
        """See :class:`.DifferentiablePosterior`."""
        return dtrsv(self._chol, slope, lower=1)

    def solve(self, rng: np.random.Generator, v: Array) -> Array:
        """See :class:`.AffinePosterior`."""
        return lower_transpose_product(self._chol, v) - self._half


class WeightSpace(Conditioner):
    """A :class:`.Conditioner`: one D × D factorisation, D the total number of latent values."""

    differentiable = True

    def __init__(self, size: int, coupling: Coupling) -> None:
        self._work = np.empty((size, size), order="F")
        self._coupling = coupling
        self._memory = FactorMemory[AffineByWeights]()

    def posterior(self, prior: LatentPrior, sites: SiteSum) -> AffineByWeights:
        """See :class:`.Conditioner`."""
        return self._memory.get(prior, sites, partial(self._condition, prior, sites))

    def _condition(self, prior: LatentPrior, sites: SiteSum) -> AffineByWeights:
        diagonal, rotation = self._coupling.diagonalize(sites.lam)
        Phi = rotation.forward(prior.whitened_design.T).T
        factor = weight_space.factorize(Phi, diagonal, work=self._work)
        half = dtrsv(factor.chol_M, rotation.forward(sites.h) @ Phi, lower=1, overwrite_x=1)
        error = _factor_error(prior, factor, rotation)
        return AffineByWeights(factor.chol_M, half, factor.log_det, error, factor.diagonal)


class WeightPosterior(SitePosterior):
    """Posterior by one D × D factorisation."""

    space = "weight"
    conditioner: ClassVar[type[Conditioner]] = WeightSpace
    takes_factors = True
    has_cheap_gradient = False

    def _condition(self, work: Array | None, second_work: Array | None) -> None:
        rotation, Phi = self._rotation, self.prior.whitened_design
        factor = weight_space.factorize(self._rotated, self._diagonal, work=work)
        self._chol = factor.chol_M
        zeros = np.zeros_like(self.merged_h)
        posterior = weight_space.condition(factor, zeros, rotation.forward(self.merged_h))
        self._latent_mean = posterior.latent_mean
        square = 2.0 * posterior.log_normalizer + factor.log_det
        self.error = precision_error(
            _factor_error(self.prior, factor, rotation),
            square,
            lambda: factor.diagonal,
            lambda: posterior.latent_mean,
        )
        self.alpha = rotation.back(posterior.alpha)
        self.error += self._cancellation(posterior.mean)
        coupling = self.groups.merged
        cov = weight_space.cov_at(factor, Phi, coupling.first, coupling.second)
        centred = rotation.back(posterior.mean)
        self._finish(factor.log_det, centred, cov, posterior.log_normalizer)

    @classmethod
    def order(cls, model: LatentGaussianModel, groups: RowGroups) -> int:
        return model.latent_size

    @classmethod
    def multiplications(cls, model: LatentGaussianModel, groups: RowGroups) -> float:
        R, D = float(groups.size), float(model.latent_size)
        # Forming Φ with a dense block costs R·size² more, and so does forming C unless the map is a
        # selection, in either space.
        sizes = [(float(kind_of(b).matrix_order(b)), b.copies) for b in model.blocks]
        dense = sum(size**3 for size, _ in sizes)
        forming = sum(R * size**2 * copies for size, copies in sizes)
        return R * D**2 + D**3 / 3.0 + forming + dense / 3.0

    @staticmethod
    def prior_cov(prior: LatentPrior, groups: RowGroups) -> Array:
        coupling = groups.merged
        Phi = prior.whitened_design
        pairs = np.einsum("ij,ij->i", Phi[coupling.first], Phi[coupling.second])
        return np.concatenate([np.einsum("ij,ij->i", Phi, Phi), pairs])

    @property
    def _parts(self) -> list[slice]:
        stops = np.cumsum([b.block.total_size for b in self.prior.blocks])
        return [
            slice(int(stop) - b.block.total_size, int(stop))
            for stop, b in zip(stops, self.prior.blocks, strict=True)
        ]

    def innovation_means(self) -> list[Array]:
        return [
            b.scale(self._latent_mean[part])
            for b, part in zip(self.prior.blocks, self._parts, strict=True)
        ]

    @cached_property
    def _inverse_chol(self) -> Array:
        """L_M⁻¹ᵀ, whose rows give cov[v] = L_M⁻ᵀ L_M⁻¹."""
        return solve_triangular(self._chol, np.eye(len(self._chol)), lower=True).T

    @cached_property
    def _rotated(self) -> Array:
        """QᵀΦ."""
        return self._rotation.forward(self.prior.whitened_design.T).T

    def _half(self, index: int) -> Array:
        """Return S_b L_M⁻ᵀ (rows of block b): cov[u_b] is its product with its transpose."""
        rows = self._inverse_chol[self._parts[index]]
        return self.prior.blocks[index].scale(rows.T).T

    def innovation_cov(self, first: int, second: int) -> Array:
        return self._half(first) @ self._half(second).T

    def innovation_var(self, index: int) -> Array:
        half = self._half(index)
        return np.einsum("ij,ij->i", half, half)

    def weighted_cov(self, index: int) -> Array:
        # ΛΦM⁻¹ S_b: of a wide block K_b is far larger than its product with R.
        columns = self.prior.blocks[index].scale(self._inverse_chol[self._parts[index]].T)
        back = self._rotated @ (self._inverse_chol @ columns)
        return self._rotation.back((self._diagonal[:, None] * back).T).T

    def explained(self, cross: Array) -> Array:
        return cross @ self.response_product(cross.T)

    def explained_var(self, cross: Array) -> Array:
        return np.einsum("ij,ji->i", cross, self.response_product(cross.T))

    def response_product(self, X: Array) -> Array:
        # R = Λ − ΛΦM⁻¹ΦᵀΛ
        weighted = self._diagonal[:, None] * self._rotation.forward(X.T).T
        half = self._inverse_chol.T @ (self._rotated.T @ weighted)
        back = self._rotated @ (self._inverse_chol @ half)
        return self._rotation.back((weighted - self._diagonal[:, None] * back).T).T

    def draw(self, rng: np.random.Generator, size: int) -> list[Array]:
        xi = rng.standard_normal((size, self._latent_mean.size))
        v = self._latent_mean + xi @ self._inverse_chol.T
        return [v[:, part] for part in self._parts]
