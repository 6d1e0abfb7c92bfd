"""Effects of one factor after another, where drawing all of them at once costs too much.

Effects of crossed factors have a precision that fills in: one factorisation costs the cube of the
levels of the smaller of two factors. Given all others, the effects of one factor are independent
and take time linear in the observations. So the latents of a part are divided into *factors*, parts
of their own, whose scales are updated with their own effects integrated out. Where sites are held,
levels of a factor have ellipses of their own, see :mod:`.tilted`.

Where every level of one block belongs to one level of another (a lecturer to a department, and
everything to the intercept), predictors stay if δ_f is added to the effect of a level f of F and
r δ_f subtracted from those of its levels of G. That direction mixes slowly, and is *drawn*: with
r = x_F/x_G the constant ratio of coefficients of a row, u_F ~ N(0, s_F²) and u_G ~ N(0, s_G²),

    δ_f ~ N(m/p, 1/p),        p = 1/s_F² + Σ_g r²/s_g²,        m = −u_f/s_F² + Σ_g r u_g/s_g²,

sums over the levels g of f. For several correlated effects of a level, u_g ~ N(0, Σ), each
coefficient is such a direction, with (Σ⁻¹)_kk for 1/s_g² and (Σ⁻¹u_g)_k for u_g/s_g².

Otherwise draws in turn have the autocorrelation ρ of the Gauss–Seidel iteration for the posterior
mean. So a share q of the steps draws all latents at once, at c times the cost of a step, such that
time over effective draws, (1 + q c) (1 + ρ(1 − q)) / (1 − ρ(1 − q)), is smallest.

Where a factor of the precision of all latents is too large, their joint draw is by conjugate
gradients. With sites (h, λ) of the rows and M = I + ΦᵀΛΦ, for standard normal ε and ε′ of as many
numbers as rows and latents,

    v = M⁻¹ (Φᵀ(h + Λ^½ ε) + ε′)  ~  N(M⁻¹Φᵀh, M⁻¹),

as the right-hand side has the covariance M. Products with M take time linear in the rows. No
eigenvalue of M is below one: the error of v is at most as long as the residual.

References
----------
Papaspiliopoulos, Roberts & Zanella (2020), Scalable inference for crossed random effects models.
Biometrika 107.
Roberts & Sahu (1997), Updating schemes, correlation structure, blocking and parameterization for
the Gibbs sampler. JRSS B 59 (ρ).
Liu & Sabatti (2000), Generalised Gibbs sampler and multigrid Monte Carlo for Bayesian computation.
Biometrika 87 (draws along a direction).
Papandreou & Yuille (2010), Gaussian sampling by local perturbations. NeurIPS.
Pandolfi, Papaspiliopoulos & Zanella (2024), Conjugate gradient methods for high-dimensional GLMMs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from scipy.linalg import cho_solve
from scipy.sparse import coo_array, csr_array, hstack
from scipy.sparse.csgraph import connected_components

from pymc_augconj.block import LatentBlock
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.by_gram import GramPattern, can_sum_out, whitened_parts
from pymc_augconj.latents.dense import DensePrior
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.rows import RowGroups, SiteSum
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection, SelectionSum
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.plan import Factors
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Generator, Index

from .tilted import Levels

# Blocks with fewer latents share a factor.
_SMALL = 32
# Factorisations in a step in which all latents are drawn at once.
_FACTORISATIONS = 20.0
# Cost of a row for each factor, in multiplications within a dense matrix: sums of sites, gathered
# effects, auxiliary variables. 30 to 65 ns, where a multiplication takes 0.33 ns.
_PER_ROW = 200.0
# Steps factor by factor must be so many times cheaper, as they mix less well; and a step with joint
# draws must cost more than this number of multiplications.
_CHEAPER, _FEW = 4.0, 1e8
# Shares that are compared.
_SHARES = 201
# Coefficients that are multiples of each other are so up to this.
_ROUNDING = 64.0 * np.finfo(float).eps


def choose_factors(
    model: LatentGaussianModel, held: Collection[str], point: Point, groups: RowGroups
) -> Factors | None:
    """Return the factors; None where all latents are drawn at once.

    So they are, too, where an observed variable has several predictors, or held sites are those of
    steps or of bounded latents. ``held`` names the observed variables whose sites are held, and
    ``groups`` are the predictors that are equal for all latents.
    """
    sizes = [block.total_size for block in model.blocks]
    is_possible = (
        not (held and model.is_bounded)
        and not any(s.likelihood.traits.propagates for s in model.sites if s.name in held)
        and all(len(site.likelihood.groups) == 1 for site in model.sites)
        and all(site.shape[0] == 1 for site in model.sites)
    )
    most = sum(size for size in sizes if size > _SMALL) - max(sizes, default=0)
    if not is_possible or _FACTORISATIONS * (most + _SMALL) ** 3 / 3.0 < _FEW:
        return None
    maps = [read(point).rows(groups.first) for read in model.maps]
    if not can_sum_out(model.blocks, maps):
        return None
    factors = _tied(model, _by_size(sizes, maps))
    if len(factors) < 2:
        return None
    if held:
        # Ellipses of levels move where one of all latents hardly does, whatever it costs.
        return Factors(factors, 1.0)
    maps = whitened_parts(model.blocks, maps)
    costs = [
        GramPattern([maps[i] for i in own]).pattern.multiplications
        for own in (range(len(maps)), *factors)
    ]
    of_rows = _PER_ROW * len(factors) * model.n_rows
    apart = _FACTORISATIONS * sum(costs[1:]) + of_rows
    if _FACTORISATIONS * costs[0] < max(_FEW, _CHEAPER * apart):
        return None
    return Factors(factors, (costs[0] + of_rows) / apart)


def _by_size(sizes: Sequence[int], maps: Sequence[LinearMap]) -> list[set[int]]:
    """Return a factor for every large block of selected values, and first one for all others."""
    large = [
        i for i in np.argsort(sizes, kind="stable").tolist()
        if sizes[i] > _SMALL and isinstance(maps[i], RowSelection | SelectionSum)
    ]  # fmt: skip
    rest = {i for i in range(len(sizes)) if i not in large}
    return [*([rest] if rest else []), *({i} for i in large)]


def _tied(model: LatentGaussianModel, factors: list[set[int]]) -> tuple[tuple[int, ...], ...]:
    """Join factors whose priors or designs have a hyperparameter in common."""
    for h in model.hyperparameters:
        pairs = zip(model.blocks, model.maps, strict=True)
        own = {i for i, (b, A) in enumerate(pairs) if h.value_name in {*b.scale.names, *A.names}}
        joined = [factor for factor in factors if own & factor]
        if len(joined) > 1:
            factors = [f for f in factors if f not in joined] + [set.union(*joined)]
    return tuple(tuple(sorted(factor)) for factor in factors)


def best_share(rate: float, cost: float) -> float:
    """Return the share of the steps with a joint draw, given ρ and c; see the module."""
    share = np.linspace(0.0, 1.0, _SHARES)
    return float(share[np.argmin(time_over_draws(share, rate, cost))])


def time_over_draws(share: Any, rate: float, cost: float) -> Any:
    """Return the time over effective draws, in steps without a joint draw; see the module."""
    left = min(max(rate, 0.0), 1.0) * (1.0 - share)
    with np.errstate(divide="ignore"):
        return (1.0 + share * cost) * (1.0 + left) / (1.0 - left)


@dataclass(frozen=True)
class Shift:
    """Blocks F and G that the data do not tell apart in a direction for each level of F.

    ``of`` is the level of F that each of the ``observed`` latents of G belongs to, ``row`` a row
    whose coefficients are not zero, and ``part`` the term of the map of G that has its
    coefficients.
    """

    coarse: int
    fine: int
    of: Index
    observed: Index
    row: int
    part: int = 0

    def draw(self, rng: Generator | None, prior: LatentPrior, innovations: list[Array]) -> None:
        """Draw δ, given u of every block, which are overwritten; its mean without a generator."""
        F = prior.blocks[self.coarse].diagonal_scale
        assert F is not None  # see find_shifts
        A, B = prior.full_maps[self.coarse], _parts(prior.full_maps[self.fine])[self.part]
        xi = np.zeros(F.size) if rng is None else rng.standard_normal(F.size)
        with np.errstate(all="ignore"):
            r = _coefficient(A, self.row) / _coefficient(B, self.row)
            u, v = innovations[self.coarse], innovations[self.fine]
            weights, weighted = _precision(prior.blocks[self.fine], v)
            p = F**-2 + r**2 * np.bincount(self.of, weights[self.observed], F.size)
            m = r * np.bincount(self.of, weighted[self.observed], F.size) - u / F**2
            delta = m / p + xi / np.sqrt(p)
        # A level without variance, or a coefficient of zero, leaves nothing to draw.
        delta = np.where(np.isfinite(delta) & np.isfinite(p), delta, 0.0)
        u += delta
        v[self.observed] -= r * delta[self.of]


def find_shifts(
    blocks: Sequence[LatentBlock],
    maps_at: Sequence[Sequence[LinearMap]],
    factors: Sequence[Sequence[int]],
) -> list[Shift]:
    """Return the pairs of effects of different factors, of which one is nested in independent ones.

    ``maps_at`` are the blocks' maps at one or more values of θ.
    """
    owner = {i: number for number, own in enumerate(factors) for i in own}
    independent = [i for i, block in enumerate(blocks) if block.is_independent]
    shifts = []
    for coarse, fine in product(independent, range(len(blocks))):
        if owner[coarse] == owner[fine]:
            continue
        parts_at = [_parts(maps[fine]) for maps in maps_at]
        count = len(parts_at[0])
        # A latent of several parts, or two of a level in one, are in no direction by themselves.
        if count > 1 if fine in independent else not _is_apart(parts_at[0], blocks[fine].size):
            continue
        for part in range(count):
            pairs = [(maps[coarse], own[part]) for maps, own in zip(maps_at, parts_at, strict=True)]
            found = _nested(coarse, fine, pairs)
            shifts += [] if found is None else [replace(found, part=part)]
    return shifts


def _parts(A: LinearMap) -> list[LinearMap]:
    """Return the terms of a sum, with their coefficients."""
    if not isinstance(A, SelectionSum):
        return [A]
    return [part.times(float(c)) for c, part in zip(A.coefs, A.parts, strict=True)]


def _is_apart(parts: Sequence[LinearMap], size: int) -> bool:
    """Return whether each part has one effect of every level, no two parts the same."""
    kinds = [
        np.unique(part.index % size).tolist() if isinstance(part, RowSelection) else []
        for part in parts
    ]
    return all(len(own) == 1 for own in kinds) and len({own[0] for own in kinds}) == len(kinds)


def _precision(block: BlockPrior, u: Array) -> tuple[Array, Array]:
    """Return the diagonal of Σ⁻¹, and Σ⁻¹ u."""
    if block.diagonal_scale is not None:
        return block.diagonal_scale**-2, u / block.diagonal_scale**2
    assert isinstance(block, DensePrior)  # see find_shifts
    Q = cho_solve((block.chol, True), np.eye(len(block.chol)))
    return np.tile(np.diag(Q), u.size // len(Q)), (u.reshape(-1, len(Q)) @ Q).ravel()


def find_independent(blocks: Sequence[LatentBlock], maps: Sequence[LinearMap]) -> Levels | None:
    """Return the sets of latents that no row connects; None where there is one."""
    sizes = [block.total_size for block in blocks]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    rows, latents, n_rows = [], [], 0
    for A, start in zip(whitened_parts(blocks, maps), starts, strict=False):
        parts = A.parts if isinstance(A, SelectionSum) else [A]
        for part in parts:
            if not isinstance(part, RowSelection):
                return None
            n_rows = part.index.size
            rows.append(np.arange(n_rows))
            latents.append(n_rows + start + part.index)
    pairs = np.concatenate(rows), np.concatenate(latents)
    order = n_rows + starts[-1]
    graph = coo_array((np.ones(pairs[0].size), pairs), shape=(order, order))
    count, label = connected_components(graph, directed=False)
    return None if count == 1 else Levels(label[:n_rows], label[n_rows:], int(count))


def _nested(coarse: int, fine: int, pairs: Sequence[tuple[LinearMap, LinearMap]]) -> Shift | None:
    A, B = pairs[0]
    if not isinstance(A, RowSelection) or not isinstance(B, RowSelection) or A.size > B.size:
        return None
    of = np.zeros(B.size, dtype=np.intp)
    of[B.index] = A.index
    if not np.array_equal(of[B.index], A.index):
        return None
    row = 0 if A.coef is None else int(np.abs(A.coef).argmax())
    for maps in pairs:
        left, right = map(_coefficients, maps)
        apart = np.abs(left * right[row] - right * left[row])
        if np.any(apart > _ROUNDING * np.abs(left * right[row])):
            return None
    observed = np.unique(B.index)
    return Shift(coarse, fine, of[observed], observed, row)


def _coefficients(A: LinearMap) -> Array:
    assert isinstance(A, RowSelection)
    return A.entries


def _coefficient(A: LinearMap, row: int) -> float:
    assert isinstance(A, RowSelection)
    c, base = A.multiple_of
    return c if base.coef is None else c * float(base.coef[row])


# Length of the residual relative to the draw's, and the iterations after which it is not waited
# for.
TOLERANCE, MOST_ITERATIONS = 1e-8, 2000
# Columns of a design that is no selection.
_FEW_COLUMNS = 32


def design(prior: LatentPrior) -> csr_array | None:
    """Return Φ of the merged rows; None where more than a few columns are dense."""
    parts = []
    for A, block in zip(prior.maps, prior.blocks, strict=True):
        if isinstance(A, RowSelection) and block.diagonal_scale is not None:
            parts.append(A.scaled(block.diagonal_scale).sparse())
        elif A.size > _FEW_COLUMNS:
            return None
        else:
            parts.append(csr_array(block.whitened_design(A)))
    return hstack(parts, format="csr")


def draw_iteratively(rng: Generator, Phi: csr_array, h: Array, lam: Array) -> tuple[Array, int]:
    """Return the whitened latents given sites of the merged rows, and the iterations."""
    right = Phi.T @ (h + np.sqrt(lam) * rng.standard_normal(h.size))
    return solve(Phi, lam, right + rng.standard_normal(right.size))


def iterations_of_draw(rng: Generator, prior: LatentPrior, sites: SiteSum) -> int | None:
    """Return the iterations that a draw takes; None where there are none, or too many."""
    Phi = design(prior)
    if Phi is None:
        return None
    _, iterations = draw_iteratively(rng, Phi, sites.h, sites.lam)
    return iterations if iterations < MOST_ITERATIONS else None


def solve(Phi: csr_array, lam: Array, right: Array) -> tuple[Array, int]:
    """Return M⁻¹ times a vector, and the iterations, preconditioned by the diagonal of M."""
    diagonal = 1.0 + Phi.power(2).T @ lam
    v, residual = np.zeros_like(right), right.copy()
    direction, product = np.zeros_like(right), 1.0
    for iterations in range(MOST_ITERATIONS):
        if np.linalg.norm(residual) <= TOLERANCE * np.linalg.norm(v):
            return v, iterations
        z = residual / diagonal
        before, product = product, float(residual @ z)
        direction = z + (product / before) * direction
        moved = direction + Phi.T @ (lam * (Phi @ direction))
        step = product / float(direction @ moved)
        v += step * direction
        residual -= step * moved
    return v, MOST_ITERATIONS
