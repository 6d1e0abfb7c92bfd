"""Conditioning Markov processes on their sites by a Kalman filter, in linear time.

Each merged row takes at most one value u of a Markov process, η_r = c_r u_i(r) + (Hβ)_r, with
independent coefficients β ~ N(0, I) as a border of few columns. Sites of rows that take the same
value are one observation z of it, and the rest of them depends on β alone: with A the map of u,

    Λᵤ = AᵀΛA,    z = Λᵤ⁻¹Aᵀh,    H̄ = Λᵤ⁻¹AᵀΛH,    W = H − A H̄,    C = K + Λᵤ⁻¹,
    (A K Aᵀ + Λ⁻¹)⁻¹H = Λ W + ΛA Λᵤ⁻¹C⁻¹H̄,         M = I + WᵀΛW + H̄ᵀC⁻¹H̄ = L_M L_Mᵀ,
    E[β] = M⁻¹ (Wᵀh + H̄ᵀC⁻¹z),                     α = h − ΛA z − ΛWβ + ΛAΛᵤ⁻¹C⁻¹(z − H̄β),

log|I + ΛC| is log|Λᵤ| + log|C| + log|M|, and, by the forward pass of the filter alone,

    hᵀE[η] = zᵀΛᵤz − zᵀC⁻¹z + |L_M⁻¹(Wᵀh + H̄ᵀC⁻¹z)|².

By Matheron's rule ν = (ξ, ε, ξ_β) gives

    β = E[β] + L_M⁻ᵀ ξ_β,        u = Sξ + K C⁻¹(z − H̄β − Sξ − Λᵤ^−½ ε),

and many ν the same u, of which one is drawn as in :mod:`.by_observations`. Coordinates are u and β.
Products with C⁻¹ and S are by :class:`.MarkovFactor`, and K C⁻¹w is w − Λᵤ⁻¹C⁻¹w, unless w is so
large that no digits are left. Values without sites have tiny precisions. Negative precisions are
allowed but in draws, as then ε has no real scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import cast

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import AugmentationError
from pymc_augconj.gaussian.sites import cholesky
from pymc_augconj.linalg.dense import EPS, SMALL_BOUND
from pymc_augconj.linalg.factors import solve_triangle
from pymc_augconj.linalg.linear_map import RowSelection
from pymc_augconj.typing import Array, Index

from .joint import LatentPrior, block_prior
from .markov import MarkovPrior
from .markov_values import MarkovValues
from .posterior import Posterior, Solver
from .rows import RowGroups, SiteSum

# The most columns of the border, and multiplications, in those of LAPACK, of a call and, for each
# input, of an entry of the state and of two.
_MOST_COLUMNS, _CALLS, _PER_ENTRY, _PER_PAIR = 200, 64.0**3, 400.0, 50.0
# Standard deviations of the prior up to which K C⁻¹w is a difference; its error is 1e-12 of one.
_MANY_STDS = 1e4


def _merged(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


class FilterPosterior(Posterior):
    """Posterior by Kalman filters and a border; λ may have either sign.

    ``values`` are those of another posterior with the same maps.
    """

    def __init__(
        self,
        prior: LatentPrior,
        groups: RowGroups,
        sites: SiteSum,
        values: MarkovValues | None = None,
    ) -> None:
        super().__init__(prior, groups, sites)
        own = self.values = values or MarkovValues(prior)
        self._blocks = [cast(MarkovPrior, prior.blocks[i]) for i in own.which]
        given, h = own.given(prior, sites), sites.h
        self._precision, self._H, self._W = given.precision, given.H, given.W
        self._shared, self._z, self._of_rest = given.both[:-1], given.both[-1], given.rest
        var = min(float(np.max(b.motion.variance) + b.array[-1]) for b in self._blocks)
        self._many_stds = _MANY_STDS * var**0.5
        self._factors, start = [], 0
        for b, noise in zip(self._blocks, given.extra, strict=True):
            for part in noise.reshape(b.block.copies, -1):
                rows = given.both[:, start : start + part.size]
                self._factors.append(b.with_noise(part, rows))
                start += part.size
        # Products of H̄ and z with C⁻¹ between them.
        products = np.sum([(f.half * f.pivots) @ f.half.T for f in self._factors], axis=0)
        linear, M = given.linear + products[:-1, -1], given.M + products[:-1, :-1]
        self.log_det = sum(float(np.log(np.abs(f.pivots / f.extra)).sum()) for f in self._factors)
        self.error = sum(f.error for f in self._factors)
        self._chol_M, self.coefficients, square = M, linear, 0.0
        if len(M):
            self._chol_M, of_border, error, _ = cholesky(np.asfortranarray(M), sites.lam)
            self.log_det += of_border
            self.error += 0.5 * error
            half = solve_triangle(self._chol_M, linear, False)
            self.coefficients, square = solve_triangle(self._chol_M, half, True), float(half @ half)
        self.size = own.n_latents + own.size
        self.factor_error, of_z = 0.5 * self.error, float(products[-1, -1])
        rounding = self.factor_error + sum(f.rounding_of(self.coefficients) for f in self._factors)
        self.error = rounding + EPS * (given.magnitude + abs(of_z) + square)
        square += given.square - of_z
        if not self.error < SMALL_BOUND:
            # Of z that are large, as where precisions are tiny, the mean keeps more digits.
            square = float(h @ self.centred)
            self.error = rounding + EPS * float(np.abs(h) @ np.abs(self.centred))
        self.log_normalizer = 0.5 * (square - self.log_det)

    # -- products ---------------------------------------------------------------------------------

    def _solve(self, x: Array) -> Array:
        """Return C⁻¹ x, of each row of x where there are several."""
        return _merged([f.solve(u) for f, u in zip(self._factors, self._split(x), strict=True)])

    def _split(self, x: Array) -> list[Array]:
        """Return the parts of the factors of C."""
        return np.split(x, np.cumsum([f.inputs.size for f in self._factors])[:-1], axis=-1)

    def _by_block(self, method: str, x: Array) -> Array:
        pairs = zip(self._blocks, self.values.split(x), strict=True)
        return _merged([getattr(b, method)(part) for b, part in pairs])

    def _through_cov(self, w: Array, solved: Array) -> Array:
        """Return K C⁻¹w, given C⁻¹w."""
        if np.abs(w).max(initial=0.0) <= self._many_stds:
            return w - solved / self._precision
        return self._by_block("apply_cov", solved)

    @cached_property
    def _noise_std(self) -> Array:
        """Λᵤ^−½."""
        if (self._precision < 0.0).any():
            names = " and ".join(repr(b.block.name) for b in self._blocks)
            raise AugmentationError(
                f"latent variables {names}: expected sites with positive precisions for draws of a "
                "process in linear time, found negative ones; fit with method='vgp', or sample"
            )
        return 1.0 / np.sqrt(self._precision)

    @cached_property
    def _solved(self) -> Array:
        """C⁻¹ times H̄ and z, as rows."""
        return np.hstack([f.solved for f in self._factors])

    @cached_property
    def _of_mean(self) -> Array:
        """C⁻¹(z − H̄ E[β])."""
        return np.asarray(self._solved[-1] - self.coefficients @ self._solved[:-1])

    @cached_property
    def _mean(self) -> Array:
        return self._through_cov(self._z - self.coefficients @ self._shared, self._of_mean)

    @cached_property
    def centred(self) -> Array:
        return np.asarray(self.values.taken(self._mean) + self._H @ self.coefficients)

    @cached_property
    def alpha(self) -> Array:
        taken = self.values.taken(self._of_mean / self._precision)
        return np.asarray(self._of_rest + self.sites.lam * (taken - self._W @ self.coefficients))

    # -- the affine map ---------------------------------------------------------------------------

    @cached_property
    def latent_mean(self) -> Array:
        return self._joined(self._mean, self.coefficients)

    def _joined(self, u: Array, beta: Array) -> Array:
        if not beta.shape[-1]:
            return u
        x = np.empty((*u.shape[:-1], self.values.n_latents))
        x[..., self.values.places], x[..., self.values.border] = u, beta
        return x

    def coordinates(self, v: Array) -> Array:
        own = self.values
        return self._joined(self._by_block("scale", v[..., own.places]), v[..., own.border])

    def whitened(self, x: Array) -> Array:
        own = self.values
        return self._joined(self._by_block("unscale", x[..., own.places]), x[..., own.border])

    def innovations(self, x: Array) -> list[Array]:
        own = self.values
        found = self.innovations_of_border(x[..., own.border])
        for i, part in zip(own.which, own.split(x[..., own.places]), strict=True):
            found[i] = part
        return found

    def innovations_transpose(self, slopes: list[Array]) -> Array:
        pairs = zip(self.prior.blocks, slopes, strict=True)
        parts = [x if isinstance(b, MarkovPrior) else b.scale_transpose(x) for b, x in pairs]
        return np.concatenate(parts, axis=-1)

    def apply(self, nu: Array) -> Array:
        # Of one ν without the mean, which takes as long.
        return self.root(nu, is_about_mean=True) if nu.size == self.size else super().apply(nu)

    def root(self, nu: Array, *, is_about_mean: bool = False) -> Array:
        own, n = self.values, self.values.n_latents
        beta = solve_triangle(self._chol_M, nu[..., own.border], True)
        away = self._noise_std * nu[..., n:]
        if is_about_mean:
            beta += self.coefficients
            away -= self._z
        if beta.shape[-1]:
            away += beta @ self._shared
        return self._joined(self._simulated(nu[..., :n][..., own.places], away), beta)

    def _simulated(self, x: Array, away: Array) -> Array:
        """Return S x − K C⁻¹w with w = S x + ``away``."""
        roots = [b.factor for b in self._blocks for _ in range(b.block.copies)]
        given = zip(self._factors, roots, self._split(x), self._split(away), strict=True)
        parts = [f.simulated(root, u, w) for f, root, u, w in given]
        start, solved, largest = zip(*parts, strict=True)
        of_w = _merged(solved).reshape(x.shape)
        if max(largest) <= self._many_stds:
            # K C⁻¹w is w − Λᵤ⁻¹C⁻¹w.
            found = of_w / self._precision
            found -= away
            return found
        return _merged(start).reshape(x.shape) - self._by_block("apply_cov", of_w)

    def pull(self, slope: Array) -> Array:
        own = self.values
        outside, of_border = slope[..., own.places], slope[..., own.border]
        w = self._solve(self._by_block("apply_cov", outside))
        of_border = solve_triangle(self._chol_M, of_border - w @ self._shared.T, False)
        found = self._joined(self._by_block("scale_transpose", outside - w), of_border)
        return np.concatenate([found, -self._noise_std * w], axis=-1)

    def stretches(self, rng: np.random.Generator) -> list[tuple[Index, Index, Index]]:
        return self.values.stretches(self._blocks, rng)

    def solve(self, rng: np.random.Generator, x: Array) -> Array:
        own = self.values
        n, nu = own.n_latents, rng.standard_normal(self.size)
        nu[:n][own.border] = np.tril(self._chol_M).T @ (x[own.border] - self.coefficients)
        away = (x - self.apply(nu))[own.places]
        nu[:n][own.places] += self._by_block("unscale", away)
        nu[n:] -= away / self._noise_std
        return nu

    # -- moments ----------------------------------------------------------------------------------

    @cached_property
    def _own_var(self) -> Array:
        """Variances of u given β."""
        return np.concatenate([f.var() for f in self._factors])

    @cached_property
    def _through_border(self) -> Array:
        """−K C⁻¹H̄ L_M⁻ᵀ, what a standard deviation of β moves u by, as rows."""
        return self._half_border(-self._by_block("apply_cov", self._solved[:-1]))

    def _half_border(self, rows: Array) -> Array:
        """Return L_M⁻¹ times the rows."""
        return solve_triangle(self._chol_M, rows.T, False).T

    @cached_property
    def _predictors_through_border(self) -> Array:
        return self.values.taken(self._through_border) + self._half_border(self._H.T)

    @cached_property
    def merged_cov(self) -> Array:
        own = self.values.coef * self.values.taken(self._own_var)
        return own + np.einsum("ij,ij->j", *2 * (self._predictors_through_border,))

    @property
    def divergence_error(self) -> float:
        return self.error  # α is no difference

    def innovations_of_border(self, beta: Array) -> list[Array]:
        """Return S v of the other blocks, given their v; empty arrays for the Markov blocks."""
        found, start = [], 0
        for i, b in enumerate(self.prior.blocks):
            stop = start + (0 if i in self.values.which else b.block.total_size)
            part = beta[..., start:stop]
            found.append(part if i in self.values.which else b.scale(part))
            start = stop
        return found

    def innovation_var(self, index: int) -> Array:
        own = self.values
        if index in own.which:
            rows = self._through_border
            var = self._own_var + np.einsum("ij,ij->j", rows, rows)
            return own.split(var)[own.which.index(index)]
        part = self.innovations_of_border(self._half_border(np.eye(self.coefficients.size)))[index]
        return np.einsum("ij,ij->j", part, part)

    def response_product(self, X: Array) -> Array:
        own, lam = self.values, self.sites.lam
        shared = np.array([own.sums(lam * x) for x in X.T]).reshape(X.shape[1], own.size)
        shared /= self._precision
        rest = lam * (X.T - own.taken(shared))
        solved = self._solve(shared)
        if self.coefficients.size:
            linear = rest @ self._W + solved @ self._shared.T
            beta = solve_triangle(self._chol_M, solve_triangle(self._chol_M, linear, False), True)
            rest -= lam * (beta @ self._W.T)
            solved -= beta @ self._solved[:-1]
        return (rest + lam * own.taken(solved / self._precision)).T

    # -- derivatives ------------------------------------------------------------------------------

    def pull_cov(self, index: int) -> Array:
        # By central differences of fourth order: variances, rates and noise are few.
        if index not in self.values.which:
            return super().pull_cov(index)
        p, block, own = self.prior, cast(MarkovPrior, self.prior.blocks[index]), self.values
        slopes = np.zeros(block.array.size)
        for k, weight, array in block.moved():
            blocks = list(p.blocks)
            blocks[index] = block_prior(block.block, array, block.jitter)
            moved = LatentPrior(p.offset, tuple(blocks), p.full_maps, p.maps)
            slopes[k] += weight * type(self)(moved, self.groups, self.sites, own).log_normalizer
        return slopes

    def pull_selection(self, index: int) -> Array:
        # ∂ log Z/∂Aᵢⱼ = αᵢ E[uⱼ] − λᵢ Cov(ηᵢ, uⱼ)
        own = self.values
        if index not in own.which:
            return super().pull_selection(index)
        rows = self._predictors_through_border
        through = np.einsum("ij,ij->j", rows, self._through_border[:, own.index])
        cov = own.coef * self._own_var[own.index] + through
        return self.alpha * self._mean[own.index] - self.sites.lam * cov


class FilterSolver(Solver):
    """A Kalman filter over the inputs of Markov processes."""

    name = "filter"
    differentiable = follows = True
    ensemble, sweeps = 1, 2
    _values: MarkovValues | None = None

    @classmethod
    def _fits(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> bool:
        """Return whether each row takes at most one value of a process, and others are few."""
        maps = groups.maps
        markov = [i for i, block in enumerate(blocks) if block.inputs is not None]
        if maps is None or not markov or groups.coupling.rows:
            return False
        others = [block for i, block in enumerate(blocks) if i not in markov]
        few = sum(block.total_size for block in others) <= _MOST_COLUMNS
        if not (few and all(block.is_independent or block.is_standard for block in others)):
            return False
        own = [A for A in map(maps.__getitem__, markov) if isinstance(A, RowSelection)]
        taken = np.sum([A.entries != 0.0 for A in own], axis=0)
        return len(own) == len(markov) and bool(np.max(taken, initial=0) <= 1)

    @classmethod
    def order(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> int:
        return sum(block.total_size for block in blocks if block.inputs is None)

    largest_order = order

    @classmethod
    def multiplications(cls, blocks: Sequence[LatentBlock], groups: RowGroups) -> float:
        if not cls._fits(blocks, groups):
            return np.inf
        states = [(b.total_size, b.inputs.dimension) for b in blocks if b.inputs is not None]
        work = sum(n * d * (_PER_ENTRY + _PER_PAIR * d) for n, d in states)
        return _CALLS + work * (1.0 + cls.order(blocks, groups))

    def prior_cov(self, prior: LatentPrior) -> Array:
        total = np.zeros(self.groups.size)
        for A, b in zip(prior.maps, prior.blocks, strict=True):
            if isinstance(A, RowSelection) and isinstance(b, MarkovPrior):
                total += A.entries**2 * b.var()[A.index]
            else:
                total += np.sum(b.whitened_design(A) ** 2, axis=1)
        return total

    def _condition(
        self, prior: LatentPrior, sites: SiteSum, keep: Posterior | None
    ) -> FilterPosterior:
        if self._values is None or not self._values.fits(prior):
            self._values = MarkovValues(prior)
        return FilterPosterior(prior, self.groups, sites, self._values)
