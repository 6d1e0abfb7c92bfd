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
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import eigh_tridiagonal

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.factors import solve_triangle
from pymc_augconj.linalg.sparse import SymmetricPattern
from pymc_augconj.linalg.vecchia import ZeroFillPattern
from pymc_augconj.typing import Array, Index

from .by_precision import PrecisionPosterior, PrecisionSolver
from .joint import LatentPrior
from .precision_pattern import PrecisionDesign, PrecisionPattern
from .rows import RowGroups, SiteSum

# Terms of Lanczos' method at most, and the relative error at which it stops.
_MOST_TERMS, _TOLERANCE = 200, 1e-11
# Of the diagonal of B, one after the other until M̃ is positive definite.
_SHIFTS = (0.0, 1e-3, 1e-2, 0.1, 1.0)


class IncompletePattern(PrecisionPattern):
    """B is one process, with the pattern of its own factor."""

    adds_blocks = False

    @property
    def _is_of_one_block(self) -> bool:
        return False

    def _find(self, rows: Index, cols: Index) -> SymmetricPattern:
        return self._blocks[self.within[0]].root_pattern


class IncompletePosterior(PrecisionPosterior):
    """Posterior by an incomplete factor."""

    differentiable = False

    def __init__(self, *given: Any, shift: float) -> None:
        # L̃ is that of B with its diagonal longer by this part.
        self._shift = shift
        super().__init__(*given)

    def _factor_within(self, name: str) -> Any:
        flat = self._flat.copy()
        flat[self._pattern.sparsity.diagonal] *= 1.0 + self._shift
        return self._pattern.sparsity.factorize(flat, name)

    def correct(self, nu: Array) -> None:
        """Add −½ (xᵀM x − xᵀM̃ x), x that of ν̃, to the log normaliser."""
        half = self._half + nu
        self.log_normalizer -= 0.5 * float(half @ self._deviation(half))

    def _deviation(self, half: Array) -> Array:
        """Return Δ half: M − M̃ is that of B and V Vᵀ."""
        n, bordered, sparsity = self._pattern.size, self._bordered, self._pattern.sparsity
        assert isinstance(sparsity, ZeroFillPattern)
        factor, below = self._within.factor, half[n:]
        through = half[:n] - solve_triangle(bordered.corner, below, True) @ bordered.border
        product = sparsity.product(self._flat, factor.transpose_solve(through))
        return bordered.joined_half(factor.half_solve(product) - through, np.zeros_like(below))

    def _power(self, x: Array, power: float) -> Array:
        """Return (I + Δ)^power x, of each row."""
        if x.ndim > 1:
            return np.array([self._power(row, power) for row in x]).reshape(x.shape)
        size = float(np.linalg.norm(x))
        if not size:
            return x.copy()
        basis, diagonal, beside = [x / size], list[float](), list[float]()
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
    def _inverse(self) -> Array:
        raise NotImplementedError("an incomplete factor has no entries of the inverse")

    @cached_property
    def latent_mean(self) -> Array:
        return self._root.transpose_solve(self._power(self._half, -1.0))

    def root(self, nu: Array) -> Array:
        return self._root.transpose_solve(self._power(nu, -0.5))

    def carried(self, nu: Array) -> Array:
        """Return x of ν̃, which :meth:`solve` is the inverse of."""
        return self._root.transpose_solve(self._half + nu)


class IncompleteSolver(PrecisionSolver):
    """An incomplete factor of the precision of one process and a border; of steps alone."""

    name = "incomplete"
    pattern_type = IncompletePattern
    ensemble = 1
    augments, repeats = True, False
    #: ν̃, or what it is found from when it is first asked for.
    _nu: Array | None = None
    _present: tuple[np.random.Generator, LatentPrior, SiteSum, Array] | None = None

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
        v = [b.unscale(part) for b, part in zip(prior.blocks, u, strict=True)]
        self._present = rng, prior, sites, np.concatenate(v)
        self._nu = self._last = None

    def _posterior(
        self, prior: LatentPrior, sites: SiteSum, design: PrecisionDesign, gram: Array
    ) -> PrecisionPosterior:
        posterior = _shifted(prior, self.groups, sites, design, gram)
        if self._present is not None:
            rng, at, given, v = self._present
            self._present, same = None, at is prior and sites.equals(given)
            own = posterior if same else self._condition(at, given, None)
            self._nu = own.solve(rng, own.coordinates(v))
        if self._nu is not None:
            posterior.correct(self._nu)
        return posterior


def _shifted(*given: Any) -> IncompletePosterior:
    """Return the posterior by the first shift with which M̃, border included, is positive definite.

    It need not be where M is.
    """
    for shift in _SHIFTS[:-1]:
        with suppress(NotPositiveDefiniteError):
            return IncompletePosterior(*given, shift=shift)
    return IncompletePosterior(*given, shift=_SHIFTS[-1])
