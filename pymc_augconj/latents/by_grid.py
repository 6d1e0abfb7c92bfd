"""Conditioning a process on a grid on its sites through the eigenvectors of small matrices.

Each merged row takes one value of the process times a common number c, η = c B u + Hβ, and there
are few independent coefficients β ~ N(0, I). Where the precisions of the values are a product over
the axes, BᵀΛB = Λ₁ ⊗ Λ₂ ⊗ …, the precision of v, u = L v with L = L₁ ⊗ L₂ ⊗ …, is

    I + c² Lᵀ BᵀΛB L = V (I + D) Vᵀ,    V = V₁ ⊗ V₂ ⊗ …,    D = c² D₁ ⊗ D₂ ⊗ …,
    LᵢᵀΛᵢLᵢ = Vᵢ Dᵢ Vᵢᵀ,

and with E = V (I + D)^−½ and Y = c Eᵀ Lᵀ BᵀΛH the posterior of all is

    S = I + HᵀΛH − YᵀY = L_S L_Sᵀ,    β = S⁻¹(Hᵀh − YᵀEᵀt) + L_S⁻ᵀ ν_β,    t = c LᵀBᵀh,
    v = E (Eᵀt − Yβ + ν_v).

Other precisions, those of values without a site among them, are completed to a product: a value
with the precision λ gets one more observation z ~ N(c u + H̄β, 1/τ), τ = λ₁ λ₂ … − λ ≥ 0. It is an
auxiliary variable, drawn given u and β in each step, and changes the distribution of nothing else.
H̄ is the mean of its rows of H, or of all: z of u alone would hold an intercept where it is.

References
----------
Saatçi (2011), Scalable inference for structured Gaussian process models. Chapter 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from typing import Any, cast

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.gaussian.sites import cholesky
from pymc_augconj.linalg.dense import EPS
from pymc_augconj.linalg.factors import solve_triangle
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.typing import Array, Generator

from .dense import KroneckerPrior, kronecker_product
from .joint import LatentPrior
from .posterior import Posterior, Solver
from .rows import RowGroups, SiteSum

# The most coefficients beside the process; multiplications of calls, and of an eigenvector.
_MOST_COLUMNS, _CALLS, _PER_EIGENVECTOR = 200, 64.0**3, 20.0
# Rounds in which factors are fitted, and their least ratio to the largest.
_ROUNDS, _LEAST = 30, 1e-6
# A difference of precisions that is rounding.
_ROUNDING = 1e-12


def precision_factors(precision: Array, grid: Sequence[int]) -> list[Array]:
    """Return positive λᵢ whose product over axes has the margins of the precisions that are not 0.

    Where these are a product, it is theirs; ones if there are none, or one is not finite.
    """
    P = precision.reshape(grid)
    known = (P > 0.0).astype(float)
    if not (known.any() and np.isfinite(P).all()):
        return [np.ones(n) for n in grid]
    factors = [np.ones(n) for n in grid]
    factors[0] *= P.sum() / known.sum()
    axes = range(len(grid))
    for _ in range(_ROUNDS):
        before = [factor.copy() for factor in factors]
        for i in axes:
            others: list[Any] = [known, list(axes)]
            for j in axes:
                others += [factors[j], [j]] if j != i else []
            expected = np.einsum(*others, [i])
            margin = P.sum(axis=tuple(j for j in axes if j != i))
            # Where nothing is known an average will do.
            found = np.where(expected > 0.0, margin / np.maximum(expected, 1e-300), np.nan)
            found = np.where(np.isnan(found), np.nanmean(found), found)
            factors[i] = np.maximum(found, _LEAST * found.max())
        if all(np.allclose(a, b, 1e-12, 0.0) for a, b in zip(factors, before, strict=True)):
            break
    return factors


def product_over_axes(factors: Sequence[Array]) -> Array:
    """Return a ⊗ b ⊗ … of vectors, flat."""
    return np.asarray(reduce(np.multiply.outer, factors)).ravel()


def nearest_product(blocks: Sequence[LatentBlock], maps: Sequence[LinearMap], lam: Array) -> Array:
    """Return precisions of rows near ``lam`` whose sums by value are a product over the axes."""
    which = _which(blocks)
    A, block = cast(RowSelection, maps[which]), blocks[which]
    precision = np.bincount(A.index, lam, block.size)
    product = product_over_axes(precision_factors(precision, block.grid))
    share = np.divide(product, precision, out=np.ones(block.size), where=precision > 0.0)
    return lam * share[A.index]


def _which(blocks: Sequence[LatentBlock]) -> int:
    return next(i for i, block in enumerate(blocks) if block.grid)


def _process(prior: LatentPrior) -> tuple[int, KroneckerPrior, RowSelection]:
    """Return the number of the process among the blocks, its prior and its map."""
    which = _which([b.block for b in prior.blocks])
    return which, cast(KroneckerPrior, prior.blocks[which]), cast(RowSelection, prior.maps[which])


class Completion:
    """Factors of the precisions of values, and what completes the precisions to their product.

    ``tau`` and ``linear`` are the precision of z and τ z of each value.
    """

    def __init__(self, precision: Array, grid: Sequence[int]) -> None:
        self.precision = precision
        self.factors = precision_factors(precision, grid)
        product = product_over_axes(self.factors)
        above = float((precision / product).max(initial=0.0))
        if above > 1.0 + _ROUNDING:
            self.factors[0] = self.factors[0] * above
            product = product * above
        tau = product - precision
        self.tau = np.where(tau > _ROUNDING * product, tau, 0.0)
        self.linear = np.zeros(precision.size)

    def draw(self, rng: Generator, eta: Array) -> None:
        """Draw z, given c u + H̄β."""
        if self.tau.any():
            self.linear = self.tau * eta + np.sqrt(self.tau) * rng.standard_normal(eta.size)


class GridPosterior(Posterior):
    """Posterior by eigenvectors; ``completion`` is that of the precisions."""

    def __init__(
        self, prior: LatentPrior, groups: RowGroups, sites: SiteSum, completion: Completion
    ) -> None:
        super().__init__(prior, groups, sites)
        which, own, A = _process(prior)
        self._own, self._c = own, common_coefficient(A)
        start = sum(b.block.total_size for b in prior.blocks[:which])
        self.size = sum(b.block.total_size for b in prior.blocks)
        self._places = slice(start, start + own.block.size)
        self._border = np.r_[0:start, start + own.block.size : self.size]
        self._B = RowSelection(A.index, None, A.size)
        pairs = zip(own.chols, completion.factors, strict=True)
        found = [np.linalg.eigh((L.T * a) @ L) for L, a in pairs]
        self._V = [V for _, V in found]
        eigenvalues = [np.maximum(d, 0.0) for d, _ in found]
        D = self._c**2 * product_over_axes(eigenvalues)
        self._std = 1.0 / np.sqrt(1.0 + D)
        others = [i for i in range(len(prior.blocks)) if i != which]
        parts = [prior.blocks[i].whitened_design(prior.maps[i]) for i in others]
        H = np.hstack([np.empty((sites.h.size, 0)), *parts])
        lam, h = sites.lam, sites.h
        self._half = self._pulled(self._B.apply_transpose(h) + completion.linear)
        means = mean_by_value(A, H.T)
        weighted, more = lam * H.T, completion.tau * means
        self._Y = self._pulled(self._B.apply_transpose(weighted) + more)
        S = np.asfortranarray(weighted @ H + more @ means.T - self._Y @ self._Y.T)
        S[np.diag_indices_from(S)] += 1.0
        self.log_det = float(np.log1p(D).sum())
        # Eigenvalues of a product have the error of its largest.
        self.factor_error = EPS * float(D.max(initial=0.0) * (self._std**2).sum())
        self._chol_S, self.coefficients = S, np.empty(0)
        of_border = h @ H + means @ completion.linear - self._Y @ self._half
        if len(S):
            self._chol_S, log_det, error, _ = cholesky(S, lam)
            self.log_det += log_det
            self.factor_error += 0.5 * error
            half = solve_triangle(self._chol_S, of_border, False)
            self.coefficients = solve_triangle(self._chol_S, half, True)
        square = float(self._half @ self._half + of_border @ self.coefficients)
        self.log_normalizer = 0.5 * (square - self.log_det)
        self.error = self.factor_error + EPS * square

    def _pulled(self, slope: Array) -> Array:
        """Return c Eᵀ Lᵀ x."""
        return self._rotated(self._own.scale_transpose(self._c * slope))

    def _rotated(self, x: Array) -> Array:
        return self._std * kronecker_product([V.T for V in self._V], x)

    def _joined(self, v: Array, beta: Array) -> Array:
        x = np.empty((*v.shape[:-1], self.size))
        x[..., self._places], x[..., self._border] = v, beta
        return x

    def _through(self, rotated: Array, beta: Array) -> Array:
        """Return v = E (rotated − Yβ), and β."""
        v = kronecker_product(self._V, self._std * (rotated - beta @ self._Y))
        return self._joined(v, beta)

    @cached_property
    def latent_mean(self) -> Array:
        return self._through(self._half, self.coefficients)

    def root(self, nu: Array) -> Array:
        beta = solve_triangle(self._chol_S, nu[..., self._border], True)
        return self._through(nu[..., self._places], beta)

    def pull(self, slope: Array) -> Array:
        rotated = self._rotated(slope[..., self._places])
        beta = slope[..., self._border] - rotated @ self._Y.T
        return self._joined(rotated, solve_triangle(self._chol_S, beta, False))

    def solve(self, rng: Generator, x: Array) -> Array:
        away = x - self.latent_mean
        beta = away[..., self._border]
        rotated = kronecker_product([V.T for V in self._V], away[..., self._places]) / self._std
        return self._joined(rotated + beta @ self._Y, beta @ np.tril(self._chol_S))


class GridSolver(Solver):
    """Eigenvectors of a matrix for each axis of a grid."""

    name = "grid"
    differentiable = True
    ensemble = 1
    augments = follows = True
    _drawn: Completion | None = None

    @classmethod
    def fits(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> bool:
        """Return whether each row takes one value of one process on a grid, and others are few."""
        grids = [i for i, block in enumerate(blocks) if block.grid]
        if len(grids) != 1 or groups.maps is None or groups.coupling.rows:
            return False
        others = [block for block in blocks if not block.grid]
        few = sum(block.total_size for block in others) <= _MOST_COLUMNS
        independent = all(block.is_independent or block.is_standard for block in others)
        A = groups.maps[grids[0]]
        return few and independent and isinstance(A, RowSelection) and common_coefficient(A) != 0.0

    @classmethod
    def order(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> int:
        return sum(block.total_size for block in blocks if not block.grid)

    @classmethod
    def largest_order(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> int:
        return cls.order(blocks, groups)

    @classmethod
    def multiplications(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> float:
        if not cls.fits(blocks, groups):
            return np.inf
        sizes = np.array(blocks[_which(blocks)].grid, dtype=float)
        products = sizes.prod() * sizes.sum() * (1.0 + cls.order(blocks, groups))
        return _CALLS + _PER_EIGENVECTOR * float((sizes**3).sum()) + 4.0 * float(products)

    def augment(
        self, rng: Generator, prior: LatentPrior, sites: SiteSum, u: Sequence[Array]
    ) -> None:
        which, own, A = _process(prior)
        self._drawn = Completion(_precision(A, sites), own.block.grid)
        rest = prior.merged_predictor(u) - A.apply(u[which])
        self._drawn.draw(rng, common_coefficient(A) * u[which] + mean_by_value(A, rest[None])[0])
        self._last = None

    def _condition(
        self, prior: LatentPrior, sites: SiteSum, keep: Posterior | None
    ) -> GridPosterior:
        _, own, A = _process(prior)
        precision = _precision(A, sites)
        if not (np.isfinite(precision).all() and np.isfinite(sites.h).all()):
            raise NotPositiveDefiniteError("expected finite sites, got a NaN or an infinity")
        completion = self._drawn
        if completion is None or not np.array_equal(completion.precision, precision):
            # Not those of the step.
            completion = Completion(precision, own.block.grid)
        return GridPosterior(prior, self.groups, sites, completion)


def common_coefficient(A: RowSelection) -> float:
    """Return the coefficient of all rows; 0 where they have several."""
    c, base = A.multiple_of
    coef = base.coef
    if coef is None or not coef.size:
        return c
    return c * float(coef[0]) if (coef == coef[0]).all() else 0.0


def mean_by_value(A: RowSelection, x: Array) -> Array:
    """Return means of the rows that take each value, of x, (count, R); of all where none does."""
    count = np.bincount(A.index, minlength=A.size)
    ones = RowSelection(A.index, None, A.size)
    means = np.asarray(ones.apply_transpose(x) / np.maximum(count, 1))
    return np.where(count > 0, means, x.mean(axis=1, keepdims=True))


def _precision(A: RowSelection, sites: SiteSum) -> Array:
    return np.bincount(A.index, sites.lam, A.size)
