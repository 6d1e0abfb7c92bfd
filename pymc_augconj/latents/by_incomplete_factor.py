"""Conditioning a process given by neighbours (Vecchia) by an incomplete factor of its precision.

In two dimensions the factor of the posterior precision M = L Lᵀ fills in. Without the entries that
the prior's own factor does not have, see :class:`.ZeroFillPattern`, it is some L̃ with

    M = L̃ (I + Δ) L̃ᵀ,        Δ small,

in time linear in n, so that products with powers of I + Δ, by Lanczos' method, take few products
with Δ. Draws and means are those of M:

    x = M⁻¹ g + L̃⁻ᵀ (I + Δ)^−½ ν.

log|I + Δ| is not known, but hyperparameters move without it: with ν̃ fixed instead of x, in

    x(θ) = L̃⁻ᵀ (L̃⁻¹ g + ν̃),        |∂x/∂ν̃| = |L̃|⁻¹,

the density of θ given ν̃ and the sites is that of M̃ = L̃ L̃ᵀ, times exp −½ (xᵀM x − xᵀM̃ x). ν̃ is that
of the present latents, found anew in each step, and any L̃ is exact; the better it is, the less does
ν̃ say about θ.

References
----------
Higham (2008), Functions of Matrices, chapter 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from scipy.linalg import eigh_tridiagonal

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.sparse import SymmetricPattern
from pymc_augconj.linalg.vecchia import ZeroFillPattern
from pymc_augconj.typing import Array, Index

from .by_precision import PrecisionPosterior, PrecisionSolver
from .joint import LatentPrior
from .posterior import Posterior
from .precision_pattern import PrecisionDesign, PrecisionPattern
from .rows import RowGroups, SiteSum

# Terms of Lanczos' method at most, and the relative error at which it stops.
_MOST_TERMS, _TOLERANCE = 200, 1e-13


class IncompletePattern(PrecisionPattern):
    """B is one process, with the pattern of its own factor."""

    adds_blocks = False

    @property
    def _is_of_one_block(self) -> bool:  # type: ignore[override]
        return False

    def _find(self, rows: Index, cols: Index) -> SymmetricPattern:
        return self._blocks[self.within[0]].root_pattern


class IncompletePosterior(PrecisionPosterior):
    """Posterior by an incomplete factor."""

    def __init__(
        self,
        prior: LatentPrior,
        groups: RowGroups,
        sites: SiteSum,
        design: PrecisionDesign,
        gram: Array,
    ) -> None:
        self._flat = gram + design.pattern.prior_precision(prior)
        super().__init__(prior, groups, sites, design, gram)

    def correct(self, nu: Array) -> None:
        """Add −½ (xᵀM x − xᵀM̃ x), x that of ν̃, to the log normaliser."""
        half = self._half + nu
        self.log_normalizer -= 0.5 * float(half @ self._deviation(half))

    def _deviation(self, half: Array) -> Array:
        """Return Δ half."""
        n = self._pattern.size
        x = self._root.transpose_solve(half)[..., :n]
        sparsity, factor = self._pattern.sparsity, self._within.factor
        assert isinstance(sparsity, ZeroFillPattern)
        change = np.zeros_like(half)
        change[..., :n] = sparsity.product(self._flat, x)
        change[..., :n] -= factor.product(factor.transpose_product(x))
        return self._root.half_solve(change)

    def _power(self, x: Array, power: float) -> Array:
        """Return (I + Δ)^power x, of each row."""
        if x.ndim > 1:
            return np.array([self._power(row, power) for row in x]).reshape(x.shape)
        size = float(np.linalg.norm(x))
        if not size:
            return x.copy()
        basis, diagonal, beside = [x / size], [], []
        while True:
            after = self._deviation(basis[-1])
            diagonal.append(1.0 + float(basis[-1] @ after))
            for vector in basis:
                after -= (vector @ after) * vector
            values, vectors = eigh_tridiagonal(diagonal, beside)
            if not values[0] > 0.0:
                raise NotPositiveDefiniteError("the posterior precision is not positive definite")
            weights = vectors @ (values**power * vectors[0])
            beside.append(float(np.linalg.norm(after)))
            small = beside[-1] * abs(weights[-1]) <= _TOLERANCE * np.linalg.norm(weights)
            if small or len(basis) == min(_MOST_TERMS, x.size):
                return size * (weights @ np.array(basis))
            basis.append(after / beside[-1])

    @property
    def _inverse(self) -> Array:  # type: ignore[override]
        raise NotImplementedError("an incomplete factor has no entries of the inverse")

    # -- the map of draws, that of M -------------------------------------------------------------

    @cached_property
    def latent_mean(self) -> Array:
        return self._root.transpose_solve(self._power(self._half, -1.0))

    def root(self, nu: Array) -> Array:
        return self._root.transpose_solve(self._power(nu, -0.5))

    def pull(self, slope: Array) -> Array:
        return self._power(self._root.half_solve(slope), -0.5)

    def solve(self, rng: np.random.Generator, x: Array) -> Array:
        return self._power(self._root.transpose_product(x - self.latent_mean), 0.5)

    # -- the map that hyperparameters move along -------------------------------------------------

    def standard(self, x: Array) -> Array:
        """Return ν̃ of x."""
        return self._root.transpose_product(x) - self._half

    def fixed(self, rng: np.random.Generator, x: Array) -> Array:
        return self.standard(x)

    def carried(self, nu: Array) -> Array:
        """Return x of ν̃."""
        return self._root.transpose_solve(self._half + nu)


class IncompleteSolver(PrecisionSolver):
    """An incomplete factor of the posterior precision of one process and a border; of steps alone."""

    name = "incomplete"
    pattern_type = IncompletePattern
    ensemble = 1
    augments = True
    #: ν̃, or what it is found from when it is first asked for.
    _nu: Array | None = None
    _present: tuple[LatentPrior, SiteSum, Sequence[Array]] | None = None

    @classmethod
    def pattern(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> PrecisionPattern | None:
        return None if groups.coupling.rows else super().pattern(blocks, groups)

    @classmethod
    def _suits(cls, blocks: Sequence[LatentBlock]) -> bool:
        structured = [block for block in blocks if block.entries is not None]
        return len(structured) == 1 and structured[0].order is not None

    def augment(
        self, rng: np.random.Generator, prior: LatentPrior, sites: SiteSum, u: Sequence[Array]
    ) -> None:
        self._nu, self._present, self._last = None, (prior, sites, u), None

    def _condition(
        self, prior: LatentPrior, sites: SiteSum, keep: Posterior | None
    ) -> PrecisionPosterior:
        posterior = super()._condition(prior, sites, keep)
        assert isinstance(posterior, IncompletePosterior)
        if self._nu is None and self._present is not None:
            at, given, u = self._present
            own = posterior if at is prior and sites.equals(given) else None
            own = own or super()._condition(at, given, keep)
            v = [b.unscale(part) for b, part in zip(at.blocks, u, strict=True)]
            self._nu = own.standard(own.coordinates(np.concatenate(v)))
        if self._nu is not None:
            posterior.correct(self._nu)
        return posterior

    def _posterior(
        self, prior: LatentPrior, sites: SiteSum, design: PrecisionDesign, gram: Array
    ) -> PrecisionPosterior:
        return IncompletePosterior(prior, self.groups, sites, design, gram)
