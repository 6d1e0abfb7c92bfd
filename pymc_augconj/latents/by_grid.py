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
with the precision λ gets one more observation z ~ N(c u + H̄β, 1/τ), τ = λ₁ λ₂ … − λ > 0. It is an
auxiliary variable, drawn given u and β in each step, and changes the distribution of nothing else.
H̄ is the mean of its rows of H, or of all: z of u alone would hold an intercept where it is. As
hyperparameters move λ they move τ, so that the density of z given u and β is part of log Z.

Values may have noise of their own, ε_j ~ N(0, t_j), which is integrated out first. With the sites
(h_j, λ_j) and cross products w_j = (ΛH)_j of its rows, and s_j = 1/(1 + t_j λ_j),

    (h_j, λ_j, w_j) → s_j (h_j, λ_j, w_j),    (Hᵀh, HᵀΛH) → (Hᵀh, HᵀΛH) − Σ t_j s_j w_jᵀ(h_j, w_j),
    log Z → log Z + ½ Σ (t_j s_j h_j² − log(1 + t_j λ_j)),
    ε_j ~ N(t_j s_j (h_j − λ_j c u − w_j β), t_j s_j).

References
----------
Saatçi (2011), Scalable inference for structured Gaussian process models. Chapter 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property, reduce
from typing import Any, cast

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.gaussian.sites import cholesky
from pymc_augconj.linalg.dense import EPS
from pymc_augconj.linalg.factors import solve_triangle
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.typing import Array, Generator, Index

from .dense import KroneckerPrior, kronecker_product
from .joint import LatentPrior
from .posterior import Posterior, Solver
from .rows import RowGroups, SiteSum

# The most coefficients beside the process; multiplications of calls, and of an eigenvector.
_MOST_COLUMNS, _CALLS, _PER_EIGENVECTOR = 200, 64.0**3, 20.0
# Rounds in which factors are fitted, and their least ratio to the largest.
_ROUNDS, _LEAST = 30, 1e-6
# By how much a product exceeds precisions at least, so that each value has a z whatever λ is.
_BEYOND = 1e-3


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


def _find_noise(blocks: Sequence[LatentBlock], maps: Sequence[LinearMap]) -> int | None:
    """Return the number of the block of noise: each of its values belongs to one of the grid."""
    own = cast(RowSelection, maps[_which(blocks)])
    for i, (block, A) in enumerate(zip(blocks, maps, strict=True)):
        independent = not block.grid and (block.is_independent or block.is_standard)
        if independent and isinstance(A, RowSelection) and abs(common_coefficient(A)) > 0.0:
            cells = _cells_of(A, own)
            if block.size > _MOST_COLUMNS and np.array_equal(cells[A.index], own.index):
                return i
    return None


def _cells_of(A: RowSelection, process: RowSelection) -> Index:
    """Return a cell of the grid whose rows take each value of A; 0 where none does."""
    cells = np.zeros(A.size, dtype=np.intp)
    cells[A.index] = process.index
    return cells


class Completion:
    """Factors of a product above the precisions of values, and the precisions τ of their z."""

    def __init__(self, precision: Array, grid: Sequence[int]) -> None:
        self.precision = precision
        self.factors = precision_factors(precision, grid)
        product = product_over_axes(self.factors)
        above = (1.0 + _BEYOND) * max(1.0, float((precision / product).max(initial=0.0)))
        self.factors[0] = self.factors[0] * above
        self.tau = above * product - precision

    def times(self, c: float) -> Completion:
        """Return that of c times the precisions."""
        found = copy(self)
        found.factors = [c * self.factors[0], *self.factors[1:]]
        found.tau = c * self.tau
        return found


class _Noise:
    """Sites of values from which their noise is integrated out; symbols are the module's."""

    def __init__(self, prior: LatentPrior, index: int, sites: SiteSum, H: Array) -> None:
        _, own, process = _process(prior)
        A = cast(RowSelection, prior.maps[index])
        scale = prior.blocks[index].diagonal_scale
        assert scale is not None
        by_value = RowSelection(A.index, None, A.size)
        self.h, self.lam = by_value.apply_transpose(sites.h), by_value.apply_transpose(sites.lam)
        self.w = by_value.apply_transpose(sites.lam * H.T)
        #: √t, with the sign of the coefficient.
        self.root = common_coefficient(A) * scale
        self.kept = 1.0 / (1.0 + self.root**2 * self.lam)
        self.of_cells = RowSelection(_cells_of(A, process), None, own.block.size)
        #: t s, and r s λ with r = √t.
        self.spread = self.root**2 * self.kept
        self.pulled_back = self.root * self.kept * self.lam

    def sums(self) -> tuple[Array, Array, Array]:
        """Return h and w of the values on the grid, and what their precisions lack."""
        add, lost = self.of_cells.apply_transpose, self.spread * self.lam**2
        return add(self.kept * self.h), add(self.kept * self.w), add(lost)

    def mean(self, eta: Array, beta: Array, h: Array | float = 0.0) -> Array:
        """Return the mean of the whitened noise, given c u of the grid and β."""
        by_site = h - beta @ self.w
        return self.root * self.kept * by_site - self.pulled_back * self.of_cells.apply(eta)


class GridPosterior(Posterior):
    """Posterior by eigenvectors, given z; there is none before a step, and all are zero.

    ``completion`` is that of the precisions, ``noise`` the number of a block.
    """

    def __init__(
        self,
        prior: LatentPrior,
        groups: RowGroups,
        sites: SiteSum,
        completion: Completion,
        z: Array | None = None,
        noise: int | None = None,
    ) -> None:
        super().__init__(prior, groups, sites)
        which, own, A = _process(prior)
        self._own, self._c = own, common_coefficient(A)
        ends = np.cumsum([0, *(b.block.total_size for b in prior.blocks)])
        self.size = int(ends[-1])
        self._places = slice(ends[which], ends[which + 1])
        self._of_noise = slice(0, 0) if noise is None else slice(ends[noise], ends[noise + 1])
        others = [i for i in range(len(prior.blocks)) if i not in (which, noise)]
        self._border = np.concatenate([np.r_[ends[i] : ends[i + 1]] for i in others] or [[]])
        self._border = self._border.astype(np.intp)
        self._B = RowSelection(A.index, None, A.size)
        pairs = zip(own.chols, completion.factors, strict=True)
        found = [np.linalg.eigh((L.T * a) @ L) for L, a in pairs]
        self._V = [V for _, V in found]
        eigenvalues = [np.maximum(d, 0.0) for d, _ in found]
        D = self._c**2 * product_over_axes(eigenvalues)
        self._std = 1.0 / np.sqrt(1.0 + D)
        parts = [prior.blocks[i].whitened_design(prior.maps[i]) for i in others]
        H = np.hstack([np.empty((sites.h.size, 0)), *parts])
        lam, h = sites.lam, sites.h
        weighted, by_cell, tau = lam * H.T, self._B.apply_transpose(h), completion.tau
        cross = self._B.apply_transpose(weighted)
        self._noise = None if noise is None else _Noise(prior, noise, sites, H)
        if self._noise is not None:
            by_cell, cross, lost = self._noise.sums()
            tau = tau + lost
        means, linear, constant = mean_by_value(A, H.T), np.zeros(tau.size), 0.0
        if z is not None:
            # The density of z at zero: the rest of it is in the sums below.
            linear, constant = tau * z, float(np.log(tau).sum() - tau @ z**2)
        self._half = self._pulled(by_cell + linear)
        self._Y = self._pulled(cross + tau * means)
        S = np.asfortranarray(weighted @ H + (tau * means) @ means.T - self._Y @ self._Y.T)
        S[np.diag_indices_from(S)] += 1.0
        of_border = h @ H + means @ linear - self._Y @ self._half
        self.log_det = float(np.log1p(D).sum())
        # Eigenvalues of a product have the error of its largest.
        self.factor_error = EPS * float(D.max(initial=0.0) * (self._std**2).sum())
        square = float(self._half @ self._half)
        if (own_noise := self._noise) is not None:
            spread = own_noise.spread * own_noise.w
            S -= spread @ own_noise.w.T
            of_border = of_border - spread @ own_noise.h
            square += float(own_noise.spread @ own_noise.h**2)
            self.log_det -= float(np.log(own_noise.kept).sum())
        self._chol_S, self.coefficients = S, np.empty(0)
        if len(S):
            self._chol_S, log_det, error, _ = cholesky(S, lam)
            self.log_det += log_det
            self.factor_error += 0.5 * error
            half = solve_triangle(self._chol_S, of_border, False)
            self.coefficients = solve_triangle(self._chol_S, half, True)
        square += float(of_border @ self.coefficients)
        self.log_normalizer = 0.5 * (square - self.log_det + constant)
        self.error = self.factor_error + EPS * square

    def _pulled(self, slope: Array) -> Array:
        """Return c Eᵀ Lᵀ x."""
        return self._rotated(self._own.scale_transpose(self._c * slope))

    def _rotated(self, x: Array) -> Array:
        return self._std * kronecker_product([V.T for V in self._V], x)

    def _joined(self, v: Array, beta: Array, noise: Array | float) -> Array:
        x = np.empty((*v.shape[:-1], self.size))
        x[..., self._places], x[..., self._border], x[..., self._of_noise] = v, beta, noise
        return x

    def _noise_of(self, v: Array, beta: Array, h: Array | float = 0.0) -> Array | float:
        """Return the mean of the whitened noise given the others, of sites with this h."""
        if self._noise is None:
            return 0.0
        return self._noise.mean(self._c * self._own.scale(v), beta, h)

    def _through(self, rotated: Array, beta: Array, h: Array | float = 0.0) -> Array:
        """Return v = E (rotated − Yβ), β and the mean of the noise."""
        v = kronecker_product(self._V, self._std * (rotated - beta @ self._Y))
        return self._joined(v, beta, self._noise_of(v, beta, h))

    @cached_property
    def latent_mean(self) -> Array:
        h = 0.0 if self._noise is None else self._noise.h
        return self._through(self._half, self.coefficients, h)

    def root(self, nu: Array) -> Array:
        beta = solve_triangle(self._chol_S, nu[..., self._border], True)
        x = self._through(nu[..., self._places], beta)
        if self._noise is not None:
            x[..., self._of_noise] += np.sqrt(self._noise.kept) * nu[..., self._of_noise]
        return x

    def pull(self, slope: Array) -> Array:
        own, beta = slope[..., self._places], slope[..., self._border]
        noise: Array | float = 0.0
        if (given := self._noise) is not None:
            of_noise = slope[..., self._of_noise]
            by_cell = given.of_cells.apply_transpose(given.pulled_back * of_noise)
            own = own - self._own.scale_transpose(self._c * by_cell)
            beta = beta - (given.root * given.kept * of_noise) @ given.w.T
            noise = np.sqrt(given.kept) * of_noise
        rotated = self._rotated(own)
        beta = solve_triangle(self._chol_S, beta - rotated @ self._Y.T, False)
        return self._joined(rotated, beta, noise)

    def solve(self, rng: Generator, x: Array) -> Array:
        away = x - self.latent_mean
        v, beta = away[..., self._places], away[..., self._border]
        noise: Array | float = 0.0
        if self._noise is not None:
            noise = away[..., self._of_noise] - self._noise_of(v, beta)
            noise = noise / np.sqrt(self._noise.kept)
        rotated = kronecker_product([V.T for V in self._V], v) / self._std
        return self._joined(rotated + beta @ self._Y, beta @ np.tril(self._chol_S), noise)


class GridSolver(Solver):
    """Eigenvectors of a matrix for each axis of a grid."""

    name = "grid"
    differentiable = True
    ensemble = 1
    augments = follows = True

    def __init__(self, blocks: Sequence[LatentBlock], groups: RowGroups) -> None:
        super().__init__(blocks, groups)
        self._noise = _find_noise(blocks, groups.maps or ())
        self._z: Array | None = None
        self._known: Completion | None = None

    @classmethod
    def fits(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> bool:
        """Return whether each row takes one value of one process on a grid, and others are few."""
        grids = [i for i, block in enumerate(blocks) if block.grid]
        if len(grids) != 1 or groups.maps is None or groups.coupling.rows:
            return False
        A = groups.maps[grids[0]]
        if not (isinstance(A, RowSelection) and abs(common_coefficient(A)) > 0.0):
            return False
        noise = _find_noise(blocks, groups.maps)
        others = [b for i, b in enumerate(blocks) if i not in (grids[0], noise)]
        independent = all(block.is_independent or block.is_standard for block in others)
        return independent and sum(block.total_size for block in others) <= _MOST_COLUMNS

    @classmethod
    def order(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> int:
        noise = _find_noise(blocks, groups.maps or ()) if cls.fits(blocks, groups) else None
        return sum(b.total_size for i, b in enumerate(blocks) if not b.grid and i != noise)

    largest_order = order

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
        which, _, A = _process(prior)
        rest, tau = prior.merged_predictor(u) - A.apply(u[which]), self._complete(prior, sites).tau
        if (noise := self._noise) is not None:
            rest -= prior.maps[noise].apply(u[noise])
            *_, lost = _Noise(prior, noise, sites, np.empty((sites.h.size, 0))).sums()
            tau = tau + lost
        eta = common_coefficient(A) * u[which] + mean_by_value(A, rest[None])[0]
        self._z = eta + rng.standard_normal(eta.size) / np.sqrt(tau)
        self._last = None

    def _complete(self, prior: LatentPrior, sites: SiteSum) -> Completion:
        """Return the completion of the sites; raises NotPositiveDefiniteError if not finite."""
        _, own, A = _process(prior)
        both = [A] if self._noise is None else [A, cast(RowSelection, prior.maps[self._noise])]
        if np.isnan([common_coefficient(B) for B in both]).any():
            raise AugmentationError(
                f"process {own.block.name!r} on a grid: expected one multiple of it in all "
                "predictors at every value of the parameters, found several; please report it"
            )
        one, c = sites.lam, 1.0
        if len(sites.terms) == 1:
            # Hyperparameters move the scale, and a factor along.
            one, c = sites.terms[0].lam, sites.scales[0]
        precision = np.bincount(A.index, one, A.size)
        if not (np.isfinite(precision).all() and np.isfinite(sites.h).all() and np.isfinite(c)):
            raise NotPositiveDefiniteError("expected finite sites, got a NaN or an infinity")
        if self._known is None or not np.array_equal(self._known.precision, precision):
            self._known = Completion(precision, own.block.grid)
        return self._known.times(c)

    def _condition(
        self, prior: LatentPrior, sites: SiteSum, keep: Posterior | None
    ) -> GridPosterior:
        completion = self._complete(prior, sites)
        return GridPosterior(prior, self.groups, sites, completion, self._z, self._noise)


def common_coefficient(A: RowSelection) -> float:
    """Return the coefficient of all rows; NaN where they have several."""
    c, base = A.multiple_of
    coef = base.coef
    if coef is None or not coef.size:
        return c
    return c * float(coef[0]) if (coef == coef[0]).all() else np.nan


def mean_by_value(A: RowSelection, x: Array) -> Array:
    """Return means of the rows that take each value, of x, (count, R); of all where none does."""
    count = np.bincount(A.index, minlength=A.size)
    ones = RowSelection(A.index, None, A.size)
    means = np.asarray(ones.apply_transpose(x) / np.maximum(count, 1))
    return np.where(count > 0, means, x.mean(axis=1, keepdims=True))
