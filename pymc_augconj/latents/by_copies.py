"""Conditioning the weights of independent outputs of a process, which share their design, on sites.

Like :mod:`.by_weights`, with M = I + ΦᵀΛΦ, but without forming Φ. Let the map of a block be a
:class:`.CopiesMap` with rows aᵢ of B, and let coupled rows take the same aᵢ. Then

    M_kl = δ_kl I + Bᵀ diag(w_kl) B,        Cov(aᵢᵀu_k, aᵢᵀu_l) = aᵢᵀ (M⁻¹)_kl aᵢ,

where w_kl,ᵢ sums the entries of Λ between rows of outputs k and l that take aᵢ. For K outputs of m
weights and n rows of B the cost is O(K² n m² + (K m)³), or O(K (n m² + m³)) where no site couples
two outputs; with Φ it would be O(K³ n m²) and K² n m numbers. Other blocks add a few columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.linalg.blas import dtrsv
from scipy.linalg.lapack import dpotri

from pymc_augconj.gaussian import weight_space
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.linalg.blas import diagonal_view, mirror_lower, square_work_array
from pymc_augconj.linalg.linear_map import CopiesMap, LinearMap
from pymc_augconj.model import LatentBlock, LatentGaussianModel
from pymc_augconj.typing import Array

from .affine import Conditioner, FactorMemory
from .by_weights import AffineByWeights, WeightPosterior
from .diagonal import StandardPrior
from .joint import LatentPrior
from .rows import RowGroups, SiteSum

__all__ = ["CopiesPosterior", "CopiesSpace"]


def _index_of(
    blocks: Sequence[LatentBlock], maps: Sequence[LinearMap], coupling: Coupling
) -> int | None:
    """Return the index of the largest block with a :class:`.CopiesMap`; None if there is none."""
    candidates = [
        (A.size, -i)
        for i, (block, A) in enumerate(zip(blocks, maps, strict=True))
        if isinstance(A, CopiesMap)
        and block.kind == StandardPrior.kind
        and np.array_equal(A.position[coupling.first], A.position[coupling.second])
    ]
    return -max(candidates)[1] if candidates else None


@dataclass(frozen=True)
class _Factor:
    """The lower Cholesky factor of M.

    Attributes
    ----------
    chol : ndarray, shape (D, D)
        The upper triangle is meaningless.
    log_det, error : float
        log|M|, and its estimated rounding error.
    diagonal : ndarray, shape (D,)
        Diagonal of M.
    parts : sequence of slice
        Diagonal blocks, outside of which the factor is zero.
    """

    chol: Array
    log_det: float
    error: float
    diagonal: Array
    parts: Sequence[slice]

    def posterior(self, prior: LatentPrior, h: Array) -> AffineByWeights:
        """Return the posterior of v given sites with these h."""
        half = dtrsv(self.chol, prior.whitened_transpose(h), lower=1)
        return AffineByWeights(self.chol, half, self.log_det, self.error, self.diagonal)

    def inverse(self, work: Array | None) -> Array:
        """Return M⁻¹."""
        found = square_work_array(len(self.chol), work)
        found.fill(0.0)
        for part in self.parts:
            block, _ = dpotri(np.array(self.chol[part, part], order="F"), lower=1, overwrite_c=1)
            found[part, part] = mirror_lower(block)
        return found


class _Design:
    """Φ at one θ: the rows of B for each output, and the other blocks' columns."""

    def __init__(self, prior: LatentPrior, coupling: Coupling) -> None:
        index = _index_of([b.block for b in prior.blocks], prior.maps, coupling)
        assert index is not None  # the space is chosen for models that have one
        A = prior.maps[index]
        assert isinstance(A, CopiesMap)
        self.A, starts = A, np.cumsum([0, *(b.block.total_size for b in prior.blocks)])
        self.size, first = int(starts[-1]), int(starts[index])
        m = A.base.shape[1]
        self.parts = [slice(first + k * m, first + (k + 1) * m) for k in range(A.copies)]
        self.own = slice(first, first + A.size)
        self.others = np.delete(np.arange(self.size), self.own)
        rest = [
            b.whitened_design(other)
            for i, (b, other) in enumerate(zip(prior.blocks, prior.maps, strict=True))
            if i != index
        ]
        self.rest = np.hstack(rest) if rest else np.empty((coupling.n_rows, 0))
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

    def factorize(self, lam: Array, work: Array | None) -> _Factor:
        """Return the factor of M.

        Raises
        ------
        NotPositiveDefiniteError
        """
        B, others = self.A.base, self.others
        M = square_work_array(self.size, work)
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
            weighted = np.array([self.coupling.product(lam, column) for column in self.rest.T])
            cross = self.A.transpose_rows(weighted)
            M[others, self.own] = cross
            M[self.own, others] = cross.T
            M[np.ix_(others, others)] = weighted @ self.rest
        diagonal_view(M)[...] += 1.0
        if not apart:
            return _Factor(*weight_space.cholesky(M, lam), [slice(0, self.size)])
        log_det, error, diagonal = 0.0, 0.0, diagonal_view(M).copy()
        for part in self.parts:
            own = weight_space.cholesky(np.array(M[part, part], order="F"), lam)
            M[part, part] = own[0]
            log_det, error = log_det + own[1], error + own[2]
        return _Factor(M, log_det, error, diagonal, self.parts)

    def cov(self, S: Array | None) -> Array:
        """Return the variances of the rows of Φ v, and covariances of pairs, for Cov(v) = S.

        S = None stands for the identity matrix.
        """
        B, products = self.A.base, np.zeros(self.shape)
        for k, rows in enumerate(self.parts):
            for other, columns in enumerate(self.parts[: k + 1]):
                if S is None:
                    products[k, other] = (k == other) * np.vecdot(B, B)
                elif S[rows, columns].any():
                    products[k, other] = np.vecdot(B @ S[rows, columns], B)
        total = self.coef * products.ravel()[self.flat]
        if not self.others.size:
            return total
        others, rest, r, s = self.others, self.rest, self.r, self.s
        if S is None:
            return total + np.vecdot(rest[r], rest[s])
        beside = self.A.apply_rows(S[others, self.own]).T
        own = rest @ S[np.ix_(others, others)]
        total += np.vecdot(beside[r], rest[s]) + np.vecdot(rest[r], beside[s])
        return total + np.vecdot(own[r], rest[s])


class CopiesSpace(Conditioner):
    """A :class:`.Conditioner` by the factor of M."""

    differentiable = True

    def __init__(self, size: int, coupling: Coupling) -> None:
        self._work = np.empty((size, size), order="F")
        self._coupling = coupling
        self._memory = FactorMemory[AffineByWeights]()

    def posterior(self, prior: LatentPrior, sites: SiteSum) -> AffineByWeights:
        """See :class:`.Conditioner`."""
        return self._memory.get(prior, sites, partial(self._condition, prior, sites))

    def _condition(self, prior: LatentPrior, sites: SiteSum) -> AffineByWeights:
        factor = _Design(prior, self._coupling).factorize(sites.lam, self._work)
        return factor.posterior(prior, sites.h)


class CopiesPosterior(WeightPosterior):
    """Like :class:`.WeightPosterior`, output by output; further moments form Φ."""

    space = "copies"
    conditioner = CopiesSpace

    def _condition(self, work: Array | None, second_work: Array | None) -> None:
        design = _Design(self.prior, self.groups.merged)
        factor = design.factorize(self.merged_lam, work)
        self._chol = factor.chol
        posterior = factor.posterior(self.prior, self.merged_h)
        self._latent_mean, self.error = posterior.mean, posterior.error
        centred = self.prior.whitened_product(posterior.mean)
        self.error += self._cancellation(centred)
        self.alpha = self.merged_h - self.groups.merged.product(self.merged_lam, centred)
        cov = design.cov(factor.inverse(second_work))
        self._finish(factor.log_det, centred, cov, posterior.log_evidence)

    @classmethod
    def multiplications(cls, model: LatentGaussianModel, groups: RowGroups) -> float:
        maps, coupling = groups.maps or (), groups.merged
        index = _index_of(model.blocks, maps, coupling) if maps else None
        if index is None:
            return np.inf
        A = maps[index]
        assert isinstance(A, CopiesMap)
        n, m = A.base.shape
        K, D = float(A.copies), float(model.latent_size)
        pairs = K * (K + 1.0) / 2.0 if coupling.rows else K
        return pairs * n * m**2 + D**3 / 3.0 + groups.size * (D - A.size) * D

    @staticmethod
    def prior_cov(prior: LatentPrior, groups: RowGroups) -> Array:
        return _Design(prior, groups.merged).cov(None)
