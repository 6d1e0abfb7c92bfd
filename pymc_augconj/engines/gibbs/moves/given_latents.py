"""Hyperparameters given the latents, ω integrated out, and scales of single latents.

Hyperparameters are updated in coordinates that do not move. Some parameters r of likelihoods are
updated once more given w = v + b log r, v the whitened latents: against the location of a
predictor, see ``docs/theory/gibbs.md``. Here b is the mean of v given the sites h = λ = ½ for the
rows of that predictor. Cutpoints c of ordinal observations move with it: −c̄ is in the place of log
r.

Scales λ of single latents are updated with all latents integrated out, and given the scaled ones.
Entry j multiplies the whitened latent vⱼ, that is column j of Φ. Where its square grows by the
factor 1 + δ, with q = φⱼᵀ C⁻¹ φⱼ, b = φⱼᵀ C⁻¹ Λ⁻¹h and C = ΦΦᵀ + Λ⁻¹, the log evidence grows by

    −½ log(1 + δ q) + ½ δ b² / (1 + δ q),

and C changes by one rank. Entries are drawn in turn, each from some points of its log scale, the
present one among them: these are normal about a point that is normal about the present one, so
that each of them had the same chance to be where the others come from (Tjelmeland 2004, Using all
Metropolis–Hastings proposals to estimate mean values). Some columns at a time take O(R²) each, or
O(D²) where latents are fewer than rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.observed import SiteData
from pymc_augconj.engines.gibbs.parts import Part
from pymc_augconj.engines.gibbs.state import State
from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.rows import SiteSum
from pymc_augconj.linalg.dense import SMALL_BOUND
from pymc_augconj.model import ColumnScales, Hyperparameter
from pymc_augconj.plan import BY_ENTRY
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Index

from .ridges import move_along

#: η and the log density of latents that move, as functions of the point.
Predictors = Callable[[Point], tuple[Array, float]]
# Points of each entry, and the range of their standard deviations on the unconstrained scale.
POINTS, SPREAD = 8, (0.5, 4.0)
# Columns at a time.
BLOCK = 64
# A difference, in nats, between two ways of computing a change of a log evidence.
_WRONG = 1e-4


def scales_of(columns: ColumnScales, point: Point) -> Array:
    """Return the scales of the latents, whose signs cancel; NaN where a deviation is negative."""
    std, factors = columns(point)
    return np.where(std >= 0.0, std * factors, np.nan)


def update_given_coefficients(
    rng: np.random.Generator, chain: Chain, state: State, member: Hyperparameter
) -> None:
    """Update the entries of a vector, given the latents times their scales."""
    columns, point = member.columns, state.point
    assert columns is not None  # see plan
    prior = chain.priors.at(point)
    innovations = chain.innovations(point, prior.blocks)
    _, factors = columns(point)
    coefficients = factors * innovations[columns.block][columns.latents]
    # A scale of zero, or one that is not known, cannot be divided by.
    if not (np.abs(scales_of(columns, point)) > 0.0).all():
        return

    def densities(candidate: Point) -> Array:
        scale = np.abs(scales_of(columns, candidate))
        standardised = coefficients / scale
        return columns.densities(candidate) - np.log(scale) - 0.5 * standardised**2

    state.update_entries(rng, f"{BY_ENTRY}{member.name}", member, densities)
    _, moved = columns(state.point)
    innovations[columns.block] = innovations[columns.block].copy()
    innovations[columns.block][columns.latents] = coefficients / moved
    new = chain.priors.at(state.point).blocks
    whitened = [b.unscale(u) for b, u in zip(new, innovations, strict=True)]
    state.point = chain.point_of(state.point, innovations, whitened)


def update_columns(
    rng: np.random.Generator, chain: Chain, state: State, part: Part, member: Hyperparameter
) -> None:
    """Update the entries of a vector in turn, given ω, the part's latents integrated out."""
    columns, point = member.columns, state.point
    name, size = member.value_name, member.size
    assert columns is not None  # see plan
    spread = np.exp(rng.uniform(*np.log(SPREAD), size=size))
    start = np.ravel(point[name])
    centre = start + spread * rng.standard_normal(size)
    others = centre + spread * rng.standard_normal((POINTS - 1, size))
    points = np.vstack([start, others])
    log_prior, growth = np.empty_like(points), np.empty_like(points)
    scale = scales_of(columns, point)
    with np.errstate(all="ignore"):
        for k, x in enumerate(points):
            candidate = {**point, name: x.reshape(member.shape)}
            log_prior[k] = columns.densities(candidate)
            growth[k] = (scales_of(columns, candidate) / scale) ** 2 - 1.0
        # Rounding would move the present point.
        growth[0] = 0.0
    state.info.evaluations += POINTS
    noise: Array = np.asarray(rng.gumbel(size=points.shape))
    prior = part.priors.at(point).factorized()
    sites = part.sites_at(prior)
    before = sum(b.block.total_size for b in prior.blocks[: part.blocks.index(columns.block)])
    chosen, change = choose(
        prior, sites.h, sites.lam, before + columns.latents, log_prior, growth, noise
    )
    state.point = {**point, name: points[chosen, np.arange(size)].reshape(member.shape)}
    if chain.verifies:
        _check(chain, part, member, point, state.point, change)


def choose(
    prior: LatentPrior, h: Array, lam: Array, own: Index, log_prior: Array, growth: Array,
    noise: Array,
) -> tuple[Index, float]:  # fmt: skip
    """Return the point of every entry, and the change of log prior and log evidence.

    ``own`` are the columns of Φ, ``growth`` δ at every point, shape (points, entries), and
    ``noise`` standard Gumbel numbers.
    """
    # Imported here, as only such models need Numba.
    from .column_kernel import choose_in_turn

    pairs = list(zip(prior.blocks, prior.maps, strict=True))
    # A flat latent has the precision zero.
    Phi = np.hstack([A.dense() if b.block.is_flat else b.whitened_design(A) for b, A in pairs])
    is_flat = np.repeat([b.block.is_flat for b, _ in pairs], [A.size for _, A in pairs])
    chosen, total = np.zeros(own.size, dtype=np.intp), 0.0
    if Phi.shape[1] <= Phi.shape[0]:
        precision = (Phi.T * lam) @ Phi + np.diag(np.where(is_flat, 0.0, 1.0))
        inverse = np.linalg.inv(precision)
        Q = np.eye(own.size) - inverse[np.ix_(own, own)]
        b = (inverse @ (Phi.T @ h))[own]
        return chosen, float(choose_in_turn(Q, b, log_prior, growth, noise, chosen))
    root, H, K = np.sqrt(lam), Phi[:, is_flat], Phi[:, ~is_flat] @ Phi[:, ~is_flat].T
    for first in range(0, own.size, BLOCK):
        which = slice(first, min(first + BLOCK, own.size))
        phi = Phi[:, own[which]]
        # With L Lᵀ = I + Λ^½ K Λ^½; by an inverse, columns that are known well have no digits.
        try:
            L = np.linalg.cholesky(np.eye(root.size) + root[:, None] * K * root)
        except np.linalg.LinAlgError:
            break  # the others have no digits, and stay
        right = root[:, None] * np.hstack([phi, (K @ h)[:, None], H])
        T = solve_triangular(L, right, lower=True)
        N, R = np.linalg.qr(T[:, phi.shape[1] + 1 :])
        b = phi.T @ h - T[:, : phi.shape[1]].T @ (N @ np.linalg.solve(R.T, H.T @ h))
        T -= N @ (N.T @ T)
        t, fit = T[:, : phi.shape[1]], T[:, phi.shape[1]]
        at = np.ascontiguousarray([log_prior[:, which], growth[:, which], noise[:, which]])
        total += float(choose_in_turn(t.T @ t, b - t.T @ fit, at[0], at[1], at[2], chosen[which]))
        K += (phi * growth[chosen[which], np.arange(which.start, which.stop)]) @ phi.T
    return chosen, total


def _check(
    chain: Chain, part: Part, member: Hyperparameter, old: Point, new: Point, change: float
) -> None:
    """Compare the change of a log evidence with that of the solver, where this has digits."""
    expected = error = 0.0
    for sign, point in ((-1.0, old), (1.0, new)):
        posterior = part.given_sites(point).posterior
        expected += sign * (float(chain.model.log_prior(point)) + posterior.log_normalizer)
        error += posterior.error
    # Where rounding leaves fewer digits to the solver, it does so to the change, too.
    if error <= SMALL_BOUND and not abs(change - expected) <= _WRONG + error:
        raise AugmentationError(
            f"variable {member.name!r}: expected a change of the log evidence of {expected:.8g}, "
            f"as another factorisation gives it, found {change:.8g}; no draw of this chain can be "
            "trusted; sample this model with pm.sample's NUTS, and please report it"
        )


# λ of a row: the Fisher information of log r in a normal observation of the precision r.
_INFORMATION = 0.5


@dataclass(frozen=True)
class Level:
    """A parameter r of an observed variable, and the predictor whose location it moves against.

    ``parameters`` are r, or the cutpoints if ``are_cutpoints``. ``part`` has the latents of that
    predictor, and ``rows`` are those of it among the part's.
    """

    data: SiteData
    parameters: tuple[str, ...]
    are_cutpoints: bool
    part: Part
    rows: Index

    def log_parameter(self, point: Point) -> float:
        """Return log r, its mean where observations have parameters of their own, or −c̄."""
        params = self.data.site.params(point)
        values = np.array([params[name] for name in self.parameters])
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(np.mean(-values if self.are_cutpoints else np.log(values)))

    @cached_property
    def _sites(self) -> SiteSum:
        groups = self.part.priors.groups
        lam = np.zeros(groups.coupling.size)
        lam[self.rows] = _INFORMATION
        h = lam[: groups.coupling.n_rows]
        return groups.sites(h, lam, np.zeros(h.size))

    def direction(self, prior: LatentPrior) -> tuple[list[Array], list[Array], Array]:
        """Return b by blocks: as v, as u, and what it adds to the part's predictors."""
        posterior = self.part.solver.posterior(prior, self._sites)
        x = posterior.latent_mean
        innovations = posterior.innovations(x)
        raised = prior.predictor(innovations) - prior.offset
        return prior.split(posterior.whitened(x)), innovations, raised


def find_levels(parts: Sequence[Part], names: Set[str]) -> tuple[Level, ...]:
    """Return the parameters that a level moves against, of what depends on ``names``."""
    found = []
    for part in parts:
        for data, group in part.members:
            if names.isdisjoint(data.site.params.names):
                continue
            kind = data.site.likelihood
            parameters: list[tuple[tuple[str, ...], bool, int]]
            parameters = [((name,), False, p) for name, p in kind.levels.items()]
            if kind.cutpoints:
                parameters.append((kind.cutpoints, True, 0))
            for moved, are_cutpoints, predictor in parameters:
                if predictor in data.how.groups[group]:
                    own = data.site.row_numbers[predictor]
                    rows = np.flatnonzero(np.isin(part.rows, own))
                    found.append(Level(data, moved, are_cutpoints, part, rows))
    return tuple(found)


def update_prior_only(rng: np.random.Generator, chain: Chain, state: State) -> None:
    """Update hyperparameters that nothing but other hyperparameters depends on."""
    if members := chain.plan.prior_only:
        state.update(rng, "prior_only", members, chain.model.log_prior)


def update_entries(rng: np.random.Generator, chain: Chain, state: State) -> None:
    """Update vectors whose entries are independent given everything else, ω integrated out.

    What is held fixed are the values of the point, in the user's own parametrisation.
    """
    for member in chain.plan.by_entry:
        if member in chain.plan.by_column:
            update_given_coefficients(rng, chain, state, member)
            continue
        assert member.entries is not None
        old = dict(state.point)
        state.update_entries(rng, f"{BY_ENTRY}{member.name}", member, member.entries)
        if chain.verifies:
            moved = np.arange(member.size) % 2 == int(rng.integers(2))
            member.entries.check(old, state.point, moved)


def update_along_ridges(rng: np.random.Generator, chain: Chain, state: State) -> None:
    """Update entries of hyperparameters that vectors follow, see :class:`.EntryRidge`.

    By the whole density, as what stays the same along a ridge was found at some points alone. It is
    that given the latents, or where the vector scales them given the whitened ones.
    """
    scaling = {h.value_name for h in chain.plan.by_column}
    for name, ridge in chain.plan.ridges.items():
        density: Callable[[Point], float] = chain.log_density
        restored = None
        if ridge.vector in scaling:
            predictors, restored = _given_whitened(chain, state.point)
            density = _log_density(chain, predictors, chain.data)

        def log_density(candidate: Point, density: Callable[[Point], float] = density) -> float:
            with suppress(NotPositiveDefiniteError):
                return density(candidate)
            return -np.inf

        update = state.updates[name]
        point, count = move_along(rng, log_density, state.point, ridge, update)
        state.point = point if restored is None else restored(point)
        state.info.evaluations += count


def update_joint(rng: np.random.Generator, chain: Chain, state: State) -> None:
    """Update hyperparameters of a covariance and a likelihood, given the whitened latents."""
    if not chain.plan.joint:
        return
    predictors, restored = _given_whitened(chain, state.point)
    state.update(rng, "joint", chain.plan.joint, _log_density(chain, predictors, chain.data))
    state.point = restored(state.point)


def _given_whitened(chain: Chain, point: Point) -> tuple[Predictors, Callable[[Point], Any]]:
    """Return the predictors of the whitened latents of a point, and other points with these."""
    whitened = chain.whitened(point)

    def innovations(candidate: Point) -> list[Array]:
        blocks = chain.priors.at(candidate).blocks
        return [b.scale(v) for b, v in zip(blocks, whitened, strict=True)]

    def predictors(candidate: Point) -> tuple[Array, float]:
        return chain.priors.at(candidate).predictor(innovations(candidate)), 0.0

    return predictors, lambda other: chain.point_of(other, innovations(other), whitened)


def update_likelihood(rng: np.random.Generator, chain: Chain, state: State) -> None:
    """Update hyperparameters of likelihoods, given the innovations."""
    if not chain.plan.likelihood:
        return
    names = {h.value_name for h in chain.plan.likelihood}
    moving = not names.isdisjoint(chain.priors.names)
    prior = chain.priors.at(state.point)
    innovations = chain.innovations(state.point, prior.blocks)
    eta = prior.predictor(innovations)
    touched = [d for d in chain.data if moving or not names.isdisjoint(d.site.params.names)]

    def predictors(candidate: Point) -> tuple[Array, float]:
        return chain.priors.at(candidate).predictor(innovations) if moving else eta, 0.0

    log_density = _log_density(chain, predictors, touched)
    state.update(rng, "likelihood", chain.plan.likelihood, log_density)
    # What is held fixed is u: a value mean(θ) + u moves with its mean. Means may cancel in every
    # predictor, so that these are not among the names of priors.
    means = [block.mean.names for block in chain.model.blocks if block.mean is not None]
    if moving or any(not names.isdisjoint(own) for own in means):
        state.point = chain.point_of(state.point, innovations, chain.entries(state.point))


def update_level(rng: np.random.Generator, chain: Chain, state: State, level: Level) -> None:
    """Update a parameter while the level of a predictor moves against it."""
    point, part, start = state.point, level.part, level.log_parameter(state.point)
    if not np.isfinite(start):
        # Of a value that underflows; nor is any such value reached from another one.
        return
    prior, whole = part.priors.at(point).factorized(), chain.priors.at(point)
    of_all = chain.innovations(point, whole.blocks)
    eta, u, v = whole.predictor(of_all), part.select(of_all), part.select(chain.whitened(point))
    by_v, by_u, of_part = level.direction(prior)
    raised = np.zeros_like(eta)
    raised[part.rows] = of_part

    def moved(latents: list[Array], by: list[Array], candidate: Point) -> list[Array]:
        t = level.log_parameter(candidate) - start
        return [x - t * b for x, b in zip(latents, by, strict=True)]

    def predictors(candidate: Point) -> tuple[Array, float]:
        (there,) = moved([eta], [raised], candidate)
        blocks = zip(prior.blocks, moved(v, by_v, candidate), strict=True)
        return there, sum(block.log_density(x) for block, x in blocks)

    state.update(rng, "level", chain.plan.level, _log_density(chain, predictors, chain.data))
    ends = moved(u, by_u, state.point), moved(v, by_v, state.point)
    state.point = chain.replaced(state.point, part, *ends)


def _log_density(
    chain: Chain, predictors: Predictors, data: Sequence[SiteData]
) -> Callable[[Point], float]:
    """Return the log density of hyperparameters, from functions of η and the latents' log prior."""

    def log_density(candidate: Point) -> float:
        log_prior = float(chain.model.log_prior(candidate))
        if not np.isfinite(log_prior):
            return -np.inf
        eta, of_latents = predictors(candidate)
        return log_prior + of_latents + chain.log_likelihood(eta, candidate, data)

    return log_density
