"""Conditioning a process given by neighbours (Vecchia) by an incomplete factor of its precision.

In two dimensions the factor of the posterior precision M = L Lᵀ fills in. Without the entries that
the prior's own factor does not have, see :class:`.ZeroFillPattern`, it is some L̃ with

    M = L̃ (I + Δ) L̃ᵀ,        Δ small,

in time linear in n, so that products with powers of I + Δ, by Lanczos' method, take few products
with Δ. Draws and means are those of M:

    x = M⁻¹ g + L̃⁻ᵀ (I + Δ)^−½ ν.

Beside an intercept, as a border (C, D), a long process is nearly another one, and D − CB⁻¹Cᵀ so
small that with V Vᵀ in place of B it may be negative. For any W̃ close to VᵀB⁻¹Cᵀ,

    L̃ = [V    ]        R Rᵀ = D − C V⁻ᵀW̃ − W̃ᵀV⁻¹Cᵀ + W̃ᵀV⁻¹B V⁻ᵀW̃,        E = V⁻¹B V⁻ᵀ − I,
        [W̃ᵀ  R],

has an R where M has a factor, and Δ has E and, beside it, (V⁻¹Cᵀ − W̃ − E W̃) R⁻ᵀ, which is small.

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

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from scipy.linalg import eigh_tridiagonal

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.factors import Factor, solve_triangle
from pymc_augconj.linalg.sparse import SymmetricPattern
from pymc_augconj.linalg.vecchia import ZeroFillPattern
from pymc_augconj.typing import Array, Generator, Index

from .by_precision import PrecisionPosterior, PrecisionSolver
from .joint import LatentPrior
from .precision_pattern import PrecisionDesign, PrecisionPattern
from .rows import RowGroups, SiteSum

# Terms of Lanczos' method at most, and the relative error at which it stops.
_MOST_TERMS, _TOLERANCE = 200, 1e-11
# The square of the border's part of Δ that is left, and the relative error of W̃ where it is more.
_CLOSE, _BORDER = 1e-2, 1e-3


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

    def _eliminate(self, factor: Factor, half: Array, corner: Array) -> tuple[Array, Array]:
        # Any W̃ has a Schur complement that is positive definite where M is; most are so large that
        # V⁻¹Cᵀ is close enough.
        self._factor = factor
        for found in (lambda: half, lambda: _power(self._within_deviation, half, -1.0, _BORDER)):
            W = found()
            product = W + np.array([self._within_deviation(row) for row in W]).reshape(W.shape)
            self._residual = half - product
            complement = corner - half @ W.T - W @ self._residual.T
            if (np.vecdot(self._residual, self._residual) <= _CLOSE * complement.diagonal()).all():
                break
        return W, complement

    def correct(self, nu: Array) -> None:
        """Add −½ (xᵀM x − xᵀM̃ x), x that of ν̃, to the log normaliser."""
        half = self._half + nu
        self.log_normalizer -= 0.5 * float(half @ self._deviation(half))

    def _within_deviation(self, half: Array) -> Array:
        """Return E half, E = V⁻¹ B V⁻ᵀ − I."""
        sparsity = self._pattern.sparsity
        assert isinstance(sparsity, ZeroFillPattern)
        product = sparsity.product(self._flat, self._factor.transpose_solve(half))
        return self._factor.half_solve(product) - half

    def _deviation(self, half: Array) -> Array:
        n, corner = self._pattern.size, self._bordered.corner
        within, below = half[:n], solve_triangle(corner, half[n:], True)
        return np.append(
            self._within_deviation(within) + below @ self._residual,
            solve_triangle(corner, self._residual @ within, False),
        )

    @property
    def _inverse(self) -> Array:
        raise NotImplementedError("an incomplete factor has no entries of the inverse")

    @cached_property
    def latent_mean(self) -> Array:
        return self._root.transpose_solve(_power(self._deviation, self._half, -1.0))

    def root(self, nu: Array) -> Array:
        return self._root.transpose_solve(_power(self._deviation, nu, -0.5))

    def carried(self, nu: Array) -> Array:
        """Return x of ν̃, which :meth:`solve` is the inverse of."""
        return self._root.transpose_solve(self._half + nu)


class IncompleteSolver(PrecisionSolver):
    """An incomplete factor of the precision of one process and a border; of steps alone."""

    name = "incomplete"
    pattern_type = IncompletePattern
    differentiable = follows = False
    ensemble = 1
    augments, sweeps = True, 1
    #: ν̃, or what it is found from when it is first asked for.
    _nu: Array | None = None
    _present: tuple[Generator, LatentPrior, SiteSum, Array] | None = None

    @classmethod
    def pattern(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> PrecisionPattern | None:
        return None if groups.coupling.rows else super().pattern(blocks, groups)

    @classmethod
    def _suits(cls, blocks: Sequence[LatentBlock]) -> bool:
        structured = [block for block in blocks if block.entries is not None]
        return len(structured) == 1 and structured[0].order is not None

    def augment(
        self, rng: Generator, prior: LatentPrior, sites: SiteSum, u: Sequence[Array]
    ) -> None:
        v = [b.unscale(part) for b, part in zip(prior.blocks, u, strict=True)]
        self._present = rng, prior, sites, np.concatenate(v)
        self._nu = self._last = None

    def _posterior(
        self, prior: LatentPrior, sites: SiteSum, design: PrecisionDesign, gram: Array
    ) -> PrecisionPosterior:
        posterior = IncompletePosterior(prior, self.groups, sites, design, gram)
        if self._present is not None:
            rng, at, given, v = self._present
            self._present, same = None, at is prior and sites.equals(given)
            own = posterior if same else self._condition(at, given, None)
            self._nu = own.solve(rng, own.coordinates(v))
        if self._nu is not None:
            posterior.correct(self._nu)
        return posterior


def _power(
    deviation: Callable[[Array], Array], x: Array, power: float, tolerance: float = _TOLERANCE
) -> Array:
    """Return (I + Δ)^power x, of each row, given products with Δ."""
    if x.ndim > 1:
        return np.array([_power(deviation, row, power, tolerance) for row in x]).reshape(x.shape)
    size = float(np.linalg.norm(x))
    if not size:
        return x.copy()
    basis, diagonal, beside = [x / size], list[float](), list[float]()
    while True:
        after = deviation(basis[-1])
        diagonal.append(1.0 + float(basis[-1] @ after))
        for vector in basis:
            after -= (vector @ after) * vector
        values, vectors = eigh_tridiagonal(diagonal, beside)
        if not values[0] > 0.0:
            raise NotPositiveDefiniteError("the posterior precision is not positive definite")
        weights = vectors @ (values**power * vectors[0])
        beside.append(float(np.linalg.norm(after)))
        small = beside[-1] * abs(weights[-1]) <= tolerance * np.linalg.norm(weights)
        if small or len(basis) == min(_MOST_TERMS, x.size):
            return size * (weights @ np.array(basis))
        basis.append(after / beside[-1])
